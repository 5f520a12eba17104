//! Input: bytes from the control core go into the driver's buffers in the port's receive queue (virtio 1.3 5.3.6.1).

use engine::device::Device;
use virtio::chain::{Segment, Segments};
use virtio::fault::Fault;
use virtio::queue::Request;

use crate::device::receive_queue;
use crate::ports::Port;
use crate::slot::PortState;
use crate::wire::EngineEnd;

/// Most buffers of a port that are filled in a turn.
const BUFFERS: u32 = 4;

/// Moves input to the guest. Adds the number of filled buffers to `completed`. Returns whether input still waits, for
/// buffers or for the next turn.
pub(crate) fn give(
    device: &mut Device,
    number: usize,
    port: &Port,
    state: &mut PortState,
    segments: &mut Segments,
    completed: &mut u32,
) -> bool {
    let Some(end) = state.end.as_mut() else { return false };
    if !port.is_guest_open() {
        // PORT_OPEN of the guest brings the back-end here again.
        return false;
    }
    for _ in 0..BUFFERS {
        if end.input.is_empty() {
            return false;
        }
        segments.clear();
        let Some(Request { token, chain }) = device.pop(receive_queue(number), segments) else { break };
        if chain.readable_bytes != 0 {
            device.fail(Fault::Direction);
            return false;
        }
        let Some(written) = fill(device, chain.writable(segments), end) else {
            // The buffers were checked when the request was taken, so this should not happen.
            device.fail(Fault::Buffer);
            return false;
        };
        if device.complete(token, written) {
            port.counters.input_bytes.add(written.into());
            *completed = completed.saturating_add(1);
        }
    }
    // A device that has failed gets no more input.
    device.running() && !end.input.is_empty()
}

/// Fills the buffers in their order. Returns how many bytes it wrote. `None`: a buffer cannot be written.
fn fill(device: &Device, buffers: &[Segment], end: &mut EngineEnd) -> Option<u32> {
    let mut written = 0_u32;
    for buffer in buffers {
        let part = end.input.slots().min(buffer.len as usize);
        let chunk = end.input.read_chunk(part).ok()?;
        let (first, second) = chunk.as_slices();
        let memory = device.memory();
        memory.write(buffer.gpa, first).ok()?;
        memory.write(buffer.gpa.wrapping_add(first.len() as u64), second).ok()?;
        chunk.commit_all();
        written = written.saturating_add(part as u32);
        if part < buffer.len as usize {
            break;
        }
    }
    Some(written)
}
