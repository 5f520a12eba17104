//! KVM's paravirtual clock. Linux reads the TSC's frequency and the time of day from two pages in its own memory. After
//! that it never exits for the time.
//!
//! Follows Documentation/virt/kvm/x86/msr.rst (MSR_KVM_WALL_CLOCK_NEW, MSR_KVM_SYSTEM_TIME_NEW) and
//! Documentation/virt/kvm/x86/timekeeping.rst. All cores' TSCs are synchronous, and the scale is 1. A guest may move the
//! TSC of a vCPU by an offset. Then that vCPU's page moves with it. While the vCPUs' offsets differ, no page says that
//! readings on different vCPUs can be compared: Linux would read one vCPU's page with another's TSC.

extern crate alloc;

use alloc::boxed::Box;

use core::num::NonZero;

use memory::{BadAddress, GuestMemory};
use spin::Mutex;

/// MSR_KVM_WALL_CLOCK_NEW.
pub const WALL_CLOCK_NEW: u32 = 0x4b56_4d00;
/// MSR_KVM_SYSTEM_TIME_NEW.
pub const SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;

/// PVCLOCK_TSC_STABLE_BIT: readings on different vCPUs can be compared.
const TSC_STABLE: u8 = 1;
const NANOS: u64 = 1_000_000_000;

/// The factors that convert TSC ticks to nanoseconds: `(ticks << shift) * multiplier >> 32`. A negative shift is to the
/// right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// tsc_to_system_mul, with its highest bit set.
    pub multiplier: u32,
    /// tsc_shift.
    pub shift: i8,
}

impl Scale {
    /// Returns the factors for a TSC of `khz`. 0 counts as 1.
    #[must_use]
    pub fn from_khz(khz: u64) -> Self {
        // Nanoseconds per tick, in 64.64 fixed point. They are at most 10^6, which fits easily.
        let mut ratio =
            (1_000_000_u128 << 64) / NonZero::<u128>::from(NonZero::new(khz).unwrap_or(NonZero::<u64>::MIN));
        let mut shift = 0_i8;
        while ratio >= 1 << 64 {
            ratio >>= 1;
            shift = shift.saturating_add(1);
        }
        while ratio < 1 << 63 {
            ratio <<= 1;
            shift = shift.saturating_sub(1);
        }
        Self { multiplier: (ratio >> 32) as u32, shift }
    }

    /// Returns the nanoseconds of `ticks`, as the guest will compute them.
    #[must_use]
    pub fn nanos(self, ticks: u64) -> u64 {
        let shifted = if self.shift >= 0 {
            u128::from(ticks) << self.shift
        } else {
            u128::from(ticks) >> self.shift.unsigned_abs()
        };
        (shifted.wrapping_mul(u128::from(self.multiplier)) >> 32) as u64
    }
}

/// The clock of one guest.
#[derive(Debug)]
pub struct Clock {
    scale: Scale,
    /// The host's TSC when the guest was started. Its system time is 0 then.
    start: u64,
    vcpus: Mutex<Box<[OfVcpu]>>,
}

/// What the clock knows of one vCPU.
#[derive(Clone, Copy, Debug, Default)]
struct OfVcpu {
    /// Its TSC minus the host's, modulo 2^64.
    offset: u64,
    /// Address of its time structure.
    page: Option<u64>,
    /// The version in the structure: even.
    version: u32,
}

/// Whether readings on different vCPUs can be compared.
fn stable(vcpus: &[OfVcpu]) -> bool {
    vcpus.iter().zip(vcpus.iter().skip(1)).all(|(one, next)| one.offset == next.offset)
}

impl Clock {
    /// Makes a clock that reads 0 when the host's TSC is `start`.
    #[must_use]
    pub fn new(tsc_khz: u64, start: u64, vcpus: usize) -> Self {
        let vcpus = core::iter::repeat_n(OfVcpu::default(), vcpus).collect();
        Self { scale: Scale::from_khz(tsc_khz), start, vcpus: Mutex::new(vcpus) }
    }

