//! sidecore's report about its machine, and its messages about what is wrong with the machine or the configuration.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{self, Stdio};

use anyhow::{Context as _, Result, ensure};
use control::{Command, Event, ReportKind, StopReason, Virtualization};

use crate::boot::{Boot, Check, Shared, Wanted, alone};
use crate::counts::exits;
use crate::guests::{Guest, config_text, server, with_entries};
use crate::modes;
use crate::platform::{ALSO_NESTED, BOCHS, EVERYWHERE, Platform, QEMU};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;
use crate::setup::{Content, Feature, Module, Setup, grub_writes};

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let scenario = |name, about| Scenario::new(name, about, EVERYWHERE);
    let off = "`shutdown` without the emulators' own port: the machine goes off by ACPI";
    vec![
        Box::new(Shared {
            name: "report",
            about: "a small guest, and one whose `completion` is named",
            start: |context, wanted| {
                let named = Guest::new(2).completion("posted").then("wait");
                let guests = [Guest::new(1).then("wait"), named];
                let count = if wanted.any(&["completion-auto"]) { 2 } else { 1 };
                let mut setup = server("report", &guests[..count]);
                setup.idle_usb = wanted.any(&["bus-mastering"]);
                if setup.idle_usb {
                    setup.grub = firmware_has_started();
                }
                setup.options = "emulator selftest=refused-msr";
                let mut session = context.boot(&setup)?;
                session.result("a", "up", seconds(120))?;
                Ok(Reported { session, setup })
            },
            end: |mut reported| reported.session.shut_down().map(drop),
            checks: vec![
                Check::new(
                    Scenario::new("boot-report", "says what the machine has, and starts all of its cores", ALSO_NESTED),
                    boot_report,
                ),
                Check::new(
                    scenario(
                        "completion-auto",
                        "`auto` is the best way there is, with the reason; one asked for by name that there is not is an error",
                    ),
                    completion_auto,
                ),
                Check::new(
                    Scenario::new(
                        "bus-mastering",
                        "devices that the firmware has started and nobody drives: none of them may write to memory; USB controllers that it works for are taken over",
                        QEMU,
                    ),
                    bus_mastering,
                ),
                Check::new(
                    Scenario::new(
                        "page-split",
                        "on a CPU with iTLB multihit: a guest's large pages are split when it first fetches from them",
                        BOCHS,
                    ),
                    page_split,
                ),
            ],
        }),
        alone(
            scenario(
                "bad-config",
                "eleven mistakes in sidecore.toml: eleven messages with line and value; the rest runs",
            ),
            bad_config,
        ),
        alone(
            scenario("no-virtualization", "a processor with neither SVM nor VT-x: a clear sentence"),
            no_virtualization,
        ),
        alone(scenario("panic", "a panic says what and where, with a backtrace that has names"), panic),
        alone(
            Scenario::new(
                "double-fault",
                "a stack that overflows is a double fault, and says so; an NMI that no core has sent is named, and the machine goes on",
                QEMU,
            )
            .taking_turns(),
            double_fault,
        ),
        Box::new(Shared {
            name: "refused-guests",
            about: "little memory; a guest that fits, one that does not, one without its kernel, and one with a wrong one",
            start: start_refused,
            end: |mut session| session.shut_down().map(drop),
            checks: vec![
                Check::new(
                    scenario("low-memory", "a guest that does not fit is refused, the other one runs"),
                    low_memory,
                ),
                Check::new(
                    scenario("missing-module", "a guest without its kernel is refused, the other one runs"),
                    missing_module,
                ),
                Check::new(
                    scenario(
                        "wrong-module",
                        "a guest whose kernel has another SHA-256 than sidecore.toml says is refused, the other one runs",
                    ),
                    wrong_module,
                ),
            ],
        }),
        alone(Scenario::new("switch-off", off, QEMU), switch_off),
        alone(
            Scenario::new(
                "reboot",
                "`reboot` by COM2, on a machine that is no emulator to sidecore: it boots again, and the guest runs again",
                QEMU,
            )
            .taking_turns(),
            reboot,
        ),
        alone(
            Scenario::new(
                "smt",
                "two threads a core: guests get whole cores, the other threads stay idle, a guest that names a thread of \
                 another one's core stays out",
                QEMU,
            )
            .taking_turns(),
            smt,
        ),
        alone(
            Scenario::new(
                "many-cores",
                "40 cores, all started together, and told as ranges; with --full 288 without a guest",
                QEMU,
            )
            .longer_on(QEMU)
            .taking_turns(),
            many_cores,
        ),
        alone(
            Scenario::new(
                "absent-core",
                "APIC IDs with holes, cores that are offline, and one that does not start: its sibling has a guest, the \
                 others keep their numbers, a guest that names it stays out",
                QEMU,
            )
            .taking_turns(),
            absent_core,
        ),
        alone(Scenario::new("no-x2apic", "a processor without x2APIC mode: a clear sentence", QEMU), no_x2apic),
    ]
}

