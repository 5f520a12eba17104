//! The configuration that the driver reads (virtio 1.3 5.2.4), and the one byte that it may write.

use super::support::{Bench, FLUSH, Guest, OK, OUT, SPLIT, Slow, memory_disk, with_slow};
use crate::device::{self, BlockFeatures, Options};
use crate::ram::RamDisk;
use crate::storage::{Geometry, Operation, Status};
use engine::control::Reply;
use virtio::config::Features;

const OPTIONS: Options = Options { queues: 4, packed: false, writeback: true };

fn number(config: &[u8], at: usize, len: usize) -> u64 {
    config[at..at + len].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[test]
fn each_field_is_at_its_offset() {
    let geometry = Geometry { block_bytes: 4096, blocks: 0x1_2345_6789, ..Slow::new(4096, 1).geometry };
    let device = device::config(&geometry, &OPTIONS);
    let field = |at, len| number(&device.config, at, len);
    assert_eq!((device.device_type, device.queues, device.config_len), (2, 4, 60));
    assert_eq!(field(0, 8), 0x1_2345_6789 * 8, "capacity");
    assert_eq!((field(8, 4), field(12, 4)), (0, 254), "size_max and seg_max");
    assert_eq!((field(16, 4), field(20, 4)), (0, 4096), "geometry and blk_size");
    assert_eq!((field(24, 1), field(25, 1), field(26, 2), field(28, 4)), (0, 0, 1, 0), "topology");
    assert_eq!((field(32, 1), field(34, 2)), (1, 4), "writeback and num_queues");
    assert_eq!((field(36, 4), field(40, 4), field(44, 4)), (512, 1, 8), "discard");
    assert_eq!((field(48, 4), field(52, 4), field(56, 1)), (256, 1, 1), "write zeroes");
    assert_eq!(device.driver_writes, 1 << 32);
    let small = device::config(&memory_disk(1 << 20).geometry(), &OPTIONS);
    assert_eq!((number(&small.config, 0, 8), number(&small.config, 20, 4)), (2048, 512));
    assert_eq!((number(&small.config, 24, 1), number(&small.config, 26, 2)), (3, 8), "a physical block is 8 blocks");
}

#[test]
fn a_read_only_disk_offers_nothing_that_writes() {
    let disk = RamDisk::of_base(&[1; 1000]);
    let device = device::config(&disk.geometry(), &Options { queues: 1, packed: true, ..OPTIONS });
    let features = BlockFeatures::from_bits_truncate(device.features);
    let writes = BlockFeatures::DISCARD | BlockFeatures::WRITE_ZEROES | BlockFeatures::CONFIG_WCE;
    assert!(features.contains(BlockFeatures::RO) && !features.intersects(writes | BlockFeatures::MQ));
    assert_eq!((device.driver_writes, number(&device.config, 0, 8)), (0, 2), "1,000 bytes are two sectors");
    assert!(Features::from_bits_truncate(device.features).contains(Features::RING_PACKED));
    assert!(!device.config[32..].iter().any(|byte| *byte > 1));
}

/// Sends a write and a flush. Returns the operations that reached the storage.
fn write_and_flush(guest: &mut Guest, bench: &mut Bench<Slow>) -> Vec<Operation> {
    let sent = [guest.send(OUT, 0, Some(Ok(&[1; 512]))), guest.send(FLUSH, 0, None)];
    bench.turn();
    let mut operations: Vec<_> = bench.storage().held.values().map(|held| held.operation).collect();
    operations.sort_by_key(|operation| *operation == Operation::Flush);
    for tag in bench.storage().tags() {
        bench.storage().end(tag, Status::Ok);
    }
    bench.turn();
    assert_eq!(sent.map(|sent| guest.status(&sent)), [OK; 2]);
    while guest.used().is_some() {}
    operations
}

#[test]
fn the_driver_switches_between_write_back_and_write_through() {
    let (mut guest, mut bench) = with_slow(Slow::new(512, 64), 1, SPLIT);
    let writes = |durable| vec![Operation::Write { durable }, Operation::Flush];
    assert_eq!(write_and_flush(&mut guest, &mut bench), writes(false));
    guest.shared.write_config(32, 1, 0);
    assert_eq!(write_and_flush(&mut guest, &mut bench), writes(true));
    guest.shared.write_config(32, 1, 1);
    assert_eq!(write_and_flush(&mut guest, &mut bench), writes(false));
    guest.shared.write_config(32, 1, 0);
    guest.shared.request_reset();
    bench.turn();
    guest.start();
    bench.turn();
    assert_eq!(write_and_flush(&mut guest, &mut bench), writes(false), "a reset restores the mode");
}

#[test]
fn without_config_wce_a_driver_that_cannot_flush_gets_durable_writes() {
    for (flush, durable) in [(BlockFeatures::FLUSH, false), (BlockFeatures::empty(), true)] {
        let storage = Slow::new(512, 64);
        let device = device::config(&storage.geometry, &OPTIONS);
        let mut guest = Guest::with(1, device, SPLIT | Features::from_bits_retain(flush.bits()));
        let mut bench = Bench::new(storage);
        assert_eq!(bench.attach(&guest, ()), Reply::Attached);
        assert_eq!(write_and_flush(&mut guest, &mut bench)[0], Operation::Write { durable });
    }
}

#[test]
fn a_storage_without_a_volatile_cache_is_not_asked_for_durable_writes() {
    let mut storage = Slow::new(512, 64);
    storage.geometry.volatile_cache = false;
    let (mut guest, mut bench) = with_slow(storage, 1, SPLIT);
    guest.shared.write_config(32, 1, 0);
    assert_eq!(write_and_flush(&mut guest, &mut bench)[0], Operation::Write { durable: false });
}
