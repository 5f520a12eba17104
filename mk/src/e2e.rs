//! `cargo mk e2e`: runs scenarios and shows their numbers.

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use scenarios::scenario::{Scenario, all};
use scenarios::{Platform, figures::Figures};
use serde_json::json;

use crate::emulator::{self, Emulator};
use crate::{Outcome, image, ui};

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
        for scenario in &chosen {
            if !scenario.platforms.contains(&platform) {
                continue;
            }
            // Asked for by name, it is wanted even if it takes long.
            if scenario.slow_on_bochs && platform == Platform::Bochs && !options.full && options.name.is_none() {
                tally.skipped += 1;
                continue;
            }
            let name = format!("{} on {platform}", scenario.name);
            let mut good = one(scenario, platform, options);
            for _ in 0..options.retries {
                if good {
                    break;
                }
                good = one(scenario, platform, options);
                if good {
                    tally.unsteady.push(name.clone());
                }
            }
            tally.count(name, good);
        }
    }
    if tally.passed + tally.failed + tally.skipped == 0 {
        bail!("that scenario does not run on that platform; `cargo mk e2e --list` shows where it does");
    }
    Ok(tally)
}

fn one(scenario: &Scenario, platform: Platform, options: &Options) -> bool {
    ui::step("e2e", &format!("{} on {platform}", scenario.name));
    let begin = Instant::now();
    let (result, figures) = scenario.execute(&mut Emulator::new(platform), options.full);
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
        let word = ui::verdict(if good { "passed" } else { "FAILED" }, good);
        println!("{word} {} on {platform}, {seconds:.1} s", scenario.name);
        show(&figures);
        if let Err(error) = result {
            println!("    {}", format!("{error:#}").replace('\n', "\n    "));
        }
    }
    good
}

fn show(figures: &Figures) {
    for figure in figures.all() {
        println!("    {figure}");
    }
}
