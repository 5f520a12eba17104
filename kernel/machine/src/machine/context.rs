//! The state of one vCPU that only its core uses.

use super::shadowing::Shadowing;
use crate::{
    lapic::LocalApic,
    msr,
    reason::{Histogram, Reason},
};

/// Most retries of an instruction that cannot be decoded after an exit. Another vCPU may be rewriting it. After that it
/// is
/// #UD.
const RETRIES: u32 = 1000;

/// Activity state (SDM vol. 3C 25.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    Running,
    /// After HLT. It ends at an NMI, or at an interrupt that the guest can take.
    Halted,
    /// After INIT. It ends at a start-up IPI.
    WaitForStartup,
}

/// An exit that is being handled.
pub(super) struct Handling {
    pub(super) reason: Reason,
    /// When it began, on the host's TSC.
    pub(super) begin: u64,
    /// Instruction pointer and qualification, if the exit is watched.
    pub(super) watched: Option<(u64, u64)>,
}

/// One vCPU's part of the machine.
pub struct Context {
    pub(super) index: usize,
    pub(super) apic: LocalApic,
    pub(super) activity: Activity,
    /// Another core watches its timer now.
    pub(super) alarm: bool,
    /// The vector whose EOI exits for the trace, or 0.
    pub(super) watched_eoi: u8,
    /// An NMI waits for injection.
    pub(super) nmi: bool,
    pub(super) xcr0: u64,
    pub(super) mtrr_default_type: u64,
    pub(super) misc_enable: u64,
    /// The guest's TSC minus the host's, modulo 2^64. It is IA32_TSC_ADJUST too. INIT does not change it.
    pub(super) tsc_offset: u64,
    pub(super) shadowing: Shadowing,
    exits: &'static Histogram,
    /// The exit being handled.
    pub(super) handling: Option<Handling>,
    /// An instruction pointer, and how many exits there could not be decoded.
    pub(super) retries: (u64, u32),
}

impl Context {
    pub(super) fn new(
        index: usize,
        apic: LocalApic,
        activity: Activity,
        exits: &'static Histogram,
        tsc_khz: u64,
    ) -> Self {
        let mut this = Self {
            index,
            apic,
            activity,
            alarm: false,
            watched_eoi: 0,
            nmi: false,
            xcr0: 1,
            mtrr_default_type: 0,
            misc_enable: 0,
            tsc_offset: 0,
            shadowing: Shadowing::new(tsc_khz),
            exits,
            handling: None,
            retries: (0, 0),
        };
        this.reset();
        this
    }

    /// Sets the registers kept here to their state after INIT.
    pub(super) fn reset(&mut self) {
        self.nmi = false;
        self.xcr0 = 1;
        self.mtrr_default_type = msr::MTRR_DEFAULT_TYPE_RESET;
        self.misc_enable = msr::MISC_ENABLE_RESET;
        self.retries = (0, 0);
    }

    /// Index of the vCPU, which is its APIC ID too.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its exits so far.
    #[must_use]
    pub fn exits(&self) -> &'static Histogram {
        self.exits
    }

    /// Counts an exit at `rip` that could not be decoded. Returns true if there have been too many.
    pub(super) fn give_up_at(&mut self, rip: u64) -> bool {
        let (at, count) = self.retries;
        self.retries = (rip, if at == rip { count.saturating_add(1) } else { 1 });
        self.retries.1 > RETRIES
    }
}
