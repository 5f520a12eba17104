//! `cargo mk bench`: measures figures, and shows each with its aim. A missed aim is an error only with `--strict`. A missed
//! bound (`exits`) is an error.

mod attackers;
mod block;
mod contest;
mod exit_cost;
mod exits;
mod figure;
mod histograms;
mod nic;
mod paper;
mod switch;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use goblin::elf::Elf;
use goblin::elf::program_header::PT_LOAD;
use scenarios::guests::{Guest, server};
use scenarios::launch::Launch as _;
use scenarios::platform::Platform;
use scenarios::setup::Setup;
use serde_json::{Map, Value, json};

use figure::Figure;

use crate::emulator::{self, Emulator};
use crate::outcome::Outcome;
use crate::{image, paths, tools, ui};

/// What to measure.
#[derive(Subcommand)]
pub enum What {
    /// Size of the image, memory kept, instructions to the first guest, exits and time to a guest's user space.
    Boot {
        /// Also writes the figures to this file, as one JSON object.
        #[arg(long)]
        json: Option<PathBuf>,
        /// Where to run [default: kvm where it nests, otherwise qemu].
        #[arg(long)]
        platform: Option<Platform>,
    },
    /// The engine as a process against DPDK's testpmd and Open vSwitch, each figure next to its aim. On a quiet
    /// machine.
    Switch {
        /// Only counts instructions of the engine for a frame from guest to guest, without the copying: by callgrind,
        /// and inside the kernel's image by Bochs.
        #[arg(long)]
        instructions: bool,
        /// Takes the time for many more and longer rounds.
        #[arg(long)]
        full: bool,
        /// Also writes the figures to this file, as one JSON object.
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// Random reads of 4 KiB by libblkio from disks of sidecore-vhost, QEMU's storage daemon and a bare copy loop. Each
    /// has one processor. Each figure stands next to its aim. On a quiet machine. SIDECORE_SPDK=FOLDER: SPDK's vhost,
    /// built in that folder, is measured too.
    Block {
        /// Only counts instructions for a read of 4 KiB from a RAM disk, without the copying, by callgrind.
        #[arg(long)]
        instructions: bool,
        /// Only counts instructions for a read, of sidecore-vhost and QEMU's storage daemon.
        #[arg(long, conflicts_with = "instructions")]
        count: bool,
        /// Takes the time for many more and longer rounds.
        #[arg(long)]
        full: bool,
        /// Also writes the figures to this file, as one JSON object.
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// Instructions of the x520 driver for a packet, by callgrind.
    Nic {
        /// Also writes the figures to this file, as one JSON object.
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// Exits that guests' I/O costs, for every way to ask for it and to complete it; fails if a bound is missed.
    Exits {
        /// Only counts the hypervisor's instructions for one exit, for some kinds of exits, with SVM on QEMU.
        #[arg(long, conflicts_with_all = ["requests", "completion", "platform"])]
        instructions: bool,
        /// Also writes the figures to this file, as one JSON object.
        #[arg(long)]
        json: Option<PathBuf>,
        /// Only with this `requests` [default: each of them].
        #[arg(long)]
        requests: Option<String>,
        /// Only with this `completion` [default: each that the platform has].
        #[arg(long)]
        completion: Option<String>,
        /// Where to run [default: kvm where it nests, otherwise qemu].
        #[arg(long)]
        platform: Option<Platform>,
    },
    /// The experiments of the papers (ELVIS 4.3 to 4.7, VPE 5), as one HTML page with pictures, and a file with all numbers.
    Paper(paper::Options),
}

pub use {block::gate as block_gate, exit_cost::gate as exit_gate, nic::gate as nic_gate, switch::gate as switch_gate};

const LIMIT: Duration = Duration::from_secs(240);

/// `cargo mk bench`. `strict`: a missed aim makes the outcome `Failed`.
pub fn verb(what: &What, strict: bool) -> Result<Outcome> {
    let (name, path, platform, figures) = match what {
        What::Boot { json, platform } => {
            let chosen = emulator::choose(*platform)?;
            emulator::announce(chosen, platform.is_some());
            let mut figures = vec![image_size(&image::parts()?.kernel)?];
            figures.extend(boot(chosen)?);
            if *platform != Some(Platform::Bochs) {
                ui::step("bench", "instructions to the first guest, on bochs");
                figures.push(instructions()?);
            }
            ("boot", json, chosen.to_string(), figures)
        }
        What::Switch { json, instructions: false, full } => {
            let results = contest::run(*full)?;
            write(json.as_deref(), &results)?;
            return Ok(judged(strict, &missed_in_table(&results)));
        }
        What::Switch { json, .. } => ("switch", json, "callgrind".to_owned(), switch::figures()?),
        What::Block { json, instructions: false, count, full } => {
            let results = contest::disks::run(*full, *count)?;
            write(json.as_deref(), &results)?;
            return Ok(judged(strict, &missed_in_table(&results)));
        }
        What::Block { json, .. } => ("block", json, "callgrind".to_owned(), block::figures()?),
        What::Nic { json } => ("nic", json, "callgrind".to_owned(), nic::figures()?),
        What::Exits { instructions: true, json, .. } => {
            ("exits-instructions", json, emulator::choose(Some(Platform::Qemu))?.to_string(), exit_cost::run()?)
        }
        What::Exits { json, platform, requests, completion, .. } => {
            let chosen = emulator::choose(*platform)?;
            emulator::announce(chosen, platform.is_some());
            let results = exits::run(chosen, requests.as_deref(), completion.as_deref(), exits::Extent::Full)?;
            results.print();
            write(json.as_deref(), &results.to_json())?;
            return Ok(Outcome::of(results.good()));
        }
        What::Paper(options) => return paper::verb(options),
    };
    for figure in &figures {
        let aim = figure.aim.map_or(String::new(), |aim| {
            let met = figure.is_met();
            format!("   aim: at most {aim} {}", ui::verdict(if met { "met" } else { "MISSED" }, met))
        });
        println!("{:<52}{:>14} {:<6}{aim}", figure.name, figure.value, figure.unit);
    }
    write(path.as_deref(), &to_json(name, &platform, &figures))?;
    let missed: Vec<&str> = figures.iter().filter(|f| !f.is_met()).map(|f| f.name.as_str()).collect();
    Ok(judged(strict, &missed))
}

/// The outcome of a benchmark in which these aims were missed.
fn judged(strict: bool, missed: &[&str]) -> Outcome {
    if !strict || missed.is_empty() {
        return Outcome::Good;
    }
    for name in missed {
        ui::error(&format!("aim missed: {name}"));
    }
    Outcome::Failed
}

/// The names of the aims that were missed, of those that were measured.
fn missed_in_table(results: &Value) -> Vec<&str> {
    let rows = results["figures"].as_array().into_iter().flatten();
    rows.filter(|row| row["met"] == json!(false)).filter_map(|row| row["what"].as_str()).collect()
}

fn write(path: Option<&Path>, results: &Value) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    fs::write(path, format!("{results:#}\n")).with_context(|| format!("cannot write {}", path.display()))
}

fn to_json(name: &str, platform: &str, figures: &[Figure]) -> Value {
    let map: Map<String, Value> =
        figures.iter().map(|f| (f.name.clone(), json!({ "value": f.value, "unit": f.unit, "aim": f.aim }))).collect();
    json!({ "bench": name, "platform": platform, "figures": map })
}

/// The size of the part of the image that is loaded: all but symbols and headers.
fn image_size(kernel: &Path) -> Result<Figure> {
    let bytes = fs::read(kernel)?;
    let elf = Elf::parse(&bytes).context("the kernel is not an ELF file")?;
    let loaded: u64 = elf.program_headers.iter().filter(|part| part.p_type == PT_LOAD).map(|part| part.p_filesz).sum();
    Ok(Figure {
        name: "image without symbol table".to_owned(),
        value: loaded as f64,
        unit: "bytes",
        aim: Some(1048576.0),
    })
}

/// Boots one guest in sidecore, and the same kernel in the emulator itself.
fn boot(platform: Platform) -> Result<Vec<Figure>> {
    ui::step("bench", "one guest in sidecore");
    let guest = Guest::new(1).memory_mib(128).then("wait");
    let mut session = Emulator::new(platform).launch(&setup(&guest))?;
    let up = session.result("a", "up", LIMIT)?;
    let counters = session.counters()?;
    let a = counters.guest("a").context("guest a is not in the counters")?;
    let (kept, exits) = (a.kept, a.total_exits());
    session.shut_down()?;
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    let round = |value: f64| (value * 100.0).round() / 100.0;
    let own = counters.hypervisor.memory_without_guests;
    let inside = up["kernel_ms"].as_f64().unwrap_or_default();
    let mut figures = vec![
        Figure { name: "memory kept without guests".to_owned(), value: round(mib(own)), unit: "MiB", aim: Some(16.0) },
        Figure { name: "memory kept for a guest".to_owned(), value: round(mib(kept)), unit: "MiB", aim: Some(1.0) },
        Figure { name: "exits until user space".to_owned(), value: exits as f64, unit: "", aim: Some(10_000.0) },
        Figure { name: "guest's kernel until user space".to_owned(), value: inside, unit: "ms", aim: None },
    ];
    if platform.is_qemu() {
        ui::step("bench", "the same kernel in QEMU itself");
        let alone = direct(&guest, platform)?;
        let ratio = if alone > 0.0 { round(inside / alone) } else { bail!("the guest's clock stood still") };
        figures.push(Figure { name: "the same without sidecore".to_owned(), value: alone, unit: "ms", aim: None });
        figures.push(Figure { name: "ratio of the two".to_owned(), value: ratio, unit: "", aim: Some(2.0) });
    }
    Ok(figures)
}

fn setup(guest: &Guest) -> Setup {
    server("bench-boot", std::slice::from_ref(guest))
}

/// Boots the guest's kernel without sidecore. Returns the milliseconds until user space, by its own clock.
fn direct(guest: &Guest, platform: Platform) -> Result<f64> {
    let parts = image::parts()?;
    let (accelerator, cpu) = if platform == Platform::Kvm { ("kvm", "host") } else { ("tcg", "max") };
    let mut command = emulator::qemu_command();
    command.args(["-M", "q35", "-accel", accelerator, "-cpu", cpu, "-m", "128M", "-nic", "none", "-display", "none"]);
    command.args(["-no-reboot", "-nodefaults", "-serial", "stdio"]);
    command.arg("-kernel").arg(&parts.guest_kernel).arg("-initrd").arg(&parts.small_initrd);
    // The machine ends by itself. The action `wait` is only for sidecore's guest.
    command.arg("-append").arg(guest.cmdline().replace("sc.do=wait", "sc.do=poweroff"));
    let said = tools::quietly(&mut command, "QEMU with the guest's kernel")?;
    said.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line.trim().strip_prefix("SC ")?).ok())
        .find_map(|result| result["kernel_ms"].as_f64())
        .with_context(|| format!("the guest did not reach user space without sidecore:\n{said}"))
}

