//! The fast way from guest to guest: a run of frames of the usual form, with the same addresses, from one queue into one
//! other.
//!
//! ```text
//!   sender's ring ── look at a run ──▶ frames ─┐
//!                                              ├──▶ used entries of both, copies
//!   receiver's ring ── look at as many ──▶ buffers ─┘
//! ```
//!
//! Of the usual form is a frame that lies in one buffer with its virtio-net header, or in two, has no tag, and asks for no offload;
//! its addresses name one running port, not its sender's; the rules of both ports say the same of it as of the one before it; and
//! it fits into the next buffer of that port, which is one piece. A run ends before the first frame that is not, and
//! [`super::forward`] takes that one: no fault is found here. What both do has to be the same, which `tests/ways.rs` looks at.
//! Frames that no guest is known to have the destination of are [`super::leave`]'s.
//!
//! The beginning of each frame is read once, into memory of ours, and goes from there to the receiver: what was checked is what it
//! gets ([`Beginning`]). Without rules all that is looked at of it is its addresses, with rules whatever these look at, as
//! [`super::alike`] says. Frames that a stage is to copy or to limit are not for here.

use memory::copy::Copier;
use memory::span::{Marked, Piece, Window};
use nic::Nic;

use super::alike::{Form, Seen, with_form};
use super::beginning::{Beginning, LONG};
use super::buffers::need;
use super::flow::{Addresses, Flow};
use super::forward::Bridge;
use super::leave::Sender;
use super::rules::Stopped;
use super::{ETHERNET_BYTES, HEADER_BYTES};
use crate::backend::Devices;
use crate::offload::{Asked, Can};
use crate::queue::{Entries, First, Look, Run, Used};
use crate::schedule::{Portion, Served};
use crate::stats::{Counter, PortCounters};
use crate::uplink::{Held, Uplink};

/// Frames in a run at most.
pub(super) const RUN: usize = 64;
/// Frames in a run for which less room is made ready: one that somebody waits for comes alone.
const FEW: usize = 4;
pub(super) const HEADER: u32 = HEADER_BYTES as u32;
/// Bytes that a frame has at least, with its header.
const LEAST: u32 = HEADER + ETHERNET_BYTES;

/// A frame as its sender offers it: its bytes, or the first of them, and the head of its chain.
pub(super) type Offered<'d> = Marked<'d>;
/// Set in the mark of a frame whose last bytes are in another buffer.
pub(super) const SPLIT: u32 = 1 << 16;
/// Set in the mark of a frame of a run from guest to guest that was looked at by itself. Of others there the header is among the bytes.
const ALONE: u32 = 1 << 31;

/// A buffer as its receiver offers it, and the head of its chain.
type Posted<'d> = Marked<'d>;

/// A frame, and the buffer that it goes to.
#[derive(Clone, Copy)]
struct Moved<'d> {
    frame: Offered<'d>,
    buffer: Posted<'d>,
}

impl<'d> Moved<'d> {
    const NOTHING: Self = Self { frame: Offered::EMPTY, buffer: Posted::EMPTY };

    /// Bytes of the frame with its header, whose end, if it has one by itself, is the next of `tails`.
    fn bytes(&self, tails: &mut Ends<'_, 'd>) -> u32 {
        let (len, mark) = (self.frame.piece().len(), self.frame.mark());
        let tail = if mark & SPLIT != 0 { tails.next().map_or(0, |tail| tail.len()) } else { 0 };
        tail + if mark & ALONE != 0 { need(len) } else { len }
    }
}

/// Ends of frames that lie in two buffers, in the order of the frames.
pub(super) type Tails<'d> = heapless::Vec<Piece<'d>, RUN>;
type Ends<'t, 'd> = core::slice::Iter<'t, Piece<'d>>;

/// A look at a sender's queue, and the ends of its frames.
pub(super) struct Sending<'r, 'd, L> {
    pub tx: &'r mut Run<'d>,
    pub look: &'r L,
    pub tails: &'r mut Tails<'d>,
    /// Bytes of the longest frame.
    pub max: u32,
}

/// A frame that was looked at by itself.
pub(super) struct Single<'d> {
    pub frame: Offered<'d>,
    pub addresses: Addresses,
    /// Bytes of its chain.
    pub bytes: u32,
    /// Its virtio-net header.
    pub header: [u8; HEADER_BYTES],
}

