//! A register of one bit a vector: IRR, ISR and TMR (SDM vol. 3A 11.8.4).

/// 256 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Vectors([u64; 4]);

use crate::bitmap::word;

impl Vectors {
    /// Sets or clears the bit of `vector`.
    pub(super) fn set(&mut self, vector: u8, value: bool) {
        let Some(word) = self.0.get_mut(usize::from(vector >> 6)) else { return };
        let bit = 1 << (vector & 63);
        if value {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }

    /// The bit of `vector`.
    pub(super) fn get(&self, vector: u8) -> bool {
        word(&self.0, vector) >> (vector & 63) & 1 != 0
    }

    /// The highest vector whose bit is set: the one of highest priority.
    pub(super) fn highest(&self) -> Option<u8> {
        let (index, bit) = self.0.iter().enumerate().rev().find_map(|(i, w)| Some((i, w.checked_ilog2()?)))?;
        Some((index << 6) as u8 | bit as u8)
    }

    /// All bits, vector 0 in bit 0 of the first word.
    pub(super) fn bits(&self) -> [u64; 4] {
        self.0
    }

    /// The 32 bits that register `index` (0 to 7) of the group shows.
    pub(super) fn register(&self, index: u32) -> u32 {
        (word(&self.0, (index << 5) as u8) >> ((index & 1) << 5)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::Vectors;

    #[test]
    fn the_highest_vector_is_found_wherever_it_is() {
        let mut v = Vectors::default();
        assert_eq!(v.highest(), None);
        for vector in 0..=255 {
            v.set(vector, true);
            assert_eq!(v.highest(), Some(vector));
            assert_eq!(v.register(u32::from(vector) / 32) >> (vector % 32), 1);
        }
        v.set(255, false);
        assert_eq!(v.highest(), Some(254));
        assert!(!v.get(255) && v.get(0));
    }
}
