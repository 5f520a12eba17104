//! The lock of what a guest's cores share with the control core.
//!
//! It is fair: who asks first gets it first. A guest can have its cores take it again and again, by accesses to its devices. Still
//! the control core waits for one critical section of each of them at most.

use spin::{mutex::TicketMutex, relax::Spin};

/// The lock. `R`: what a core does while it waits.
pub(super) type Fair<T, R = Spin> = TicketMutex<T, R>;

#[cfg(test)]
mod tests {
    use super::Fair;
    use spin::{mutex::SpinMutex, relax::RelaxStrategy};
    use std::{
        cell::RefCell,
        sync::{
            Arc, Condvar, Mutex,
            atomic::{AtomicBool, AtomicU64, Ordering},
        },
        thread,
    };

    /// Lets one thread run at a time, in turn. A thread goes on until it calls [`Turns::pass`]. So what happens does not depend on
    /// the host's scheduler.
    struct Turns {
        /// Whose turn it is, and who has not ended.
        state: Mutex<(usize, Vec<bool>)>,
        changed: Condvar,
    }

    impl Turns {
        fn new(threads: usize) -> Self {
            Self { state: Mutex::new((0, vec![true; threads])), changed: Condvar::new() }
        }

        fn wait(&self, me: usize) {
            let state = self.state.lock().unwrap();
            drop(self.changed.wait_while(state, |(turn, _)| *turn != me).unwrap());
        }

        /// Gives the turn to the next one that has not ended. `ends`: this one has.
        fn give(&self, me: usize, ends: bool) {
            let mut state = self.state.lock().unwrap();
            state.1[me] = !ends;
            let count = state.1.len();
            if let Some(next) = (1..=count).map(|step| (me + step) % count).find(|&next| state.1[next]) {
                state.0 = next;
            }
            drop(state);
            self.changed.notify_all();
        }

        fn pass(&self, me: usize) {
            self.give(me, false);
            self.wait(me);
        }
    }

    thread_local! {
        static ME: RefCell<Option<(usize, Arc<Turns>)>> = const { RefCell::new(None) };
    }

    fn pass() {
        ME.with_borrow(|me| me.as_ref().map(|(me, turns)| turns.pass(*me)));
    }

    /// Lets the others run while a thread waits for the lock.
    struct Pass;

    impl RelaxStrategy for Pass {
        fn relax() {
            pass();
        }
    }

    /// Sections that the guest's cores get at most before the test gives up.
    const MANY: u64 = 1_000;
    /// Requests of the control core.
    const REQUESTS: usize = 20;

    /// Has `cores` of a guest take a lock without a pause, and a control core now and then. A section, and the wait for one, are where
    /// the others run: the worst that can happen. `locked` takes the lock and calls what it gets. Returns how many sections of
    /// others began between each request of the control core and its own section.
    fn waits(cores: usize, locked: impl Fn(&mut dyn FnMut()) + Sync) -> Vec<u64> {
        let turns = Arc::new(Turns::new(cores + 1));
        let (sections, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let as_thread = |me: usize, act: &dyn Fn()| {
            ME.set(Some((me, turns.clone())));
            turns.wait(me);
            act();
            turns.give(me, true);
        };
        thread::scope(|scope| {
            for core in 1..=cores {
                let (as_thread, sections, over, locked) = (&as_thread, &sections, &over, &locked);
                scope.spawn(move || {
                    as_thread(core, &|| {
                        while !over.load(Ordering::Relaxed) && sections.load(Ordering::Relaxed) < MANY {
                            locked(&mut || {
                                sections.fetch_add(1, Ordering::Relaxed);
                                pass();
                            });
                        }
                    });
                });
            }
            let control = scope.spawn(|| {
                let mut waits = Vec::new();
                ME.set(Some((0, turns.clone())));
                turns.wait(0);
                for request in 0..REQUESTS {
                    // Each time the others stand elsewhere.
                    (0..=request).for_each(|_| pass());
                    let before = sections.load(Ordering::Relaxed);
                    let mut between = 0;
                    locked(&mut || between = sections.load(Ordering::Relaxed) - before);
                    waits.push(between);
                }
                over.store(true, Ordering::Relaxed);
                turns.give(0, true);
                waits
            });
            control.join().unwrap()
        })
    }

    #[test]
    fn the_control_core_waits_for_one_section_of_each_of_a_guest_s_cores_at_most() {
        for cores in 1..=8 {
            let lock = Fair::<(), Pass>::new(());
            let waits = waits(cores, |section| {
                let _guard = lock.lock();
                section();
            });
            assert_eq!(waits.len(), REQUESTS);
            assert!(waits.iter().all(|&sections| sections <= cores as u64), "{cores} cores: {waits:?}");
            // A single core is in its section already when the control core asks.
            assert_eq!(waits.iter().any(|&sections| sections > 0), cores > 1, "{cores} cores: {waits:?}");
        }
    }

    /// Without this the test above would prove nothing.
    #[test]
    fn a_lock_that_is_not_fair_starves_it() {
        let lock = SpinMutex::<(), Pass>::new(());
        let waits = waits(2, |section| {
            let _guard = lock.lock();
            section();
        });
        assert!(waits.iter().any(|&sections| sections > 100), "{waits:?}");
    }
}
