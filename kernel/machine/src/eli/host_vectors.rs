//! The vectors by which the host reaches the cores of a guest that owns its local APICs.

/// The host's own vectors on the cores of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostVectors {
    /// Other cores send it. Then the vCPU's core must drain its mailbox.
    pub kick: u8,
    /// A core sends it to itself when it begins to rely on a shadow. Its arrival shows that interrupts reach the host.
    pub probe: u8,
}

impl HostVectors {
    /// Whether a vector is one of them.
    #[must_use]
    pub fn contains(self, vector: u8) -> bool {
        vector == self.kick || vector == self.probe
    }

    pub(super) fn to_bits(this: Option<Self>) -> u64 {
        this.map_or(0, |v| u64::from(v.kick) | u64::from(v.probe) << 8)
    }

    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        (bits != 0).then_some(Self { kick: bits as u8, probe: (bits >> 8) as u8 })
    }
}
