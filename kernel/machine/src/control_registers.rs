//! The values of CR0 and CR4 that a guest may write (SDM vol. 3A 2.5 and vol. 2B "MOV to control registers", APM vol. 2
//! 3.1). A guest cannot set a bit of CR4 for a feature that its CPUID does not offer.

use crate::cpuid::Regs;

/// CR0.PE.
pub const PE: u64 = 1 << 0;
/// CR0.TS.
pub const TS: u64 = 1 << 3;
/// CR0.NW.
pub const NW: u64 = 1 << 29;
/// CR0.CD.
pub const CD: u64 = 1 << 30;
/// CR0.PG.
pub const PG: u64 = 1 << 31;
/// CR0.AM.
pub const AM: u64 = 1 << 18;
/// CR4.PAE.
pub const PAE: u64 = 1 << 5;
/// CR4.MCE.
pub const MCE: u64 = 1 << 6;
const PCIDE: u64 = 1 << 17;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
/// The upper half of CR0. All of its bits are reserved, and setting one is #GP. Setting a reserved bit of the lower half
/// has no effect.
const CR0_UPPER_RESERVED: u64 = 0xffff_ffff_0000_0000;
/// What LMSW changes: PE, MP, EM and TS. It cannot clear PE.
const MACHINE_STATUS: u64 = 0xf;

/// The bit of CR4 that needs no feature bit: PCE. RDPMC exits with or without it.
const ALWAYS: u64 = 1 << 8;
/// Each entry: bit of CR4, CPUID leaf, index of the register (EAX, EBX, ECX, EDX), bit in it. Some features are left
/// out, whatever CPUID says: those whose state is neither in the VMCS or VMCB nor switched with XSAVE (SMX, CET, PKS, user
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

/// Returns the bits of CR4 that a guest may set, except MCE, which every guest may set. `answer` returns the registers of
/// a leaf and sub-leaf of the guest's CPUID.
#[must_use]
pub fn offered_cr4(answer: impl Fn(u32, u32) -> Regs) -> u64 {
    CR4.iter().fold(ALWAYS, |offered, &(number, leaf, register, feature)| {
        let r = answer(leaf, 0);
        let has = [r.eax, r.ebx, r.ecx, r.edx].get(register).is_some_and(|value| value >> feature & 1 != 0);
        offered | u64::from(has) << number
    })
}

/// The state besides the register itself that decides whether a MOV to CR0 or CR4 faults.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// IA32_EFER.
    pub efer: u64,
    /// CR3.
    pub cr3: u64,
    /// CR4 as the guest sees it.
    pub cr4: u64,
    /// CS is a 64-bit code segment.
    pub cs_long: bool,
}

/// Whether a guest that sees `old` in CR0 may move `new` to it. If not, it gets #GP(0).
#[must_use]
pub const fn cr0_allowed(old: u64, new: u64, mode: &Mode) -> bool {
    let enters_paging = old & PG == 0 && new & PG != 0;
    let leaves_paging = old & PG != 0 && new & PG == 0;
    let bad = new & CR0_UPPER_RESERVED != 0
        || new & PG != 0 && new & PE == 0
        || new & NW != 0 && new & CD == 0
        || enters_paging && mode.efer & EFER_LME != 0 && (mode.cr4 & PAE == 0 || mode.cs_long)
        || leaves_paging && (mode.cs_long || mode.cr4 & PCIDE != 0);
    !bad
}

/// Whether a guest that may set `offered` ([`offered_cr4`]) may move `new` to CR4. If not, it gets #GP(0).
#[must_use]
pub const fn cr4_allowed(new: u64, offered: u64, mode: &Mode) -> bool {
    let long = mode.efer & EFER_LMA != 0;
    let starts_pcids = new & PCIDE != 0 && mode.cr4 & PCIDE == 0;
    let bad = new & !(offered | MCE) != 0 || long && new & PAE == 0 || starts_pcids && (!long || mode.cr3 & 0xfff != 0);
    !bad
}

