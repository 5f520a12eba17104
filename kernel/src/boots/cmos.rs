//! The count of attempts in the byte of the CMOS memory that the command line names (`attempts-cmos=`).

use crate::{arch::rtc, options};
use boots::cmos;

/// The number of the byte, if one is named.
pub fn named() -> Option<u8> {
    options::attempts_cmos()
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
