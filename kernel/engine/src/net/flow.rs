//! What the frames of a run have in common: where they go, what the rules look at of them, and what these say. It is kept for
//! each port: most runs go on where the last one from there ended.

use memory::span::Piece;

use super::alike::{Form, Kind, Like, Seen, Words, with_form};
use super::beginning::Beginning;
use super::rules::{Judge, Judgement, Ports};
use super::{ETHERNET_BYTES, HEADER_BYTES};
use crate::policy::vlan::{self, Vlan};
use crate::switch::{Mac, Switch};

/// The type of a tagged frame, as it is read.
const TAGGED: u64 = 0x8100_u16.to_be() as u64;

/// Destination, source and type of a frame: its bytes 0 to 7, and 6 to 13.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Addresses(u64, u64);

impl Addresses {
    /// Of a frame of which so much was read.
    #[inline(always)]
    pub(super) fn of(beginning: &Beginning) -> Self {
        Self(beginning.word::<0>(), beginning.word::<6>())
    }

    /// Of a frame that begins with `body`, and its header, whatever that asks for. None: it is too short.
    pub(super) fn and_header(header: Piece<'_>, body: Piece<'_>) -> Option<(Self, [u8; HEADER_BYTES])> {
        let start = body.first::<{ ETHERNET_BYTES as usize }>()?;
        let mut own = [0; HEADER_BYTES];
        header.first()?.read(&mut own);
        Some((Self(start.load_u64::<0>(), start.load_u64::<6>()), own))
    }

    pub(super) fn destination(self) -> Mac {
        Mac::of_bits(self.0 & ((1 << 48) - 1))
    }

    pub(super) fn source(self) -> Mac {
        Mac::of_bits(self.1 & ((1 << 48) - 1))
    }

    pub(super) fn is_tagged(self) -> bool {
        self.1 >> 48 == TAGGED
    }

    pub(super) fn ether_type(self) -> u16 {
        ((self.1 >> 48) as u16).swap_bytes()
    }

    /// They, as they stand in a frame.
    pub(super) fn bytes(self) -> [u8; ETHERNET_BYTES as usize] {
        let [destination, rest] = [self.0.to_le_bytes(), self.1.to_le_bytes()];
        core::array::from_fn(|i| if i < 6 { destination[i] } else { rest[i - 6] })
    }
}

/// Frames of one form with the same addresses and type that are treated alike.
pub(super) struct Flow {
    pub addresses: Addresses,
    /// The VLAN that they are in, without a tag.
    pub vlan: Vlan,
    /// The port that they go to.
    pub to: usize,
    pub kind: Kind,
    pub like: Like,
    judge: Judge,
    pub judgement: Judgement,
}

impl Flow {
    /// That of a frame of `len` bytes from a port, of which so much was seen. None: it does not go by runs.
    #[cold]
    #[inline(never)]
    pub(super) fn of(
        (addresses, seen, len): (Addresses, Seen<'_>, u32),
        port: usize,
        rules: &Ports,
        switch: &Switch,
        now: u64,
    ) -> Option<Self> {
        let (destination, source) = (addresses.destination(), addresses.source());
        if destination.is_multicast() || source.is_multicast() || addresses.is_tagged() {
            return None;
        }
        let vlan = rules.untagged(port)?;
        let to = switch.lookup(destination, vlan, now)?;
        if rules.form(to, vlan)? == vlan::Form::Tagged {
            return None;
        }
        let (kind, mut like) = Like::first(rules.reads(port, to), addresses.ether_type(), seen)?;
        let judge = rules.judge(port, to, vlan);
        let judgement = with_form!(kind, F => {
            like.least = like.least.max(F::END as u32);
            if len < like.least || !F::alike(&like.words, &like, &like.mask) {
                return None;
            }
            match kind {
                Kind::Bare => judge.source(source),
                _ => judge.front(&Like::front::<F>(addresses, &like.words))?,
            }
        });
        Some(Self { addresses, vlan, to, kind, like, judge, judgement })
    }

    /// Whether its frames still go where they went.
    #[inline]
    pub(super) fn goes_on(&self, switch: &Switch, now: u64) -> bool {
        switch.lookup(self.addresses.destination(), self.vlan, now) == Some(self.to)
    }

    /// Whether a frame with other words is treated alike. It is what others have to be like from then on.
    #[cold]
    #[inline(never)]
    pub(super) fn holds<F: Form>(&mut self, words: &Words) -> bool {
        let like = &mut self.like;
        let same = F::alike(words, like, &like.needed)
            && self.judge.front(&Like::front::<F>(self.addresses, words)).as_ref() == Some(&self.judgement);
        if same {
            like.words = *words;
        }
        same
    }

    /// Counts frames of `bytes` bytes together where the rules say so.
    #[inline]
    pub(super) fn count(&self, frames: u64, bytes: u64) {
        self.judge.count(&self.judgement, frames, bytes);
    }
}
