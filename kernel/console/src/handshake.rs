//! The control queues (virtio 1.3 5.3.6.2): ports are announced, named, opened and closed.
//!
//! ```text
//!   driver                         device
//!   DEVICE_READY(1)          ──▶
//!                            ◀──   PORT_ADD, for each port
//!   PORT_READY(port, 1)      ──▶
//!                            ◀──   CONSOLE_PORT or PORT_NAME, then PORT_OPEN if the control core has it open
//!   PORT_OPEN(port, 0 or 1)  ◀─▶   PORT_OPEN(port, 0 or 1)
//! ```
//!
//! What the driver must be told is a set of bits for each port, not a list. So a driver that offers no buffers, or asks
//! again and again, takes no memory. A message has the value of the moment in which it is sent.

use engine::device::Device;
use virtio::chain::{Chain, Segment, Segments};
use virtio::fault::Fault;
use virtio::queue::Request;

use crate::device::{CONTROL_RECEIVE, CONTROL_TRANSMIT};
use crate::message::{MESSAGE_BYTES, Message, event};
use crate::ports::{OPEN, READY, SPOKE};
use crate::slot::Slot;

/// Messages of [`PortState::pending`](crate::slot::PortState::pending), in the order in which they are sent.
const PENDING: [(u8, u16); 4] =
    [(ADD, event::PORT_ADD), (CONSOLE, event::CONSOLE_PORT), (NAME, event::PORT_NAME), (OPENED, event::PORT_OPEN)];
const ADD: u8 = 1;
const CONSOLE: u8 = 2;
const NAME: u8 = 4;
const OPENED: u8 = 8;
/// Most buffers that are used in a turn.
const BUFFERS: u32 = 8;

/// Makes sure that a resumed driver is told which ports the control core has open. They may have changed meanwhile.
pub(crate) fn resume(slot: &mut Slot) {
    for (state, port) in slot.ports.iter_mut().zip(slot.shared.all()) {
        if port.driver() & READY != 0 {
            state.pending |= OPENED;
        }
    }
}

/// Handles the driver's next control message. Returns false if there is none or the device has failed.
pub(crate) fn receive(device: &mut Device, slot: &mut Slot, segments: &mut Segments) -> bool {
    segments.clear();
    let Some(Request { token, chain }) = device.pop(CONTROL_TRANSMIT, segments) else { return false };
    if chain.writable_bytes != 0 {
        device.fail(Fault::Direction);
        return false;
    }
    match read(device, &chain, segments) {
        Ok(message) if handle(slot, message) => slot.shared.messages.received.add(1),
        Ok(_) => slot.shared.messages.refused.add(1),
        Err(fault) => {
            device.fail(fault);
            return false;
        }
    }
    device.complete(token, 0);
    true
}

/// Reads the driver's message once. A request that is too short becomes a message with an unknown event.
fn read(device: &Device, chain: &Chain, segments: &Segments) -> Result<Message, Fault> {
    if (chain.readable_bytes as usize) < MESSAGE_BYTES {
        return Ok(Message { id: u32::MAX, event: u16::MAX, value: 0 });
    }
    let mut bytes = [0; MESSAGE_BYTES];
    let mut rest = bytes.as_mut_slice();
    for buffer in chain.readable(segments) {
        let len = rest.len().min(buffer.len as usize);
        let (now, later) = rest.split_at_mut(len);
        device.memory().read(buffer.gpa, now).map_err(|_| Fault::Buffer)?;
        rest = later;
    }
    Ok(Message::decode(bytes))
}

/// Handles a message of the driver. Returns false if it means nothing.
fn handle(slot: &mut Slot, message: Message) -> bool {
    if message.event == event::DEVICE_READY {
        for (state, port) in slot.ports.iter_mut().zip(slot.shared.all()) {
            port.set_driver(READY | OPEN, false);
            state.told_open = false;
            state.pending = if message.value == 1 { ADD } else { 0 };
        }
        return true;
    }
    let number = message.id as usize;
    let (Some(state), Some(port)) = (slot.ports.get_mut(number), slot.shared.get(number)) else { return false };
    match message.event {
        event::PORT_READY if message.value == 1 => {
            port.set_driver(READY, true);
            state.told_open = false;
            state.pending |= if number == 0 { CONSOLE } else { NAME };
        }
        event::PORT_READY => port.set_driver(READY | OPEN | SPOKE, false),
        event::PORT_OPEN if port.driver() & READY != 0 => port.set_driver(OPEN, message.value != 0),
        _ => return false,
    }
    true
}

/// Sends what the driver must be told. Adds the number of messages to `completed`. Returns whether something still
/// waits, for buffers or for the next turn.
pub(crate) fn send(device: &mut Device, slot: &mut Slot, segments: &mut Segments, completed: &mut u32) -> bool {
    for (state, port) in slot.ports.iter_mut().zip(slot.shared.all()) {
        if port.driver() & READY != 0 && state.told_open != port.is_open() {
            state.pending |= OPENED;
        }
    }
    for _ in 0..BUFFERS {
        let Some((number, bit, event)) = next(slot) else { return false };
        segments.clear();
        let Some(Request { token, chain }) = device.pop(CONTROL_RECEIVE, segments) else { break };
        if chain.readable_bytes != 0 {
            device.fail(Fault::Direction);
            return false;
        }
        let (Some(state), Some(port)) = (slot.ports.get_mut(number), slot.shared.get(number)) else { return false };
        let open = port.is_open();
        let value = if event == event::PORT_OPEN { u16::from(open) } else { 1 };
        let message = Message { id: number as u32, event, value }.encode();
        let name = if bit == NAME { port.name().as_bytes() } else { &[] };
        let bytes = message.len().saturating_add(name.len());
        if (chain.writable_bytes as usize) < bytes {
            slot.shared.messages.too_small.add(1);
            device.complete(token, 0);
            continue;
        }
        if !write(device, chain.writable(segments), &[&message, name]) {
            device.fail(Fault::Buffer);
            return false;
        }
        state.pending &= !bit;
        if event == event::PORT_OPEN {
            state.told_open = open;
        }
        if device.complete(token, bytes as u32) {
            slot.shared.messages.sent.add(1);
            *completed = completed.saturating_add(1);
        }
    }
    device.running() && next(slot).is_some()
}

/// Returns the next message to send: port, bit of `pending`, event.
fn next(slot: &Slot) -> Option<(usize, u8, u16)> {
    PENDING.iter().find_map(|&(bit, event)| {
        let number = slot.ports.iter().position(|port| port.pending & bit != 0)?;
        Some((number, bit, event))
    })
}

/// Writes the parts, one after the other, into the buffers. Returns false if a buffer cannot be written.
fn write(device: &Device, buffers: &[Segment], parts: &[&[u8]]) -> bool {
    let mut buffers = buffers.iter().copied();
    let mut buffer = Segment { gpa: 0, len: 0 };
    for part in parts {
        let mut rest = *part;
        while !rest.is_empty() {
            if buffer.len == 0 {
                let Some(next) = buffers.next() else { return false };
                buffer = next;
            }
            let (now, later) = rest.split_at(rest.len().min(buffer.len as usize));
            if device.memory().write(buffer.gpa, now).is_err() {
                return false;
            }
            let written = now.len() as u32;
            buffer = Segment { gpa: buffer.gpa.wrapping_add(written.into()), len: buffer.len.saturating_sub(written) };
            rest = later;
        }
    }
    true
}
