//! The exits of a guest, what can be made to exit, and the events for the next entry.

/// An event given to the guest at the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A maskable interrupt. Only if [`Vcpu::interruptible`](super::Vcpu::interruptible).
    Interrupt(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// A fault or trap: its vector, and its error code if the vector has one.
    Exception(u8, Option<u32>),
}

impl Event {
    /// #GP(0), hardware's answer to most things that a guest may not do.
    pub const GENERAL_PROTECTION: Self = Self::Exception(13, Some(0));
    /// #UD.
    pub const INVALID_OPCODE: Self = Self::Exception(6, None);
    /// Returns #PF. It needs CR2 too: see [`Vcpu::set_cr2`](super::Vcpu::set_cr2).
    #[must_use]
    pub const fn page_fault(error: u32) -> Self {
        Self::Exception(14, Some(error))
    }
}

/// Whether an exception is a fault: its handler may run the instruction again, so it finds RFLAGS.RF set in its frame
/// (SDM vol. 3A table 6-1, vol. 3B 18.3.1.1). Not among them are #DB, which sets RF only for some causes, the traps (#BP,
/// #OF) and the aborts (#DF, #MC).
#[must_use]
pub const fn is_fault(vector: u8) -> bool {
    matches!(vector, 0 | 5..=7 | 10..=14 | 16 | 17 | 19..=21 | 28..=30)
}

/// An IN, OUT, INS or OUTS that left guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAccess {
    /// Port number.
    pub port: u16,
    /// Bytes: 1, 2 or 4.
    pub size: u8,
    /// OUT or OUTS.
    pub write: bool,
    /// INS or OUTS.
    pub string: bool,
    /// REP prefix.
    pub repeat: bool,
    /// Address of the next instruction.
    pub next_rip: u64,
}

/// An event whose delivery an exit interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    /// A maskable interrupt. The local APIC has it in service.
    External(u8),
    /// An NMI.
    Nmi,
    /// A fault, trap or abort.
    Exception(u8),
    /// INT n, INT3 or INTO. RIP still points to the instruction.
    Software(u8),
}

