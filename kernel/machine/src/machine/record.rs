//! Counts each exit once, after it was handled, and shows it to the observer.

use super::{
    context::{Context, Handling},
    host::Host,
    state::Machine,
};
use crate::{
    observe,
    vcpu::{Exit, Vcpu},
};

impl Machine {
    /// Notes that the handling of an exit begins.
    pub(super) fn begin_exit(&self, exit: &Exit, vcpu: &impl Vcpu, context: &mut Context, host: &impl Host) {
        let reason = self.reason(exit, vcpu, context);
        let watched = host.watches_exits().then(|| (vcpu.rip(), qualification(exit, vcpu)));
        context.handling = Some(Handling { reason, begin: host.tsc(), watched });
    }

    /// Counts the exit that was handled, and shows it to the observer. Does nothing if no exit
    /// is being handled.
    pub(super) fn end_exit(&self, context: &mut Context, host: &impl Host) {
        let Some(Handling { reason, begin, watched }) = context.handling.take() else { return };
        let end = host.tsc();
        context.exits().record(reason, end.wrapping_sub(begin));
        if let Some((rip, qualification)) = watched {
            host.exit(&observe::Exit { vcpu: context.index, reason, rip, qualification, begin, end });
        }
    }
}

/// See [`observe::Exit::qualification`].
fn qualification(exit: &Exit, vcpu: &impl Vcpu) -> u64 {
    match *exit {
        Exit::Port(access) => access.port.into(),
        Exit::ReadMsr | Exit::WriteMsr => vcpu.gprs().rcx & 0xffff_ffff,
        Exit::ApicWrite(number) => number.into(),
        Exit::NestedFault { gpa, .. } => gpa,
        Exit::ExternalInterrupt(Some(vector)) | Exit::EndOfInterrupt(vector) | Exit::Exception { vector, .. } => {
            vector.into()
        }
        Exit::Cpuid => vcpu.gprs().rax & 0xffff_ffff,
        Exit::NotPresent { error, .. } => error.into(),
        Exit::Unexpected { reason, .. } => reason,
        _ => 0,
    }
}