/// A server that has booted, and its setup.
struct Reported {
    session: Session,
    setup: Setup,
}

fn boot_report(context: &mut Context<'_>, Reported { session, setup }: &mut Reported) -> Result<()> {
    let machine = session.booted(seconds(60))?;
    let expected = match context.platform() {
        Platform::Bochs => Some(Virtualization::Vmx),
        Platform::Qemu | Platform::Nested => Some(Virtualization::Svm),
        Platform::Kvm => machine.virtualization,
    };
    ensure!(machine.virtualization.is_some(), "neither SVM nor VT-x was found");
    ensure!(machine.virtualization == expected, "found {:?} on {}", machine.virtualization, context.platform());
    context.figures.exactly("cores", machine.cores, f64::from(setup.cpus))?;
    context.figures.at_least("memory, MiB", machine.memory >> 20, f64::from(setup.memory_mib) * 0.9)?;
    context.figures.at_most("memory, MiB", machine.memory >> 20, f64::from(setup.memory_mib))?;

    session.ask(Command::Report, seconds(20))?;
    let entries = reports(session);
    let count = |kind| entries.iter().filter(|(k, _)| *k == kind).count();
    context.figures.at_least("sentences on what was found", count(ReportKind::Found), 3)?;
    context.figures.at_least("decisions", count(ReportKind::Decision), 1)?;
    context.figures.exactly("required and missing", count(ReportKind::RequiredMissing), 0)?;
    let mapped = |text: &str| text.starts_with("core ") && text.contains(" maps ") && text.contains(" KiB");
    let maps = entries.iter().filter(|(_, text)| mapped(text)).count();
    context.figures.exactly("cores of which it says what they map", maps, machine.cores)?;
    // sha256sum is the judge.
    let config = setup.modules.iter().find_map(|module| match &module.content {
        Content::Text(text) => Some(text),
        _ => None,
    });
    let sum = sha256sum(config.map_or("", String::as_str))?;
    let named = entries.iter().filter(|(_, text)| text.starts_with("boot module ") && text.contains("SHA-256 "));
    context.figures.exactly("boot modules with their SHA-256", named.count(), setup.modules.len())?;
    let right =
        entries.iter().filter(|(_, text)| text.starts_with("boot module sidecore.toml:") && text.contains(&sum));
    context.figures.exactly("times sidecore.toml has the sum that sha256sum prints", right.count(), 1)?;
    let console = session.console()?;
    let shown = entries.iter().filter(|(_, text)| console.contains(text.as_str())).count();
    context.figures.exactly("sentences that are on COM1 too", shown, entries.len())?;
    let said = |text: &str| entries.iter().filter(|(_, entry)| entry.starts_with(text)).count();
    let gaps = entries.iter().filter(|(_, text)| text.starts_with("interruptions: the engine's core "));
    context.figures.exactly("sentences on the longest gap of the engine's core", gaps.count(), 1)?;
    context.figures.exactly("sentences on the speed of the engine's core", said("speed: the engine's core "), 1)?;
    let microcode = entries
        .iter()
        .filter(|(_, text)| text.contains("microcode is not looked at") || text.contains("sidecore loads none"));
    context.figures.exactly("sentences on the cores' microcode", microcode.count(), 1)?;
    let refused = ["reading MSR 0x80e is refused", "writing MSR 0x1b is refused"];
    let refused = refused.iter().filter(|text| console.contains(&format!("selftest=refused-msr: {text}"))).count();
    context.figures.exactly("MSRs that were refused, without a panic", refused, 2)?;
    let on_heap =
        entries.iter().filter(|(kind, text)| *kind == ReportKind::Decision && text.starts_with("its heap has "));
    context.figures.exactly("sentences on the heap", on_heap.count(), 1)?;
    let heap = session.counters()?.hypervisor.heap;
    context.figures.at_least("size of the heap, KiB", heap.size >> 10, 4096)?;
    context.figures.at_least("heap in use, KiB", heap.used >> 10, 1)?;
    // What the largest command needs.
    context.figures.at_least("heap not in use, KiB", (heap.size - heap.used) >> 10, 1024)
}