    /// Handles a write to MSR_KVM_SYSTEM_TIME_NEW: fills in the vCPU's time structure. If bit 0 is clear, the structure is
    /// not written any more.
    ///
    /// # Errors
    /// The structure is not the guest's memory, or not 4-byte aligned.
    pub fn write_system_time(&self, memory: &GuestMemory, vcpu: usize, value: u64) -> Result<(), BadAddress> {
        if value & 1 == 0 {
            self.forget(vcpu);
            return Ok(());
        }
        let gpa = value & !1;
        if gpa & 3 != 0 {
            return Err(BadAddress { gpa, len: 32 });
        }
        memory.translate(gpa, 32)?;
        let mut vcpus = self.vcpus.lock();
        let stable = stable(&vcpus);
        let Some(of_vcpu) = vcpus.get_mut(vcpu) else { return Err(BadAddress { gpa, len: 32 }) };
        of_vcpu.page = Some(gpa);
        self.fill(memory, of_vcpu, gpa, stable)
    }

    /// Notes that the TSC of a vCPU is the host's plus `offset` from now on, and moves its time structure.
    pub fn set_offset(&self, memory: &GuestMemory, vcpu: usize, offset: u64) {
        let mut vcpus = self.vcpus.lock();
        let before = stable(&vcpus);
        if let Some(of_vcpu) = vcpus.get_mut(vcpu) {
            of_vcpu.offset = offset;
        }
        let stable = stable(&vcpus);
        for (index, of_vcpu) in vcpus.iter_mut().enumerate().filter(|&(index, _)| index == vcpu || stable != before) {
            if let Some(gpa) = of_vcpu.page
                && let Err(e) = self.fill(memory, of_vcpu, gpa, stable)
            {
                log::debug!("the clock page of vCPU {index} is memory no longer: {e}");
            }
        }
    }

    /// Forgets the time structure of a vCPU: it was switched off, or the vCPU got an INIT.
    pub fn forget(&self, vcpu: usize) {
        if let Some(of_vcpu) = self.vcpus.lock().get_mut(vcpu) {
            of_vcpu.page = None;
        }
    }

    fn fill(&self, memory: &GuestMemory, vcpu: &mut OfVcpu, gpa: u64, stable: bool) -> Result<(), BadAddress> {
        // The version is odd while the other fields are written, and another even number afterwards. Readers on other
        // vCPUs look again if they have not seen the same even number before and after.
        memory.write_u32(gpa, vcpu.version.wrapping_add(1))?;
        let mut time = [0_u8; 28];
        time[4..12].copy_from_slice(&self.start.wrapping_add(vcpu.offset).to_le_bytes()); // tsc_timestamp
        time[20..24].copy_from_slice(&self.scale.multiplier.to_le_bytes()); // after system_time, which is 0
        time[24] = self.scale.shift.to_le_bytes()[0];
        time[25] = if stable { TSC_STABLE } else { 0 };
        memory.write(gpa.saturating_add(4), &time)?;
        vcpu.version = vcpu.version.wrapping_add(2);
        memory.write_u32(gpa, vcpu.version)
    }

