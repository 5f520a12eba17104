//! The features that a CPU may have and a guest does not see, each with the reason. The file `CPUID.md` of this crate shows
//! the same table. A bit on neither this list nor that of [`policy`](super::policy) is one that the manuals did not define
//! when the lists were last checked. It stays hidden too.
//!
//! Follows SDM vol. 2A "CPUID" and APM vol. 3 appendix E.

/// A feature bit of CPUID that guests do not see.
#[derive(Clone, Copy, Debug)]
pub struct HeldBack {
    /// EAX before CPUID.
    pub leaf: u32,
    /// ECX before CPUID.
    pub subleaf: u32,
    /// 0 to 3: EAX, EBX, ECX, EDX after CPUID.
    pub register: usize,
    /// Bit number.
    pub bit: u8,
    /// The manual's name.
    pub name: &'static str,
    /// Why it is held back.
    pub why: &'static str,
}

const LOCKS: &str =
    "it names the detection of split locks, which is the host's: guests have neither this MSR nor MSR_TEST_CTRL";
const MSRS: &str = "it is a bit in an MSR that guests do not have";
const HOST: &str = "the host keeps it: it concerns the whole machine";
const POWER: &str = "power and heat are the host's";
const PERF: &str = "performance counters and traces are not virtualized";
const VIRT: &str = "guests have no virtualization of their own";
const STATE: &str = "its state is neither in the VMCS or VMCB nor in an XSAVE component that guests may enable";
const SPEC: &str = "guests do not need it for the registers of speculation control that they have";
const WAIT: &str = "a waiting guest would sleep on the host's terms; HLT is for that";
const WALK: &str = "the host's walk of the guest's page tables does not know it";
const TOPO: &str = "the guest's topology is its own";
const OLD: &str = "CPUs of today do not have it, or it is being removed";
const UNCHECKED: &str = "nobody has checked yet what it needs";
const XFD: &str = "it needs XFD, which is not virtualized";
const SMM: &str = "guests have no SMM";

const fn bit(place: (u32, u32, usize), bit: u8, name: &'static str, why: &'static str) -> HeldBack {
    let (leaf, subleaf, register) = place;
    HeldBack { leaf, subleaf, register, bit, name, why }
}

const LEAF_1_0_ECX: (u32, u32, usize) = (0x1, 0, 2);
const LEAF_1_0_EDX: (u32, u32, usize) = (0x1, 0, 3);
const LEAF_7_0_EBX: (u32, u32, usize) = (0x7, 0, 1);
const LEAF_7_0_ECX: (u32, u32, usize) = (0x7, 0, 2);
const LEAF_7_0_EDX: (u32, u32, usize) = (0x7, 0, 3);
const LEAF_7_1_EAX: (u32, u32, usize) = (0x7, 1, 0);
const LEAF_D_0_EAX: (u32, u32, usize) = (0xd, 0, 0);
const LEAF_D_1_EAX: (u32, u32, usize) = (0xd, 1, 0);
const LEAF_80000001_0_ECX: (u32, u32, usize) = (0x8000_0001, 0, 2);
const LEAF_80000001_0_EDX: (u32, u32, usize) = (0x8000_0001, 0, 3);
const LEAF_80000008_0_EBX: (u32, u32, usize) = (0x8000_0008, 0, 1);
const LEAF_80000021_0_EAX: (u32, u32, usize) = (0x8000_0021, 0, 0);

