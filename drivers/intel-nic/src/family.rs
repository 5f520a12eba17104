//! What differs between the families of Intel's NICs whose descriptors are otherwise the same.

use crate::registers::Register;

/// A family of NICs. All of it is known when the driver is compiled, so the data path compares nothing for it.
pub trait Family {
    /// Device control.
    const CTRL: Register;
    /// Device status.
    const STATUS: Register;
    /// Extended device control.
    const CTRL_EXT: Register;
    /// The address table, whose first entry is the device's own address: the lower 32 bits.
    const RAL: Register;
    /// The upper 16 bits, and whether the entry is valid.
    const RAH: Register;
    /// What a reset sets in CTRL besides RST.
    const RESET_TOO: u32;
    /// The head register of a receive queue.
    const RDH: Register;
    /// The tail register of a receive queue.
    const RDT: Register;
    /// The tail register of a transmit queue.
    const TDT: Register;
    /// Whether bit 39 of a data descriptor, "check context", has to be set in a frame that uses a context. It is
    /// reserved elsewhere.
    const CHECK_CONTEXT: bool;
    /// Most segments of a frame. A context and the header's descriptor come in addition.
    const MAX_SEGMENTS: usize;
    /// Error bits of a receive descriptor (12 bits, from bit 20 of the status word): the frame was damaged on the wire.
    const DAMAGED: u16;
    /// The TCP or UDP checksum is wrong.
    const WRONG_L4: u16;
    /// The IPv4 checksum is wrong.
    const WRONG_IP: u16;
}
