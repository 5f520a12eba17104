//! The fast way from guest to guest: a run of frames of the usual form, with the same addresses, from one queue into one
//! other.
//!
//! ```text
//!   sender's ring ── look at a run ──▶ frames ─┐
//!                                              ├──▶ one copy each ──▶ used entries of both
//!   receiver's ring ── look at as many ──▶ buffers ─┘
//! ```
//!
//! Of the usual form is a frame that lies in one buffer with its virtio-net header, or in two, has no tag, and asks for no offload;
//! its addresses name one running port, not its sender's; and it fits into the next buffer of that port, which is one piece. A
//! run ends before the first frame that is not, and [`super::forward`] takes that one: nothing is refused here, and no fault
//! is found. What both do has to be the same, which `tests/ways.rs` looks at.
//!
//! All that is looked at of such a frame is its addresses. They and the type behind them are read once, into two words,
//! and written over what was copied: what the receiver gets is what was checked.

use core::num::NonZeroU32;

use memory::copy::Copier;
use memory::span::{Marked, Piece};

use super::buffers::need;
use super::forward::Bridge;
use super::{ETHERNET_BYTES, HEADER_BYTES};
use crate::backend::Devices;
use crate::offload::Asked;
use crate::policy::vlan::PLAIN;
use crate::queue::{First, Look, Run, UsedRow};
use crate::schedule::{Portion, Served};
use crate::switch::Mac;

/// The type of a tagged frame, as it is read.
const TAGGED: u64 = 0x8100_u16.to_be() as u64;
/// Frames in a run at most.
const RUN: usize = 32;
const HEADER: u32 = HEADER_BYTES as u32;
/// Bytes that a frame has at least, with its header.
const LEAST: u32 = HEADER + ETHERNET_BYTES;
/// Bytes of a receiver's buffer that are written by themselves: header and addresses.
const CHECKED: usize = HEADER_BYTES + 12;

/// Destination, source and type of a frame: its bytes 0 to 7, and 6 to 13.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Addresses(u64, u64);

impl Addresses {
    /// Of a frame that begins with `body`. None: it is too short, or its header asks for something.
    #[inline(always)]
    fn of(header: Piece<'_>, body: Piece<'_>) -> Option<Self> {
        let asked = header.first::<HEADER_BYTES>()?.load_u64::<0>();
        let start = body.first::<{ ETHERNET_BYTES as usize }>()?;
        let addresses = Self(start.load_u64::<0>(), start.load_u64::<6>());
        (!Asked::anything(asked as u8, (asked >> 8) as u8)).then_some(addresses)
    }

    fn destination(self) -> Mac {
        Mac::of_bits(self.0 & ((1 << 48) - 1))
    }

    fn source(self) -> Mac {
        Mac::of_bits(self.1 & ((1 << 48) - 1))
    }

    fn is_tagged(self) -> bool {
        self.1 >> 48 == TAGGED
    }

    /// They, behind a header that says that the frame takes one buffer, as words.
    fn behind_header(self) -> [u64; CHECKED / 8] {
        [0, 1 << 16 | self.0 << 32, self.0 << 16 >> 48 | self.1 << 16]
    }
}

/// A frame as its sender offers it: its bytes, or the first of them, and the head of its chain.
type Offered<'d> = Marked<'d>;
/// Set in the mark of a frame whose last bytes are in another buffer.
const SPLIT: u32 = 1 << 16;

/// A buffer as its receiver offers it, and the head of its chain.
type Posted<'d> = Marked<'d>;

/// Ends of frames that lie in two buffers, in the order of the frames.
type Tails<'d> = heapless::Vec<Piece<'d>, RUN>;

/// A look at a sender's queue, and what of it does not lie in `frames`.
struct Sending<'r, 'd> {
    tx: &'r mut Run<'d>,
    look: &'r Look<'d>,
    tails: &'r mut Tails<'d>,
    /// Bytes of the longest frame.
    max: u32,
}

impl<'d> Sending<'_, 'd> {
    /// Request `i`, if it is a frame of the usual form; its addresses, and the bytes of its chain.
    #[cold]
    #[inline(never)]
    fn frame(&mut self, i: usize) -> Option<(Offered<'d>, Addresses, u32)> {
        let first = self.tx.first::<true>(self.look, i)?;
        let head = u32::from(first.head);
        let (header, body, mark, bytes) = if first.is_readable() {
            let whole = self.tx.buffer(&mut self.tx.span(), &first)?;
            (whole, whole.skip(HEADER)?, head, whole.len())
        } else {
            let [one, other] = self.tx.two(self.look, &first)?;
            let (front, bytes) = (one.skip(HEADER)?, one.len() + other.len());
            if front.is_empty() {
                (one, other, head, bytes)
            } else {
                self.tails.push(other).ok()?;
                (one, front, head | SPLIT, bytes)
            }
        };
        let addresses = Addresses::of(header, body)?;
        let usual = (LEAST..=self.max.saturating_add(HEADER)).contains(&bytes);
        usual.then_some((Marked::new(body, mark), addresses, bytes))
    }

    /// As [`Sending::frame`], if it has these addresses. None, or its bytes in the chain.
    #[cold]
    #[inline(never)]
    fn frame_with(&mut self, i: usize, addresses: Addresses, frames: &mut [Offered<'d>; RUN]) -> Option<NonZeroU32> {
        let (frame, _, bytes) = self.frame(i).filter(|&(_, theirs, _)| theirs == addresses)?;
        *frames.get_mut(i)? = frame;
        NonZeroU32::new(bytes)
    }
}

