//! IA32_TIME_STAMP_COUNTER and IA32_TSC_ADJUST (SDM vol. 3B 18.17.3).
//!
//! The guest's TSC is the host's plus an offset per vCPU, which hardware adds. It begins at 0, so it is also what
//! IA32_TSC_ADJUST holds. Whatever converts between the two counters follows a change: the timer's deadline and the
//! guest's clock page.
//!
//! A guest that owns its local APIC has the physical timer, whose deadline is in the host's counter. So its offset stays
//! 0: it has no IA32_TSC_ADJUST, and a write of its TSC is #GP.

use super::{
    context::Context,
    host::{Host, now},
    state::Machine,
};
use crate::vcpu::{Interrupts, Vcpu};

impl Machine {
    /// Reads IA32_TIME_STAMP_COUNTER.
    pub(super) fn tsc(context: &Context, host: &impl Host) -> u64 {
        host.tsc().wrapping_add(context.tsc_offset)
    }

    /// Reads IA32_TSC_ADJUST. Returns `None` if the guest does not have it.
    pub(super) fn tsc_adjust(&self, context: &Context) -> Option<u64> {
        self.tsc_follows().then_some(context.tsc_offset)
    }

    /// Sets the guest's TSC to `value` at this moment.
    pub(super) fn set_tsc(&self, value: u64, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> bool {
        self.set_tsc_offset(value.wrapping_sub(host.tsc()), vcpu, context, host)
    }

    /// Sets IA32_TSC_ADJUST. Returns false if the guest gets #GP.
    pub(super) fn set_tsc_offset(
        &self,
        offset: u64,
        vcpu: &mut impl Vcpu,
        context: &mut Context,
        host: &impl Host,
    ) -> bool {
        if !self.tsc_follows() {
            return false;
        }
        // What is due by the old counter comes, whatever the new one says.
        context.apic.expire(now(host, context));
        context.tsc_offset = offset;
        vcpu.set_tsc_offset(offset);
        self.clock.set_offset(&self.memory, context.index, offset);
        context.apic.tsc_moved(now(host, context));
        true
    }

    fn tsc_follows(&self) -> bool {
        self.interrupts != Interrupts::Owned
    }
}
