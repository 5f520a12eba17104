//! Guests whose local APIC the CPU virtualizes ([`crate::posted`]): posting, waking, timers, exits.
//!
//! Follows SDM vol. 3C ch. 30. The CPU carries out writes of TPR, EOI and self IPI without an exit. Writes of the ICR,
//! the LVTs, the timer and the other registers exit, as with an APIC in software.

use core::sync::atomic::Ordering::Relaxed;

use super::{
    context::{Activity, Context},
    host::{Host, Signal, now},
    outcome::Outcome,
    state::Machine,
    stop::Stop,
};
use crate::{
    alarm::Alarm,
    bitmap, decode,
    lapic::{Delivery, Destination, Message, msr},
    mailbox::Mailbox,
    posted::{Addresses, ApicPage, HandOver, OnPage, Wake},
    vcpu::{Interrupts, Vcpu},
};

/// A millisecond divided by this is the grace of a timer after its deadline: 1/2 ms. If the watching core has not fired
/// the timer by then, it may be busy, and the vCPU's core handles the timer itself. A guest that was interrupted in
/// time has programmed its timer again long before that.
const GRACE_DIVISOR: u64 = 2;

impl Machine {
    /// Returns the virtual-APIC page of a vCPU, or `None` if the CPU does not virtualize its APIC.
    #[must_use]
    pub fn virtual_apic(&self, vcpu: usize) -> Option<&ApicPage> {
        self.pages.get(vcpu)
    }

    /// Returns the addresses that the back-end of such a vCPU needs. The machine must outlive their use.
    #[must_use]
    pub fn virtual_apic_addresses(&self, vcpu: usize) -> Option<Addresses> {
        let (mailbox, page) = (self.mailbox(vcpu)?, self.virtual_apic(vcpu)?);
        Some(Addresses {
            descriptor: core::ptr::from_ref(mailbox.descriptor()).expose_provenance(),
            page: core::ptr::from_ref(page).expose_provenance(),
        })
    }

    /// Whether the host must take a pending notification before each entry ([`Quirks::pir`]).
    ///
    /// [`Quirks::pir`]: crate::quirk::Quirks::pir
    #[must_use]
    pub fn takes_late_notifications(&self) -> bool {
        self.interrupts == Interrupts::Virtualized && self.platform.quirks.pir
    }

    /// Puts the hardware behind a local APIC, or its virtual-APIC page, into its state after INIT.
    pub(super) fn reset_apic(&self, context: &mut Context, host: &impl Host) {
        if self.interrupts == Interrupts::Owned {
            host.reset_apic();
        }
        if let Some(page) = self.virtual_apic(context.index) {
            page.reset();
            context.apic.show(page);
            // The back-end's bitmap is empty after INIT.
            context.watched_eoi = 0;
        }
    }

    /// Posts an edge-triggered interrupt to each vCPU that the message names. Returns false if it names none. A
    /// level-triggered interrupt goes through the mailbox instead, because the vCPU's core must first put its vector
    /// into the EOI-exit bitmap.
    pub(super) fn post_virtual(&self, message: Message, vector: u8, mut signal: impl FnMut(Signal)) -> bool {
        let mut any = false;
        for id in message.targets(self.vcpus() as u32) {
            let index = id as usize;
            if let (Some(mailbox), Some(page)) = (self.mailbox(index), self.virtual_apic(index)) {
                any = true;
                match self.post_to(mailbox, page, vector) {
                    Wake::Nobody => {}
                    Wake::Notify => signal(Signal::Notify(index)),
                    Wake::Kick => signal(Signal::Kick(index)),
                }
            }
        }
        any
    }

    /// Posts a vector to one vCPU. Returns what the sender must do.
    fn post_to(&self, mailbox: &Mailbox, page: &ApicPage, vector: u8) -> Wake {
        let wake = mailbox.post_virtual(vector);
        if wake != Wake::Notify {
            return wake;
        }
        let wake =
            self.platform.quirks.before_notification(|| mailbox.descriptor().outstanding(), || page.is_requesting());
        if wake == Wake::Kick {
            mailbox.ask_to_look();
        }
        wake
    }

    /// Whether the kick behind an exit by NMI was needless. A sender kicks a vCPU whose HLT has exited. That vCPU may
    /// have woken and entered before the NMI arrives. Then the posted interrupt needs no exit.
    pub(super) fn is_late_wake(&self, context: &Context) -> bool {
        self.interrupts == Interrupts::Virtualized && self.mailbox(context.index).is_some_and(|m| !m.has_mail())
    }

