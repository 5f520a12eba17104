//! The code of `quiesce.rs` and `vectors.rs` under loom's model checker, which tries every interleaving of:
//!
//! - a change of the shadow, with entries, exits and an interrupt that is on its way;
//! - a choice of the host's vectors, with a guest that begins to use them.

use loom::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

mod sync;

use super::{host_vectors, idt};

#[allow(clippy::duplicate_mod, reason = "the same code on other atomics")]
#[path = "quiesce.rs"]
mod quiesce;
#[allow(clippy::duplicate_mod, reason = "the same code on other atomics")]
#[allow(dead_code, reason = "the model uses a part of it")]
#[path = "vectors.rs"]
mod vectors;

use quiesce::Quiesce;
use vectors::Vectors;

/// A guest of two vCPUs. `tables` stands for the nested tables: 0 leads to the real page, 1 to the shadow.
struct World {
    quiesce: Quiesce,
    tables: AtomicUsize,
    /// For each vCPU: an NMI is pending.
    kick: [AtomicBool; 2],
    /// For each vCPU: an interrupt with a vector of the host's is in its APIC's IRR. An APIC is not memory: each access
    /// sees the one before it. So the accesses are swaps.
    irr: [AtomicBool; 2],
    /// How many such interrupts reached the host, and how many reached the guest.
    host: AtomicUsize,
    guest: AtomicUsize,
}

impl World {
    fn new(tables: usize) -> Self {
        Self {
            quiesce: Quiesce::new(2),
            tables: AtomicUsize::new(tables),
            kick: [AtomicBool::new(false), AtomicBool::new(false)],
            irr: [AtomicBool::new(false), AtomicBool::new(false)],
            host: AtomicUsize::new(0),
            guest: AtomicUsize::new(0),
        }
    }

    /// Runs a vCPU's core: enters, is in the guest for an instruction or two, and leaves. Does that `times` times.
    fn vcpu(&self, me: usize, times: usize) {
        let mut flushed = u64::MAX;
        let mut tlb = 0;
        for _ in 0..times {
            loop {
                let tables = self.quiesce.stable();
                if tables != flushed {
                    // The flush, and the core's next read of the tables. It comes before the entry, as a CPU may do it.
                    tlb = self.tables.load(SeqCst);
                    flushed = tables;
                }
                if self.quiesce.enter(me, flushed) {
                    break;
                }
            }
            // The mode (interrupts exit, or shadowed) is chosen at the flush, to fit the translations.
            let exiting = tlb == 0;
            for _ in 0..2 {
                assert_eq!(tlb, self.tables.load(SeqCst), "in the guest with a translation from before");
                if self.irr[me].swap(false, SeqCst) {
                    let absent = self.tables.load(SeqCst) == 1;
                    let reached = if exiting || absent { &self.host } else { &self.guest };
                    reached.fetch_add(1, SeqCst);
                    break;
                }
                if self.kick[me].swap(false, SeqCst) {
                    break;
                }
            }
            self.quiesce.left(me);
        }
    }

    fn change(&self, me: usize, to: usize) {
        self.quiesce.change(me, |vcpu| self.kick[vcpu].store(true, SeqCst), || self.tables.store(to, SeqCst));
    }
}

#[test]
fn no_vcpu_is_in_the_guest_with_a_translation_from_before_a_change() {
    for from in [0, 1] {
        loom::model(move || {
            let world = Arc::new(World::new(from));
            let w = world.clone();
            let other = thread::spawn(move || w.vcpu(1, 2));
            world.change(0, 1 - from);
            world.vcpu(0, 1);
            other.join().unwrap();
            assert_eq!(world.tables.load(SeqCst), 1 - from);
        });
    }
}

#[test]
fn an_interrupt_of_the_host_s_that_is_on_its_way_during_a_change_reaches_the_host() {
    for from in [0, 1] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let world = Arc::new(World::new(from));
            let (target, sender) = (world.clone(), world.clone());
            let target = thread::spawn(move || target.vcpu(1, 2));
            let sender = thread::spawn(move || assert!(!sender.irr[1].swap(true, SeqCst)));
            world.change(0, 1 - from);
            target.join().unwrap();
            sender.join().unwrap();
            // The interrupt reaches the host, or it is still in the APIC for the next entry or for the host.
            let pending = usize::from(world.irr[1].swap(false, SeqCst));
            assert_eq!(world.host.load(SeqCst) + pending, 1);
            assert_eq!(world.guest.load(SeqCst), 0);
        });
    }
}

#[test]
fn two_that_want_to_change_it_at_once_do_so_one_after_the_other_and_neither_waits_for_ever() {
    loom::model(|| {
        let world = Arc::new(World::new(0));
        let lock = Arc::new(loom::sync::Mutex::new(()));
        let (w, l) = (world.clone(), lock.clone());
        let other = thread::spawn(move || {
            {
                let _changing = l.lock().unwrap();
                w.change(1, 1);
            }
            w.vcpu(1, 1);
        });
        {
            let _changing = lock.lock().unwrap();
            world.change(0, 1);
        }
        world.vcpu(0, 1);
        other.join().unwrap();
    });
}

#[test]
fn a_vector_that_a_guest_begins_to_use_is_not_the_host_s_or_the_guest_is_told() {
    // Two vCPUs begin to use vectors while the host chooses: the host's first choice, and its next one.
    for used in [[0xf5, 0xf0], [0xf0, 0xf1]] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let vectors = Arc::new(Vectors::default());
            let vcpus = used.map(|vector| {
                let vectors = vectors.clone();
                thread::spawn(move || vectors.uses(vector))
            });
            let chosen = vectors.choose(None).unwrap();
            let told = vcpus.map(|vcpu| vcpu.join().unwrap());
            for (vector, told) in used.into_iter().zip(told) {
                assert!(
                    told || !chosen.contains(vector),
                    "{vector:#x} is the host's and the guest's, and nobody knows"
                );
            }
            assert_eq!(vectors.host(), Some(chosen));
        });
    }
}
