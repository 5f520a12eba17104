//! The posted-interrupt descriptor (SDM vol. 3C 30.6). Other cores write it, and the CPU reads it while a guest runs.
//!
//! Bits 0 to 255 are PIR, one for each vector. Bit 256 is ON, "a notification is outstanding". The rest of the 64 bytes
//! is SN, the notification vector and its destination, for devices behind an IOMMU that posts. It stays zero here: the
//! CPU does not read it, and the senders are cores, which know vector and destination.

use super::atomics::{AtomicU64, Ordering::SeqCst};
use crate::bitmap::word;

const ON: u64 = 1;

/// A posted-interrupt descriptor. While the guest runs, the CPU changes it too. All changes are locked
/// read-modify-write operations.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Descriptor {
    pir: [AtomicU64; 4],
    /// Bit 0 is ON.
    control: AtomicU64,
    _others: [u64; 3],
}

impl Default for Descriptor {
    fn default() -> Self {
        Self::new()
    }
}

impl Descriptor {
    /// Makes an empty descriptor.
    #[must_use]
    pub fn new() -> Self {
        Self { pir: core::array::from_fn(|_| AtomicU64::new(0)), control: AtomicU64::new(0), _others: [0; 3] }
    }

    /// Posts a vector. Returns true if ON was clear. Then the caller must notify the vCPU. Any core may call it.
    #[must_use = "true means that somebody has to be told"]
    pub fn post(&self, vector: u8) -> bool {
        word(&self.pir, vector).fetch_or(1 << (vector & 63), SeqCst); // S1
        self.control.fetch_or(ON, SeqCst) & ON == 0 // S2
    }

    /// Whether something was posted since the last drain.
    #[must_use]
    pub fn outstanding(&self) -> bool {
        self.control.load(SeqCst) & ON != 0
    }

    /// Takes all posted vectors, as the CPU does when it is notified. Returns `None` if nothing is outstanding. Only
    /// the owner may call it, while its guest does not run.
    #[must_use = "the vectors are gone from the descriptor"]
    pub fn take(&self) -> Option<[u64; 4]> {
        if !self.outstanding() {
            return None;
        }
        self.control.fetch_and(!ON, SeqCst); // D1
        Some(self.pir.each_ref().map(|word| word.swap(0, SeqCst))) // D2
    }

    /// Returns PIR and the word with ON, for a model of the CPU.
    #[cfg(test)]
    pub fn words(&self) -> (&[AtomicU64; 4], &AtomicU64) {
        (&self.pir, &self.control)
    }

    /// Empties the descriptor. Nobody may post meanwhile.
    pub fn reset(&self) {
        for word in &self.pir {
            word.store(0, SeqCst);
        }
        self.control.store(0, SeqCst);
    }
}
