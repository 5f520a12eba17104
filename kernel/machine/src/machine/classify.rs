//! Finds the reason of an exit, as the histogram counts it.

use super::{context::Context, state::Machine};
use crate::{
    clock,
    eli::Verdict,
    lapic::{self, LocalApic},
    reason::Reason,
    vcpu::{Exit, Vcpu},
};

impl Machine {
    pub(super) fn reason(&self, exit: &Exit, vcpu: &impl Vcpu, context: &Context) -> Reason {
        match *exit {
            Exit::ExternalInterrupt(_) => Reason::ExternalInterrupt,
            Exit::Nmi if self.is_late_wake(context) => Reason::LateWake,
            Exit::Nmi | Exit::NotEntered => Reason::Nmi,
            Exit::InterruptWindow => Reason::InterruptWindow,
            Exit::Deadline => Reason::Deadline,
            Exit::EndOfInterrupt(_) => Reason::VirtualEoi,
            Exit::ApicWrite(_) => Reason::ApicWrite,
            Exit::Cpuid => Reason::Cpuid,
            Exit::Halt => Reason::Halt,
            Exit::ReadMsr | Exit::WriteMsr => msr_reason(vcpu.gprs().rcx as u32),
            Exit::Port(access) => self.devices.lock().port_reason(access.port),
            Exit::NestedFault { gpa, .. } if self.is_shadowed(gpa) => Reason::ShadowWrite,
            Exit::NestedFault { gpa, fetch: true, .. } if self.is_split(gpa) => Reason::PageSplit,
            Exit::NestedFault { gpa, .. } => self.devices.lock().memory_reason(gpa),
            Exit::Cr8 { .. } => Reason::Cr8,
            Exit::ReadControlRegister { .. } | Exit::WriteControlRegister { .. } => Reason::ControlRegister,
            Exit::Xsetbv => Reason::Xsetbv,
            Exit::InstructionTimeout { .. } => Reason::InstructionTimeout,
            Exit::Hypercall => Reason::Hypercall,
            Exit::CacheFlush => Reason::CacheFlush,
            Exit::Forbidden => Reason::Forbidden,
            Exit::DescriptorTable => Reason::DescriptorTable,
            Exit::NotPresent { error, interrupted } => match self.judge(error, interrupted, context) {
                Verdict::Host(_) => Reason::ShadowInterrupt,
                _ => Reason::Exception,
            },
            Exit::SplitLock => Reason::SplitLock,
            Exit::Exception { .. } => Reason::Exception,
            Exit::TripleFault => Reason::TripleFault,
            Exit::Unexpected { .. } => Reason::Unexpected,
        }
    }
}

fn msr_reason(number: u32) -> Reason {
    use lapic::msr::{CURRENT_COUNT, DIVIDE, EOI, ICR, INITIAL_COUNT, SELF_IPI, TSC_DEADLINE};
    match number {
        EOI => Reason::MsrApicEoi,
        ICR | SELF_IPI => Reason::MsrApicIcr,
        TSC_DEADLINE | INITIAL_COUNT | CURRENT_COUNT | DIVIDE => Reason::MsrApicTimer,
        clock::WALL_CLOCK_NEW | clock::SYSTEM_TIME_NEW => Reason::MsrOther,
        _ if LocalApic::owns(number) => Reason::MsrApicOther,
        _ => Reason::MsrOther,
    }
}
