//! Moves state of a local APIC to the virtual-APIC page, if the CPU virtualizes the local APIC ([`crate::posted`]).
//!
//! The page then has TPR, PPR, ISR and TMR, and this APIC's own are unused. This APIC's IRR holds the interrupts that
//! have arrived since the last entry.

use super::{LocalApic, msr};
use crate::{
    lapic::Clock,
    posted::{ApicPage, HandOver},
};

/// Registers that the page shows with this APIC's values. They change only at a guest's write that exits.
const SHOWN: &[u32] = &[msr::ID, msr::VERSION, msr::LDR, msr::SVR, msr::ESR, msr::ICR, msr::INITIAL_COUNT, msr::DIVIDE];

impl LocalApic {
    /// Puts the interrupts that have arrived into the page. Returns `None` if there were none. Call it only while the
    /// guest does not run.
    pub fn hand_over(&mut self, page: &ApicPage) -> Option<HandOver> {
        self.irr.highest()?;
        let vectors = core::mem::take(&mut self.irr);
        Some(page.request(&vectors.bits(), &self.tmr.bits()))
    }

    /// Copies the registers that are kept here into the page, for the guest to read. Call it after each write of one of
    /// them.
    pub fn show(&self, page: &ApicPage) {
        for number in SHOWN.iter().copied().chain(msr::LVT_TIMER..=msr::LVT_ERROR) {
            // These registers do not depend on the time, and all can be read.
            if let Ok(value) = self.read(number, Clock::default()) {
                page.show(number, value);
            }
        }
    }
}
