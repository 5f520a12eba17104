//! Moves state of a local APIC to the virtual-APIC page, where the CPU virtualizes the local APIC ([`crate::posted`]).
//!
//! TPR, PPR, ISR and TMR are then those of the page, and this APIC's own are unused. Its IRR holds the interrupts that have
//! arrived since the last entry.

use super::{LocalApic, msr};
use crate::{
    lapic::Clock,
    posted::{ApicPage, HandOver},
};

/// Registers that are shown in the page as they are here. They change only when the guest writes one that exits.
const SHOWN: &[u32] = &[msr::ID, msr::VERSION, msr::LDR, msr::SVR, msr::ESR, msr::ICR, msr::INITIAL_COUNT, msr::DIVIDE];

impl LocalApic {
    /// Puts the interrupts that have arrived into the page. None: there were none. While the guest does not run.
    pub fn hand_over(&mut self, page: &ApicPage) -> Option<HandOver> {
        self.irr.highest()?;
        let vectors = core::mem::take(&mut self.irr);
        Some(page.request(&vectors.bits(), &self.tmr.bits()))
    }

    /// Shows the guest in the page the registers that are kept here. After each write of one of them.
    pub fn show(&self, page: &ApicPage) {
        for number in SHOWN.iter().copied().chain(msr::LVT_TIMER..=msr::LVT_ERROR) {
            // None of these depends on the time, or can't be read.
            if let Ok(value) = self.read(number, Clock::default()) {
                page.show(number, value);
            }
        }
    }
}
