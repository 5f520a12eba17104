//! `cargo mk e2e`: runs scenarios and shows their numbers.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{env, fs, thread};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use scenarios::boot::{Boot, Ran};
use scenarios::cases;
use scenarios::launch::Launch;
use scenarios::platform::Platform;
use scenarios::scenario::Scenario;
use serde_json::json;

use crate::emulator::{self, Emulator};
use crate::outcome::{Outcome, Tally};
use crate::rotation::{FILE, Key, OLDEST, Rotation};
use crate::{image, paths, sources, tools, ui};

/// Most scenarios that run on Bochs at the same time. Each needs the memory of a server.
const MOST_AT_ONCE: usize = 4;
/// Default length of the rotation in minutes, on two cores.
pub const MINUTES: f64 = 12.0;

/// Which scenarios, and where.
#[derive(Args, Default)]
pub struct Options {
    /// Only this scenario, or those of this boot [default: the everyday ones].
    name: Option<String>,
    /// Only there: kvm, qemu, nested or bochs [default: kvm where it nests, otherwise qemu; one that is named also on bochs].
    #[arg(long)]
    platform: Option<Platform>,
    /// At the length that takes long.
    #[arg(long)]
    full: bool,
    /// With a hypervisor that is built to check arithmetic for overflows, and its assertions.
    #[arg(long)]
    checked: bool,
    /// Runs it so often and says how often it held.
    #[arg(long, value_name = "TIMES", requires = "name")]
    repeat: Option<u32>,
    /// Only lists the boots and their scenarios, as a table.
    #[arg(long)]
    list: bool,
    /// Only lists the rows of the rotation with their ages.
    #[arg(long)]
    rotation: bool,
    /// Runs the rows of the rotation whose turn it is, for so many minutes, and updates the file.
    #[arg(long, value_name = "MINUTES", num_args = 0..=1, default_missing_value = "12", conflicts_with = "name")]
    rotate: Option<f64>,
    /// Results as one JSON object a line, on standard output.
    #[arg(long)]
    json: bool,
}

/// `cargo mk e2e`.
pub fn verb(options: &Options) -> Result<Outcome> {
    if options.list {
        print!("{}", cases::table());
        return Ok(Outcome::Good);
    }
    if options.rotation {
        return show_rotation(options.json).map(|()| Outcome::Good);
    }
    let tally = match (options.rotate, options.repeat) {
        (Some(minutes), _) => turns(minutes, None, options.platform, options.json)?,
        (None, Some(times)) => repeat(options, times)?,
        (None, None) => run(options)?,
    };
    emulator::end_nested();
    if !options.json {
        tally.show();
    }
    Ok(Outcome::of(tally.failed == 0))
}

/// Runs the everyday scenarios. It is an error only if none could be tried.
pub fn everyday() -> Result<Tally> {
    run(&Options::default())
}

/// Runs the rotation for [`MINUTES`], with a limit if there is one.
pub fn rotate(limit: Option<Limit>) -> Result<Tally> {
    turns(MINUTES, limit, None, false)
}

/// When the rotation has to be over.
#[derive(Clone, Copy)]
pub struct Limit {
    /// No row starts that would probably end later.
    pub end: Instant,
    /// How many times slower than usual this machine is now, 1 or more. Rows take so many times longer than the file says.
    pub slow: f64,
}

impl Limit {
    /// Seconds of a usual machine that are left. 0 after the end.
    fn seconds(&self) -> f64 {
        self.end.saturating_duration_since(Instant::now()).as_secs_f64() / self.slow
    }
}

