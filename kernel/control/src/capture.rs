//! The commands of captures: which frames of a port are captured, and how a filter is typed.
//!
//! A filter is words with commas between them:
//!
//! | word | takes |
//! |---|---|
//! | `off` | nothing: the capture of this port ends |
//! | `in`, `out` | frames that the guest sends, or frames for it; at an uplink frames from the wire, or to it; without such a word both |
//! | `mac=52:54:00:00:00:01` | frames from or to this address |
//! | `ethertype=ipv4` | frames of this type: `arp`, `ipv4`, `ipv6` or a number such as `0x88cc`; behind a tag if there is one |
//! | `vlan=5` | frames with a tag of this VLAN, 1 to 4094 |
//! | `1/10` | one of so many of them, at most 1/1024 |
//! | `bytes=64` | so many bytes of each at most, 64 to 128; without it 128 |
//! | `net=1` | the port of the guest's second network device; without it the first one's |
//!
//! The name before it is that of a guest or of an uplink. A guest goes first if both have that name.
//!
//! To see a frame is another right than to see how the machine works. So captures have commands of their own, which need the
//! permission `capture`, and `trace save` does not send them.

use alloc::string::String;
use core::fmt;
use core::num::NonZeroU16;
use core::str::FromStr;

use serde::{Deserialize, Serialize};
use trace::capture::filter::{Filter, MOST_ONE_OF, MOST_VLAN};
use trace::capture::{LEAST_BYTES, MOST_BYTES, Way};

use crate::Text;
use crate::argument::{Argument, Kind};
use crate::mac::Mac;
use crate::no_memory::sentence;
use crate::shown::Shortened;
use crate::unknown::unknown;

/// The filter, as an argument of `capture`.
pub(crate) const FILTER: Argument =
    Argument { member: Some("filter"), shown: "[FILTER]", needed: false, kind: Kind::Text };

/// EtherTypes with a name.
const TYPES: [(&str, u16); 3] = [("arp", 0x0806), ("ipv4", 0x0800), ("ipv6", 0x86dd)];
/// The words of a filter, as an error lists them.
const WORDS: [&str; 9] = ["off", "in", "out", "mac=", "ethertype=", "vlan=", "1/", "bytes=", "net="];

/// What a filter asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The number of the guest's network device.
    pub net: usize,
    /// The filter. `None`: the capture ends.
    pub filter: Option<Filter>,
}

impl FromStr for Wanted {
    type Err = Text;

    fn from_str(text: &str) -> Result<Self, Text> {
        let mut wanted = Self { net: 0, filter: Some(Filter::default()) };
        let mut filter = Filter::default();
        let mut is_off = false;
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match (key, value) {
                ("off", "") => is_off = true,
                ("in", "") => filter.way = Some(Way::In),
                ("out", "") => filter.way = Some(Way::Out),
                ("mac", _) => filter.mac = Some(mac(value)?),
                ("ethertype", _) => filter.ether_type = Some(ether_type(value)?),
                ("vlan", _) => filter.vlan = Some(number(word, value, 1, MOST_VLAN)?),
                ("bytes", _) => filter.bytes = number(word, value, LEAST_BYTES as u8, MOST_BYTES as u8)?,
                ("net", _) => wanted.net = number(word, value, 0, u8::MAX)?.into(),
                _ => match word.strip_prefix("1/") {
                    Some(one_of) => {
                        let one_of = number(word, one_of, 1, MOST_ONE_OF)?;
                        filter.one_of = NonZeroU16::new(one_of).unwrap_or(NonZeroU16::MIN);
                    }
                    None => return Err(unknown("word of a filter", word, WORDS.into_iter())),
                },
            }
        }
        wanted.filter = (!is_off).then_some(filter);
        Ok(wanted)
    }
}

/// Reads a number from `least` to `most`, in decimal digits.
fn number<N: FromStr + PartialOrd + fmt::Display>(word: &str, value: &str, least: N, most: N) -> Result<N, Text> {
    let digits = !value.is_empty() && value.bytes().all(|digit| digit.is_ascii_digit());
    let read = value.parse().ok().filter(|number| digits && *number >= least && *number <= most);
    read.ok_or_else(|| sentence(format_args!("`{}`: expected a number from {least} to {most}", Shortened(word))))
}

fn mac(value: &str) -> Result<[u8; 6], Text> {
    let read = Mac::parse_any(value).map(|mac| mac.0);
    read.map_err(|why| sentence(format_args!("`mac={}`: {why}", Shortened(value))))
}

