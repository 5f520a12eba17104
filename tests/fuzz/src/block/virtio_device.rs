//! A virtio block device beneath the guests of `block.rs`, and memory of its driver.

use std::cell::{RefCell, RefMut};
use std::ptr::NonNull;
use std::rc::Rc;

use virtio_blk::testing::{Model, Pages as NewPages, Port, Taken, at, device};
use virtio_blk::{Features, Hal};
use virtio_drivers::transport::DeviceStatus;
use virtio_drivers::{BufferDirection, PAGE_SIZE, PhysAddr};

use super::places::{DISCARDED, DISK, NOBODYS};

/// Sectors of a discard, and of a request to write zeroes, at most.
const MOST: u32 = 256;

/// Pages for drivers, which never give them back: a world does so with [`Pages::give_back`] when its drivers are gone. New pages are
/// allocated only where no free ones fit.
pub struct Pages;

/// Pages: how many, and the first one.
pub type Lot = (usize, NonNull<u8>);

thread_local! {
    static LENT: RefCell<Vec<Lot>> = const { RefCell::new(Vec::new()) };
    static FREE: RefCell<Vec<Lot>> = const { RefCell::new(Vec::new()) };
}

impl Pages {
    /// What this thread's drivers were given since the last call.
    pub fn lent() -> Vec<Lot> {
        LENT.take()
    }

    /// No driver uses these pages any more.
    pub fn give_back(mut lots: Vec<Lot>) {
        FREE.with_borrow_mut(|free| free.append(&mut lots));
    }
}

// SAFETY: the pages are aligned and zeroed, and nobody else has them.
unsafe impl Hal for Pages {
    fn dma_alloc(pages: usize, direction: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let free = FREE.with_borrow_mut(|free| {
            let found = free.iter().position(|(count, _)| *count == pages)?;
            Some(free.swap_remove(found).1)
        });
        let pointer = free.unwrap_or_else(|| NewPages::dma_alloc(pages, direction).1);
        // SAFETY: nobody uses these pages.
        unsafe { pointer.as_ptr().write_bytes(0, pages * PAGE_SIZE) };
        LENT.with_borrow_mut(|lent| lent.push((pages, pointer)));
        (pointer.as_ptr().expose_provenance() as u64, pointer)
    }

    unsafe fn dma_dealloc(address: PhysAddr, pointer: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: the caller's promise, as below.
        unsafe { NewPages::dma_dealloc(address, pointer, pages) }
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, bytes: usize) -> NonNull<u8> {
        // SAFETY: as above.
        unsafe { NewPages::mmio_phys_to_virt(address, bytes) }
    }

    unsafe fn share(buffer: NonNull<[u8]>, direction: BufferDirection) -> PhysAddr {
        // SAFETY: as above.
        unsafe { NewPages::share(buffer, direction) }
    }

    unsafe fn unshare(address: PhysAddr, buffer: NonNull<[u8]>, direction: BufferDirection) {
        // SAFETY: as above.
        unsafe { NewPages::unshare(address, buffer, direction) }
    }
}

/// The device, and what it has taken and not answered.
pub struct Device {
    model: Rc<RefCell<Model>>,
    taken: Vec<Taken>,
}

impl Device {
    /// A device with blocks of `1 << shift` bytes, with or without a volatile cache.
    pub fn new(shift: u32, has_cache: bool) -> Self {
        let mut features = Features::BLK_SIZE | Features::DISCARD | Features::WRITE_ZEROES;
        features.set(Features::FLUSH, has_cache);
        let model = device(features);
        model.borrow_mut().disk = vec![NOBODYS; DISK];
        let sectors = (DISK as u64 / 512).to_le_bytes();
        let (block, most) = ((1_u32 << shift).to_le_bytes(), MOST.to_le_bytes());
        // Capacity, bytes of a block, sectors of a discard and of a request to write zeroes.
        let fields: [(usize, &[u8]); 4] = [(0, &sectors), (20, &block), (36, &most), (48, &most)];
        fields.into_iter().for_each(|(offset, bytes)| model.borrow_mut().set(offset, bytes));
        Self { model, taken: Vec::new() }
    }

    /// Its registers.
    pub fn port(&self) -> Port {
        Port(self.model.clone())
    }

    /// The model.
    pub fn model(&self) -> RefMut<'_, Model> {
        self.model.borrow_mut()
    }

    /// Takes what was offered. A device that was reset has nothing.
    pub fn take(&mut self) {
        let mut model = self.model.borrow_mut();
        if model.status.contains(DeviceStatus::DRIVER_OK) {
            self.taken.extend(model.take());
        } else {
            self.taken.clear();
        }
    }

    /// Answers one of the requests that it has. One that fails does nothing.
    pub fn answer(&mut self, which: usize, status: u8) {
        if self.taken.is_empty() {
            return;
        }
        let mut model = self.model.borrow_mut();
        let mut taken = self.taken.swap_remove(which % self.taken.len());
        if status != 0 {
            taken.data = None;
        }
        match (taken.kind, taken.data) {
            (0 | 1, Some((_, len))) => assert!(taken.sector as usize * 512 + len <= DISK, "beyond the end: {taken:?}"),
            (11 | 13, Some((address, len))) => {
                assert_eq!(len, 16, "the bytes of a range");
                // SAFETY: the driver's buffer, which is the device's now.
                let (first, count) = unsafe { (at::<u64>(address, 0).read(), at::<u32>(address, 2).read()) };
                assert!(count <= MOST, "a range of {count} sectors");
                let place = first as usize * 512..(first as usize + count as usize) * 512;
                model.disk[place].fill(if taken.kind == 11 { DISCARDED } else { 0 });
            }
            _ => {}
        }
        model.answer(&taken, status);
    }

    /// Gives back a head, whether it was asked for it or not. If it was, the driver uses the request's buffers for others from now on.
    pub fn forge(&mut self, head: u32) {
        self.take();
        self.model().use_head(head);
        self.taken.retain(|taken| u32::from(taken.head) != head);
    }

    /// Answers everything.
    pub fn end(&mut self) {
        self.take();
        while !self.taken.is_empty() {
            self.answer(0, 0);
        }
    }
}
