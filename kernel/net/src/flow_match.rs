//! Matches the frames of a flow. Decides which bytes after the addresses the rules look at, and whether two frames are
//! equal in these bytes.
//!
//! The rules of the two ports say what they look at ([`Reads`]). This and the first frame determine the [`Layout`]: how
//! many bytes of each frame are compared. These bytes are read once ([`FrameHead`]) and compared as 64-bit words:
//!
//! ```text
//!  0     6     14       22       30       38       46       54       62
//!  ┌─────┬─────┬────────┬────────┬────────┬────────┬────────┬────────┐
//!  │ to  │from │        │        │    IPv4 and ports               TCP flags: the word that ends there
//!  │     │     │        │        │        │        │     IPv6 and ports        TCP flags: the same
//!  └─────┴─────┴────────┴────────┴────────┴────────┴────────┴────────┘
//! ```
//!
//! 1. The rules are evaluated on the first frame, which is rebuilt from its words.
//! 2. A mask has the bits that the rules look at. Frames whose words are equal under it get the same verdict.
//! 3. A frame with other words is evaluated by itself. It stays in the batch if the verdict is the same.

use crate::addresses::Addresses;
use crate::ethernet::ETHERNET_BYTES;
use crate::frame_head::{FrameHead, LONG, SHORT};
use crate::offload::TCP;
use crate::policy::headers::{ARP, ICMP, ICMPV6, IPV4, IPV6, has_ports};
use crate::policy::stage::Reads;

/// The bytes of a frame from byte 14 on, eight to a word, as many as the layout has. The last word ends where the
/// layout ends.
pub(crate) type Words = [u64; 7];

/// Bytes of the longest layout.
const FRONT: usize = 68;

/// Which bytes of a frame are compared.
pub(crate) trait Layout {
    /// Bytes from the start of the frame that are compared.
    const END: usize;

    /// Bytes that are read: whole cache lines.
    const READ: usize = if Self::END <= SHORT { SHORT } else { LONG };

    /// Returns the words of a frame.
    fn words(head: &FrameHead) -> Words;

    /// Returns whether the words equal those of `pattern` under a mask, and IP's length covers what is compared.
    fn matches(words: &Words, pattern: &Pattern, mask: &Words) -> bool;

    /// Writes the words to their places in a frame.
    fn put(words: &Words, front: &mut [u8; FRONT]);
}

/// Addresses only.
pub(crate) struct Bare;
/// Addresses and EtherType.
pub(crate) struct Ethernet;
/// IPv6 up to its next header.
pub(crate) struct V6Next;
/// IPv4 with ports.
pub(crate) struct V4;
/// IPv4 with TCP's flags.
pub(crate) struct V4Flags;
/// IPv6 with ports.
pub(crate) struct V6;
/// IPv6 with TCP's flags.
pub(crate) struct V6Flags;

macro_rules! layout {
    ($name:ident: $end:literal bytes, length [$($shift:literal)?], words [$($i:literal: $at:literal),*]) => {
        impl Layout for $name {
            const END: usize = $end;

            #[inline(always)]
            #[allow(unused_variables, unused_mut, reason = "some have no words")]
            fn words(head: &FrameHead) -> Words {
                let mut words = [0; 7];
                $(words[$i] = head.word::<$at>();)*
                words
            }

            #[inline(always)]
            #[allow(unused_variables, reason = "some have no words")]
            fn matches(words: &Words, pattern: &Pattern, mask: &Words) -> bool {
                true $(&& (words[$i] ^ pattern.words[$i]) & mask[$i] == 0)*
                    $(&& ((words[0] >> $shift) as u16).swap_bytes() >= pattern.length)?
            }

            #[allow(unused_variables, reason = "some have no words")]
            fn put(words: &Words, front: &mut [u8; FRONT]) {
                $(front[$at..$at + 8].copy_from_slice(&words[$i].to_le_bytes());)*
            }
        }
    };
}

