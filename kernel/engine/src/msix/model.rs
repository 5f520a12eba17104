//! Every order in which an interrupt that is raised can meet its masking and unmasking, tried by loom on `pending.rs` itself.
//!
//! loom takes a sequentially consistent access for an acquire or release one, which is weaker than what the code asks for. The
//! atomics here put a sequentially consistent fence on either side of each access, which gives back just that.

mod atomics {
    pub use loom::sync::atomic::Ordering;
    use loom::sync::atomic::fence;

    #[derive(Debug)]
    pub struct AtomicBool(loom::sync::atomic::AtomicBool);

    fn ordered<T>(access: impl FnOnce() -> T) -> T {
        fence(Ordering::SeqCst);
        let value = access();
        fence(Ordering::SeqCst);
        value
    }

    impl AtomicBool {
        pub fn new(value: bool) -> Self {
            Self(loom::sync::atomic::AtomicBool::new(value))
        }
        pub fn load(&self, order: Ordering) -> bool {
            ordered(|| self.0.load(order))
        }
        pub fn store(&self, value: bool, order: Ordering) {
            ordered(|| self.0.store(value, order))
        }
        pub fn swap(&self, value: bool, order: Ordering) -> bool {
            ordered(|| self.0.swap(value, order))
        }
    }
}
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

    /// What the guest does to a mask, and whether it sends what was pending.
    fn write(&self, mask: &AtomicBool, masked: bool) -> usize {
        mask.store(masked, SeqCst);
        pending::take(&self.pending, || self.masked()).into()
    }
}

/// The engine raises with `raise` while the guest does that to the masks and leaves both off.
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
