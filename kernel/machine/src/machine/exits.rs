//! Handles an exit.
//!
//! Follows SDM vol. 3C ch. 26 (instructions that exit) and vol. 4 (MSRs), APM vol. 2 ch. 15. What a guest may not do is
//! refused as hardware would refuse it, and every refusal is counted.

use iced_x86::Mnemonic;

use super::{
    context::{Activity, Context},
    host::Host,
    outcome::Outcome,
    refusals::Refusal,
    state::Machine,
    stop::Stop,
};
use crate::{
    decode::{self, Undecodable},
    split_lock::Verdict,
    vcpu::{Event, Exit, Vcpu},
};

const INVALID_OPCODE: u8 = 6;

/// What the vCPU's core does after an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It calls [`Machine::before_entry`].
    Continue,
    /// It stops. The whole guest stops, and its other vCPUs have been asked to.
    Stop(Stop),
}

impl Machine {
    /// Handles an exit. Called between [`Mailbox::left_guest`](crate::mailbox::Mailbox::left_guest) and
    /// [`Machine::before_entry`].
    pub fn handle(&self, exit: Exit, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> Next {
        if exit == Exit::NotEntered {
            return Next::Continue;
        }
        if self.platform.quirks.after(&exit, vcpu, &self.memory) {
            log::debug!("guest {}: the emulator had left RIP behind; put right", self.name);
        }
        self.take_timer_back(context);
        self.begin_exit(&exit, vcpu, context, host);
        let outcome = match exit {
            Exit::ExternalInterrupt(_) | Exit::InterruptWindow => {
                self.interrupt_waits(context);
                Outcome::Done
            }
            Exit::Nmi | Exit::NotEntered | Exit::Deadline => Outcome::Done,
            Exit::EndOfInterrupt(vector) => self.interrupt_ended(vector, context, host),
            Exit::ApicWrite(number) => self.apic_written(number, context, host),
            Exit::Cpuid => self.cpuid_exit(vcpu, context),
            Exit::Halt => self.halt(vcpu, context),
            Exit::ReadMsr => self.read_msr(vcpu, context, host),
            Exit::WriteMsr => match self.program_deadline(vcpu, context, host) {
                true => Outcome::Done,
                false => self.write_msr(vcpu, context, host),
            },
            Exit::Port(access) => self.port(&access, vcpu, host),
            Exit::NestedFault { gpa, write, .. } if self.shadow_fault(gpa, write, context, host) => Outcome::Done,
            Exit::NestedFault { gpa, fetch, .. } => self.nested_fault(gpa, fetch, vcpu, host),
            Exit::DescriptorTable => self.descriptor_table(context, host),
            Exit::NotPresent { error, interrupted } => self.not_present(error, interrupted, context, host),
            Exit::Cr8 { write, register } => self.cr8(write, register, vcpu, context),
            Exit::ReadControlRegister { number, register } => self.read_control_register(number, register, vcpu),
            Exit::WriteControlRegister { number, register } => self.write_control_register(number, register, vcpu),
            // The host has looked in, which is all that was needed.
            Exit::InstructionTimeout { intact: true } => Outcome::Done,
            Exit::InstructionTimeout { intact: false } => {
                Outcome::Stop(Stop::failed("an instruction did not end, and its state is lost"))
            }
            Exit::Xsetbv => self.xsetbv(vcpu, context),
            Exit::CacheFlush => {
                // Memory is write-back, and only CPUs access it. So there is nothing to flush.
                let flush = |m| matches!(m, Mnemonic::Invd | Mnemonic::Wbinvd | Mnemonic::Wbnoinvd);
                self.step(vcpu, flush, |_| {})
            }
            Exit::Hypercall => self.hypercall(vcpu),
            Exit::Forbidden => self.forbidden(),
            Exit::SplitLock => self.split_lock(vcpu, host),
            Exit::Exception { vector: INVALID_OPCODE, .. } => self.invalid_opcode(vcpu),
            // The vCPU's core has handled it. If it was in this guest's memory, the guest has been told to stop.
            Exit::MACHINE_CHECK => Outcome::Done,
            Exit::Exception { vector, error } => Outcome::Raise(Event::Exception(vector, error)),
            Exit::TripleFault => Outcome::TripleFault(vcpu.waiting()),
            Exit::Unexpected { reason, detail } => Outcome::Stop(Stop::failed(format_args!(
                "unexpected exit {reason:#x} ({detail:#x}) at {:#x}",
                vcpu.rip()
            ))),
        };
        self.conclude(outcome, vcpu, context, host)
    }

    fn conclude(&self, outcome: Outcome, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> Next {
        let mut retry = false;
        let event = match outcome {
            Outcome::Done => None,
            Outcome::Raise(event) => Some(event),
            Outcome::Undecodable(Undecodable::Fault(fault)) => {
                vcpu.set_cr2(fault.address);
                Some(Event::page_fault(fault.error))
            }
            Outcome::Undecodable(Undecodable::Changed) if !context.give_up_at(vcpu.rip()) => {
                retry = true;
                None
            }
            Outcome::Undecodable(_) => {
                self.refusals.count(Refusal::Instruction);
                log::debug!("guest {}: #UD at {:#x}: no instruction known here", self.name, vcpu.rip());
                Some(Event::INVALID_OPCODE)
            }
            Outcome::TripleFault(what) => return self.stop(Stop::triple_fault(vcpu, what), context, host),
            Outcome::Stop(stop) => return self.stop(stop, context, host),
        };
        if !retry {
            context.retries = (0, 0);
        }
        match event {
            // A fault during the delivery of another event: the guest cannot go on.
            Some(_) if vcpu.event_waiting() => self.stop(Stop::triple_fault(vcpu, vcpu.waiting()), context, host),
            Some(event) => {
                vcpu.inject(event);
                host.injection(context.index, event);
                Next::Continue
            }
            None => Next::Continue,
        }
    }

    fn stop(&self, stop: Stop, context: &mut Context, host: &impl Host) -> Next {
        self.request_stop(stop.clone(), |s| host.signal(s));
        self.end_exit(context, host);
        Next::Stop(self.stopped().unwrap_or(stop))
    }

    /// Calls the function and then steps over the instruction.
    pub(super) fn step<V: Vcpu>(
        &self,
        vcpu: &mut V,
        expected: impl Fn(Mnemonic) -> bool,
        act: impl FnOnce(&mut V),
    ) -> Outcome {
        match decode::after(vcpu, &self.memory, expected) {
            Ok(next) => {
                act(vcpu);
                vcpu.skip_to(next);
                Outcome::Done
            }
            Err(e) => e.into(),
        }
    }

    /// Handles HLT. A debug trap after the HLT ends it at once (SDM vol. 2A "HLT"): then the vCPU does not halt.
    fn halt(&self, vcpu: &mut impl Vcpu, context: &mut Context) -> Outcome {
        let outcome = self.step(vcpu, |m| m == Mnemonic::Hlt, |_| {});
        if matches!(outcome, Outcome::Done) && !vcpu.trap_waits() {
            context.activity = Activity::Halted;
        }
        outcome
    }

    fn split_lock(&self, vcpu: &mut impl Vcpu, host: &impl Host) -> Outcome {
        match self.split_locks.verdict(host.tsc(), self.platform.tsc_khz) {
            Verdict::Free { until } => {
                vcpu.free_split_locks(until);
                Outcome::Done
            }
            Verdict::End => Outcome::Stop(Stop::failed(format_args!(
                "a split or bus lock at {:#x} (split_lock = \"kill\")",
                vcpu.rip()
            ))),
        }
    }

    fn forbidden(&self) -> Outcome {
        self.refusals.count(Refusal::Instruction);
        Outcome::Raise(Event::INVALID_OPCODE)
    }
}
