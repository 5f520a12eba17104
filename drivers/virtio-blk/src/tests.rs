//! The driver on a model of a device, which reads the ring as a device does.

use std::alloc::{Layout, alloc_zeroed};
use std::cell::RefCell;
use std::rc::Rc;

use virtio_drivers::transport::{DeviceType, InterruptStatus};
use virtio_drivers::{Error, PhysAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::*;

/// Memory of the test. Addresses of the device are the test's own.
struct Pages;

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

fn at<T>(address: u64, index: usize) -> *mut T {
    core::ptr::with_exposed_provenance_mut::<T>(address as usize).wrapping_add(index)
}

/// A request that the device has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Taken {
    head: u16,
    kind: u32,
    sector: u64,
    /// Address and length of the data.
    data: Option<(u64, usize)>,
    status: u64,
}

/// The device.
struct Model {
    features: u64,
    config: [u8; 60],
    status: DeviceStatus,
    /// Descriptors, driver area, device area.
    areas: [u64; 3],
    seen: u16,
    used: u16,
    notified: u32,
    /// The generation of the configuration changes whenever it is read.
    restless: bool,
    generation: u32,
    disk: Vec<u8>,
}

impl Model {
    fn set(&mut self, offset: usize, bytes: &[u8]) {
        self.config[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Takes what the driver has offered.
    fn take(&mut self) -> Vec<Taken> {
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
    fn answer(&mut self, taken: &Taken, status: u8) {
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
    fn use_head(&mut self, head: u32) {
        let [.., device] = self.areas;
        // SAFETY: the driver's page.
        unsafe {
            at::<u32>(device, 1 + 2 * (usize::from(self.used) % RING)).write_volatile(head);
            self.used = self.used.wrapping_add(1);
            at::<u16>(device, 1).write_volatile(self.used);
        }
    }
}

#[derive(Clone)]
struct Port(Rc<RefCell<Model>>);

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
        let model = self.0.borrow();
        let bytes = model.config.get(offset..offset + size_of::<V>()).ok_or(Error::ConfigSpaceTooSmall)?;
        V::read_from_bytes(bytes).map_err(|_| Error::InvalidParam)
    }
    fn write_config_space<V: IntoBytes + Immutable>(&mut self, _: usize, _: V) -> Result<(), Error> {
        Err(Error::Unsupported)
    }
}

type Driver = VirtioBlk<Pages, Port>;

/// A device of 4 MiB with these features.
fn device(features: Features) -> Rc<RefCell<Model>> {
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

fn started(features: Features) -> (Rc<RefCell<Model>>, Driver) {
    let model = device(features);
    let driver = Driver::new(Port(model.clone())).expect("a device");
    (model, driver)
}

fn part(id: u32, operation: Operation, first: u64, sectors: u32) -> Part {
    Part { id, operation, first, sectors }
}

fn ended(driver: &mut Driver, now: u64) -> Vec<(u32, Status, Vec<u8>)> {
    let mut all = Vec::new();
    driver.poll(now, |id, status, data| all.push((id, status, data.to_vec())));
    all
}

#[test]
fn what_was_written_is_read_whatever_the_order_of_the_answers() {
    let (model, mut driver) = started(Features::FLUSH);
    let bytes = |n: u64| (0..1024).map(|at| (at + n) as u8).collect::<Vec<_>>();
    for round in 0..40_u64 {
        for n in 0..PARTS as u64 {
            let ask = part(n as u32, Operation::Write, n * 2, 2);
            driver
                .submit(&ask, 0, |data| {
                    data.copy_from_slice(&bytes(n + round));
                    true
                })
                .expect("room");
        }
        assert!(!driver.has_room());
        assert_eq!(driver.submit(&part(99, Operation::Flush, 0, 0), 0, |_| true), Err(Refused::Busy));
        let before = model.borrow().notified;
        driver.notify();
        driver.notify();
        assert_eq!(model.borrow().notified, before + 1, "one notification for all");
        let mut taken = model.borrow_mut().take();
        taken.reverse();
        taken.rotate_left(round as usize % PARTS);
        taken.iter().for_each(|taken| model.borrow_mut().answer(taken, 0));
        let mut names: Vec<_> = ended(&mut driver, 0)
            .into_iter()
            .map(|(id, status, data)| {
                assert_eq!((status, data.len()), (Status::Ok, 0));
                id
            })
            .collect();
        names.sort_unstable();
        assert_eq!(names, (0..PARTS as u32).collect::<Vec<_>>());
        assert_eq!(driver.outstanding(), 0);
        for n in 0..PARTS as u64 {
            driver.submit(&part(n as u32, Operation::Read, n * 2, 2), 0, |_| unreachable!()).expect("room");
        }
        let taken = model.borrow_mut().take();
        taken.iter().for_each(|taken| model.borrow_mut().answer(taken, 0));
        for (id, status, data) in ended(&mut driver, 0) {
            assert_eq!((status, data), (Status::Ok, bytes(u64::from(id) + round)));
        }
    }
}

#[test]
fn requests_without_sectors_of_their_own_have_the_layout_of_the_specification() {
    let (model, mut driver) = started(Features::FLUSH | Features::DISCARD | Features::WRITE_ZEROES);
    let asks = [
        part(1, Operation::Flush, 7, 7),
        part(2, Operation::Discard, 0x1_0000_0008, 16),
        part(3, Operation::WriteZeroes { unmap: true }, 24, 8),
        part(4, Operation::WriteZeroes { unmap: false }, 24, 8),
    ];
    asks.iter().for_each(|ask| driver.submit(ask, 0, |_| unreachable!()).expect("room"));
    let taken = model.borrow_mut().take();
    assert_eq!(taken.iter().map(|t| (t.kind, t.sector)).collect::<Vec<_>>(), [(4, 0), (11, 0), (13, 0), (13, 0)]);
    assert_eq!(taken[0].data, None);
    for (taken, (first, sectors, flags)) in taken[1..].iter().zip([(0x1_0000_0008_u64, 16, 0), (24, 8, 1), (24, 8, 0)])
    {
        let (data, len) = taken.data.expect("a range");
        // SAFETY: the driver's buffer.
        let range = unsafe { (at::<u64>(data, 0).read(), at::<u32>(data, 2).read(), at::<u32>(data, 3).read()) };
        assert_eq!((len, range), (16, (first, sectors, flags)));
    }
    for (taken, status) in taken.iter().zip([0, 1, 2, 77]) {
        model.borrow_mut().answer(taken, status);
    }
    let statuses: Vec<_> = ended(&mut driver, 0).into_iter().map(|(id, status, _)| (id, status)).collect();
    assert_eq!(statuses, [(1, Status::Ok), (2, Status::Failed), (3, Status::Unsupported), (4, Status::Failed)]);
}

#[test]
fn a_part_that_cannot_be_offered_leaves_nothing_behind() {
    let (model, mut driver) = started(Features::empty());
    let most = driver.shape().part_sectors;
    assert_eq!(most as usize * 512, PART_BYTES);
    for (ask, why) in [
        (part(1, Operation::Read, 0, 0), Refused::Length),
        (part(1, Operation::Write, 0, most + 1), Refused::Length),
        (part(1, Operation::Write, 0, u32::MAX), Refused::Length),
        (part(1, Operation::Write, 0, most), Refused::Data),
    ] {
        assert_eq!(driver.submit(&ask, 0, |_| false), Err(why));
    }
    assert_eq!((driver.outstanding(), model.borrow_mut().take()), (0, vec![]));
    driver.notify();
    assert_eq!(model.borrow().notified, 0);
}

#[test]
fn an_answer_that_no_part_waits_for_ends_the_use_of_the_device() {
    for forged in [None, Some(127), Some(128), Some(u32::MAX)] {
        let (model, mut driver) = started(Features::empty());
        for id in 0..3 {
            driver.submit(&part(id, Operation::Read, 0, 1), 0, |_| true).expect("room");
        }
        let taken = model.borrow_mut().take();
        model.borrow_mut().answer(&taken[1], 0);
        model.borrow_mut().use_head(forged.unwrap_or_else(|| taken[1].head.into()));
        let all = ended(&mut driver, 0);
        assert_eq!((all[0].0, all[0].1), (1, Status::Ok));
        let mut failed: Vec<_> = all[1..].iter().map(|(id, status, data)| (*id, *status, data.len())).collect();
        failed.sort_by_key(|(id, ..)| *id);
        assert_eq!(failed, [(0, Status::Failed, 0), (2, Status::Failed, 0)]);
        assert!(driver.is_gone() && !driver.has_room());
        assert_eq!(model.borrow().status, DeviceStatus::empty(), "the device was reset");
        assert_eq!(driver.submit(&part(9, Operation::Read, 0, 1), 0, |_| true), Err(Refused::Gone));
        model.borrow_mut().answer(&taken[0], 0);
        assert_eq!(ended(&mut driver, 0), []);
    }
}

#[test]
fn a_device_that_says_it_needs_a_reset_fails_its_parts_after_a_while() {
    for status in [DeviceStatus::DEVICE_NEEDS_RESET | DeviceStatus::DRIVER_OK, DeviceStatus::empty()] {
        let (model, mut driver) = started(Features::empty());
        driver.submit(&part(5, Operation::Read, 0, 1), 1_000, |_| true).expect("room");
        assert_eq!(ended(&mut driver, 1_000 + 3 * PATIENCE), [], "it works, and takes its time");
        model.borrow_mut().status = status;
        assert_eq!(ended(&mut driver, 1_000 + 3 * PATIENCE), [], "it was asked just now");
        assert_eq!(ended(&mut driver, 1_000 + 4 * PATIENCE), [(5, Status::Failed, vec![])]);
        assert!(driver.is_gone());
    }
}

#[test]
fn the_shape_is_the_devices() {
    let model = device(Features::all());
    {
        let mut model = model.borrow_mut();
        model.set(0, &8195_u64.to_le_bytes());
        model.set(8, &10_000_u32.to_le_bytes());
        model.set(20, &4096_u32.to_le_bytes());
        model.set(24, &[2]);
        model.set(36, &1001_u32.to_le_bytes());
        model.set(44, &16_u32.to_le_bytes());
        model.set(48, &u32::MAX.to_le_bytes());
    }
    let driver = Driver::new(Port(model.clone())).expect("a device");
    assert_eq!(
        *driver.shape(),
        Shape {
            sectors: 8192,
            block_bytes: 4096,
            physical_bytes: 16384,
            read_only: true,
            volatile_cache: true,
            discard_sectors: 1000,
            discard_unit: 16,
            zero_sectors: u32::MAX - 7,
            part_sectors: 16,
        }
    );
    let unusable = |offset, value: u32| {
        let model = device(Features::all());
        model.borrow_mut().set(8, &u32::MAX.to_le_bytes());
        model.borrow_mut().set(20, &512_u32.to_le_bytes());
        model.borrow_mut().set(offset, &value.to_le_bytes());
        Driver::new(Port(model)).err().expect("unusable")
    };
    assert_eq!(unusable(20, 1024), Unusable::Block(1024));
    assert_eq!(unusable(8, 511), Unusable::Buffer(511));
    let model = device(Features::empty());
    model.borrow_mut().restless = true;
    assert_eq!(Driver::new(Port(model)).err(), Some(Unusable::Size));
}
