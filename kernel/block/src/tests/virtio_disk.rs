//! Virtio block devices beneath a guest's disk, on the model of a device.

use std::cell::RefCell;
use std::rc::Rc;

use engine::control::{Command, Reply};
use virtio_blk::testing::{Model, Pages, Port, Taken, device};
use virtio_blk::{Features, VirtioBlk};

use super::support::{Bench, DISCARD, FLUSH, Guest, IN, IOERR, OK, OUT, SPLIT, Sent, UNSUPP, UNTOUCHED, range};
use crate::storage::Tag;
use crate::virtio_disk::{VirtioDisk, VirtioDisks, geometry};

/// A guest with a whole disk of 4 MiB.
struct Stand {
    model: Rc<RefCell<Model>>,
    bench: Bench<VirtioDisks<Pages, Port>>,
    volume: VirtioDisk,
    guest: Guest,
}

impl Stand {
    fn new(features: Features) -> Self {
        let model = device(features);
        model.borrow_mut().set(20, &4096_u32.to_le_bytes());
        model.borrow_mut().set(36, &64_u32.to_le_bytes());
        model.borrow_mut().set(48, &64_u32.to_le_bytes());
        let driver = VirtioBlk::new(Port(model.clone())).expect("a device");
        let geometry = geometry(driver.shape(), false);
        let guest = Guest::new(3, &geometry, 1, SPLIT);
        let mut bench = Bench::new(VirtioDisks::new(vec![driver], 1));
        let volume = VirtioDisk { device: 0, geometry };
        assert_eq!(bench.attach(&guest, volume), Reply::Attached);
        Self { model, bench, volume, guest }
    }

    /// The engine works, and the device answers in this order what it has. Returns what that was.
    fn turn(&mut self, order: impl Fn(&mut Vec<Taken>), status: impl Fn(&Taken) -> u8) -> Vec<Taken> {
        self.bench.turn();
        let mut taken = self.model.borrow_mut().take();
        order(&mut taken);
        taken.iter().for_each(|taken| self.model.borrow_mut().answer(taken, status(taken)));
        taken
    }

    /// Runs until a request is used. Returns its status.
    fn finish(&mut self, sent: &Sent, status: impl Fn(&Taken) -> u8) -> u8 {
        for _ in 0..100 {
            self.turn(|taken| taken.reverse(), &status);
            if let Some((id, _)) = self.guest.used() {
                assert_eq!(id, sent.id);
                return self.guest.status(sent);
            }
        }
        panic!("the request was not answered");
    }

    fn ask(&mut self, kind: u32, sector: u64, data: Option<Result<&[u8], usize>>) -> (u8, Vec<u64>) {
        let sent = self.guest.send(kind, sector, data);
        (self.finish(&sent, |_| 0), sent.at)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(13) ^ (i >> 8) as u8).collect()
}

const MOST: usize = 300 << 10;

#[test]
fn a_unit_of_discards_that_is_too_large_is_a_large_one() {
    for (unit, bytes) in [
        (0, 4096),
        (1, 4096),
        (8, 4096),
        (9, 8192),
        (0x7f_fff8, 0xffff_f000),
        (0x7f_ffff, 1 << 31),
        (u32::MAX, 1 << 31),
    ] {
        let model = device(Features::DISCARD | Features::BLK_SIZE);
        model.borrow_mut().set(20, &4096_u32.to_le_bytes());
        model.borrow_mut().set(44, &unit.to_le_bytes());
        let driver = VirtioBlk::<Pages, _>::new(Port(model)).expect("a device");
        assert_eq!(geometry(driver.shape(), false).discard_bytes, bytes, "{unit:#x}");
    }
}

#[test]
fn a_long_request_is_divided_and_its_parts_may_end_in_any_order() {
    let mut stand = Stand::new(Features::FLUSH);
    for len in [512, 4096, 64 << 10, MOST] {
        let data = pattern(len);
        assert_eq!(stand.ask(OUT, 64, Some(Ok(&data))).0, OK);
        assert!(stand.model.borrow().disk[64 * 512..][..len] == data, "{len}");
        let (status, at) = stand.ask(IN, 64, Some(Err(len)));
        assert!(status == OK && stand.guest.bytes(at[1], len) == data, "{len}");
    }
    let counted = stand.guest.counted();
    assert!(counted.contains(&("reads", 4)) && counted.contains(&("writes", 4)), "{counted:?}");
}

#[test]
fn buffers_of_any_length_are_put_together() {
    let mut stand = Stand::new(Features::FLUSH);
    let data = pattern(80 << 10);
    let header = super::support::header(OUT, 8);
    let cuts = [1, 2, 509, 70_001, data.len()];
    let mut buffers: Vec<Result<&[u8], usize>> = vec![Ok(&header)];
    let mut from = 0;
    for cut in cuts {
        buffers.push(Ok(&data[from..cut]));
        from = cut;
    }
    buffers.push(Err(1));
    let sent = stand.guest.offer(0, &buffers);
    assert_eq!(stand.finish(&sent, |_| 0), OK);
    assert!(stand.model.borrow().disk[8 * 512..][..data.len()] == data);
}

#[test]
fn a_part_that_fails_fails_its_request_when_no_part_is_in_flight() {
    for (status, expected) in [(1, IOERR), (2, UNSUPP), (9, IOERR)] {
        let mut stand = Stand::new(Features::FLUSH);
        let sent = stand.guest.send(OUT, 0, Some(Ok(&pattern(MOST))));
        assert_eq!(stand.finish(&sent, |taken| if taken.sector == 128 { status } else { 0 }), expected);
        assert_eq!(stand.ask(IN, 0, Some(Err(512))).0, OK, "the disk goes on");
    }
}