fn run(options: &Options) -> Result<Tally> {
    let platforms = match (options.platform, &options.name) {
        (Some(platform), _) => vec![emulator::choose(Some(platform))?],
        (None, Some(_)) => vec![emulator::choose(None)?, Platform::Bochs],
        (None, None) => vec![emulator::choose(None)?],
    };
    let boots = cases::all();
    let asked = |boot: &dyn Boot, scenario: &Scenario| {
        options.name.as_ref().is_none_or(|name| scenario.name == name || boot.name() == name)
    };
    if let Some(name) = &options.name
        && !boots.iter().any(|boot| boot.scenarios().iter().any(|scenario| asked(&**boot, scenario)))
    {
        bail!("there is no scenario or boot {name:?}; `cargo mk e2e --list` shows them");
    }
    // A build error fails no scenario, because nothing was tried.
    image::parts()?;
    if options.checked {
        image::checked_kernel()?;
    }
    let mut tally = Tally::default();
    for platform in platforms {
        let mut wanted: Vec<Run<'_>> = Vec::new();
        for boot in &boots {
            // A scenario that takes turns on QEMU runs here only if it is named.
            let turns = |scenario: &Scenario| platform.is_qemu() && options.name.is_none() && scenario.in_turn;
            let here = boot.scenarios().into_iter().filter(|scenario| scenario.platforms.contains(&platform));
            let rare =
                |scenario: &Scenario| !options.full && options.name.is_none() && scenario.rare.contains(&platform);
            let here = here.filter(|scenario| !turns(scenario) && !rare(scenario) && asked(&**boot, scenario));
            let mut names = Vec::new();
            for Scenario { name, needs, .. } in here {
                match needs.filter(|variable| env::var_os(variable).is_none()) {
                    None => names.push(name),
                    Some(variable) => {
                        tally.skipped += 1;
                        ui::step("e2e", &format!("{name} is skipped: {variable} names no file (tests/README.md)"));
                    }
                }
            }
            let run = |names| Run { boot: &**boot, names, platform, full: options.full, checked: options.checked };
            if platform == Platform::Bochs {
                // Bochs is slower with more processors than a scenario needs.
                wanted.extend(names.into_iter().map(|name| run(vec![name])));
            } else if !names.is_empty() {
                wanted.push(run(names));
            }
        }
        tally.add(side_by_side(&wanted, options.json, &|_| true, &|_, _| ()));
    }
    if tally.passed + tally.failed + tally.skipped == 0 {
        bail!("that scenario does not run on that platform; `cargo mk e2e --list` shows where it does");
    }
    Ok(tally)
}

fn repeat(options: &Options, times: u32) -> Result<Tally> {
    ensure!(times > 0, "--repeat takes 1 or more");
    let mut all = Tally::default();
    for _ in 0..times {
        all.add(run(options)?);
    }
    if !options.json {
        println!("it held {} of {} times", all.passed, all.passed + all.failed);
    }
    Ok(all)
}

/// Scenarios of a boot that run on one machine.
struct Run<'a> {
    boot: &'a dyn Boot,
    names: Vec<&'static str>,
    platform: Platform,
    full: bool,
    checked: bool,
}

