//! How long something else has a core that should have it for itself: the longest time between two readings of a clock, one right
//! after the other. Firmware in system management mode has it so, and a host beneath a virtual machine.

use crate::meter::SMI_COUNT;
use crate::{Features, Msrs, Processor, Vendor};

/// What a core has seen while it was watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Ticks for which it was watched.
    pub ticks: u64,
    /// Ticks of the longest gap.
    pub longest: u64,
    /// System management interrupts meanwhile. `None`: nobody counts them.
    pub smis: Option<u32>,
}

/// Watches the core that runs this, for so many ticks of a clock that never goes back. A gap at the end makes it longer.
pub fn watch(processor: &Processor, msrs: &mut impl Msrs, mut clock: impl FnMut() -> u64, ticks: u64) -> Watched {
    let counts = processor.vendor == Vendor::Intel && processor.family == 6 && !processor.has(Features::VIRTUAL);
    let mut smis = || if counts { msrs.read(SMI_COUNT).ok().map(|count| count as u32) } else { None };
    let before = smis();
    let begun = clock();
    let (mut last, mut longest) = (begun, 0);
    while last.wrapping_sub(begun) < ticks {
        let now = clock();
        longest = now.saturating_sub(last).max(longest);
        last = now;
    }
    let smis = smis().zip(before).map(|(after, before)| after.wrapping_sub(before));
    Watched { ticks: last.wrapping_sub(begun), longest, smis }
}
