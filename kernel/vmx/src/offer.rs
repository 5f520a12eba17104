//! The features that a guest's CPUID offers, as far as VT-x needs them: bits of CR4 and EFER, and instructions that
//! raise
//! #UD unless a control allows them. A guest can't enable a feature that its CPUID doesn't offer.

use crate::controls::Secondary;
use machine::{control_registers::offered_cr4, cpuid::Regs};

/// EFER.SCE.
const SCE: u64 = 1 << 0;
/// EFER.NXE.
const NXE: u64 = 1 << 11;

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
            [r.eax, r.ebx, r.ecx, r.edx].get(register).is_some_and(|value| value >> bit & 1 != 0)
        };
        let cr4 = offered_cr4(&answer);
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

    const PCE: u64 = 1 << 8;

    #[test]
    fn nothing_is_offered_by_an_empty_cpuid() {
        let offer = Offer::from_cpuid(|_, _| Regs::default());
        assert_eq!(offer, Offer { cr4: PCE, efer: 0, secondary: Secondary::empty() });
    }

    #[test]
    fn each_feature_bit_opens_its_own_control_and_no_other() {
        let only = |leaf, subleaf, regs: Regs| {
            Offer::from_cpuid(move |l, s| if (l, s) == (leaf, subleaf) { regs } else { Regs::default() })
        };
        let invpcid = only(7, 0, Regs { ebx: 1 << 10, ..Regs::default() });
        assert_eq!((invpcid.secondary, invpcid.cr4), (Secondary::ENABLE_INVPCID, PCE));
        let rdpid = only(7, 0, Regs { ecx: 1 << 22, ..Regs::default() });
        assert_eq!(rdpid.secondary, Secondary::ENABLE_RDTSCP, "RDPID #UDs with RDTSCP");
    }

    #[test]
    fn of_efer_only_what_the_cpu_switches_is_offered() {
        let all = Regs { eax: !0, ebx: !0, ecx: !0, edx: !0 };
        assert_eq!(Offer::from_cpuid(|_, _| all).efer, SCE | NXE | crate::control_registers::LME);
    }
}
