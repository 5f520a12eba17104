//! A deterministic random bit generator: `ChaCha20` with a key that changes after each use, so that a copy of its state
//! does not tell what it gave before.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// Bytes of its key.
const KEY: usize = 32;

/// The generator. What it gives is as good as what it has absorbed.
pub struct Generator {
    key: [u8; KEY],
}

impl Default for Generator {
    fn default() -> Self {
        Self::new()
    }
}

impl Generator {
    /// A generator that has absorbed nothing. It gives the same bytes on every machine.
    #[must_use]
    pub const fn new() -> Self {
        Self { key: [0; KEY] }
    }

    /// Absorbs a sample. The new key depends on all samples and their order.
    pub fn absorb(&mut self, sample: u64) {
        for (byte, with) in self.key.iter_mut().zip(sample.to_le_bytes()) {
            *byte ^= with;
        }
        self.fill(&mut []);
    }

    /// Fills `bytes` and changes the key.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let mut stream = ChaCha20Rng::from_seed(self.key);
        stream.fill_bytes(&mut self.key);
        stream.fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::Generator;

    fn given(samples: &[u64]) -> [u8; 40] {
        let mut generator = Generator::new();
        samples.iter().for_each(|&sample| generator.absorb(sample));
        let mut bytes = [0; 40];
        generator.fill(&mut bytes);
        bytes
    }

    #[test]
    fn it_is_chacha20_with_the_standards_first_block_for_the_zero_key() {
        // RFC 8439 A.1, test vector 1: the key stream of the zero key. Its first half becomes the next key.
        let mut bytes = [0; 32];
        Generator::new().fill(&mut bytes);
        assert_eq!(bytes[..8], [0xda, 0x41, 0x59, 0x7c, 0x51, 0x57, 0x48, 0x8d]);
    }

    #[test]
    fn all_samples_and_their_order_matter_and_the_same_ones_give_the_same() {
        assert_eq!(given(&[1, 2, 3]), given(&[1, 2, 3]));
        let others = [&[][..], &[1, 2], &[1, 3, 2], &[0, 1, 2, 3], &[1, 2, 3, 0], &[1 << 63, 2, 3]];
        assert!(others.iter().all(|samples| given(samples) != given(&[1, 2, 3])));
    }

    #[test]
    fn it_never_gives_the_same_twice() {
        let mut generator = Generator::new();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let mut bytes = [0; 16];
            generator.fill(&mut bytes);
            assert!(seen.insert(bytes));
        }
    }
}
