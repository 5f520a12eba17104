//! Fields of the VMCB that are made of bits (APM vol. 2 15.9, 15.16, 15.20, 15.21 and appendix B).

use bitfield_struct::bitfield;
use bitflags::bitflags;

bitflags! {
    /// Intercept word at offset 0x00C.
    #[repr(transparent)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs, reason = "the names are those of table B-1")]
    pub struct Intercepts1: u32 {
        const INTR = 1;
        const NMI = 1 << 1;
        const SMI = 1 << 2;
        const INIT = 1 << 3;
        const VINTR = 1 << 4;
        const CR0_SELECTIVE_WRITE = 1 << 5;
        const IDTR_WRITE = 1 << 10;
        const RDTSC = 1 << 14;
        const RDPMC = 1 << 15;
        const PUSHF = 1 << 16;
        const POPF = 1 << 17;
        const CPUID = 1 << 18;
        const RSM = 1 << 19;
        const IRET = 1 << 20;
        const INTN = 1 << 21;
        const INVD = 1 << 22;
        const PAUSE = 1 << 23;
        const HLT = 1 << 24;
        const INVLPG = 1 << 25;
        const INVLPGA = 1 << 26;
        const IOIO_PROT = 1 << 27;
        const MSR_PROT = 1 << 28;
        const TASK_SWITCH = 1 << 29;
        const FERR_FREEZE = 1 << 30;
        const SHUTDOWN = 1 << 31;
    }

    /// Intercept word at offset 0x010.
    #[repr(transparent)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs, reason = "the names are those of table B-1")]
    pub struct Intercepts2: u32 {
        const VMRUN = 1;
        const VMMCALL = 1 << 1;
        const VMLOAD = 1 << 2;
        const VMSAVE = 1 << 3;
        const STGI = 1 << 4;
        const CLGI = 1 << 5;
        const SKINIT = 1 << 6;
        const RDTSCP = 1 << 7;
        const ICEBP = 1 << 8;
        const WBINVD = 1 << 9;
        const MONITOR = 1 << 10;
        const MWAIT = 1 << 11;
        const MWAIT_ARMED = 1 << 12;
        const XSETBV = 1 << 13;
        const RDPRU = 1 << 14;
    }

    /// Intercept word at offset 0x014.
    #[repr(transparent)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs, reason = "the names are those of table B-1")]
    pub struct Intercepts3: u32 {
        const BUS_LOCK_THRESHOLD = 1 << 5;
    }

    /// VMCB clean bits (15.15.3). This hypervisor leaves them all clear, so every entry loads every field.
    #[repr(transparent)]
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CacheClean: u32 {}
}

/// TLB_CONTROL (15.16.1): what is flushed at entry. Hardware does not clear it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbControl(pub u8);

impl TlbControl {
    /// Flush nothing.
    pub const NOTHING: Self = Self(0);
    /// Flush every ASID, the host's included.
    pub const EVERYTHING: Self = Self(1);
    /// Flush this guest's entries. Needs flush-by-ASID.
    pub const THIS_ASID: Self = Self(3);
}

/// Virtual interrupt control at offset 0x060 (15.21).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of table B-1")]
pub struct InterruptControl {
    pub v_tpr: u8,
    pub v_irq: bool,
    pub vgif: bool,
    __: bool,
    pub v_nmi: bool,
    pub v_nmi_mask: bool,
    #[bits(3)]
    __: u8,
    #[bits(4)]
    pub v_intr_prio: u8,
    pub v_ign_tpr: bool,
    #[bits(3)]
    __: u8,
    /// The guest's RFLAGS.IF and TPR mask only virtual interrupts. Physical interrupts obey the host's RFLAGS.IF.
    pub v_intr_masking: bool,
    pub vgif_enable: bool,
    pub v_nmi_enable: bool,
    #[bits(3)]
    __: u8,
    pub x2avic_enable: bool,
    pub avic_enable: bool,
    pub v_intr_vector: u8,
    #[bits(24)]
    __: u32,
}

