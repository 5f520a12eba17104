//! Why a guest leaves guest mode, what can be made to exit, and what is given to the guest on the way back.

/// An event given to the guest at the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A maskable interrupt; only when [`Vcpu::interruptible`](super::Vcpu::interruptible).
    Interrupt(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// A fault or trap with vector and error code where the vector has one.
    Exception(u8, Option<u32>),
}

impl Event {
    /// #GP(0), what hardware answers to most things a guest may not do.
    pub const GENERAL_PROTECTION: Self = Self::Exception(13, Some(0));
    /// #UD.
    pub const INVALID_OPCODE: Self = Self::Exception(6, None);
    /// #PF needs CR2 too: see [`Vcpu::set_cr2`](super::Vcpu::set_cr2).
    #[must_use]
    pub const fn page_fault(error: u32) -> Self {
        Self::Exception(14, Some(error))
    }
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
    /// A maskable interrupt; the local APIC has it in service.
    External(u8),
    /// An NMI.
    Nmi,
    /// A fault, trap or abort.
    Exception(u8),
    /// INT n, INT3 or INTO; RIP still points to it.
    Software(u8),
}

/// Why the guest left guest mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// A physical interrupt arrived for the host. The vector where the hardware acknowledged it on the way out
    /// (VT-x); otherwise the shell takes it by opening interrupts.
    ExternalInterrupt(Option<u8>),
    /// An NMI arrived for the host: a kick from another core.
    Nmi,
    /// None took place: the core was kicked before the guest was entered.
    NotEntered,
    /// The guest can take an interrupt now ([`Vcpu::want_interrupt_window`](super::Vcpu::want_interrupt_window)).
    InterruptWindow,
    /// CPUID.
    Cpuid,
    /// HLT.
    Halt,
    /// RDMSR; ECX names the register.
    ReadMsr,
    /// WRMSR.
    WriteMsr,
    /// A port access.
    Port(PortAccess),
    /// The deadline of [`Vcpu::exit_at`](super::Vcpu::exit_at) has passed.
    Deadline,
    /// [`Interrupts::Virtualized`]: the guest ended this interrupt, a level-triggered one. It has been taken out of
    /// service, and RIP is that of the next instruction.
    EndOfInterrupt(u8),
    /// [`Interrupts::Virtualized`]: the CPU put a write to a local APIC register, named by its MSR, into the virtual-APIC
    /// page and leaves the rest to the host. RIP is that of the next instruction.
    ApicWrite(u32),
    /// An access to a guest-physical address that the nested tables do not map, or not for this.
    NestedFault {
        /// Guest-physical address.
        gpa: u64,
        /// A store.
        write: bool,
        /// An instruction fetch.
        fetch: bool,
    },
    /// MOV from (`write` false) or to CR8; the only control register that exits.
    Cr8 {
        /// MOV to CR8.
        write: bool,
        /// Encoding of the general register, where hardware tells (VT-x; SVM with decode assists); otherwise it is
        /// decoded.
        register: Option<u8>,
    },
    /// XSETBV.
    Xsetbv,
    /// VMCALL or VMMCALL.
    Hypercall,
    /// INVD or WBINVD.
    CacheFlush,
    /// MONITOR, MWAIT, RDPMC, or an instruction of VT-x or SVM: #UD in this machine.
    Forbidden,
    /// LIDT, or on some CPUs another instruction on a descriptor-table register ([`Intercepts::idt`]).
    DescriptorTable,
    /// #NP ([`Intercepts::not_present`]).
    NotPresent {
        /// Error code.
        error: u32,
        /// The event in whose delivery it came up. It is not delivered again.
        interrupted: Option<Interrupted>,
    },
    /// An exception that the host always looks at (#AC, #DB, #MC): reflect it.
    Exception {
        /// Vector.
        vector: u8,
        /// Error code where there is one.
        error: Option<u32>,
    },
    /// Triple fault.
    TripleFault,
    /// Something this hypervisor does not provide for, or an entry that hardware refused: the raw reason.
    Unexpected {
        /// Exit reason (VT-x) or exit code (SVM).
        reason: u64,
        /// Exit qualification (VT-x) or EXITINFO1 (SVM).
        detail: u64,
    },
}

/// Who has the local APIC of a vCPU's core. Fixed when the vCPU is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// The host: every physical interrupt exits, the guest's APIC is software and its interrupts are injected. HLT
    /// exits, so that the host can wait.
    Emulated,
    /// The guest: physical interrupts go through the guest's IDT without an exit, and so do its end-of-interrupt, its
    /// timer and HLT. The host reaches the core by NMI alone.
    Owned,
    /// The host; but the CPU virtualizes the guest's: interrupts posted to it are delivered without an exit, and so are
    /// its end-of-interrupt, its TPR and, where the CPU can, its HLT ([`crate::posted`]). VT-x only.
    Virtualized,
}

/// What exits beside all else from a guest that owns its local APIC ([`Interrupts::Owned`]); all off at a reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intercepts {
    /// A physical interrupt, with [`Exit::ExternalInterrupt`]; it stays pending in the local APIC. SVM: when the guest
    /// could take it. VT-x: whatever the guest's RFLAGS.IF.
    pub interrupts: bool,
    /// A change of IDTR, with [`Exit::DescriptorTable`], before it takes effect.
    pub idt: bool,
    /// #NP, with [`Exit::NotPresent`].
    pub not_present: bool,
}