/// The EHCI controller of a setup with `idle_usb`: its function's number, and where QEMU has its capability for legacy
/// support.
const EHCI: u32 = 0x16 << 3;
const LEGACY: u32 = 0x68;

/// The UHCI controller of a setup with `idle_usb`, and its register LEGSUP. QEMU's has no such register, but remembers what
/// is written there.
const UHCI: u32 = 0x17 << 3;
const LEGSUP: u32 = 0xc0;
/// LEGSUP: the events that send an SMI.
const UHCI_EVENTS: u32 = 0xbf;

/// q35's AHCI controller, and where it has its capability for MSI.
const AHCI: u32 = 0x1f << 3 | 2;
const AHCI_MSI: u32 = 0x80;
/// The first register of that capability: MSI is on.
const MSI_ENABLE: u32 = 1 << 16;

/// The IOAPIC's registers, and a line of it that has no device.
const IOAPIC: u32 = 0xfec0_0000;
const IDLE_LINE: u32 = 13;

/// GRUB's commands that leave the EHCI controller as firmware does that works for it: with the firmware's semaphore, and
/// with events that send SMIs. There is no such firmware on QEMU, so nobody lets go of it. The UHCI controller has such
/// events too.
///
/// The MSI of the AHCI controller is on, and so is an entry of the IOAPIC whose line nobody raises.
fn firmware_has_started() -> Vec<String> {
    let writes = [
        (EHCI, LEGACY, 0x1_0001),
        (EHCI, LEGACY + 4, 0x2001),
        (UHCI, LEGSUP, UHCI_EVENTS),
        (AHCI, AHCI_MSI, MSI_ENABLE),
    ];
    let writes = writes.into_iter().flat_map(|(function, register, value)| grub_writes(function, register, value));
    let entry = 0x10 + 2 * IDLE_LINE;
    writes
        .chain([format!("write_dword {IOAPIC:#x} {entry:#x}"), format!("write_dword {:#x} 0x31", IOAPIC + 0x10)])
        .collect()
}

/// Reads the command register, MSI and MSI-X of each function of bus 0, and the entries of the I/O APIC, by the emulator's monitor.
fn bus_mastering(context: &mut Context<'_>, Reported { session, .. }: &mut Reported) -> Result<()> {
    const BUS_MASTER: u32 = 1 << 2;
    const INTERRUPT_DISABLE: u32 = 1 << 10;
    /// Interrupt line and pin.
    const PIN: u32 = 0x3c;
    const BRIDGE: u32 = 6;
    session.ask(Command::Report, seconds(20))?;
    let entries = reports(session);
    let says = |text: &str| entries.iter().filter(|(_, said)| said.contains(text)).count();
    let figures = &mut context.figures;
    figures.exactly(
        "USB controllers: one is left alone, one has let go",
        says("USB controllers: 3; the firmware had left 1 alone, and has let go of 1"),
        1,
    )?;
    figures.exactly(
        "USB controllers that are taken away",
        says("USB controller 00:16.0: the firmware did not let go"),
        1,
    )?;
    figures.exactly(
        "I/O APICs of which one entry was open",
        says("I/O APICs: 1 with 24 entries, all masked; the firmware had left 1 open"),
        1,
    )?;
    let said = entries.iter().find(|(_, text)| text.starts_with("bus mastering and MSI are off"));
    let (_, said) = said.context("the report does not say that bus mastering is off")?;
    context.figures.exactly(
        "USB controllers among those that the firmware had left on",
        said.matches("1b36:000d").count(),
        1,
    )?;
    let mut read = |function, register| session.pci_register(function, register);
    let semaphores = u64::from(read(EHCI, LEGACY)? >> 16 & 0x101);
    context.figures.exactly("semaphores of the EHCI controller (0x100: ours alone)", semaphores, 0x100)?;
    let events = u64::from(read(EHCI, LEGACY + 4)? & 0xe03f);
    context.figures.exactly("events by which it interrupts the firmware", events, 0)?;
    let events = u64::from(read(UHCI, LEGSUP)? & UHCI_EVENTS);
    context.figures.exactly("events by which the UHCI controller interrupts the firmware", events, 0)?;
    let (mut functions, mut masters, mut pins, mut senders, mut able) = (0, 0, 0, 0, 0);
    for function in 0..256 {
        if session.pci_register(function, 0)? != u32::MAX && session.pci_register(function, 8)? >> 24 != BRIDGE {
            functions += 1;
            let command = session.pci_register(function, 4)?;
            masters += u64::from(command & BUS_MASTER != 0);
            let has_pin = session.pci_register(function, PIN)? & 0xff00 != 0;
            pins += u64::from(has_pin && command & INTERRUPT_DISABLE == 0);
            for enabled in message_enables(session, function)? {
                able += 1;
                senders += u64::from(enabled);
            }
        }
    }
    let figures = &mut context.figures;
    figures.at_least("functions but for bridges", functions, 3)?;
    figures.exactly("of these with bus mastering", masters, 0)?;
    figures.exactly("of these whose interrupt pin is on", pins, 0)?;
    // The AHCI controller's MSI is one of them. GRUB has switched it on.
    figures.at_least("capabilities of theirs for MSI and MSI-X", able, 2)?;
    figures.exactly("of these that are on", senders, 0)?;
    let said = session.monitor_text("info pic")?;
    let entries: Vec<_> = said.lines().filter(|line| line.trim_start().starts_with("pin ")).collect();
    figures.at_least("entries of the IOAPIC", entries.len() as u64, 24)?;
    let open = entries.iter().filter(|line| !line.contains(" masked ")).count();
    figures.exactly("of these that are not masked", open as u64, 0)
}

