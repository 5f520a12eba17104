//! Finds cores that make no progress in the hypervisor, asks them by NMI where they are, and says so.
//!
//! ```text
//!  control core   ten times a second: engines' turns, guest cores' progress ─┐       (guests/stuck.rs)
//!  engine core    ten times a second: the control core's progress ───────────┴▶ watchdog::Watched ─▶ NMI
//!  core without progress   NMI handler: `answer` ─┬▶ engine or control core: panic::report, with its backtrace
//!                                                 └▶ guest core: RIP into its slot ─▶ control core: a line, an event, the
//!                                                    guest ends
//! ```
//!
//! The crate `watchdog` decides. A core that runs its guest, halts or zeroes memory owes no progress. If no engine has a core
//! of its own, nobody looks at the control core.

use crate::{
    arch::{MAX_CORES, frame::Frame, number, time},
    cores, emulator, panic, report, symbols,
};
use alloc::format;
use core::{
    cell::Cell,
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
};
use watchdog::{Pace, Verdict, Watched};

/// Microseconds between two looks.
pub const PERIOD: u64 = 100_000;
/// Seconds without progress that are too many. Nothing in the hypervisor takes a tenth of that between two steps.
const ON_A_MACHINE: u64 = 5;
/// The same if the machine is virtual: its processors may be kept from running one by one.
const ON_A_VIRTUAL_MACHINE: u64 = 60;
/// Number of the control core.
pub const CONTROL_CORE: usize = 0;

/// Ticks of the TSC without progress that are too many. 0: nobody looks.
static LIMIT: AtomicU64 = AtomicU64::new(0);

static SLOTS: [Slot; MAX_CORES] = [const { Slot::new() }; MAX_CORES];

/// Values of [`Slot::state`]: nobody asks.
const QUIET: u8 = 0;
/// The core is to say where it is.
const ASKED: u8 = 1;
/// The core is to stop the machine, with its backtrace.
const FATAL: u8 = 2;
/// The core has said where it is.
const ANSWERED: u8 = 3;

/// What a core is asked, and its answer.
struct Slot {
    state: AtomicU8,
    rip: AtomicU64,
    /// How often it has answered.
    answers: AtomicU64,
}

impl Slot {
    const fn new() -> Self {
        Self { state: AtomicU8::new(QUIET), rip: AtomicU64::new(0), answers: AtomicU64::new(0) }
    }
}

/// Begins to watch. The control core calls it when each core has its work. `seconds` without progress are too many; 0: nobody
/// looks. `None`: as the machine suggests. `alone`: no engine has a core of its own.
pub fn start(seconds: Option<u64>, alone: bool) {
    let is_virtual = raw_cpuid::CpuId::new().get_feature_info().is_some_and(|f| f.has_hypervisor());
    let suggested = if is_virtual || emulator::under_emulator() { ON_A_VIRTUAL_MACHINE } else { ON_A_MACHINE };
    let seconds = seconds.unwrap_or(suggested);
    LIMIT.store(time::micros(seconds.saturating_mul(1_000_000)), Ordering::Relaxed);
    report::decision(match seconds {
        0 => "no watchdog: the command line says so".into(),
        _ if alone => format!(
            "the watchdog waits {seconds} s for a core's progress; nobody watches the control core, because no engine has a \
             core of its own"
        ),
        _ => format!("the watchdog waits {seconds} s for a core's progress"),
    });
}

/// Ticks without progress that are too many, or 0.
pub fn limit() -> u64 {
    LIMIT.load(Ordering::Relaxed)
}

/// The limit in seconds, for messages.
pub fn seconds() -> u64 {
    limit().checked_div(time::micros(1_000_000)).unwrap_or_default()
}

/// Sends a core an NMI. `state` is what its handler is to do.
fn ask(core: usize, state: u8) {
    if let (Some(slot), Some(core)) = (SLOTS.get(core), cores::get(core)) {
        slot.state.store(state, Ordering::SeqCst);
        core.nmi();
    }
}

/// Asks a guest's core where it is. [`take_answer`] has the answer later.
pub fn ask_where(core: usize) {
    ask(core, ASKED);
}

/// Takes a core's answer: its RIP.
pub fn take_answer(core: usize) -> Option<u64> {
    let slot = SLOTS.get(core)?;
    let answered = slot.state.compare_exchange(ANSWERED, QUIET, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    answered.then(|| slot.rip.load(Ordering::Relaxed))
}

/// Asks no more. An answer that has come stays.
pub fn ask_no_more(core: usize) {
    if let Some(slot) = SLOTS.get(core) {
        for asked in [ASKED, FATAL] {
            let _ = slot.state.compare_exchange(asked, QUIET, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

/// Answers if this core was asked. The NMI handler calls it.
pub fn answer(frame: &Frame) {
    let core = number::current();
    let Some(slot) = SLOTS.get(core) else { return };
    match slot.state.load(Ordering::SeqCst) {
        ASKED => {
            slot.rip.store(frame.rip, Ordering::Relaxed);
            slot.state.store(ANSWERED, Ordering::SeqCst);
            slot.answers.fetch_add(1, Ordering::SeqCst);
        }
        FATAL => panic::report(
            format_args!("{} has made no progress for {} s", role(core), seconds()),
            Some(format_args!("{}", symbols::Named(frame.rip))),
            Some(frame),
            None,
        ),
        _ => {}
    }
}

/// How often a core has answered.
pub fn answers(core: usize) -> u64 {
    SLOTS.get(core).map_or(0, |slot| slot.answers.load(Ordering::SeqCst))
}

const fn role(core: usize) -> &'static str {
    if core == CONTROL_CORE { "the control core" } else { "the engine's core" }
}

/// Carries out a verdict on a core without which the machine cannot go on.
pub fn carry_out(core: usize, verdict: Verdict) {
    match verdict {
        Verdict::Fine => {}
        Verdict::Stuck => ask(core, FATAL),
        Verdict::Silent => {
            panic!("core {core}, {}, has made no progress for {} s and takes no NMI", role(core), seconds())
        }
        Verdict::Recovered => ask_no_more(core),
    }
}

/// An engine's watch over the control core.
pub struct OverControlCore {
    /// The time of the next look.
    next: Cell<u64>,
    pace: Cell<Pace>,
    watched: Cell<Watched>,
}

impl OverControlCore {
    /// It was not looked at yet.
    pub fn new() -> Self {
        let pace = Pace::new(time::micros(PERIOD));
        Self { next: Cell::new(0), pace: Cell::new(pace), watched: Cell::new(Watched::default()) }
    }

    /// Looks at the control core if that is due at time `now`. Called once a turn, which costs a comparison.
    #[inline]
    pub fn turn(&self, now: u64) {
        if now >= self.next.get() {
            self.look(now);
        }
    }

    #[cold]
    fn look(&self, now: u64) {
        let (mut pace, mut watched) = (self.pace.get(), self.watched.get());
        if let (Some(ticks), Some(control)) = (pace.due(now), cores::get(CONTROL_CORE)) {
            carry_out(CONTROL_CORE, watched.look(control.seen(), ticks, limit()));
        }
        self.next.set(pace.next());
        self.pace.set(pace);
        self.watched.set(watched);
    }
}
