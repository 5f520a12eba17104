//! KVM's paravirtual clock. Linux reads the TSC's frequency and the time of day from two pages in its own memory. After
//! that it never exits for the time.
//!
//! Follows Documentation/virt/kvm/x86/msr.rst (MSR_KVM_WALL_CLOCK_NEW, MSR_KVM_SYSTEM_TIME_NEW) and
//! Documentation/virt/kvm/x86/timekeeping.rst. In every guest the TSC offset is 0 and the scale 1, and all cores' TSCs
//! are synchronous. So the written values are the same for every vCPU and never change.

use memory::{BadAddress, GuestMemory};

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
        let mut ratio = (1_000_000_u128 << 64) / u128::from(khz.max(1));
        let mut shift = 0_i8;
        while ratio >= 1 << 64 {
            ratio >>= 1;
            shift += 1;
        }
        while ratio < 1 << 63 {
            ratio <<= 1;
            shift -= 1;
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
        ((shifted * u128::from(self.multiplier)) >> 32) as u64
    }
}

/// The clock of one guest.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    scale: Scale,
    /// The TSC when the guest was started. Its system time is 0 then.
    start: u64,
}

impl Clock {
    /// Makes a clock that reads 0 when the TSC is `start`.
    #[must_use]
    pub fn new(tsc_khz: u64, start: u64) -> Self {
        Self { scale: Scale::from_khz(tsc_khz), start }
    }

    /// Handles a write to MSR_KVM_SYSTEM_TIME_NEW: fills in the vCPU's time structure. Does nothing if bit 0 is clear.
    ///
    /// # Errors
    /// The structure is not the guest's memory, or not 4-byte aligned.
    pub fn write_system_time(&self, memory: &GuestMemory, value: u64) -> Result<(), BadAddress> {
        if value & 1 == 0 {
            return Ok(());
        }
        let gpa = value & !1;
        if gpa & 3 != 0 {
            return Err(BadAddress { gpa, len: 32 });
        }
        memory.translate(gpa, 32)?;
        // The version is odd while the other fields are written. Readers on other vCPUs wait for an even one.
        memory.write_u32(gpa, 1)?;
        let mut time = [0_u8; 28];
        time[4..12].copy_from_slice(&self.start.to_le_bytes()); // tsc_timestamp
        time[20..24].copy_from_slice(&self.scale.multiplier.to_le_bytes()); // after system_time, which is 0
        time[24] = self.scale.shift.to_le_bytes()[0];
        time[25] = TSC_STABLE;
        memory.write(gpa + 4, &time)?;
        memory.write_u32(gpa, 2)
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
        Clock::new(2_500_000, 0x1122_3344_5566).write_system_time(&m, 0x101).unwrap();
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
        let clock = Clock::new(1_000_000, 5);
        clock.write_system_time(&m, 0x100).unwrap();
        assert_eq!(m.read_u32(0x100), Ok(0));
        assert!(clock.write_system_time(&m, 0xff1).is_err(), "runs out of memory");
        assert!(clock.write_system_time(&m, 0x103).is_err(), "misaligned");
        assert!(clock.write_wall_clock(&m, 0xff8, 0, 0).is_err());
        assert!(clock.write_wall_clock(&m, u64::MAX - 3, 0, 0).is_err());
    }

    #[test]
    fn the_wall_clock_is_the_time_of_day_at_the_guests_start() {
        let m = memory(0, 0x1000);
        Clock::new(1_000_000, 1000).write_wall_clock(&m, 0x200, 1_700_000_005 * NANOS, 1000 + 5 * NANOS).unwrap();
        assert_eq!(m.read_u32(0x200), Ok(2));
        assert_eq!(m.read_u32(0x204), Ok(1_700_000_000));
        assert_eq!(m.read_u32(0x208), Ok(0));
    }
}
