//! The posted-interrupt descriptor (SDM vol. 3C 30.6): what other cores write and the CPU reads while a guest runs.
//!
//! Bits 0 to 255 are PIR, one for each vector. Bit 256 is ON, "a notification is outstanding". The rest of the 64 bytes is
//! for devices behind an IOMMU that posts: SN, the notification vector and its destination. It stays zero here. The CPU
//! does not read it, and the senders are cores, which know vector and destination themselves.

use super::atomics::{AtomicU64, Ordering::SeqCst};

const ON: u64 = 1;

/// A posted-interrupt descriptor. While the guest runs the CPU changes it too. Everybody changes it by locked
/// read-modify-write instructions.
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
    /// Nothing posted.
    #[must_use]
    pub fn new() -> Self {
        Self { pir: core::array::from_fn(|_| AtomicU64::new(0)), control: AtomicU64::new(0), _others: [0; 3] }
    }

    /// Posts a vector. True: ON was clear, so the caller has to see to it that somebody looks. From any core.
    #[must_use = "true means that somebody has to be told"]
    pub fn post(&self, vector: u8) -> bool {
        self.pir[usize::from(vector >> 6)].fetch_or(1 << (vector & 63), SeqCst); // S1
        self.control.fetch_or(ON, SeqCst) & ON == 0 // S2
    }

    /// Whether something was posted and nobody has looked since.
    #[must_use]
    pub fn outstanding(&self) -> bool {
        self.control.load(SeqCst) & ON != 0
    }

    /// Takes everything posted, as the CPU does when it is notified. None: nothing is outstanding. By the owner only, and
    /// only while its guest does not run.
    #[must_use = "the vectors are gone from the descriptor"]
    pub fn take(&self) -> Option<[u64; 4]> {
        if !self.outstanding() {
            return None;
        }
        self.control.fetch_and(!ON, SeqCst); // D1
        Some(self.pir.each_ref().map(|word| word.swap(0, SeqCst))) // D2
    }

    /// Forgets everything. Nobody may post meanwhile.
    pub fn reset(&self) {
        for word in &self.pir {
            word.store(0, SeqCst);
        }
        self.control.store(0, SeqCst);
    }
}
