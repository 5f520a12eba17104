//! Fast path from guest to guest: a batch of frames of one flow, from one transmit queue to one receive queue.
//!
//! ```text
//!   sender's ring ───▶ look at a batch ──────▶ frames ──┐
//!                                                       ├──▶ used entries of both rings, copies
//!   receiver's ring ─▶ look at as many ──────▶ buffers ─┘
//! ```
//!
//! A frame qualifies if all of this holds:
//!
//! - It lies in one buffer with its virtio-net header, or in two buffers.
//! - It has no tag and requests no offload.
//! - Its destination is one running port other than the sender's.
//! - The rules of both ports give it the same verdict as the frame before it. A frame that a stage mirrors or limits
//!   does not qualify.
//! - The next buffer of the receiver is one piece of memory, and the frame fits into it.
//!
//! A batch ends before the first frame that does not qualify. [`super::slow`] takes that frame, and finds its faults:
//! this path reports no fault. Both paths must have the same effect; `tests/both_paths.rs` compares them. Frames whose
//! destination is not a guest go to [`super::egress_fast`].
//!
//! The first bytes of each frame are read once, into a [`FrameHead`] in host memory. They are checked there and copied
//! to the receiver from there, so the receiver gets what was checked. Without rules only the addresses are checked.
//! With rules, the fields that the rules look at are checked too ([`crate::flow_match`]).

use engine::devices::Devices;
use engine::schedule::{Portion, Served};
use memory::copy::Copier;
use memory::span::{LabeledPiece, Piece, Window};
use nic::Nic;
use trace::Classes;
use trace::frames::Destination;
use virtio::counters::Counter;
use virtio::queue::{Batch, Entries, Peek, Purpose, RingDescriptor, Used};

use crate::addresses::Addresses;
use crate::batch::{BATCH, Ends, HEADER, Offered, SINGLE, SPLIT, SendQueue, SingleFrame, Tails, payload};
use crate::bridge::Bridge;
use crate::counters::PortCounters;
use crate::features::Features;
use crate::flow::Flow;
use crate::flow_match::{FirstBuffer, Layout, with_layout};
use crate::frame_head::{FrameHead, LONG};
use crate::offload::{HEADER_BYTES, OffloadRequest, OffloadSupport};
use crate::path::egress_fast::Sender;
use crate::path::watched::BatchFate;
use crate::port_rules::Stopped;
use crate::receive_buffers::need;
use crate::uplink::Uplink;
use crate::uplink::held::Held;
use crate::{watch, work};

/// Largest batch, in frames, for which the small table of transfers is used. A frame that a client waits for often
/// comes alone, and setting up the large table would delay it.
const SMALL_BATCH: usize = 4;
/// A receive buffer, and the head of its descriptor chain.
type Posted<'d> = LabeledPiece<'d>;

/// A frame, and the receive buffer that it is copied to.
#[derive(Clone, Copy)]
struct Transfer<'d> {
    frame: Offered<'d>,
    buffer: Posted<'d>,
}

impl<'d> Transfer<'d> {
    const NOTHING: Self = Self { frame: Offered::EMPTY, buffer: Posted::EMPTY };

    /// Bytes of the frame with its virtio-net header. If its last bytes lie in a second buffer, that buffer is the next
    /// of `tails`.
    fn bytes(&self, tails: &mut Ends<'_, 'd>) -> u32 {
        let (len, mark) = (self.frame.piece().len(), self.frame.label());
        let tail = if mark & SPLIT != 0 { tails.next().map_or(0, |tail| tail.len()) } else { 0 };
        tail.saturating_add(if mark & SINGLE != 0 { need(len) } else { len })
    }
}

/// The next batch of a transmit queue.
enum NextBatch<'d> {
    /// A batch of the flow that is cached for the port: the number of frames, and their bytes.
    Flow(usize, u64),
    /// The first frame of a batch whose destination is not a known guest.
    Egress(SingleFrame<'d>),
}

