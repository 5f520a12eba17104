//! The CPU's random numbers as a [`Source`]: RDSEED, else RDRAND, else a generator that was seeded at boot.

use crate::generator::Generator;
use crate::source::Source;

/// Tries of RDSEED for one word. Other cores use the same hardware, so it may have nothing now (SDM vol. 1 7.3.17.2).
/// RDRAND is the better next step then, because it is not exhausted so soon.
const SEED_TRIES: usize = 4;
/// Tries of RDRAND for one word. If all fail, the hardware is broken (SDM vol. 1 7.3.17.1).
const RANDOM_TRIES: usize = 10;
/// Words of hardware with which the generator is seeded: 256 bits.
const SEED_WORDS: usize = 4;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// The CPU's two instructions. `None`: the CPU does not have it, or it has no number now.
pub trait Instructions {
    /// RDSEED.
    fn seed(&mut self) -> Option<u64>;
    /// RDRAND.
    fn random(&mut self) -> Option<u64>;
}

/// The source. It always has bytes.
pub struct Cpu<I> {
    instructions: I,
    generator: Generator,
    /// The last word of hardware. The same word twice in a row is broken hardware.
    last: Option<u64>,
}

impl<I: Instructions> Cpu<I> {
    /// Makes the source. Seeds the generator with the CPU's numbers, and with `samples` of anything that an outsider
    /// cannot predict, such as times. On a CPU without the instructions the samples are all there is.
    pub fn new(instructions: I, samples: impl IntoIterator<Item = u64>) -> Self {
        let mut cpu = Self { instructions, generator: Generator::new(), last: None };
        for _ in 0..SEED_WORDS {
            if let Some(word) = cpu.hardware() {
                cpu.generator.absorb(word);
            }
        }
        samples.into_iter().for_each(|sample| cpu.generator.absorb(sample));
        cpu
    }

    /// Takes a word of hardware.
    fn hardware(&mut self) -> Option<u64> {
        let seed = (0..SEED_TRIES).find_map(|_| self.instructions.seed());
        let word = seed.or_else(|| (0..RANDOM_TRIES).find_map(|_| self.instructions.random()))?;
        (self.last.replace(word) != Some(word)).then_some(word)
    }
}

impl<I: Instructions> Source for Cpu<I> {
    fn fill(&mut self, bytes: &mut [u8]) -> bool {
        for part in bytes.chunks_mut(WORD) {
            match self.hardware() {
                Some(word) => part.iter_mut().zip(word.to_le_bytes()).for_each(|(byte, of)| *byte = of),
                None => self.generator.fill(part),
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::{Cpu, Instructions, RANDOM_TRIES, SEED_TRIES};
    use crate::source::Source;

    /// A CPU whose instructions succeed once in so many tries. 0: the CPU does not have it.
    #[derive(Default)]
    struct Fake {
        seed_every: usize,
        random_every: usize,
        stuck: bool,
        seeds: usize,
        randoms: usize,
    }

    impl Instructions for &mut Fake {
        fn seed(&mut self) -> Option<u64> {
            self.seeds += 1;
            let stuck = self.stuck;
            (self.seed_every != 0 && self.seeds.is_multiple_of(self.seed_every))
                .then(|| if stuck { u64::MAX } else { 0x5eed_0000 + self.seeds as u64 })
        }

        fn random(&mut self) -> Option<u64> {
            self.randoms += 1;
            (self.random_every != 0 && self.randoms.is_multiple_of(self.random_every))
                .then_some(0xaaaa_0000 + self.randoms as u64)
        }
    }

    /// Words that the source gives after it was made.
    fn words<const N: usize>(fake: &mut Fake, samples: &[u64]) -> [u64; N] {
        let mut cpu = Cpu::new(fake, samples.iter().copied());
        let mut bytes = vec![0; 8 * N];
        assert!(cpu.fill(&mut bytes));
        core::array::from_fn(|n| u64::from_le_bytes(bytes[8 * n..][..8].try_into().expect("a word")))
    }

    #[test]
    fn rdseed_comes_first() {
        let mut fake = Fake { seed_every: SEED_TRIES, random_every: 1, ..Fake::default() };
        let words: [u64; 3] = words(&mut fake, &[]);
        assert_eq!(words, [5, 6, 7].map(|n| 0x5eed_0000 + n * SEED_TRIES as u64), "the first four are the seed");
        assert_eq!(fake.randoms, 0);
    }

    #[test]
    fn rdrand_comes_next_where_rdseed_is_missing_or_exhausted() {
        for seed_every in [0, SEED_TRIES * 100] {
            let mut fake = Fake { seed_every, random_every: RANDOM_TRIES, ..Fake::default() };
            let words: [u64; 2] = words(&mut fake, &[]);
            assert_eq!(words, [5, 6].map(|n| 0xaaaa_0000 + n * RANDOM_TRIES as u64));
        }
    }

    #[test]
    fn the_generator_comes_last_and_never_fails() {
        for random_every in [0, RANDOM_TRIES * 100] {
            let [first, second]: [u64; 2] = words(&mut Fake { random_every, ..Fake::default() }, &[1, 2]);
            assert_ne!(first, second);
            assert_eq!(words(&mut Fake { random_every, ..Fake::default() }, &[1, 2]), [first, second]);
            assert_ne!(words(&mut Fake { random_every, ..Fake::default() }, &[1, 3]), [first, second]);
        }
    }

    #[test]
    fn hardware_that_repeats_itself_is_not_believed() {
        let words: [u64; 4] = words(&mut Fake { seed_every: 1, stuck: true, ..Fake::default() }, &[]);
        assert!(words.iter().all(|&word| word != u64::MAX), "{words:x?}");
    }

    #[test]
    fn a_part_of_a_word_is_filled_too() {
        let mut fake = Fake { seed_every: 1, ..Fake::default() };
        let mut cpu = Cpu::new(&mut fake, []);
        let mut bytes = [0; 11];
        assert!(cpu.fill(&mut bytes));
        assert_eq!(bytes, [5, 0, 0xed, 0x5e, 0, 0, 0, 0, 6, 0, 0xed]);
    }
}
