//! A bitmap of all 256 vectors, in four words.

/// Returns the word with the bit of `vector`. The bit is `1 << (vector & 63)`.
pub fn word<T>(words: &[T; 4], vector: u8) -> &T {
    let [.., last] = words;
    words.get(usize::from(vector >> 6)).unwrap_or(last)
}

/// Sets the bit of `vector`.
pub const fn insert(words: &mut [u64; 4], vector: u8) {
    let [first, second, third, last] = words;
    let word = match vector >> 6 {
        0 => first,
        1 => second,
        2 => third,
        _ => last,
    };
    *word |= 1 << (vector & 63);
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_vector_has_a_bit_of_its_own() {
        let mut all = [0; 4];
        for vector in 0..=u8::MAX {
            let before = all;
            super::insert(&mut all, vector);
            assert_eq!(all.map(u64::count_ones).iter().sum::<u32>(), u32::from(vector) + 1);
            assert_ne!(super::word(&all, vector) & 1 << (vector & 63), 0);
            assert_eq!(super::word(&before, vector) & 1 << (vector & 63), 0);
        }
    }

    #[test]
    fn each_vector_has_its_word() {
        for vector in 0..=u8::MAX {
            assert_eq!(super::word(&[0, 1, 2, 3], vector), &(vector / 64));
        }
    }
}
