//! Chooses the host's vectors on the cores of a guest. They are vectors that the guest does not use.

use super::host_vectors::HostVectors;
use super::idt::Image;
use super::sync::{AtomicU64, Ordering::SeqCst};
use crate::bitmap;

/// The first vector that is not an exception's.
pub(super) const FIRST: u8 = 0x20;

/// Vectors to try first. They have the highest priority class, and Linux as a guest does not use them: 0xf5 is free,
/// and 0xf0 to 0xf2 belong to KVM inside the guest. This saves a later change of vectors. Nothing depends on it.
const PREFERRED: [u8; 4] = [0xf5, 0xf0, 0xf1, 0xf2];

/// Chooses the vectors of the highest priority that the guest has not used. Their gates in `idt` must fault only by
/// #NP. Returns `None` if there are not enough.
#[must_use]
pub fn choose(used: &Used, idt: Option<&Image>) -> Option<HostVectors> {
    let good = |v: &u8| !used.contains(*v) && idt.is_none_or(|idt| idt.is_gate(*v));
    let mut found = PREFERRED.into_iter().chain((FIRST..=0xfe).rev().filter(|v| !PREFERRED.contains(v))).filter(good);
    Some(HostVectors { kick: found.next()?, probe: found.next()? })
}

/// The vectors that a guest has used: raised by a device, sent as an IPI, or given to its timer. Any core may use it.
#[derive(Debug, Default)]
pub struct Used([AtomicU64; 4]);

impl Used {
    /// Adds a vector. Writes nothing if it was added before, which is the usual case on the data path.
    pub fn add(&self, vector: u8) {
        let (word, bit) = (bitmap::word(&self.0, vector), 1 << (vector & 63));
        if word.load(SeqCst) & bit == 0 {
            word.fetch_or(bit, SeqCst);
        }
    }

    /// Whether it is one of them.
    #[must_use]
    pub fn contains(&self, vector: u8) -> bool {
        bitmap::word(&self.0, vector).load(SeqCst) >> (vector & 63) & 1 != 0
    }
}

/// The host's vectors on the cores of one guest, and the vectors that the guest has used. No vector is in both (tested
/// in `model.rs`).
#[derive(Debug, Default)]
pub struct Vectors {
    /// The host's vectors by [`HostVectors::to_bits`].
    host: AtomicU64,
    used: Used,
}

impl Vectors {
    /// Returns the host's vectors. Returns `None` if the guest uses all vectors, or if none were chosen.
    pub fn host(&self) -> Option<HostVectors> {
        HostVectors::from_bits(self.host.load(SeqCst))
    }

    /// Returns the vectors that the guest has used.
    pub fn used(&self) -> &Used {
        &self.used
    }

    /// Notes that the guest uses a vector. Returns true if the vector is one of the host's. Then the host must choose
    /// others before the guest gets an interrupt with it. Any core may call it.
    pub fn uses(&self, vector: u8) -> bool {
        // This adds first and loads then. `choose` stores first and loads then. So at least one of the two sees the
        // other.
        self.used.add(vector);
        self.host().is_some_and(|v| v.contains(vector))
    }

    /// Chooses the host's vectors. If `idt` is given, they have gates that a shadow can use. One core at a time may
    /// call it.
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