/// The result of a batch of `offered` frames whose receiver turned out not to qualify: nothing was served. The caller uses
/// the slow path for the rest of the portion.
#[cold]
const fn none_served(offered: usize) -> Option<Served> {
    Some(Served::new(0, work::charged((offered as u32).saturating_mul(work::LOOKED_AT))))
}
/// Longest receive buffer, in bytes, that is translated through the cached window. Most buffers are shorter.
const BUFFER: u32 = 0x1_0000;
/// Bytes that can be read at any address that a window translates: the virtio-net header, and the longest part of a
/// frame that a layout checks.
const PEEK: usize = HEADER_BYTES + LONG;

/// Collects frames that qualify and belong to `flow`, until `room` bytes are taken. Reads their first bytes into
/// `heads`.
/// Returns the number of frames, and their bytes.
#[inline(never)]
fn collect<'d, L: Entries<'d>, F: Layout, const HOLDING: bool>(
    send_queue: &mut SendQueue<'_, 'd, L>,
    flow: &mut Flow,
    room: u64,
    transfers: &mut [Transfer<'d>],
    heads: &mut [FrameHead; BATCH],
) -> (usize, u64) {
    let (look, most) = (*send_queue.look, send_queue.look.len().min(BATCH).min(transfers.len()));
    let (addresses, min_len, copier) = (flow.addresses, need(flow.pattern.min_len), send_queue.tx.copier());
    let mut window: Window<'d, PEEK> = send_queue.tx.span(Purpose::Data).window(send_queue.longest());
    // Keeps the window in memory. In registers it would cost four more instructions a frame, most of them around the
    // copy.
    core::hint::black_box(&mut window);
    let (mut i, mut taken): (usize, u64) = (0, 0);
    while i < most && taken < room {
        let Some(first) = look.first::<HOLDING>(send_queue.tx, i) else { break };
        let (Some(head), Some(transfer)) = (heads.get_mut(i), transfers.get_mut(i)) else { break };
        // These conditions are not nested, because nesting costs two more instructions a frame.
        let mut found = if first.is_readable() { first.within(&window) } else { None };
        if found.is_none()
            && first.is_readable()
            && let Some((_, span)) = send_queue.tx.locate(&first)
        {
            window = span.window(send_queue.longest());
            found = first.within(&window);
        }
        let bytes = if let Some((start, whole)) = found {
            let asked = start.load_u64::<0>();
            if whole.len() < min_len || OffloadRequest::any(asked as u8, (asked >> 8) as u8) {
                break;
            }
            transfer.frame = LabeledPiece::new(whole, first.label());
            head.read(start.rest::<HEADER_BYTES>(), F::READ, copier);
            whole.len()
        } else {
            let Some((frame, bytes)) = send_queue.frame_of::<F>(i, min_len, head) else { break };
            transfer.frame = frame;
            bytes
        };
        if Addresses::of(head) != addresses {
            break;
        }
        let words = F::words(head);
        if !F::matches(&words, &flow.pattern, &flow.pattern.mask) && !flow.covers::<F>(&words) {
            break;
        }
        // A batch has at most 64 lengths of 32 bits.
        taken = u64::from(bytes).wrapping_add(taken);
        i = i.wrapping_add(1);
    }
    (i, taken)
}

/// Returns how many of the first frames are at most `max` bytes long.
#[cold]
#[inline(never)]
fn no_longer_than<'d>(max: u32, transfers: &[Transfer<'d>], tails: &Tails<'d>) -> usize {
    let mut tails = tails.iter();
    transfers.iter().take_while(|transfer| transfer.bytes(&mut tails) <= need(max)).count()
}

