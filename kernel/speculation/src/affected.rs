//! What a CPU is vulnerable to.
//!
//! Two sources: bits by which a CPU denies a vulnerability, and lists of models. Intel: "Affected Processors: Guidance for
//! Security Issues on Intel Processors". AMD: bulletins AMD-SB-1037 (retbleed), AMD-SB-7005 (SRSO) and AMD-SB-7029 (TSA).

#![allow(missing_docs, reason = "the names are Linux's")]

use crate::processor::{ArchCapabilities as Says, Leaf8Ebx, Leaf21Eax, Processor, Vendor};
use bitflags::bitflags;

bitflags! {
    /// Vulnerabilities, with Linux's names.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Vulnerabilities: u16 {
        const MELTDOWN = 1 << 0;
        const SPECTRE_V1 = 1 << 1;
        const SPECTRE_V2 = 1 << 2;
        const SPEC_STORE_BYPASS = 1 << 3;
        const L1TF = 1 << 4;
        const MDS = 1 << 5;
        const TSX_ASYNC_ABORT = 1 << 6;
        const ITLB_MULTIHIT = 1 << 7;
        const MMIO_STALE_DATA = 1 << 8;
        const RETBLEED = 1 << 9;
        const SRBDS = 1 << 10;
        const GATHER_DATA_SAMPLING = 1 << 11;
        const REG_FILE_DATA_SAMPLING = 1 << 12;
        const SPEC_RSTACK_OVERFLOW = 1 << 13;
        const INDIRECT_TARGET_SELECTION = 1 << 14;
        const TSA = 1 << 15;
    }
}

use Vulnerabilities as V;

/// A set that can be a constant.
const fn all(sets: &[V]) -> V {
    let (mut bits, mut i) = (0, 0);
    while i < sets.len() {
        bits |= sets[i].bits();
        i += 1;
    }
    V::from_bits_retain(bits)
}

/// What a CPU has if nothing says otherwise.
const DEFAULT: V =
    all(&[V::MELTDOWN, V::SPECTRE_V1, V::SPECTRE_V2, V::SPEC_STORE_BYPASS, V::L1TF, V::MDS, V::ITLB_MULTIHIT]);
const SKYLAKE: V = all(&[V::MMIO_STALE_DATA, V::RETBLEED, V::GATHER_DATA_SAMPLING]);
const SMALL_CORE: V = all(&[V::L1TF, V::ITLB_MULTIHIT]);
const NOTHING: V = V::empty();

/// Models of Intel's family 6: the models, what they do not have of [`DEFAULT`], and what they have besides it.
const FAMILY_6: &[(&[u32], V, V)] = &[
    (&[0x1c, 0x26, 0x27, 0x35, 0x36], DEFAULT, NOTHING), // Bonnell, Saltwell: in order
    (&[0x37, 0x4a, 0x4d, 0x4c, 0x57, 0x85], all(&[SMALL_CORE, V::SPEC_STORE_BYPASS]), NOTHING), // Silvermont, Airmont, Phi
    (&[0x5a, 0x75], SMALL_CORE, NOTHING),                                                       // Airmont
    (&[0x5c, 0x5f, 0x7a], all(&[SMALL_CORE, V::MDS]), V::REG_FILE_DATA_SAMPLING),               // Goldmont
    (&[0x86], V::ITLB_MULTIHIT, all(&[V::MMIO_STALE_DATA, V::REG_FILE_DATA_SAMPLING])),         // Tremont of servers
    // Tremont of clients.
    (&[0x96, 0x9c], V::ITLB_MULTIHIT, all(&[V::MMIO_STALE_DATA, V::SRBDS, V::REG_FILE_DATA_SAMPLING])),
    (&[0x3a, 0x3c, 0x45, 0x46, 0x3d, 0x47], NOTHING, V::SRBDS), // Ivy Bridge, Haswell, Broadwell of clients
    (&[0x3f, 0x4f, 0x56], NOTHING, V::MMIO_STALE_DATA),         // Haswell-EP, Broadwell-EP, Broadwell-DE
    (&[0x55], NOTHING, SKYLAKE),                                // Skylake-SP, Cascade Lake, Cooper Lake
    (&[0x4e, 0x5e, 0x8e, 0x9e], NOTHING, all(&[SKYLAKE, V::SRBDS])), // Skylake, Kaby Lake, Coffee Lake
    (&[0x66], NOTHING, V::RETBLEED),                            // Cannon Lake
    (&[0x6a, 0x6c], NOTHING, all(&[V::MMIO_STALE_DATA, V::GATHER_DATA_SAMPLING])), // Ice Lake-SP, -D
    (&[0x7e, 0xa5, 0xa6], NOTHING, all(&[SKYLAKE, V::SRBDS])),  // Ice Lake, Comet Lake
    (&[0x8a], NOTHING, all(&[V::MMIO_STALE_DATA, V::RETBLEED, V::SRBDS])), // Lakefield
    (&[0x8c, 0x8d], NOTHING, V::GATHER_DATA_SAMPLING),          // Tiger Lake
    (&[0xa7], NOTHING, SKYLAKE),                                // Rocket Lake
    (&[0x97, 0x9a, 0xb7, 0xba, 0xbf, 0xbe], NOTHING, V::REG_FILE_DATA_SAMPLING), // Alder Lake, Raptor Lake
];

