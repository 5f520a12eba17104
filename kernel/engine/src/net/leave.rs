//! The fast way out of the machine: a run of frames of the usual form in a split ring, as [`super::stream`] has it, with the
//! same addresses, of which no guest has the destination. They go to the NIC by one call. Each one's first bytes are copied to
//! where the NIC will read them and the rest stays in the guest's buffers, which come back when the NIC is done. What it
//! refuses, and every frame that rules look at, goes the general way.

#![allow(unsafe_code, reason = "tells the NIC where a guest's frame lies")]

use memory::copy::Copier;
use memory::span::Piece;
use nic::{HEADER_ROOM, Nic, Segment, Single};

use super::forward::Bridge;
use super::stream::{HEADER, Offered, RUN, SPLIT, Sending, Tails};
use crate::backend::Devices;
use crate::policy::vlan::PLAIN;
use crate::queue::{Entries, Look};
use crate::schedule::{Portion, Served};
use crate::uplink::{Held, Uplink};

/// Bytes of a frame that are copied: Ethernet, IPv4 and TCP.
const COPIED: usize = 54;

impl Bridge {
    /// Sends frames out from the beginning of a queue, up to a portion. What it took: nothing if the first is not for this way.
    pub(super) fn leave_by_run<N: Nic<Token = Held>>(
        &mut self,
        devices: &mut Devices,
        uplink: &mut Uplink<N>,
        port: usize,
        queue: u16,
        portion: &Portion,
        now: u64,
    ) -> Option<Served> {
        let (sender, _) = devices.split(port)?;
        let sent = sender.shared().counters();
        let mut tx = sender.run(queue)?;
        let Look::Split(look) = tx.look((portion.requests as usize).min(RUN))? else { return None };
        let (mut frames, mut tails) = (heapless::Vec::<(Offered<'_>, u32), RUN>::new(), Tails::new());
        let mut sending = Sending { tx: &mut tx, look: &look, tails: &mut tails, max: self.max_frame(port) };
        let (first, addresses, bytes) = sending.frame(0)?;
        let (destination, source) = (addresses.destination(), addresses.source());
        let alone = self.rules.untagged(port) == Some(PLAIN) && self.rules.reads(port, port).is_empty();
        if !alone
            || self.rules.judge(port, port, PLAIN).source(source).stopped.is_some()
            || destination.is_multicast()
            || source.is_multicast()
            || addresses.is_tagged()
            // A frame to its sender's own address goes nowhere.
            || destination == source
            || !uplink.lets_run()
            || self.switch.lookup(destination, PLAIN, now).is_some()
        {
            return None;
        }
        let _ = frames.push((first, bytes));
        let mut total = u64::from(bytes);
        while frames.len() < look.len().min(RUN) && total < portion.bytes {
            let Some((frame, _, bytes)) = sending.frame(frames.len()).filter(|&(_, theirs, _)| theirs == addresses)
            else {
                break;
            };
            // It has room for as many.
            let _ = frames.push((frame, bytes));
            total += u64::from(bytes);
        }
        self.switch.learn(source, PLAIN, port, now);
        let (copier, mut ends) = (tx.copier(), tails.iter());
        let (taken, refused) = uplink.send_run(port, &frames, |(frame, _), room| {
            let body = frame.piece();
            let (header, rest) = match body.first_and_from::<COPIED, COPIED>() {
                Some((first, rest)) if frame.mark() & SPLIT == 0 => {
                    first.read(room.first_chunk_mut()?);
                    (COPIED, rest)
                }
                _ => {
                    let end = if frame.mark() & SPLIT == 0 { Piece::EMPTY } else { *ends.next()? };
                    (copy_all(body, copier, room)?, end)
                }
            };
            // What was checked is what is sent.
            *room.first_chunk_mut()? = addresses.bytes();
            let len = u16::try_from(rest.len()).ok()?;
            // SAFETY: the bytes are the guest's own, which it asked to be sent; they stay its memory until the token is back, because
            // neither a reset nor a detachment of its device is done while `Uplink::holds` says so.
            let rest = unsafe { Segment::new(rest.address() as u64, len) };
            // Last, as it is not undone.
            let token = tx.hold(frame.mark() as u16)?;
            Some(Single { header, rest, offload: None, token: Held::whole(port, token) })
        });
        if let Some(token) = refused.and_then(Held::into_whole) {
            tx.rewind(token);
        }
        tx.finish_held();
        let bytes = frames.iter().take(taken).map(|&(_, bytes)| u64::from(bytes)).sum::<u64>();
        let payload = bytes - u64::from(HEADER) * taken as u64;
        sent.tx_packets.add(taken as u64);
        sent.tx_bytes.add(payload);
        uplink.counters().tx_bytes.add(payload);
        Some(Served { requests: taken as u32, bytes })
    }
}

/// Copies all of a short piece. How many bytes; None: it is too long.
#[cold]
#[inline(never)]
fn copy_all(body: Piece<'_>, copier: Copier, room: &mut [u8; HEADER_ROOM]) -> Option<usize> {
    let into = room.get_mut(..body.len() as usize)?;
    Some(body.read(copier, into))
}
