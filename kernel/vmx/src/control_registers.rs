//! CR0 and CR4: which bits the guest owns, and what happens when it changes the others (SDM vol. 3C 25.6.6, 26.3).
//!
//! The guest owns every bit that it may change without an exit: PE, PG, PAE, TS and so on. The CPU itself acts on such
//! a change (unrestricted guest). It sets EFER.LMA when PG is set under LME, and loads the PDPTEs. At the next exit it
//! stores LMA in the entry control "IA-32e mode guest" (IA32_VMX_MISC bit 5, which is required).
//!
//! The other bits are in the guest/host mask. The guest reads them from the read shadow. A MOV that would change such a
//! bit from the shadow's value exits. The exit is handled in one of two ways:
//!
//! - If hardware with the guest's CPUID would raise #GP, the guest gets #GP.
//! - Otherwise **the shadow takes the new value and the instruction runs again**. The second time no bit differs from
//!   the shadow, so the instruction doesn't exit. The CPU then makes the whole mode switch with the guest's own bits.
//!   No part of a mode switch is emulated here.

use machine::control_registers::{CD, MCE, NW, PE, cr0_allowed};
pub use machine::control_registers::{Mode, PG};

const ET: u64 = 1 << 4;
const NE: u64 = 1 << 5;
/// The reserved upper half of CR0.
const CR0_UPPER_RESERVED: u64 = 0xffff_ffff_0000_0000;

/// CR4.VMXE.
pub const VMXE: u64 = 1 << 13;

/// EFER.LME.
pub const LME: u64 = 1 << 8;
/// EFER.LMA.
pub const LMA: u64 = 1 << 10;

/// The guest gets #GP(0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection;

/// The bits of a control register that VMX operation fixes (SDM vol. 3D A.7, A.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// IA32_VMX_CRx_FIXED0: the bits set here must be 1.
    pub must_be_one: u64,
    /// IA32_VMX_CRx_FIXED1: the bits clear here must be 0.
    pub may_be_one: u64,
}

/// The rules for one guest's CR0 and CR4.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    cr0_forced: u64,
    cr4_forced: u64,
    /// CR0 guest/host mask: the bits that the guest doesn't own.
    pub cr0_mask: u64,
    /// CR4 guest/host mask.
    pub cr4_mask: u64,
    cr4_offered: u64,
}

impl Rules {
    /// Makes the rules. `cr4_offered`: the bits of CR4 for the features that the guest's CPUID offers
    /// ([`crate::Offer`]).
    pub fn new(cr0: Fixed, cr4: Fixed, cr4_offered: u64) -> Self {
        // An unrestricted guest may clear PE and PG, whatever FIXED0 says. Only NE remains of FIXED0, on every CPU so
        // far.
        let cr0_forced = cr0.must_be_one & !(PE | PG) | ET;
        // MCE is always set: with MCE clear, a machine check in the guest would stop the core. The guest sees its own
        // value.
        let cr4_forced = cr4.must_be_one | MCE & cr4.may_be_one;
        let cr4_offered = cr4_offered & cr4.may_be_one & !VMXE;
        Self {
            cr0_forced,
            cr4_forced,
            // CD and NW would make all of the guest's accesses uncached with EPT. They stay clear. The guest sees the
            // values that it wrote. ET is always 1 and ignores writes, so it needs no mask.
            cr0_mask: (cr0_forced & !ET | NE | CD | NW | !cr0.may_be_one) & !CR0_UPPER_RESERVED,
            cr4_mask: cr4_forced | !cr4_offered,
            cr4_offered,
        }
    }

    /// The real CR0 if the guest is to see `seen`.
    pub fn real_cr0(&self, seen: u64) -> u64 {
        seen & !self.cr0_mask | self.cr0_forced
    }

    /// The real CR4 if the guest is to see `seen`.
    pub fn real_cr4(&self, seen: u64) -> u64 {
        seen & !self.cr4_mask | self.cr4_forced
    }

