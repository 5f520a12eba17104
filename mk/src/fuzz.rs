//! `cargo mk fuzz`: looks for inputs with libFuzzer, two targets at a time, and writes the table in `tests/fuzz/README.md`.
//!
//! The corpus of each target stays in `target/fuzz-corpus`, and what a run adds up to in `record.json` there, so the next run
//! goes on where this one ended. Without them, on another machine, it goes on with the inputs that the repository keeps, and with
//! the table. An input that a target fails on is kept in `target/fuzz-found` until it is removed by hand.
//! `cargo mk fuzz --corpus` writes the inputs that the repository keeps.

mod build;
mod coverage;
mod kept;
mod limits;
mod log;
mod places;
mod record;
mod table;
mod target;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process};

use build::Compiler;
use limits::{ASAN_MEGABYTES, LONGEST, SLOW};
use log::Log;
use places::{corpus, folder, found, found_folder};
use record::{Record, Records};
use target::Target;

use crate::outcome::Outcome;
use crate::{tools, ui};

/// Targets that run at the same time, one thread each.
const AT_A_TIME: usize = 2;
/// Seconds between two looks at the output of a target.
const LOOK: Duration = Duration::from_secs(1);

/// What to fuzz.
#[derive(Args)]
pub struct Options {
    /// The targets [default: each of them].
    targets: Vec<String>,
    /// Minutes of processor time for each target.
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Only writes the inputs that the repository keeps, `tests/fuzz/corpus`, from the corpora of earlier runs.
    #[arg(long)]
    corpus: bool,
    /// Runs nothing: counts the lines that the corpora of earlier runs reach, and writes the table.
    #[arg(long, conflicts_with_all = ["corpus", "asan", "list"])]
    count: bool,
    /// With the address sanitizer, by the nightly compiler. The table stays as it is: it is of runs without.
    #[arg(long, conflicts_with_all = ["corpus", "list", "json"])]
    asan: bool,
    /// Only lists the targets and the files under test.
    #[arg(long)]
    list: bool,
    /// Also writes the table to this file, as one JSON object.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// `cargo mk fuzz`. The outcome is `Failed` if a target has failed on an input, in this run or before.
pub fn verb(options: &Options) -> Result<Outcome> {
    let all = target::all()?;
    let names: Vec<_> = all.iter().map(|target| target.name.as_str()).collect();
    if let Some(unknown) = options.targets.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("there is no target {unknown}; there are {}", names.join(", "));
    }
    let is_chosen = |target: &&Target| options.targets.is_empty() || options.targets.contains(&target.name);
    let mut chosen: Vec<&Target> = all.iter().filter(is_chosen).collect();
    if options.list {
        for target in &chosen {
            println!("{:<14}{}", target.name, target.files.join(" "));
        }
        return Ok(Outcome::Good);
    }
    if !(options.minutes > 0.0 && options.minutes <= 1_000_000.0) {
        bail!("--minutes {}: more than 0 is needed", options.minutes);
    }
    let mut records = Records::read(&folder().join("record.json"))?;
    records.begin_with(table::read()?);
    if options.count {
        chosen.retain(|target| corpus(&target.name).is_dir());
    } else {
        let compiler = if options.asan { Compiler::NightlyAsan } else { Compiler::Stable };
        let programs = build::fuzzers(&chosen, compiler)?;
        if options.corpus {
            for target in &chosen {
                kept::seed(&target.name)?;
                kept::write(target, &programs)?;
            }
            return Ok(Outcome::Good);
        }
        // A run that is ended early has done those that need it most.
        let quiet = |target: &&Target| records.get(&target.name).map_or(0.0, |record| record.quiet);
        chosen.sort_by(|a, b| quiet(a).total_cmp(&quiet(b)));
        records = look(&chosen, &programs, options, records)?;
    }
    if !options.asan {
        coverage::measure(&chosen, &mut records)?;
        for target in &chosen {
            records.of(&target.name).found = found(&target.name)?.len() as u64;
        }
        records.write()?;
        table::write(&all, &records)?;
        if let Some(path) = &options.json {
            fs::write(path, records.to_json()?).with_context(|| format!("cannot write {}", path.display()))?;
        }
        print!("{}", table::of(&all, &records));
    }
    let mut good = true;
    for target in &chosen {
        for input in found(&target.name)? {
            good = false;
            ui::error(&format!("{} fails on {}", target.name, input.display()));
        }
    }
    Ok(Outcome::of(good))
}