/// All of them.
pub const HELD_BACK: &[HeldBack] = &[
    bit(LEAF_1_0_ECX, 2, "DTES64", PERF),
    bit(LEAF_1_0_ECX, 3, "MONITOR", WAIT),
    bit(LEAF_1_0_ECX, 4, "DS-CPL", PERF),
    bit(LEAF_1_0_ECX, 5, "VMX", VIRT),
    bit(LEAF_1_0_ECX, 6, "SMX", VIRT),
    bit(LEAF_1_0_ECX, 7, "EIST", POWER),
    bit(LEAF_1_0_ECX, 8, "TM2", POWER),
    bit(LEAF_1_0_ECX, 10, "CNXT-ID", OLD),
    bit(LEAF_1_0_ECX, 11, "SDBG", MSRS),
    bit(LEAF_1_0_ECX, 14, "xTPR", MSRS),
    bit(LEAF_1_0_ECX, 15, "PDCM", PERF),
    bit(LEAF_1_0_ECX, 18, "DCA", HOST),
    bit(LEAF_1_0_EDX, 7, "MCE", HOST),
    bit(LEAF_1_0_EDX, 14, "MCA", HOST),
    bit(LEAF_1_0_EDX, 18, "PSN", OLD),
    bit(LEAF_1_0_EDX, 21, "DS", PERF),
    bit(LEAF_1_0_EDX, 22, "ACPI", POWER),
    bit(LEAF_1_0_EDX, 29, "TM", POWER),
    bit(LEAF_1_0_EDX, 31, "PBE", POWER),
    bit(LEAF_7_0_EBX, 2, "SGX", STATE),
    bit(LEAF_7_0_EBX, 4, "HLE", OLD),
    bit(LEAF_7_0_EBX, 11, "RTM", SPEC),
    bit(LEAF_7_0_EBX, 12, "RDT-M", HOST),
    bit(LEAF_7_0_EBX, 14, "MPX", OLD),
    bit(LEAF_7_0_EBX, 15, "RDT-A", HOST),
    bit(LEAF_7_0_EBX, 22, "PCOMMIT", OLD),
    bit(LEAF_7_0_EBX, 25, "PT", PERF),
    bit(LEAF_7_0_ECX, 5, "WAITPKG", WAIT),
    bit(LEAF_7_0_ECX, 7, "CET_SS", STATE),
    bit(LEAF_7_0_ECX, 13, "TME", HOST),
    bit(LEAF_7_0_ECX, 16, "LA57", WALK),
    bit(LEAF_7_0_ECX, 23, "KL", STATE),
    bit(LEAF_7_0_ECX, 24, "BUS_LOCK_DETECT", MSRS),
    bit(LEAF_7_0_ECX, 29, "ENQCMD", STATE),
    bit(LEAF_7_0_ECX, 30, "SGX_LC", STATE),
    bit(LEAF_7_0_ECX, 31, "PKS", STATE),
    bit(LEAF_7_0_EDX, 1, "SGX_KEYS", STATE),
    bit(LEAF_7_0_EDX, 5, "UINTR", STATE),
    bit(LEAF_7_0_EDX, 9, "SRBDS_CTRL", SPEC),
    bit(LEAF_7_0_EDX, 11, "RTM_ALWAYS_ABORT", OLD),
    bit(LEAF_7_0_EDX, 13, "RTM_FORCE_ABORT", OLD),
    bit(LEAF_7_0_EDX, 15, "HYBRID", TOPO),
    bit(LEAF_7_0_EDX, 16, "TSXLDTRK", OLD),
    bit(LEAF_7_0_EDX, 18, "PCONFIG", HOST),
    bit(LEAF_7_0_EDX, 19, "ARCH_LBR", PERF),
    bit(LEAF_7_0_EDX, 20, "CET_IBT", STATE),
    bit(LEAF_7_0_EDX, 22, "AMX_BF16", XFD),
    bit(LEAF_7_0_EDX, 24, "AMX_TILE", XFD),
    bit(LEAF_7_0_EDX, 25, "AMX_INT8", XFD),
    bit(LEAF_7_0_EDX, 28, "L1D_FLUSH", SPEC),
    bit(LEAF_7_0_EDX, 30, "CORE_CAPABILITIES", LOCKS),
    bit(LEAF_7_1_EAX, 3, "RAO_INT", UNCHECKED),
    bit(LEAF_7_1_EAX, 6, "LASS", WALK),
    bit(LEAF_7_1_EAX, 7, "CMPCCXADD", UNCHECKED),
    bit(LEAF_7_1_EAX, 8, "ARCH_PERFMON_EXT", PERF),
    bit(LEAF_7_1_EAX, 17, "FRED", STATE),
    bit(LEAF_7_1_EAX, 18, "LKGS", STATE),
    bit(LEAF_7_1_EAX, 19, "WRMSRNS", UNCHECKED),
    bit(LEAF_7_1_EAX, 20, "NMI_SRC", STATE),
    bit(LEAF_7_1_EAX, 21, "AMX_FP16", XFD),
    bit(LEAF_7_1_EAX, 22, "HRESET", MSRS),
    bit(LEAF_7_1_EAX, 26, "LAM", WALK),
    bit(LEAF_7_1_EAX, 27, "MSRLIST", MSRS),
    bit(LEAF_7_1_EAX, 30, "INVD_DISABLE", HOST),
    bit(LEAF_D_0_EAX, 3, "BNDREGS", OLD),
    bit(LEAF_D_0_EAX, 4, "BNDCSR", OLD),
    bit(LEAF_D_0_EAX, 17, "XTILECFG", XFD),
    bit(LEAF_D_0_EAX, 18, "XTILEDATA", XFD),
    bit(LEAF_D_1_EAX, 3, "XSAVES", MSRS),
    bit(LEAF_D_1_EAX, 4, "XFD", XFD),
    bit(LEAF_80000001_0_ECX, 2, "SVM", VIRT),
    bit(LEAF_80000001_0_ECX, 3, "EXTAPIC", UNCHECKED),
    bit(LEAF_80000001_0_ECX, 4, "CR8 in 32-bit mode", UNCHECKED),
    bit(LEAF_80000001_0_ECX, 9, "OSVW", MSRS),
    bit(LEAF_80000001_0_ECX, 10, "IBS", PERF),
    bit(LEAF_80000001_0_ECX, 12, "SKINIT", VIRT),
    bit(LEAF_80000001_0_ECX, 13, "WDT", HOST),
    bit(LEAF_80000001_0_ECX, 15, "LWP", OLD),
    bit(LEAF_80000001_0_ECX, 17, "TCE", MSRS),
    bit(LEAF_80000001_0_ECX, 19, "NODEID", TOPO),
    bit(LEAF_80000001_0_ECX, 22, "TOPOEXT", TOPO),
    bit(LEAF_80000001_0_ECX, 23, "PERFCTR_CORE", PERF),
    bit(LEAF_80000001_0_ECX, 24, "PERFCTR_NB", PERF),
    bit(LEAF_80000001_0_ECX, 26, "BPEXT", MSRS),
    bit(LEAF_80000001_0_ECX, 27, "PTSC", PERF),
    bit(LEAF_80000001_0_ECX, 28, "PERFCTR_LLC", PERF),
    bit(LEAF_80000001_0_ECX, 29, "MONITORX", WAIT),
    bit(LEAF_80000001_0_ECX, 30, "ADDR_MASK_EXT", MSRS),
    bit(LEAF_80000001_0_EDX, 7, "MCE", HOST),
    bit(LEAF_80000001_0_EDX, 14, "MCA", HOST),
    bit(LEAF_80000001_0_EDX, 25, "FFXSR", MSRS),
    bit(LEAF_80000008_0_EBX, 3, "INVLPGB", HOST),
    bit(LEAF_80000008_0_EBX, 4, "RDPRU", PERF),
    bit(LEAF_80000008_0_EBX, 8, "MCOMMIT", HOST),
    bit(LEAF_80000008_0_EBX, 9, "WBNOINVD", UNCHECKED),
    bit(LEAF_80000008_0_EBX, 13, "INT_WBINVD", HOST),
    bit(LEAF_80000008_0_EBX, 16, "IBRS_ALWAYS_ON", SPEC),
    bit(LEAF_80000008_0_EBX, 17, "STIBP_ALWAYS_ON", SPEC),
    bit(LEAF_80000008_0_EBX, 18, "IBRS_PREFERRED", SPEC),
    bit(LEAF_80000008_0_EBX, 19, "IBRS_SAME_MODE", SPEC),
    bit(LEAF_80000008_0_EBX, 25, "VIRT_SSBD", SPEC),
    bit(LEAF_80000008_0_EBX, 30, "IBPB_RET", SPEC),
    bit(LEAF_80000021_0_EAX, 3, "SMM_PGCFG_LOCK", SMM),
    bit(LEAF_80000021_0_EAX, 7, "UPPER_ADDRESS_IGNORE", WALK),
    bit(LEAF_80000021_0_EAX, 8, "AUTO_IBRS", SPEC),
    bit(LEAF_80000021_0_EAX, 13, "PREFETCH_CTL", MSRS),
    bit(LEAF_80000021_0_EAX, 17, "CPUID_USER_DIS", MSRS),
];
