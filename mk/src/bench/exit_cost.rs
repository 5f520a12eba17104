//! `cargo mk bench exits --instructions`: the hypervisor's instructions from an exit to the next entry, VMRUN included. QEMU
//! translates single instructions and logs each that a core executes in host mode. A guest makes exits of one kind for ever; the
//! number of instructions that is most frequent counts, because an interrupt may come in between.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, GuestState, TraceStep};
use goblin::elf::Elf;
use scenarios::launch::Launch as _;
use scenarios::platform::Platform;
use scenarios::probes::{self, Probe};
use scenarios::session::Session;

use super::figure::Figure;
use crate::emulator::Emulator;
use crate::{image, paths, ui};

/// The kinds of the probe's action `exits`, in its order, and the instructions that each takes.
const KINDS: [(&str, f64); 6] = [
    ("CPUID", 1642.0),
    ("RDMSR of IA32_APIC_BASE", 1630.0),
    ("WRMSR of the EOI register", 1724.0),
    ("IN from COM1", 971.0),
    ("IN from PCI's CONFIG_DATA", 986.0),
    ("a load from the IOAPIC, decoded", 2527.0),
];
/// Instructions that an exit takes more while exits are traced, at most. 16 of them are the look where the guest's kernel is.
const TRACED: f64 = 85.0;
/// Instructions that an exit takes more while histograms are on, at most.
const HISTOGRAMS: f64 = 54.0;
/// A count may be larger by this factor, because compilers differ.
const TOLERANCE: f64 = 1.02;
/// How long a guest may take to start, to report or to end.
const LIMIT: Duration = Duration::from_secs(240);
/// How long the log is on at a time, and how often at most. It has also what the engine's core executes all the time.
const LOGGED: Duration = Duration::from_millis(500);
const MOST: u32 = 40;
/// Exits that are needed at least.
const LEAST: usize = 30;
/// QEMU's flag for "in guest mode" among those of a translated instruction (HF_GUEST_MASK).
const GUEST_MODE: u64 = 1 << 21;

/// Counts on QEMU, with SVM.
pub fn run() -> Result<Vec<Figure>> {
    let vmrun = vmrun(&image::parts()?.kernel)?;
    // The interrupts are injected, so an EOI exits.
    let probes: Vec<Probe> = (1..=KINDS.len())
        .map(|number| Probe::new(number, "inject", &format!("exits:{}", number - 1)).started_later())
        .collect();
    let mut setup = probes::server("bench-exit-cost", &probes);
    setup.logs_instructions = true;
    let mut session = Emulator::new(Platform::Qemu).launch(&setup)?;
    let log = paths::runs().join(format!("{}-{}", Platform::Qemu, setup.name)).join("executed");
    let mut figures = Vec::new();
    for ((kind, kept), probe) in KINDS.iter().zip(&probes) {
        ui::step("bench", kind);
        let value = count(&mut session, &probe.name(), &log, &vmrun)?;
        figures.push(Figure {
            name: format!("SVM: {kind}"),
            value,
            unit: "instr",
            aim: Some((kept * TOLERANCE).round()),
        });
    }
    // The same exit while it is traced.
    let (Some(without), Some(probe)) = (figures.first().map(|figure| figure.value), probes.first()) else {
        bail!("nothing was counted");
    };
    for (classes, aim) in [("exits", TRACED), ("histograms", HISTOGRAMS)] {
        ui::step("bench", &format!("trace on {classes}"));
        session.ask(Command::Trace { step: TraceStep::On, stop: false, classes: classes.into() }, LIMIT)?;
        let value = count(&mut session, &probe.name(), &log, &vmrun)? - without;
        let name = format!("SVM: CPUID, more with the trace of {classes}");
        figures.push(Figure { name, value, unit: "instr", aim: Some(aim) });
    }
    // It has hundreds of megabytes.
    fs::remove_file(log)?;
    Ok(figures)
}

/// Compares with the kept counts. The result is a sentence for the log.
///
/// # Errors
/// The sentence that names an exit that takes more.
pub fn gate() -> Result<String> {
    let figures = run()?;
    let more: Vec<_> =
        figures.iter().filter(|figure| !figure.is_met()).map(|f| format!("{} {}", f.name, f.value)).collect();
    ensure!(
        more.is_empty(),
        "more than is kept; if it has to be, change mk/src/bench/exit_cost.rs: {}",
        more.join(", ")
    );
    let all: Vec<_> = figures.iter().map(|figure| format!("{} {}", figure.name, figure.value)).collect();
    Ok(format!("instructions of an exit: {}", all.join(", ")))
}