/// Whether MSI and MSI-X are on, for each of these capabilities that a function has.
fn message_enables(session: &mut Session, function: u32) -> Result<Vec<bool>> {
    const CAPABILITIES: u32 = 1 << 20;
    let mut found = Vec::new();
    if session.pci_register(function, 4)? & CAPABILITIES == 0 {
        return Ok(found);
    }
    let mut at = session.pci_register(function, 0x34)? & 0xfc;
    // A list has 48 places at most.
    for _ in 0..48 {
        if at == 0 {
            break;
        }
        let first = session.pci_register(function, at)?;
        match first & 0xff {
            5 => found.push(first & MSI_ENABLE != 0),
            0x11 => found.push(first & 1 << 31 != 0),
            _ => {}
        }
        at = first >> 8 & 0xfc;
    }
    Ok(found)
}

/// Bochs's processor has no IA32_ARCH_CAPABILITIES, so it has the erratum.
fn page_split(context: &mut Context<'_>, Reported { session, .. }: &mut Reported) -> Result<()> {
    session.ask(Command::Report, seconds(20))?;
    let said =
        reports(session).into_iter().filter(|(_, text)| text.starts_with("itlb_multihit: executable pages")).count();
    context.figures.exactly("sentences that say so", said, 1)?;
    let counters = session.counters()?;
    let guest = counters.guest("a").context("there is no guest a")?;
    let pages = guest.memory.div_ceil(2 << 20);
    let splits = exits(&counters, "a")?.get("page-split").copied().unwrap_or_default();
    // Linux's kernel alone is some 40 MiB of code and data; each page is split once.
    context.figures.at_least("large pages that were split", splits, 5)?;
    context.figures.at_most("large pages that were split", splits, pages)
}

/// The SHA-256 of a text, by the program of that name.
fn sha256sum(text: &str) -> Result<String> {
    let mut child = process::Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    child.stdin.take().context("sha256sum has no input")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    let sum = String::from_utf8_lossy(&output.stdout).split_whitespace().next().map(str::to_owned);
    sum.context("sha256sum printed nothing")
}

fn completion_auto(context: &mut Context<'_>, Reported { session, .. }: &mut Reported) -> Result<()> {
    // Only VT-x has posted interrupts.
    let best = modes::best(context.platform()).name;
    let refused = usize::from(best != "posted");
    session.ask(Command::Report, seconds(20))?;
    let entries = reports(session);
    let decided = |words: &str| {
        entries.iter().filter(|(kind, text)| *kind == ReportKind::Decision && text.contains(words)).count()
    };
    let figures = &mut context.figures;
    figures.exactly("decisions for the best way", decided(&format!("completions are by {best}, unless")), 1)?;
    figures.exactly(
        "of these with a reason against posted",
        decided("not by posted: posted interrupts are VT-x's"),
        refused,
    )?;
    figures.exactly(
        "guests that get it",
        decided(&format!("guest a: 96 MiB, vCPUs on cores [2], completions by {best}")),
        1,
    )?;
    let errors = |event: &&Event| matches!(event, Event::ConfigError { value, .. } if value.contains("posted"));
    let errors = session.unread().iter().filter(errors).count();
    figures.exactly("errors for the way that was asked for by name", errors, refused)?;
    context.figures.exactly("guests that run", session.running()?, 2 - refused)
}

