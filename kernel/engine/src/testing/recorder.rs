//! Records interrupts instead of sending them, for tests of this crate and others.

use alloc::vec::Vec;
use core::cell::RefCell;

use virtio::msix::Interrupt;

use crate::deliver::Deliver;

/// Records interrupts instead of sending them.
#[derive(Default)]
pub struct Recorder(pub RefCell<Vec<(usize, Interrupt)>>);

impl Recorder {
    /// Takes the interrupts recorded since the last call: device and vector.
    pub fn take(&self) -> Vec<(usize, u8)> {
        self.0.take().into_iter().map(|(device, interrupt)| (device, interrupt.vector)).collect()
    }
}

impl Deliver for Recorder {
    fn deliver(&self, device: usize, interrupt: Interrupt) -> bool {
        self.0.borrow_mut().push((device, interrupt));
        true
    }
}
