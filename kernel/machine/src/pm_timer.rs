//! The ACPI power management timer: a free-running counter of 3.579545 MHz, 32 bits wide, made from the TSC.
//!
//! Follows ACPI 6.5 ch. 4.8.3.3. Firmware measures its delays with it. EDK2 reads it at the port of Cloud Hypervisor's
//! machine, whatever the FADT says. It has no status bit and no interrupt, because a hardware-reduced machine has neither.

use core::num::NonZero;

use crate::layout::PM_TIMER;

/// Frequency in Hz.
pub const HZ: u64 = 3_579_545;

/// The timer of a machine.
#[derive(Clone, Copy, Debug)]
pub struct PmTimer {
    tsc_hz: NonZero<u64>,
}

impl PmTimer {
    /// Makes the timer. `tsc_khz` is the frequency of the TSC in kHz.
    #[must_use]
    pub fn new(tsc_khz: u64) -> Self {
        Self { tsc_hz: NonZero::new(tsc_khz.saturating_mul(1000)).unwrap_or(NonZero::<u64>::MIN) }
    }

    /// Returns the counter when the TSC is `tsc`.
    #[must_use]
    pub fn count(self, tsc: u64) -> u32 {
        (u128::from(tsc).saturating_mul(u128::from(HZ)) / NonZero::<u128>::from(self.tsc_hz)) as u32
    }

    /// Handles IN of 1, 2 or 4 bytes when the TSC is `tsc`. Returns `None` if not all of the bytes are the timer's.
    #[must_use]
    pub fn read(self, port: u16, size: u8, tsc: u64) -> Option<u32> {
        let offset = port.checked_sub(PM_TIMER)?;
        (offset.saturating_add(u16::from(size)) <= 4).then(|| self.count(tsc) >> (8 * u32::from(offset)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_3579545_times_a_second_at_every_frequency_of_the_tsc() {
        for khz in [1_000, 2_100_000, 3_693_060] {
            let timer = PmTimer::new(khz);
            for seconds in [0, 1, 60] {
                assert_eq!(u64::from(timer.count(seconds * khz * 1000)), seconds * HZ, "{khz} kHz");
            }
        }
    }

    #[test]
    fn it_wraps_at_32_bits_and_never_panics() {
        let timer = PmTimer::new(1_000_000);
        let wrap = (1_u64 << 32) * 1_000_000_000 / HZ;
        assert_eq!((timer.count(wrap), timer.count(wrap + 200)), (u32::MAX, 0));
        let _ = (timer.count(u64::MAX), PmTimer::new(0).count(u64::MAX), PmTimer::new(u64::MAX).count(u64::MAX));
    }

    #[test]
    fn its_bytes_are_read_at_any_width_and_nothing_beyond_them() {
        let timer = PmTimer::new(1);
        let tsc = 0x1234_5678 * 1000 / HZ + 1;
        let count = timer.count(tsc);
        assert_eq!(timer.read(0x608, 4, tsc), Some(count));
        assert_eq!(timer.read(0x609, 1, tsc), Some(count >> 8));
        assert_eq!(timer.read(0x60a, 2, tsc), Some(count >> 16));
        for (port, size) in [(0x607, 4), (0x60a, 4), (0x60c, 1), (0x604, 1), (0, 4), (0xffff, 4)] {
            assert_eq!(timer.read(port, size, tsc), None, "{size} bytes at {port:#x}");
        }
    }
}