/// Starts a guest and returns the most frequent number of instructions of its exits. Ends it.
fn count(session: &mut Session, name: &str, log: &Path, vmrun: &[u64]) -> Result<f64> {
    session.ask(Command::Start(name.to_owned()), LIMIT)?;
    session.result(name, "exits", LIMIT)?;
    let core = *session.guest(name)?.cores.first().context("the guest has no core")?;
    let mut lengths = Vec::new();
    for _ in 0..MOST {
        lengths.append(&mut logged(session, core, log, vmrun)?);
        if lengths.len() >= LEAST {
            break;
        }
    }
    session.ask(Command::Kill(name.to_owned()), LIMIT)?;
    session.state(name, GuestState::Stopped, LIMIT)?;
    ensure!(lengths.len() >= LEAST, "only {} exits of guest {name} were logged", lengths.len());
    let mut times: HashMap<u64, usize> = HashMap::new();
    lengths.iter().for_each(|&length| *times.entry(length).or_default() += 1);
    let (&most, &often) = times.iter().max_by_key(|(_, often)| **often).context("no exits")?;
    ui::step("bench", &format!("{most} instructions in {often} of {} exits", lengths.len()));
    Ok(most as f64)
}

/// Logs for a while. Returns the lengths of the exits of `core` in that time.
fn logged(session: &mut Session, core: u64, log: &Path, vmrun: &[u64]) -> Result<Vec<u64>> {
    let from = fs::metadata(log).map_or(0, |log| log.len());
    session.monitor_text("log exec,nochain")?;
    thread::sleep(LOGGED);
    session.monitor_text("log none")?;
    let mut file = File::open(log).with_context(|| format!("QEMU has not written {}", log.display()))?;
    file.seek(SeekFrom::Start(from))?;
    Ok(lengths(BufReader::new(file).lines().map_while(Result::ok), core, vmrun))
}

/// The addresses in the image where the bytes of VMRUN are.
fn vmrun(kernel: &Path) -> Result<Vec<u64>> {
    const VMRUN: [u8; 3] = [0x0f, 0x01, 0xd8];
    let bytes = fs::read(kernel)?;
    let elf = Elf::parse(&bytes)?;
    let text = elf.section_headers.iter().find(|s| elf.shdr_strtab.get_at(s.sh_name) == Some(".text"));
    let text = text.context("the image has no .text")?;
    let code = text.file_range().and_then(|range| bytes.get(range)).context(".text is not in the file")?;
    let found = code.windows(VMRUN.len()).enumerate().filter(|(_, code)| *code == VMRUN);
    Ok(found.map(|(at, _)| text.sh_addr + at as u64).collect())
}

/// The number of host instructions of `core` after each VMRUN up to the next one, the next one included. `log` has a line for each
/// instruction: `Trace CORE: ADDRESS [CS/PC/FLAGS/...] ...`, with hexadecimal numbers in the brackets.
fn lengths(log: impl Iterator<Item = String>, core: u64, vmrun: &[u64]) -> Vec<u64> {
    let mut lengths = Vec::new();
    let mut running: Option<u64> = None;
    for line in log {
        let Some((pc, flags)) = executed(&line, core) else { continue };
        if flags & GUEST_MODE != 0 {
            continue;
        }
        running = running.map(|length| length + 1);
        if vmrun.contains(&pc) {
            lengths.extend(running);
            running = Some(0);
        }
    }
    lengths
}

/// The address and the flags of a line, if it is of this core.
fn executed(line: &str, core: u64) -> Option<(u64, u64)> {
    let (number, rest) = line.strip_prefix("Trace ")?.split_once(':')?;
    if number.parse() != Ok(core) {
        return None;
    }
    let mut fields = rest.split_once('[')?.1.split(['/', ']']);
    let mut field = || u64::from_str_radix(fields.next()?, 16).ok();
    let (_, pc, flags) = (field()?, field()?, field()?);
    Some((pc, flags))
}

#[cfg(test)]
mod tests {
    use super::lengths;

    #[test]
    fn host_instructions_from_an_exit_to_the_next_entry() {
        let line =
            |core, pc: u64, flags: u64| format!("Trace {core}: 0x7f00 [0000000000000000/{pc:016x}/{flags:08x}/ff]");
        let (host, guest) = (0x40_c0b0, 0x60_c0b0);
        let log = [
            (2, 9, host),
            (2, 8, host),
            (2, 5, guest),
            (2, 1, host),
            (1, 1, host),
            (2, 2, host),
            (2, 8, host),
            (2, 5, guest),
        ];
        let log = log.map(|(core, pc, flags)| line(core, pc, flags)).into_iter().chain(["nonsense".to_owned()]);
        assert_eq!(lengths(log, 2, &[8]), [3]);
    }
}
