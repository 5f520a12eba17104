//! The trait of a function on the guest's PCI bus. The bus and the machine use only this trait.
//!
//! A function has a conventional configuration space of 256 bytes and up to six BARs (PCI Local Bus 3.0 ch. 6). The
//! function itself knows which addresses and ports its BARs decode, because the guest moves BARs and switches decoding.
//!
//! Today every function is a virtio device ([`crate::virtio_pci`]). A NIC's virtual function that is passed through
//! would be another implementation. It would answer for configuration space, and for the BARs that the guest's nested
//! page tables do not map.

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
/// Accesses are of 1 to 8 bytes, at any alignment. If a write unmasks an interrupt, the method calls `send` with it.
/// The interrupt then goes to [`crate::mailbox::send`].
pub trait Function: Send {
    /// Loads `size` bytes of configuration space. All ones beyond its end.
    fn read_config(&mut self, register: usize, size: u8) -> u64;

    /// Stores `size` bytes to configuration space. Bits that the guest may not write keep their value.
    fn write_config(&mut self, register: usize, size: u8, value: u64, send: &mut impl FnMut(Message));

    /// Returns the place that a guest-physical address decodes to, or `None` if no memory BAR answers there now.
    fn decode_memory(&self, gpa: u64) -> Option<Place>;

    /// Returns the place that a port decodes to, or `None` if no I/O BAR answers there now.
    fn decode_port(&self, port: u16) -> Option<Place>;

    /// Loads `size` bytes from a BAR. Reads zero where the BAR has no register.
    fn read_bar(&mut self, place: Place, size: u8) -> u64;

    /// Stores `size` bytes to a BAR. Does nothing where the BAR has no register.
    fn write_bar(&mut self, place: Place, size: u8, value: u64, send: &mut impl FnMut(Message));

    /// Returns the reason that an exit for an access to this place counts as.
    fn reason(&self, place: Place) -> Reason;

    /// Resets the function to its state after power-on, with the BARs at their first addresses.
    fn reset(&mut self);

    /// Returns the number of interrupt messages that the function had to send but that no device may send, since the
    /// guest started.
    fn refused(&self) -> u64;
}
