//! MSR and I/O permission maps (APM vol. 2 15.10 and 15.11). They say what a guest may access without an exit. A set
//! bit intercepts. Every vCPU has the same maps.

use machine::cpuid::Vendor;
use machine::msr::passed_through;
use machine::vcpu::Interrupts;

/// The three ranges that the MSR map covers: first MSR, and offset in the map. Any other MSR always exits.
const RANGES: [(u32, usize); 3] = [(0, 0), (0xc000_0000, 0x800), (0xc001_0000, 0x1000)];
/// MSRs in a range.
const RANGE_LENGTH: u32 = 0x2000;

/// The maps. 20 KiB, physically contiguous, 4 KiB aligned.
#[repr(C, align(4096))]
pub struct PermissionMaps {
    msr: [u8; 0x2000],
    io: [u8; 0x3000],
}

impl PermissionMaps {
    /// Maps that intercept everything.
    pub const INTERCEPT_ALL: Self = Self { msr: [0xff; 0x2000], io: [0xff; 0x3000] };

    /// Fills the maps. MSRs that the policy passes through do not exit, and those in `speculation`. Every other MSR and
    /// all ports exit.
    pub fn fill(&mut self, interrupts: Interrupts, speculation: impl Iterator<Item = u32>) {
        self.msr.fill(0xff);
        self.io.fill(0xff);
        for (msr, write) in passed_through(Vendor::Amd, interrupts).chain(speculation.map(|msr| (msr, true))) {
            // An MSR outside the ranges has no bit and always exits. One that is not `harmless` exits too.
            if let Some((byte, shift)) = position(msr)
                && let Some(bits) = self.msr.get_mut(byte)
                && harmless(msr)
            {
                *bits &= !((1 | u8::from(write) << 1) << shift);
            }
        }
    }

    /// Physical address of the MSR map, for MSRPM_BASE_PA. The kernel maps memory at its physical address.
    #[must_use]
    pub fn msr_address(&self) -> u64 {
        (&raw const self.msr).addr() as u64
    }

    /// Physical address of the I/O map, for IOPM_BASE_PA.
    #[must_use]
    pub fn io_address(&self) -> u64 {
        (&raw const self.io).addr() as u64
    }
}

/// Whether the back-end can let a guest access a register without an exit. It can in four cases:
/// - VMLOAD and VMSAVE switch the register.
/// - The host does not use it, and a reset of the vCPU clears it (TSC_AUX).
/// - It has no state (IA32_PRED_CMD).
/// - It belongs to the local APIC. The kernel resets the APIC before and after a guest that owns it.
const fn harmless(msr: u32) -> bool {
    matches!(msr, 0x49 | 0x6e0 | 0x800..=0x8ff | 0x174..=0x176 | 0xc000_0081..=0xc000_0084 | 0xc000_0100..=0xc000_0103)
}

/// Returns the byte offset and the shift of the two bits of `msr`. The lower bit is for reads, the upper for writes.
const fn position(msr: u32) -> Option<(usize, u32)> {
    let mut ranges = RANGES.as_slice();
    while let [(first, offset), rest @ ..] = ranges {
        let index = msr.wrapping_sub(*first);
        if index < RANGE_LENGTH {
            return Some((offset.saturating_add(index as usize / 4), (index & 3) << 1));
        }
        ranges = rest;
    }
    None
}

const _: () = {
    assert!(size_of::<PermissionMaps>() == 5 * 0x1000);
    assert!(core::mem::offset_of!(PermissionMaps, io) == 0x2000);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// (read exits, write exits)
    fn exits(maps: &PermissionMaps, msr: u32) -> (bool, bool) {
        position(msr).map_or((true, true), |(byte, shift)| {
            let bits = maps.msr[byte] >> shift;
            (bits & 1 != 0, bits & 2 != 0)
        })
    }

    #[test]
    fn the_three_ranges_lie_where_the_manual_has_them() {
        assert_eq!(position(0), Some((0, 0)));
        assert_eq!(position(0x1fff), Some((0x7ff, 6)));
        assert_eq!(position(0x2000), None);
        assert_eq!(position(0xbfff_ffff), None);
        assert_eq!(position(0xc000_0000), Some((0x800, 0)));
        assert_eq!(position(0xc000_0081), Some((0x820, 2)));
        assert_eq!(position(0xc000_1fff), Some((0xfff, 6)));
        assert_eq!(position(0xc000_2000), None);
        assert_eq!(position(0xc001_0000), Some((0x1000, 0)));
        assert_eq!(position(0xc001_1fff), Some((0x17ff, 6)));
        assert_eq!(position(0xc001_2000), None);
        assert_eq!(position(u32::MAX), None);
    }

    #[test]
    fn exactly_what_the_policy_passes_through_does_not_exit() {
        for interrupts in [Interrupts::Emulated, Interrupts::Owned] {
            follows_the_policy(interrupts);
        }
    }

    fn follows_the_policy(interrupts: Interrupts) {
        let mut maps = Box::new(PermissionMaps::INTERCEPT_ALL);
        maps.fill(interrupts, [].into_iter());
        let policy: Vec<_> = passed_through(Vendor::Amd, interrupts).collect();
        for base in [0, 0xc000_0000, 0xc001_0000u32] {
            for msr in base..base + 0x2000 {
                let expected = match policy.iter().find(|(number, _)| *number == msr) {
                    Some((_, write)) => (false, !write),
                    None => (true, true),
                };
                assert_eq!(exits(&maps, msr), expected, "MSR {msr:#x}");
            }
        }
        let passing: u32 = maps.msr.iter().map(|b| b.count_zeros()).sum();
        assert_eq!(passing as usize, policy.iter().map(|(_, write)| 1 + usize::from(*write)).sum::<usize>());
    }

    #[test]
    fn what_would_hand_over_the_core_exits() {
        let mut maps = Box::new(PermissionMaps::INTERCEPT_ALL);
        maps.fill(Interrupts::Emulated, [0x48, 0x49].into_iter());
        assert_eq!(exits(&maps, 0x49), (false, false), "IA32_PRED_CMD, if asked for");
        // IA32_SPEC_CTRL, which nothing clears; APIC base, x2APIC ICR, EFER, VM_CR, VM_HSAVE_PA, HWCR, debug control.
        for msr in [0x48, 0x1b, 0x830, 0xc000_0080, 0xc001_0114, 0xc001_0117, 0xc001_0015, 0x1d9] {
            assert_eq!(exits(&maps, msr), (true, true), "MSR {msr:#x}");
        }
    }

    #[test]
    fn every_port_exits() {
        let mut maps = Box::new(PermissionMaps::INTERCEPT_ALL);
        maps.io[0x3f8 / 8] = 0;
        maps.fill(Interrupts::Emulated, [0x48, 0x49].into_iter());
        assert!(maps.io.iter().all(|&b| b == 0xff));
    }
}
