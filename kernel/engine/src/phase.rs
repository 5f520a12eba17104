//! Where a device stands between its transport (the guest's cores) and the engine: one word that both step, each by
//! compare-exchange. `model.rs` lets loom try every interleaving.

use super::atomics::{AtomicU32, Ordering};

/// Where a device stands; see the text of [`shared`](crate::shared).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// The engine has nothing to do with the device.
    Idle = 0,
    /// The driver has set DRIVER_OK, the engine has not yet seen it.
    Activating = 1,
    /// The engine serves the device.
    Running = 2,
    /// The driver has asked for a reset, the engine may still hold its buffers.
    Resetting = 3,
}

impl Phase {
    const fn from_bits(bits: u32) -> Self {
        match bits {
            0 => Self::Idle,
            1 => Self::Activating,
            2 => Self::Running,
            _ => Self::Resetting,
        }
    }
}

/// The word. Whoever finds a phase in it sees what was written before the step to it.
pub struct PhaseWord(pub(super) AtomicU32);

impl PhaseWord {
    /// The phase now.
    #[inline]
    pub fn get(&self) -> Phase {
        Phase::from_bits(self.0.load(Ordering::Acquire))
    }

    /// Goes to a phase while nobody else may.
    pub fn set(&self, phase: Phase) {
        self.0.store(phase as u32, Ordering::Release);
    }

    /// Goes from one phase to another, unless the other side has moved on.
    pub fn step(&self, from: Phase, to: Phase) -> bool {
        self.0.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The transport asks for a reset: the phase in which that found the device. From `Activating` and `Running` it is
    /// `Resetting` now; `Idle` needs no engine, and `Resetting` was asked for before.
    pub fn request_reset(&self) -> Phase {
        // Running may follow Activating under our hands; nothing else moves but by us.
        loop {
            let now = self.get();
            if matches!(now, Phase::Idle | Phase::Resetting) || self.step(now, Phase::Resetting) {
                return now;
            }
        }
    }
}
