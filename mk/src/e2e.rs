//! `cargo mk e2e`: runs scenarios and shows their numbers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use scenarios::Platform;
use scenarios::scenario::{Scenario, all};
use serde_json::json;

use crate::emulator::{self, Emulator};
use crate::{Outcome, image, ui};

/// Scenarios that run on Bochs at the same time, at most: each has the memory of a server.
const MOST_AT_ONCE: usize = 4;

/// Which scenarios, and where.
#[derive(Args, Default)]
pub struct Options {
    /// Only this scenario.
    name: Option<String>,
    /// Only there: kvm, qemu or bochs [default: kvm where it nests, otherwise qemu; and bochs].
    #[arg(long)]
    platform: Option<Platform>,
    /// Also what takes long on Bochs.
    #[arg(long)]
    full: bool,
    /// Only lists the scenarios.
    #[arg(long)]
    list: bool,
    /// How often a scenario that failed is tried again. One that passes then is named at the end.
    #[arg(long, default_value_t = 0, value_name = "TIMES")]
    retries: u32,
    /// Results as one JSON object a line, on standard output.
    #[arg(long)]
    json: bool,
}

/// How many tests went how, and which of them went wrong.
#[derive(Debug, Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// What failed, by name as far as it has one.
    pub failures: Vec<String>,
    /// Scenarios that failed and then passed: there is something to find out about each.
    pub unsteady: Vec<String>,
}

impl Tally {
    /// Counts something that has a name.
    pub fn count(&mut self, name: String, good: bool) {
        if good {
            self.passed += 1;
        } else {
            self.failed += 1;
            self.failures.push(name);
        }
    }

    /// Adds what others counted.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.unsteady.extend(other.unsteady);
    }

    /// The last words on all of it, for people.
    pub fn show(&self) {
        for name in &self.failures {
            println!("{} {name}", ui::verdict("FAILED", false));
        }
        for name in &self.unsteady {
            println!("{} {name}: it failed, and passed when it was tried again", ui::verdict("unsteady", false));
        }
        let skipped = if self.skipped > 0 { format!(", {} skipped", self.skipped) } else { String::new() };
        println!("{} passed, {} failed{skipped}", self.passed, self.failed);
    }
}

/// `cargo mk e2e`.
pub fn verb(options: &Options) -> Result<Outcome> {
    if options.list {
        list();
        return Ok(Outcome::Good);
    }
    let tally = run(options)?;
    if !options.json {
        tally.show();
    }
    Ok(if tally.failed == 0 { Outcome::Good } else { Outcome::Failed })
}

/// Runs everything, and what fails once more; only what keeps all scenarios from being tried is an error.
pub fn run_all(full: bool) -> Result<Tally> {
    run(&Options { full, retries: 1, ..Options::default() })
}

fn list() {
    for scenario in all() {
        let places: Vec<String> = scenario.platforms.iter().map(ToString::to_string).collect();
        let slow = if scenario.slow_on_bochs { "; bochs with --full" } else { "" };
        println!("{:<24} {} ({}{slow})", scenario.name, scenario.about, places.join(", "));
    }
}

fn run(options: &Options) -> Result<Tally> {
    let mut chosen = all();
    if let Some(name) = &options.name {
        chosen.retain(|scenario| scenario.name == name);
        if chosen.is_empty() {
            bail!("there is no scenario {name:?}; `cargo mk e2e --list` shows them");
        }
    }
    let platforms = match options.platform {
        Some(platform) => vec![emulator::choose(Some(platform))?],
        None => vec![emulator::choose(None)?, Platform::Bochs],
    };
    // What does not build fails no scenario: nothing was tried.
    image::parts()?;
    let mut tally = Tally::default();
    for platform in platforms {
        // Asked for by name, it is wanted even if it takes long.
        let slow = platform == Platform::Bochs && !options.full && options.name.is_none();
        let (left_out, wanted): (Vec<_>, Vec<_>) = chosen
            .iter()
            .filter(|scenario| scenario.platforms.contains(&platform))
            .partition(|scenario| slow && scenario.slow_on_bochs);
        tally.skipped += left_out.len();
        tally.add(side_by_side(&wanted, platform, options));
    }
    if tally.passed + tally.failed + tally.skipped == 0 {
        bail!("that scenario does not run on that platform; `cargo mk e2e --list` shows where it does");
    }
    Ok(tally)
}

/// Runs scenarios on one platform. Whoever is done with one takes the next.
fn side_by_side(scenarios: &[&Scenario], platform: Platform, options: &Options) -> Tally {
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    let run = || {
        while let Some(scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = format!("{} on {platform}", scenario.name);
            let failures = (0..=options.retries).position(|_| one(scenario, platform, options));
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            if failures.is_some_and(|failures| failures > 0) {
                tally.unsteady.push(name.clone());
            }
            tally.count(name, failures.is_some());
        }
    };
    thread::scope(|scope| {
        for _ in 0..lanes(platform) {
            scope.spawn(run);
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Scenarios that run at the same time. QEMU has a thread for each of its processors, Bochs one for all.
fn lanes(platform: Platform) -> usize {
    match platform {
        Platform::Bochs => thread::available_parallelism().map_or(1, usize::from).min(MOST_AT_ONCE),
        Platform::Kvm | Platform::Qemu => 1,
    }
}

fn one(scenario: &Scenario, platform: Platform, options: &Options) -> bool {
    ui::step("e2e", &format!("{} on {platform}", scenario.name));
    let begin = Instant::now();
    let (result, figures) = scenario.execute(&mut Emulator::of_scenario(platform, scenario.name), options.full);
    let good = result.is_ok();
    let seconds = begin.elapsed().as_secs_f64();
    if options.json {
        let error = result.err().map(|error| format!("{error:#}"));
        let figures = figures.to_json();
        println!(
            "{}",
            json!({ "scenario": scenario.name, "platform": platform.to_string(), "passed": good,
                    "seconds": seconds, "figures": figures, "error": error })
        );
    } else {
        // In one piece: another may end at the same time.
        let word = ui::verdict(if good { "passed" } else { "FAILED" }, good);
        let mut text = format!("{word} {} on {platform}, {seconds:.1} s\n", scenario.name);
        for figure in figures.all() {
            text += &format!("    {figure}\n");
        }
        if let Err(error) = result {
            text += &format!("    {}\n", format!("{error:#}").replace('\n', "\n    "));
        }
        print!("{text}");
    }
    good
}
