//! Which frames of a port are captured. The control core sets the filters, and the engine's core looks at them.
//!
//! A filter is in two words. Both have the number of the setting, so the engine never judges a frame by halves of two filters.

use core::num::NonZeroU16;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Captured, LEAST_BYTES, MOST_BYTES, Way};

/// Most frames of which one is taken.
pub const MOST_ONE_OF: u16 = 1024;
/// Largest VLAN that a tag can have.
pub const MOST_VLAN: u16 = 4094;
/// EtherType of a tag (IEEE 802.1Q 9.6).
const TAGGED: u16 = 0x8100;
/// Offset of the EtherType in a frame.
const TYPE_AT: usize = 12;

/// Which frames of a port are captured, and how much of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Only frames that go this way.
    pub way: Option<Way>,
    /// Only frames from or to this MAC address.
    pub mac: Option<[u8; 6]>,
    /// Only frames of this EtherType. Of a tagged frame it is the one behind the tag.
    pub ether_type: Option<u16>,
    /// Only frames with a tag of this VLAN, 1 to [`MOST_VLAN`].
    pub vlan: Option<u16>,
    /// One of so many frames, at most [`MOST_ONE_OF`].
    pub one_of: NonZeroU16,
    /// Bytes of a frame that are kept, from [`LEAST_BYTES`] to [`MOST_BYTES`].
    pub bytes: u8,
}

impl Default for Filter {
    /// All frames, and as much of each as can be kept.
    fn default() -> Self {
        Self { way: None, mac: None, ether_type: None, vlan: None, one_of: NonZeroU16::MIN, bytes: MOST_BYTES as u8 }
    }
}

