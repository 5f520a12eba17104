//! The load that `cargo mk bench block --instructions` counts: reads of 4 KiB, submitted and completed in batches of 32.
//! The driver's part is two functions, so that a tool can count each alone. The device is the model of the tests; it
//! works between them.

#![allow(unsafe_code, reason = "memory is given to a model of a device")]
#![allow(missing_docs, reason = "a program")]
#![allow(dead_code, reason = "the tests use all of the bench")]

#[path = "../tests/on_model/bench.rs"]
mod bench;

use std::hint::black_box;

use bench::{Bench, Port, Reach, disks};
use nvme::dma::Segment;
use nvme::{Config, IoQueue, Operation, Request, Status};

/// Requests in a batch.
const BATCH: u32 = 32;
/// Requests in a whole measurement.
const REQUESTS: u32 = 4096;

/// Submits a batch of reads, and tells the device.
#[inline(never)]
fn submit_measured(queue: &mut IoQueue<Port, Reach>, batch: &[(Request, [Segment; 1])], now: u64) {
    for (request, buffer) in batch {
        queue.submit(request, buffer, now).expect("there is room");
    }
    queue.notify();
}

/// Takes the answers to a batch. Returns how many reads succeeded.
#[inline(never)]
fn complete_measured(queue: &mut IoQueue<Port, Reach>, now: u64) -> u32 {
    let mut good = 0;
    queue.poll(now, |_, status| good += u32::from(status == Status::Ok));
    good
}

fn main() {
    let config = Config { depth: 64, ..Config::default() };
    let mut bench = Bench::up_with(config, nvme_model::Config::default(), disks());
    let request = |id: u32| Request { id, namespace: 2, operation: Operation::Read, first: id.into(), blocks: 1 };
    // The compiler must not know what is asked.
    let batch: Vec<_> = (0..BATCH).map(|id| (black_box(request(id)), [bench.piece(&[0; 4096], 0, true)])).collect();
    for _ in 0..REQUESTS / BATCH {
        let now = bench.now;
        submit_measured(&mut bench.queues[0], &batch, now);
        bench.run();
        assert_eq!(complete_measured(&mut bench.queues[0], now), BATCH);
    }
    bench.clean();
    println!("{REQUESTS} reads");
}