/// Interrupt state at offset 0x068 (15.21.5).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct InterruptShadow {
    /// The guest is in the shadow of STI or MOV SS.
    pub shadow: bool,
    /// The guest's RFLAGS.IF, for SEV-ES; not used.
    pub guest_interrupt_mask: bool,
    #[bits(62)]
    __: u64,
}

/// Word at offset 0x090: nested paging and SEV.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct NestedControl {
    /// NP_ENABLE.
    pub nested_paging: bool,
    #[bits(63)]
    __: u64,
}

/// EVENTINJ and EXITINTINFO (15.20, 15.7.2).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct EventInfo {
    /// Vector.
    pub vector: u8,
    /// One of the constants of [`EventKind`].
    #[bits(3, default = EventKind(0))]
    pub kind: EventKind,
    /// An error code is pushed.
    pub error_valid: bool,
    #[bits(19)]
    __: u32,
    /// There is an event.
    pub valid: bool,
    /// Error code.
    pub error: u32,
}

/// Type of an event (15.20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventKind(pub u8);

impl EventKind {
    /// External or virtual interrupt.
    pub const INTERRUPT: Self = Self(0);
    /// Non-maskable interrupt.
    pub const NMI: Self = Self(2);
    /// Fault or trap, INT3 and INTO among them.
    pub const EXCEPTION: Self = Self(3);
    /// INT n.
    pub const SOFTWARE: Self = Self(4);

    const fn into_bits(self) -> u8 {
        self.0
    }
    const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

/// EXITINFO1 of an IOIO exit (15.10.2).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct PortInfo {
    /// IN or INS.
    pub input: bool,
    __: bool,
    /// INS or OUTS.
    pub string: bool,
    /// REP prefix.
    pub repeat: bool,
    /// Operand size: one bit each for 1, 2 and 4 bytes. So the field is the size in bytes.
    #[bits(3)]
    pub size: u8,
    /// Address size: one bit each for 16, 32 and 64 bits.
    #[bits(3)]
    pub address_size: u8,
    /// Effective segment (decode assists only).
    #[bits(3)]
    pub segment: u8,
    #[bits(3)]
    __: u8,
    /// Port number.
    pub port: u16,
    #[bits(32)]
    __: u32,
}

/// EXITINFO1 of a nested page fault (15.25.6).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct NestedFaultInfo {
    /// The page was present.
    pub present: bool,
    /// A store.
    pub write: bool,
    /// A user access. Every nested access is one.
    pub user: bool,
    /// A reserved bit was set in a nested table entry.
    pub reserved_bit: bool,
    /// An instruction fetch.
    pub fetch: bool,
    #[bits(27)]
    __: u32,
    /// The fault was at the final translation of the guest's access.
    pub final_address: bool,
    /// The fault was in the walk of the guest's own page tables.
    pub table_walk: bool,
    #[bits(30)]
    __: u32,
}

/// EXITINFO1 of a MOV CRx exit with decode assists (15.8.1).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct MovCrInfo {
    /// Encoding of the general register.
    #[bits(4)]
    pub register: u8,
    #[bits(59)]
    __: u64,
    /// The instruction was MOV CRx, so `register` is valid.
    pub mov: bool,
}

const _: () = {
    assert!(InterruptControl::new().with_v_intr_masking(true).into_bits() == 1 << 24);
    assert!(InterruptControl::new().with_v_intr_prio(15).into_bits() == 0xf << 16);
    assert!(InterruptControl::new().with_v_ign_tpr(true).into_bits() == 1 << 20);
    assert!(InterruptControl::new().with_v_intr_vector(0xff).into_bits() == 0xff << 32);
    assert!(EventInfo::new().with_valid(true).into_bits() == 1 << 31);
    assert!(EventInfo::new().with_error_valid(true).into_bits() == 1 << 11);
    assert!(EventInfo::new().with_kind(EventKind(7)).into_bits() == 7 << 8);
    assert!(NestedFaultInfo::new().with_final_address(true).into_bits() == 1 << 32);
    assert!(PortInfo::new().with_port(0xffff).into_bits() == 0xffff << 16);
};
