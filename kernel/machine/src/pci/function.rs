//! What a function on the guest's PCI bus is: the trait by which the bus and the machine reach it, whatever is behind it.
//!
//! A function has a conventional configuration space of 256 bytes and up to six BARs (PCI Local Bus 3.0 ch. 6). It says
//! itself which addresses and ports its BARs decode, because the guest moves BARs and switches decoding.
//!
//! Today every function is a virtio device ([`crate::virtio_pci`]). A virtual function of a NIC that is passed through
//! is one more implementation: it answers for configuration space, and for those BARs that the guest's nested page
//! tables do not map.

use crate::{lapic::Message, reason::Reason};

/// A place in a function's BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the BAR, 0 to 5.
    pub bar: u8,
    /// Offset in it, in bytes.
    pub offset: u64,
}

/// A function on the bus. The bus calls it for one vCPU at a time, from any core.
///
/// Accesses are of 1 to 8 bytes, at any alignment. `send` is called with each interrupt that a write has let through; it
/// goes to [`crate::mailbox::send`].
pub trait Function: Send {
    /// Loads `size` bytes of configuration space. All ones beyond its end.
    fn read_config(&mut self, register: usize, size: u8) -> u64;

    /// Stores `size` bytes to configuration space. Bits that the guest may not write keep their value.
    fn write_config(&mut self, register: usize, size: u8, value: u64, send: &mut dyn FnMut(Message));

    /// The place that a guest-physical address is decoded to. None: no memory BAR answers there now.
    fn decode_memory(&self, gpa: u64) -> Option<Place>;

    /// The place that a port is decoded to. None: no I/O BAR answers there now.
    fn decode_port(&self, port: u16) -> Option<Place>;

    /// Loads `size` bytes from a BAR. Zero where it has no register.
    fn read_bar(&mut self, place: Place, size: u8) -> u64;

    /// Stores `size` bytes to a BAR. Dropped where it has no register.
    fn write_bar(&mut self, place: Place, size: u8, value: u64, send: &mut dyn FnMut(Message));

    /// What an exit for an access to this place counts as.
    fn reason(&self, place: Place) -> Reason;

    /// Back to the state after power-on, with the BARs where they were at first.
    fn reset(&mut self);

    /// Interrupt messages that the function was to send and that no device may send, since the guest started.
    fn refused(&self) -> u64;
}
