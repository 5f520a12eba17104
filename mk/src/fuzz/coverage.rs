//! The lines of the files under test that a corpus reaches, by `-C instrument-coverage`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::build;
use super::places::corpus;
use super::record::Records;
use super::target::Target;
use crate::{paths, tools, ui};

/// Of each file: how often each of its lines ran.
type Lines = BTreeMap<String, BTreeMap<u64, u64>>;

/// Replays each corpus and counts lines. The lines that were not reached are in `target/fuzz-coverage/NAME.missed`. Nothing is
/// counted if llvm-tools are missing.
pub fn measure(targets: &[&Target], records: &mut Records) -> Result<()> {
    let (Some(_), Some(_)) = (llvm_tool("llvm-profdata")?, llvm_tool("llvm-cov")?) else {
        ui::step("fuzz", "no line coverage: the compiler's llvm-tools are missing and could not be added");
        return Ok(());
    };
    let programs = build::counters(targets)?;
    for target in targets {
        ui::step("coverage", &target.name);
        let lines = of_target(target, &programs)?;
        let all = lines.values().map(BTreeMap::len).sum::<usize>() as u64;
        let reached = lines.values().flat_map(BTreeMap::values).filter(|count| **count > 0).count() as u64;
        let record = records.of(&target.name);
        (record.lines, record.all_lines) = (reached, all);
        let missed = paths::target().join("fuzz-coverage").join(format!("{}.missed", target.name));
        fs::write(&missed, missed_lines(&lines)).with_context(|| format!("cannot write {}", missed.display()))?;
    }
    Ok(())
}

fn of_target(target: &Target, programs: &Path) -> Result<Lines> {
    let program = programs.join(format!("fuzz-{}", target.name));
    let raw = program.with_extension("profraw");
    let profile = program.with_extension("profdata");
    let mut replay = tools::dying_with_us(&program);
    replay.arg(corpus(&target.name)).env("LLVM_PROFILE_FILE", &raw).stdin(Stdio::null());
    tools::quietly(&mut replay, &format!("the replay of {}", target.name))?;
    let tool = |name| llvm_tool(name).and_then(|tool| tool.with_context(|| format!("{name} is missing")));
    tools::quietly(
        tool("llvm-profdata")?.args(["merge", "-sparse"]).arg(&raw).arg("-o").arg(&profile),
        "llvm-profdata",
    )?;
    let mut export = tool("llvm-cov")?;
    export.args(["export", "--format=lcov"]).arg(format!("--instr-profile={}", profile.display())).arg(&program);
    export.args(target.files.iter().map(|file| paths::root().join(file)));
    let text = tools::quietly(&mut export, "llvm-cov")?;
    let mut lines = parse(&text, &paths::root().display().to_string());
    lines.retain(|file, _| !target.without.iter().any(|without| Path::new(file).starts_with(without)));
    if lines.is_empty() {
        bail!("no line of {} is in the program of {}", target.files.join(" "), target.name);
    }
    Ok(lines)
}

/// A program of the compiler's llvm-tools, or `None` if they are neither there nor could be added.
fn llvm_tool(name: &str) -> Result<Option<Command>> {
    let sysroot =
        tools::quietly(Command::new("rustc").args(["--print", "sysroot"]).current_dir(paths::root()), "rustc")?;
    let path = Path::new(sysroot.trim()).join("lib/rustlib").join(build::HOST).join("bin").join(name);
    if !path.is_file() {
        ui::step("rustup", "component add llvm-tools");
        let _ = Command::new("rustup").args(["component", "add", "llvm-tools"]).current_dir(paths::root()).status();
    }
    Ok(path.is_file().then(|| Command::new(path)))
}

/// Reads lcov's tracefile: `SF:FILE`, then `DA:LINE,COUNT`.
fn parse(text: &str, root: &str) -> Lines {
    let mut all = Lines::new();
    let mut file = String::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("SF:") {
            file = name.strip_prefix(root).unwrap_or(name).trim_start_matches('/').to_owned();
        } else if let Some((number, count)) = line.strip_prefix("DA:").and_then(|line| line.split_once(','))
            && let (Ok(number), Ok(count)) = (number.parse(), count.parse::<u64>())
        {
            *all.entry(file.clone()).or_default().entry(number).or_default() += count;
        }
    }
    all
}

/// `FILE: 1-3 7`, a line for each file.
fn missed_lines(lines: &Lines) -> String {
    let mut text = String::new();
    for (file, lines) in lines {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (number, _) in lines.iter().filter(|(_, count)| **count == 0) {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == *number => *last = *number,
                _ => runs.push((*number, *number)),
            }
        }
        if !runs.is_empty() {
            let run = |(first, last): &(u64, u64)| {
                if first == last { format!(" {first}") } else { format!(" {first}-{last}") }
            };
            text += &format!("{file}:{}\n", runs.iter().map(run).collect::<String>());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_and_those_that_were_missed_are_named() {
        let lines =
            parse("SF:/r/a.rs\nFN:1,x\nDA:1,2\nDA:2,0\nDA:3,0\nDA:7,0\nend_of_record\nSF:/r/b.rs\nDA:1,1\n", "/r");
        assert_eq!(lines["a.rs"], BTreeMap::from([(1, 2), (2, 0), (3, 0), (7, 0)]));
        assert_eq!(missed_lines(&lines), "a.rs: 2-3 7\n");
    }
}
