//! An engine's doorbell. The kicks of its devices arrive here. It has one word for each group of slots, and the engine
//! reads these words once a turn. [`virtio::kick`] is the device's end. It explains why no kick is lost.

use core::sync::atomic::AtomicU64;

use virtio::kick::Bits as _;
use virtio::line::OwnLine;

use crate::slots::{self, GROUPS, SlotSet};

/// A doorbell: one bit for each slot.
#[derive(Default)]
pub struct Doorbell(OwnLine<[AtomicU64; GROUPS]>);

impl Doorbell {
    /// A doorbell that has not been rung.
    #[must_use]
    pub const fn new() -> Self {
        Self(OwnLine([const { AtomicU64::new(0) }; GROUPS]))
    }

    /// The word and the bit that the device at `slot` sets. `None` if there is no such slot.
    pub(crate) fn button(&self, slot: usize) -> Option<(&AtomicU64, u8)> {
        let (group, bit) = slots::place(slot);
        Some((self.0.0.get(group)?, bit.trailing_zeros() as u8))
    }

    /// Takes the slots that have rung.
    #[inline]
    pub(crate) fn take(&self) -> SlotSet {
        let [first, second] = &self.0.0;
        SlotSet::of_words([first.take(), second.take()])
    }
}
