//! Destination, source and EtherType of a frame, read once and compared as two words.

use memory::span::Piece;

use crate::ethernet::ETHERNET_BYTES;
use crate::frame_head::FrameHead;
use crate::mac::Mac;
use crate::offload::HEADER_BYTES;

/// EtherType of a tagged frame, in the byte order of the words.
const TAGGED: u64 = 0x8100_u16.to_be() as u64;

/// Destination, source and EtherType of a frame: bytes 0 to 7, and bytes 6 to 13.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addresses(u64, u64);

impl Addresses {
    /// Takes them from the first bytes of a frame.
    #[inline(always)]
    pub(crate) fn of(head: &FrameHead) -> Self {
        Self(head.word::<0>(), head.word::<6>())
    }

    /// Reads them from a frame that starts with `body`, and its virtio-net header. `None`: the frame is too short.
    pub(crate) fn and_header(header: Piece<'_>, body: Piece<'_>) -> Option<(Self, [u8; HEADER_BYTES])> {
        let start = body.first::<{ ETHERNET_BYTES as usize }>()?;
        let mut own = [0; HEADER_BYTES];
        header.first()?.read(&mut own);
        Some((Self(start.load_u64::<0>(), start.load_u64::<6>()), own))
    }

    pub(crate) fn destination(self) -> Mac {
        Mac::of_bits(self.0 & ((1 << 48) - 1))
    }

    pub(crate) fn source(self) -> Mac {
        Mac::of_bits(self.1 & ((1 << 48) - 1))
    }

    pub(crate) fn is_tagged(self) -> bool {
        self.1 >> 48 == TAGGED
    }

    pub(crate) fn ether_type(self) -> u16 {
        ((self.1 >> 48) as u16).swap_bytes()
    }

    /// Returns the bytes as they are sent.
    pub(crate) fn bytes(self) -> [u8; ETHERNET_BYTES as usize] {
        let both = u128::from(self.0 & ((1 << 48) - 1)) | u128::from(self.1) << 48;
        let [bytes @ .., _, _] = both.to_le_bytes();
        bytes
    }
}
