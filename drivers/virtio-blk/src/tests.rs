//! The driver on a model of a device.

use std::cell::RefCell;
use std::rc::Rc;

use super::*;
use crate::testing::{Model, Pages, Port, at, device};

type Driver = VirtioBlk<Pages, Port>;

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
fn a_device_that_does_not_answer_for_a_minute_is_given_up() {
    let (model, mut driver) = started(Features::empty());
    driver.submit(&part(5, Operation::Read, 0, 1), 1_000, |_| true).expect("room");
    for second in (0..60).step_by(5) {
        assert_eq!(ended(&mut driver, 1_000 + second * 1_000_000), []);
    }
    let end = (60..=70).map(|second| ended(&mut driver, 1_000 + second * 1_000_000)).find(|all| !all.is_empty());
    assert_eq!(end, Some(vec![(5, Status::Failed, vec![])]));
    assert_eq!((model.borrow().status, driver.is_gone()), (DeviceStatus::empty(), true));
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
