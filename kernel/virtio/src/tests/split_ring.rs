//! Tests of split rings alone.

#![allow(unsafe_code, reason = "a queue needs a memory that lives as long")]

use super::support::rig;
use crate::config::{Features, QueueConfig};
use crate::fault::Fault;
use crate::queue::{Queue, QueueState};
use crate::testing::BUFFERS;

const EVENT: Features = Features::VERSION_1.union(Features::EVENT_IDX);

#[test]
fn looking_again_counts_what_is_known_already() {
    let mut r = rig(16, EVENT);
    for _ in 0..10 {
        r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
    }
    assert_eq!(r.queue.available(), Ok(10));
    let index = r.driver.config.avail + 2;
    r.memory.write_u16(index, 16).unwrap();
    assert_eq!(r.queue.arm(&r.memory), Ok(16));
    r.memory.write_u16(index, 17).unwrap();
    assert_eq!(r.queue.arm(&r.memory), Err(Fault::AvailIndex), "more than a queue ahead");
    r.memory.write_u16(index, 15).unwrap();
    assert_eq!(r.queue.arm(&r.memory), Err(Fault::AvailIndex), "back");
}

#[test]
fn queues_of_bad_size_or_address_are_refused() {
    let memory = memory::guest::testing::memory(0x1000, 0x20000);
    let good = QueueConfig { size: 256, desc: 0x1000, avail: 0x2000, used: 0x3000, vector: 0, enabled: true };
    let new = |config: QueueConfig| {
        let state = QueueState { config, avail: 0, used: 0 };
        // SAFETY: a test's memory lives for ever.
        unsafe { Queue::new(&memory, 0, 1, EVENT, 256, &state).err() }
    };
    assert_eq!(new(good), None);
    for size in [0, 3, 255, 257, 512, 0x8000, 0xffff] {
        assert_eq!(new(QueueConfig { size, ..good }), Some(Fault::QueueSize), "{size}");
    }
    let end = 0x21000;
    for (desc, avail, used) in [
        (0x1008, 0x2000, 0x3000),
        (0x1000, 0x2001, 0x3000),
        (0x1000, 0x2000, 0x3002),
        (0, 0x2000, 0x3000),
        (end - 0xff0, 0x2000, 0x3000),
        (0x1000, end - 516, 0x3000),
        (0x1000, 0x2000, end - 2052),
        (!0xf, 0x2000, 0x3000),
        (0x1000, !1, 0x3000),
        (0x1000, 0x2000, !3),
    ] {
        let config = QueueConfig { desc, avail, used, ..good };
        assert_eq!(new(config), Some(Fault::RingAddress), "{config:x?}");
    }
    assert_eq!(new(QueueConfig { avail: end - 518, ..good }), None, "up to the last byte");
}
