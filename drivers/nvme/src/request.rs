//! Requests and their answers.

use crate::command::Code;

/// What a request does. The variant is a byte of its own, so that it is tested by one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// Reads blocks into the segments.
    Read,
    /// Writes blocks from the segments.
    Write {
        /// The blocks are on the medium when the request is answered (force unit access).
        fua: bool,
    },
    /// Makes all blocks whose writes were answered durable. Takes no blocks and no segments.
    Flush,
    /// Tells that the contents of the blocks are not needed any more. Takes no segments.
    Deallocate,
    /// Sets the blocks to zeroes. Takes no segments.
    WriteZeroes {
        /// The device may deallocate the blocks, if it then reads zeroes.
        deallocate: bool,
        /// The zeroes are on the medium when the request is answered (force unit access).
        fua: bool,
    },
}

/// A request to an I/O queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Comes back with the answer. The driver does not look at it, except to cancel.
    pub id: u32,
    /// Namespace identifier.
    pub namespace: u32,
    /// What to do.
    pub operation: Operation,
    /// First block, in the namespace's own block size.
    pub first: u64,
    /// Number of blocks.
    pub blocks: u32,
}

/// Why a request was not taken. The driver keeps nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room now, or the controller is being reset. Try again after the next poll.
    Busy,
    /// The controller is gone, has failed or was stopped, or it has no such queue.
    Gone,
    /// The queue has no such namespace, or it cannot be used.
    Namespace,
    /// The device cannot do this.
    Unsupported,
    /// The blocks are not all within the namespace, or there are none.
    Range,
    /// The segments have another length than the blocks, or are there for a request that has no data.
    Length,
    /// It has more bytes, blocks or segments than [`Limits`] says.
    TooLong,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok,
    /// The device answered with an error.
    Device(Code),
    /// The device did not answer in time. The request may or may not have been carried out.
    TimedOut,
    /// It was cancelled. It may or may not have been carried out.
    Cancelled,
    /// The controller had to be reset too often meanwhile. It may or may not have been carried out.
    Reset,
    /// The controller has left the bus, was given up or stopped. It may or may not have been carried out.
    Gone,
}

impl Status {
    /// Whether the device says that the medium failed (status code type 2).
    #[must_use]
    pub const fn is_media_error(self) -> bool {
        matches!(self, Self::Device(code) if code.type_and_code() >> 8 == 2)
    }

    /// Whether the device says that it does not know the command.
    #[must_use]
    pub const fn is_unsupported(self) -> bool {
        matches!(self, Self::Device(code) if code.type_and_code() == 1)
    }
}

/// Limits of a request to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most blocks of a request with data.
    pub data_blocks: u32,
    /// Most blocks of a request that writes zeroes. 0: the device cannot do it.
    pub zero_blocks: u32,
    /// Most blocks of a request that deallocates. 0: the device cannot do it.
    pub deallocate_blocks: u32,
    /// Most segments.
    pub segments: u32,
}
