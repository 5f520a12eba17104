//! The count of attempts in the byte of the CMOS memory that the command line names (`attempts-cmos=`).

use crate::arch::rtc;
use boots::cmos;
use core::sync::atomic::{AtomicU8, Ordering};

/// The number of the byte. 0: none is named.
static NAMED: AtomicU8 = AtomicU8::new(0);

/// From now on the count is in this byte, one of [`cmos::BYTES`].
pub fn name(place: u8) {
    NAMED.store(place, Ordering::Relaxed);
}

/// The number of the byte, if one is named.
pub fn named() -> Option<u8> {
    Some(NAMED.load(Ordering::Relaxed)).filter(|place| *place != 0)
}

/// The attempts of a configuration that the boot before has left there. `None`: nothing of ours is there.
pub fn attempts(config: &[u8; 32]) -> Option<u32> {
    cmos::attempts(rtc::read(named()?), config)
}

/// Leaves the attempts of a configuration for the next boot.
pub fn write(attempts: u32, config: &[u8; 32]) {
    if let Some(place) = named() {
        rtc::write_memory(place, cmos::byte(attempts, config));
    }
}