/// Why the guest left guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// A physical interrupt arrived for the host. The value is its vector if the hardware acknowledged it at the exit
    /// (VT-x). Otherwise the kernel takes it by enabling interrupts.
    ExternalInterrupt(Option<u8>),
    /// An NMI arrived for the host: a kick from another core.
    Nmi,
    /// There was no exit: the core was kicked before the guest was entered.
    NotEntered,
    /// The guest can take an interrupt now ([`Vcpu::want_interrupt_window`](super::Vcpu::want_interrupt_window)).
    InterruptWindow,
    /// CPUID.
    Cpuid,
    /// HLT.
    Halt,
    /// RDMSR. ECX names the register.
    ReadMsr,
    /// WRMSR.
    WriteMsr,
    /// A port access.
    Port(PortAccess),
    /// The deadline of [`Vcpu::exit_at`](super::Vcpu::exit_at) has passed.
    Deadline,
    /// The guest ended this level-triggered interrupt. It is no longer in service, and RIP is that of the next
    /// instruction. Only with [`Interrupts::Virtualized`].
    EndOfInterrupt(u8),
    /// The CPU put a write to a local APIC register into the virtual-APIC page, and leaves its effect to the host. The
    /// value is the register's MSR. RIP is that of the next instruction. Only with [`Interrupts::Virtualized`].
    ApicWrite(u32),
    /// An access to a guest-physical address that the nested tables do not map, or do not allow.
    NestedFault {
        /// Guest-physical address.
        gpa: u64,
        /// A store.
        write: bool,
        /// An instruction fetch.
        fetch: bool,
    },
    /// MOV from or to CR8.
    Cr8 {
        /// MOV to CR8.
        write: bool,
        /// Encoding of the general register, if hardware gives it (VT-x; SVM with decode assists). Otherwise the
        /// instruction is decoded.
        register: Option<u8>,
    },
    /// MOV from CR0 or CR4, or SMSW (SVM, while the guest sees another value than the processor has).
    ReadControlRegister {
        /// 0 or 4.
        number: u8,
        /// As for [`Exit::Cr8`]. `None` also for SMSW.
        register: Option<u8>,
    },
    /// MOV to CR0 or CR4, LMSW, or CLTS (SVM).
    WriteControlRegister {
        /// 0 or 4.
        number: u8,
        /// As for [`Exit::Cr8`]. `None` also for LMSW and CLTS.
        register: Option<u8>,
    },
    /// An instruction did not end in time (VT-x).
    InstructionTimeout {
        /// The guest's state is valid, so it can go on.
        intact: bool,
    },
    /// XSETBV.
    Xsetbv,
    /// The CPU's own hypercall: VMCALL (VT-x) or VMMCALL (SVM). The other one is #UD.
    Hypercall,
    /// INVD or WBINVD.
    CacheFlush,
    /// MONITOR, MWAIT, RDPMC, or an instruction of VT-x or SVM. It is #UD in this machine.
    Forbidden,
    /// LIDT, or on some CPUs another instruction on a descriptor-table register ([`Intercepts::idt`]).
    DescriptorTable,
    /// #NP ([`Intercepts::not_present`]).
    NotPresent {
        /// Error code.
        error: u32,
        /// The event whose delivery it interrupted. That event is not delivered again.
        interrupted: Option<Interrupted>,
    },
    /// A split or bus lock ([`crate::split_lock`]). RIP is that of the instruction, which has not been executed yet (#AC;
    /// SVM), or of the next one (bus-lock exiting of VT-x).
    SplitLock,
    /// An exception that the host always intercepts: #AC of the guest's own, #DB, #MC, #UD. The guest gets it, except #MC,
    /// and #UD of a hypercall.
    Exception {
        /// Vector.
        vector: u8,
        /// Error code, if it has one.
        error: Option<u32>,
    },
    /// Triple fault.
    TripleFault,
    /// An exit that this hypervisor does not handle, or an entry that hardware refused.
    Unexpected {
        /// Exit reason (VT-x) or exit code (SVM).
        reason: u64,
        /// Exit qualification (VT-x) or EXITINFO1 (SVM).
        detail: u64,
    },
}

impl Exit {
    /// A machine check, while the guest ran or during the entry. The back-end has not handled it.
    pub const MACHINE_CHECK: Self = Self::Exception { vector: 18, error: None };
}

/// Who controls the local APIC of a vCPU's core. It is fixed when the vCPU is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// The host. Every physical interrupt exits. The guest's APIC is software, and its interrupts are injected. HLT
    /// exits, so that the host can wait.
    Emulated,
    /// The guest. Physical interrupts go through the guest's IDT without an exit. The guest's EOI, timer and HLT do not
    /// exit either. The host reaches the core only by NMI.
    Owned,
    /// The host, and the CPU virtualizes the guest's APIC ([`crate::posted`]). Interrupts posted to the guest are
    /// delivered without an exit. The guest's EOI and TPR do not exit. HLT does not exit if the CPU can do that. VT-x
    /// only.
    Virtualized,
}

/// What else exits from a guest that owns its local APIC ([`Interrupts::Owned`]). All are off after a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intercepts {
    /// A physical interrupt, with [`Exit::ExternalInterrupt`]. It stays pending in the local APIC. On SVM it exits only
    /// when the guest could take it. On VT-x it exits even if the guest's RFLAGS.IF is clear.
    pub interrupts: bool,
    /// A change of IDTR, with [`Exit::DescriptorTable`], before it takes effect.
    pub idt: bool,
    /// #NP, with [`Exit::NotPresent`].
    pub not_present: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_exceptions_traps_aborts_and_interrupts_are_no_faults() {
        let faults: Vec<u8> = (0..=u8::MAX).filter(|&vector| is_fault(vector)).collect();
        assert_eq!(faults, [0, 5, 6, 7, 10, 11, 12, 13, 14, 16, 17, 19, 20, 21, 28, 29, 30]);
    }
}