fn smt(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let beside = Guest::new(3).then("wait").core(7);
    let guests = [Guest::new(1).then("wait").core(6), Guest::new(2).vcpus(2).then("wait"), beside];
    let mut setup = server("smt", &guests);
    (setup.cpus, setup.threads) = (8, 2);
    let mut session = context.boot(&setup)?;
    session.result("a", "up", seconds(120))?;
    session.result("b", "up", seconds(120))?;
    session.ask(Command::Report, seconds(20))?;
    let entries = reports(&mut session);
    let decided = |words: &str| {
        entries.iter().filter(|(kind, text)| *kind == ReportKind::Decision && text.contains(words)).count()
    };
    let figures = &mut context.figures;
    figures.exactly("engine on a core of its own", decided("engine on core [2]"), 1)?;
    figures.exactly("a guest on the core that it names", decided("guest a: 96 MiB, vCPUs on cores [6]"), 1)?;
    figures.exactly("a guest on both threads of a core", decided("guest b: 96 MiB, vCPUs on cores [4, 5]"), 1)?;
    figures.exactly("cores that stay idle", decided("cores 1, 3, 7 stay idle"), 1)?;
    let refused = |event: &&Event| matches!(event, Event::ConfigError { message, .. } if message.contains("same physical core as core 6"));
    let refused = session.unread().iter().filter(refused).count();
    figures.exactly("errors for a thread of another guest's core", refused, 1)?;
    figures.exactly("guests that run", session.running()?, 2)?;
    session.shut_down().map(drop)
}

/// How many sentences of the report have these words.
fn sentences(session: &mut Session, words: &str) -> Result<usize> {
    session.ask(Command::Report, seconds(20))?;
    Ok(reports(session).iter().filter(|(_, text)| text.contains(words)).count())
}

fn many_cores(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("many-cores", &[Guest::new(1).then("wait")]);
    setup.cpus = 40;
    let mut session = context.boot(&setup)?;
    let machine = session.booted(seconds(120))?;
    context.figures.exactly("cores", machine.cores, 40)?;
    session.result("a", "up", seconds(240))?;
    context.figures.exactly("sentences that all have started", sentences(&mut session, "40 cores, all started")?, 1)?;
    let idle = "cores 3 to 39, idle, map ";
    context.figures.exactly("sentences on the 37 idle cores", sentences(&mut session, idle)?, 1)?;
    session.shut_down()?;
    if !context.full {
        return Ok(());
    }
    // 33 of them have APIC IDs above 254. The emulator's own processors are few, so it takes a minute or two.
    let mut setup = server("many-cores-288", &[]);
    (setup.cpus, setup.memory_mib) = (288, 1024);
    let mut session = context.boot(&setup)?;
    let machine = session.booted(seconds(300))?;
    context.figures.exactly("cores of 288", machine.cores, 288)?;
    let idle = "cores 2 to 287, idle, map ";
    session.ask(Command::Report, seconds(300))?;
    let told = reports(&mut session).iter().filter(|(_, text)| text.starts_with(idle)).count();
    context.figures.exactly("sentences on the 286 idle cores", told, 1)?;
    session.shut_down().map(drop)
}

fn absent_core(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    // Three packages of three cores with two threads: IDs 0 to 5, 8 to 13, 16 to 21. A fourth package is offline.
    let guests =
        [Guest::new(1).then("wait").core(16), Guest::new(2).vcpus(2).then("wait"), Guest::new(3).then("wait").core(17)];
    let mut setup = server("absent-core", &guests);
    (setup.cpus, setup.threads, setup.sockets, setup.offline) = (18, 2, 4, 6);
    setup.options = "emulator selftest=silent-core";
    let mut session = context.boot(&setup)?;
    let machine = session.booted(seconds(120))?;
    context.figures.exactly("cores that run", machine.cores, 17)?;
    session.result("a", "up", seconds(240))?;
    session.result("b", "up", seconds(240))?;
    let absent = "17 cores run, 1 did not start: 17 do not answer a start-up IPI; APIC IDs 21; their siblings 16 run";
    let offline = "6 more cores that are not enabled";
    for (what, words) in [
        ("sentences on the core that did not start", absent),
        ("sentences on those that are offline", offline),
        ("the sibling has a guest", "guest a: 96 MiB, vCPUs on cores [16]"),
        ("a guest on both threads of a core", "guest b: 96 MiB, vCPUs on cores [4, 5]"),
        ("cores that stay idle", "cores 1, 3 stay idle"),
    ] {
        context.figures.exactly(what, sentences(&mut session, words)?, 1)?;
    }
    let refused = |event: &&Event| matches!(event, Event::ConfigError { message, .. } if message.contains("core 17 has not started"));
    let refused = session.unread().iter().filter(refused).count();
    context.figures.exactly("errors for a guest that names it", refused, 1)?;
    context.figures.exactly("guests that run", session.running()?, 2)?;
    session.shut_down().map(drop)
}

