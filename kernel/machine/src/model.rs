//! The loom models of posts against entries and halts. loom tries all interleavings with up to three preemptions. The
//! models compile alarm.rs, descriptor.rs and mailbox.rs a second time, on loom's atomics. Here are kicks, requests and
//! alarms. posted.rs has posted interrupts, and cpu.rs the CPU's part of them.
//!
//! loom treats a sequentially consistent access as an acquire or release one. That is weaker than what the code asks
//! for and the CPU gives: x86 has locked instructions, and XCHG for a store. The atomics here restore it by a
//! sequentially consistent fence on either side of each access.

#![allow(dead_code, reason = "the model uses a part of what the files define")]

#[allow(clippy::duplicate_mod, reason = "on other atomics, which is the point")]
#[path = "alarm.rs"]
mod alarm;
mod atomics;
mod cpu;
#[allow(clippy::duplicate_mod, reason = "on other atomics, which is the point")]
#[path = "descriptor.rs"]
mod descriptor;
#[allow(clippy::duplicate_mod, reason = "on other atomics, which is the point")]
#[path = "mailbox.rs"]
mod mailbox;
mod posted;

use loom::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};
use mailbox::{Mailbox, Requests, StopReason};

use crate::lapic::Accepts;

/// The vectors that reached the guest, and the other requests of each drain.
#[derive(Default)]
struct Guest(Vec<u8>, Vec<Requests>);

impl Accepts for Guest {
    fn accept(&mut self, vector: u8, _: bool) -> bool {
        self.0.push(vector);
        true
    }
}

/// One vCPU's core, as the senders see it: a kick.
struct Core {
    mailbox: Mailbox,
    kick: AtomicBool,
}

impl Core {
    fn new() -> Arc<Self> {
        Arc::new(Self { mailbox: Mailbox::new(), kick: AtomicBool::new(false) })
    }

    fn post(&self, vector: u8) {
        if self.mailbox.post(vector) {
            self.kick.store(true, SeqCst);
        }
    }

    fn drain(&self, guest: &mut Guest) {
        let requests = self.mailbox.drain(guest);
        guest.1.push(requests);
    }

    /// Does what the core does before each entry or wait. Returns false if something was posted meanwhile.
    fn leave_host(&self, halts: bool, guest: &mut Guest) -> bool {
        self.kick.store(false, SeqCst);
        self.drain(guest);
        if halts { self.mailbox.halting() } else { self.mailbox.entering_guest() }
    }

    /// Does `turns` entries and exits (or waits and wakes) while the senders work, then a last one that stays. Returns
    /// what the guest got.
    fn own(&self, turns: usize, halts: bool, senders: Vec<thread::JoinHandle<()>>) -> Guest {
        let mut guest = Guest::default();
        for _ in 0..turns {
            if self.leave_host(halts, &mut guest) {
                self.mailbox.left_guest();
            }
        }
        // The last entry: from here it returns only if a sender makes it.
        while !self.leave_host(halts, &mut guest) {}
        for sender in senders {
            sender.join().unwrap();
        }
        // All senders are done. What they sent must have arrived by now.
        if self.kick.load(SeqCst) {
            self.mailbox.left_guest();
            self.drain(&mut guest);
        }
        guest.0.sort_unstable();
        guest
    }
}

fn check(halts: bool, vectors: &'static [u8]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let core = Core::new();
        let senders = vectors.iter().map(|&vector| {
            let core = core.clone();
            thread::spawn(move || core.post(vector))
        });
        let senders = senders.collect();
        assert_eq!(core.own(1, halts, senders).0, vectors, "a post was lost, or came twice");
    });
}

#[test]
fn a_kick_against_vm_entry_is_never_lost() {
    check(false, &[0x31, 0x32]);
}

#[test]
fn a_kick_against_halt_is_never_lost() {
    check(true, &[0x31, 0x32]);
}

/// Checks what the owner of a mailbox finds at each drain, while two senders make one request each.
fn requests(ask: [fn(&Mailbox) -> bool; 2], check: fn(&[Requests])) {
    for halts in [false, true] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let core = Core::new();
            let senders = ask.map(|ask| {
                let core = core.clone();
                thread::spawn(move || {
                    if ask(&core.mailbox) {
                        core.kick.store(true, SeqCst);
                    }
                })
            });
            check(&core.own(1, halts, senders.into()).1);
        });
    }
}