#[test]
fn a_durable_write_is_flushed_after_its_last_part() {
    let mut stand = Stand::new(Features::FLUSH);
    // The guest's driver chooses write-through (5.2.6.2).
    stand.guest.shared.write_config(32, 1, 0);
    let sent = stand.guest.send(OUT, 0, Some(Ok(&pattern(MOST))));
    let mut kinds = Vec::new();
    for _ in 0..10 {
        kinds.extend(stand.turn(|taken| taken.reverse(), |_| 0).iter().map(|taken| taken.kind));
    }
    assert_eq!((stand.guest.used().map(|(id, _)| id), stand.guest.status(&sent)), (Some(sent.id), OK));
    assert_eq!(kinds.len(), MOST.div_ceil(64 << 10) + 1);
    assert_eq!(kinds.iter().filter(|kind| **kind == FLUSH).count(), 1);
    assert_eq!(kinds.last(), Some(&FLUSH));
}

#[test]
fn a_failed_flush_behind_a_durable_write_stays_failed_for_the_writes_before_it() {
    for (earlier, status) in [(true, 1), (true, 2), (false, 1)] {
        let mut stand = Stand::new(Features::FLUSH);
        if earlier {
            assert_eq!(stand.ask(OUT, 0, Some(Ok(&pattern(512)))).0, OK);
        }
        stand.guest.shared.write_config(32, 1, 0);
        let sent = stand.guest.send(OUT, 8, Some(Ok(&pattern(512))));
        assert_eq!(stand.finish(&sent, |taken| if taken.kind == FLUSH { status } else { 0 }), IOERR);
        stand.guest.shared.write_config(32, 1, 1);
        // The device would flush now, but the first write may be lost.
        let sent = stand.guest.send(FLUSH, 0, None);
        let expected = if earlier { IOERR } else { OK };
        assert_eq!(stand.finish(&sent, |_| 0), expected, "a write before it: {earlier}");
        assert_eq!(stand.guest.counted().contains(&("flushes_refused", 1)), earlier);
        // A write that fails by itself says nothing of other writes.
        let mut stand = Stand::new(Features::FLUSH);
        assert_eq!(stand.ask(OUT, 0, Some(Ok(&pattern(512)))).0, OK);
        stand.guest.shared.write_config(32, 1, 0);
        let sent = stand.guest.send(OUT, 8, Some(Ok(&pattern(512))));
        assert_eq!(stand.finish(&sent, |taken| u8::from(taken.kind == OUT)), IOERR);
        assert_eq!(stand.ask(FLUSH, 0, None).0, OK);
    }
}

#[test]
fn discards_zeroes_and_flushes_go_to_the_device() {
    let mut stand = Stand::new(Features::all().difference(Features::RO | Features::SIZE_MAX));
    for (kind, data) in [(FLUSH, None), (DISCARD, Some(range(64, 32, 0))), (13, Some(range(64, 32, 1)))] {
        let sent = stand.guest.send(kind, 0, data.as_deref().map(Ok));
        let taken = stand.turn(|_| {}, |_| 0);
        assert_eq!(taken.iter().map(|taken| taken.kind).collect::<Vec<_>>(), [kind]);
        assert_eq!(stand.finish(&sent, |_| 0), OK);
    }
    let mut stand = Stand::new(Features::empty());
    let sent = stand.guest.send(FLUSH, 0, None);
    assert_eq!(stand.turn(|_| {}, |_| 0), [], "no volatile cache, so there is nothing to flush");
    assert_eq!(stand.finish(&sent, |_| 0), OK);
}

#[test]
fn a_device_is_given_back_when_the_parts_in_flight_have_ended_and_its_buffers_stay_as_they_are() {
    let mut stand = Stand::new(Features::FLUSH);
    stand.model.borrow_mut().disk.fill(0x11);
    let sent = stand.guest.send(IN, 0, Some(Err(MOST)));
    stand.bench.turn();
    let detach = || Command::Detach { slot: stand.guest.slot };
    for _ in 0..10 {
        assert_eq!(stand.bench.command(detach()), Reply::Detaching, "the device still works on it");
    }
    for _ in 0..3 {
        stand.turn(|_| {}, |_| 0);
    }
    let detach = Command::Detach { slot: stand.guest.slot };
    assert!(matches!(stand.bench.command(detach), Reply::Detached(_)));
    assert!(stand.guest.bytes(sent.at[1], MOST).iter().all(|byte| *byte == UNTOUCHED));
}

#[test]
fn a_device_that_breaks_its_ring_fails_all_requests_and_later_ones() {
    let mut stand = Stand::new(Features::FLUSH);
    let sent: Vec<_> = (0..3).map(|n| stand.guest.send(IN, n * 8, Some(Err(MOST)))).collect();
    stand.bench.turn();
    stand.model.borrow_mut().use_head(127);
    stand.bench.turn();
    stand.bench.turn();
    let mut used = 0;
    while stand.guest.used().is_some() {
        used += 1;
    }
    assert_eq!(used, 3);
    assert!(sent.iter().all(|sent| stand.guest.status(sent) == IOERR));
    assert_eq!(stand.ask(IN, 0, Some(Err(4096))).0, IOERR);
    assert!(!stand.bench.storage_cancels(stand.volume, Tag(0)));
}

impl Bench<VirtioDisks<Pages, Port>> {
    /// Whether the storage says that a request which it does not have has ended.
    fn storage_cancels(&mut self, volume: VirtioDisk, tag: Tag) -> bool {
        use crate::storage::Storage;
        self.storage().cancel(volume, tag)
    }
}