fn u16_at(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

impl Filter {
    /// Whether it takes a frame with these first bytes, were it not for `one_of`.
    #[must_use]
    pub fn matches(&self, way: Way, frame: &[u8]) -> bool {
        let (ether_type, vlan) = match u16_at(frame, TYPE_AT) {
            Some(TAGGED) => (u16_at(frame, TYPE_AT + 4), u16_at(frame, TYPE_AT + 2).map(|tag| tag & 0xfff)),
            ether_type => (ether_type, None),
        };
        self.way.is_none_or(|wanted| wanted == way)
            && self.mac.is_none_or(|mac| frame.get(..6) == Some(&mac) || frame.get(6..12) == Some(&mac))
            && self.ether_type.is_none_or(|wanted| ether_type == Some(wanted))
            && self.vlan.is_none_or(|wanted| vlan == Some(wanted))
    }

    /// As two words. `setting`: the number of the setting, below 2^12.
    fn to_words(self, setting: u64) -> [u64; 2] {
        let ways = match self.way {
            Some(Way::In) => 1,
            Some(Way::Out) => 2,
            None => 3,
        };
        let rules = [
            (ways, 2),
            (self.mac.is_some().into(), 1),
            (self.ether_type.is_some().into(), 1),
            (self.vlan.is_some().into(), 1),
            (self.bytes.into(), 8),
            (self.vlan.unwrap_or(0).into(), 12),
            (self.ether_type.unwrap_or(0).into(), 16),
            (self.one_of.get().min(MOST_ONE_OF).into(), 11),
            (setting, SETTING_BITS),
        ];
        let pack = |(word, at): (u64, u32), (value, bits): (u64, u32)| {
            (word | (value & (1_u64 << bits).wrapping_sub(1)) << at, at.wrapping_add(bits))
        };
        let (rules, _) = rules.into_iter().fold((0, 0), pack);
        let mut mac = [0; 8];
        if let Some(own) = self.mac {
            mac.iter_mut().zip(own).for_each(|(to, from)| *to = from);
        }
        [rules, u64::from_le_bytes(mac) | setting << MAC_BITS]
    }

    /// The filter of two words. `None`: there is none, or they are of two settings.
    fn from_words([mut rules, mac]: [u64; 2]) -> Option<(Self, u64)> {
        let setting = rules >> SETTING_AT;
        if setting != mac >> MAC_BITS {
            return None;
        }
        let mut next = |bits: u32| {
            let value = rules & (1_u64 << bits).wrapping_sub(1);
            rules >>= bits;
            value
        };
        let way = match next(2) {
            0 => return None,
            1 => Some(Way::In),
            2 => Some(Way::Out),
            _ => None,
        };
        let (has_mac, has_type, has_vlan) = (next(1) != 0, next(1) != 0, next(1) != 0);
        let (bytes, vlan, ether_type, one_of) = (next(8) as u8, next(12) as u16, next(16) as u16, next(11) as u16);
        let [a, b, c, d, e, f, ..] = mac.to_le_bytes();
        let filter = Self {
            way,
            mac: has_mac.then_some([a, b, c, d, e, f]),
            ether_type: has_type.then_some(ether_type),
            vlan: has_vlan.then_some(vlan),
            one_of: NonZeroU16::new(one_of)?,
            bytes: bytes.clamp(LEAST_BYTES as u8, MOST_BYTES as u8),
        };
        Some((filter, setting))
    }
}

/// Bits of the MAC address in the second word.
const MAC_BITS: u32 = 48;
/// Bits of the number of a setting.
const SETTING_BITS: u32 = 12;
/// Place of the number of the setting in the first word, and in the count of frames.
const SETTING_AT: u32 = u64::BITS - SETTING_BITS;
/// The numbers of settings begin again behind this one.
const MOST_SETTING: u64 = (1 << SETTING_BITS) - 1;

/// The filter of one port.
#[derive(Debug, Default)]
struct Place {
    rules: AtomicU64,
    mac: AtomicU64,
    /// Frames that the filter takes but for `one_of`, with the number of the setting. Only the engine's core changes it.
    frames: AtomicU64,
}

/// The filters of `N` ports, by the engine's slot.
#[derive(Debug)]
pub struct Filters<const N: usize>([Place; N]);

impl<const N: usize> Default for Filters<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Filters<N> {
    /// No filter at any port.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { Place { rules: AtomicU64::new(0), mac: AtomicU64::new(0), frames: AtomicU64::new(0) } }; N])
    }

    /// Sets the filter of a port, or removes it. Only the control core calls it. Does nothing if there is no such port.
    pub fn set(&self, slot: usize, filter: Option<Filter>) {
        let Some(place) = self.0.get(slot) else { return };
        // 0 is the number of the first state only, so that a count of frames is of no setting then.
        let setting = (place.mac.load(Ordering::Relaxed) >> MAC_BITS) % MOST_SETTING;
        let setting = setting.wrapping_add(1);
        let [rules, mac] =
            filter.map_or([setting << SETTING_AT, setting << MAC_BITS], |filter| filter.to_words(setting));
        place.mac.store(mac, Ordering::Relaxed);
        // A core that sees the new rules sees the new address. If it sees the new address only, the settings differ.
        place.rules.store(rules, Ordering::Release);
    }

    /// Removes all filters. Only the control core calls it.
    pub fn clear(&self) {
        (0..N).filter(|&slot| self.get(slot).is_some()).for_each(|slot| self.set(slot, None));
    }

    /// The filter of a port.
    #[must_use]
    pub fn get(&self, slot: usize) -> Option<Filter> {
        Some(self.0.get(slot)?.read()?.0)
    }

    /// How many frames of a port the filter has taken.
    #[must_use]
    pub fn taken(&self, slot: usize) -> u64 {
        let Some(place) = self.0.get(slot) else { return 0 };
        place.read().map_or(0, |(filter, setting)| place.counted(setting).div_ceil(filter.one_of.get().into()))
    }

    /// Takes a frame with these first bytes, if the filter of its port does. `captured` says all else of it. Only the
    /// engine's core calls it.
    #[must_use]
    pub fn take(&self, captured: Captured, frame: &[u8]) -> Option<Captured> {
        let place = self.0.get(usize::from(captured.slot))?;
        let (filter, setting) = place.read()?;
        if !filter.matches(captured.way, frame) {
            return None;
        }
        let count = place.counted(setting);
        place
            .frames
            .store(count.wrapping_add(1) & !(MOST_SETTING << SETTING_AT) | setting << SETTING_AT, Ordering::Relaxed);
        let one_of = u64::from(filter.one_of.get());
        let number = count.checked_div(one_of)?;
        if number.wrapping_mul(one_of) != count {
            return None;
        }
        let kept = frame.get(..usize::from(filter.bytes)).unwrap_or(frame);
        Some(Captured { number, one_of: filter.one_of.get(), ..captured }.with_bytes(kept))
    }
}

impl Place {
    fn read(&self) -> Option<(Filter, u64)> {
        let rules = self.rules.load(Ordering::Acquire);
        Filter::from_words([rules, self.mac.load(Ordering::Relaxed)])
    }