/// Runs targets, in this order. Returns the records with what the runs add to them; each is written when its target has ended.
fn look(targets: &[&Target], programs: &Path, options: &Options, records: Records) -> Result<Records> {
    let records = Mutex::new(records);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| -> Result<()> {
        let run = || -> Result<()> {
            while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                let run = look_for_inputs(target, programs, options)?;
                if options.asan {
                    continue;
                }
                let mut records = records.lock().map_err(|_| anyhow::anyhow!("another target ended this run"))?;
                records.of(&target.name).add(&run);
                records.write()?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(run)).collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread has panicked"))??;
        }
        Ok(())
    })?;
    records.into_inner().context("another target ended this run")
}

/// Runs one target for some minutes.
fn look_for_inputs(target: &Target, programs: &Path, options: &Options) -> Result<Record> {
    let name = &target.name;
    let (corpus, kept) = (corpus(name), found_folder(name));
    kept::seed(name)?;
    fs::create_dir_all(&kept).with_context(|| format!("cannot make {}", kept.display()))?;
    let output = folder().join(format!("{name}.log"));
    let mut command = tools::dying_with_us(Path::new("/usr/bin/nice"));
    command.args(["-n", "19"]).arg(programs.join(format!("fuzz-{name}")));
    command.args([&format!("-max_len={LONGEST}"), &format!("-timeout={SLOW}"), "-print_final_stats=1"]);
    command.arg(format!("-artifact_prefix={}/", kept.display())).arg(&corpus);
    if options.asan {
        // Tests' memory is never given back.
        command.args(["-detect_leaks=0", &format!("-rss_limit_mb={ASAN_MEGABYTES}")]);
        command.env("ASAN_OPTIONS", "detect_leaks=0");
    }
    let file = fs::File::create(&output).with_context(|| format!("cannot write {}", output.display()))?;
    let mut process = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .with_context(|| format!("cannot start {}", programs.display()))?;
    let number = Pid::from_child(&process);
    let (mut log, mut seconds, mut last_new) = (Log::default(), 0.0, 0.0);
    let mut progress = ui::Progress::new("fuzz");
    let status = loop {
        // Before the process may be gone.
        seconds = processor_seconds(number).unwrap_or(seconds);
        let ended = process.try_wait()?;
        let now = Log::read(&String::from_utf8_lossy(&fs::read(&output)?));
        if now.edges > log.edges.max(now.edges_at_start) {
            last_new = seconds;
        }
        log = now;
        if let Some(status) = ended {
            break status;
        }
        if seconds >= options.minutes * 60.0 {
            // libFuzzer writes its last figures and ends.
            kill_process(number, Signal::USR1)?;
        }
        progress.at(|| {
            let time = ui::minutes(seconds);
            format!("{name} {time}: {} executions, {} edges of {}", log.executions, log.edges, log.all_edges)
        });
        thread::sleep(LOOK);
    };
    if log.all_edges == 0 {
        bail!("{name} did not start, see {}", output.display());
    }
    let result = if status.success() { "ended" } else { "FAILED" };
    ui::step("fuzz", &format!("{name} {result}: {} executions, {} edges", log.executions, log.edges));
    Ok(Record {
        executions: log.executions,
        edges: log.edges,
        all_edges: log.all_edges,
        seconds,
        quiet: seconds - last_new,
        ..Record::default()
    })
}

/// Seconds that a process has been on a processor (proc(5), fields 14 and 15 of `stat`). `None`: there is no such process.
fn processor_seconds(process: Pid) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    Some(ticks(&text)? as f64 / clock_ticks_per_second() as f64)
}

/// Clock ticks in user and in system mode. The name of the program, field 2, may have spaces and parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_the_process() {
        assert_eq!(ticks("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 40 2 0 0"), Some(42));
        assert_eq!(ticks("7 (a"), None);
        assert!(processor_seconds(rustix::process::getpid()).is_some());
    }
}
