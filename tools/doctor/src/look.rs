//! What is said of a machine: the hypervisor's own sentences, and what only Linux shows.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::fmt;

use boot::console::{COM1, COM2};
use control::{ReportEntry, ReportKind};
use findings::cores::Kind;
use findings::{Virtualization, consoles, machine, processor};
use mca::Setup;
use serde_json::{Value, json};
use speculation::{Plan, Processor};

use crate::advice::{self, Advice};
use crate::linux::{Firmware, Function, Linux, Log, Nesting, Unreadable};

/// Class code of network controllers.
const NETWORK: u32 = 0x02;
/// Parts of the line of Linux's log that says that it has loaded microcode: "Updated early from", "updated early to".
const LOADED: &[&str] = &["microcode", "pdated early"];

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The sentence; or what could not be read, and why.
    pub said: Result<ReportEntry, String>,
    /// The hypervisor will say the same. Of what could not be read: it would say something there.
    pub in_report: bool,
}

impl Line {
    /// The kind for programs, as in the hypervisor's events.
    fn kind(&self) -> Value {
        self.said.as_ref().map_or_else(|_| json!("unknown"), |entry| json!(entry.kind))
    }

    /// The sentence.
    #[must_use]
    pub fn text(&self) -> &str {
        self.said.as_ref().map_or_else(|unknown| unknown.as_str(), |entry| &entry.text)
    }
}

impl fmt::Display for Line {
    /// As on the hypervisor's console.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.said {
            Ok(entry) => entry.fmt(f),
            Err(unknown) => write!(f, "   unknown: {unknown}"),
        }
    }
}

/// What follows from the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing that is required is missing.
    Runs,
    /// Something required is missing.
    Missing,
    /// Something could not be read, and nothing is known to be missing.
    Unknown,
}

impl Verdict {
    /// Judges lines.
    #[must_use]
    pub fn of(lines: &[Line]) -> Self {
        let is_missing = |line: &Line| line.said.as_ref().is_ok_and(|entry| entry.kind == ReportKind::RequiredMissing);
        if lines.iter().any(is_missing) {
            Self::Missing
        } else if lines.iter().any(|line| line.said.is_err()) {
            Self::Unknown
        } else {
            Self::Runs
        }
    }

    /// The sentence for people.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Runs => "sidecore has all that it requires here",
            Self::Missing => "sidecore does not run here as it is: see the lines MISSING",
            Self::Unknown => "nothing is known to be missing, but not all could be read: see the lines `unknown`",
        }
    }

    /// The name for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        }
    }

    /// The program's exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Runs => 0,
            Self::Missing => 1,
            Self::Unknown => 3,
        }
    }
}

/// The lines as one object.
#[must_use]
pub fn to_json(lines: &[Line]) -> Value {
    let line = |line: &Line| json!({ "kind": line.kind(), "text": line.text(), "in_report": line.in_report });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "verdict": Verdict::of(lines).name(),
        "lines": lines.iter().map(line).collect::<Vec<_>>(),
    })
}

