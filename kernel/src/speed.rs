//! The speed of an engine's core: raises it to full speed once, and looks once a second how fast it was.
//!
//! ```text
//!  engine's core    before its first turn: raise ─▶ outcome, watch ─▶ longest gap ─▶ the report
//!                   once a second (`engines/look.rs`): look ─▶ average speed, throttling ─▶ counters
//! ```
//!
//! The crate `speed` decides what is read and written. Guests' cores and the control core are left as the firmware has them.

use crate::arch::{cpuid, msr::Physical, time};
use control::{NoMemory, copy};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use speed::{Causes, Features, Look, Meter, Outcome, Processor, Watched};
use spin::{Mutex, Once};

/// Microseconds for which a core is watched before its first turn.
const WATCH: u64 = 20_000;
/// Value of [`CoreSpeed::permille`]: not known.
const UNKNOWN: u32 = u32::MAX;
/// Value of [`CoreSpeed::smis`]: the processor does not count them.
const NOT_COUNTED: u64 = u64::MAX;

/// The speed of one engine's core.
#[derive(Debug)]
pub struct CoreSpeed {
    processor: Processor,
    /// What came of raising it.
    outcome: Once<Outcome>,
    /// What it has seen while it had nothing to do but watch.
    watched: Once<Watched>,
    /// Only the engine's core locks it, so nobody ever waits.
    meter: Mutex<Meter>,
    /// What the last look has found.
    permille: AtomicU32,
    /// Looks that found that the core was slowed down.
    throttled: AtomicU64,
    /// What has slowed it down in any of them.
    causes: AtomicU32,
    /// System management interrupts since the first look, or [`NOT_COUNTED`].
    smis: AtomicU64,
}

impl CoreSpeed {
    /// All cores are taken to be alike.
    pub fn new() -> Self {
        Self {
            processor: Processor::new(cpuid::words),
            outcome: Once::new(),
            watched: Once::new(),
            meter: Mutex::new(Meter::new()),
            permille: AtomicU32::new(UNKNOWN),
            throttled: AtomicU64::new(0),
            causes: AtomicU32::new(0),
            smis: AtomicU64::new(NOT_COUNTED),
        }
    }

    /// Raises the core that runs this, which is the engine's. Only the first call has an effect.
    pub fn raise(&self) {
        self.outcome.call_once(|| speed::raise(&self.processor, &mut Physical));
    }

    /// Watches the core that runs this, which is the engine's, for [`WATCH`]. Only the first call has an effect.
    pub fn watch(&self) {
        self.watched.call_once(|| speed::watch(&self.processor, &mut Physical, time::tsc, time::micros(WATCH)));
    }

    /// Returns what it has seen then, and whether this is a virtual machine. `None`: the engine's core has not done it yet.
    pub fn watched(&self) -> Option<(&Watched, bool)> {
        Some((self.watched.get()?, self.processor.has(Features::VIRTUAL)))
    }

    /// Returns what came of it, or `None` if the engine's core has not done it yet.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Average speed in the last second, in thousandths of the TSC's rate.
    pub fn permille(&self) -> Option<u64> {
        Some(self.permille.load(Relaxed)).filter(|&permille| permille != UNKNOWN).map(u64::from)
    }

    /// Looks that found that the core or its package was slowed down.
    pub fn throttled(&self) -> u64 {
        self.throttled.load(Relaxed)
    }

    /// System management interrupts of the core since the first look. `None`: the processor does not count them.
    pub fn smis(&self) -> Option<u64> {
        Some(self.smis.load(Relaxed)).filter(|&smis| smis != NOT_COUNTED)
    }

    /// What has slowed it down, as text.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn throttled_by(&self) -> Result<alloc::string::String, NoMemory> {
        let causes = Causes::from_bits_truncate(self.causes.load(Relaxed));
        copy(&control::sentence(format_args!("{causes}")))
    }

    /// Looks at the core that runs this, which is the engine's.
    pub fn look(&self) {
        if !Meter::has_something(&self.processor) {
            return;
        }
        let Some(mut meter) = self.meter.try_lock() else { return };
        let Look { permille, causes, smis } = meter.look(&self.processor, &mut Physical);
        self.permille.store(permille.unwrap_or(UNKNOWN), Relaxed);
        if let Some(smis) = smis {
            // Only this core writes it.
            self.smis.store(self.smis().unwrap_or(0).saturating_add(smis.into()), Relaxed);
        }
        self.causes.fetch_or(causes.bits(), Relaxed);
        self.throttled.fetch_add(u64::from(!causes.is_empty()), Relaxed);
    }
}
