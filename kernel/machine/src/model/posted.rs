//! The model of `posted`: senders, the vCPU's core and the CPU.
//!
//! - Sender: the real [`Mailbox::post_virtual`]. Then what `guests/signal.rs` does: the notification is an interrupt that
//!   stays pending in the core's local APIC until it is taken, and a kick is a flag and an NMI.
//! - The vCPU's core: the real drain, hand-over to the virtual-APIC page, and checks before an entry or a wait, in the
//!   order of the loop in `guests/vcpu.rs`. The host runs with interrupts off.
//! - CPU: cpu.rs, from the manual.
//!
//! It checks that the guest handles every vector, once for each post that was not merged with another, and after the
//! last post once more. Each fault in [`Fault`] is found.
//!
//! Not here: the last check of the kick flag against VM entry (`Kicked` in model.rs), and the end of a life, after which a
//! late notification must not reach the core's next guest (`engine/src/channel_model.rs`).

use loom::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
};

use super::{
    cpu::{Cpu, Does, Fault},
    mailbox::Mailbox,
};
use crate::{
    lapic::{Accepts as _, Clock, LocalApic, Settings, msr},
    posted::{ApicPage, Wake},
};

/// What the senders and the vCPU's core share.
struct Shared {
    mailbox: Mailbox,
    /// The notification vector is pending in the core's local APIC.
    notification: AtomicBool,
    /// An NMI is pending.
    nmi: AtomicBool,
    /// What a sender has to tell the guest. It is written before the post.
    work: AtomicU64,
    fault: Fault,
}

impl Shared {
    fn send(&self, vector: u8, work: u64) {
        self.work.store(work, SeqCst);
        match self.mailbox.post_virtual(vector) {
            Wake::Nobody => {}
            Wake::Notify if self.fault == Fault::NoNotification => {}
            Wake::Notify => self.notification.store(true, SeqCst),
            Wake::Kick if self.fault == Fault::NoKick => {}
            Wake::Kick => self.nmi.store(true, SeqCst),
        }
    }
}

/// The vCPU's core.
struct Owner {
    shared: Arc<Shared>,
    apic: LocalApic,
    page: &'static ApicPage,
    cpu: Cpu,
}

impl Owner {
    fn new(shared: Arc<Shared>, page: &'static ApicPage) -> Self {
        let settings = Settings { id: 0, bootstrap: true, timer_hz: 1, tsc_hz: 1, tsc_deadline: true };
        let mut apic = LocalApic::new(settings);
        apic.write(msr::SVR, 0x1ff, Clock::default()).unwrap();
        page.reset();
        let cpu = Cpu::new(shared.fault);
        Self { shared, apic, page, cpu }
    }

    /// `Machine::before_entry`.
    fn before_entry(&mut self) {
        if self.shared.fault == Fault::HostClearsOnLast {
            let (pir, on) = self.shared.mailbox.descriptor().words();
            let bits = pir[0].swap(0, SeqCst);
            on.fetch_and(!1, SeqCst);
            (0..64).filter(|bit| bits >> bit & 1 != 0).for_each(|bit| _ = self.apic.accept(bit, false));
        } else {
            let _ = self.shared.mailbox.drain(&mut self.apic);
        }
        if let Some(change) = self.apic.hand_over(self.page)
            && self.shared.fault != Fault::StaleRvi
        {
            self.cpu.rvi = change.rvi;
        }
    }

    /// Whether the core waits in the host now, instead of running the guest.
    fn waits(&self, does: Does) -> bool {
        does == Does::HaltsInHost && self.page.deliverable().is_none()
    }

    /// Drains, and enters or waits. Returns false if something was posted meanwhile.
    fn depart(&mut self, does: Does) -> bool {
        self.before_entry();
        if self.waits(does) {
            return self.shared.mailbox.halting();
        }
        let clear = self.shared.mailbox.entering_guest();
        if clear || self.shared.fault == Fault::NoSecondLook {
            self.cpu.enter(self.page, does);
            return true;
        }
        false
    }

    /// What happens in the guest or in the wait. Returns whether an NMI, or in the host also the notification, has
    /// ended it.
    fn stay(&mut self, does: Does) -> bool {
        let notified = self.shared.notification.swap(false, SeqCst);
        let waits = self.waits(does);
        if !waits {
            if notified {
                self.cpu.process_posted(self.page, self.shared.mailbox.descriptor());
            }
            self.cpu.deliver(self.page, &self.shared.work);
        }
        // In the host's wait the notification has a handler, which only ends it (`interrupts::acknowledged`).
        self.shared.nmi.swap(false, SeqCst) || waits && notified
    }

