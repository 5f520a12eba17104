//! What is different where the CPU virtualizes the guest's local APIC ([`crate::posted`]).
//!
//! Follows SDM vol. 3C ch. 30. TPR, EOI and self IPI never get here; the ICR, the LVTs, the timer and the rest of what a
//! guest writes does, as with an APIC in software.

use super::{
    Host, Machine, Signal,
    context::{Activity, Context},
    exits::{Outcome, failed, now},
};
use crate::{
    alarm::Alarm,
    decode,
    lapic::{Delivery, Destination, Message, msr},
    mailbox::Mailbox,
    posted::{Addresses, ApicPage, Wake},
    vcpu::{Interrupts, Vcpu},
};

/// The part of a millisecond after which a vCPU's core looks after a timer that the watching core should have seen to. A guest
/// that has been interrupted programs its timer again long before.
const SLACK: u64 = 2;
/// How long a sender waits for a guest on Bochs to take what was posted before, in turns of a loop: longer than Linux
/// keeps interrupts off, short against a time slice.
const PATIENCE: u32 = 20_000;

impl Machine {
    /// The virtual-APIC page of a vCPU; None where the CPU does not virtualize.
    #[must_use]
    pub fn virtual_apic(&self, vcpu: usize) -> Option<&ApicPage> {
        self.pages.get(vcpu)
    }

    /// What the back-end of such a vCPU has to know. The machine must outlive its use.
    #[must_use]
    pub fn virtual_apic_addresses(&self, vcpu: usize) -> Option<Addresses> {
        let (mailbox, page) = (self.mailbox(vcpu)?, self.virtual_apic(vcpu)?);
        Some(Addresses {
            descriptor: core::ptr::from_ref(mailbox.descriptor()).expose_provenance(),
            page: core::ptr::from_ref(page).expose_provenance(),
        })
    }

    /// Whether the host has to take a pending notification before each entry ([`Quirks::posting`]).
    ///
    /// [`Quirks::posting`]: crate::quirk::Quirks::posting
    #[must_use]
    pub fn takes_late_notifications(&self) -> bool {
        self.interrupts == Interrupts::Virtualized && self.platform.quirks.posting
    }

    /// Puts what is beneath a local APIC into its state after INIT.
    pub(super) fn reset_apic(&self, context: &mut Context, host: &impl Host) {
        if self.interrupts == Interrupts::Owned {
            host.reset_apic();
        }
        if let Some(page) = self.virtual_apic(context.index) {
            page.reset();
            context.apic.show(page);
        }
    }

    /// An edge-triggered interrupt to each vCPU that the message names. A level-triggered one takes the way through the
    /// mailbox, because its vector has to be in the EOI-exit bitmap first, which is the vCPU's core's to write.
    pub(super) fn post_virtual(&self, message: Message, vector: u8, mut signal: impl FnMut(Signal)) -> bool {
        let mut any = false;
        for id in message.targets(self.vcpus() as u32) {
            let index = id as usize;
            if let (Some(mailbox), Some(page)) = (self.mailbox(index), self.virtual_apic(index)) {
                any = true;
                match self.wake(mailbox.post_virtual(vector), mailbox, page) {
                    Wake::Nobody => {}
                    Wake::Notify => signal(Signal::Notify(index)),
                    Wake::Kick => signal(Signal::Kick(index)),
                }
            }
        }
        any
    }

    /// On Bochs a notification, as any physical interrupt, makes it deliver a virtual interrupt that waits for the guest's
    /// IF; an NMI does not. And one that finds PIR empty requests vector 0xff, which Linux does not end, so that nothing
    /// below its priority is ever delivered again. So a sender waits until nothing waits in VIRR, and then tells the guest
    /// only if what it posted is still there.
    ///
    /// (A guest that interrupts itself, or leaves and comes back, in the few instructions between the look and the
    /// notification is not protected; no other way is left.)
    fn wake(&self, wake: Wake, mailbox: &Mailbox, page: &ApicPage) -> Wake {
        if wake != Wake::Notify || !self.takes_late_notifications() {
            return wake;
        }
        for _ in 0..PATIENCE {
            let requesting = page.is_requesting();
            if !mailbox.descriptor().outstanding() {
                return Wake::Nobody; // its core has looked meanwhile
            }
            if !requesting {
                return Wake::Notify;
            }
            core::hint::spin_loop();
        }
        mailbox.ask_to_look();
        Wake::Kick
    }

