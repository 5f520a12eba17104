//! A loom model of `ring.rs` itself: every interleaving of one writer and one reader. The writer goes round a small ring.
//! The reader must never return a record that is torn or has another number, and what it reads and what is lost must be
//! all that was written.
//!
//! Four faults are planted, and each is found: a fence of the writer or of the reader is left out, the reader does not
//! read the position again, or it allows one record too many.

#![allow(dead_code, reason = "the model uses a part of what the file defines")]

pub mod atomics;
#[allow(clippy::duplicate_mod, reason = "on other atomics, which is the point")]
#[path = "ring.rs"]
mod ring;

use loom::{sync::Arc, thread};
use ring::{Cursor, Ring, Slot, WhenFull};

use crate::{Kind, Record};

type Small = Ring<Vec<Slot>, 4>;

fn record(number: u64) -> Record {
    Record { a: number, b: number, ..Record::new(Kind::Exit, number) }
}

fn check(found: Record, number: u64) {
    assert!(found == record(number), "torn: {found:?} for {number}");
}

/// Writes `records` on another thread, while `reader` reads. `reader` returns how many records it has read, and how many
/// are lost.
fn model(records: u64, slots: usize, full: WhenFull, reader: fn(&Small, &mut Cursor) -> (u64, u64)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let ring: Small = Ring::new((0..slots).map(|_| Slot::new()).collect::<Vec<_>>()).unwrap();
        ring.when_full(full);
        let ring = Arc::new(ring);
        let writer = {
            let ring = ring.clone();
            thread::spawn(move || (0..records).for_each(|number| ring.write(record(number))))
        };
        let mut cursor = Cursor::new();
        let (mut read, mut lost) = reader(&ring, &mut cursor);
        writer.join().unwrap();
        lost += cursor.skip_lost(&ring);
        while cursor.read(&ring).is_some() {
            read += 1;
        }
        assert_eq!(read + lost, records);
    });
}

/// [`model`] with a writer of several records.
#[test]
fn no_record_of_a_batch_is_torn_while_the_writer_goes_round() {
    for full in [WhenFull::Overwrite, WhenFull::Stop] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let ring: Small = Ring::new((0..2).map(|_| Slot::new()).collect::<Vec<_>>()).unwrap();
            ring.when_full(full);
            let ring = Arc::new(ring);
            let writer = {
                let ring = ring.clone();
                thread::spawn(move || {
                    let mut writer = ring.writer();
                    writer.write_three(record(0), record(1), record(2));
                    writer.write(record(3));
                })
            };
            let mut cursor = Cursor::new();
            let (mut read, mut lost) = reads(&ring, &mut cursor);
            writer.join().unwrap();
            lost += cursor.skip_lost(&ring);
            while cursor.read(&ring).is_some() {
                read += 1;
            }
            assert_eq!(read + lost, 4);
        });
    }
}

/// Reads as the control core does.
fn reads(ring: &Small, cursor: &mut Cursor) -> (u64, u64) {
    let lost = cursor.skip_lost(ring);
    let number = cursor.position();
    let found = cursor.read(ring);
    if let Some(found) = found {
        check(found, number);
    }
    (found.is_some().into(), lost)
}

#[test]
fn no_record_is_torn_while_the_writer_goes_round() {
    model(3, 2, WhenFull::Overwrite, reads);
}

#[test]
fn a_ring_that_stops_loses_no_record_that_it_has_written() {
    // Numbers of records that were dropped are given to later ones, so only wholeness is checked.
    model(3, 2, WhenFull::Stop, |ring, cursor| {
        let (mut read, mut lost) = (0, 0);
        for _ in 0..2 {
            lost += cursor.skip_lost(ring);
            if let Some(found) = cursor.read(ring) {
                check(found, found.a);
                read += 1;
                cursor.give_back(ring);
            }
        }
        (read, lost)
    });
}

/// Reads once what the reader takes for the first record, with another check.
fn reads_once(ring: &Small, is_good: fn(&Small, u64) -> bool) -> (u64, u64) {
    if ring.written() > 0 {
        let found = Record::from_words(ring.copy_words(0));
        if is_good(ring, 0) {
            check(found, 0);
        }
    }
    (0, 0)
}

#[test]
#[should_panic = "torn"]
fn a_reader_that_does_not_look_again_is_found() {
    model(3, 2, WhenFull::Overwrite, |ring, _| reads_once(ring, |_, _| true));
}

#[test]
#[should_panic = "torn"]
fn a_reader_that_allows_a_record_too_many_is_found() {
    model(3, 2, WhenFull::Overwrite, |ring, _| reads_once(ring, |ring, number| ring.written() - number <= 2));
}

/// The tests that a model finds what is missing if a fence is left out.
macro_rules! fences_are_needed {
    ($model:expr) => {
        fn without(order: $crate::ring_model::atomics::Ordering) {
            $crate::ring_model::atomics::WITHOUT.set(Some(order));
            $model;
        }

        #[test]
        #[should_panic = "torn"]
        fn a_writer_without_its_fence_is_found() {
            without($crate::ring_model::atomics::Ordering::Release);
        }

        #[test]
        #[should_panic = "torn"]
        fn a_reader_without_its_fence_is_found() {
            without($crate::ring_model::atomics::Ordering::Acquire);
        }
    };
}
pub(crate) use fences_are_needed;

fences_are_needed!(model(3, 2, WhenFull::Overwrite, reads));
