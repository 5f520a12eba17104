//! A device's phase: one word that the transport (the guest's cores) and the engine both change by compare-exchange.
//! `phase_model.rs` lets loom try every interleaving.

use super::atomics::{AtomicU32, Ordering};

/// A device's phase; see [`shared`](crate::shared).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// The engine has nothing to do with the device.
    Idle = 0,
    /// The driver has set DRIVER_OK. The engine has not seen it yet.
    Activating = 1,
    /// The engine serves the device.
    Running = 2,
    /// The driver has requested a reset. The engine may still hold its buffers.
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

/// The phase word. A core that reads a phase sees everything that was written before the change to that phase.
pub struct PhaseWord(pub(super) AtomicU32);

impl PhaseWord {
    /// The phase now.
    #[inline]
    pub fn get(&self) -> Phase {
        Phase::from_bits(self.0.load(Ordering::Acquire))
    }

    /// Sets the phase. Call it only while nobody else can change it.
    pub fn set(&self, phase: Phase) {
        self.0.store(phase as u32, Ordering::Release);
    }

    /// Changes the phase `from` to `to`. Returns false if the other side has changed it before.
    pub fn step(&self, from: Phase, to: Phase) -> bool {
        self.0.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Requests a reset, for the transport. Returns the phase before:
    /// - `Activating`, `Running`: the phase is now `Resetting`.
    /// - `Idle`: no engine is needed.
    /// - `Resetting`: a reset was requested before.
    pub fn request_reset(&self) -> Phase {
        // The engine may step from Activating to Running meanwhile. Only the transport makes other steps.
        loop {
            let now = self.get();
            if matches!(now, Phase::Idle | Phase::Resetting) || self.step(now, Phase::Resetting) {
                return now;
            }
        }
    }
}
