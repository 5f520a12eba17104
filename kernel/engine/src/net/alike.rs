//! What is looked at of the frames of a run behind their addresses, and how it is seen that they are alike in it.
//!
//! The rules of the two ports say what they look at ([`Reads`]). From that and from the first frame follows its [`Form`]: up
//! to where the frames of this run are looked at. These bytes are read once ([`Beginning`]), and looked at as words:
//!
//! ```text
//!  0     6     14       22       30       38       46       54       62
//!  ┌─────┬─────┬────────┬────────┬────────┬────────┬────────┬────────┐
//!  │ to  │from │        │        │    IPv4 and ports               TCP's flags: the word that ends there
//!  │     │     │        │        │        │        │     IPv6 and ports        likewise
//!  └─────┴─────┴────────┴────────┴────────┴────────┴────────┴────────┘
//! ```
//!
//! The rules are asked about the first frame, put together from its words. Frames whose words are the same under a mask of what
//! is looked at get the same answer. A frame with other words is asked about by itself, and stays in the run if the answer is the
//! same.

use super::ETHERNET_BYTES;
use super::beginning::{Beginning, LONG, SHORT};
use super::flow::Addresses;
use crate::policy::headers::{ARP, ICMP, ICMPV6, IPV4, IPV6, TCP, has_ports};
use crate::policy::stage::Reads;

/// A frame's bytes from 14 on, eight to a word, as many as its form has; the last word ends where the form does.
pub(super) type Words = [u64; 7];

/// Bytes of the longest form.
const FRONT: usize = 68;

/// How far frames are looked at.
pub(super) trait Form {
    /// Bytes that are looked at.
    const END: usize;

    /// Bytes that are read.
    const READ: usize = if Self::END <= SHORT { SHORT } else { LONG };

    /// What was read of a frame behind its addresses and type.
    fn words(beginning: &Beginning) -> Words;

    /// Whether words are as `like` says under a mask.
    fn alike(words: &Words, like: &Like, mask: &Words) -> bool;

    /// Puts words where they stand in a frame.
    fn put(words: &Words, front: &mut [u8; FRONT]);
}

/// Nothing but addresses.
pub(super) struct Bare;
/// Addresses and type.
pub(super) struct Ethernet;
/// IPv4 with ports.
pub(super) struct V4;
/// IPv4 with TCP's flags.
pub(super) struct V4Flags;
/// IPv6 with ports.
pub(super) struct V6;
/// IPv6 with TCP's flags.
pub(super) struct V6Flags;

macro_rules! form {
    ($name:ident: $end:literal bytes, length [$($shift:literal)?], words [$($i:literal: $at:literal),*]) => {
        impl Form for $name {
            const END: usize = $end;

            #[inline(always)]
            #[allow(unused_variables, unused_mut, reason = "some have no words")]
            fn words(beginning: &Beginning) -> Words {
                let mut words = [0; 7];
                $(words[$i] = beginning.word::<$at>();)*
                words
            }

            #[inline(always)]
            #[allow(unused_variables, reason = "some have no words")]
            fn alike(words: &Words, like: &Like, mask: &Words) -> bool {
                true $(&& (words[$i] ^ like.words[$i]) & mask[$i] == 0)*
                    $(&& ((words[0] >> $shift) as u16).swap_bytes() >= like.length)?
            }

            #[allow(unused_variables, reason = "some have no words")]
            fn put(words: &Words, front: &mut [u8; FRONT]) {
                $(front[$at..$at + 8].copy_from_slice(&words[$i].to_le_bytes());)*
            }
        }
    };
}

// IP's length is in the first word, from that bit on.
form!(Bare: 12 bytes, length [], words []);
form!(Ethernet: 14 bytes, length [], words []);
form!(V4: 38 bytes, length [16], words [0: 14, 1: 22, 2: 30]);
form!(V4Flags: 48 bytes, length [16], words [0: 14, 1: 22, 2: 30, 3: 40]);
form!(V6: 58 bytes, length [32], words [0: 14, 1: 22, 2: 30, 3: 38, 4: 46, 5: 50]);
form!(V6Flags: 68 bytes, length [32], words [0: 14, 1: 22, 2: 30, 3: 38, 4: 46, 5: 54, 6: 60]);

/// A form, known when it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Bare,
    Ethernet,
    V4,
    V4Flags,
    V6,
    V6Flags,
}

/// Does something with the form of a kind.
macro_rules! with_form {
    ($kind:expr, $form:ident => $what:expr) => {{
        use $crate::net::alike;
        match $kind {
            alike::Kind::Bare => {
                type $form = alike::Bare;
                $what
            }
            alike::Kind::Ethernet => {
                type $form = alike::Ethernet;
                $what
            }
            alike::Kind::V4 => {
                type $form = alike::V4;
                $what
            }
            alike::Kind::V4Flags => {
                type $form = alike::V4Flags;
                $what
            }
            alike::Kind::V6 => {
                type $form = alike::V6;
                $what
            }
            alike::Kind::V6Flags => {
                type $form = alike::V6Flags;
                $what
            }
        }
    }};
}
pub(super) use with_form;

/// What the frames of a run have to be like.
pub(super) struct Like {
    /// Of the first frame, or of one that was treated like it since.
    pub words: Words,
    /// The bits that are looked at.
    pub mask: Words,
    /// Those among them without which it is none of this form.
    pub needed: Words,
    /// What IP's length is at least: what is looked at is within it.
    length: u16,
    /// Bytes of the frame at least.
    pub least: u32,
}

