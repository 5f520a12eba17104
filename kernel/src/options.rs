//! Reads the words on the kernel's command line in GRUB's file. There are few, because configuration belongs in
//! `sidecore.toml`.
//!
//! - `console=com1|com2|com3|com4|0xPORT|none`, perhaps with `,RATE` behind: people's serial port. Without it: that of ACPI's SPCR, or
//!   COM1. `boot::console` reads it.
//! - `json=`, with the same values: the serial port of programs. Without it: COM2, or COM1 if COM2 is people's. The port
//!   that people have: both share it.
//! - `emulator`: the machine is Bochs, or QEMU with `isa-debug-exit` at 0xF4. sidecore ends the emulator at its own
//!   end.
//! - `selftest=panic|stack-overflow|null`: fail on purpose after the report, to test that the message arrives.
//! - `selftest=panic-at-shutdown`: fail at the command `shutdown`, while everything runs.
//! - `selftest=stuck-at-configuration|panic-with-guests`: make no progress when `sidecore.toml` is taken, or fail when its guests have
//!   started, but not if `previous.toml` is taken.
//! - `panic=SECONDS`: time from a failure that stops the machine to its reset, 1 to 86400, or 0 for no reset. Without it: 10 if there is a
//!   boot module `previous.toml`, otherwise no reset.
//! - `attempts-cmos=BYTE`: a byte of the CMOS memory, 0x33 to 0x7f, that nobody else uses. The count of attempts is there too
//!   ([`crate::boots`]).
//! - `boot=GUID`: the unique GUID of the partition that sidecore was booted from. `boot/grub.cfg` finds it.
//! - `nvme-timeout=SECONDS`: time for a command to an NVMe disk until it is aborted, 1 to 3600. Without it: 30.
//! - `selftest=stuck-control|stuck-engine|stuck-guest`: a core makes no progress: the control core, the engine's, or that of
//!   the first guest's first vCPU.
//! - `selftest=silent-core`: the last core gets no start-up IPI, so it does not start.
//! - `selftest=refused-msr`: access MSRs that the processor refuses, after the report. The log says so, and nothing fails.
//! - `selftest=running-watchdogs`: the machine's own watchdogs are left as they are.
//! - `watchdog=SECONDS`: time without progress until the watchdog says so, 1 to 3600, or 0 for no watchdog. Without it: 5, and
//!   60 in a virtual machine.
//! - `machine-watchdog=SECONDS`: time of a hang of the control core until the machine's own watchdog resets it, 20 to
//!   600. Without it that watchdog is stopped.
//! - `quirks=NAMES`: the workarounds for processors that do not follow their manuals: `none`, `all`, or names with commas
//!   between them (`machine::quirk`). Without it: all on Bochs, none elsewhere.
//! - `count`: count the engine's instructions (`count.rs`). Only for an image that was built for it.

use crate::{
    arch::{apic, msr::Physical},
    boots::cmos,
    emulator, report,
};
use alloc::format;
use config::Guid;
use core::ops::RangeInclusive;
use machine::quirk::Quirks;
use speed::Msrs as _;
use spin::Mutex;

/// What fails on purpose.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SelfTest {
    Panic,
    StackOverflow,
    Null,
    PanicAtShutdown,
    StuckAtConfiguration,
    PanicWithGuests,
    StuckControl,
    StuckEngine,
    StuckGuest,
    SilentCore,
    RefusedMsr,
    RunningWatchdogs,
}

impl SelfTest {
    /// The values of `selftest=`.
    const WORDS: [(&'static str, Self); 12] = [
        ("panic", Self::Panic),
        ("stack-overflow", Self::StackOverflow),
        ("null", Self::Null),
        ("panic-at-shutdown", Self::PanicAtShutdown),
        ("stuck-at-configuration", Self::StuckAtConfiguration),
        ("panic-with-guests", Self::PanicWithGuests),
        ("stuck-control", Self::StuckControl),
        ("stuck-engine", Self::StuckEngine),
        ("stuck-guest", Self::StuckGuest),
        ("silent-core", Self::SilentCore),
        ("refused-msr", Self::RefusedMsr),
        ("running-watchdogs", Self::RunningWatchdogs),
    ];

    fn parse(value: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(word, _)| *word == value).map(|&(_, test)| test)
    }
}

/// The partition that sidecore was booted from.
static BOOTED: Mutex<Option<Guid>> = Mutex::new(None);

/// Seconds for a command to an NVMe disk. `None`: the driver's own.
static NVME_TIMEOUT: Mutex<Option<u64>> = Mutex::new(None);

/// Seconds without progress until the watchdog says so. `None`: as the machine suggests.
static WATCHDOG: Mutex<Option<u64>> = Mutex::new(None);

/// Seconds of a hang until the machine's own watchdog resets it. `None`: it is stopped.
static MACHINE_WATCHDOG: Mutex<Option<u64>> = Mutex::new(None);

