//! Exit codes (APM vol. 2 appendix C).

/// EXITCODE. It can hold any value, because hardware knows more reasons than this file. -1: the CPU refused the VMCB.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(pub u64);

#[allow(missing_docs, reason = "the names are those of appendix C")]
impl ExitCode {
    pub const CR0_READ: Self = Self(0x00);
    pub const CR4_READ: Self = Self(0x04);
    pub const CR8_READ: Self = Self(0x08);
    pub const CR0_WRITE: Self = Self(0x10);
    pub const CR4_WRITE: Self = Self(0x14);
    pub const CR8_WRITE: Self = Self(0x18);
    /// First of 32 codes, one per exception vector.
    pub const EXCP0: Self = Self(0x40);
    pub const EXCP_DB: Self = Self(0x41);
    pub const EXCP_NP: Self = Self(0x4b);
    pub const INTR: Self = Self(0x60);
    pub const NMI: Self = Self(0x61);
    pub const VINTR: Self = Self(0x64);
    pub const CR0_SELECTIVE_WRITE: Self = Self(0x65);
    pub const IDTR_WRITE: Self = Self(0x6a);
    pub const RDPMC: Self = Self(0x6f);
    pub const CPUID: Self = Self(0x72);
    pub const IRET: Self = Self(0x74);
    pub const INVD: Self = Self(0x76);
    pub const HLT: Self = Self(0x78);
    pub const INVLPGA: Self = Self(0x7a);
    pub const IOIO: Self = Self(0x7b);
    pub const MSR: Self = Self(0x7c);
    pub const SHUTDOWN: Self = Self(0x7f);
    pub const VMRUN: Self = Self(0x80);
    pub const VMMCALL: Self = Self(0x81);
    pub const VMLOAD: Self = Self(0x82);
    pub const VMSAVE: Self = Self(0x83);
    pub const STGI: Self = Self(0x84);
    pub const CLGI: Self = Self(0x85);
    pub const SKINIT: Self = Self(0x86);
    pub const WBINVD: Self = Self(0x89);
    pub const MONITOR: Self = Self(0x8a);
    pub const MWAIT: Self = Self(0x8b);
    pub const MWAIT_CONDITIONAL: Self = Self(0x8c);
    pub const XSETBV: Self = Self(0x8d);
    pub const RDPRU: Self = Self(0x8e);
    pub const MCOMMIT: Self = Self(0xa3);
    pub const BUS_LOCK: Self = Self(0xa5);
    pub const NPF: Self = Self(0x400);
}
