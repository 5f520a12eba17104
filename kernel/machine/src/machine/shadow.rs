//! Handles the shadow IDT between an exit and the next entry, for a guest that owns its cores' local APICs. See
//! [`crate::eli`].

use super::{
    context::{Activity, Context},
    host::{Host, Signal},
    outcome::Outcome,
    shadowing::Claimed,
    state::Machine,
};
use crate::{
    eli::{self, Count, Eli, Mode, Unfit, Verdict},
    vcpu::{Event, Intercepts, Interrupted, Vcpu},
};

const NOT_PRESENT: u8 = 11;
const DOUBLE_FAULT: u8 = 8;
/// Failed tries in a row before the log says why. They take about a second. Every guest begins without an IDT, so the
/// first tries always fail.
const LOGGED_TRIES: u32 = 8;

impl Machine {
    /// Notes that the vCPU is about to enter. From now on other cores must make it exit to reach it. Returns false if
    /// something was posted meanwhile. Then the caller must call [`Machine::before_entry`] again.
    #[must_use = "false means that the vCPU must not enter"]
    pub fn entering_guest(&self, context: &Context) -> bool {
        let Some(mailbox) = self.mailbox(context.index) else { return false };
        if !mailbox.entering_guest() {
            return false;
        }
        let current = self.eli.as_ref().is_none_or(|e| e.quiesce.enter(context.index, context.shadowing.flushed));
        if !current {
            mailbox.left_guest();
        }
        current
    }

    /// Notes that the vCPU is back in the host, from the guest or from waiting.
    pub fn left_guest(&self, context: &Context) {
        if let Some(eli) = &self.eli {
            eli.quiesce.left(context.index);
        }
        if let Some(mailbox) = self.mailbox(context.index) {
            mailbox.left_guest();
        }
    }

    /// Does the regular work of the shadow IDT. A core that runs no guest calls it about once a millisecond. `now` is
    /// the TSC. `signal` is as for [`Machine::deliver`].
    pub fn tick(&self, now: u64, mut signal: impl FnMut(Signal)) {
        if let Some(eli) = &self.eli {
            eli.tick(now, |vcpu| signal(Signal::Kick(vcpu)));
        }
    }

    /// Counts a kick by a vector of the host's that was not answered in time. The caller has repeated it by NMI.
    pub fn count_late_kick(&self) {
        if let Some(eli) = &self.eli {
            eli.count(Count::LateKicks);
        }
    }

    /// Returns the counters of its shadow IDT, by name. Empty for a guest without one.
    pub fn shadow_report(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.eli.iter().flat_map(Eli::report)
    }

    /// Prepares an entry: flushes if the nested tables have changed, and tries to shadow the IDT if that is due.
    pub(super) fn prepare_shadow(&self, eli: &Eli, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) {
        loop {
            let tables = eli.quiesce.stable();
            if tables != context.shadowing.flushed {
                vcpu.flush_nested();
                let (in_place, due) = {
                    let state = eli.lock();
                    (state.page().is_some(), state.due())
                };
                let s = &mut context.shadowing;
                s.next_try = match s.mode {
                    _ if in_place => 0,
                    Mode::Shadowed => due,
                    Mode::Exiting => s.next_try,
                };
                (s.flushed, s.in_place, s.mode) = (tables, in_place, Mode::Exiting);
            }
            let s = &context.shadowing;
            if s.mode == Mode::Exiting && context.activity == Activity::Running && s.next_try <= host.tsc() {
                self.try_shadow(eli, vcpu, context, host);
            }
            if eli.quiesce.stable() == context.shadowing.flushed {
                break;
            }
        }
        let s = &context.shadowing;
        let by_itself = s.mode == Mode::Exiting && context.activity == Activity::Running;
        eli.set_next_try(context.index, if by_itself { s.next_try } else { u64::MAX });
    }

    /// Tries to shadow the page that IDTR names. There are three cases:
    ///
    /// - The page is shadowed already. This vCPU relies on the shadow from now on.
    /// - The page can be shadowed. This shadows it. The caller flushes and tries again.
    /// - The page cannot be shadowed. The log names the reason, and the vCPU tries again later.
    fn try_shadow(&self, eli: &Eli, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) {
        let me = context.index;
        let page = match eli::idt::page(vcpu, &self.memory) {
            Ok(page) => page,
            Err(unfit) => return self.not_shadowed(eli, unfit, context, host),
        };
        let mut state = eli.lock();
        if state.page() == Some(page) {
            if eli.quiesce.stable() != context.shadowing.flushed {
                return; // another vCPU has shadowed it: flush first
            }
            state.set_joined(me, true);
            let s = &mut context.shadowing;
            (s.mode, s.take, s.next_try, s.unfit) = (Mode::Shadowed, false, u64::MAX, 0);
            drop(state);
            eli.count(Count::Shadowed);
            if let Some(vectors) = eli.vectors() {
                host.signal(Signal::Interrupt(me, vectors.probe));
            }
            return;
        }
        let now = host.tsc();
        if state.in_use() {
            drop(state);
            return self.not_shadowed(eli, Unfit::Another, context, host);
        }
        if now < state.due() {
            context.shadowing.next_try = state.due();
            return;
        }
        let shadowed = eli.shadow(&mut state, me, page, &self.memory, |other| host.signal(Signal::Kick(other)));
        drop(state);
        match shadowed {
            // The tables have changed, so the caller flushes and tries again.
            Ok(()) => log::debug!("guest {}: vCPU {me}: its IDT at {page:#x} is shadowed", self.name),
            Err(unfit) => self.not_shadowed(eli, unfit, context, host),
        }
    }