impl Processor {
    /// Returns what this CPU is vulnerable to. A CPU that no list knows is taken for one that has what it does not deny.
    #[must_use]
    pub fn affected(&self) -> Vulnerabilities {
        match self.vendor {
            Vendor::Amd | Vendor::Hygon => self.affected_amd(),
            Vendor::Intel if self.family == 6 => self.affected_intel(),
            Vendor::Intel | Vendor::Other => self.undenied(DEFAULT - V::ITLB_MULTIHIT),
        }
    }

    /// Whether indirect branches can be steered through the history of branches (BHI). Linux counts this as spectre_v2.
    #[must_use]
    pub fn has_bhi(&self) -> bool {
        self.vendor == Vendor::Intel
            && self.says(Says::IBRS_ALL)
            && !self.says(Says::BHI_NO)
            && self.affected().contains(V::SPECTRE_V2)
    }

    /// Whether the first return after an exit may use a prediction of the guest's although IBRS is enhanced (PBRSB).
    pub(crate) fn has_pbrsb(&self) -> bool {
        let small_core = [0x7a, 0x86, 0x96, 0x9c].contains(&self.model);
        self.vendor == Vendor::Intel && self.says(Says::IBRS_ALL) && !self.says(Says::PBRSB_NO) && !small_core
    }

    fn affected_intel(&self) -> V {
        let known = FAMILY_6.iter().find(|(models, ..)| models.contains(&self.model));
        let mut set = known.map_or(DEFAULT, |&(_, without, besides)| DEFAULT.difference(without) | besides);
        set.set(V::INDIRECT_TARGET_SELECTION, self.has_its());
        self.undenied(set)
    }

    /// Whether a guest can steer the host's indirect branches that lie in the lower half of a line of the cache (ITS). Ice Lake, Tiger Lake and
    /// Rocket Lake have it within a guest and within the host only.
    const fn has_its(&self) -> bool {
        // BHI_CTRL came with CPUs that do not have it.
        !self.bhi_ctrl
            && match self.model {
                0x55 => self.stepping > 5, // Cascade Lake, Cooper Lake
                0x8e => self.stepping > 0xb,
                0x9e => self.stepping > 0xc,
                0xa5 | 0xa6 => true, // Comet Lake
                _ => false,
            }
    }

    /// Takes out what IA32_ARCH_CAPABILITIES denies, and adds what depends on it.
    fn undenied(&self, mut set: V) -> V {
        let immune = Says::SBDR_SSDP_NO | Says::FBSDP_NO | Says::PSDP_NO;
        for (denial, denied) in [
            (Says::RDCL_NO, V::MELTDOWN | V::L1TF),
            (Says::SSB_NO, V::SPEC_STORE_BYPASS),
            (Says::MDS_NO, V::MDS),
            (Says::IF_PSCHANGE_MC_NO, V::ITLB_MULTIHIT),
            (immune, V::MMIO_STALE_DATA),
            (Says::GDS_NO, V::GATHER_DATA_SAMPLING),
            (Says::RFDS_NO, V::REG_FILE_DATA_SAMPLING),
            (Says::ITS_NO, V::INDIRECT_TARGET_SELECTION),
        ] {
            if self.says(denial) {
                set -= denied;
            }
        }
        if self.says(Says::RFDS_CLEAR) && !self.says(Says::RFDS_NO) {
            set |= V::REG_FILE_DATA_SAMPLING;
        }
        if self.says(Says::RSBA) {
            set |= V::RETBLEED;
        }
        // A CPU with TSX, also if the firmware has switched it off by IA32_TSX_CTRL.
        if (self.rtm || self.says(Says::TSX_CTRL)) && !self.says(Says::TAA_NO) {
            set |= V::TSX_ASYNC_ABORT;
        }
        set
    }

    fn affected_amd(&self) -> V {
        let mut set = V::SPECTRE_V1 | V::SPECTRE_V2;
        if !(0xf..=0x12).contains(&self.family) && !self.leaf_8.contains(Leaf8Ebx::SSB_NO) {
            set |= V::SPEC_STORE_BYPASS;
        }
        let (retbleed, srso) = match (self.vendor, self.family) {
            (_, 0x15 | 0x16) => (true, false),
            (Vendor::Hygon, 0x18) | (_, 0x17) => (true, true),
            (_, 0x19 | 0x1a) => (false, true),
            _ => (false, false),
        };
        if retbleed && !self.leaf_8.contains(Leaf8Ebx::BTC_NO) {
            set |= V::RETBLEED;
        }
        // Zen 3 and Zen 4.
        if self.vendor == Vendor::Amd && self.family == 0x19 && !self.tsa_no {
            set |= V::TSA;
        }
        if srso && !self.leaf_21.contains(Leaf21Eax::SRSO_NO) {
            set |= V::SPEC_RSTACK_OVERFLOW;
        }
        set
    }
}