impl Single<'_> {
    /// Whether its header asks for something. Only then may it be longer than the longest frame.
    pub(super) const fn asks(&self) -> bool {
        Asked::anything(self.header[0], self.header[1])
    }
}

/// What a queue begins with.
enum Found<'d> {
    /// So many frames of the flow that is known at their port, and their bytes.
    Flow(usize, u64),
    /// A frame of which no guest is known to have the destination.
    Outside(Single<'d>),
}

impl<'d, L: Entries<'d>> Sending<'_, 'd, L> {
    /// Request `i`, if it is a frame of the usual form, or one that asks for something.
    #[cold]
    #[inline(never)]
    pub(super) fn frame(&mut self, i: usize) -> Option<Single<'d>> {
        let first = self.look.first::<true>(self.tx, i)?;
        let head = u32::from(first.head());
        let (header, body, mark, bytes) = if first.is_readable() {
            let whole = self.tx.buffer(&first)?;
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
        let (addresses, header) = Addresses::and_header(header, body)?;
        let single = Single { frame: Marked::new(body, mark), addresses, bytes, header };
        let usual = bytes >= LEAST && (bytes <= self.longest() || single.asks());
        usual.then_some(single)
    }

    /// As [`Sending::frame`], if it asks for nothing, has `least` bytes with its header, and in its first buffer those that are looked
    /// at. They are read. None, or its bytes in the chain.
    #[cold]
    #[inline(never)]
    fn frame_of<F: Form>(&mut self, i: usize, least: u32, beginning: &mut Beginning) -> Option<(Offered<'d>, u32)> {
        let single = self.frame(i)?;
        let body = single.frame.piece();
        beginning.read(body, LONG, self.tx.copier());
        let usual = single.bytes >= least && body.len() >= (F::END as u32).max(ETHERNET_BYTES) && !single.asks();
        usual.then(|| (Offered::new(body, single.frame.mark() | ALONE), single.bytes))
    }

    /// Bytes of the longest frame with its header.
    const fn longest(&self) -> u32 {
        self.max.saturating_add(HEADER)
    }
}

/// What a run took whose frames were looked at in vain.
const IN_VAIN: Option<Served> = Some(Served { requests: 0, bytes: 0 });
/// Bytes of a receiver's buffers that are found in a window: more than most have.
const BUFFER: u32 = 0x1_0000;
/// Bytes of a buffer that can be read wherever it is found in a window: header, and as much as any form looks at.
const PEEK: usize = HEADER_BYTES + LONG;

/// Looks at frames as long as they are of the usual form and of the same flow, and less than `room` bytes were taken. How many
/// there are, and their bytes.
#[inline(never)]
fn collect<'d, L: Entries<'d>, F: Form, const HOLDING: bool>(
    sending: &mut Sending<'_, 'd, L>,
    flow: &mut Flow,
    room: u64,
    moved: &mut [Moved<'d>],
    beginnings: &mut [Beginning; RUN],
) -> (usize, u64) {
    let (look, most) = (*sending.look, sending.look.len().min(RUN).min(moved.len()));
    let (addresses, least, copier) = (flow.addresses, need(flow.like.least), sending.tx.copier());
    let mut window: Window<'d, PEEK> = sending.tx.span().window(sending.longest());
    let (mut i, mut taken) = (0, 0);
    while i < most && taken < room {
        let Some(first) = look.first::<HOLDING>(sending.tx, i) else { break };
        let beginning = &mut beginnings[i];
        // Not nested, which would be two instructions more a frame.
        let mut found = if first.is_readable() { first.within(&window) } else { None };
        if found.is_none()
            && first.is_readable()
            && let Some((_, span)) = sending.tx.elsewhere(&first)
        {
            window = span.window(sending.longest());
            found = first.within(&window);
        }
        let bytes = if let Some((start, whole)) = found {
            let asked = start.load_u64::<0>();
            if whole.len() < least || Asked::anything(asked as u8, (asked >> 8) as u8) {
                break;
            }
            moved[i].frame = Marked::new(whole, first.mark());
            beginning.read(start.rest::<HEADER_BYTES>(), F::READ, copier);
            whole.len()
        } else {
            let Some((frame, bytes)) = sending.frame_of::<F>(i, least, beginning) else { break };
            moved[i].frame = frame;
            bytes
        };
        if Addresses::of(beginning) != addresses {
            break;
        }
        let words = F::words(beginning);
        if !F::alike(&words, &flow.like, &flow.like.mask) && !flow.holds::<F>(&words) {
            break;
        }
        taken += u64::from(bytes);
        i += 1;
    }
    (i, taken)
}

/// How many frames at the beginning are no longer than `max`.
#[cold]
#[inline(never)]
fn no_longer_than<'d>(max: u32, moved: &[Moved<'d>], tails: &Tails<'d>) -> usize {
    let mut tails = tails.iter();
    moved.iter().take_while(|moved| moved.bytes(&mut tails) <= need(max)).count()
}

