//! The virtual CPU as everything above the back-ends sees it: registers, why it left guest mode, what it is given
//! on the way back. SVM and VT-x implement [`Vcpu`]; nothing above this trait names a VMCS or VMCB field.
//!
//! Follows SDM vol. 3C ch. 25 to 28 and APM vol. 2 ch. 15 in meaning, and neither in encoding.

use crate::posted::HandOver;
use bitfield_struct::bitfield;

use crate::eli::Interrupted;

/// General-purpose registers, in the order of their encoding in an instruction (ModRM + REX).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the registers")]
pub struct Gprs {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rbx: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
}

impl Gprs {
    /// The register with encoding `number` (0 to 15, as in the struct).
    #[must_use]
    pub fn get(&self, number: u8) -> u64 {
        self.all()[usize::from(number & 15)]
    }

    /// Sets the register with encoding `number`, all 64 bits.
    pub fn set(&mut self, number: u8, value: u64) {
        let r = match number & 15 {
            0 => &mut self.rax,
            1 => &mut self.rcx,
            2 => &mut self.rdx,
            3 => &mut self.rbx,
            4 => &mut self.rsp,
            5 => &mut self.rbp,
            6 => &mut self.rsi,
            7 => &mut self.rdi,
            8 => &mut self.r8,
            9 => &mut self.r9,
            10 => &mut self.r10,
            11 => &mut self.r11,
            12 => &mut self.r12,
            13 => &mut self.r13,
            14 => &mut self.r14,
            _ => &mut self.r15,
        };
        *r = value;
    }

    fn all(&self) -> [u64; 16] {
        [
            self.rax, self.rcx, self.rdx, self.rbx, self.rsp, self.rbp, self.rsi, self.rdi, self.r8, self.r9, self.r10,
            self.r11, self.r12, self.r13, self.r14, self.r15,
        ]
    }

    /// EDX:EAX, as RDMSR and WRMSR use them.
    #[must_use]
    pub fn edx_eax(&self) -> u64 {
        self.rdx << 32 | self.rax & 0xffff_ffff
    }

    /// Puts a value into EDX:EAX, the upper halves zeroed.
    pub fn set_edx_eax(&mut self, value: u64) {
        self.rax = value & 0xffff_ffff;
        self.rdx = value >> 32;
    }
}

/// Segment attributes in the layout of a descriptor's bits 40 to 55 (SDM vol. 3A 3.4.5): the VMCB drops bits 8 to 11,
/// the VMCS keeps this layout and adds "unusable" in bit 16.
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct SegmentAttributes {
    /// Type field.
    #[bits(4)]
    pub kind: u8,
    /// S: code or data (not system).
    pub code_or_data: bool,
    /// DPL.
    #[bits(2)]
    pub dpl: u8,
    /// P.
    pub present: bool,
    #[bits(4)]
    __: u8,
    /// AVL.
    pub available: bool,
    /// L: 64-bit code.
    pub long: bool,
    /// D/B: 32-bit default.
    pub default_32: bool,
    /// G: limit counts 4 KiB units.
    pub granularity: bool,
}

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Selector.
    pub selector: u16,
    /// Attributes; not present means unusable.
    pub attributes: SegmentAttributes,
    /// Limit in bytes (already scaled by G).
    pub limit: u32,
    /// Base, linear.
    pub base: u64,
}

/// Which segment register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the registers")]
pub enum SegmentName {
    Es,
    Cs,
    Ss,
    Ds,
    Fs,
    Gs,
    Ldtr,
    Tr,
}

/// Everything a vCPU's registers are set to when it is created or started anew.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are the registers")]
pub struct StartState {
    pub gprs: Gprs,
    pub rip: u64,
    pub rflags: u64,
    pub cr0: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
    pub cs: Segment,
    /// ES, SS, DS, FS and GS alike.
    pub data: Segment,
    pub tr: Segment,
    pub ldtr: Segment,
    pub gdt: (u64, u16),
    pub idt: (u64, u16),
}

impl StartState {
    /// The 64-bit entry of the Linux boot protocol (Documentation/arch/x86/boot.rst): paging on with `cr3`, flat
    /// segments 0x10 and 0x18 from the table at `gdt`, interrupts off, RSI at the boot parameters.
    #[must_use]
    pub fn linux_64(entry: u64, boot_params: u64, cr3: u64, gdt: (u64, u16)) -> Self {
        let flat = |selector, attributes| Segment { selector, attributes, limit: 0xffff_ffff, base: 0 };
        let access = |kind, long: bool, code_or_data| {
            SegmentAttributes::new()
                .with_kind(kind)
                .with_code_or_data(code_or_data)
                .with_present(true)
                .with_long(long)
                .with_default_32(!long && code_or_data)
                .with_granularity(true)
        };
        Self {
            gprs: Gprs { rsi: boot_params, ..Gprs::default() },
            rip: entry,
            rflags: 2,
            cr0: 0x8005_0033, // PG, AM, WP, NE, ET, MP, PE
            cr3,
            cr4: 0x20,   // PAE
            efer: 0x500, // LMA, LME
            cs: flat(0x10, access(0xb, true, true)),
            data: flat(0x18, access(0x3, false, true)),
            tr: Segment {
                selector: 0x20,
                attributes: access(0xb, false, false).with_granularity(false),
                limit: 0x67,
                base: 0,
            },
            ldtr: Segment::default(),
            gdt,
            idt: (0, 0),
        }
    }

    /// After a start-up IPI with `vector` (SDM vol. 3A 10.4.4): real mode at vector * 4 KiB. `signature` is
    /// CPUID.1:EAX, which INIT leaves in EDX.
    #[must_use]
    pub fn startup_ipi(vector: u8, signature: u32) -> Self {
        let real = |selector: u16, kind| Segment {
            selector,
            attributes: SegmentAttributes::new().with_kind(kind).with_code_or_data(true).with_present(true),
            limit: 0xffff,
            base: u64::from(selector) << 4,
        };
        let system = |kind| Segment {
            selector: 0,
            attributes: SegmentAttributes::new().with_kind(kind).with_present(true),
            limit: 0xffff,
            base: 0,
        };
        Self {
            gprs: Gprs { rdx: u64::from(signature), ..Gprs::default() },
            rip: 0,
            rflags: 2,
            cr0: 0x10, // ET; INIT leaves CD and NW as they are, and the guest's are clear
            cr3: 0,
            cr4: 0,
            efer: 0,
            cs: real(u16::from(vector) << 8, 0xb),
            data: real(0, 0x3),
            tr: system(0xb),
            ldtr: system(0x2),
            gdt: (0, 0xffff),
            idt: (0, 0xffff),
        }
    }
}

/// An event given to the guest at the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A maskable interrupt; only when [`Vcpu::interruptible`].
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
    /// #PF needs CR2 too: see [`Vcpu::set_cr2`].
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
    /// The guest can take an interrupt now ([`Vcpu::want_interrupt_window`]).
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
    /// The deadline of [`Vcpu::exit_at`] has passed.
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