    /// Goes once through each of `before`, then stays in `last`. Returns what the guest has handled.
    fn run(mut self, before: &[Does], last: Does, senders: Vec<JoinHandle<()>>) -> (Vec<u8>, u64) {
        for &does in before {
            if self.depart(does) {
                self.stay(does);
                self.shared.mailbox.left_guest();
            }
        }
        while !self.depart(last) {}
        for sender in senders {
            sender.join().unwrap();
        }
        // From here the core goes on only by what the senders have sent.
        while self.stay(last) {
            self.shared.mailbox.left_guest();
            while !self.depart(last) {}
        }
        self.cpu.delivered.sort_unstable();
        (self.cpu.delivered, self.cpu.seen)
    }
}

/// Checks all interleavings of a core that goes through `before` and stays in `last`, and of senders that post their
/// vectors in order.
fn check(fault: Fault, before: &'static [Does], last: Does, posts: &'static [&'static [u8]], preemptions: usize) {
    // Not on the stack: loom's are small.
    let page: &ApicPage = Box::leak(Box::new(ApicPage::new()));
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let shared = Arc::new(Shared {
            mailbox: Mailbox::new(),
            notification: AtomicBool::new(false),
            nmi: AtomicBool::new(false),
            work: AtomicU64::new(0),
            fault,
        });
        let senders = posts.iter().map(|&vectors| {
            let shared = shared.clone();
            thread::spawn(move || {
                for (number, &vector) in vectors.iter().enumerate() {
                    shared.send(vector, number as u64 + 1);
                }
            })
        });
        let senders = senders.collect();
        let (mut delivered, seen) = Owner::new(shared, page).run(before, last, senders);
        let mut posted = posts.concat();
        posted.sort_unstable();
        assert!(delivered.len() <= posted.len(), "an interrupt came from nowhere: {delivered:x?}");
        delivered.dedup();
        posted.dedup();
        assert_eq!(delivered, posted, "a post was lost");
        if let [vectors] = posts {
            assert_eq!(seen, vectors.len() as u64, "the last post was not followed by an interrupt");
        }
    });
}

use Does::{Computes, Halts, HaltsInHost, KeepsInterruptsOff};
use Fault::Nothing;

const ONE: &[&[u8]] = &[&[0x31]];
const TWO: &[&[u8]] = &[&[0x31], &[0x32]];

#[test]
fn a_post_against_entries_exits_and_hlt_in_the_guest_is_never_lost() {
    for last in [Computes, Halts] {
        check(Nothing, &[Computes], last, ONE, 3);
        check(Nothing, &[KeepsInterruptsOff], last, ONE, 2);
    }
}

#[test]
fn a_post_while_the_guest_moves_between_guest_and_the_host_s_hlt_is_never_lost() {
    check(Nothing, &[HaltsInHost], Computes, ONE, 3);
    check(Nothing, &[Computes], HaltsInHost, ONE, 3);
    check(Nothing, &[HaltsInHost, Halts], HaltsInHost, ONE, 2);
}

#[test]
fn two_senders_lose_nothing() {
    for last in [Computes, Halts, HaltsInHost] {
        check(Nothing, &[], last, TWO, 2);
    }
    check(Nothing, &[Halts], Halts, TWO, 1);
}

#[test]
fn posts_of_one_vector_may_merge_but_an_interrupt_follows_the_last_one() {
    for last in [Computes, Halts, HaltsInHost] {
        check(Nothing, &[Computes], last, &[&[0x31, 0x31]], 3);
    }
}

#[test]
#[should_panic = "a post was lost"]
fn a_cpu_that_clears_on_after_it_has_taken_pir_is_found() {
    check(Fault::CpuClearsOnLast, &[Computes], Computes, &[&[0x31, 0x32]], 3);
}

#[test]
#[should_panic = "a post was lost"]
fn a_drain_that_clears_on_after_it_has_taken_pir_is_found() {
    check(Fault::HostClearsOnLast, &[], Computes, ONE, 3);
}

#[test]
#[should_panic = "a post was lost"]
fn a_notification_that_is_left_out_is_found() {
    check(Fault::NoNotification, &[], Halts, ONE, 3);
}

#[test]
#[should_panic = "a post was lost"]
fn a_kick_that_is_left_out_is_found() {
    check(Fault::NoKick, &[], HaltsInHost, ONE, 3);
}

#[test]
#[should_panic = "a post was lost"]
fn an_entry_without_the_second_look_at_on_is_found() {
    check(Fault::NoSecondLook, &[], Computes, ONE, 3);
}

#[test]
#[should_panic = "a post was lost"]
fn a_hand_over_that_leaves_rvi_alone_is_found() {
    check(Fault::StaleRvi, &[], Computes, ONE, 3);
}

#[test]
#[should_panic = "a post was lost"]
fn a_cpu_that_sleeps_through_a_virtual_interrupt_is_found() {
    check(Fault::AsleepInHlt, &[], Halts, ONE, 3);
}

#[test]
fn on_such_a_cpu_the_workaround_hlt_helps() {
    check(Fault::AsleepInHlt, &[Computes], HaltsInHost, ONE, 3);
}