/// Looks at the receiver's next buffers, `most` or as long as each is one piece. How many.
#[inline(never)]
fn places<'d, L: Entries<'d>>(rx: &mut Run<'d>, look: &L, most: usize, moved: &mut [Moved<'d>]) -> usize {
    let (look, most) = (*look, most.min(look.len()).min(moved.len()));
    look.used().prefetch(most);
    let mut window = rx.span().window::<0>(BUFFER);
    let mut i = 0;
    while i < most {
        let Some(first) = look.first::<false>(rx, i).filter(First::is_writable) else { break };
        // In each branch: behind both, the length and the mark would be stored one by one, which are three instructions more.
        if let Some((_, buffer)) = first.within(&window) {
            moved[i].buffer = Marked::new(buffer, first.mark());
        } else {
            let Some((buffer, span)) = rx.elsewhere(&first) else { break };
            window = span.window(BUFFER);
            moved[i].buffer = Marked::new(buffer, first.mark());
        }
        i += 1;
    }
    i
}

/// Copies each of `most` frames into its buffer, and writes the used entries of both. How many fitted.
#[inline(never)]
fn give<'d, F: Form, S: Used, G: Used>(
    (moved, tails): (&[Moved<'d>], &Tails<'d>),
    (sent, got): (S, G),
    most: usize,
    copier: Copier,
    beginnings: &[Beginning; RUN],
) -> usize {
    let most = most.min(sent.len()).min(got.len()).min(moved.len()).min(RUN);
    let (mut tails, got) = (tails.iter(), got.written());
    let mut i = 0;
    while i < most {
        let (Moved { frame, buffer }, beginning) = (&moved[i], &beginnings[i]);
        if frame.mark() & ALONE != 0 {
            if !give_alone((&moved[i], beginning, &mut tails), (sent, got), i, copier) {
                break;
            }
            i += 1;
            continue;
        }
        let whole = frame.piece();
        let Some(room) = buffer.piece().begin(whole.len()) else { break };
        // Nobody looks at them before they are published. Behind the copy their values would be kept on the stack, and each store takes
        // a place among those that wait for the receiver's lines.
        got.set(i, buffer.mark(), whole.len());
        sent.set(i, frame.mark(), 0);
        // The last one has none behind it, and fetches its own buffer: for a frame that comes alone that is what helps.
        let next = moved.get(i + 1).unwrap_or(&moved[i]).buffer.piece();
        beginning.write(room, whole, F::READ, copier, next);
        i += 1;
    }
    i
}

/// The same for frame `i`, which was looked at by itself. False: it does not fit.
#[cold]
#[inline(never)]
fn give_alone<'d, S: Used, G: Used>(
    (Moved { frame, buffer }, beginning, tails): (&Moved<'d>, &Beginning, &mut Ends<'_, 'd>),
    (sent, got): (S, G),
    i: usize,
    copier: Copier,
) -> bool {
    let (body, room) = (frame.piece(), buffer.piece());
    let split = frame.mark() & SPLIT != 0;
    let Some(tail) = (if split { tails.next().copied() } else { Some(Piece::EMPTY) }) else { return false };
    if !room.skip(need(body.len())).is_some_and(|end| end.copy_from(copier, tail)) {
        return false;
    }
    beginning.write_before(room, body, copier);
    got.set(i, buffer.mark(), need(body.len()) + tail.len());
    sent.set(i, frame.mark(), 0);
    true
}