    /// Has each vCPU exit when its guest ends an interrupt of this vector, for the trace. The EOI has its effect all the same.
    /// `None`: no more. It lasts for the life of the guest. Any core may call it. `signal` is as for [`Machine::deliver`].
    /// Returns false if the CPU does not virtualize the guest's APICs.
    #[must_use]
    pub fn watch_eoi(&self, vector: Option<u8>, mut signal: impl FnMut(Signal)) -> bool {
        if self.interrupts != Interrupts::Virtualized {
            return false;
        }
        self.watched_eoi.store(vector.unwrap_or(0), Relaxed);
        for (index, OnPage(mailbox)) in self.mailboxes.iter().enumerate() {
            mailbox.ask_to_look();
            signal(Signal::Kick(index));
        }
        true
    }

    /// Moves the interrupts that have arrived into the page, before an entry. The CPU delivers each when the guest can take it.
    /// Updates which EOIs exit.
    pub(super) fn hand_over(&self, page: &ApicPage, vcpu: &mut impl Vcpu, context: &mut Context) {
        let mut change = context.apic.hand_over(page);
        let watched = self.watched_eoi.load(Relaxed);
        if watched != context.watched_eoi {
            context.watched_eoi = watched;
            let HandOver { rvi, .. } = change.unwrap_or_else(|| page.request(&[0; 4], &[0; 4]));
            change = Some(HandOver { rvi, eoi_exits: Some(page.level_triggered()) });
        }
        if let Some(mut change) = change {
            if let (Some(bits), 1..) = (&mut change.eoi_exits, watched) {
                bitmap::insert(bits, watched);
            }
            vcpu.handed_over(&change);
        }
        if context.activity == Activity::Halted && page.deliverable().is_some() && vcpu.interruptible() {
            context.activity = Activity::Running;
        }
    }

    /// Whether [`Machine::ring`] has timers to check.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        !self.alarms.is_empty()
    }

    /// Posts the interrupts of timers that are due. The core that watches the timers polls it. `signal` is as for
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

    /// Gives the timer to the watching core before an entry, if there is such a core and the timer's interrupt can be
    /// posted. Returns the time at which this core checks the timer itself, because the watching core may be busy.
    /// Returns `None` if the timer stays on this core.
    pub(super) fn hand_timer_over(&self, context: &mut Context) -> Option<u64> {
        let alarm = self.alarms.get(context.index)?;
        let (deadline, vector) = context.apic.postable_timer()?;
        alarm.set(deadline, vector);
        context.alarm = true;
        Some(deadline.saturating_add(self.platform.tsc_khz / GRACE_DIVISOR))
    }

    /// Takes the timer back from the watching core, before anything here uses it.
    pub(super) fn take_timer_back(&self, context: &mut Context) {
        let handed_over = core::mem::take(&mut context.alarm);
        if handed_over && !self.alarms.get(context.index).is_some_and(Alarm::take_back) {
            context.apic.timer_has_rung();
        }
    }

    /// Handles an exit by the guest's end of an interrupt: of a level-triggered one, or of one that is watched
    /// ([`Machine::watch_eoi`]).
    pub(super) fn interrupt_ended(&self, vector: u8, context: &Context, host: &impl Host) -> Outcome {
        let level = self.virtual_apic(context.index).is_some_and(|page| page.is_level_triggered(vector));
        if context.watched_eoi == vector && !level { Outcome::Done } else { self.level_ended(vector, host) }
    }

    /// Handles the guest's end of a level-triggered interrupt.
    pub(super) fn level_ended(&self, vector: u8, host: &impl Host) -> Outcome {
        self.devices.lock().end_of_interrupt(vector, |message| {
            self.send(message, |s| host.signal(s));
        });
        Outcome::Done
    }

    /// Handles a write that the CPU has put into the page, and whose effect it leaves to the host (30.4.3.2). The only
    /// such write is a self IPI with an illegal vector.
    pub(super) fn apic_written(&self, number: u32, context: &mut Context, host: &impl Host) -> Outcome {
        match self.virtual_apic(context.index) {
            Some(page) if number == msr::SELF_IPI => {
                self.write_apic(number, page.register(number).into(), context, host);
                Outcome::Done
            }
            _ => Outcome::Stop(Stop::failed("an APIC-write exit of a register whose writes do not pass")),
        }
    }

    /// Fast path for the only exit that a timer costs: a write of IA32_TSC_DEADLINE. It uses neither the MSR lists nor
    /// the decoder. Returns false if this is another write, or if the hardware does not give the instruction's length.
    pub(super) fn program_deadline(&self, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> bool {
        let gprs = vcpu.gprs();
        if self.interrupts != Interrupts::Virtualized || gprs.rcx as u32 != msr::TSC_DEADLINE {
            return false;
        }
        let value = gprs.edx_eax();
        let Some(length) = vcpu.instruction_length() else { return false };
        if context.apic.write(msr::TSC_DEADLINE, value, now(host, context)).is_err() {
            return false;
        }
        vcpu.skip_to(decode::next_rip(vcpu, length));
        true
    }
}
