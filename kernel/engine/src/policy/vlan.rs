//! VLANs (IEEE 802.1Q): to which of them a frame belongs when it enters a port, and in which form it leaves by one.

/// A VLAN's number, 1 to 4094. Ports for which nothing is configured are together in one of their own, [`PLAIN`].
pub type Vlan = u16;

/// Where ports are that know of no VLANs. A tag is to them a part of the payload.
pub const PLAIN: Vlan = 0;
/// The greatest number (9.6: 4095 is reserved).
pub const MAX_VLAN: Vlan = 4094;
/// The bits of a tag that are the VLAN's number (9.6, VID).
pub const VID: u16 = 0xfff;
/// EtherType of a tag (9.4).
pub const TAGGED: u16 = 0x8100;
/// EtherType of a provider's tag, around others.
pub const SERVICE_TAGGED: u16 = 0x88a8;

/// Which VLANs a port is in, and how its frames bear their number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there is one for each port, made once, and no heap")]
pub enum Membership {
    /// Knows of no VLANs.
    #[default]
    Plain,
    /// In one, without a tag. Tagged frames are refused.
    Access(Vlan),
    /// In several, with a tag.
    Trunk {
        /// Which.
        vlans: Vlans,
        /// The one to which frames without a tag belong, if they are taken at all.
        native: Option<Vlan>,
    },
}

/// How a frame leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As it came; what looks like a tag is payload.
    AsItIs,
    /// Without a tag.
    Untagged,
    /// With the tag of its VLAN.
    Tagged,
}

impl Membership {
    /// In several VLANs, with a tag; and perhaps in one without.
    #[must_use]
    pub fn trunk(vlans: impl IntoIterator<Item = Vlan>, native: Option<Vlan>) -> Self {
        let mut set = Vlans([0; 64]);
        vlans.into_iter().for_each(|vlan| set.insert(vlan));
        Self::Trunk { vlans: set, native }
    }

    /// The VLAN of a frame that enters with this tag (TCI) or none. None: it may not.
    #[inline]
    #[must_use]
    pub fn admit(&self, tag: Option<u16>) -> Option<Vlan> {
        match (self, tag) {
            (Self::Plain, _) => Some(PLAIN),
            (Self::Access(vlan), None) => Some(*vlan),
            (Self::Trunk { native, .. }, None) => *native,
            (Self::Trunk { vlans, native }, Some(tag)) => {
                let vlan = tag & VID;
                (vlans.contains(vlan) && *native != Some(vlan)).then_some(vlan)
            }
            (Self::Access(_), Some(_)) => None,
        }
    }

    /// How frames of a VLAN leave here. None: they do not.
    #[inline]
    #[must_use]
    pub fn carries(&self, vlan: Vlan) -> Option<Form> {
        match self {
            Self::Plain => (vlan == PLAIN).then_some(Form::AsItIs),
            Self::Access(own) => (vlan == *own).then_some(Form::Untagged),
            Self::Trunk { native: Some(native), .. } if *native == vlan => Some(Form::Untagged),
            Self::Trunk { vlans, .. } => vlans.contains(vlan).then_some(Form::Tagged),
        }
    }

    /// Whether frames are looked at for a tag.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }
}

/// A set of VLANs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vlans([u64; 64]);

impl Vlans {
    /// Adds one; numbers that no VLAN can have are left out.
    fn insert(&mut self, vlan: Vlan) {
        if (1..=MAX_VLAN).contains(&vlan) {
            self.0[usize::from(vlan >> 6)] |= 1 << (vlan & 63);
        }
    }

    /// Whether one is in it.
    #[inline]
    fn contains(&self, vlan: Vlan) -> bool {
        self.0.get(usize::from(vlan >> 6)).is_some_and(|word| word >> (vlan & 63) & 1 != 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Form, Membership, PLAIN, VID, Vlan};

    #[test]
    fn an_access_port_takes_and_gives_untagged_frames_of_its_vlan_only() {
        let port = Membership::Access(7);
        assert_eq!(port.admit(None), Some(7));
        // Its own number as a tag, a priority tag, another's: refused alike.
        for tag in [7, 0, 9, 0xe007] {
            assert_eq!(port.admit(Some(tag)), None, "{tag:#x}");
        }
        assert_eq!((port.carries(7), port.carries(9), port.carries(PLAIN)), (Some(Form::Untagged), None, None));
    }

    #[test]
    fn a_trunk_takes_the_tags_that_it_lists_whatever_their_priority() {
        let port = Membership::trunk([7, 9, 4094], None);
        for (tag, vlan) in [(7, Some(7)), (0xf009, Some(9)), (4094, Some(4094)), (8, None), (0, None), (4095, None)] {
            assert_eq!(port.admit(Some(tag)), vlan, "{tag:#x}");
        }
        assert_eq!(port.admit(None), None);
        assert_eq!((port.carries(9), port.carries(8), port.carries(PLAIN)), (Some(Form::Tagged), None, None));
    }

    #[test]
    fn the_native_vlan_of_a_trunk_has_no_tag_either_way() {
        let port = Membership::trunk([7, 9], Some(9));
        assert_eq!((port.admit(None), port.admit(Some(9)), port.admit(Some(7))), (Some(9), None, Some(7)));
        assert_eq!((port.carries(9), port.carries(7)), (Some(Form::Untagged), Some(Form::Tagged)));
    }

    #[test]
    fn a_port_that_knows_of_no_vlans_shares_none_with_one_that_does() {
        assert_eq!((Membership::Plain.admit(Some(7)), Membership::Plain.carries(7)), (Some(PLAIN), None));
        assert_eq!(Membership::Plain.carries(PLAIN), Some(Form::AsItIs));
        let everything = Membership::trunk(0..=4095, None);
        assert_eq!((everything.carries(PLAIN), everything.carries(4095)), (None, None));
    }

    fn membership() -> impl Strategy<Value = Membership> {
        prop_oneof![
            Just(Membership::Plain),
            (1..=4094u16).prop_map(Membership::Access),
            (proptest::collection::vec(1..=4094u16, 0..20), proptest::option::of(1..=4094u16))
                .prop_map(|(vlans, native)| Membership::trunk(vlans, native)),
        ]
    }

    proptest! {
        /// What a port sends, a port like it takes for the same VLAN.
        #[test]
        fn a_frame_stays_in_its_vlan_over_any_number_of_hops(port in membership(), vlan: Vlan, priority in 0..8u16) {
            match port.carries(vlan) {
                Some(Form::AsItIs) => prop_assert_eq!((vlan, port.admit(None)), (PLAIN, Some(PLAIN))),
                Some(Form::Untagged) => prop_assert_eq!(port.admit(None), Some(vlan)),
                Some(Form::Tagged) => prop_assert_eq!(port.admit(Some(priority << 13 | vlan & VID)), Some(vlan)),
                None => prop_assert_ne!(port.admit(Some(vlan)), Some(vlan)),
            }
        }
    }
}
