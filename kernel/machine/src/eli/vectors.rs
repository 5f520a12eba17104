//! Sets of interrupt vectors, and which of them the host takes for itself.

use super::idt::Image;
use super::sync::{AtomicU64, Ordering::SeqCst};

/// The first vector that is not an exception's.
pub(super) const FIRST: u8 = 0x20;

/// Vectors of the highest priority class that Linux as a guest leaves alone: 0xf5 has no use, 0xf0 to 0xf2 are those of
/// a KVM in the guest. That saves moving away later; it is no promise that anything rests on.
const PREFERRED: [u8; 4] = [0xf5, 0xf0, 0xf1, 0xf2];

/// The host's own vectors on the cores of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostVectors {
    /// Sent by other cores: look into the mailbox.
    pub kick: u8,
    /// Sent by a core to itself when it starts to rely on a shadow: its arrival shows that interrupts come through.
    pub probe: u8,
}

impl HostVectors {
    /// Whether a vector is one of them.
    #[must_use]
    pub fn contains(self, vector: u8) -> bool {
        vector == self.kick || vector == self.probe
    }

    /// Chooses those of the highest priority that the guest has not used and whose gates in `idt` would fault by #NP
    /// alone. None: there are not enough.
    #[must_use]
    pub fn choose(used: &Used, idt: Option<&Image>) -> Option<Self> {
        let good = |v: &u8| !used.contains(*v) && idt.is_none_or(|idt| idt.is_gate(*v));
        let mut found =
            PREFERRED.into_iter().chain((FIRST..=0xfe).rev().filter(|v| !PREFERRED.contains(v))).filter(good);
        Some(Self { kick: found.next()?, probe: found.next()? })
    }

    pub(super) fn to_bits(this: Option<Self>) -> u64 {
        this.map_or(0, |v| u64::from(v.kick) | u64::from(v.probe) << 8)
    }

    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self { kick: bits as u8, probe: (bits >> 8) as u8 })
    }
}

/// The vectors that a guest has used: raised by a device, sent as an IPI, or given to its timer. From any core.
#[derive(Debug, Default)]
pub struct Used([AtomicU64; 4]);

impl Used {
    /// Adds one. The data path's case, that it is known already, writes nothing.
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

/// The host's vectors of one guest, with those that it has used. The two never meet: `model.rs` has loom try it.
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

    /// The guest uses a vector. True: it is one of the host's, which has to choose others before the guest gets an interrupt
    /// with it. From any core.
    pub fn uses(&self, vector: u8) -> bool {
        // Add, then look: `choose` stores, then looks at what was added. One of the two sees the other.
        self.used.add(vector);
        self.host().is_some_and(|v| v.contains(vector))
    }

    /// Chooses the host's vectors; with gates for a shadow if `idt` is given. From one core at a time.
    pub fn choose(&self, idt: Option<&Image>) -> Option<HostVectors> {
        loop {
            let chosen = HostVectors::choose(&self.used, idt);
            self.host.store(HostVectors::to_bits(chosen), SeqCst);
            if !chosen.is_some_and(|v| self.used.contains(v.kick) || self.used.contains(v.probe)) {
                return chosen;
            }
        }
    }
}
