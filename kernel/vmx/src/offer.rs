//! The features that a guest's CPUID offers, as far as VT-x needs them: bits of CR4 and EFER, and instructions that
//! raise
//! #UD unless a control allows them. A guest can't enable a feature that its CPUID doesn't offer.

use crate::controls::Secondary;
use machine::cpuid::Regs;

/// EFER.SCE.
const SCE: u64 = 1 << 0;
/// EFER.NXE.
const NXE: u64 = 1 << 11;

/// The bit of CR4 that needs no feature bit: PCE. RDPMC exits with or without it.
const ALWAYS: u64 = 1 << 8;
/// Each entry: bit of CR4, CPUID leaf, index of the register (EAX, EBX, ECX, EDX), bit in it. Some features are left
/// out, whatever CPUID says: those whose state is neither in the VMCS nor switched with XSAVE (SMX, CET, PKS, user
/// interrupts, key locker, FRED).
const CR4: &[(u8, u32, usize, u8)] = &[
    (0, 1, 3, 1),   // VME
    (1, 1, 3, 1),   // PVI
    (2, 1, 3, 4),   // TSD
    (3, 1, 3, 2),   // DE
    (4, 1, 3, 3),   // PSE
    (5, 1, 3, 6),   // PAE
    (7, 1, 3, 13),  // PGE
    (9, 1, 3, 24),  // OSFXSR
    (10, 1, 3, 25), // OSXMMEXCPT
    (11, 7, 2, 2),  // UMIP
    (12, 7, 2, 16), // LA57
    (16, 7, 1, 0),  // FSGSBASE
    (17, 1, 2, 17), // PCIDE
    (18, 1, 2, 26), // OSXSAVE
    (20, 7, 1, 7),  // SMEP
    (21, 7, 1, 20), // SMAP
    (22, 7, 2, 3),  // PKE
];

/// The part of a guest's CPUID that the back-end uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Bits of CR4 that the guest may set.
    pub cr4: u64,
    /// Bits of EFER that the guest may set, except LMA.
    pub efer: u64,
    /// Secondary controls that let instructions run.
    pub secondary: Secondary,
}

impl Offer {
    /// Reads the guest's CPUID. `answer` returns the registers of a leaf and sub-leaf.
    pub fn from_cpuid(answer: impl Fn(u32, u32) -> Regs) -> Self {
        let bit = |leaf, subleaf, register: usize, bit: u8| {
            let r = answer(leaf, subleaf);
            [r.eax, r.ebx, r.ecx, r.edx][register] >> bit & 1 != 0
        };
        let mut cr4 = ALWAYS;
        for &(number, leaf, register, feature) in CR4 {
            cr4 |= u64::from(bit(leaf, 0, register, feature)) << number;
        }
        let mut efer = 0;
        for (flag, feature) in [(SCE, 11), (crate::control_registers::LME, 29), (NXE, 20)] {
            if bit(0x8000_0001, 0, 3, feature) {
                efer |= flag;
            }
        }
        let mut secondary = Secondary::empty();
        secondary.set(Secondary::ENABLE_RDTSCP, bit(0x8000_0001, 0, 3, 27) || bit(7, 0, 2, 22));
        secondary.set(Secondary::ENABLE_INVPCID, bit(7, 0, 1, 10));
        secondary.set(Secondary::ENABLE_XSAVES, bit(0xd, 1, 0, 3));
        secondary.set(Secondary::ENABLE_USER_WAIT_AND_PAUSE, bit(7, 0, 2, 5));
        Self { cr4, efer, secondary }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_offered_by_an_empty_cpuid() {
        let offer = Offer::from_cpuid(|_, _| Regs::default());
        assert_eq!(offer, Offer { cr4: ALWAYS, efer: 0, secondary: Secondary::empty() });
    }

    #[test]
    fn each_feature_bit_opens_its_own_control_and_no_other() {
        let only = |leaf, subleaf, regs: Regs| {
            Offer::from_cpuid(move |l, s| if (l, s) == (leaf, subleaf) { regs } else { Regs::default() })
        };
        let invpcid = only(7, 0, Regs { ebx: 1 << 10, ..Regs::default() });
        assert_eq!(invpcid.secondary, Secondary::ENABLE_INVPCID);
        assert_eq!(invpcid.cr4, ALWAYS);
        let rdpid = only(7, 0, Regs { ecx: 1 << 22, ..Regs::default() });
        assert_eq!(rdpid.secondary, Secondary::ENABLE_RDTSCP, "RDPID #UDs with RDTSCP");
        let umip = only(7, 0, Regs { ecx: 1 << 2, ..Regs::default() });
        assert_eq!(umip.cr4, ALWAYS | 1 << 11);
    }

    #[test]
    fn vmx_smx_and_cet_can_never_be_switched_on() {
        let all = Regs { eax: !0, ebx: !0, ecx: !0, edx: !0 };
        let offer = Offer::from_cpuid(|_, _| all);
        assert_eq!(offer.cr4 & (1 << 13 | 1 << 14 | 1 << 23), 0);
        assert_eq!(offer.efer, SCE | NXE | crate::control_registers::LME);
    }
}
