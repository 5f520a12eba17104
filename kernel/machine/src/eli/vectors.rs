//! Chooses the host's vectors on the cores of a guest, among those that the guest does not use.

use super::host_vectors::HostVectors;
use super::idt::Image;
use super::sync::{AtomicU64, Ordering::SeqCst};

/// The first vector that is not an exception's.
pub(super) const FIRST: u8 = 0x20;

/// Vectors to try first. They are of the highest priority class, and Linux as a guest does not use them: 0xf5 is free, 0xf0
/// to 0xf2 belong to a KVM in the guest. It saves a later change of vectors; nothing depends on it.
const PREFERRED: [u8; 4] = [0xf5, 0xf0, 0xf1, 0xf2];

/// Chooses the vectors of the highest priority that the guest has not used and whose gates in `idt` would fault by #NP
/// alone. None: there are not enough.
#[must_use]
pub fn choose(used: &Used, idt: Option<&Image>) -> Option<HostVectors> {
    let good = |v: &u8| !used.contains(*v) && idt.is_none_or(|idt| idt.is_gate(*v));
    let mut found = PREFERRED.into_iter().chain((FIRST..=0xfe).rev().filter(|v| !PREFERRED.contains(v))).filter(good);
    Some(HostVectors { kick: found.next()?, probe: found.next()? })
}

/// The vectors that a guest has used: raised by a device, sent as an IPI, or given to its timer. From any core.
#[derive(Debug, Default)]
pub struct Used([AtomicU64; 4]);

impl Used {
    /// Adds a vector. Writes nothing if it is there already, as on the data path.
    pub fn add(&self, vector: u8) {
        let (word, bit) = (&self.0[usize::from(vector >> 6)], 1 << (vector & 63));
        if word.load(SeqCst) & bit == 0 {
            word.fetch_or(bit, SeqCst);
        }
    }

    /// Whether it is one of them.
    #[must_use]
    pub fn contains(&self, vector: u8) -> bool {
        self.0[usize::from(vector >> 6)].load(SeqCst) >> (vector & 63) & 1 != 0
    }
}

/// The host's vectors on the cores of one guest, and the vectors that the guest has used. No vector is in both (`model.rs`
/// tries it).
#[derive(Debug, Default)]
pub struct Vectors {
    /// [`HostVectors::to_bits`].
    host: AtomicU64,
    used: Used,
}

impl Vectors {
    /// The host's vectors. None: the guest uses all there are, or none were chosen.
    pub fn host(&self) -> Option<HostVectors> {
        HostVectors::from_bits(self.host.load(SeqCst))
    }

    /// Those that the guest has used.
    pub fn used(&self) -> &Used {
        &self.used
    }

    /// Notes that the guest uses a vector. True: the vector is one of the host's, and the host has to choose others before
    /// the guest gets an interrupt with it. From any core.
    pub fn uses(&self, vector: u8) -> bool {
        // Add, then look: `choose` stores, then looks at what was added. One of the two sees the other.
        self.used.add(vector);
        self.host().is_some_and(|v| v.contains(vector))
    }

    /// Chooses the host's vectors; with gates for a shadow if `idt` is given. From one core at a time.
    pub fn choose(&self, idt: Option<&Image>) -> Option<HostVectors> {
        loop {
            let chosen = choose(&self.used, idt);
            self.host.store(HostVectors::to_bits(chosen), SeqCst);
            if !chosen.is_some_and(|v| self.used.contains(v.kick) || self.used.contains(v.probe)) {
                return chosen;
            }
        }
    }
}