/// Returns CR0 after LMSW.
#[must_use]
pub const fn after_lmsw(cr0: u64, source: u64) -> u64 {
    cr0 & !(MACHINE_STATUS & !PE) | source & MACHINE_STATUS
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: Mode = Mode { efer: 0, cr3: 0, cr4: 0, cs_long: false };
    const LONG: Mode = Mode { efer: EFER_LME | EFER_LMA, cr3: 0x1000, cr4: PAE, cs_long: true };

    #[test]
    fn what_hardware_refuses_in_cr0_is_refused() {
        for (old, new, mode) in [
            (0x11, PG, REAL),                                              // PG without PE
            (0x11, NW | PE, REAL),                                         // NW without CD
            (0x11, 1 << 32 | PE, REAL),                                    // upper half
            (0x11, PG | PE | CD, Mode { efer: EFER_LME, ..REAL }),         // LME without PAE
            (0x11, PG | PE, Mode { efer: EFER_LME, ..LONG }),              // to long mode in 64-bit code
            (0x8000_0011, 0x4000_0011, LONG),                              // leaving paging in 64-bit code
            (0x8000_0011, 0x4000_0011, Mode { cr4: PAE | PCIDE, ..REAL }), // with PCIDs on
        ] {
            assert!(!cr0_allowed(old, new, &mode), "{new:#x}");
        }
        for (old, new, mode) in [
            (0x10, 0x11, REAL),
            (0x11, PG | PE, Mode { efer: EFER_LME, cr4: PAE, ..REAL }),
            (0x8005_0033, 0xc005_0033, LONG),
            (0x8005_0033, 0xe005_0033, LONG),
            (0x8005_0033, 0x8004_003b, LONG),
        ] {
            assert!(cr0_allowed(old, new, &mode), "{new:#x}");
        }
    }

    #[test]
    fn bits_of_cr4_that_are_not_offered_are_refused() {
        let offered = 0x37_07ff; // all up to SMAP, but VMXE, SMXE, FSGSBASE, PCIDE, PKE
        for bit in (0..64).filter(|bit| offered >> bit & 1 == 0) {
            assert!(!cr4_allowed(PAE | 1 << bit, offered & !MCE, &LONG), "bit {bit}");
        }
        for bit in (0..64).filter(|bit| *bit == 6 || offered >> bit & 1 != 0 && *bit != 17) {
            assert!(cr4_allowed(PAE | 1 << bit, offered & !MCE, &LONG), "bit {bit}");
        }
    }

    #[test]
    fn what_hardware_refuses_in_cr4_is_refused() {
        assert!(!cr4_allowed(0, PAE, &LONG), "PAE is cleared in long mode");
        assert!(cr4_allowed(0, PAE, &REAL));
        assert!(cr4_allowed(PAE | PCIDE, PAE | PCIDE, &LONG));
        assert!(!cr4_allowed(PAE | PCIDE, PAE | PCIDE, &REAL), "PCIDs outside long mode");
        let with_pcid = Mode { cr3: 0x1001, ..LONG };
        assert!(!cr4_allowed(PAE | PCIDE, PAE | PCIDE, &with_pcid), "CR3 names a PCID already");
        assert!(cr4_allowed(PAE | PCIDE, PAE | PCIDE, &Mode { cr4: PAE | PCIDE, ..with_pcid }), "they are on already");
    }

    #[test]
    fn each_feature_bit_offers_its_own_bit_of_cr4() {
        assert_eq!(offered_cr4(|_, _| Regs::default()), ALWAYS);
        let only = |leaf, regs: Regs| offered_cr4(move |l, _| if l == leaf { regs } else { Regs::default() });
        assert_eq!(only(7, Regs { ecx: 1 << 2, ..Regs::default() }), ALWAYS | 1 << 11, "UMIP");
        assert_eq!(only(7, Regs { ecx: 1 << 3, ..Regs::default() }), ALWAYS | 1 << 22, "PKU");
        assert_eq!(only(1, Regs { ecx: 1 << 17, ..Regs::default() }), ALWAYS | PCIDE, "PCID");
    }

    #[test]
    fn vmx_smx_and_cet_can_never_be_switched_on() {
        let all = offered_cr4(|_, _| Regs { eax: !0, ebx: !0, ecx: !0, edx: !0 });
        assert_eq!(all & (1 << 13 | 1 << 14 | 1 << 23), 0);
    }

    #[test]
    fn lmsw_sets_pe_and_does_not_clear_it() {
        assert_eq!(after_lmsw(0x10, 1), 0x11);
        assert_eq!(after_lmsw(0x8005_003f, 0xfff0), 0x8005_0031);
        assert_eq!(after_lmsw(0x4000_0031, 0xe), 0x4000_003f);
    }
}
