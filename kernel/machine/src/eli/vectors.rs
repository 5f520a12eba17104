//! Sets of interrupt vectors, and which of them the host takes for itself.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::idt::Image;

/// The first vector that is not an exception's.
const FIRST: u8 = 0x20;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_s_vectors_are_never_those_that_the_guest_has_used() {
        let used = Used::default();
        let mut taken = Vec::new();
        while let Some(host) = HostVectors::choose(&used, None) {
            assert_ne!(host.kick, host.probe);
            for v in [host.kick, host.probe] {
                assert!((FIRST..=0xfe).contains(&v), "{v:#x} is an exception's or the host's spurious vector");
                assert!(host.contains(v) && !taken.contains(&v));
                taken.push(v);
                used.add(v);
            }
        }
        assert_eq!(taken.len(), usize::from(0xfe - FIRST + 1) / 2 * 2, "all can be used up");
        assert_eq!(taken[0], 0xf5);
    }

    #[test]
    fn a_gate_that_would_not_fault_by_np_is_left_alone() {
        let mut bytes = [0; 4096];
        for vector in [0x41_usize, 0x80] {
            bytes[vector * 16 + 5] = 0x8e;
        }
        bytes[0xf5 * 16 + 5] = 0x85; // a task gate: #GP in 64-bit mode
        let image = Image(bytes);
        assert_eq!(HostVectors::choose(&Used::default(), Some(&image)), Some(HostVectors { kick: 0x80, probe: 0x41 }));
        let used = Used::default();
        used.add(0x41);
        assert_eq!(HostVectors::choose(&used, Some(&image)), None);
    }

    #[test]
    fn no_vectors_are_told_from_any() {
        assert_eq!(HostVectors::from_bits(HostVectors::to_bits(None)), None);
        let host = HostVectors { kick: 0xf5, probe: 0x20 };
        assert_eq!(HostVectors::from_bits(HostVectors::to_bits(Some(host))), Some(host));
    }
}
