//! Output: bytes of a port's transmit queue go to the control core's ring (virtio 1.3 5.3.6.1).
//!
//! The back-end holds no request. A request that does not fit is put back into the guest's ring, and the back-end keeps
//! how many of its bytes it has taken. So a reset and a detachment never wait for the reader. If the guest changes such a
//! request meanwhile, it loses bytes of its own output, no more.

use engine::device::Device;
use engine::schedule::Served;
use virtio::chain::{Segment, Segments};
use virtio::fault::Fault;
use virtio::queue::Request;

use crate::device::transmit_queue;
use crate::ports::{Overflow, Port, SPOKE};
use crate::slot::PortState;
use crate::wire::EngineEnd;

/// A request is taken only if one in so many bytes of the ring is free. Otherwise a full ring would cost the walk of a
/// chain for each few bytes that its reader takes.
const LEAST_ROOM: usize = 16;

/// Takes output of one request. Returns what it took. `None`: there is no request, or it must wait.
pub(crate) fn take(
    device: &mut Device,
    number: usize,
    port: &Port,
    state: &mut PortState,
    segments: &mut Segments,
    now: u64,
) -> Option<Served> {
    let end = state.end.as_mut()?;
    let queue = transmit_queue(number);
    let room = end.output.slots();
    let mut drops = false;
    if room < (end.output.buffer().capacity() / LEAST_ROOM).max(1) {
        if device.available(queue) == 0 {
            return None;
        }
        let since = *state.full_since.get_or_insert_with(|| {
            port.counters.waits.add(1);
            now
        });
        drops = matches!(port.overflow, Overflow::DropAfter(ticks) if now.wrapping_sub(since) >= ticks);
        if !drops {
            return None;
        }
    } else {
        state.full_since = None;
    }
    segments.clear();
    let Request { token, chain } = device.pop(queue, segments)?;
    if chain.writable_bytes != 0 {
        device.fail(Fault::Direction);
        return Some(Served::new(1, 0));
    }
    let buffers = chain.readable(segments);
    let left = chain.readable_bytes.saturating_sub(state.taken);
    let now_taken = (left as usize).min(room);
    if !copy(device, buffers, state.taken, now_taken, end) {
        // The buffers were checked when the request was taken, so this should not happen.
        device.fail(Fault::Buffer);
        return Some(Served::new(1, 0));
    }
    port.set_driver(SPOKE, true);
    port.counters.output_bytes.add(now_taken as u64);
    let rest = (left as usize).saturating_sub(now_taken);
    if rest != 0 && !drops {
        state.taken = state.taken.saturating_add(now_taken as u32);
        // It was taken last, so it can be put back.
        device.interrupt_visit(token.queue());
        device.rewind(token);
        return None;
    }
    port.counters.output_dropped.add(rest as u64);
    state.taken = 0;
    if device.complete(token, 0) {
        port.counters.output_requests.add(1);
    }
    Some(Served::new(1, now_taken as u64))
}

/// Copies `count` bytes of the buffers, without the first `skip` bytes, to the ring. The ring has room for them. Returns
/// false if a buffer cannot be read.
fn copy(device: &Device, buffers: &[Segment], skip: u32, count: usize, end: &mut EngineEnd) -> bool {
    let (mut skip, mut left) = (u64::from(skip), count);
    for buffer in buffers {
        let len = u64::from(buffer.len);
        if skip >= len {
            skip = skip.saturating_sub(len);
            continue;
        }
        let part = usize::try_from(len.saturating_sub(skip)).unwrap_or(usize::MAX).min(left);
        let Ok(mut chunk) = end.output.write_chunk(part) else { return false };
        let (first, second) = chunk.as_mut_slices();
        let gpa = buffer.gpa.wrapping_add(skip);
        let memory = device.memory();
        if memory.read(gpa, first).is_err() || memory.read(gpa.wrapping_add(first.len() as u64), second).is_err() {
            return false;
        }
        chunk.commit_all();
        (skip, left) = (0, left.saturating_sub(part));
        if left == 0 {
            break;
        }
    }
    true
}
