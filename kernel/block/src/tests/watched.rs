//! What whoever watches is shown of requests.

use std::collections::BTreeSet;
use std::sync::Mutex;

use trace::{Classes, Switch};

use super::support::{
    Bench, FLUSH, FORMS, GET_ID, Guest, IN, IOERR, OK, OUT, SPLIT, Slow, UNSUPP, WRITE_ZEROES, range,
};
use crate::counters::BlockCounters;
use crate::storage::{Status, Storage};
use crate::watch::{DiskWatcher, Seen, Step, Watch};

/// All that was shown, in its order.
#[derive(Default)]
pub struct Shown(Mutex<Vec<Seen>>);

impl DiskWatcher for Shown {
    fn request(&self, seen: &Seen) {
        self.0.lock().expect("no test failed").push(*seen);
    }
}

/// Watches the requests of an engine from now on, while `on` has [`Classes::DISKS`].
pub fn watch<S: Storage>(bench: &mut Bench<S>, on: &'static Switch) -> &'static Shown {
    let shown: &Shown = Box::leak(Box::default());
    on.set(Classes::DISKS);
    bench.engine.backend_mut().watch(Watch { watcher: shown, on });
    shown
}

impl Shown {
    /// Takes what was shown until now.
    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.0.lock().expect("no test failed"))
    }

    /// Checks that each end is that of a request that was submitted, that no number is used twice meanwhile, and that the ends are
    /// those that were counted.
    pub fn check(&self, counters: &BlockCounters) {
        let mut waiting = BTreeSet::new();
        let mut ended = [0; 3];
        for Seen { slot, queue, number, step } in self.take() {
            match step {
                Step::Submitted { .. } => assert!(waiting.insert((slot, queue, number)), "{number} is in use"),
                Step::Completed { status, .. } => {
                    assert!(waiting.remove(&(slot, queue, number)), "{number} was not submitted");
                    ended[usize::from(status)] += 1;
                }
            }
        }
        let c = counters;
        let done: u64 = [&c.reads, &c.writes, &c.flushes, &c.discards, &c.zeroes].map(|count| count.get()).iter().sum();
        assert_eq!([ended[0], ended[1]], [done, c.storage_errors.get()]);
        // The back-end refuses some requests itself.
        assert!(ended[2] <= c.unsupported.get());
    }
}

fn with_slow(block_bytes: u32) -> (Guest, Bench<Slow>) {
    let storage = Slow::new(block_bytes, 64);
    let guest = Guest::new(3, &storage.geometry, 1, SPLIT);
    let mut bench = Bench::new(storage);
    bench.attach(&guest, ());
    (guest, bench)
}

/// The storage ends the one request that it holds.
fn end(bench: &mut Bench<Slow>, status: Status) {
    let [tag] = bench.storage().tags()[..] else { panic!("not one request is held") };
    bench.storage().end(tag, status);
}

#[test]
fn a_request_is_shown_when_it_is_submitted_and_when_it_ends() {
    for block_bytes in [512, 4096] {
        let (mut guest, mut bench) = with_slow(block_bytes);
        let shown = watch(&mut bench, Box::leak(Box::default()));
        let sent = guest.send(IN, 16, Some(Err(8192)));
        bench.turn();
        let [Seen { slot: 3, queue: 0, number, step }] = shown.take()[..] else { panic!("one request") };
        assert_eq!(step, Step::Submitted { kind: IN as u8, sector: 16 });
        end(&mut bench, Status::Ok);
        assert_eq!(bench.ask(&mut guest, &sent), (OK, 8193));
        let step = Step::Completed { status: OK, bytes: 8192 };
        assert_eq!(shown.take(), [Seen { slot: 3, queue: 0, number, step }]);
    }
}

#[test]
fn failures_of_the_disk_and_ranges_are_shown() {
    let (mut guest, mut bench) = with_slow(512);
    let shown = watch(&mut bench, Box::leak(Box::default()));
    let zeroes = range(8, 24, 0);
    for (kind, sector, data, status, (shown_sector, answer, bytes)) in [
        (OUT, 3, Some(Ok(&[7; 512][..])), Status::Failed, (3, IOERR, 512)),
        (FLUSH, 0, None, Status::Ok, (0, OK, 0)),
        (WRITE_ZEROES, 0, Some(Ok(&zeroes[..])), Status::Unsupported, (8, UNSUPP, 24 * 512)),
    ] {
        let sent = guest.send(kind, sector, data);
        bench.turn();
        end(&mut bench, status);
        bench.ask(&mut guest, &sent);
        let steps: Vec<_> = shown.take().iter().map(|seen| seen.step).collect();
        let kind = kind as u8;
        assert_eq!(steps, [Step::Submitted { kind, sector: shown_sector }, Step::Completed { status: answer, bytes }]);
    }
}

#[test]
fn what_the_back_end_answers_itself_is_not_shown() {
    let (mut guest, mut bench) = with_slow(512);
    let shown = watch(&mut bench, Box::leak(Box::default()));
    for sent in [guest.send(GET_ID, 0, Some(Err(20))), guest.send(IN, 64, Some(Err(512))), guest.send(99, 0, None)] {
        bench.ask(&mut guest, &sent);
    }
    assert_eq!(shown.take(), []);
}

#[test]
fn nothing_is_shown_while_the_class_is_off() {
    for features in FORMS {
        let storage = Slow::new(512, 64);
        let mut guest = Guest::new(3, &storage.geometry, 1, features);
        let mut bench = Bench::new(storage);
        bench.attach(&guest, ());
        let on: &Switch = Box::leak(Box::default());
        let shown = watch(&mut bench, on);
        on.set(Classes::all() - Classes::DISKS);
        let sent = guest.send(IN, 0, Some(Err(512)));
        bench.turn();
        assert_eq!(bench.engine.backend().paths.fast, 1, "the fast path");
        // It ends while somebody watches: there is an end without a beginning.
        on.set(Classes::DISKS);
        end(&mut bench, Status::Ok);
        assert_eq!(bench.ask(&mut guest, &sent).0, OK);
        assert_eq!(shown.take().len(), 1);
    }
}

#[test]
fn a_request_that_a_reset_has_cancelled_has_no_end() {
    let (mut guest, mut bench) = with_slow(512);
    let shown = watch(&mut bench, Box::leak(Box::default()));
    guest.send(IN, 0, Some(Err(512)));
    bench.turn();
    guest.shared.request_reset();
    bench.turn();
    end(&mut bench, Status::Ok);
    bench.turn();
    assert!(matches!(shown.take()[..], [Seen { step: Step::Submitted { .. }, .. }]));
}
