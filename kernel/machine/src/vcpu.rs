//! The virtual CPU as everything above the back-ends sees it: registers, why it left guest mode, what it is given
//! on the way back. SVM and VT-x implement [`Vcpu`]; nothing above this trait names a VMCS or VMCB field.
//!
//! Follows SDM vol. 3C ch. 25 to 28 and APM vol. 2 ch. 15 in meaning, and neither in encoding.

use crate::posted::HandOver;

mod exit;
mod registers;

pub use exit::{Event, Exit, Intercepts, Interrupted, Interrupts, PortAccess};
pub use registers::{Gprs, Segment, SegmentAttributes, SegmentName, StartState};

/// A virtual CPU on one of the two back-ends. One belongs to one core and is used by that core alone.
pub trait Vcpu {
    /// Puts every register into the given state; nothing of the former life remains (pending events, FPU, debug
    /// registers, passed-through MSRs).
    fn reset(&mut self, state: &StartState);

    /// Enters the guest and comes back when something needs the host. An event that the exit interrupted is taken up
    /// again at the next entry by the back-end itself.
    fn run(&mut self) -> Exit;

    /// General-purpose registers.
    fn gprs(&self) -> &Gprs;
    /// General-purpose registers, to change them.
    fn gprs_mut(&mut self) -> &mut Gprs;
    /// Instruction pointer.
    fn rip(&self) -> u64;
    /// Sets the instruction pointer; for skipping an instruction use [`Vcpu::skip_to`].
    fn set_rip(&mut self, rip: u64);
    /// RFLAGS.
    fn rflags(&self) -> u64;
    /// Sets RFLAGS (string and flag-setting instructions that are emulated).
    fn set_rflags(&mut self, rflags: u64);
    /// CR0 as the guest sees it.
    fn cr0(&self) -> u64;
    /// CR3.
    fn cr3(&self) -> u64;
    /// CR4 as the guest sees it.
    fn cr4(&self) -> u64;
    /// CR2.
    fn cr2(&self) -> u64;
    /// CR2 for a page fault about to be injected.
    fn set_cr2(&mut self, address: u64);
    /// IA32_EFER.
    fn efer(&self) -> u64;
    /// A segment register.
    fn segment(&self, name: SegmentName) -> Segment;
    /// Current privilege level.
    fn cpl(&self) -> u8;
    /// IDTR: base, linear, and limit.
    fn idt(&self) -> (u64, u16);

    /// What is to exit from the next entry on.
    fn intercept(&mut self, what: Intercepts);
    /// Drops this core's translations through the nested tables at the next entry: they have changed.
    fn flush_nested(&mut self);

    /// Reads an MSR that the guest owns and that the back-end keeps (EFER, PAT, SYSENTER and the like), for the
    /// policy's list of emulated ones. None: not one of those.
    fn msr(&self, number: u32) -> Option<u64>;
    /// Writes such an MSR. False: not one of those, or a value that hardware would refuse.
    fn set_msr(&mut self, number: u32, value: u64) -> bool;
    /// Sets XCR0 after XSETBV; the value has been checked against CPUID leaf 0xD.
    fn set_xcr0(&mut self, value: u64);

    /// Length of the instruction that exited, where hardware tells (VT-x; SVM with next-RIP save); otherwise it is
    /// decoded.
    fn instruction_length(&self) -> Option<u8>;
    /// Bytes of that instruction where hardware tells (SVM decode assists).
    fn instruction_bytes(&self) -> Option<([u8; 15], u8)> {
        None
    }
    /// Steps over an instruction: sets RIP to `next` and ends the interrupt shadow of STI and MOV SS.
    fn skip_to(&mut self, next: u64);

    /// Whether an interrupt can be injected now: IF set, no shadow, no event waiting already.
    fn interruptible(&self) -> bool;
    /// Whether an event (injected or interrupted by the exit) waits for the next entry already.
    fn event_waiting(&self) -> bool;
    /// Whether an NMI can be injected now: no event waiting already, and none in service that blocks it.
    fn nmi_possible(&self) -> bool {
        !self.event_waiting()
    }
    /// Gives the guest an event at the next entry. Only when none waits.
    fn inject(&mut self, event: Event);
    /// Exits with [`Exit::InterruptWindow`] as soon as the guest can take an interrupt.
    fn want_interrupt_window(&mut self, wanted: bool);
    /// CR8 of an emulated local APIC, before each entry, where hardware may answer a read of it without an exit.
    fn set_cr8(&mut self, value: u64) {
        let _ = value;
    }

    /// Leaves the guest with [`Exit::Deadline`] once the host's TSC has reached `deadline`, at each entry from now on. False:
    /// this back-end has no timer of its own, and the caller has to interrupt the core.
    fn exit_at(&mut self, deadline: Option<u64>) -> bool {
        let _ = deadline;
        false
    }

    /// [`Interrupts::Virtualized`]: interrupts were put into the virtual-APIC page.
    fn handed_over(&mut self, change: &HandOver) {
        let _ = change;
    }

    /// Exits since the vCPU was made that [`Vcpu::run`] dealt with itself and did not return, so that those counted above
    /// and these together are what the hardware did. Entries given up because of a kick are not among them.
    fn exits_inside(&self) -> u64 {
        0
    }
}