/// Looks at frames as long as they are of the usual form, have the addresses and the type of the first, and less than `room` bytes were
/// taken. The addresses, how many frames there are, and their bytes; None: the first one is of another form.
#[inline(never)]
fn collect<'d, const HOLDING: bool>(
    sending: &mut Sending<'_, 'd>,
    room: u64,
    frames: &mut [Offered<'d>; RUN],
) -> Option<(Addresses, usize, u64)> {
    let (look, max, most) = (*sending.look, sending.max, sending.look.len().min(RUN));
    let (first, addresses, bytes) = sending.frame(0)?;
    let mut span = sending.tx.span();
    frames[0] = first;
    let (mut i, mut taken) = (1, u64::from(bytes));
    while i < most && taken < room {
        let Some(first) = sending.tx.first::<HOLDING>(&look, i) else { break };
        let len = first.len();
        if first.is_readable() {
            if len < LEAST || len - HEADER > max {
                break;
            }
            let Some(header) = sending.tx.buffer(&mut span, &first) else { break };
            let Some((_, body)) = header.first_and_from::<{ LEAST as usize }, HEADER_BYTES>() else { break };
            if Addresses::of(header, body) != Some(addresses) {
                break;
            }
            frames[i] = Marked::new(body, u32::from(first.head));
            taken += u64::from(len);
        } else {
            let Some(bytes) = sending.frame_with(i, addresses, frames) else { break };
            taken += u64::from(bytes.get());
        }
        i += 1;
    }
    Some((addresses, i, taken))
}

/// How many frames at the beginning are no longer than `max`.
#[cold]
#[inline(never)]
fn no_longer_than(max: u32, frames: &[Offered<'_>], tails: &Tails<'_>) -> usize {
    let mut tails = tails.iter();
    let len = |frame: &Offered<'_>| {
        let tail = if frame.mark() & SPLIT != 0 { tails.next().map_or(0, |tail| tail.len()) } else { 0 };
        frame.piece().len() + tail
    };
    frames.iter().map(len).take_while(|&len| len <= max).count()
}

/// Looks at the receiver's next buffers, `most` or as long as each is one piece. How many.
#[inline(never)]
fn places<'d>(rx: &mut Run<'d>, look: &Look<'d>, most: usize, buffers: &mut [Posted<'d>; RUN]) -> usize {
    let most = most.min(look.len()).min(RUN);
    let mut span = rx.span();
    let mut i = 0;
    while i < most {
        let Some(first) = rx.first::<false>(look, i).filter(First::is_writable) else { break };
        let Some(buffer) = rx.buffer(&mut span, &first) else { break };
        buffer.prefetch_to_write(0);
        buffers[i] = Marked::new(buffer, u32::from(first.head));
        i += 1;
    }
    i
}