#[test]
fn of_two_that_ask_a_vcpu_to_stop_one_is_heard_and_their_reasons_do_not_mix() {
    let ask: [fn(&Mailbox) -> bool; 2] =
        [|mailbox| mailbox.request_stop(StopReason::Reset), |mailbox| mailbox.request_stop(StopReason::PowerOff)];
    requests(ask, |found| {
        let reasons: Vec<_> = found.iter().filter_map(|requests| requests.stop).collect();
        assert!(!reasons.is_empty(), "a stop was lost");
        assert!(reasons.iter().all(|reason| matches!(reason, StopReason::Reset | StopReason::PowerOff)), "{reasons:?}");
    });
}

#[test]
fn an_nmi_and_a_start_up_that_come_at_once_are_both_found() {
    let ask: [fn(&Mailbox) -> bool; 2] = [Mailbox::request_nmi, |mailbox| mailbox.request_startup(0x9a)];
    requests(ask, |found| {
        assert_eq!(found.iter().filter(|requests| requests.nmi).count(), 1);
        assert_eq!(found.iter().filter_map(|requests| requests.startup).collect::<Vec<_>>(), [0x9a]);
    });
}

/// How a back-end handles an NMI that arrives in the host between the mailbox's last check and the guest's run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BackEnd {
    /// The NMI stays pending from CLGI until the guest runs. Then the guest exits by it (svm/src/world.rs).
    Svm,
    /// The handler takes the NMI. It gives the entry up if the NMI came after the last check of the flag
    /// (vmx/src/entry.s).
    Vmx,
    /// The handler takes the NMI and does nothing else. This is wrong, and the model must find it.
    Careless,
}

/// A core's kick state: a flag, and an NMI that is pending or not.
struct Kicked {
    mailbox: Mailbox,
    flag: AtomicBool,
    nmi: AtomicBool,
}

impl Kicked {
    fn post(&self, vector: u8) {
        if self.mailbox.post(vector) {
            self.flag.store(true, SeqCst);
            self.nmi.swap(true, SeqCst);
        }
    }

    /// Tries to enter. Returns true if the guest runs.
    fn enter(&self, back_end: BackEnd) -> bool {
        let handler = || back_end != BackEnd::Svm && self.nmi.swap(false, SeqCst);
        handler();
        if self.flag.load(SeqCst) {
            self.nmi.swap(false, SeqCst);
            return false;
        }
        let in_window = handler();
        !(in_window && back_end == BackEnd::Vmx)
    }

    /// Enters until the guest runs. When the sender is done, exits if an NMI is pending. Returns what the guest got.
    fn own(&self, back_end: BackEnd, sender: thread::JoinHandle<()>) -> Vec<u8> {
        let mut guest = Guest::default();
        loop {
            self.flag.store(false, SeqCst);
            let _ = self.mailbox.drain(&mut guest);
            if !self.mailbox.entering_guest() {
                continue;
            }
            if self.enter(back_end) && !self.nmi.swap(false, SeqCst) {
                break;
            }
            self.mailbox.left_guest();
        }
        sender.join().unwrap();
        if self.nmi.swap(false, SeqCst) {
            self.mailbox.left_guest();
            let _ = self.mailbox.drain(&mut guest);
        }
        guest.0
    }
}

fn kick_against_entry(back_end: BackEnd) {
    loom::model(move || {
        let core = Kicked { mailbox: Mailbox::new(), flag: AtomicBool::new(false), nmi: AtomicBool::new(false) };
        let core = Arc::new(core);
        let sender = {
            let core = core.clone();
            thread::spawn(move || core.post(0x31))
        };
        assert_eq!(core.own(back_end, sender), [0x31], "a kick was lost");
    });
}

#[test]
fn a_kick_against_the_entry_of_either_back_end_is_never_lost() {
    kick_against_entry(BackEnd::Svm);
    kick_against_entry(BackEnd::Vmx);
}

#[test]
#[should_panic = "a kick was lost"]
fn without_the_window_the_model_finds_the_lost_kick() {
    kick_against_entry(BackEnd::Careless);
}

#[test]
fn an_alarm_is_taken_back_or_rings_but_never_both_and_never_neither() {
    loom::model(|| {
        let alarm = Arc::new(alarm::Alarm::new());
        alarm.set(1000, 0xec);
        let watcher = {
            let alarm = alarm.clone();
            thread::spawn(move || [alarm.ring(1024), alarm.ring(1024)].into_iter().flatten().count())
        };
        let mut rung = usize::from(!alarm.take_back());
        alarm.set(1000, 0xec);
        rung += usize::from(!alarm.take_back());
        assert_eq!(watcher.join().unwrap(), rung);
    });
}
