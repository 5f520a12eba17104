//! One vCPU's state of the shadow IDT, and the interrupts that come through its mailbox because of the shadow.

use crate::{
    eli::{Backoff, Mode},
    lapic::Accepts,
};

/// One vCPU's state of the shadow IDT.
pub(super) struct Shadowing {
    pub(super) mode: Mode,
    /// The number of the nested tables for which its core has flushed.
    pub(super) flushed: u64,
    /// Whether a page is shadowed, for this vCPU or for another.
    pub(super) in_place: bool,
    /// The TSC at which it tries to shadow its IDT again.
    pub(super) next_try: u64,
    pub(super) backoff: Backoff,
    /// Whether a physical interrupt waits to be taken.
    pub(super) take: bool,
    /// Tries in a row that found no IDT to shadow.
    pub(super) unfit: u32,
}

impl Shadowing {
    pub(super) fn new(tsc_khz: u64) -> Self {
        Self {
            mode: Mode::Exiting,
            flushed: 0,
            in_place: false,
            next_try: 0,
            backoff: Backoff::new(tsc_khz),
            take: false,
            unfit: 0,
        }
    }
}

/// Interrupts that were posted to the mailbox because their vector was the host's.
#[derive(Default)]
pub(super) struct Claimed([u64; 4]);

impl Accepts for Claimed {
    fn accept(&mut self, vector: u8, _level: bool) -> bool {
        if let Some(word) = self.0.get_mut(usize::from(vector >> 6)) {
            *word |= 1 << (vector & 63);
        }
        true
    }
}

impl Claimed {
    /// They are few or none, and each exit asks for them.
    pub(super) fn vectors(&self) -> impl Iterator<Item = u8> + use<> {
        let mut words = self.0;
        core::iter::from_fn(move || {
            let (index, word) = words.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
            let bit = word.trailing_zeros();
            *word &= !(1 << bit);
            Some(((index as u32) << 6 | bit) as u8)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Accepts as _, Claimed};

    #[test]
    fn each_vector_comes_once() {
        let mut claimed = Claimed::default();
        assert_eq!(claimed.vectors().count(), 0);
        for vector in [255, 64, 0, 63, 64, 200] {
            claimed.accept(vector, false);
        }
        assert!(claimed.vectors().eq([0, 63, 64, 200, 255]));
    }
}