/// Seconds from a failure to a reset. `None`: as the boot modules suggest.
static PANIC_SECONDS: Mutex<Option<u64>> = Mutex::new(None);

/// The workarounds that the command line asks for.
static QUIRKS: Mutex<Option<Quirks>> = Mutex::new(None);

/// What the command line wants to fail.
static SELF_TEST: Mutex<Option<SelfTest>> = Mutex::new(None);

fn is_wanted(test: SelfTest) -> bool {
    *SELF_TEST.lock() == Some(test)
}

/// Whether the last core is not to start.
pub fn last_core_is_silent() -> bool {
    is_wanted(SelfTest::SilentCore)
}

/// Whether the machine's own watchdogs are left as they are.
pub fn watchdogs_are_left() -> bool {
    is_wanted(SelfTest::RunningWatchdogs)
}

/// Whether the command line has the word `count`.
#[cfg(feature = "count")]
pub static COUNT: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);

/// Reads the command line. Unknown words are reported and have no effect.
pub fn read(command_line: &str) {
    for word in command_line.split_whitespace() {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("emulator", None) => emulator::allow_emulator_exit(),
            ("selftest", Some(value)) if let Some(test) = SelfTest::parse(value) => *SELF_TEST.lock() = Some(test),
            ("console" | "json", Some(value)) => check_port(word, value),
            ("panic", Some(value)) => set_seconds(&PANIC_SECONDS, word, value, 0..=86_400),
            ("watchdog", Some(value)) => set_seconds(&WATCHDOG, word, value, 0..=3600),
            ("machine-watchdog", Some(value)) => set_seconds(&MACHINE_WATCHDOG, word, value, 20..=600),
            ("nvme-timeout", Some(value)) => set_seconds(&NVME_TIMEOUT, word, value, 1..=3600),
            ("attempts-cmos", Some(value)) => read_attempts_cmos(word, value),
            ("boot", Some(value)) => read_boot(value),
            ("quirks", Some(value)) => read_quirks(value),
            #[cfg(feature = "count")]
            ("count", None) => COUNT.store(true, core::sync::atomic::Ordering::Relaxed),
            _ => report::warning(format!(
                "`{word}` on the kernel's command line means nothing; there are: attempts-cmos=BYTE, \
                 emulator, boot=GUID, console=PORT, json=PORT, machine-watchdog=SECONDS, nvme-timeout=SECONDS, \
                 panic=SECONDS, quirks=NAMES, watchdog=SECONDS, selftest={}",
                SelfTest::WORDS.map(|(word, _)| word).join("|")
            )),
        }
    }
}

/// Returns the unique GUID of the partition that sidecore was booted from, if GRUB told it.
pub fn booted() -> Option<Guid> {
    *BOOTED.lock()
}

/// Returns the microseconds for a command to an NVMe disk until it is aborted, if the command line says it.
pub fn nvme_timeout() -> Option<u64> {
    NVME_TIMEOUT.lock().map(|seconds| seconds.saturating_mul(1_000_000))
}

/// Returns the workarounds that the command line asks for, or `None` if it does not name any.
pub fn quirks() -> Option<Quirks> {
    *QUIRKS.lock()
}

/// Returns the seconds without progress until the watchdog says so, if the command line gives them. 0: no watchdog.
pub fn watchdog() -> Option<u64> {
    *WATCHDOG.lock()
}

/// Returns the seconds of a hang until the machine's own watchdog is to reset it, if the command line gives them.
pub fn machine_watchdog() -> Option<u16> {
    MACHINE_WATCHDOG.lock().and_then(|seconds| seconds.try_into().ok())
}

/// Returns the seconds from a failure to a reset, if the command line gives them. 0: no reset.
pub fn panic() -> Option<u64> {
    // It may be in the way of a panic, but only while the command line is read.
    PANIC_SECONDS.try_lock().and_then(|seconds| *seconds)
}

/// Reads a number of seconds in a range. Another value is reported and has no effect.
fn set_seconds(of: &Mutex<Option<u64>>, word: &str, value: &str, range: RangeInclusive<u64>) {
    match value.parse().ok().filter(|seconds| range.contains(seconds)) {
        Some(seconds) => *of.lock() = Some(seconds),
        None => report::warning(format!(
            "`{word}` on the kernel's command line has no effect; expected {} to {} (seconds)",
            range.start(),
            range.end()
        )),
    }
}

/// Says that the value of `console=` or `json=` makes no sense, if so. `boot::console::choose` has read the word before.
fn check_port(word: &str, value: &str) {
    if boot::console::parse(value).is_none() {
        report::warning(format!(
            "`{word}` on the kernel's command line has no effect; expected `none`, com1 to com4 or a port such as 0x3f8, and perhaps \
             `,RATE` with a rate of which a whole number makes 115200"
        ));
    }
}

