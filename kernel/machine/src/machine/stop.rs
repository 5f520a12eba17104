//! Why a guest stops.

use core::fmt;
use core::fmt::Write as _;

use crate::mailbox::StopReason;
use crate::vcpu::{Interrupted, Vcpu};

/// A sentence about a stop. It needs no heap, because a guest can cause it. What is longer than 160 bytes is cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why(heapless::String<160>);

impl Why {
    /// Makes the sentence.
    #[must_use]
    pub fn new(text: impl fmt::Display) -> Self {
        let mut why = Self::default();
        // Writing to it does not fail.
        let _ = write!(why, "{text}");
        why
    }
}

impl fmt::Write for Why {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // What does not fit is dropped.
        let _ = text.chars().try_for_each(|character| self.0.push(character));
        Ok(())
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a whole guest has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It switched itself off.
    PowerOff,
    /// It asked for a reset.
    Reset,
    /// A triple fault. It resets a real machine. The text says where the vCPU was, and which event was being delivered.
    TripleFault(Why),
    /// The operator killed it, or it did not stop in time after the power button.
    Killed,
    /// Memory of it is damaged. The text says where.
    MemoryError(Why),
    /// It cannot go on. The text says why.
    Failed(Why),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerOff => f.write_str("power off"),
            Self::Reset => f.write_str("reset"),
            Self::TripleFault(place) => write!(f, "triple fault: {place}"),
            Self::Killed => f.write_str("killed"),
            Self::MemoryError(place) => write!(f, "memory error: {place}"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

impl Stop {
    /// Makes the stop for a guest with an uncorrected error in its memory, at this address of the machine's.
    #[must_use]
    pub fn memory_error(physical: u64) -> Self {
        Self::MemoryError(Why::new(format_args!("an uncorrected error at physical address {physical:#x}")))
    }

    /// Makes the stop for a triple fault of this vCPU. `what` is the event that could not be delivered, if it is known.
    #[must_use]
    pub fn triple_fault(vcpu: &impl Vcpu, what: Option<Interrupted>) -> Self {
        let mut place = Why::new(format_args!("at RIP {:#x}", vcpu.rip()));
        // Writing to it does not fail.
        let _ = match what {
            None => Ok(()),
            Some(Interrupted::External(vector)) => write!(place, " in the delivery of interrupt {vector:#x}"),
            Some(Interrupted::Nmi) => write!(place, " in the delivery of an NMI"),
            Some(Interrupted::Exception(vector)) => write!(place, " in the delivery of exception {vector}"),
            Some(Interrupted::Software(vector)) => write!(place, " in the delivery of INT {vector:#x}"),
        };
        let (cr2, cr3, (base, limit)) = (vcpu.cr2(), vcpu.cr3(), vcpu.idt());
        let _ = write!(place, ", CR2 {cr2:#x}, CR3 {cr3:#x}, IDT {base:#x} limit {limit:#x}");
        Self::TripleFault(place)
    }

    /// Makes the stop for a guest that cannot go on.
    pub fn failed(why: impl fmt::Display) -> Self {
        Self::Failed(Why::new(why))
    }

    /// Returns the reason that its vCPUs get in their mailboxes.
    pub(super) fn request(&self) -> StopReason {
        match self {
            Self::PowerOff => StopReason::PowerOff,
            Self::Reset => StopReason::Reset,
            Self::Killed | Self::MemoryError(_) => StopReason::Killed,
            Self::TripleFault(_) | Self::Failed(_) => StopReason::Failed,
        }
    }
}