    /// CR0 as the guest sees it, from the guest-state field and the read shadow.
    pub fn seen_cr0(&self, real: u64, shadow: u64) -> u64 {
        real & !self.cr0_mask | shadow & self.cr0_mask
    }

    /// CR4 as the guest sees it.
    pub fn seen_cr4(&self, real: u64, shadow: u64) -> u64 {
        real & !self.cr4_mask | shadow & self.cr4_mask
    }

    /// The guest sees `old` in CR0 and moves `new` to it. Returns the new read shadow (SDM vol. 2B MOV to control
    /// registers).
    ///
    /// # Errors
    /// The MOV raises #GP(0).
    pub fn mov_to_cr0(&self, old: u64, new: u64, mode: &Mode) -> Result<u64, GeneralProtection> {
        if cr0_allowed(old, new, mode) { Ok(new | ET) } else { Err(GeneralProtection) }
    }

    /// The guest moves `new` to CR4. Returns the new read shadow.
    ///
    /// # Errors
    /// The MOV raises #GP(0), because it sets a bit that the guest's CPUID doesn't offer.
    pub fn mov_to_cr4(&self, new: u64) -> Result<u64, GeneralProtection> {
        if new & !(self.cr4_offered | MCE) == 0 { Ok(new) } else { Err(GeneralProtection) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::control_registers::PAE;

    /// A Skylake's fixed bits, and a guest that is offered all of CR4 but VMXE and SMXE.
    fn rules() -> Rules {
        let cr0 = Fixed { must_be_one: 0x8000_0021, may_be_one: 0xffff_ffff };
        let cr4 = Fixed { must_be_one: 0x2000, may_be_one: 0x0037_67ff };
        Rules::new(cr0, cr4, 0x0037_07ff)
    }
    const REAL: Mode = Mode { efer: 0, cr3: 0, cr4: 0, cs_long: false };

    #[test]
    fn paging_and_protection_are_the_guests_own() {
        assert_eq!(rules().cr0_mask & (PE | PG | 0xe | 1 << 16 | 1 << 18), 0);
        assert_eq!(rules().cr0_mask, NE | CD | NW);
        assert_eq!(rules().cr4_mask & PAE, 0);
        assert_ne!(rules().cr4_mask & VMXE, 0);
    }

    #[test]
    fn the_guest_never_sees_what_vmx_forces_on_it() {
        let r = rules();
        assert_eq!(r.real_cr0(0x10), NE | ET);
        assert_eq!(r.seen_cr0(r.real_cr0(0x6000_0010), 0x6000_0010), 0x6000_0010);
        assert_eq!(r.real_cr0(0x6000_0010), NE | ET, "caches stay on");
        assert_eq!(r.real_cr4(0x20), VMXE | MCE | PAE);
        assert_eq!(r.seen_cr4(r.real_cr4(0x20), 0x20), 0x20);
    }

    #[test]
    fn after_the_shadow_took_the_value_the_same_mov_touches_no_masked_bit() {
        let r = rules();
        for new in [0x8005_0033, 0x6000_0010, 0xc005_0033, 0x31, 0x11] {
            let shadow = r.mov_to_cr0(0x10, new, &REAL).unwrap();
            assert_eq!((new ^ shadow) & r.cr0_mask, 0, "{new:#x}");
        }
        for new in [0, 0x20, 0x60, 0x6f0] {
            let shadow = r.mov_to_cr4(new).unwrap();
            assert_eq!((new ^ shadow) & r.cr4_mask, 0, "{new:#x}");
        }
    }

    #[test]
    fn bits_of_cr4_that_are_not_offered_are_refused() {
        for new in [VMXE, 1 << 14, 1 << 24, 1 << 63] {
            assert_eq!(rules().mov_to_cr4(new | 0x20), Err(GeneralProtection), "{new:#x}");
        }
    }
}
