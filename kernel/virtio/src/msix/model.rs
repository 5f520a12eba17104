//! A loom model of `pending.rs` itself: every interleaving of raising an interrupt with masking and unmasking it.

mod atomics;
#[allow(clippy::duplicate_mod, reason = "on other atomics, which is the point")]
#[path = "pending.rs"]
mod pending;

use atomics::{AtomicBool, Ordering::SeqCst};
use loom::{sync::Arc, thread};

/// An entry, and whether its function is masked.
struct Entry {
    function: AtomicBool,
    entry: AtomicBool,
    pending: AtomicBool,
}

impl Entry {
    fn masked(&self) -> bool {
        self.function.load(SeqCst) || self.entry.load(SeqCst)
    }

    /// The guest changes a mask. Returns whether it sends the pending interrupt.
    fn write(&self, mask: &AtomicBool, masked: bool) -> usize {
        mask.store(masked, SeqCst);
        pending::take(&self.pending, || self.masked()).into()
    }
}

/// The engine raises the interrupt while the guest changes the masks. At the end both masks are off. Checks that
/// exactly one interrupt is sent.
fn check(masked: bool, guest: fn(&Entry) -> usize, raise: fn(&Entry) -> bool) {
    loom::model(move || {
        let entry = Entry {
            function: AtomicBool::new(masked),
            entry: AtomicBool::new(masked),
            pending: AtomicBool::new(false),
        };
        let entry = Arc::new(entry);
        let engine = {
            let entry = entry.clone();
            thread::spawn(move || usize::from(raise(&entry)))
        };
        let taken = guest(&entry);
        let sent = engine.join().unwrap();
        assert!(!entry.pending.load(SeqCst), "an interrupt stays pending behind an open mask");
        assert_eq!(taken + sent, 1, "sent another number of times than once");
    });
}

fn unmask_both(e: &Entry) -> usize {
    e.write(&e.entry, false) + e.write(&e.function, false)
}

fn mask_and_unmask(e: &Entry) -> usize {
    e.write(&e.entry, true) + e.write(&e.entry, false)
}

fn raise(e: &Entry) -> bool {
    pending::raise(&e.pending, || e.masked())
}

#[test]
fn an_interrupt_raised_against_its_unmasking_is_sent_once() {
    check(true, unmask_both, raise);
    check(false, mask_and_unmask, raise);
}

#[test]
#[should_panic = "stays pending"]
fn without_the_second_look_the_model_finds_the_interrupt_that_stays() {
    let careless = |e: &Entry| {
        let sent = !e.masked();
        if !sent {
            e.pending.store(true, SeqCst);
        }
        sent
    };
    check(true, unmask_both, careless);
}

#[test]
#[should_panic = "than once"]
fn without_the_swap_the_model_finds_the_interrupt_that_is_sent_twice() {
    let careless = |e: &Entry| {
        if !e.masked() {
            return true;
        }
        e.pending.store(true, SeqCst);
        let sent = !e.masked();
        if sent {
            e.pending.store(false, SeqCst);
        }
        sent
    };
    check(true, unmask_both, careless);
}
