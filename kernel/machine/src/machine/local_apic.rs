//! Handles writes to the local APIC that exit.
//!
//! Follows SDM vol. 3A ch. 11.

use super::{
    context::Context,
    deliver::FIRST_INTERRUPT,
    host::{Host, now},
    refusals::Refusal,
    state::Machine,
};
use crate::{
    lapic::{self, Command, Delivery, Destination, Effect, Icr, Message},
    vcpu::Interrupts,
};

const SVR_ENABLED: u64 = 1 << 8;
const LVT_MASKED: u64 = 1 << 16;
/// The writable bits of the LVT timer entry: vector, mask and mode.
const LVT_TIMER_BITS: u64 = 0xff | LVT_MASKED | 3 << 17;

impl Machine {
    /// Handles a write to the local APIC that exits. Returns false if the guest gets #GP.
    ///
    /// If the guest owns its local APIC, only the registers exit through which it could affect something outside the
    /// guest. The emulation checks and keeps the value. An accepted value goes to the hardware.
    pub(super) fn write_apic(&self, number: u32, value: u64, context: &mut Context, host: &impl Host) -> bool {
        let owned = self.interrupts == Interrupts::Owned;
        if owned && number == lapic::msr::SELF_IPI {
            return self.send_to_self(value, context, host);
        }
        // This is a self IPI by the ICR. It must not enter the emulated IRR, because no EOI would ever reach the
        // emulation.
        let icr = Icr::from_bits(value);
        if owned
            && number == lapic::msr::ICR
            && !icr.has_reserved_bits()
            && let Command::SelfInterrupt(vector) = icr.command(context.apic.id())
        {
            context.apic.remember(icr);
            return self.send_to_self(vector.into(), context, host);
        }
        let written = context.apic.write(number, value, now(host, context));
        if owned && written.is_ok() && matches!(number, lapic::msr::SVR | lapic::msr::LVT_TIMER) {
            self.write_owned_apic(context, host);
        }
        match written {
            Ok(Effect::None) => {}
            Ok(Effect::Ipi(message)) => {
                let reached = self.send(message, |s| host.signal(s));
                // On a guest with one vCPU, "all but self" names nobody. That is no refusal.
                if !reached && !matches!(message.destination, Destination::AllBut(_)) {
                    self.refusals.count(Refusal::Icr);
                }
            }
            Ok(Effect::EndOfInterrupt(vector)) => {
                self.level_ended(vector, host);
            }
            Err(lapic::GeneralProtection) => return false,
        }
        if let Some(page) = self.virtual_apic(context.index) {
            context.apic.show(page);
        }
        true
    }

    /// Writes the spurious vector and the timer's entry to the hardware. The other entries (LINT0, LINT1, thermal,
    /// performance, error) stay masked there. The emulation keeps what the guest wrote.
    fn write_owned_apic(&self, context: &Context, host: &impl Host) {
        let read = |number| context.apic.read(number, now(host, context)).unwrap_or(0);
        let (svr, timer) = (read(lapic::msr::SVR), read(lapic::msr::LVT_TIMER));
        // The hardware's APIC stays enabled. If the guest has disabled its own, the emulation shows the timer masked,
        // and the hardware's timer is masked too. A timer with the vector of an exception is also masked.
        for vector in [svr as u8, timer as u8] {
            self.guest_uses(vector, context, host);
        }
        host.write_apic(lapic::msr::SVR, svr & 0xff | SVR_ENABLED);
        let refused = timer & 0xff < u64::from(FIRST_INTERRUPT);
        host.write_apic(lapic::msr::LVT_TIMER, timer & LVT_TIMER_BITS | if refused { LVT_MASKED } else { 0 });
    }

    fn send_to_self(&self, value: u64, context: &Context, host: &impl Host) -> bool {
        let Ok(vector) = u8::try_from(value) else { return false };
        let destination = Destination::Physical(context.index as u32);
        let delivery = Delivery::Fixed { vector, level: false };
        if !self.send(Message { destination, delivery }, |s| host.signal(s)) {
            self.refusals.count(Refusal::Icr);
        }
        true
    }
}