// `length`: the bit of the first word at which IP's length starts.
layout!(Bare: 12 bytes, length [], words []);
layout!(Ethernet: 14 bytes, length [], words []);
layout!(V6Next: 22 bytes, length [], words [0: 14]);
layout!(V4: 38 bytes, length [16], words [0: 14, 1: 22, 2: 30]);
layout!(V4Flags: 48 bytes, length [16], words [0: 14, 1: 22, 2: 30, 3: 40]);
layout!(V6: 58 bytes, length [32], words [0: 14, 1: 22, 2: 30, 3: 38, 4: 46, 5: 50]);
layout!(V6Flags: 68 bytes, length [32], words [0: 14, 1: 22, 2: 30, 3: 38, 4: 46, 5: 54, 6: 60]);

/// A layout, as a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayoutKind {
    Bare,
    Ethernet,
    V6Next,
    V4,
    V4Flags,
    V6,
    V6Flags,
}

/// Evaluates an expression with the layout type of a [`LayoutKind`].
macro_rules! with_layout {
    ($kind:expr, $form:ident => $what:expr) => {{
        use $crate::flow_match;
        match $kind {
            flow_match::LayoutKind::Bare => {
                type $form = flow_match::Bare;
                $what
            }
            flow_match::LayoutKind::Ethernet => {
                type $form = flow_match::Ethernet;
                $what
            }
            flow_match::LayoutKind::V6Next => {
                type $form = flow_match::V6Next;
                $what
            }
            flow_match::LayoutKind::V4 => {
                type $form = flow_match::V4;
                $what
            }
            flow_match::LayoutKind::V4Flags => {
                type $form = flow_match::V4Flags;
                $what
            }
            flow_match::LayoutKind::V6 => {
                type $form = flow_match::V6;
                $what
            }
            flow_match::LayoutKind::V6Flags => {
                type $form = flow_match::V6Flags;
                $what
            }
        }
    }};
}
pub(crate) use with_layout;

/// What the frames of a flow must match.
pub(crate) struct Pattern {
    /// The words of the first frame, or of a later frame with the same verdict.
    pub words: Words,
    /// The bits that are compared.
    pub mask: Words,
    /// The bits of `mask` that the layout depends on. A frame that differs in one of them needs another layout.
    pub needed: Words,
    /// Smallest value of IP's length field, in bytes, with which the packet contains what is compared.
    length: u16,
    /// Smallest frame, in bytes.
    pub min_len: u32,
}

/// The first bytes that were read of a frame, and the length of its first buffer.
#[derive(Clone, Copy)]
pub(crate) struct FirstBuffer<'b>(pub &'b FrameHead, pub u32);

impl FirstBuffer<'_> {
    /// Returns the words of a layout. `None`: the buffer ends before them.
    fn words<F: Layout>(self) -> Option<Words> {
        (self.1 as usize >= F::END).then(|| F::words(self.0))
    }
}

/// First byte of IPv4 without options: version 4, and a header of 20 bytes.
const V4_WITHOUT_OPTIONS: u8 = 0x45;
/// Bytes of IPv4's header without options.
const V4_BYTES: u16 = 20;
/// Bytes of IPv6's header.
const V6_BYTES: u16 = 40;
/// Mask of byte `i` of a word.
const fn byte(i: u32) -> u64 {
    0xff << i.saturating_mul(8)
}

impl Pattern {
    /// Makes the pattern of a frame with this EtherType, for rules that look at `reads`. `None`: no layout fits the
    /// frame.
    pub(crate) fn first(reads: Reads, ether_type: u16, first_buffer: FirstBuffer<'_>) -> Option<(LayoutKind, Self)> {
        let mut pattern = Self { words: [0; 7], mask: [0; 7], needed: [0; 7], length: 0, min_len: ETHERNET_BYTES };
        let kind = match ether_type {
            _ if reads.is_empty() => LayoutKind::Bare,
            ARP if reads.intersects(Reads::PACKETS | Reads::NEIGHBOURS) => return None,
            IPV6 if !reads.contains(Reads::PACKETS) && reads.contains(Reads::NEIGHBOURS) => {
                pattern.v6_next(first_buffer)?
            }
            _ if !reads.contains(Reads::PACKETS) => LayoutKind::Ethernet,
            IPV4 => pattern.v4(reads, first_buffer)?,
            IPV6 => pattern.v6(reads, first_buffer)?,
            _ => LayoutKind::Ethernet,
        };
        Some((kind, pattern))
    }