/// What was read of a frame, and how many bytes its first buffer has.
#[derive(Clone, Copy)]
pub(super) struct Seen<'b>(pub &'b Beginning, pub u32);

impl Seen<'_> {
    /// The words of a form. None: the buffer ends before them.
    fn words<F: Form>(self) -> Option<Words> {
        (self.1 as usize >= F::END).then(|| F::words(self.0))
    }
}

/// IPv4's first byte: version, and a header of 20 bytes.
const V4_WITHOUT_OPTIONS: u8 = 0x45;
/// IPv4's and IPv6's headers.
const V4_BYTES: u16 = 20;
const V6_BYTES: u16 = 40;
/// All bits of byte `i` of a word.
const fn byte(i: u32) -> u64 {
    0xff << (8 * i)
}

impl Like {
    /// What others have to be like which are treated like a frame of this type of which so much was seen, if so much is looked
    /// at. None: there is no form for it.
    pub(super) fn first(reads: Reads, ether_type: u16, seen: Seen<'_>) -> Option<(Kind, Self)> {
        let mut like = Self { words: [0; 7], mask: [0; 7], needed: [0; 7], length: 0, least: ETHERNET_BYTES };
        let kind = match ether_type {
            _ if reads.is_empty() => Kind::Bare,
            _ if !reads.contains(Reads::PACKETS) => Kind::Ethernet,
            IPV4 => like.v4(reads, seen)?,
            IPV6 => like.v6(reads, seen)?,
            ARP => return None,
            _ => Kind::Ethernet,
        };
        Some((kind, like))
    }

    /// An IPv4 packet that is whole and has no options.
    fn v4(&mut self, reads: Reads, seen: Seen<'_>) -> Option<Kind> {
        self.words = seen.words::<V4>()?;
        let [version, .., fragment, offset] = self.words[0].to_le_bytes();
        let [_, protocol, _, _, source @ ..] = self.words[1].to_le_bytes();
        let fragment = u16::from_be_bytes([fragment, offset]) & 0x3fff;
        if version != V4_WITHOUT_OPTIONS || fragment != 0 || source == [0; 4] {
            return None;
        }
        let looked_at = match protocol {
            TCP => 14,
            ICMP => 2,
            ICMPV6 => return None,
            _ if has_ports(protocol) => 4,
            _ => 0,
        };
        self.reaches(V4_BYTES, V4_BYTES + looked_at, looked_at);
        // Version, and where a fragment belongs but for the bit that forbids them.
        self.mask[0] = byte(0) | byte(6) & !(0x40 << 48) | byte(7);
        self.mask[1] = byte(1) | u64::from(u32::MAX) << 32;
        self.needed = self.mask;
        self.mask[2] = destination_and_ports(reads);
        if !reads.contains(Reads::FLAGS) || protocol != TCP {
            return Some(Kind::V4);
        }
        self.words = seen.words::<V4Flags>()?;
        self.mask[3] = byte(7);
        Some(Kind::V4Flags)
    }

    /// An IPv6 packet whose first header is one with ports.
    fn v6(&mut self, reads: Reads, seen: Seen<'_>) -> Option<Kind> {
        self.words = seen.words::<V6>()?;
        let [version, _, _, _, _, _, protocol, _] = self.words[0].to_le_bytes();
        if version >> 4 != 6 || !has_ports(protocol) || (self.words[1], self.words[2]) == (0, 0) {
            return None;
        }
        let looked_at = if protocol == TCP { 14 } else { 4 };
        self.reaches(V6_BYTES, looked_at, looked_at);
        let destination = if reads.contains(Reads::DESTINATION) { u64::MAX } else { 0 };
        self.mask[0] = 0xf0 | byte(6);
        (self.mask[1], self.mask[2]) = (u64::MAX, u64::MAX);
        self.needed = self.mask;
        (self.mask[3], self.mask[4]) = (destination, destination);
        let ports = destination_and_ports(reads);
        if !reads.contains(Reads::FLAGS) || protocol != TCP {
            self.mask[5] = ports;
            return Some(Kind::V6);
        }
        self.words = seen.words::<V6Flags>()?;
        self.mask[5] = ports >> 32;
        self.mask[6] = byte(7);
        Some(Kind::V6Flags)
    }

    /// Says of a packet with a header of `header` bytes how long it says that it is, and how much there has to be behind the header.
    fn reaches(&mut self, header: u16, length: u16, behind: u16) {
        self.length = length;
        self.least = ETHERNET_BYTES + u32::from(header + behind);
    }

    /// The beginning of a frame with these words.
    pub(super) fn front<F: Form>(addresses: Addresses, words: &Words) -> [u8; FRONT] {
        let mut front = [0; FRONT];
        front[..ETHERNET_BYTES as usize].copy_from_slice(&addresses.bytes());
        F::put(words, &mut front);
        front
    }
}

/// The mask of a word with the end of the address that a packet goes to in its first half, and ports in its second.
const fn destination_and_ports(reads: Reads) -> u64 {
    let destination = if reads.contains(Reads::DESTINATION) { u32::MAX as u64 } else { 0 };
    let ports = if reads.contains(Reads::PORTS) { (u32::MAX as u64) << 32 } else { 0 };
    destination | ports
}