impl Bridge {
    /// Sends frames of the usual form from the beginning of a queue, up to a portion. What it took: nothing if it is seen only late that
    /// their receiver cannot have them this way. None: the first frame is of another form.
    #[inline(never)]
    pub(super) fn stream<N: Nic<Token = Held>>(
        &mut self,
        devices: &mut Devices,
        uplinks: &mut [Option<Uplink<N>>],
        port: usize,
        queue: u16,
        portion: &Portion,
        now: u64,
    ) -> Option<Served> {
        let (sender, mut others) = devices.split(port)?;
        let (sent, kin, features) = (sender.shared().counters(), sender.kin(), sender.features());
        let mut tx = sender.run(queue)?;
        let most = (portion.requests as usize).min(RUN);
        let look = tx.look(most)?;
        let (mut few, mut many);
        let moved: &mut [Moved<'_>] = if look.len() <= FEW {
            few = [Moved::NOTHING; FEW];
            &mut few
        } else {
            many = [Moved::NOTHING; RUN];
            &mut many
        };
        let mut tails = Tails::new();
        let max = self.max_frame(port);
        let (run, ends) = (&mut tx, &mut tails);
        let found = match &look {
            Look::Split(look) => self.offers(Sending { tx: run, look, tails: ends, max }, port, portion, now, moved),
            Look::Packed(look) => self.offers(Sending { tx: run, look, tails: ends, max }, port, portion, now, moved),
        }?;
        let (mut offers, mut bytes) = match found {
            Found::Flow(offers, bytes) => (offers, bytes),
            Found::Outside(first) => {
                let uplink = self.leads_out(uplinks, port, first.addresses)?;
                let from = Sender { port, counters: sent, can: Can::device(features) };
                let (tx, tails) = (&mut tx, &mut tails);
                return match &look {
                    Look::Split(look) => {
                        self.leave_by_run(uplink, from, Sending { tx, look, tails, max }, first, portion, now)
                    }
                    Look::Packed(look) => {
                        self.leave_by_run(uplink, from, Sending { tx, look, tails, max }, first, portion, now)
                    }
                };
            }
        };
        let flow = self.flows[port].as_ref()?;
        let to = flow.to;
        if let Some(Stopped::Entering(refusal)) = flow.judgement.stopped {
            return Some(discard(tx, &look, moved.get(..offers)?, bytes, sent, refusal.entering(sent), flow));
        }
        self.switch.learn(flow.addresses.source(), flow.vlan, port, now);
        let Some(receiver) = others.get_mut(to).filter(|receiver| receiver.running() && !kin.contains(to)) else {
            return IN_VAIN;
        };
        let got = receiver.shared().counters();
        if let Some(Stopped::Leaving(refusal)) = flow.judgement.stopped {
            return Some(discard(tx, &look, moved.get(..offers)?, bytes, sent, refusal.leaving(got), flow));
        }
        if self.max_frame(to) < max {
            offers = no_longer_than(self.max_frame(to), moved.get(..offers)?, &tails);
            bytes = bytes_of(moved.get(..offers)?, &tails);
        }
        let copier = receiver.memory().copier();
        if !self.wants(to, flow.addresses.destination(), None) {
            return IN_VAIN;
        }
        let Some(mut rx) = receiver.run(self.receive_queue(receiver, to, queue)) else { return IN_VAIN };
        let Some(posted) = rx.look(offers) else { return IN_VAIN };
        // No request of a receive queue is ever held beyond a call.
        if posted.is_empty() {
            return Some(discard(tx, &look, moved.get(..offers)?, bytes, sent, &got.rx_no_buffer, flow));
        }
        let places = match &posted {
            Look::Split(posted) => places(&mut rx, posted, offers, moved),
            Look::Packed(posted) => places(&mut rx, posted, offers, moved),
        };
        let frames = (&*moved, &tails);
        let given = with_form!(flow.kind, F => match (&look, &posted) {
            (Look::Split(s), Look::Split(g)) => give::<F, _, _>(frames, (s.used(), g.used()), places, copier, &self.beginnings),
            (Look::Split(s), Look::Packed(g)) => give::<F, _, _>(frames, (s.used(), g.used()), places, copier, &self.beginnings),
            (Look::Packed(s), Look::Split(g)) => give::<F, _, _>(frames, (s.used(), g.used()), places, copier, &self.beginnings),
            (Look::Packed(s), Look::Packed(g)) => give::<F, _, _>(frames, (s.used(), g.used()), places, copier, &self.beginnings),
        });
        // Who waits for the last one has it before anything is counted.
        let last = given < most && tx.ends_behind(given);
        rx.finish(given, true, last);
        tx.finish(given, false, last);
        if given != offers {
            bytes = bytes_of(moved.get(..given)?, &tails);
        }
        let payload = bytes - u64::from(HEADER) * given as u64;
        for (packets_counter, bytes_counter) in [(&sent.tx_packets, &sent.tx_bytes), (&got.rx_packets, &got.rx_bytes)] {
            packets_counter.add(given as u64);
            bytes_counter.add(payload);
        }
        flow.count(given as u64, payload);
        Some(Served { requests: given as u32, bytes })
    }

