//! A bitmap of all 256 vectors, in four words.

/// Returns the word with the bit of `vector`. The bit is `1 << (vector & 63)`.
pub fn word<T>(words: &[T; 4], vector: u8) -> &T {
    let [.., last] = words;
    words.get(usize::from(vector >> 6)).unwrap_or(last)
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_vector_has_its_word() {
        for vector in 0..=u8::MAX {
            assert_eq!(super::word(&[0, 1, 2, 3], vector), &(vector / 64));
        }
    }
}
