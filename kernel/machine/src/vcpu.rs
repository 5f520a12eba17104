//! The virtual CPU as the code above the back-ends sees it: its registers, the reason of an exit, and the event for the
//! next entry. SVM and VT-x implement [`Vcpu`]. Nothing above this trait names a VMCS or VMCB field.
//!
//! The meanings follow SDM vol. 3C ch. 25 to 28 and APM vol. 2 ch. 15. The encodings follow neither.

use crate::posted::HandOver;

mod exit;
mod registers;

pub use exit::{Event, Exit, Intercepts, Interrupted, Interrupts, PortAccess, is_fault};
pub use registers::{Gprs, Segment, SegmentAttributes, SegmentName, StartState};

/// A virtual CPU on one of the two back-ends. It belongs to one core, and only that core uses it.
pub trait Vcpu {
    /// Sets every register to the given state. Nothing of the former life remains: no pending event, FPU state, debug
    /// register or passed-through MSR.
    fn reset(&mut self, state: &StartState);

    /// Enters the guest, and returns when something needs the host. If the exit interrupted the delivery of an event,
    /// the back-end itself delivers the event at the next entry.
    fn run(&mut self) -> Exit;

    /// General-purpose registers.
    fn gprs(&self) -> &Gprs;
    /// General-purpose registers, to change them.
    fn gprs_mut(&mut self) -> &mut Gprs;
    /// Instruction pointer.
    fn rip(&self) -> u64;
    /// Sets the instruction pointer. To skip an instruction, use [`Vcpu::skip_to`].
    fn set_rip(&mut self, rip: u64);
    /// RFLAGS.
    fn rflags(&self) -> u64;
    /// Sets RFLAGS, for emulated instructions that set flags.
    fn set_rflags(&mut self, rflags: u64);
    /// CR0 as the guest sees it.
    fn cr0(&self) -> u64;
    /// CR3.
    fn cr3(&self) -> u64;
    /// CR4 as the guest sees it.
    fn cr4(&self) -> u64;
    /// Sets CR0, after [`Exit::WriteControlRegister`]. The caller has checked the value
    /// ([`control_registers`](crate::control_registers)).
    fn set_cr0(&mut self, value: u64) {
        let _ = value;
    }
    /// Sets CR4, as [`Vcpu::set_cr0`].
    fn set_cr4(&mut self, value: u64) {
        let _ = value;
    }
    /// CR2.
    fn cr2(&self) -> u64;
    /// Sets CR2 for a page fault that will be injected.
    fn set_cr2(&mut self, address: u64);
    /// IA32_EFER.
    fn efer(&self) -> u64;
    /// A segment register.
    fn segment(&self, name: SegmentName) -> Segment;
    /// Current privilege level.
    fn cpl(&self) -> u8;
    /// IDTR: base, linear, and limit.
    fn idt(&self) -> (u64, u16);

    /// Sets what exits from the next entry on.
    fn intercept(&mut self, what: Intercepts);
    /// Flushes this core's translations through the nested tables at the next entry, because the tables have changed.
    fn flush_nested(&mut self);

    /// Reads an MSR of the guest that the back-end keeps (for example EFER, PAT, SYSENTER). Returns `None` if it is not
    /// one of those.
    fn msr(&self, number: u32) -> Option<u64>;
    /// Writes such an MSR. Returns false if it is not one of those, or if hardware would refuse the value.
    fn set_msr(&mut self, number: u32, value: u64) -> bool;
    /// Sets XCR0 after XSETBV. The caller has checked the value against CPUID leaf 0xD.
    fn set_xcr0(&mut self, value: u64);

    /// Sets the guest's TSC minus the host's, from the next entry on. It is 0 after a reset.
    fn set_tsc_offset(&mut self, offset: u64);
    /// Reads PKRU, the rights of the guest's protection keys. Call it only if the guest's CR4.PKE is set.
    fn pkru(&self) -> u32;

    /// Returns the length of the instruction that exited, if hardware gives it (VT-x; SVM with next-RIP save).
    /// Otherwise the caller decodes the instruction.
    fn instruction_length(&self) -> Option<u8>;
    /// Returns the bytes of that instruction, if hardware gives them (SVM decode assists).
    fn instruction_bytes(&self) -> Option<([u8; 15], u8)> {
        None
    }
    /// Ends an emulated instruction: sets RIP to `next`, ends the interrupt shadow of STI and MOV SS, clears RFLAGS.RF.
    /// If RFLAGS.TF is set, the single-step trap follows at the next entry, as after an instruction that did not exit.
    fn skip_to(&mut self, next: u64);
    /// Ends one iteration of an emulated string instruction that goes on: as [`Vcpu::skip_to`], but RIP stays, and
    /// RFLAGS.RF is set, so that an instruction breakpoint does not hit the same instruction again (SDM vol. 3B 18.3.1.1).
    fn iterated(&mut self);
    /// Whether a debug trap waits for the next entry.
    fn trap_waits(&self) -> bool {
        self.event_waiting()
    }

    /// Whether an interrupt can be injected now: IF is set, there is no interrupt shadow, and neither an event nor a debug
    /// trap waits.
    fn interruptible(&self) -> bool;
    /// Whether an event waits for the next entry. It was injected, or the exit interrupted its delivery.
    fn event_waiting(&self) -> bool;
    /// The event that waits for the next entry, as in [`Vcpu::event_waiting`].
    fn waiting(&self) -> Option<Interrupted>;
    /// Whether an NMI can be injected now: no event waits, and no NMI is in service that blocks it.
    fn nmi_possible(&self) -> bool {
        !self.event_waiting()
    }
    /// Gives the guest an event at the next entry. Call it only if none waits. A fault pushes RFLAGS with RF set
    /// ([`is_fault`]).
    fn inject(&mut self, event: Event);
    /// Exits with [`Exit::InterruptWindow`] as soon as the guest can take an interrupt.
    fn want_interrupt_window(&mut self, wanted: bool);
    /// Sets CR8 of an emulated local APIC before each entry, because hardware may answer a read of CR8 without an exit.
    fn set_cr8(&mut self, value: u64) {
        let _ = value;
    }

    /// Makes the guest exit with [`Exit::Deadline`] when the host's TSC reaches `deadline`. This holds for each entry
    /// from now on. Returns false if this back-end has no timer. Then the caller must interrupt the core.
    fn exit_at(&mut self, deadline: Option<u64>) -> bool {
        let _ = deadline;
        false
    }

    /// Lets the guest make split and bus locks, after [`Exit::SplitLock`]. They are noticed again when the host's TSC has
    /// reached `until`, or with SVM after a number of them that takes about as long.
    fn free_split_locks(&mut self, until: u64) {
        let _ = until;
    }

    /// Notes that interrupts were put into the virtual-APIC page. Only with [`Interrupts::Virtualized`].
    fn handed_over(&mut self, change: &HandOver) {
        let _ = change;
    }

    /// Returns the number of exits that [`Vcpu::run`] handled itself and did not return, since the vCPU was made.
    /// Together with the exits counted above the back-end, they are all exits of the hardware. Entries given up because
    /// of a kick do not count.
    fn exits_inside(&self) -> u64 {
        0
    }
}