/// Counts the instructions from our entry to the first guest instruction, by the time stamps in Bochs' log. One tick is
/// one instruction.
fn instructions() -> Result<Figure> {
    let mut setup = setup(&Guest::new(1).memory_mib(128).then("wait"));
    setup.record_exits = true;
    let mut session = Emulator::new(Platform::Bochs).launch(&setup)?;
    session.state("a", control::GuestState::Running, LIMIT)?;
    while session.recorded_entries()?.unwrap_or_default() == 0 {
        thread::sleep(Duration::from_millis(200));
    }
    drop(session);
    let log = paths::runs().join("bochs-bench-boot/bochs.log");
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    Ok(Figure {
        name: "instructions from entry to the first guest".to_owned(),
        value: ticks_between(&text).with_context(|| format!("{} shows no entry", log.display()))? as f64,
        unit: "",
        aim: None,
    })
}

/// Ticks from the switch to long mode to the first guest entry. The switch is one of the first things that the
/// hypervisor does.
fn ticks_between(log: &str) -> Option<u64> {
    let at = |mark: &str| log.lines().find(|line| line.contains(mark))?.get(..11)?.parse::<u64>().ok();
    at("VMENTER to")?.checked_sub(at("long mode activated")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_aim_fails_only_if_that_is_asked_for() {
        let results = json!({ "figures": [
            { "what": "good", "met": true },
            { "what": "bad", "met": false },
            { "what": "absent", "not_measured": "why" },
        ] });
        let missed = missed_in_table(&results);
        assert_eq!(missed, ["bad"]);
        assert!(matches!(judged(true, &missed), Outcome::Failed));
        assert!(matches!(judged(false, &missed), Outcome::Good));
        assert!(matches!(judged(true, &[]), Outcome::Good));
        assert_eq!(missed_in_table(&json!({})), [""; 0]);
    }

    #[test]
    fn the_ticks_are_those_from_long_mode_to_the_first_guest_entry() {
        let log = "00000000100i[BIOS  ] Booting\n00000000200d[CPU0  ] long mode activated\n\
                   00000000250d[CPU1  ] long mode activated\n00000000900d[CPU2  ] VMENTER to x86-64 guest\n\
                   00000000950d[CPU2  ] VMENTER to x86-64 guest\n";
        assert_eq!(ticks_between(log), Some(700));
        assert_eq!(ticks_between("00000000900d[CPU2  ] VMENTER to x86-64 guest\n"), None);
    }
}
