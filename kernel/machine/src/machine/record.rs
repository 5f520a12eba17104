//! Counts each exit once, after it was handled, and shows it to the observer.

use super::{
    context::{Context, Handling, Watched},
    host::Host,
    state::Machine,
};
use crate::{
    observe,
    reason::Reason,
    vcpu::{Exit, Vcpu},
};

impl Machine {
    /// Notes that the handling of an exit begins.
    pub(super) fn begin_exit(&self, exit: &Exit, vcpu: &impl Vcpu, context: &mut Context, host: &impl Host) {
        let reason = self.reason(exit, vcpu, context);
        let watched = host.watches_exits().then(|| watched(exit, vcpu, host));
        context.handling = Some(Handling { reason, begin: host.tsc(), watched });
    }

    /// Counts the exit that was handled, and shows it to the observer. Does nothing if no exit
    /// is being handled.
    pub(super) fn end_exit(&self, context: &mut Context, host: &impl Host) {
        let Some(Handling { reason, begin, watched }) = context.handling.take() else { return };
        let end = host.tsc();
        context.exits().record(reason, end.wrapping_sub(begin));
        if let Some(watched) = watched {
            show(&watched, context.index, reason, [begin, end], host);
        }
    }
}

/// What is to be shown of an exit. Apart from the loop, as [`show`] is.
#[cold]
#[inline(never)]
fn watched(exit: &Exit, vcpu: &impl Vcpu, host: &impl Host) -> Watched {
    if host.watches_times_only() {
        Watched::Time
    } else {
        Watched::Whole { rip: vcpu.rip(), qualification: qualification(exit, vcpu) }
    }
}

/// Shows a watched exit. Apart from the loop, which would save registers for it at exits that nobody watches.
#[cold]
#[inline(never)]
fn show(watched: &Watched, vcpu: usize, reason: Reason, [begin, end]: [u64; 2], host: &impl Host) {
    match *watched {
        Watched::Time => host.exit_time(reason, end.wrapping_sub(begin)),
        Watched::Whole { rip, qualification } => {
            host.exit(&observe::Exit { vcpu, reason, rip, qualification, begin, end });
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
