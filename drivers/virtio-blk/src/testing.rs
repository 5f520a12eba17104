//! A model of a device, which reads the ring as a device does. For this crate's tests and its users'.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::RefCell;
use std::rc::Rc;

use virtio_drivers::transport::{DeviceType, InterruptStatus};
use virtio_drivers::{Error, PhysAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::*;

/// Memory of the test. Addresses of the device are the test's own.
pub struct Pages;

// SAFETY: the pages are zeroed, aligned, and never freed.
unsafe impl Hal for Pages {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let layout = Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE).expect("a layout");
        // SAFETY: the layout is not empty.
        let pointer = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
        (pointer.as_ptr().expose_provenance() as u64, pointer)
    }

    unsafe fn dma_dealloc(_: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        0
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::dangling()
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        buffer.as_ptr().cast::<u8>().expose_provenance() as u64
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// A place in the driver's pages.
pub fn at<T>(address: u64, index: usize) -> *mut T {
    core::ptr::with_exposed_provenance_mut::<T>(address as usize).wrapping_add(index)
}

/// A request that the device has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// First descriptor.
    pub head: u16,
    /// Type of the request.
    pub kind: u32,
    /// First sector.
    pub sector: u64,
    /// Address and length of the data.
    pub data: Option<(u64, usize)>,
    /// Address of the status byte.
    pub status: u64,
}

/// The device.
pub struct Model {
    features: u64,
    config: [u8; 60],
    /// The device's status.
    pub status: DeviceStatus,
    /// Descriptors, driver area, device area.
    areas: [u64; 3],
    seen: u16,
    used: u16,
    /// How often the driver has notified it.
    pub notified: u32,
    /// The generation of the configuration changes whenever it is read.
    pub restless: bool,
    generation: u32,
    /// Contents of the disk.
    pub disk: Vec<u8>,
}

impl Model {
    /// Sets bytes of the configuration.
    pub fn set(&mut self, offset: usize, bytes: &[u8]) {
        self.config[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Takes what the driver has offered.
    pub fn take(&mut self) -> Vec<Taken> {
        let mut all = Vec::new();
        let [descriptors, driver, _] = self.areas;
        // SAFETY: the areas are the driver's pages, as large as it said.
        unsafe {
            let end = at::<u16>(driver, 1).read_volatile();
            while self.seen != end {
                let head = at::<u16>(driver, 2 + usize::from(self.seen) % RING).read_volatile();
                self.seen = self.seen.wrapping_add(1);
                let (mut chain, mut next) = (Vec::new(), head);
                loop {
                    let entry = descriptors + u64::from(next) * 16;
                    chain.push((at::<u64>(entry, 0).read_volatile(), at::<u32>(entry, 2).read_volatile() as usize));
                    if at::<u16>(entry, 6).read_volatile() & 1 == 0 {
                        break;
                    }
                    next = at::<u16>(entry, 7).read_volatile();
                }
                let (header, len) = chain[0];
                assert_eq!((len, chain.last().expect("three").1), (16, 1));
                all.push(Taken {
                    head,
                    kind: at::<u32>(header, 0).read_volatile(),
                    sector: at::<u64>(header, 1).read_volatile(),
                    data: (chain.len() == 3).then(|| chain[1]),
                    status: chain[chain.len() - 1].0,
                });
            }
        }
        all
    }

    /// Does what was asked, and answers with this status.
    pub fn answer(&mut self, taken: &Taken, status: u8) {
        if let (Some((data, len)), 0 | 1) = (taken.data, taken.kind) {
            let place = &mut self.disk[taken.sector as usize * 512..][..len];
            // SAFETY: the driver's buffer, which is the device's now.
            unsafe {
                match taken.kind {
                    0 => at::<u8>(data, 0).copy_from(place.as_ptr(), len),
                    _ => at::<u8>(data, 0).copy_to(place.as_mut_ptr(), len),
                }
            }
        }
        // SAFETY: as above.
        unsafe { at::<u8>(taken.status, 0).write_volatile(status) };
        self.use_head(taken.head.into());
    }

    /// Puts an element into the used ring.
    pub fn use_head(&mut self, head: u32) {
        let [.., device] = self.areas;
        // SAFETY: the driver's page.
        unsafe {
            at::<u32>(device, 1 + 2 * (usize::from(self.used) % RING)).write_volatile(head);
            self.used = self.used.wrapping_add(1);
            at::<u16>(device, 1).write_volatile(self.used);
        }
    }
}

/// The way to the device's registers.
#[derive(Clone)]
pub struct Port(pub Rc<RefCell<Model>>);

impl Transport for Port {
    fn device_type(&self) -> DeviceType {
        DeviceType::Block
    }
    fn read_device_features(&mut self) -> u64 {
        self.0.borrow().features
    }
    fn write_driver_features(&mut self, features: u64) {
        assert_eq!(features & !self.0.borrow().features, 0, "only what was offered");
    }
    fn max_queue_size(&mut self, _: u16) -> u32 {
        256
    }
    fn notify(&mut self, _: u16) {
        self.0.borrow_mut().notified += 1;
    }
    fn get_status(&self) -> DeviceStatus {
        self.0.borrow().status
    }
    fn set_status(&mut self, status: DeviceStatus) {
        self.0.borrow_mut().status = status;
    }
    fn set_guest_page_size(&mut self, _: u32) {}
    fn requires_legacy_layout(&self) -> bool {
        false
    }
    fn queue_set(&mut self, _: u16, size: u32, descriptors: u64, driver: u64, device: u64) {
        assert_eq!(size as usize, RING);
        self.0.borrow_mut().areas = [descriptors, driver, device];
    }
    fn queue_unset(&mut self, _: u16) {}
    fn queue_used(&mut self, _: u16) -> bool {
        false
    }
    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }
    fn read_config_generation(&self) -> u32 {
        let mut model = self.0.borrow_mut();
        model.generation += u32::from(model.restless);
        model.generation
    }
    fn read_config_space<V: FromBytes + IntoBytes>(&self, offset: usize) -> Result<V, Error> {
        assert!(align_of::<V>() <= 4, "the transport's registers are aligned to 4 bytes");
        let model = self.0.borrow();
        let bytes = model.config.get(offset..offset + size_of::<V>()).ok_or(Error::ConfigSpaceTooSmall)?;
        V::read_from_bytes(bytes).map_err(|_| Error::InvalidParam)
    }
    fn write_config_space<V: IntoBytes + Immutable>(&mut self, _: usize, _: V) -> Result<(), Error> {
        Err(Error::Unsupported)
    }
}

/// A device of 4 MiB with these features.
#[must_use]
pub fn device(features: Features) -> Rc<RefCell<Model>> {
    let disk = vec![0; 4 << 20];
    let mut model = Model {
        features: (Features::VERSION_1 | features).bits(),
        config: [0; 60],
        status: DeviceStatus::empty(),
        areas: [0; 3],
        seen: 0,
        used: 0,
        notified: 0,
        restless: false,
        generation: 0,
        disk,
    };
    model.set(0, &8192_u64.to_le_bytes());
    Rc::new(RefCell::new(model))
}
