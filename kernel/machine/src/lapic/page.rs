//! A local APIC of which the CPU virtualizes a part: what goes from here to the virtual-APIC page ([`crate::posted`]).
//!
//! The page then has the truth about TPR, PPR, ISR and TMR; this APIC's own of these stay unused. Its IRR holds what has
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