/// Collects the receiver's next buffers, at most `most`. Stops at the first buffer that is not one piece of memory.
/// Returns the number of buffers.
#[inline(never)]
fn collect_buffers<'d, L: Entries<'d>>(
    rx: &mut Batch<'d>,
    look: &L,
    most: usize,
    transfers: &mut [Transfer<'d>],
) -> usize {
    let (look, most) = (*look, most.min(look.len()).min(transfers.len()));
    look.used().prefetch(most);
    let mut window = rx.span(Purpose::Data).window::<0>(BUFFER);
    let mut i: usize = 0;
    while i < most {
        let Some(transfer) = transfers.get_mut(i) else { break };
        let Some(first) = look.first::<false>(rx, i).filter(RingDescriptor::is_writable) else { break };
        // The assignment is in each branch. After both branches the compiler would store length and label separately,
        // with three more instructions.
        if let Some((_, buffer)) = first.within(&window) {
            transfer.buffer = LabeledPiece::new(buffer, first.label());
        } else {
            let Some((buffer, span)) = rx.locate(&first) else { break };
            window = span.window(BUFFER);
            transfer.buffer = LabeledPiece::new(buffer, first.label());
        }
        i = i.wrapping_add(1);
    }
    i
}

/// Copies up to `most` frames into their buffers, and writes the used entries of both rings.
/// Returns the number of frames that were delivered. The first one that does not fit ends the batch.
#[inline(never)]
fn deliver<'d, F: Layout, S: Used, G: Used>(
    (transfers, tails): (&[Transfer<'d>], &Tails<'d>),
    (tx_used, rx_used): (S, G),
    most: usize,
    copier: Copier,
    heads: &[FrameHead; BATCH],
) -> usize {
    let most = most.min(tx_used.len()).min(rx_used.len()).min(transfers.len()).min(BATCH);
    let (mut tails, rx_used) = (tails.iter(), rx_used.written());
    let mut i: usize = 0;
    while i < most {
        let (Some(transfer), Some(head)) = (transfers.get(i), heads.get(i)) else { break };
        let Transfer { frame, buffer } = transfer;
        if frame.label() & SINGLE != 0 {
            if !deliver_single((transfer, head, &mut tails), (tx_used, rx_used), i, copier) {
                break;
            }
            i = i.wrapping_add(1);
            continue;
        }
        let whole = frame.piece();
        let Some(room) = buffer.piece().begin(whole.len()) else { break };
        // The used entries are written before the copy. This is allowed because no driver reads them before the index
        // is published. If they were written after the copy, their values would be kept on the stack, and each store
        // would wait behind the stores to the receiver's cache lines.
        rx_used.set(i, buffer.label(), whole.len());
        tx_used.set(i, frame.label(), 0);
        // For the last frame of a batch there is no next buffer, so the lines of its own buffer are fetched. That helps
        // a frame that comes alone.
        let next = transfers.get(i.wrapping_add(1)).unwrap_or(transfer).buffer.piece();
        head.write(room, whole, F::READ, copier, next);
        i = i.wrapping_add(1);
    }
    i
}

/// [`deliver`] for frame `i`, if it was read by [`SendQueue::frame_of`].
/// Returns false if it does not fit.
#[cold]
#[inline(never)]
fn deliver_single<'d, S: Used, G: Used>(
    (Transfer { frame, buffer }, head, tails): (&Transfer<'d>, &FrameHead, &mut Ends<'_, 'd>),
    (tx_used, rx_used): (S, G),
    i: usize,
    copier: Copier,
) -> bool {
    let (body, room) = (frame.piece(), buffer.piece());
    let split = frame.label() & SPLIT != 0;
    let Some(tail) = (if split { tails.next().copied() } else { Some(Piece::EMPTY) }) else { return false };
    if !room.skip(need(body.len())).is_some_and(|end| end.copy_from(copier, tail)) {
        return false;
    }
    head.write_before(room, body, copier);
    rx_used.set(i, buffer.label(), need(body.len()).saturating_add(tail.len()));
    tx_used.set(i, frame.label(), 0);
    true
}

impl Bridge {
    /// Forwards one batch from the start of a queue on a fast path, up to a portion.
    ///
    /// Returns:
    /// - `Some(served)`, also with 0 requests if the receiver turned out not to qualify;
    /// - `None` if the first frame does not qualify.
    ///
    /// After `None` and after 0 requests, the caller uses the slow path.
    #[inline(never)]
    pub(crate) fn forward_batch<N: Nic<Token = Held>>(
        &mut self,
        devices: &mut Devices,
        uplinks: &mut [Option<Uplink<N>>],
        port: usize,
        queue: u16,
        portion: &Portion,
        now: u64,
    ) -> Option<Served> {
        let (sender, mut others) = devices.split(port)?;
        let (tx_counters, same_memory, features) = (self.counters(port), sender.shares_memory(), Features::of(sender));
        let mut tx = sender.batch(queue)?;
        let most = (portion.requests as usize).min(BATCH);
        let look = tx.peek(most)?;
        let (mut small, mut large);
        let transfers: &mut [Transfer<'_>] = if look.len() <= SMALL_BATCH {
            small = [Transfer::NOTHING; SMALL_BATCH];
            &mut small
        } else {
            large = [Transfer::NOTHING; BATCH];
            &mut large
        };
        let mut tails = Tails::new();
        let max = self.max_frame(port);
        let batch = {
            let (tx, tails) = (&mut tx, &mut tails);
            match &look {
                Peek::Split(look) => self.next_batch(SendQueue { tx, look, tails, max }, port, portion, now, transfers),
                Peek::Packed(look) => {
                    self.next_batch(SendQueue { tx, look, tails, max }, port, portion, now, transfers)
                }
            }
        }?;
        let (mut offered, mut bytes) = match batch {
            NextBatch::Flow(offered, bytes) => (offered, bytes),
            NextBatch::Egress(first) => {
                let uplink = self.batch_uplink(uplinks, port, first.addresses)?;
                let from = Sender { port, counters: tx_counters, support: OffloadSupport::device(features) };
                let (tx, tails) = (&mut tx, &mut tails);
                return match &look {
                    Peek::Split(look) => {
                        self.egress_batch(uplink, from, SendQueue { tx, look, tails, max }, first, portion, now)
                    }
                    Peek::Packed(look) => {
                        self.egress_batch(uplink, from, SendQueue { tx, look, tails, max }, first, portion, now)
                    }
                };
            }
        };
        let flow = self.flows.get(port)?.as_ref()?;
        let to = flow.to;
        if let Some(Stopped::Entering(refusal)) = flow.verdict.stopped {
            let (dropped, cause) = (transfers.get(..offered)?, refusal.entering(tx_counters));
            self.show_drops(flow, (port, port), cause, dropped, &tails, now);
            return Some(discard(tx, &look, dropped, bytes, tx_counters, cause, flow));
        }
        self.switch.learn(flow.addresses.source(), flow.vlan, port, now);
        let Some(receiver) = others.get_mut(to).filter(|receiver| receiver.running() && !same_memory.contains(to))
        else {
            return none_served(offered);
        };
        let rx_counters = self.counters(to);
        if let Some(Stopped::Leaving(refusal)) = flow.verdict.stopped {
            let (dropped, cause) = (transfers.get(..offered)?, refusal.leaving(rx_counters));
            self.show_drops(flow, (port, to), cause, dropped, &tails, now);
            return Some(discard(tx, &look, dropped, bytes, tx_counters, cause, flow));
        }
        if self.max_frame(to) < max {
            let fit = no_longer_than(self.max_frame(to), transfers.get(..offered)?, &tails);
            // The slow path drops the first frame, without a look at the receiver's queue.
            if fit == 0 {
                return none_served(offered);
            }
            offered = fit;
            bytes = bytes_of(transfers.get(..offered)?, &tails);
        }
        let copier = receiver.memory().copier();
        if !self.accepts(to, flow.addresses.destination(), None) {
            return none_served(offered);
        }
        let Some(mut rx) = receiver.batch(self.receive_queue(receiver, to, queue)) else { return none_served(offered) };
        let Some(posted) = rx.peek(offered) else { return none_served(offered) };
        // No receive buffer is held from an earlier call, so an empty queue means that the driver posted none.
        if posted.is_empty() {
            let (dropped, cause) = (transfers.get(..offered)?, &rx_counters.drops.rx_no_buffer);
            self.show_drops(flow, (port, to), cause, dropped, &tails, now);
            return Some(discard(tx, &look, dropped, bytes, tx_counters, cause, flow));
        }
        let buffers = match &posted {
            Peek::Split(posted) => collect_buffers(&mut rx, posted, offered, transfers),
            Peek::Packed(posted) => collect_buffers(&mut rx, posted, offered, transfers),
        };
        let frames = (&*transfers, &tails);
        let delivered = with_layout!(flow.kind, F => match (&look, &posted) {
            (Peek::Split(s), Peek::Split(g)) => deliver::<F, _, _>(frames, (s.used(), g.used()), buffers, copier, &self.heads),
            (Peek::Split(s), Peek::Packed(g)) => deliver::<F, _, _>(frames, (s.used(), g.used()), buffers, copier, &self.heads),
            (Peek::Packed(s), Peek::Split(g)) => deliver::<F, _, _>(frames, (s.used(), g.used()), buffers, copier, &self.heads),
            (Peek::Packed(s), Peek::Packed(g)) => deliver::<F, _, _>(frames, (s.used(), g.used()), buffers, copier, &self.heads),
        });
        // Publish before counting, so that a driver that waits for the last frame gets it sooner.
        let last = delivered < most && tx.ends_after(delivered);
        rx.finish(delivered, true, last);
        tx.finish(delivered, false, last);
        if delivered != offered {
            bytes = bytes_of(transfers.get(..delivered)?, &tails);
        }
        let payload = payload(bytes, delivered);
        let (tx, rx) = (&tx_counters.frames, &rx_counters.frames);
        for (packets_counter, bytes_counter) in [(&tx.tx_packets, &tx.tx_bytes), (&rx.rx_packets, &rx.rx_bytes)] {
            packets_counter.add(delivered as u64);
            bytes_counter.add(payload);
        }
        flow.count(delivered as u64, payload);
        if self.is_watched() {
            let fate = BatchFate::Given { to, dropped: None };
            self.show_batch(flow, port, &fate, transfers.get(..delivered)?, &tails, now);
        }
        if delivered == 0 {
            return none_served(offered);
        }
        Some(Served::new(delivered as u32, bytes))
    }

    /// Shows frames of a batch from port `from` that are dropped at port `at`, if somebody watches.
    #[cold]
    #[inline(never)]
    fn show_drops<'d>(
        &self,
        flow: &Flow,
        (from, at): (usize, usize),
        cause: &Counter,
        transfers: &[Transfer<'d>],
        tails: &Tails<'d>,
        now: u64,
    ) {
        if self.watch.is_none() {
            return;
        }
        let mut ends = tails.iter();
        for transfer in transfers {
            self.show_drop(at, cause, transfer.bytes(&mut ends).saturating_sub(HEADER));
        }
        if self.is_watched() {
            let dropped = self.cause(at, cause);
            let fate = if at == from { BatchFate::Refused(dropped) } else { BatchFate::Given { to: at, dropped } };
            self.show_batch(flow, from, &fate, transfers, tails, now);
        }
    }

    /// Shows the frames of a batch from port `from`.
    #[cold]
    #[inline(never)]
    fn show_batch<'d>(
        &self,
        flow: &Flow,
        from: usize,
        fate: &BatchFate,
        transfers: &[Transfer<'d>],
        tails: &Tails<'d>,
        now: u64,
    ) {
        if self.wants(Classes::FRAMES) {
            let mut lengths = [0; BATCH];
            let mut ends = tails.iter();
            for (length, transfer) in lengths.iter_mut().zip(transfers) {
                let frame = transfer.frame;
                let bytes =
                    if frame.label() & (SPLIT | SINGLE) == 0 { frame.piece().len() } else { transfer.bytes(&mut ends) };
                // Each frame is longer than its header.
                *length = bytes.wrapping_sub(HEADER);
            }
            let lengths = lengths.get(..transfers.len()).unwrap_or(&lengths);
            // There are fewer than 2^16 ports.
            let (to, given) = match *fate {
                BatchFate::Refused(_) => (None, false),
                BatchFate::Given { to, dropped } => (Some(Destination::Port(to as u16)), dropped.is_none()),
            };
            self.show_steps(&watch::Batch { from, to, given, at: now, lengths });
        }
        if !self.wants(Classes::CAPTURES) {
            return;
        }
        let (most, mut ends) = (with_layout!(flow.kind, F => F::READ), tails.iter());
        for (number, transfer) in transfers.iter().enumerate() {
            let bytes = transfer.bytes(&mut ends);
            // No more than the first buffer has was read of a frame in two buffers.
            let (len, mark) = (transfer.frame.piece().len(), transfer.frame.label());
            let read =
                if mark & SINGLE != 0 { LONG.min(len as usize) } else { most.min(len.saturating_sub(HEADER) as usize) };
            self.show_in_batch(from, fate, number, read, bytes, now);
        }
    }

    /// Finds the next batch of a queue. Tries the flow that is cached for the port. If the first frame is not of that
    /// flow, makes a new flow and caches it.
    /// Returns `None` if the first frame does not qualify.
    #[inline(always)]
    fn next_batch<'d, L: Entries<'d>>(
        &mut self,
        mut send_queue: SendQueue<'_, 'd, L>,
        port: usize,
        portion: &Portion,
        now: u64,
        transfers: &mut [Transfer<'d>],
    ) -> Option<NextBatch<'d>> {
        let known = self.flows.get_mut(port)?.as_mut().filter(|flow| flow.is_current(&self.switch, now));
        let (offered, bytes) =
            known.map_or((0, 0), |flow| collect_flow(&mut send_queue, flow, portion.bytes, transfers, &mut self.heads));
        if offered != 0 {
            return Some(NextBatch::Flow(offered, bytes));
        }
        send_queue.tails.clear();
        let first = send_queue.frame(0)?;
        let (destination, vlan) = (first.addresses.destination(), self.rules.untagged(port)?);
        if destination.is_multicast() || first.addresses.is_tagged() {
            return None;
        }
        if self.switch.lookup(destination, vlan, now).is_none() {
            return Some(NextBatch::Egress(first));
        }
        if first.requests_offload() {
            return None;
        }
        send_queue.tails.clear();
        let body = first.frame.piece();
        self.heads[0].read(body, LONG, send_queue.tx.copier());
        let first = (first.addresses, FirstBuffer(&self.heads[0], body.len()), first.bytes.checked_sub(HEADER)?);
        let flow = self.flows.get_mut(port)?.insert(Flow::of(first, port, &self.rules, &self.switch, now)?);
        let (offered, bytes) = collect_flow(&mut send_queue, flow, portion.bytes, transfers, &mut self.heads);
        Some(NextBatch::Flow(offered, bytes))
    }
}

/// Calls [`collect`] for the layout of a flow.
#[inline(always)]
fn collect_flow<'d, L: Entries<'d>>(
    send_queue: &mut SendQueue<'_, 'd, L>,
    flow: &mut Flow,
    room: u64,
    transfers: &mut [Transfer<'d>],
    heads: &mut [FrameHead; BATCH],
) -> (usize, u64) {
    let (count, bytes) = with_layout!(flow.kind, F => {
        let collect = if send_queue.look.holding() { collect::<L, F, true> } else { collect::<L, F, false> };
        collect(send_queue, flow, room, transfers, heads)
    });
    send_queue.look.used().prefetch(count);
    (count, bytes)
}

/// Returns the bytes of the frames, with their virtio-net headers.
#[cold]
#[inline(never)]
fn bytes_of<'d>(transfers: &[Transfer<'d>], tails: &Tails<'d>) -> u64 {
    let mut tails = tails.iter();
    transfers.iter().map(|transfer| u64::from(transfer.bytes(&mut tails))).sum()
}

/// Drops frames of `bytes` bytes in total: completes their requests, and counts them and the cause.
#[cold]
#[inline(never)]
fn discard(
    tx: Batch<'_>,
    look: &Peek<'_>,
    transfers: &[Transfer<'_>],
    bytes: u64,
    tx_counters: &PortCounters,
    cause: &Counter,
    flow: &Flow,
) -> Served {
    match look {
        Peek::Split(look) => return_requests(look.used(), transfers),
        Peek::Packed(look) => return_requests(look.used(), transfers),
    }
    tx.finish(transfers.len(), false, false);
    let payload = payload(bytes, transfers.len());
    tx_counters.frames.tx_packets.add(transfers.len() as u64);
    tx_counters.frames.tx_bytes.add(payload);
    cause.add(transfers.len() as u64);
    flow.count(transfers.len() as u64, payload);
    let frames = transfers.len() as u32;
    Served::new(frames, bytes.max(work::charged(frames.saturating_mul(work::FAST_DROP))))
}

/// Writes a used entry for each of the frames.
fn return_requests(used: impl Used, transfers: &[Transfer<'_>]) {
    for (i, Transfer { frame, .. }) in transfers.iter().enumerate() {
        used.set(i, frame.label(), 0);
    }
}
