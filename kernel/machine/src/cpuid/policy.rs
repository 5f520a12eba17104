//! The table of CPUID bits: for each leaf, which of the host's bits a guest sees.
//!
//! Follows SDM vol. 2A "CPUID" and APM vol. 3 appendix E. A bit that no line names is zero. So a newer CPU's feature
//! stays hidden until someone has checked what it needs (MSRs, controls, state). [`held_back`](super::held_back) says of
//! each known feature why it is not here.

/// The source of one register of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Zero.
    Zero,
    /// The host's value.
    Host,
    /// The host's bits under a mask.
    Mask(u32),
}

/// One leaf, or one sub-leaf.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// EAX before CPUID.
    pub leaf: u32,
    /// ECX before CPUID. 0 if the leaf has no sub-leaves.
    pub subleaf: u32,
    /// EAX, EBX, ECX, EDX after CPUID.
    pub regs: [Field; 4],
}

const fn bits(numbers: &[u8]) -> Field {
    Field::Mask(mask(numbers))
}

const fn mask(mut numbers: &[u8]) -> u32 {
    let mut mask = 0;
    while let [number, rest @ ..] = numbers {
        mask |= 1 << *number;
        numbers = rest;
    }
    mask
}

const fn leaf(leaf: u32, subleaf: u32, regs: [Field; 4]) -> Leaf {
    Leaf { leaf, subleaf, regs }
}

use Field::{Host, Zero};

/// Leaf 1 EDX, and the bits that AMD repeats in 0x8000_0001 EDX. HTT (28) is added: it follows the number of vCPUs.
const LEAF_1_EDX: u32 = mask(&[
    0, 1, 2, 3, 4, 5, 6, // FPU VME DE PSE TSC MSR PAE
    8, 9, 11, 12, 13, // CX8 APIC SEP MTRR PGE
    15, 16, 17, 19, // CMOV PAT PSE36 CLFSH
    23, 24, 25, 26, 27, // MMX FXSR SSE SSE2 SS
]);

/// The bits of leaf 1 EDX that AMD repeats.
const REPEATED: u32 = 0x0183_f3ff;

/// The leaves that are the host's under a mask. The parent module adds what depends on the guest: topology,
/// frequencies, XSAVE sizes, and the hypervisor's own leaves.
pub const LEAVES: &[Leaf] = &[
    // Family, model and stepping; features.
    leaf(
        1,
        0,
        [
            Host,
            Field::Mask(0xff00), // CLFLUSH line size
            // Added: x2APIC (21), TSC-deadline (24), OSXSAVE (27), hypervisor (31).
            bits(&[
                0, 1, 9, 12, 13, 17, // SSE3 PCLMULQDQ SSSE3 FMA CX16 PCID
                19, 20, 22, 23, 25, 26, // SSE4.1 SSE4.2 MOVBE POPCNT AES XSAVE
                28, 29, 30, // AVX F16C RDRAND
            ]),
            Field::Mask(LEAF_1_EDX),
        ],
    ),
    // Cache and TLB descriptors.
    leaf(2, 0, [Host; 4]),
    // Structured extended features. EAX, the last sub-leaf, is added.
    leaf(
        7,
        0,
        [
            Zero,
            // Added: TSC_ADJUST (1), unless the guest has the physical timer.
            bits(&[
                0, 3, 5, 6, 7, 8, 9, 10, 13, // FSGSBASE BMI1 AVX2 FDP SMEP BMI2 ERMS INVPCID FCS/FDS
                16, 17, 18, 19, 20, 21, 23, 24, // AVX512F AVX512DQ RDSEED ADX SMAP IFMA CLFLUSHOPT CLWB
                26, 27, 28, 29, 30, 31, // AVX512PF AVX512ER AVX512CD SHA AVX512BW AVX512VL
            ]),
            // Added: OSPKE (4), which follows CR4.PKE.
            bits(&[
                0, 1, 2, 3, 6, // PREFETCHWT1 VBMI UMIP PKU VBMI2
                8, 9, 10, 11, 12, 14, // GFNI VAES VPCLMULQDQ VNNI BITALG VPOPCNTDQ
                22, 25, 27, 28, // RDPID CLDEMOTE MOVDIRI MOVDIR64B
            ]),
            bits(&[
                2, 3, 4, 8, 10, 14, 23, // 4VNNIW 4FMAPS FSRM VP2INTERSECT MD_CLEAR SERIALIZE AVX512_FP16
                26, 27, 29, 31, // SPEC_CTRL STIBP ARCH_CAPABILITIES SSBD
            ]),
        ],
    ),
    leaf(
        7,
        1,
        [
            // SHA512 SM3 SM4 AVX_VNNI AVX512_BF16 FZRM FSRS FSRC AVX_IFMA.
            bits(&[0, 1, 2, 4, 5, 10, 11, 12, 23]),
            Zero,
            Zero,
            bits(&[4, 5, 10, 14]), // AVX_VNNI_INT8 AVX_NE_CONVERT AVX_VNNI_INT16 PREFETCHI
        ],
    ),
    // Extended features.
    leaf(
        0x8000_0001,
        0,
        [
            Host,
            Host,
            // Added: CMP_LEGACY (1).
            bits(&[0, 5, 6, 7, 8, 11, 16, 21]), // LAHF ABM SSE4A MISALIGNSSE 3DNOWPREFETCH XOP FMA4 TBM
            // SYSCALL NX MMXEXT PDPE1GB RDTSCP LM 3DNOWEXT 3DNOW.
            Field::Mask(LEAF_1_EDX & REPEATED | mask(&[11, 20, 22, 26, 27, 29, 30, 31])),
        ],
    ),
    // Brand string.
    leaf(0x8000_0002, 0, [Host; 4]),
    leaf(0x8000_0003, 0, [Host; 4]),
    leaf(0x8000_0004, 0, [Host; 4]),
    // Caches and TLBs.
    leaf(0x8000_0005, 0, [Host; 4]),
    leaf(0x8000_0006, 0, [Host; 4]),
    // Invariant TSC.
    leaf(0x8000_0007, 0, [Zero, Zero, Zero, bits(&[8])]),
    // EAX: physical address bits; the linear ones are added. EBX: CLZERO XSAVEERPTR IBPB IBRS STIBP SSBD PSFD.
    leaf(0x8000_0008, 0, [Field::Mask(0xff), bits(&[0, 2, 12, 14, 15, 24, 28]), Zero, Zero]),
    // TLBs for 1 GiB pages; performance hints.
    leaf(0x8000_0019, 0, [Host, Host, Zero, Zero]),
    leaf(0x8000_001a, 0, [Host, Zero, Zero, Zero]),
    // LFENCE always serializes (otherwise Linux wants DE_CFG). A null selector clears the base.
    leaf(0x8000_0021, 0, [bits(&[0, 2, 6]), Zero, Zero, Zero]),
];

/// State components that a guest may enable in XCR0: x87, SSE, AVX, the three of AVX-512, and PKRU.
pub const XCR0: u64 = 0x2e7;
/// Leaf 0xD, sub-leaf 1: XSAVEOPT, XSAVEC, XGETBV with ECX 1.
pub const XSAVE_FEATURES: u32 = 0b0111;

/// The last basic leaf: frequencies. Topology (0xB) and XSAVE (0xD) are below it.
pub const LAST_BASIC: u32 = 0x16;
/// The last extended leaf. It is lower if the host has fewer.
pub const LAST_EXTENDED: u32 = 0x8000_0021;
