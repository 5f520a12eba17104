//! VLANs (IEEE 802.1Q): the VLAN of a frame that enters at a port, and its tagging when it leaves.

/// The number of a VLAN, 1 to 4094. Ports without configured VLANs share a network of their own, [`PLAIN`].
pub type Vlan = u16;

/// The network of ports without VLANs. At these ports a tag is payload.
pub const PLAIN: Vlan = 0;
/// Highest number (9.6: 4095 is reserved).
pub const MAX_VLAN: Vlan = 4094;
/// Bits of a tag that are the number of the VLAN (9.6, VID).
pub const VID: u16 = 0xfff;
/// EtherType of a tag (9.4).
pub const TAGGED: u16 = 0x8100;
/// EtherType of a service tag, which encloses other tags.
pub const SERVICE_TAGGED: u16 = 0x88a8;

/// The VLANs of a port, and how its frames are tagged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there is one for each port, made once, and no heap")]
pub enum Membership {
    /// No VLANs: tags are payload.
    #[default]
    Plain,
    /// No VLANs, and no tags: tagged frames are refused.
    Untagged,
    /// One VLAN, untagged. Tagged frames are refused.
    Access(Vlan),
    /// Several VLANs, tagged.
    Trunk {
        /// The VLANs.
        vlans: Vlans,
        /// The VLAN of untagged frames. `None`: they are refused.
        native: Option<Vlan>,
    },
}

/// How a frame is tagged when it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tagging {
    /// As it came: a tag is payload.
    Unchanged,
    /// Without a tag.
    Untagged,
    /// With the tag of its VLAN.
    Tagged,
}

impl Membership {
    /// Makes a membership in several VLANs. Frames of these are tagged, except those of `native`.
    #[must_use]
    pub fn trunk(vlans: impl IntoIterator<Item = Vlan>, native: Option<Vlan>) -> Self {
        let mut set = Vlans([0; 64]);
        vlans.into_iter().for_each(|vlan| set.insert(vlan));
        Self::Trunk { vlans: set, native }
    }

    /// Returns the VLAN of a frame that enters with this tag (TCI). `None`: the frame is refused.
    #[inline]
    #[must_use]
    pub fn admit(&self, tag: Option<u16>) -> Option<Vlan> {
        match (self, tag) {
            (Self::Plain, _) | (Self::Untagged, None) => Some(PLAIN),
            (Self::Access(vlan), None) => Some(*vlan),
            (Self::Trunk { native, .. }, None) => *native,
            (Self::Trunk { vlans, native }, Some(tag)) => {
                let vlan = tag & VID;
                (vlans.contains(vlan) && *native != Some(vlan)).then_some(vlan)
            }
            (Self::Access(_) | Self::Untagged, Some(_)) => None,
        }
    }

    /// Returns how frames of a VLAN are tagged here. `None`: the port is not in the VLAN.
    #[inline]
    #[must_use]
    pub fn carries(&self, vlan: Vlan) -> Option<Tagging> {
        match self {
            Self::Plain | Self::Untagged => (vlan == PLAIN).then_some(Tagging::Unchanged),
            Self::Access(own) => (vlan == *own).then_some(Tagging::Untagged),
            Self::Trunk { native: Some(native), .. } if *native == vlan => Some(Tagging::Untagged),
            Self::Trunk { vlans, .. } => vlans.contains(vlan).then_some(Tagging::Tagged),
        }
    }

    /// Returns whether tags are not looked at.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }
}

/// A set of VLANs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vlans([u64; 64]);

impl Vlans {
    /// Adds a VLAN. Numbers that no VLAN can have are ignored.
    fn insert(&mut self, vlan: Vlan) {
        if (1..=MAX_VLAN).contains(&vlan)
            && let Some(word) = self.0.get_mut(usize::from(vlan >> 6))
        {
            *word |= 1 << (vlan & 63);
        }
    }

