//! Tells an engine's back-end which devices have something from the control core: input, or a port that was opened or
//! closed. The back-end reads two words in each turn, whatever the number of devices.

use core::sync::atomic::{AtomicU64, Ordering};

use engine::slots::{MAX_SLOTS, SlotSet};

/// Slots of a word.
const GROUP: usize = u64::BITS as usize;

/// One bit for each slot of an engine. The control core sets bits, the engine's core takes them.
#[derive(Debug)]
pub struct Bell([AtomicU64; MAX_SLOTS / GROUP]);

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

impl Bell {
    /// No bit set.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_SLOTS / GROUP])
    }

    /// Rings for a slot. The engine's core sees everything that was written before. No effect if there is no such slot.
    pub fn ring(&self, slot: usize) {
        if let Some(word) = self.0.get(slot / GROUP) {
            word.fetch_or(1 << (slot % GROUP), Ordering::Release);
        }
    }

    /// Takes the slots that were rung for.
    #[inline]
    pub(crate) fn take(&self) -> SlotSet {
        let mut rung = SlotSet::NONE;
        for (group, word) in self.0.iter().enumerate() {
            // Nearly always no bit is set. A plain load leaves the cache line where it is.
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Acquire);
            while bits != 0 {
                rung.insert(group.saturating_mul(GROUP).saturating_add(bits.trailing_zeros() as usize));
                bits &= bits.wrapping_sub(1);
            }
        }
        rung
    }
}

#[cfg(test)]
mod tests {
    use super::Bell;

    #[test]
    fn each_ring_is_taken_once() {
        let bell = Bell::new();
        for slot in [3, 127, 64, 3, 128, usize::MAX] {
            bell.ring(slot);
        }
        assert_eq!(bell.take().into_iter().collect::<Vec<_>>(), [3, 64, 127]);
        assert_eq!(bell.take().into_iter().count(), 0);
    }
}