    fn not_shadowed(&self, eli: &Eli, unfit: Unfit, context: &mut Context, host: &impl Host) {
        let s = &mut context.shadowing;
        s.unfit = s.unfit.saturating_add(1);
        if s.unfit >= LOGGED_TRIES && eli.is_first(unfit) {
            log::info!("guest {}: vCPU {}: {unfit}: its interrupts exit and are injected", self.name, context.index);
        }
        s.next_try = s.backoff.disturbed(host.tsc());
    }

    /// Returns what must exit.
    pub(super) fn intercepts(context: &Context) -> Intercepts {
        let s = &context.shadowing;
        Intercepts {
            // If an interrupt waits until the guest can take it, the interrupt window exits instead.
            interrupts: s.mode == Mode::Exiting && !s.take,
            idt: s.mode == Mode::Shadowed,
            not_present: s.in_place,
        }
    }

    /// Resets the shadowing state. The vCPU's registers and its core's APIC are in their state after INIT.
    pub(super) fn reset_shadowing(&self, context: &mut Context) {
        let Some(eli) = &self.eli else { return };
        eli.lock().set_joined(context.index, false);
        let s = &mut context.shadowing;
        (s.mode, s.take, s.next_try) = (Mode::Exiting, false, 0);
    }

    /// Handles an exit because a physical interrupt waits, or because the guest can take it now.
    pub(super) fn interrupt_waits(&self, context: &mut Context) {
        if self.eli.is_some() && context.shadowing.mode == Mode::Exiting {
            context.shadowing.take = true;
        }
    }

    /// Takes waiting interrupts from the local APIC, if the guest can take them. Returns true if one waits that the
    /// guest cannot take yet.
    pub(super) fn take_interrupts(&self, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> bool {
        let Some(eli) = self.eli.as_ref().filter(|_| context.shadowing.take) else { return false };
        if !vcpu.interruptible() {
            return true;
        }
        context.shadowing.take = false;
        while let Some(vector) = host.take_interrupt() {
            if eli.vectors().is_some_and(|v| v.contains(vector)) {
                host.end_of_interrupt();
                eli.count(Count::HostInterruptsByExit);
            } else {
                eli.count(Count::Injected);
                vcpu.inject(Event::Interrupt(vector));
                break;
            }
        }
        false
    }

    /// Notes that the guest uses a vector. If it is one of the host's, the host moves to other vectors.
    pub(super) fn guest_uses(&self, vector: u8, context: &Context, host: &impl Host) {
        if let Some(eli) = &self.eli
            && eli.uses(vector)
        {
            let mut state = eli.lock();
            // Another vCPU may have moved the vectors already.
            if eli.uses(vector) {
                eli.move_vectors(&mut state, context.index, |other| host.signal(Signal::Kick(other)));
            }
        }
    }

    /// Sends the interrupts that were posted because their vector was the host's. By now the host has moved away from
    /// it.
    pub(super) fn send_claimed(&self, claimed: &Claimed, context: &Context, host: &impl Host) {
        for vector in claimed.vectors() {
            self.guest_uses(vector, context, host);
            host.signal(Signal::Interrupt(context.index, vector));
        }
    }

    /// Returns whose #NP this is, for the histogram.
    pub(super) fn judge(&self, error: u32, interrupted: Option<Interrupted>, context: &Context) -> Verdict {
        let vectors = self.eli.as_ref().filter(|_| context.shadowing.in_place).and_then(Eli::vectors);
        eli::judge(error, interrupted, vectors)
    }

    pub(super) fn not_present(
        &self,
        error: u32,
        interrupted: Option<Interrupted>,
        context: &Context,
        host: &impl Host,
    ) -> Outcome {
        match self.judge(error, interrupted, context) {
            Verdict::Host(_) => {
                // The CPU has just taken this interrupt, so it is the most urgent one in service. The EOI ends it and
                // no other.
                host.end_of_interrupt();
                if let Some(eli) = &self.eli {
                    eli.count(Count::HostInterrupts);
                }
                Outcome::Done
            }
            Verdict::Claimed(vector) => {
                self.guest_uses(vector, context, host);
                Outcome::Done
            }
            Verdict::Guest => Outcome::Raise(Event::Exception(NOT_PRESENT, Some(error))),
            Verdict::DoubleFault => Outcome::Raise(Event::Exception(DOUBLE_FAULT, Some(0))),
            Verdict::TripleFault => Outcome::TripleFault(interrupted),
        }
    }

    /// Handles an exit of LIDT or a similar instruction. This vCPU no longer relies on the shadow, and runs the
    /// instruction again.
    pub(super) fn descriptor_table(&self, context: &mut Context, host: &impl Host) -> Outcome {
        let Some(eli) = &self.eli else { return Outcome::Done };
        eli.lock().set_joined(context.index, false);
        eli.count(Count::Moved);
        let s = &mut context.shadowing;
        s.mode = Mode::Exiting;
        s.next_try = s.backoff.disturbed(host.tsc());
        Outcome::Done
    }

    /// Handles an access to the guest's memory that the nested tables refused. Returns true if the shadow was the
    /// cause. Then the guest runs the instruction again.
    pub(super) fn shadow_fault(&self, gpa: u64, write: bool, context: &Context, host: &impl Host) -> bool {
        let Some(eli) = self.eli.as_ref().filter(|_| write) else { return false };
        let mut state = eli.lock();
        // If another vCPU was faster, the number of the tables has changed. Then this vCPU flushes before it tries
        // again.
        eli.hand_back(&mut state, context.index, gpa, host.tsc(), |other| host.signal(Signal::Kick(other)))
            || eli.quiesce.stable() != context.shadowing.flushed
    }

    /// Whether an access is to the shadowed page, for the histogram.
    pub(super) fn is_shadowed(&self, gpa: u64) -> bool {
        self.eli.is_some() && self.memory.translate(gpa, 1).is_ok()
    }
}
