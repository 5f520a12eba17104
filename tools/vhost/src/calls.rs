//! Interrupts: the engine's messages become writes to the event file that the front end gave for each queue
//! (VHOST_USER_SET_VRING_CALL).

use std::fs::File;
use std::io::Write;
use std::sync::Mutex;

use engine::backend::MAX_PORTS;
use engine::msix::Interrupt;
use engine::shared::{Deliver, MAX_QUEUES, Shared};

/// The vector that stands for queue 0. Any that a device may send will do.
const FIRST_VECTOR: u32 = 0x40;

/// The event file of each queue of each port.
pub struct Calls(Vec<[Mutex<Option<File>>; MAX_QUEUES]>);

impl Calls {
    /// With none.
    pub fn new() -> Self {
        Self((0..MAX_PORTS).map(|_| [const { Mutex::new(None) }; MAX_QUEUES]).collect())
    }

    /// Sets or takes away the event file of a queue.
    pub fn set(&self, port: usize, queue: usize, file: Option<File>) {
        if let Some(slot) = self.0.get(port).and_then(|p| p.get(queue)) {
            *slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = file;
        }
    }

    /// Fills a device's MSI-X table so that [`Deliver`] can tell its queues by the vector.
    pub fn route(shared: &Shared) {
        for queue in 0..MAX_QUEUES as u32 {
            let at = 16 * u64::from(queue);
            shared.msix.write(at, 8, 0xfee0_0000);
            shared.msix.write(at + 8, 8, u64::from(FIRST_VECTOR + queue));
        }
        shared.msix.set_function_control(true, false);
    }
}

impl Deliver for Calls {
    fn deliver(&self, device: usize, interrupt: Interrupt) -> bool {
        let queue = u32::from(interrupt.vector).wrapping_sub(FIRST_VECTOR) as usize;
        let Some(slot) = self.0.get(device).and_then(|p| p.get(queue)) else { return false };
        // The lock is held by the other side only while a front end changes the file.
        let file = slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.as_ref().is_some_and(|mut f| f.write_all(&1u64.to_ne_bytes()).is_ok())
    }
}