/// Copies each of `most` frames into its buffer, and writes the used entries of both. How many fitted.
#[inline(never)]
fn give(
    (frames, tails, sent): (&[Offered<'_>; RUN], &Tails<'_>, UsedRow<'_>),
    (buffers, got): (&[Posted<'_>; RUN], UsedRow<'_>),
    most: usize,
    copier: Copier,
    addresses: Addresses,
) -> usize {
    let most = most.min(sent.len()).min(got.len()).min(RUN);
    let words = addresses.behind_header();
    let mut tails = tails.iter();
    let mut i = 0;
    while i < most {
        let (body, buffer) = (frames[i].piece(), buffers[i].piece());
        let Some((checked, room)) = buffer.first_and_from::<CHECKED, HEADER_BYTES>() else { break };
        let mut len = body.len();
        if frames[i].mark() & SPLIT != 0 {
            let Some(end) = put_tail(room, len, tails.next(), copier) else { break };
            len += end;
        }
        if !room.copy_from(copier, body) {
            break;
        }
        checked.store_u64::<0>(words[0]);
        checked.store_u64::<8>(words[1]);
        checked.store_u64::<16>(words[2]);
        got.set(i, [buffers[i].mark(), need(len)]);
        sent.set(i, [u32::from(frames[i].mark() as u16), 0]);
        i += 1;
    }
    i
}

/// Copies the end of a frame behind its first `len` bytes. How many bytes it has; None: it does not fit.
#[cold]
#[inline(never)]
fn put_tail(room: Piece<'_>, len: u32, tail: Option<&Piece<'_>>, copier: Copier) -> Option<u32> {
    let tail = *tail?;
    room.skip(len)?.copy_from(copier, tail).then_some(tail.len())
}

impl Bridge {
    /// Sends frames of the usual form from the beginning of a queue, up to a portion. What it took: nothing if the first
    /// frame is of another form.
    pub(super) fn stream(
        &mut self,
        devices: &mut Devices,
        port: usize,
        queue: u16,
        portion: &Portion,
        now: u64,
    ) -> Served {
        self.try_stream(devices, port, queue, portion, now).unwrap_or_default()
    }

    #[inline(always)]
    fn try_stream(
        &mut self,
        devices: &mut Devices,
        port: usize,
        queue: u16,
        portion: &Portion,
        now: u64,
    ) -> Option<Served> {
        let (sender, mut others) = devices.split(port)?;
        let (sent, kin) = (sender.shared().counters(), sender.kin());
        let mut tx = sender.run(queue)?;
        let look = tx.look((portion.requests as usize).min(RUN))?;
        let (mut frames, mut tails) = ([Offered::EMPTY; RUN], Tails::new());
        let max = self.max_frame(port);
        let mut sending = Sending { tx: &mut tx, look: &look, tails: &mut tails, max };
        let collect = if look.holding { collect::<true> } else { collect::<false> };
        let (addresses, mut offers, mut bytes) = collect(&mut sending, portion.bytes, &mut frames)?;
        let (destination, source) = (addresses.destination(), addresses.source());
        if destination.is_multicast() || source.is_multicast() || addresses.is_tagged() {
            return None;
        }
        let to = self.switch.lookup(destination, PLAIN, now)?;
        if !self.rules.let_run(source, port, to) {
            return None;
        }
        self.switch.learn(source, PLAIN, port, now);
        let receiver = others.get_mut(to)?;
        if !receiver.running() || kin & 1 << to != 0 {
            return None;
        }
        if self.max_frame(to) < max {
            offers = no_longer_than(self.max_frame(to), frames.get(..offers)?, &tails);
            bytes = bytes_of(frames.get(..offers)?, &tails);
        }
        let got = receiver.shared().counters();
        let copier = receiver.memory().copier();
        if !self.wants(to, destination, None) {
            return None;
        }
        let mut rx = receiver.run(self.receive_queue(receiver, to, queue))?;
        let posted = rx.look(offers)?;
        // No request of a receive queue is ever held beyond a call.
        if posted.is_empty() {
            drop_all(look.used, frames.get(..offers)?);
            tx.finish(offers);
            sent.tx_packets.add(offers as u64);
            sent.tx_bytes.add(bytes - u64::from(HEADER) * offers as u64);
            got.rx_no_buffer.add(offers as u64);
            return Some(Served { requests: offers as u32, bytes });
        }
        let mut buffers = [Posted::EMPTY; RUN];
        let places = places(&mut rx, &posted, offers, &mut buffers);
        let given = give((&frames, &tails, look.used), (&buffers, posted.used), places, copier, addresses);
        if given != offers {
            bytes = bytes_of(frames.get(..given)?, &tails);
        }
        tx.finish(given);
        rx.finish(given);
        let payload = bytes - u64::from(HEADER) * given as u64;
        for (packets_counter, bytes_counter) in [(&sent.tx_packets, &sent.tx_bytes), (&got.rx_packets, &got.rx_bytes)] {
            packets_counter.add(given as u64);
            bytes_counter.add(payload);
        }
        Some(Served { requests: given as u32, bytes })
    }
}

/// Bytes of the chains of these frames.
#[cold]
#[inline(never)]
fn bytes_of(frames: &[Offered<'_>], tails: &Tails<'_>) -> u64 {
    // The end of a frame that was looked at and is no part of the run may be there too.
    let split = frames.iter().filter(|frame| frame.mark() & SPLIT != 0).count();
    let ends = tails.iter().take(split).map(|tail| u64::from(tail.len()));
    frames.iter().map(|frame| u64::from(need(frame.piece().len()))).chain(ends).sum()
}

/// Completes frames for which there is no buffer at all.
#[cold]
#[inline(never)]
fn drop_all(used: UsedRow<'_>, frames: &[Offered<'_>]) {
    for (i, frame) in frames.iter().enumerate() {
        used.set(i, [u32::from(frame.mark() as u16), 0]);
    }
}