    /// Makes the pattern of an IPv4 packet that has no options and is not a fragment.
    fn v4(&mut self, reads: Reads, first_buffer: FirstBuffer<'_>) -> Option<LayoutKind> {
        self.words = first_buffer.words::<V4>()?;
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
        self.set_lengths(V4_BYTES, V4_BYTES.saturating_add(looked_at), looked_at);
        // Version, and the fragment field without its bit "don't fragment".
        self.mask[0] = byte(0) | byte(6) & !(0x40 << 48) | byte(7);
        self.mask[1] = byte(1) | u64::from(u32::MAX) << 32;
        self.needed = self.mask;
        self.mask[2] = destination_and_ports(reads);
        if !reads.contains(Reads::FLAGS) || protocol != TCP {
            return Some(LayoutKind::V4);
        }
        self.words = first_buffer.words::<V4Flags>()?;
        self.mask[3] = byte(7);
        Some(LayoutKind::V4Flags)
    }

    /// Makes the pattern of an IPv6 packet that is no neighbour discovery: its next header is a protocol with ports.
    fn v6_next(&mut self, first_buffer: FirstBuffer<'_>) -> Option<LayoutKind> {
        self.words = first_buffer.words::<V6Next>()?;
        let [version, _, _, _, _, _, protocol, _] = self.words[0].to_le_bytes();
        self.set_lengths(V6_BYTES, 0, 0);
        self.mask[0] = 0xf0 | byte(6);
        self.needed = self.mask;
        (version >> 4 == 6 && has_ports(protocol)).then_some(LayoutKind::V6Next)
    }

    /// Makes the pattern of an IPv6 packet without extension headers whose protocol has ports.
    fn v6(&mut self, reads: Reads, first_buffer: FirstBuffer<'_>) -> Option<LayoutKind> {
        self.words = first_buffer.words::<V6>()?;
        let [version, _, _, _, _, _, protocol, _] = self.words[0].to_le_bytes();
        if version >> 4 != 6 || !has_ports(protocol) || (self.words[1], self.words[2]) == (0, 0) {
            return None;
        }
        let looked_at = if protocol == TCP { 14 } else { 4 };
        self.set_lengths(V6_BYTES, looked_at, looked_at);
        let destination = if reads.contains(Reads::DESTINATION) { u64::MAX } else { 0 };
        self.mask[0] = 0xf0 | byte(6);
        (self.mask[1], self.mask[2]) = (u64::MAX, u64::MAX);
        self.needed = self.mask;
        (self.mask[3], self.mask[4]) = (destination, destination);
        let ports = destination_and_ports(reads);
        if !reads.contains(Reads::FLAGS) || protocol != TCP {
            self.mask[5] = ports;
            return Some(LayoutKind::V6);
        }
        self.words = first_buffer.words::<V6Flags>()?;
        self.mask[5] = ports >> 32;
        self.mask[6] = byte(7);
        Some(LayoutKind::V6Flags)
    }

    /// Sets the smallest value of IP's length field. Sets the smallest frame: it has `header` bytes of IP header and
    /// `behind` bytes after it.
    fn set_lengths(&mut self, header: u16, length: u16, behind: u16) {
        self.length = length;
        self.min_len = ETHERNET_BYTES.saturating_add(header.saturating_add(behind).into());
    }

    /// Rebuilds the first bytes of a frame from its words.
    pub(crate) fn front<F: Layout>(addresses: Addresses, words: &Words) -> [u8; FRONT] {
        let mut front = [0; FRONT];
        if let Some(start) = front.first_chunk_mut() {
            *start = addresses.bytes();
        }
        F::put(words, &mut front);
        front
    }
}

/// Makes the mask of a word whose first half is the last 4 bytes of the destination address, and whose second half is
/// the two ports.
const fn destination_and_ports(reads: Reads) -> u64 {
    let destination = if reads.contains(Reads::DESTINATION) { u32::MAX as u64 } else { 0 };
    let ports = if reads.contains(Reads::PORTS) { (u32::MAX as u64) << 32 } else { 0 };
    destination | ports
}
