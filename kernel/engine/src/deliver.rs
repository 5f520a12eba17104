//! How an interrupt reaches a running guest. The kernel implements this trait; the engine does not know how.

use virtio::msix::Interrupt;

/// Delivers interrupts to running guests.
pub trait Deliver {
    /// Delivers `interrupt` of device number `device`, which is the number of its attachment. Returns false if no vCPU
    /// of that guest has the destination.
    fn deliver(&self, device: usize, interrupt: Interrupt) -> bool;
}

impl<D: Deliver + ?Sized> Deliver for &D {
    fn deliver(&self, device: usize, interrupt: Interrupt) -> bool {
        (**self).deliver(device, interrupt)
    }
}
