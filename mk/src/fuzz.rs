//! `cargo mk fuzz`: looks for inputs with libFuzzer, two targets at a time, and writes the table in `tests/fuzz/README.md`.
//!
//! The corpus of each target stays in `target/fuzz-corpus`, and what a run adds up to in `record.json` there, so the next run
//! goes on where this one ended. An input that a target fails on is kept in `target/fuzz-found` until it is removed by hand.
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
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;

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
    /// The target [default: each of them].
    target: Option<String>,
    /// Minutes for each target.
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Only writes the inputs that the repository keeps, `tests/fuzz/corpus`, from the corpora of earlier runs.
    #[arg(long)]
    corpus: bool,
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
    let chosen: Vec<&Target> =
        all.iter().filter(|target| options.target.as_ref().is_none_or(|name| *name == target.name)).collect();
    if chosen.is_empty() {
        let names: Vec<_> = all.iter().map(|target| target.name.as_str()).collect();
        bail!("there is no target {}; there are {}", options.target.as_deref().unwrap_or(""), names.join(", "));
    }
    if options.list {
        for target in &chosen {
            println!("{:<14}{}", target.name, target.files.join(" "));
        }
        return Ok(Outcome::Good);
    }
    if !(options.minutes > 0.0 && options.minutes <= 1_000_000.0) {
        bail!("--minutes {}: more than 0 is needed", options.minutes);
    }
    let compiler = if options.asan { Compiler::NightlyAsan } else { Compiler::Stable };
    let programs = build::fuzzers(&chosen, compiler)?;
    if options.corpus {
        for target in &chosen {
            kept::seed(&target.name)?;
            kept::write(target, &programs)?;
        }
        return Ok(Outcome::Good);
    }
    let records = Mutex::new(Records::read(&folder().join("record.json"))?);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| -> Result<()> {
        let run = || -> Result<()> {
            while let Some(target) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                let run = look_for_inputs(target, &programs, options)?;
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
    if !options.asan {
        let mut records = records.into_inner().context("another target ended this run")?;
        coverage::measure(&chosen, &mut records)?;
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

/// Runs one target for some minutes.
fn look_for_inputs(target: &Target, programs: &Path, options: &Options) -> Result<Record> {
    let name = &target.name;
    let (corpus, kept) = (corpus(name), found_folder(name));
    kept::seed(name)?;
    fs::create_dir_all(&kept).with_context(|| format!("cannot make {}", kept.display()))?;
    let output = folder().join(format!("{name}.log"));
    let mut command = tools::dying_with_us(Path::new("/usr/bin/nice"));
    command.args(["-n", "19"]).arg(programs.join(format!("fuzz-{name}")));
    command.arg(format!("-max_total_time={}", (options.minutes * 60.0).ceil() as u64));
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
    let begin = Instant::now();
    let (mut log, mut last_new) = (Log::default(), 0.0);
    let mut progress = ui::Progress::new("fuzz");
    let status = loop {
        let ended = process.try_wait()?;
        let now = Log::read(&String::from_utf8_lossy(&fs::read(&output)?));
        if now.edges > log.edges.max(now.edges_at_start) {
            last_new = begin.elapsed().as_secs_f64();
        }
        log = now;
        if let Some(status) = ended {
            break status;
        }
        progress.at(|| {
            let time = ui::minutes(begin.elapsed().as_secs_f64());
            format!("{name} {time}: {} executions, {} edges of {}", log.executions, log.edges, log.all_edges)
        });
        thread::sleep(LOOK);
    };
    if log.all_edges == 0 {
        bail!("{name} did not start, see {}", output.display());
    }
    let seconds = begin.elapsed().as_secs_f64();
    let result = if status.success() { "ended" } else { "FAILED" };
    ui::step("fuzz", &format!("{name} {result}: {} executions, {} edges", log.executions, log.edges));
    Ok(Record {
        executions: log.executions,
        edges: log.edges,
        all_edges: log.all_edges,
        seconds,
        quiet: seconds - last_new,
        found: found(name)?.len() as u64,
        ..Record::default()
    })
}
