//! Memory that the driver shares with its device. It knows which buffers the device has, and is used again by the next run.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ptr::NonNull;

use virtio_drivers::{BufferDirection, PAGE_SIZE, PhysAddr};
use virtio_net::Hal;

#[derive(Default)]
struct Memory {
    /// All areas: address, pages, and whether this run has it.
    areas: Vec<(u64, usize, bool)>,
    /// Buffers that the device has: address and bytes.
    shared: BTreeMap<u64, usize>,
    /// A place that changes when a buffer is next given back, as if the device wrote while the driver looks.
    later: Option<(u64, u32)>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

/// The memory of the driver.
pub struct Pages;

// SAFETY: areas are aligned and zeroed when they are given, have one owner in a run, and are never given back to the system.
unsafe impl Hal for Pages {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        MEMORY.with_borrow_mut(|memory| {
            let free = memory.areas.iter_mut().find(|(_, size, taken)| *size == pages && !taken);
            let address = if let Some((address, _, taken)) = free {
                *taken = true;
                *address
            } else {
                let layout = Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE).expect("a layout");
                // SAFETY: the layout is not empty.
                let address = unsafe { alloc_zeroed(layout) }.expose_provenance() as u64;
                memory.areas.push((address, pages, true));
                address
            };
            let pointer = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
            // SAFETY: the area has that many pages, and nobody else has it in this run.
            unsafe { pointer.write_bytes(0, pages * PAGE_SIZE) };
            (address, NonNull::new(pointer).expect("memory"))
        })
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        0
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::dangling()
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        let address = buffer.as_ptr().cast::<u8>().expose_provenance() as u64;
        let before = MEMORY.with_borrow_mut(|memory| memory.shared.insert(address, buffer.len()));
        assert_eq!(before, None, "the device gets a buffer that it has");
        address
    }

    unsafe fn unshare(address: PhysAddr, buffer: NonNull<[u8]>, _: BufferDirection) {
        assert_eq!(buffer.as_ptr().cast::<u8>().addr() as u64, address, "the buffer of that descriptor");
        let before = MEMORY.with_borrow_mut(|memory| memory.shared.remove(&address));
        assert_eq!(before, Some(buffer.len()), "the driver takes back what the device has");
        if let Some((at, value)) = MEMORY.with_borrow_mut(|memory| memory.later.take()) {
            write(at, &value.to_le_bytes());
        }
    }
}

/// A run begins: no area has an owner.
pub fn begin() {
    MEMORY.with_borrow_mut(|memory| {
        memory.areas.iter_mut().for_each(|area| area.2 = false);
        memory.shared.clear();
        memory.later = None;
    });
}

/// A run has ended, and its driver is gone.
pub fn end() {
    begin();
}

/// Whether the device has the buffer that this place is in.
pub fn is_shared(place: usize) -> bool {
    let place = place as u64;
    MEMORY.with_borrow(|memory| {
        memory.shared.range(..=place).next_back().is_some_and(|(address, len)| place < address + *len as u64)
    })
}

/// Writes four bytes when a buffer is next given back.
pub fn write_later(at: u64, value: u32) {
    MEMORY.with_borrow_mut(|memory| memory.later = Some((at, value)));
}

/// The place, if all of it is in one area of this run.
fn place(at: u64, len: usize) -> Option<*mut u8> {
    let inside = |&&(address, pages, taken): &&(u64, usize, bool)| {
        taken
            && at >= address
            && at.checked_add(len as u64).is_some_and(|end| end <= address + (pages * PAGE_SIZE) as u64)
    };
    MEMORY.with_borrow(|memory| memory.areas.iter().find(inside).map(|_| ()))?;
    Some(std::ptr::with_exposed_provenance_mut(at as usize))
}

/// Reads as the device does.
pub fn read(at: u64, len: usize) -> Option<Vec<u8>> {
    let place = place(at, len)?;
    // SAFETY: within one area; there is one thread, and the driver holds no reference to a device's memory now.
    Some((0..len).map(|i| unsafe { place.add(i).read_volatile() }).collect())
}

/// Writes as the device does. Nothing is written where the driver has no memory.
pub fn write(at: u64, bytes: &[u8]) {
    let Some(place) = place(at, bytes.len()) else { return };
    for (i, byte) in bytes.iter().enumerate() {
        // SAFETY: as above.
        unsafe { place.add(i).write_volatile(*byte) };
    }
}
