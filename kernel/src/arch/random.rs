//! The CPU's random numbers: RDRAND (SDM vol. 1 7.3.17, APM vol. 3).

use entropy::source::Source;
use x86_64::instructions::random;

/// Most tries of RDRAND for one word. If all fail, the CPU has no random bytes now (SDM vol. 1 7.3.17.1).
const TRIES: usize = 10;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// RDRAND as a source of random bytes.
pub struct RdRand {
    /// `None` if this CPU does not have the instruction. Then no guest has an entropy device.
    instruction: Option<random::RdRand>,
}

impl RdRand {
    /// Makes the source for the calling core. All cores are alike.
    pub fn new() -> Self {
        Self { instruction: random::RdRand::new() }
    }
}

impl Source for RdRand {
    fn fill(&mut self, bytes: &mut [u8]) -> bool {
        let Some(instruction) = self.instruction else { return false };
        for part in bytes.chunks_mut(WORD) {
            let Some(word) = (0..TRIES).find_map(|_| instruction.get_u64()) else { return false };
            part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
        }
        true
    }
}

/// Returns why guests cannot have random bytes on this machine, or `None` if they can.
pub fn refusal() -> Option<&'static str> {
    match random::RdRand::new() {
        Some(_) => None,
        None => Some("this CPU has no RDRAND, by which an entropy device gets its random bytes"),
    }
}