fn no_x2apic(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("no-x2apic", &[]);
    setup.lacks = Some(Feature::X2apic);
    let mut session = context.boot(&setup)?;
    let sentence = session.wait("the sentence on what is missing", seconds(60), |event| match event {
        Event::Report(entry) if entry.kind == ReportKind::RequiredMissing => Some(entry.text.to_string()),
        _ => None,
    })?;
    context.figures.exactly("sentences that name it", usize::from(sentence.contains("no x2APIC")), 1)?;
    session.end(seconds(30))?;
    session.wait_end(seconds(30))?;
    context.figures.at_least("times the sentence is on COM1", session.console()?.matches(&sentence).count(), 1)
}

fn reports(session: &mut Session) -> Vec<(ReportKind, String)> {
    let mut entries = Vec::new();
    for event in session.unread() {
        let Event::Report(entry) = event else { continue };
        let entry = (entry.kind, entry.text.to_string());
        // sidecore sends each entry at boot, and again on request.
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    entries
}

/// The mistakes of ten guests and a port. For each: the wrong line, and a word that the message must have.
const MISTAKES: [(&str, &str); 11] = [
    ("vcpus = 0", "vcpus"),
    ("vcpus = \"two\"", "vcpus"),
    ("memory = \"1X\"", "size"),
    ("memory = \"1M\"", "memory"),
    ("inird = \"initrd-small\"", "initrd"),
    ("kernel = \"elsewhere\"", "module"),
    ("restart = \"sometimes\"", "restart"),
    ("completion = \"magic\"", "completion"),
    ("name = \"two words\"", "name"),
    ("net = [{ mac = \"52:54:00:00:00\" }]", "pairs"),
    ("steering = \"address\"", "addresses"),
];

/// A guest with `mistake` in place of the line with the same key. The rest of it is right.
fn spoilt_guest(number: usize, mistake: &str) -> String {
    let key = |line: &str| line.split(' ').next().map(str::to_owned);
    let name = format!("name = \"bad{number}\"");
    let mut lines = vec![name.as_str(), "vcpus = 1", "memory = \"64M\"", "kernel = \"vmlinuz\""];
    lines.retain(|line| key(line) != key(mistake));
    lines.push(mistake);
    format!("[[guest]]\n{}\n\n", lines.join("\n"))
}

/// A configuration with one right guest and an entry for each mistake. The last entry is a port, the others are guests.
fn spoilt_config(good: &Guest) -> String {
    let mut text = config_text(std::slice::from_ref(good));
    let [guests @ .., (port, _)] = &MISTAKES;
    for (number, (mistake, _)) in guests.iter().enumerate() {
        text.push_str(&spoilt_guest(number, mistake));
    }
    text + &format!("[[port]]\ndevice = \"first\"\n{port}\n")
}

fn bad_config(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let good = Guest::new(1).then("wait");
    let text = spoilt_config(&good);
    let mut setup = server("bad-config", &[good]);
    for module in &mut setup.modules {
        if let Content::Text(old) = &mut module.content {
            old.clone_from(&text);
        }
    }
    let mut session = context.boot(&setup)?;
    session.result("a", "up", seconds(120))?;
    let mut messages = BTreeSet::new();
    let mut placed = 0_usize;
    for event in session.unread() {
        let Event::ConfigError { line, message, value, .. } = event else { continue };
        messages.insert(message.clone());
        let there = usize::try_from(*line).ok().and_then(|line| text.lines().nth(line.checked_sub(1)?));
        let fits = |(wrong, word): &(&str, &str)| there == Some(*wrong) && message.contains(word);
        ensure!(MISTAKES.iter().any(fits), "line {line}, {value:?}: {message}, which no mistake explains");
        placed += 1;
    }
    context.figures.exactly("mistakes reported at their line", placed, MISTAKES.len())?;
    context.figures.exactly("different messages", messages.len(), MISTAKES.len())?;
    let console = session.console()?;
    let shown = messages.iter().filter(|message| console.contains(message.as_str())).count();
    context.figures.exactly("messages on COM1 too", shown, messages.len())?;
    context.figures.exactly("guests that run", session.running()?, 1)?;
    session.shut_down()?;
    Ok(())
}

fn no_virtualization(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("no-virtualization", &[Guest::new(1).then("wait")]);
    setup.lacks = Some(Feature::Virtualization);
    let mut session = context.boot(&setup)?;
    let sentence = session.wait("the sentence on what is missing", seconds(60), |event| match event {
        Event::Report(entry) if entry.kind == ReportKind::RequiredMissing => Some(entry.text.to_string()),
        _ => None,
    })?;
    let names = ["SVM", "VT-x"].iter().filter(|name| sentence.contains(**name)).count();
    context.figures.exactly("extensions named", names, 2)?;
    session.end(seconds(30))?;
    session.wait_end(seconds(30))?;
    context.figures.at_least("times the sentence is on COM1", session.console()?.matches(&sentence).count(), 1)
}

fn panic(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("panic", &[]);
    setup.options = "emulator selftest=panic";
    let mut session = context.boot(&setup)?;
    let (message, location, backtrace) = session.panicked(seconds(60))?;
    ensure!(message.contains("selftest"), "it panicked for another reason: {message} at {location}");
    context.figures.at_least("characters of the place", location.len(), 5)?;
    let named = backtrace.iter().filter(|entry| entry.contains("::")).count();
    context.figures.at_least("named entries of the backtrace", named, 2)?;
    context.figures.at_least("times it is on COM1", session.console()?.matches(&message).count(), 1)
}

fn double_fault(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("double-fault", &[]);
    setup.options = "emulator selftest=stack-overflow";
    let mut session = context.boot(&setup)?;
    let (message, location, backtrace) = session.panicked(seconds(60))?;
    ensure!(
        message.starts_with("core 0: #DF double fault at "),
        "it panicked for another reason: {message} at {location}"
    );
    let inside = backtrace.iter().filter(|entry| entry.contains("sidecore::options::overflow")).count();
    context.figures.at_least("entries of the backtrace in the function that overflows", inside, 10)?;
    session.wait_end(seconds(60))?;
    let console = session.console()?;
    let guard = "the address is in a guard page of core 0: its stack overflowed";
    context.figures.exactly("times COM1 says that a stack overflowed", console.matches(guard).count(), 1)?;

    // QEMU's monitor raises the boot core's LINT1, as a management controller does. The chipset latches nothing.
    let mut session = context.boot(&server("machine-nmi", &[]))?;
    session.booted(seconds(60))?;
    session.monitor_text("nmi")?;
    let mut seen = session.counters()?.hypervisor;
    for _ in 0..100 {
        if seen.other_nmis > 0 {
            break;
        }
        std::thread::sleep(seconds(1) / 10);
        seen = session.counters()?.hypervisor;
    }
    context.figures.exactly("NMIs that no core has sent", seen.other_nmis, 1)?;
    context.figures.exactly("errors of the chipset", seen.system_errors + seen.io_checks, 0)?;
    session.shut_down()?;
    let told = session.console()?.matches("an NMI that no core has sent").count();
    context.figures.exactly("times COM1 says so", told, 1)
}

fn switch_off(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("switch-off", &[]);
    setup.options = "";
    let mut session = context.boot(&setup)?;
    let machine = session.booted(seconds(60))?;
    context.figures.exactly("cores", machine.cores, f64::from(setup.cpus))?;
    // The emulator ends only if the machine has switched itself off. If the cores only halt, it stays.
    session.shut_down()?;
    let left_on = session.console()?.matches("safe to switch the machine off").count();
    context.figures.exactly("times it had to be switched off by hand", left_on, 0)
}

fn reboot(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("reboot", &[Guest::new(1).then("wait")]);
    setup.options = "";
    setup.reboots = true;
    let mut session = context.boot(&setup)?;
    session.booted(seconds(60))?;
    session.result("a", "up", seconds(120))?;
    session.send(Command::Reboot)?;
    session.end(seconds(60))?;
    let machine = session.booted(seconds(60))?;
    context.figures.exactly("cores in the second life", machine.cores, f64::from(setup.cpus))?;
    session.result("a", "up", seconds(120))?;
    let begun = session.console()?.matches("what this machine has:").count();
    context.figures.exactly("times the report begins", begun, 2)?;
    session.shut_down().map(drop)
}

fn start_refused(context: &mut Context<'_>, wanted: &Wanted<'_>) -> Result<Session> {
    let (large, headless) = (wanted.any(&["low-memory"]), wanted.any(&["missing-module"]));
    let stranger = wanted.any(&["wrong-module"]);
    let mut guests = vec![Guest::new(1).then("wait")];
    guests.extend(large.then(|| Guest::new(2).memory_mib(4096).then("wait")));
    guests.extend(headless.then(|| Guest::new(3).then("wait")));
    guests.extend(stranger.then(|| Guest::new(4).then("wait")));
    let mut setup = server("refused-guests", &guests);
    if large {
        setup.memory_mib = 224;
    }
    if stranger {
        let module = format!("[[module]]\nname = \"stranger\"\nsha256 = \"{}\"\n\n", "5".repeat(64));
        setup = with_entries(setup, &module);
    }
    for module in &mut setup.modules {
        let Content::Text(text) = &mut module.content else { continue };
        // d comes first: what is after a guest's name is replaced up to the end of the file.
        for (guest, kernel) in [("d", "stranger"), ("c", "not-there")] {
            if let Some(at) = text.find(&format!("name = \"{guest}\"")) {
                let replaced = text.split_off(at).replace("\"vmlinuz\"", &format!("\"{kernel}\""));
                text.push_str(&replaced);
            }
        }
    }
    if stranger {
        setup.modules.push(Module::new("stranger", Content::Isolation));
    }
    let mut session = context.boot(&setup)?;
    session.result("a", "up", seconds(120))?;
    Ok(session)
}

fn low_memory(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let detail = refused(session, "b")?;
    context.figures.at_least("times the refusal names the size", detail.matches("4096").count(), 1)?;
    context.figures.exactly("guests that run", session.running()?, 1)
}

fn missing_module(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let detail = refused(session, "c")?;
    context.figures.at_least("times the refusal names the module", detail.matches("not-there").count(), 1)?;
    context.figures.exactly("guests that run", session.running()?, 1)
}

fn wrong_module(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let detail = refused(session, "d")?;
    context.figures.at_least(
        "times the refusal names the sum that was found",
        detail.matches("has the SHA-256").count(),
        1,
    )?;
    context.figures.exactly("guests that run", session.running()?, 1)
}

/// Waits until sidecore reports that a guest does not start. Returns the reason.
fn refused(session: &mut Session, name: &str) -> Result<String> {
    session.wait(&format!("guest {name} to be refused"), seconds(60), |event| match event {
        Event::Guest { guest, reason: Some(StopReason::NotStarted), detail, .. } if guest == name => {
            Some(detail.clone().unwrap_or_default())
        }
        Event::ConfigError { guest: Some(guest), message, value, .. } if guest == name => {
            Some(format!("{value}: {message}"))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mistake_is_one_and_is_found_where_it_stands() {
        let text = spoilt_config(&Guest::new(1));
        let mut parsed = config::parse("sidecore.toml", text.as_bytes());
        let mut mistakes = parsed.mistakes;
        mistakes.extend(config::check_modules(&mut parsed.config, &["vmlinuz", "initrd-small"]));
        for (wrong, word) in MISTAKES {
            let here = |line: u32| text.lines().nth(line as usize - 1) == Some(wrong);
            let found: Vec<_> = mistakes.iter().filter(|mistake| here(mistake.line)).collect();
            assert_eq!(found.len(), 1, "{wrong}: {mistakes:#?}");
            assert!(found[0].message.contains(word), "{wrong}: {}", found[0].message);
        }
        assert_eq!(mistakes.len(), MISTAKES.len(), "{mistakes:#?}");
        assert_eq!(parsed.config.guests.len(), 1);
    }

    #[test]
    fn what_scenarios_write_is_a_good_configuration() {
        let guests = [Guest::new(1).peer(2).vcpus(2).full().restarted().then("ping:10"), Guest::new(2).then("wait")];
        let parsed = config::parse("sidecore.toml", config_text(&guests).as_bytes());
        assert_eq!(parsed.mistakes, []);
        assert_eq!(parsed.config.guests.len(), 2);
    }
}
