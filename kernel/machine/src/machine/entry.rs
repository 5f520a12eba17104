//! Prepares an entry into the guest: empties the mailbox, checks the timer, and injects the most urgent event.
//!
//! Follows SDM vol. 3A 6.9 (priority among events), 11.8 (APIC) and vol. 3C 26.6 (event injection), APM vol. 2 15.20.

use super::{
    context::{Activity, Context},
    host::{Host, now},
    shadowing::Claimed,
    state::Machine,
    stop::Stop,
};
use crate::vcpu::{Event, StartState, Vcpu};

/// What to do with a vCPU now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Enter the guest. Leave it when the host's TSC reaches `deadline`.
    Run {
        /// When the guest's timer is due.
        deadline: Option<u64>,
    },
    /// The vCPU is halted or waits for its start. Sleep until a kick, or until the host's TSC reaches `deadline`.
    Wait {
        /// When the guest's timer is due.
        deadline: Option<u64>,
    },
    /// The whole guest has stopped, for this reason.
    Stop(Stop),
}

impl Machine {
    /// Prepares an entry. Call it again whenever the mailbox refuses the entry or the wait.
    pub fn before_entry(&self, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> Entry {
        let entry = self.prepare(vcpu, context, host);
        self.end_exit(context, host);
        entry
    }

    fn prepare(&self, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> Entry {
        self.take_timer_back(context);
        if let Some(mailbox) = self.mailbox(context.index) {
            let mut claimed = Claimed::default();
            let requests = match self.eli {
                Some(_) => mailbox.drain(&mut claimed),
                None => mailbox.drain(&mut context.apic),
            };
            if requests.stop.is_some() {
                // The mailbox says that the guest stops. The machine has the reason.
                return Entry::Stop(self.stopped().unwrap_or(Stop::Killed));
            }
            if requests.init {
                context.apic.init();
                self.reset_apic(context, host);
                context.reset();
                self.clock.forget(context.index);
                context.activity = Activity::WaitForStartup;
                self.reset_shadowing(context);
            } else {
                self.send_claimed(&claimed, context, host);
            }
            if let Some(vector) = requests.startup
                && context.activity == Activity::WaitForStartup
            {
                vcpu.reset(&StartState::startup_ipi(vector, self.cpuid.signature()));
                vcpu.set_xcr0(context.xcr0);
                vcpu.set_tsc_offset(context.tsc_offset);
                context.activity = Activity::Running;
            }
            context.nmi |= requests.nmi;
        }
        if context.activity == Activity::WaitForStartup {
            return Entry::Wait { deadline: None };
        }
        context.apic.expire(now(host, context));
        if let Some(eli) = &self.eli {
            self.prepare_shadow(eli, vcpu, context, host);
        }
        inject_nmi(vcpu, context, host);
        match self.virtual_apic(context.index) {
            Some(page) => self.hand_over(page, vcpu, context),
            None => inject(vcpu, context, host),
        }
        if self.eli.is_some() {
            let waits = self.take_interrupts(vcpu, context, host);
            vcpu.want_interrupt_window(waits);
            vcpu.intercept(Self::intercepts(context));
        }
        let deadline = self.hand_timer_over(context).or(context.apic.deadline());
        match context.activity {
            Activity::Running => Entry::Run { deadline },
            _ => Entry::Wait { deadline },
        }
    }
}

fn inject_nmi(vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) {
    if context.nmi && vcpu.nmi_possible() {
        context.nmi = false;
        vcpu.inject(Event::Nmi);
        host.injection(context.index, Event::Nmi);
        context.activity = Activity::Running;
    }
}

/// Injects one event. If another one waits, asks for an interrupt window.
fn inject(vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) {
    if let Some(vector) = context.apic.next_interrupt()
        && vcpu.interruptible()
    {
        vcpu.inject(Event::Interrupt(vector));
        host.injection(context.index, Event::Interrupt(vector));
        context.apic.acknowledge(vector);
        context.activity = Activity::Running;
    }
    vcpu.want_interrupt_window(context.apic.next_interrupt().is_some());
    vcpu.set_cr8(context.apic.cr8());
}