    /// Handles a write to MSR_KVM_WALL_CLOCK_NEW: fills in the time of day at system time 0. `wall` is the present time
    /// of day in nanoseconds since 1970. `tsc` is the present TSC.
    ///
    /// # Errors
    /// The structure is not the guest's memory, or not 4-byte aligned.
    pub fn write_wall_clock(&self, memory: &GuestMemory, gpa: u64, wall: u64, tsc: u64) -> Result<(), BadAddress> {
        if gpa & 3 != 0 {
            return Err(BadAddress { gpa, len: 12 });
        }
        let at_start = wall.saturating_sub(self.scale.nanos(tsc.saturating_sub(self.start)));
        let mut value = [0; 12];
        value[0..4].copy_from_slice(&2_u32.to_le_bytes()); // version
        value[4..8].copy_from_slice(&((at_start / NANOS) as u32).to_le_bytes());
        value[8..12].copy_from_slice(&((at_start % NANOS) as u32).to_le_bytes());
        memory.write(gpa, &value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::guest::testing::memory;
    use proptest::prelude::*;

    #[test]
    fn a_gigahertz_tick_is_a_nanosecond() {
        assert_eq!(Scale::from_khz(1_000_000), Scale { multiplier: 1 << 31, shift: 1 });
        assert_eq!(Scale::from_khz(1_000_000).nanos(12_345_678), 12_345_678);
        assert_eq!(Scale::from_khz(2_000_000).nanos(2_000_000_000), NANOS);
    }

    proptest! {
        #[test]
        fn an_hour_is_right_within_a_microsecond(khz in 10_000_u64..10_000_000) {
            let nanos = Scale::from_khz(khz).nanos(khz * 1000 * 3600);
            prop_assert!(nanos.abs_diff(3600 * NANOS) <= 2_000, "{nanos}");
        }
    }

    #[test]
    fn the_vcpu_time_structure_has_kvms_layout() {
        let m = memory(0, 0x1000);
        Clock::new(2_500_000, 0x1122_3344_5566, 1).write_system_time(&m, 0, 0x101).unwrap();
        assert_eq!(m.read_u32(0x100), Ok(2));
        assert_eq!(m.read_u64(0x108), Ok(0x1122_3344_5566));
        assert_eq!(m.read_u64(0x110), Ok(0));
        let scale = Scale::from_khz(2_500_000);
        assert_eq!(m.read_u32(0x118), Ok(scale.multiplier));
        assert_eq!(m.read_u8(0x11c), Ok(scale.shift.to_le_bytes()[0]));
        assert_eq!(m.read_u8(0x11d), Ok(1), "stable");
    }

    #[test]
    fn a_disabled_clock_is_not_written_and_a_bad_address_is_refused() {
        let m = memory(0, 0x1000);
        let clock = Clock::new(1_000_000, 5, 1);
        clock.write_system_time(&m, 0, 0x100).unwrap();
        assert_eq!(m.read_u32(0x100), Ok(0));
        assert!(clock.write_system_time(&m, 0, 0xff1).is_err(), "runs out of memory");
        assert!(clock.write_system_time(&m, 0, 0x103).is_err(), "misaligned");
        assert!(clock.write_wall_clock(&m, 0xff8, 0, 0).is_err());
        assert!(clock.write_wall_clock(&m, u64::MAX - 3, 0, 0).is_err());
    }

    #[test]
    fn a_page_moves_with_its_vcpus_tsc_and_says_when_the_others_differ() {
        let m = memory(0, 0x1000);
        let clock = Clock::new(1_000_000, 1000, 2);
        for (vcpu, page) in [(0, 0x101), (1, 0x201)] {
            clock.write_system_time(&m, vcpu, page).unwrap();
        }
        let page = |gpa| {
            let [version, stamp, flags] =
                [m.read_u32(gpa).unwrap().into(), m.read_u64(gpa + 8).unwrap(), m.read_u8(gpa + 29).unwrap().into()];
            [version, stamp, flags]
        };
        clock.set_offset(&m, 1, 0_u64.wrapping_sub(300));
        assert_eq!((page(0x100), page(0x200)), ([4, 1000, 0], [4, 700, 0]), "both lose the flag");
        clock.set_offset(&m, 0, 0_u64.wrapping_sub(300));
        assert_eq!((page(0x100), page(0x200)), ([6, 700, 1], [6, 700, 1]), "and have it again");
        clock.write_system_time(&m, 0, 0).unwrap();
        clock.forget(1);
        clock.set_offset(&m, 0, 5);
        assert_eq!((page(0x100), page(0x200)), ([6, 700, 1], [6, 700, 1]), "nobody wants them any more");
        clock.write_system_time(&m, 1, 0x301).unwrap();
        assert_eq!(page(0x300), [8, 700, 0]);
    }

    #[test]
    fn the_wall_clock_is_the_time_of_day_at_the_guests_start() {
        let m = memory(0, 0x1000);
        Clock::new(1_000_000, 1000, 1).write_wall_clock(&m, 0x200, 1_700_000_005 * NANOS, 1000 + 5 * NANOS).unwrap();
        assert_eq!(m.read_u32(0x200), Ok(2));
        assert_eq!(m.read_u32(0x204), Ok(1_700_000_000));
        assert_eq!(m.read_u32(0x208), Ok(0));
    }
}