/// Looks at the machine. `cpuid`: EAX, EBX, ECX and EDX of a leaf and a sub-leaf.
#[must_use]
pub fn look(linux: &Linux, cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Vec<Line> {
    let mut said = Said::default();
    said.report(processor::x2apic(&cpuid));
    said.readable("how much memory there is", linux.memory(), |bytes| vec![machine::memory(bytes)]);
    said.report(processor::clock(&cpuid));
    said.with_msrs("machine checks", linux, |msr| processor::machine_checks(Setup::find(&cpuid, msr).as_ref()));
    let speed = speed::Processor::new(&cpuid);
    said.report(findings::speed::means(&speed));
    said.report(findings::speed::idle(speed::sleep(&speed, &cpuid)));
    let mcfg = linux.acpi("MCFG").map(|table| table.map_or_else(Vec::new, |table| boot::acpi::ecam(&table)));
    said.readable("how PCI's configuration space is reached", mcfg, |windows| machine::configuration_space(&windows));
    let functions = linux.functions();
    said.readable("the PCI devices", functions.as_deref(), |all| {
        // A virtual function is there because Linux has switched it on.
        let device = |f: &&Function| !f.is_bridge() && !f.is_virtual && f.segment < Function::MADE_UP;
        let (here, elsewhere): (Vec<_>, Vec<_>) = all.iter().filter(device).partition(|f| f.segment == 0);
        let elsewhere = elsewhere.into_iter().map(|f| {
            let at = f.at.as_str();
            machine::Elsewhere { segment: f.segment, at, vendor: f.vendor, device: f.device, class: f.class }
        });
        [machine::pci_devices(here.len())].into_iter().chain(machine::elsewhere(elsewhere)).collect()
    });
    said.readable("whether there is a COM2", linux.has_uart(COM2), |has| {
        if has { Vec::new() } else { vec![machine::no_com2()] }
    });
    let madt = linux.acpi("APIC").map(|table| table.map(|table| boot::acpi::cores(&table)).unwrap_or_default());
    said.readable("how many cores there are", madt, |listed| findings::cores::listed(&listed));
    let log = linux.log();
    said.cores(linux, &cpuid, &speed, &log);
    said.with_msrs("virtualization", linux, |msr| match Virtualization::find(&cpuid, msr) {
        Ok(found) if found.is_sufficient() => [found.describe(), vec![found.completion()]].concat(),
        Ok(found) => found.describe(),
        Err(missing) => vec![missing],
    });
    // Without guests nobody is there to be defended against, and the hypervisor stops before it says so.
    if Verdict::of(&said.lines) != Verdict::Missing {
        said.with_msrs("what the processor is vulnerable to", linux, |msr| {
            let processor = Processor::new(&cpuid, msr);
            processor::speculation(&processor, &Plan::new(&processor))
        });
    }
    said.of_linux(linux, &log);
    said.settings(linux, &speed, functions.as_deref().unwrap_or_default());
    // Without the functions there is a line already.
    said.functions(functions.as_deref().unwrap_or_default());
    said.lines
}

/// What was said so far.
#[derive(Default)]
struct Said {
    lines: Vec<Line>,
}

impl Said {
    /// Sentences that the hypervisor will say too.
    fn report(&mut self, entries: impl IntoIterator<Item = ReportEntry>) {
        self.lines.extend(entries.into_iter().map(|entry| Line { said: Ok(entry), in_report: true }));
    }

    fn unknown(&mut self, what: &str, why: &str, in_report: bool) {
        self.lines.push(Line { said: Err(format!("{what}: {why}")), in_report });
    }

    /// Sentences of something that may not be readable.
    fn readable<T, E: Borrow<Unreadable>>(
        &mut self,
        what: &str,
        read: Result<T, E>,
        say: impl FnOnce(T) -> Vec<ReportEntry>,
    ) {
        match read {
            Ok(value) => self.report(say(value)),
            Err(why) => self.unknown(what, &why.borrow().0, true),
        }
    }

    /// Sentences that may depend on MSRs. If one of these cannot be read, nothing of it is known.
    fn with_msrs(&mut self, what: &str, linux: &Linux, say: impl FnOnce(&dyn Fn(u32) -> u64) -> Vec<ReportEntry>) {
        let unreadable = RefCell::new(None);
        let said = say(&|number| {
            linux.msr(number).unwrap_or_else(|why| {
                unreadable.borrow_mut().get_or_insert(why);
                0
            })
        });
        match unreadable.into_inner() {
            None => self.report(said),
            Some(Unreadable(why)) => self.unknown(what, &why, true),
        }
    }

    /// A sentence that the hypervisor does not say.
    fn own(&mut self, kind: ReportKind, text: String) {
        self.lines.push(Line { said: Ok(ReportEntry { kind, text: text.into() }), in_report: false });
    }

    /// The same of something that may not be readable.
    fn own_all(&mut self, what: &str, read: Result<impl IntoIterator<Item = Advice>, Unreadable>) {
        match read {
            Ok(all) => all.into_iter().for_each(|(kind, text)| self.own(kind, text)),
            Err(Unreadable(why)) => self.unknown(what, &why, false),
        }
    }

    /// Whether the cores are alike, and their microcode as the firmware has loaded it.
    fn cores(
        &mut self,
        linux: &Linux,
        cpuid: impl Fn(u32, u32) -> [u32; 4],
        speed: &speed::Processor,
        log: &Result<Log, Unreadable>,
    ) {
        let cpus = linux.cpus();
        let types = cpus.as_ref().map_err(Clone::clone).and_then(|all| {
            if Kind::is_hybrid(&cpuid) && all.iter().any(|cpu| cpu.kind.hybrid == 0) {
                linux.lists("sys/devices")?;
                return Err(Unreadable("Linux does not say of which type each core is".into()));
            }
            Ok(all.iter().map(|cpu| (cpu.number, cpu.kind)).collect::<Vec<_>>())
        });
        self.readable("whether the cores are alike", types, |types| findings::cores::kinds(&types));
        if !speed::has_microcode(speed) {
            return self.report([findings::speed::microcode(&[])]);
        }
        let loaded = log.as_ref().map_err(Clone::clone).and_then(|log| Ok(log.find(LOADED)?.is_some()));
        let revisions = loaded.and_then(|loaded| {
            let revision = |number: u32, revision: Option<u32>| {
                let why = || Unreadable(format!("Linux does not say it of core {number}"));
                Ok((number, Ok(revision.ok_or_else(why)?)))
            };
            let all: Result<Vec<_>, _> = cpus?.iter().map(|cpu| revision(cpu.number, cpu.microcode)).collect();
            // What Linux has loaded is not what sidecore will find: `of_linux` says so.
            Ok((!loaded).then_some(all?))
        });
        self.readable("the microcode that the firmware has loaded", revisions, |revisions| {
            revisions.iter().map(|all| findings::speed::microcode(all)).collect()
        });
    }

    /// What only Linux shows: the firmware, the console, its microcode, KVM.
    fn of_linux(&mut self, linux: &Linux, log: &Result<Log, Unreadable>) {
        match linux.firmware() {
            Ok(Firmware::Bios) => self.own(ReportKind::Found, "this Linux was started by a BIOS".into()),
            Ok(Firmware::Uefi { secure_boot: Some(true) }) => self.own(
                ReportKind::RequiredMissing,
                "Secure Boot is on, and the firmware will refuse GRUB, which nobody has signed; switch it off in the \
                 firmware's setup"
                    .into(),
            ),
            Ok(Firmware::Uefi { secure_boot }) => {
                let secure = if secure_boot.is_some() { "; Secure Boot is off" } else { "" };
                self.own(ReportKind::Found, format!("this Linux was started by UEFI{secure}"));
            }
            Err(Unreadable(why)) => self.unknown("whether Secure Boot is on", &why, false),
        }
        match people(linux) {
            Ok(entries) => entries.into_iter().for_each(|entry| self.own(entry.kind, entry.text.into())),
            Err(Unreadable(why)) => self.unknown("which serial port is people's console", &why, false),
        }
        // If the log cannot be read, there is a line already where microcode says something.
        if let Ok(Some(line)) = log.as_ref().map_or(Ok(None), |log| log.find(LOADED)) {
            self.own(
                ReportKind::Warning,
                format!(
                    "Linux has loaded microcode ({line}). sidecore loads none: its report will have the firmware's own revision, and \
                     with that it may find the processor vulnerable to more than is said here"
                ),
            );
        }
        self.own_all("whether an IOMMU was on when Linux started", advice::iommu_was_on(linux, log));
        match linux.nesting() {
            Ok(nesting) => {
                let (kind, text) = nests(nesting);
                self.own(kind, text);
            }
            Err(Unreadable(why)) => self.unknown("whether KVM nests here", &why, false),
        }
    }

    /// What may be changed in the firmware's setup.
    fn settings(&mut self, linux: &Linux, speed: &speed::Processor, functions: &[Function]) {
        advice::vmd(functions).into_iter().for_each(|(kind, text)| self.own(kind, text));
        advice::virtual_functions(functions).into_iter().for_each(|(kind, text)| self.own(kind, text));
        self.own_all("whether there is an IOMMU", advice::iommu(linux));
        self.own_all("whether C1E is on", advice::c1e(linux, speed));
        self.own_all("which watchdogs run", advice::watchdogs(linux));
    }

    /// Which PCI functions sidecore drives, and who drives them in Linux.
    fn functions(&mut self, functions: &[Function]) {
        let all = || functions.iter().filter(|f| f.segment == 0 && !f.is_virtual);
        // sidecore looks by bus, device and function.
        let first = all().filter(|f| machine::nic(f.vendor, f.device).is_some()).map(|f| &f.at).min();
        for function in all() {
            let (at, ids) = (&function.at, format!("{:04x}:{:04x}", function.vendor, function.device));
            let driver =
                function.driver.as_ref().map_or_else(String::new, |name| format!("; Linux drives it by {name}"));
            let taken = if first == Some(at) { ", and it is what `device = \"first\"` takes" } else { "" };
            if let Some((name, needs)) = machine::nic_without_driver(function.vendor, function.device) {
                self.own(ReportKind::Fallback, format!("{}{driver}", config::no_driver(name, at, needs)));
                continue;
            }
            match (machine::nic(function.vendor, function.device), function.class) {
                (Some(name), _) => self.own(
                    ReportKind::Found,
                    format!("{name} at {at} ({ids}) can be a port: `device = \"{at}\"`{taken}{driver}"),
                ),
                (None, class) if class >> 16 == NETWORK => self.own(
                    ReportKind::Fallback,
                    format!("no driver for the network device at {at} ({ids}): sidecore leaves it alone{driver}"),
                ),
                (None, machine::NVME) => {
                    self.own(
                        ReportKind::Found,
                        format!("NVMe controller at {at} ({ids}): guests can have its namespaces"),
                    );
                }
                (None, _) => {}
            }
        }
    }
}

/// Whether sidecore can be tried in a virtual machine of this Linux. It is never required.
fn nests(nesting: Nesting) -> (ReportKind, String) {
    const TRY: &str = "to try sidecore in a virtual machine of this Linux";
    match nesting {
        Nesting::NotLoaded => {
            (ReportKind::Fallback, format!("KVM is not loaded: {TRY}, load kvm_amd or kvm_intel with nested=1"))
        }
        Nesting::Off(module) => (ReportKind::Fallback, format!("{module} does not nest: {TRY}, load it with nested=1")),
        Nesting::On(module, Err(Unreadable(why))) => {
            (ReportKind::Fallback, format!("{module} nests, but /dev/kvm cannot be used: {why}"))
        }
        Nesting::On(module, Ok(())) => (
            ReportKind::Found,
            format!("{module} nests: virtual machines of this Linux can run sidecore with its guests"),
        ),
    }
}

/// What sidecore will say of people's serial port, if its command line names none.
fn people(linux: &Linux) -> Result<Vec<ReportEntry>, Unreadable> {
    let spcr = linux.acpi("SPCR")?.map(|table| boot::acpi::spcr(&table));
    let wanted = boot::console::choose("", spcr);
    let mut found = None;
    for (port, rate) in [wanted.people.map(|uart| (uart.port, uart.rate)), Some((COM1, None))].into_iter().flatten() {
        if found.is_none() && linux.has_uart(port)? {
            found = Some((port, rate.unwrap_or(boot::console::USUAL_RATE)));
        }
    }
    Ok(consoles::people(&wanted, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// CPUID of a processor with SVM, x2APIC, machine checks and a constant TSC.
    fn amd(leaf: u32, _: u32) -> [u32; 4] {
        let word = |text: &[u8; 4]| u32::from_le_bytes(*text);
        match leaf {
            0 => [1, word(b"Auth"), word(b"cAMD"), word(b"enti")],
            1 => [0x00a0_0f11, 0, 1 << 21 | 1 << 24, 1 << 7 | 1 << 14],
            0x8000_0000 => [0x8000_000a, 0, 0, 0],
            0x8000_0001 => [0, 0, 1 << 2, 0],
            0x8000_0007 => [0, 0, 0, 1 << 8],
            0x8000_000a => [1, 16, 0, 1],
            _ => [0; 4],
        }
    }

    #[test]
    fn what_cannot_be_read_is_unknown_and_never_well() {
        let folder = tempfile::tempdir().expect("a folder");
        let lines = look(&Linux::new(folder.path()), amd);
        assert_eq!(Verdict::of(&lines), Verdict::Unknown);
        for what in [
            "how much memory",
            "machine checks",
            "configuration space",
            "PCI devices",
            "COM2",
            "how many cores",
            "whether the cores are alike",
            "microcode",
            "virtualization",
        ] {
            let line =
                lines.iter().find(|line| line.text().contains(what)).unwrap_or_else(|| panic!("{what}: {lines:#?}"));
            assert_eq!((line.kind(), line.in_report), (json!("unknown"), true), "{what}");
        }
        for what in ["whether Secure Boot is on", "which watchdogs run", "whether KVM nests here"] {
            let line =
                Line { said: Err(format!("{what}: /sys is not mounted: mount -t sysfs sysfs /sys")), in_report: false };
            assert!(lines.contains(&line), "{what}: {lines:#?}");
        }
        for guess in ["SVM with nested paging", "a BIOS", "drives no watchdog", "KVM is not loaded", "no IOMMU"] {
            assert!(!lines.iter().any(|line| line.text().contains(guess)), "{guess}: {lines:#?}");
        }
        let off = nests(Nesting::Off("kvm_intel"));
        assert_eq!((off.0, off.1.contains("load it with nested=1")), (ReportKind::Fallback, true));
    }

    #[test]
    fn a_machine_that_can_be_read_has_the_report_s_sentences() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |path: &str, content: &[u8]| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, content).expect("a file");
        };
        // The file ends behind MSR 0x179 (MCG_CAP), with five banks. VM_CR's number is far behind.
        let mut msrs = vec![0; 0x179 + 8];
        msrs[0x179] = 5;
        file("dev/cpu/0/msr", &msrs);
        fs::File::options()
            .write(true)
            .open(folder.path().join("dev/cpu/0/msr"))
            .and_then(|file| file.set_len(0xc001_0114 + 8))
            .expect("a file with a hole");
        file("dev/kmsg", b"6,0,0,-;Linux version\n");
        let core = |number: u32, stepping: u32| {
            format!("processor : {number}\ncpu family : 25\nmodel : 1\nstepping : {stepping}\nmicrocode : 0xa0011d1\n")
        };
        file("proc/cpuinfo", [core(0, 1), core(1, 1)].join("\n").as_bytes());
        file("dev/kvm", b"");
        file("sys/module/kvm_amd/parameters/nested", b"1\n");
        file("sys/class/net/lo/mtu", b"65536\n");
        file("sys/firmware/memmap/0/start", b"0x0");
        file("sys/firmware/memmap/0/end", b"0x3fffffff");
        file("sys/firmware/memmap/0/type", b"System RAM");
        // Two enabled local APICs, and one that is not.
        let apic = |id: u8, flags: u8| [0, 8, id, id, flags, 0, 0, 0];
        file("sys/firmware/acpi/tables/APIC", &[&[0; 44][..], &apic(0, 1), &apic(1, 1), &apic(2, 0)].concat());
        file("proc/tty/driver/serial", b"0: uart:16550A port:000003F8 irq:4\n1: uart:16550A port:000002F8 irq:3");
        for (at, vendor, device, class) in [
            ("00:03.0", "0x8086", "0x10fb", "0x020000"),
            ("00:04.0", "0x8086", "0x1528", "0x020000"),
            ("00:05.0", "0x8086", "0x1521", "0x020000"),
        ] {
            for (name, text) in [("vendor", vendor), ("device", device), ("class", class)] {
                file(&format!("sys/bus/pci/devices/0000:{at}/{name}"), text.as_bytes());
            }
        }
        let lines = look(&Linux::new(folder.path()), amd);
        let has = |kind, text: &str| {
            assert!(
                lines.iter().any(|line| line.kind() == json!(kind) && line.text().contains(text)),
                "{text}: {lines:#?}"
            );
        };
        has(ReportKind::Found, "1024 MiB of memory");
        has(ReportKind::Found, "machine checks from 5 banks");
        has(ReportKind::Fallback, "ACPI has no MCFG");
        has(ReportKind::Found, "3 PCI devices");
        has(ReportKind::Found, "2 cores, all started");
        has(ReportKind::Found, "SVM with nested paging and 16 ASIDs");
        has(ReportKind::Decision, "completions are by eli");
        has(ReportKind::Found, "can be a port: `device = \"00:03.0\"`, and it is what `device = \"first\"` takes");
        has(ReportKind::Found, "can be a port: `device = \"00:05.0\"`");
        assert_eq!(lines.iter().filter(|line| line.text().contains("`device = \"first\"`")).count(), 1);
        has(ReportKind::Fallback, "there is no driver for the Intel X540 at 00:04.0: it has the 82599's queues");
        has(ReportKind::Found, "microcode 0xa0011d1 on all cores");
        assert!(!lines.iter().any(|line| line.text().contains("not alike")), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.text().contains("COM2")), "it is there");
        has(ReportKind::Decision, "people's console is the UART at port 0x3f8 with 115200 baud");
        has(ReportKind::Found, "kvm_amd nests");
        assert_eq!(Verdict::of(&lines), Verdict::Runs, "{lines:#?}");
        assert_eq!(to_json(&lines)["verdict"], "runs");
        // UEFI without its variables, as in a rescue system.
        file("sys/kernel/uevent_seqnum", b"1");
        fs::create_dir_all(folder.path().join("sys/firmware/efi/efivars")).expect("a folder");
        let without = look(&Linux::new(folder.path()), amd);
        assert!(without.iter().any(|line| line.to_string()
            == "   unknown: whether Secure Boot is on: /sys/firmware/efi/efivars is empty: mount -t efivarfs efivarfs \
                /sys/firmware/efi/efivars"));
        assert_eq!(Verdict::of(&without), Verdict::Unknown);
        fs::remove_dir_all(folder.path().join("sys/firmware/efi")).expect("a folder");
        // Another stepping, microcode that Linux has loaded, and a function of another segment behind which nothing is real.
        file("proc/cpuinfo", [core(0, 1), core(1, 2)].join("\n").as_bytes());
        file("dev/kmsg", b"6,900,0,-;microcode: Updated early from: 0x0a001137\n");
        for segment in ["0001", "10000"] {
            for (name, text) in [("vendor", "0x8086"), ("device", "0x0a54"), ("class", "0x010802")] {
                file(&format!("sys/bus/pci/devices/{segment}:02:00.0/{name}"), text.as_bytes());
            }
        }
        let lines = look(&Linux::new(folder.path()), amd);
        let all: Vec<_> = lines.iter().filter(|line| line.in_report).map(Line::text).collect();
        assert!(
            all.iter().any(|text| text.starts_with("the cores are not alike: cores 0 are of signature 0xa00f11")),
            "{all:#?}"
        );
        assert!(
            !all.iter().any(|text| text.starts_with("microcode")),
            "the firmware's own revision is not known: {all:#?}"
        );
        assert!(lines.iter().any(|line| line.text().contains("Updated early from: 0x0a001137")));
        // The beginning of the log is overwritten, and ACPI lists no IOMMU that may have been on.
        assert!(!lines.iter().any(|line| line.text().contains("an IOMMU was on")), "{lines:#?}");
        assert!(
            all.contains(&"3 PCI devices; no IOMMU is used, so a device driven later has to be trusted"),
            "{all:#?}"
        );
        assert!(all.iter().any(|text| text.starts_with("1 PCI devices are in segments other than 0")), "{all:#?}");
    }

    #[test]
    fn readme_has_each_kind_of_a_line() {
        let readme = include_str!("../README.md");
        let row = |kind: Value, word: &str| format!("| `{}` | `{word}` |", kind.as_str().expect("a word"));
        for kind in [
            ReportKind::Found,
            ReportKind::RequiredMissing,
            ReportKind::Fallback,
            ReportKind::Warning,
            ReportKind::Decision,
        ] {
            let row = row(json!(kind), kind.label());
            assert!(readme.contains(&row), "{row}");
        }
        assert!(readme.contains(&row(json!("unknown"), "unknown")));
    }

    #[test]
    fn something_missing_weighs_more_than_something_unknown() {
        let line = |kind| Line { said: Ok(ReportEntry { kind, text: "".into() }), in_report: true };
        let unknown = Line { said: Err(String::new()), in_report: true };
        assert_eq!(Verdict::of(&[unknown, line(ReportKind::RequiredMissing)]), Verdict::Missing);
        assert_eq!(Verdict::of(&[line(ReportKind::Warning)]), Verdict::Runs);
        assert_eq!([Verdict::Runs, Verdict::Missing, Verdict::Unknown].map(Verdict::code), [0, 1, 3]);
    }
}