    /// Returns whether a VLAN is in the set.
    #[inline]
    fn contains(&self, vlan: Vlan) -> bool {
        self.0.get(usize::from(vlan >> 6)).is_some_and(|word| word >> (vlan & 63) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Membership, PLAIN, Tagging, VID, Vlan};

    #[test]
    fn an_access_port_takes_and_gives_untagged_frames_of_its_vlan_only() {
        let port = Membership::Access(7);
        assert_eq!(port.admit(None), Some(7));
        // Its own number as a tag, a priority tag, another's: refused alike.
        for tag in [7, 0, 9, 0xe007] {
            assert_eq!(port.admit(Some(tag)), None, "{tag:#x}");
        }
        assert_eq!((port.carries(7), port.carries(9), port.carries(PLAIN)), (Some(Tagging::Untagged), None, None));
    }

    #[test]
    fn a_trunk_takes_the_tags_that_it_lists_whatever_their_priority() {
        let port = Membership::trunk([7, 9, 4094], None);
        for (tag, vlan) in [(7, Some(7)), (0xf009, Some(9)), (4094, Some(4094)), (8, None), (0, None), (4095, None)] {
            assert_eq!(port.admit(Some(tag)), vlan, "{tag:#x}");
        }
        assert_eq!(port.admit(None), None);
        assert_eq!((port.carries(9), port.carries(8), port.carries(PLAIN)), (Some(Tagging::Tagged), None, None));
    }

    #[test]
    fn a_port_without_tags_is_among_those_without_vlans_and_refuses_tags() {
        let port = Membership::Untagged;
        assert_eq!((port.admit(None), port.carries(PLAIN)), (Some(PLAIN), Some(Tagging::Unchanged)));
        for tag in [0, 7, 0xe007] {
            assert_eq!(port.admit(Some(tag)), None, "{tag:#x}");
        }
        assert_eq!(port.carries(7), None);
    }

    #[test]
    fn the_native_vlan_of_a_trunk_has_no_tag_either_way() {
        let port = Membership::trunk([7, 9], Some(9));
        assert_eq!((port.admit(None), port.admit(Some(9)), port.admit(Some(7))), (Some(9), None, Some(7)));
        assert_eq!((port.carries(9), port.carries(7)), (Some(Tagging::Untagged), Some(Tagging::Tagged)));
    }

    #[test]
    fn a_port_that_knows_of_no_vlans_shares_none_with_one_that_does() {
        assert_eq!((Membership::Plain.admit(Some(7)), Membership::Plain.carries(7)), (Some(PLAIN), None));
        assert_eq!(Membership::Plain.carries(PLAIN), Some(Tagging::Unchanged));
        let everything = Membership::trunk(0..=4095, None);
        assert_eq!((everything.carries(PLAIN), everything.carries(4095)), (None, None));
    }

    fn membership() -> impl Strategy<Value = Membership> {
        prop_oneof![
            Just(Membership::Plain),
            Just(Membership::Untagged),
            (1..=4094u16).prop_map(Membership::Access),
            (proptest::collection::vec(1..=4094u16, 0..20), proptest::option::of(1..=4094u16))
                .prop_map(|(vlans, native)| Membership::trunk(vlans, native)),
        ]
    }

    proptest! {
        /// A port with the same membership takes a sent frame as one of the same VLAN.
        #[test]
        fn a_frame_stays_in_its_vlan_over_any_number_of_hops(port in membership(), vlan: Vlan, priority in 0..8u16) {
            match port.carries(vlan) {
                Some(Tagging::Unchanged) => prop_assert_eq!((vlan, port.admit(None)), (PLAIN, Some(PLAIN))),
                Some(Tagging::Untagged) => prop_assert_eq!(port.admit(None), Some(vlan)),
                Some(Tagging::Tagged) => prop_assert_eq!(port.admit(Some(priority << 13 | vlan & VID)), Some(vlan)),
                None => prop_assert_ne!(port.admit(Some(vlan)), Some(vlan)),
            }
        }
    }
}
