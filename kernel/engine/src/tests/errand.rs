//! What the control core has done on the engine's core.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::support::{Bench, fine};
use crate::control::{Command, Errand, Reply};
use crate::requests::Requests;

/// Counts how often it was run.
#[derive(Debug, Default)]
struct Count(AtomicU32);

impl Errand for Count {
    fn run(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn an_errand_is_run_once_in_the_turn_that_takes_it() {
    let count: &Count = Box::leak(Box::default());
    let mut bench = Bench::by(fine(), &[], Requests::Poll);
    for times in 1..=3 {
        assert_eq!(bench.command(Command::Run(count)), Reply::Done);
        (0..10).for_each(|_| _ = bench.turn());
        assert_eq!(count.0.load(Relaxed), times);
    }
}