/// Reads the value of `attempts-cmos=`.
fn read_attempts_cmos(word: &str, value: &str) {
    let byte = value.strip_prefix("0x").and_then(|digits| u8::from_str_radix(digits, 16).ok());
    match byte.filter(|byte| boots::cmos::BYTES.contains(byte)) {
        Some(byte) => cmos::name(byte),
        None => report::warning(format!(
            "`{word}` on the kernel's command line has no effect; expected a byte that nobody else uses, {:#x} to {:#x}",
            boots::cmos::BYTES.start(),
            boots::cmos::BYTES.end()
        )),
    }
}

/// Reads the value of `quirks=`.
fn read_quirks(value: &str) {
    match Quirks::parse(value) {
        Some(quirks) => *QUIRKS.lock() = Some(quirks),
        None => report::warning(format!(
            "`quirks={value}` on the kernel's command line has no effect; expected `none`, `all`, or names of rip, hlt, \
             virr, pir with commas between them"
        )),
    }
}

/// Reads the value of `boot=`. GRUB gives nothing or `none` for what is no partition, and a disk's signature and a number
/// (`0123abcd-01`) for a partition of an MBR.
fn read_boot(value: &str) {
    match Guid::try_parse(value) {
        Ok(guid) => *BOOTED.lock() = Some(guid),
        Err(_) if matches!(value, "" | "none") || value.len() == 11 => {}
        Err(_) => report::warning(format!("`boot={value}` on the kernel's command line is no GUID of a partition")),
    }
}

/// Fails on purpose if the command line asks for it.
pub fn self_test() {
    let wanted = *SELF_TEST.lock();
    match wanted {
        Some(SelfTest::Panic) => panic!("selftest=panic"),
        Some(SelfTest::StackOverflow) => _ = overflow(0),
        Some(SelfTest::Null) => null(),
        Some(SelfTest::StuckControl) => spin(|| false),
        Some(SelfTest::RefusedMsr) => refused_msr(),
        _ => {}
    }
}

/// Makes no progress if the command line asks for that with this configuration. `is_previous`: it is `previous.toml`.
pub fn self_test_of_configuration(is_previous: bool) {
    if !is_previous && is_wanted(SelfTest::StuckAtConfiguration) {
        spin(|| false);
    }
}

/// Fails on purpose when the guests have started, if the command line asks for that with this configuration.
pub fn self_test_with_guests(is_previous: bool) {
    if !is_previous && is_wanted(SelfTest::PanicWithGuests) {
        panic!("selftest=panic-with-guests");
    }
}

/// Fails on purpose at a shutdown if the command line asks for that.
pub fn self_test_at_shutdown() {
    if is_wanted(SelfTest::PanicAtShutdown) {
        panic!("selftest=panic-at-shutdown");
    }
}

/// Makes no progress on the engine's core if the command line asks for that.
pub fn self_test_on_engine_core() {
    if is_wanted(SelfTest::StuckEngine) {
        spin(|| false);
    }
}

/// Makes no progress on a guest's core if the command line asks for that, until the watchdog has `asked` the core.
pub fn self_test_on_guest_core(guest: usize, vcpu: usize, asked: impl Fn() -> bool) {
    if is_wanted(SelfTest::StuckGuest) && (guest, vcpu) == (0, 0) {
        spin(asked);
    }
}

/// Makes no progress until `done`.
#[inline(never)]
fn spin(done: impl Fn() -> bool) {
    while !done() {
        core::hint::spin_loop();
    }
}

#[expect(unconditional_recursion, reason = "the point is to run off the stack")]
fn overflow(depth: u64) -> u64 {
    let here = [depth; 64];
    let [first, second, ..] = here;
    overflow(core::hint::black_box(first).wrapping_add(1)).wrapping_add(second)
}

#[allow(unsafe_code, reason = "the point is to fault")]
fn null() {
    // SAFETY: page 0 is not mapped. The page fault ends the machine, and the operator asked for that.
    unsafe { core::ptr::without_provenance::<u8>(core::hint::black_box(8)).read_volatile() };
}

/// Makes two accesses that the processor refuses, and logs what came of them (SDM vol. 3A 11.12.1 and 11.12.5): reads the local APIC's
/// destination format register, which x2APIC mode does not have, and asks in IA32_APIC_BASE for x2APIC mode of an APIC that is off.
fn refused_msr() {
    const DESTINATION_FORMAT: u32 = 0x80e;
    const APIC_BASE: u32 = 0x1b;
    const ENABLED: u64 = 1 << 11;
    for access in [Physical.read(DESTINATION_FORMAT).map(drop), Physical.write(APIC_BASE, apic::base() & !ENABLED)] {
        match access {
            Ok(()) => log::warn!("selftest=refused-msr: the processor refuses nothing"),
            Err(refused) => log::info!("selftest=refused-msr: {refused}"),
        }
    }
}
