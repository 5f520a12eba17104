//! A loom model of `published.rs` itself: every interleaving of one writer and one reader. The reader never has words of two
//! writes. Two faults are planted, and both are found: a fence of the writer or of the reader is left out.

#![allow(dead_code, reason = "the model uses a part of what the file defines")]

#[allow(clippy::duplicate_mod, reason = "on other atomics, which is the point")]
#[path = "published.rs"]
mod published;

use loom::{sync::Arc, thread};
use published::Published;

use crate::ring_model::{atomics, fences_are_needed};

/// Writes twice on another thread, while this one reads.
fn model() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let published = Arc::new(Published::new());
        let writer = {
            let published = published.clone();
            thread::spawn(move || (1..=2).for_each(|number| published.write([number; 4])))
        };
        for _ in 0..2 {
            if let Some(words) = published.read() {
                assert!(matches!(words, [1, 1, 1, 1] | [2, 2, 2, 2]), "torn: {words:?}");
            }
        }
        writer.join().unwrap();
        assert_eq!(published.read(), Some([2; 4]));
    });
}

#[test]
fn words_are_of_one_write() {
    model();
}

fences_are_needed!(model());
