//! The regions of memory in which a batch looks for buffers first.

#![allow(unsafe_code, reason = "a queue needs a memory that lives as long")]

use crate::config::{Features, MAX_QUEUE_SIZE};
use crate::queue::{Batch, Purpose, Queue, QueueState};
use crate::testing::{BUFFERS, DriverQueue, MEMORY};

/// Address of a second region.
const OTHER: u64 = 1 << 32;
/// Addresses in the first region and in the second one.
const PLACES: [u64; 2] = [BUFFERS, OTHER + BUFFERS];
/// Ranges that are in no region.
const NOWHERE: [(u64, u32); 4] = [(MEMORY as u64 - 1, 2), (OTHER - 1, 2), (OTHER + MEMORY as u64, 1), (u64::MAX, 2)];

#[test]
fn each_purpose_has_its_region_and_a_later_batch_begins_with_them() {
    let memory = memory::guest::testing::regions(&[(0, MEMORY), (OTHER, MEMORY)]);
    for features in [Features::VERSION_1, Features::VERSION_1 | Features::RING_PACKED] {
        let driver = DriverQueue::new(&memory, 0, 8, features);
        let state = QueueState::start(driver.config, features);
        // SAFETY: a test's memory lives for ever.
        let new = || unsafe { Queue::new(&memory, 0, 1, features, MAX_QUEUE_SIZE, &state).unwrap() };
        let (mut queue, mut dirty) = (new(), 0);
        for [control, data] in [[0, 1], [0, 1], [1, 0], [1, 1], [0, 0]] {
            let mut batch = Batch::new(&mut queue, &memory, &mut dirty);
            let mut regions = batch.regions();
            for (purpose, place) in [(Purpose::Control, control), (Purpose::Data, data), (Purpose::Control, control)] {
                let found = batch.buffer_at(PLACES[place], 16, purpose, &mut regions).unwrap();
                assert_eq!(found.address(), memory.translate(PLACES[place], 16).unwrap() as usize);
                for (gpa, len) in NOWHERE {
                    assert!(batch.buffer_at(gpa, len, purpose, &mut regions).is_none(), "{gpa:#x}");
                }
            }
            let batch = Batch::new(&mut queue, &memory, &mut dirty);
            for (purpose, place) in [(Purpose::Control, control), (Purpose::Data, data)] {
                assert!(batch.span(purpose).piece(PLACES[place], 16).is_some(), "{purpose:?}");
                assert!(batch.span(purpose).piece(PLACES[1 - place], 16).is_none(), "{purpose:?}");
            }
        }
        let mut queue = new();
        let batch = Batch::new(&mut queue, &memory, &mut dirty);
        for purpose in [Purpose::Control, Purpose::Data] {
            assert!(
                batch.span(purpose).piece(PLACES[0], 16).is_some(),
                "a queue that is set up anew remembers nothing"
            );
        }
    }
}
