//! Four words that one core writes and another one reads whole, without a lock.
//!
//! The writer counts up before and after it writes. A reader that sees an odd count, or another one afterwards, has nothing
//! this time. The model in `published_model.rs` compiles this file on loom's atomics.

use super::atomics::{AtomicU64, Ordering, fence, own};

/// The words. At first there are none.
#[derive(Debug)]
pub struct Published {
    /// Odd while the words are being written; 0: they never were. Only the writer changes it.
    count: AtomicU64,
    words: [AtomicU64; 4],
}

impl Published {
    /// Without words.
    #[must_use]
    pub fn new() -> Self {
        let word = || AtomicU64::new(0);
        Self { count: word(), words: [word(), word(), word(), word()] }
    }

    /// Writes all words. Only one core calls it, and not from a handler that can interrupt this function.
    pub fn write(&self, words: [u64; 4]) {
        let count = own(&self.count);
        self.count.store(count.wrapping_add(1), Ordering::Relaxed);
        // A reader that sees one of the words below also sees the odd count: this fence pairs with the one in `read`.
        fence(Ordering::Release);
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        self.count.store(count.wrapping_add(2), Ordering::Release);
    }

    /// Reads the words. Returns `None` if there are none, or if they are just being written.
    pub fn read(&self) -> Option<[u64; 4]> {
        let count = self.count.load(Ordering::Acquire);
        if count == 0 || count & 1 == 1 {
            return None;
        }
        let mut words = [0; 4];
        for (to, from) in words.iter_mut().zip(&self.words) {
            *to = from.load(Ordering::Relaxed);
        }
        // If a word is of a later write, the count that is read next is that write's odd one, or a later one: see `write`.
        fence(Ordering::Acquire);
        (self.count.load(Ordering::Relaxed) == count).then_some(words)
    }
}

impl Default for Published {
    fn default() -> Self {
        Self::new()
    }
}