    /// Frames that were counted in this setting.
    fn counted(&self, setting: u64) -> u64 {
        let frames = self.frames.load(Ordering::Relaxed);
        if frames >> SETTING_AT == setting { frames & !(MOST_SETTING << SETTING_AT) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TO: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const FROM: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn frame(tag: Option<u16>, ether_type: u16) -> Vec<u8> {
        let tag = tag.map_or(Vec::new(), |tag| [0x8100_u16.to_be_bytes(), tag.to_be_bytes()].concat());
        [&TO[..], &FROM, &tag, &ether_type.to_be_bytes(), &[7; 100]].concat()
    }

    fn captured(way: Way) -> Captured {
        Captured::new(5, 2, way, 114)
    }

    fn of_all() -> impl Strategy<Value = Filter> {
        let ways = prop_oneof![Just(None), Just(Some(Way::In)), Just(Some(Way::Out))];
        (
            ways,
            any::<Option<[u8; 6]>>(),
            any::<Option<u16>>(),
            proptest::option::of(1..=MOST_VLAN),
            1..=MOST_ONE_OF,
            64_u8..=128,
        )
            .prop_map(|(way, mac, ether_type, vlan, one_of, bytes)| Filter {
                way,
                mac,
                ether_type,
                vlan,
                one_of: NonZeroU16::new(one_of).unwrap(),
                bytes,
            })
    }

    #[test]
    fn each_part_of_a_filter_leaves_frames_out() {
        let (plain, tagged) = (frame(None, 0x0800), frame(Some(0x6005), 0x0806));
        let all = Filter::default();
        let of = |filter: Filter| [&plain, &tagged].map(|frame| filter.matches(Way::In, frame));
        assert_eq!(of(all), [true, true]);
        assert_eq!(of(Filter { way: Some(Way::In), ..all }), [true, true]);
        assert_eq!(of(Filter { way: Some(Way::Out), ..all }), [false, false]);
        for mac in [TO, FROM] {
            assert_eq!(of(Filter { mac: Some(mac), ..all }), [true, true]);
        }
        assert_eq!(of(Filter { mac: Some([2, 0, 0, 0, 0, 3]), ..all }), [false, false]);
        assert_eq!(of(Filter { ether_type: Some(0x0800), ..all }), [true, false]);
        assert_eq!(of(Filter { ether_type: Some(0x0806), ..all }), [false, true], "the type behind the tag");
        assert_eq!(of(Filter { vlan: Some(5), ..all }), [false, true], "the priority is no part of the VLAN");
        assert_eq!(of(Filter { vlan: Some(6), ..all }), [false, false]);
        assert!(all.matches(Way::In, &[]) && !Filter { mac: Some(TO), ..all }.matches(Way::In, &TO[..5]));
    }

    #[test]
    fn frames_have_numbers_and_one_of_several_is_taken() {
        let filters = Filters::<4>::new();
        let frame = frame(None, 0x0800);
        assert_eq!(filters.take(captured(Way::In), &frame), None, "no filter");
        filters.set(2, Some(Filter { one_of: NonZeroU16::new(3).unwrap(), bytes: 64, ..Filter::default() }));
        let taken: Vec<_> = (0..7).map(|_| filters.take(captured(Way::In), &frame).map(|c| c.number)).collect();
        assert_eq!(taken, [Some(0), None, None, Some(1), None, None, Some(2)]);
        assert_eq!(filters.taken(2), 3);
        filters.set(2, Some(Filter { bytes: 64, ..Filter::default() }));
        assert_eq!(filters.taken(2), 0, "another filter counts anew");
        let first = filters.take(captured(Way::Out), &frame).unwrap();
        assert_eq!((first.number, first.way, first.bytes()), (0, Way::Out, &frame[..64]));
        assert_eq!(filters.take(Captured::new(5, 1, Way::In, 114), &frame), None, "another port");
        assert_eq!(filters.take(Captured::new(5, 4, Way::In, 114), &frame), None, "no such port");
        filters.clear();
        assert_eq!((filters.take(captured(Way::In), &frame), filters.get(2)), (None, None));
    }

    #[test]
    fn halves_of_two_settings_are_no_filter() {
        let filters = Filters::<1>::new();
        let frame = frame(None, 0x0800);
        filters.set(0, Some(Filter::default()));
        let before = filters.0[0].rules.load(Ordering::Relaxed);
        filters.set(0, Some(Filter { mac: Some(TO), ..Filter::default() }));
        assert!(filters.get(0).is_some());
        filters.0[0].rules.store(before, Ordering::Relaxed);
        assert_eq!(filters.take(Captured::new(5, 0, Way::In, 114), &frame), None);
    }

    #[test]
    fn the_number_of_the_setting_is_never_that_of_the_first_state() {
        let filters = Filters::<1>::new();
        for _ in 0..2 * MOST_SETTING {
            filters.set(0, Some(Filter::default()));
            assert_eq!(filters.taken(0), 0);
            let _ = filters.take(Captured::new(5, 0, Way::In, 0), &[]);
            assert_eq!(filters.taken(0), 1);
        }
    }

    proptest! {
        #[test]
        fn a_filter_comes_back_from_its_words(filter in of_all(), setting in 0..=MOST_SETTING) {
            prop_assert_eq!(Filter::from_words(filter.to_words(setting)), Some((filter, setting)));
        }

        #[test]
        fn any_words_and_any_bytes_are_looked_at(words: [u64; 2], frame in proptest::collection::vec(any::<u8>(), 0..140)) {
            let words = [words[0], words[1] & !(0xffff << MAC_BITS) | words[0] >> SETTING_AT << MAC_BITS];
            if let Some((filter, _)) = Filter::from_words(words) {
                prop_assert!((64..=128).contains(&filter.bytes));
                let _ = filter.matches(Way::In, &frame);
            }
        }
    }
}
