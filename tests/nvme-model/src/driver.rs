//! The model as the driver `nvme` sees it: its registers, its memory, and its right to master the bus.

#![allow(unsafe_code, reason = "gives a driver the model's memory")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;

use nvme::BusMaster;
use nvme::dma::{Dma, DmaBuffer, PAGE};
use nvme::registers::Registers;

use crate::Model;
use crate::memory::Memory;

/// The model's registers, as the driver sees them.
#[derive(Clone)]
pub struct Port(pub Rc<RefCell<Model>>);

impl Registers for Port {
    fn read(&self, offset: u32) -> u32 {
        self.0.borrow_mut().read(offset)
    }

    fn write(&self, offset: u32, value: u32) {
        self.0.borrow_mut().write(offset, value);
    }

    fn size(&self) -> u32 {
        Model::BAR_BYTES
    }
}

/// The test's memory, as the driver sees it.
#[derive(Clone, Debug)]
pub struct Reach(pub Memory);

// SAFETY: `granted` allocates zeroes that nobody else has, aligned, and the memory lives as long as a test.
unsafe impl Dma for Reach {
    fn allocate(&mut self, pages: usize) -> Option<DmaBuffer> {
        let block = self.0.granted(pages * PAGE, PAGE);
        // SAFETY: as above.
        Some(unsafe { DmaBuffer::new(block.host, block.bus, block.len) })
    }

    unsafe fn read(&self, from: u64, to: NonNull<u8>, len: usize) {
        let bytes = self.0.copy(from, len);
        // SAFETY: the caller's promise.
        unsafe { to.as_ptr().copy_from(bytes.as_ptr(), len) };
    }

    unsafe fn write(&self, to: u64, from: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise.
        self.0.fill(to, unsafe { std::slice::from_raw_parts(from.as_ptr(), len) });
    }
}

/// The bus master enable bit. A test lets the model work only while it is set.
#[derive(Clone, Debug, Default)]
pub struct Bit(pub Rc<Cell<bool>>);

// SAFETY: the model works only while it is called. Tests call it only while the bit is set. In a benchmark nothing clears it.
unsafe impl BusMaster for Bit {
    fn set(&mut self, on: bool) -> bool {
        self.0.set(on);
        true
    }
}