fn ether_type(value: &str) -> Result<u16, Text> {
    let named = TYPES.iter().find(|(name, _)| *name == value).map(|(_, ether_type)| *ether_type);
    let digits = value.strip_prefix("0x").filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
    named.or_else(|| u16::from_str_radix(digits?, 16).ok()).ok_or_else(|| {
        let value = Shortened(value);
        sentence(format_args!("`ethertype={value}`: expected arp, ipv4, ipv6 or a number such as 0x88cc"))
    })
}

impl fmt::Display for Wanted {
    /// As it is typed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(filter) = &self.filter else { return f.write_str("off") };
        f.write_str(match filter.way {
            Some(Way::In) => "in,",
            Some(Way::Out) => "out,",
            None => "",
        })?;
        if let Some(mac) = filter.mac {
            write!(f, "mac={},", Mac(mac))?;
        }
        if let Some(ether_type) = filter.ether_type {
            match TYPES.iter().find(|(_, known)| *known == ether_type) {
                Some((name, _)) => write!(f, "ethertype={name},")?,
                None => write!(f, "ethertype={ether_type:#06x},")?,
            }
        }
        if let Some(vlan) = filter.vlan {
            write!(f, "vlan={vlan},")?;
        }
        if filter.one_of != NonZeroU16::MIN {
            write!(f, "1/{},", filter.one_of)?;
        }
        if self.net != 0 {
            write!(f, "net={},", self.net)?;
        }
        write!(f, "bytes={}", filter.bytes)
    }
}

/// A port that is captured, in the answer to `trace show`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedPort {
    /// Its guest, or the name of the uplink.
    pub guest: String,
    /// It is an uplink.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub uplink: bool,
    /// The filter, as it is typed.
    pub filter: Text,
    /// Frames that it has taken.
    pub frames: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Wanted {
        text.parse().unwrap()
    }

    fn error(text: &str) -> Text {
        text.parse::<Wanted>().unwrap_err()
    }

    #[test]
    fn each_word_of_a_filter_is_understood() {
        let all = Filter::default();
        assert_eq!(read(""), Wanted { net: 0, filter: Some(all) });
        assert_eq!(read("off"), Wanted { net: 0, filter: None });
        assert_eq!(read("net=1,off"), Wanted { net: 1, filter: None });
        let of = |text: &str| read(text).filter.unwrap();
        assert_eq!(of("in"), Filter { way: Some(Way::In), ..all });
        assert_eq!(of("out"), Filter { way: Some(Way::Out), ..all });
        assert_eq!(of("mac=52:54:00:0A:0b:01"), Filter { mac: Some([0x52, 0x54, 0, 10, 11, 1]), ..all });
        let types = ["arp", "ipv4", "ipv6", "0x88cc"].map(|name| of(&format!("ethertype={name}")).ether_type);
        assert_eq!(types, [Some(0x0806), Some(0x0800), Some(0x86dd), Some(0x88cc)]);
        assert_eq!(read("vlan=5,1/10,bytes=64").to_string(), "vlan=5,1/10,bytes=64");
    }

    #[test]
    fn mistakes_in_a_filter_name_the_word() {
        assert_eq!(error("inn"), "no word of a filter `inn`; did you mean `in`?");
        assert_eq!(error("vlan=0"), "`vlan=0`: expected a number from 1 to 4094");
        assert_eq!(error("vlan=+5"), "`vlan=+5`: expected a number from 1 to 4094");
        assert_eq!(error("bytes=129"), "`bytes=129`: expected a number from 64 to 128");
        assert_eq!(error("1/0"), "`1/0`: expected a number from 1 to 1024");
        assert!(error("mac=52:54:00:00:00").contains("six pairs"));
        assert!(error("mac=52:54:00:00:00:01:02").contains("six pairs"));
        assert!(error("mac=+2:54:00:00:00:01").contains("six pairs"));
        for wrong in ["ethertype=ip", "ethertype=0x", "ethertype=0x+1", "ethertype=0x10000"] {
            assert!(error(wrong).contains("expected arp"), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn a_filter_comes_back_from_what_is_shown(
            net in 0_usize..256,
            way in prop_oneof![Just(None), Just(Some(Way::In)), Just(Some(Way::Out))],
            mac: Option<[u8; 6]>,
            ether_type: Option<u16>,
            vlan in proptest::option::of(1..=MOST_VLAN),
            one_of in 1..=MOST_ONE_OF,
            bytes in 64_u8..=128,
        ) {
            let one_of = NonZeroU16::new(one_of).unwrap();
            let wanted = Wanted { net, filter: Some(Filter { way, mac, ether_type, vlan, one_of, bytes }) };
            prop_assert_eq!(read(&wanted.to_string()), wanted);
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = text.parse::<Wanted>();
        }
    }
}