/// Runs those that may `begin` when their turn comes, on several threads if the platform allows it. A thread that has
/// finished one takes the next. Calls `note` for each scenario that ends.
fn side_by_side(
    runs: &[Run<'_>],
    json: bool,
    begin: &(dyn Fn(&Run<'_>) -> bool + Sync),
    note: &(dyn Fn(&Run<'_>, &Ran) + Sync),
) -> Tally {
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    let lane = || {
        while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !begin(run) {
                continue;
            }
            let Run { boot, names, platform, full, checked } = run;
            ui::step("e2e", &format!("{} on {platform}", names.join(", ")));
            let launcher =
                |logs: &str| -> Box<dyn Launch> { Box::new(Emulator::with_logs(*platform, logs).checked(*checked)) };
            boot.run(&launcher, names, *full, &mut |ran| {
                note(run, &ran);
                let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                tally.count_result(&format!("{} on {platform}", ran.scenario.name), &ran.result);
                report(run, &ran, json);
            });
        }
    };
    let lanes = runs.iter().map(|run| lanes(run.platform)).min().unwrap_or(1);
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(lane);
        }
    });
    tally.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// The number of scenarios that run at the same time. QEMU has a thread for each of its processors, Bochs one for all.
fn lanes(platform: Platform) -> usize {
    match platform {
        Platform::Bochs => thread::available_parallelism().map_or(1, usize::from).min(MOST_AT_ONCE),
        Platform::Kvm | Platform::Qemu | Platform::Nested => 1,
    }
}

fn report(run: &Run<'_>, ran: &Ran, json: bool) {
    let (name, platform, good) = (ran.scenario.name, run.platform, ran.result.is_ok());
    if json {
        let error = ran.result.as_ref().err().map(|error| format!("{error:#}"));
        println!(
            "{}",
            json!({ "scenario": name, "boot": run.boot.name(), "platform": platform.to_string(), "full": run.full,
                    "checked": run.checked, "passed": good, "seconds": ran.seconds, "boot_seconds": ran.boot_seconds,
                    "figures": ran.figures.to_json(), "error": error })
        );
        return;
    }
    // Printed in one piece, because another scenario may end at the same time.
    let word = ui::verdict(if good { "passed" } else { "FAILED" }, good);
    let full = if run.full { " in full" } else { "" };
    let checked = if run.checked { ", checked" } else { "" };
    let boot =
        if ran.boot_seconds > 0.05 { format!(" after {:.1} s of boot", ran.boot_seconds) } else { String::new() };
    let mut text = format!("{word} {name} on {platform}{full}{checked}, {:.1} s{boot}\n", ran.seconds);
    for figure in ran.figures.all() {
        text += &format!("    {figure}\n");
    }
    if let Err(error) = &ran.result {
        text += &format!("    {}\n", format!("{error:#}").replace('\n', "\n    "));
    }
    print!("{text}");
}

/// The name of a platform in the rotation. QEMU has the same name with KVM and without.
fn word(platform: Platform) -> &'static str {
    match platform {
        Platform::Kvm | Platform::Qemu => "qemu",
        Platform::Nested => "nested",
        Platform::Bochs => "bochs",
    }
}

/// The rotation's file.
fn rotation_file() -> PathBuf {
    paths::root().join(FILE)
}

/// What takes turns: everything on Bochs, scenarios on QEMU that are too long for every day, and long versions (`--full`) on QEMU.
/// Then scenarios with the checked hypervisor (`--checked`). Nothing in nested KVM takes turns: the machine beneath fails now and
/// then (`tests/STATUS.md`).
fn keys(boots: &[Box<dyn Boot>]) -> Vec<Key> {
    let (mut keys, mut checked) = (Vec::new(), Vec::new());
    for scenario in boots.iter().flat_map(|boot| boot.scenarios()) {
        let key = |platform: &str, variant: &str| Key {
            scenario: scenario.name.to_owned(),
            platform: platform.to_owned(),
            variant: variant.to_owned(),
        };
        if scenario.platforms.contains(&Platform::Bochs) {
            keys.push(key("bochs", "usual"));
        }
        if scenario.in_turn {
            keys.push(key("qemu", "usual"));
        }
        if scenario.longer.contains(&Platform::Qemu) {
            keys.push(key("qemu", "full"));
        }
        for platform in [Platform::Qemu, Platform::Bochs] {
            if scenario.checked.contains(&platform) {
                checked.push(key(word(platform), "checked"));
            }
        }
    }
    keys.append(&mut checked);
    keys
}

/// The rotation with a row for all that takes turns.
fn rotation(boots: &[Box<dyn Boot>]) -> Result<Rotation> {
    let file = rotation_file();
    let mut rotation = match fs::read_to_string(&file) {
        Ok(text) => Rotation::parse(&text)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Rotation::default(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    rotation.complete(&keys(boots));
    Ok(rotation)
}

fn show_rotation(json: bool) -> Result<()> {
    let rotation = rotation(&cases::all())?;
    let now = sources::hash()?;
    let next = rotation.choose(MINUTES * 60.0, lanes(Platform::Bochs));
    if !json {
        println!("{:<24}{:<10}{:<9}{:<8}{:>8}{:>5}  date", "scenario", "platform", "variant", "went", "seconds", "age");
    }
    for row in &rotation.rows {
        let Key { scenario, platform, variant } = &row.key;
        let (age, same, turn) = (rotation.age(row), row.sources == now, next.contains(&row.key));
        if json {
            println!(
                "{}",
                json!({ "scenario": scenario, "platform": platform, "variant": variant, "went": row.went.word(),
                        "seconds": row.seconds, "age": age, "date": row.date, "sources": row.sources,
                        "these_sources": same, "next": turn })
            );
        } else {
            let same = if same { ", these sources" } else { "" };
            let turn = if turn { ", next" } else { "" };
            let (went, date) = (row.went.word(), &row.date);
            println!(
                "{scenario:<24}{platform:<10}{variant:<9}{went:<8}{:>8.0}{age:>5}  {date}{same}{turn}",
                row.seconds
            );
        }
    }
    if !json {
        println!("{} updates; a row of more than {OLDEST} is too old", rotation.updates);
    }
    Ok(())
}

impl Run<'_> {
    /// The row of the rotation of one of its scenarios.
    fn key(&self, scenario: &str) -> Key {
        let variant = match (self.full, self.checked) {
            (_, true) => "checked",
            (true, false) => "full",
            (false, false) => "usual",
        };
        Key { scenario: scenario.to_owned(), platform: word(self.platform).to_owned(), variant: variant.to_owned() }
    }
}

/// Runs the rows whose turn it is, of all platforms or of one. Updates the file after each row. A row for which the limit
/// leaves no time keeps its turn.
fn turns(minutes: f64, limit: Option<Limit>, only: Option<Platform>, json: bool) -> Result<Tally> {
    let left = || limit.map_or(f64::INFINITY, |limit| limit.seconds());
    if left() <= 0.0 {
        ui::step("rotation", "none of it: no time is left");
        return Ok(Tally::default());
    }
    let boots = cases::all();
    let qemu = emulator::choose(None)?;
    image::parts()?;
    let mut rotation = rotation(&boots)?;
    rotation.updates += 1;
    let mut candidates = rotation.clone();
    candidates.rows.retain(|row| only.is_none_or(|only| row.key.platform == word(only)));
    let chosen = candidates.choose(left().min(minutes * 60.0), lanes(Platform::Bochs));
    if chosen.iter().any(|key| key.variant == "checked") {
        image::checked_kernel()?;
    }
    let (sources, date) = (sources::hash()?, tools::quietly(Command::new("date").args(["-u", "+%F"]), "date")?);
    ui::step("rotation", &format!("{} of {} rows", chosen.len(), rotation.rows.len()));
    let begin = |run: &Run<'_>| {
        let expected = run.names.iter().filter_map(|name| candidates.expected(&run.key(name))).sum::<f64>();
        let begins = expected <= left();
        if !begins {
            let names = run.names.join(", ");
            ui::step("rotation", &format!("no time is left for {names} on {}: next time", run.platform));
        }
        begins
    };
    let rotation = Mutex::new(rotation);
    let note = |run: &Run<'_>, ran: &Ran| {
        let mut rotation = rotation.lock().unwrap_or_else(PoisonError::into_inner);
        let key = run.key(ran.scenario.name);
        rotation.record(&key, ran.result.is_ok(), ran.seconds + ran.boot_seconds, date.trim(), &sources);
        if let Err(error) = fs::write(rotation_file(), rotation.text()) {
            ui::error(&format!("cannot write {}: {error}", rotation_file().display()));
        }
    };
    let mut tally = Tally::default();
    for platform in [qemu, Platform::Bochs] {
        let mine = |key: &&Key| key.platform == word(platform);
        let mut runs = Vec::new();
        for key in chosen.iter().filter(mine) {
            for boot in &boots {
                let scenario = boot.scenarios().into_iter().find(|scenario| scenario.name == key.scenario);
                let names = scenario.map(|scenario| vec![scenario.name]);
                let (full, checked) = (key.variant == "full", key.variant == "checked");
                runs.extend(names.map(|names| Run { boot: &**boot, names, platform, full, checked }));
            }
        }
        tally.add(side_by_side(&runs, json, &begin, &note));
    }
    let rotation = rotation.into_inner().unwrap_or_else(PoisonError::into_inner);
    for row in rotation.too_old() {
        let Key { scenario, platform, variant } = &row.key;
        let age = rotation.age(row);
        tally.count(format!("rotation: {scenario} on {platform} ({variant}) had no turn for {age} updates"), false);
    }
    Ok(tally)
}
