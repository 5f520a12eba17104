//! The parts of a request's chain: header, data, status byte (virtio 1.3 5.2.6). A driver may divide them among
//! descriptors as it likes (2.7.4), so the parts are found by counting bytes.

use memory::GuestMemory;
use virtio::chain::{Chain, Segments, Span};
use virtio::fault::Fault;

/// Bytes of the header: type, reserved, sector.
pub const HEADER_BYTES: usize = 16;

/// Request types.
pub mod kind {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// A request as the driver wrote it. The header is a copy that was read once.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'s> {
    /// The type.
    pub kind: u32,
    /// The first sector.
    pub sector: u64,
    /// Device-readable bytes behind the header.
    pub output: Span<'s>,
    /// Device-writable bytes before the status.
    pub input: Span<'s>,
    /// Where the status byte goes.
    pub status: u64,
}

/// Finds the parts of a chain.
///
/// # Errors
/// There is no room for the header or the status: [`Fault::Request`].
pub fn parts<'s>(memory: &GuestMemory, chain: &Chain, segments: &'s Segments) -> Result<Parts<'s>, Fault> {
    let readable = chain.readable_span(segments);
    let writable = chain.writable_span(segments);
    let last = writable.len().checked_sub(1).ok_or(Fault::Request)?;
    let (head, output) = readable.split_at(HEADER_BYTES as u32).ok_or(Fault::Request)?;
    let (input, _) = writable.split_at(last).ok_or(Fault::Request)?;
    let status = chain.writable(segments).last().ok_or(Fault::Request)?;
    let mut header = [0; HEADER_BYTES];
    head.read(memory, &mut header)?;
    let [k0, k1, k2, k3, _, _, _, _, sector @ ..] = header;
    Ok(Parts {
        kind: u32::from_le_bytes([k0, k1, k2, k3]),
        sector: u64::from_le_bytes(sector),
        output,
        input,
        status: status.gpa.wrapping_add(status.len.into()).wrapping_sub(1),
    })
}