    /// Looks at the frames of a flow, the one that is known at this port or another: how many there are, and their bytes.
    #[inline(always)]
    fn offers<'d, L: Entries<'d>>(
        &mut self,
        mut sending: Sending<'_, 'd, L>,
        port: usize,
        portion: &Portion,
        now: u64,
        moved: &mut [Moved<'d>],
    ) -> Option<Found<'d>> {
        let known = self.flows.get_mut(port)?.as_mut().filter(|flow| flow.goes_on(&self.switch, now));
        let (offers, bytes) =
            known.map_or((0, 0), |flow| collect_flow(&mut sending, flow, portion.bytes, moved, &mut self.beginnings));
        if offers != 0 {
            return Some(Found::Flow(offers, bytes));
        }
        sending.tails.clear();
        let first = sending.frame(0)?;
        let (destination, vlan) = (first.addresses.destination(), self.rules.untagged(port)?);
        if destination.is_multicast() || first.addresses.is_tagged() {
            return None;
        }
        if self.switch.lookup(destination, vlan, now).is_none() {
            return Some(Found::Outside(first));
        }
        if first.asks() {
            return None;
        }
        sending.tails.clear();
        let body = first.frame.piece();
        self.beginnings[0].read(body, LONG, sending.tx.copier());
        let first = (first.addresses, Seen(&self.beginnings[0], body.len()), first.bytes - HEADER);
        let flow = self.flows[port].insert(Flow::of(first, port, &self.rules, &self.switch, now)?);
        let (offers, bytes) = collect_flow(&mut sending, flow, portion.bytes, moved, &mut self.beginnings);
        Some(Found::Flow(offers, bytes))
    }
}

/// [`collect`] for whatever form a flow's frames have.
#[inline(always)]
fn collect_flow<'d, L: Entries<'d>>(
    sending: &mut Sending<'_, 'd, L>,
    flow: &mut Flow,
    room: u64,
    moved: &mut [Moved<'d>],
    beginnings: &mut [Beginning; RUN],
) -> (usize, u64) {
    let (count, bytes) = with_form!(flow.kind, F => {
        let collect = if sending.look.holding() { collect::<L, F, true> } else { collect::<L, F, false> };
        collect(sending, flow, room, moved, beginnings)
    });
    sending.look.used().prefetch(count);
    (count, bytes)
}

/// Bytes of the chains of these frames.
#[cold]
#[inline(never)]
fn bytes_of<'d>(moved: &[Moved<'d>], tails: &Tails<'d>) -> u64 {
    let mut tails = tails.iter();
    moved.iter().map(|moved| u64::from(moved.bytes(&mut tails))).sum()
}

/// Completes frames of `bytes` bytes together that go no further, and counts them.
#[cold]
#[inline(never)]
fn discard(
    tx: Run<'_>,
    look: &Look<'_>,
    moved: &[Moved<'_>],
    bytes: u64,
    sent: &PortCounters,
    cause: &Counter,
    flow: &Flow,
) -> Served {
    match look {
        Look::Split(look) => give_back(look.used(), moved),
        Look::Packed(look) => give_back(look.used(), moved),
    }
    tx.finish(moved.len(), false, false);
    let payload = bytes - u64::from(HEADER) * moved.len() as u64;
    sent.tx_packets.add(moved.len() as u64);
    sent.tx_bytes.add(payload);
    cause.add(moved.len() as u64);
    flow.count(moved.len() as u64, payload);
    Served { requests: moved.len() as u32, bytes }
}

/// Writes used entries for these frames.
fn give_back(used: impl Used, moved: &[Moved<'_>]) {
    for (i, Moved { frame, .. }) in moved.iter().enumerate() {
        used.set(i, frame.mark(), 0);
    }
}