    /// After an exit by NMI: whether the vCPU's core was told for nothing, because what was posted waits for no exit. A guest
    /// that runs is notified, so it was told when its HLT had exited, and has woken by itself since.
    pub(super) fn is_late_wake(&self, context: &Context) -> bool {
        self.interrupts == Interrupts::Virtualized && self.mailbox(context.index).is_some_and(|m| !m.has_mail())
    }

    /// Whether [`Machine::ring`] has anything to look at.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        !self.alarms.is_empty()
    }

    /// Posts the interrupts of timers that are due. By the core that watches them, all the time; `signal` as for
    /// [`Machine::deliver`].
    pub fn ring(&self, now: u64, mut signal: impl FnMut(Signal)) {
        for (index, alarm) in self.alarms.iter().enumerate() {
            if let Some(vector) = alarm.ring(now) {
                let delivery = Delivery::Fixed { vector, level: false };
                self.post_virtual(
                    Message { destination: Destination::Physical(index as u32), delivery },
                    vector,
                    &mut signal,
                );
            }
        }
    }

    /// Before an entry: the timer is the watching core's, if there is one and the timer ends with an interrupt that can be
    /// posted. Gives the time at which to look after it nevertheless: that core may be busy for long. None: the timer
    /// stays here.
    pub(super) fn hand_timer_over(&self, context: &mut Context) -> Option<u64> {
        let alarm = self.alarms.get(context.index)?;
        let (deadline, vector) = context.apic.postable_timer()?;
        alarm.set(deadline, vector);
        context.alarm = true;
        Some(deadline.saturating_add(self.platform.tsc_khz / SLACK))
    }

    /// The timer is this core's again, before anything looks at it.
    pub(super) fn take_timer_back(&self, context: &mut Context) {
        let handed_over = core::mem::take(&mut context.alarm);
        if handed_over && !self.alarms.get(context.index).is_some_and(Alarm::take_back) {
            context.apic.timer_has_rung();
        }
    }

    /// The guest ended a level-triggered interrupt.
    pub(super) fn level_ended(&self, vector: u8, host: &impl Host) -> Outcome {
        self.devices.lock().end_of_interrupt(vector, |message| {
            self.send(message, |s| host.signal(s));
        });
        Outcome::Done
    }

    /// A write that the CPU leaves to us after the fact (30.4.3.2): of those that pass, a self IPI with an illegal vector.
    pub(super) fn apic_written(&self, number: u32, context: &mut Context, host: &impl Host) -> Outcome {
        match self.virtual_apic(context.index) {
            Some(page) if number == msr::SELF_IPI => {
                self.write_apic(number, page.register(number).into(), context, host);
                Outcome::Done
            }
            _ => Outcome::Stop(failed("an APIC-write exit of a register whose writes do not pass")),
        }
    }

    /// The short way for the one exit that a timer costs: no lists, no decoding. False: it is not that write.
    pub(super) fn program_deadline(&self, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> bool {
        let gprs = vcpu.gprs();
        if self.interrupts != Interrupts::Virtualized || gprs.rcx as u32 != msr::TSC_DEADLINE {
            return false;
        }
        let value = gprs.edx_eax();
        let Some(length) = vcpu.instruction_length() else { return false };
        if context.apic.write(msr::TSC_DEADLINE, value, now(host)).is_err() {
            return false;
        }
        vcpu.skip_to(decode::next_rip(vcpu, length));
        true
    }
}

/// Before an entry: what has arrived goes into the page, and the CPU delivers it when the guest can take it.
pub(super) fn hand_over(page: &ApicPage, vcpu: &mut impl Vcpu, context: &mut Context) {
    if let Some(change) = context.apic.hand_over(page) {
        vcpu.handed_over(&change);
    }
    if context.activity == Activity::Halted && page.deliverable().is_some() && vcpu.interruptible() {
        context.activity = Activity::Running;
    }
}
