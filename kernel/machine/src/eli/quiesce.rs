//! Changes of nested tables that several vCPUs share: nobody runs in the guest meanwhile, and nobody runs afterwards
//! with a translation from before.
//!
//! A counter that is odd while a change is under way, and one flag a vCPU that says that it is in the guest.
//!
//! A vCPU enters in this order:       (E1) set its flag           (E2) load the counter; if it is not the even value for
//!                                    which it has flushed, clear the flag and go back to flush.
//! A change goes in this order:       (C1) make the counter odd   (C2) wait for each other flag to be clear, kicking its
//!                                    core once   (C3) change the tables   (C4) make the counter even.
//!
//! Between E1 and E2, and between C1 and C2, stands a fence: each side stores, then looks at what the other stores. If E1 precedes C2's last look at that flag, C2 waits for the vCPU to leave; if not,
//! C1 precedes E2, which sees that the counter has moved. So no vCPU is in the guest during C3, and one that enters after
//! it has flushed after C4: the value it flushed for is read before the flush ([`Quiesce::stable`]), and E2 finds it
//! unchanged.
//!
//! Changes exclude one another by a lock of the caller's. Who waits for that lock, or for the counter to become even, is
//! in the host with its flag clear, so that nobody waits for it.

extern crate alloc;

use alloc::boxed::Box;

use super::sync::{AtomicBool, AtomicU64, Ordering::SeqCst, fence, pause};

/// See the module's text.
#[derive(Debug)]
pub struct Quiesce {
    changes: AtomicU64,
    inside: Box<[AtomicBool]>,
}

impl Quiesce {
    /// For so many vCPUs, none of them in the guest.
    pub fn new(vcpus: usize) -> Self {
        Self { changes: AtomicU64::new(0), inside: (0..vcpus).map(|_| AtomicBool::new(false)).collect() }
    }

    /// The number of the present tables; waits for the end of a change that is under way. The caller is in the host. A
    /// flush after this is one for that number.
    pub fn stable(&self) -> u64 {
        loop {
            let n = self.changes.load(SeqCst);
            if n & 1 == 0 {
                return n;
            }
            pause();
        }
    }

    /// The vCPU is about to enter, having flushed for tables number `flushed`. False: they have changed since; it has not
    /// entered.
    #[must_use = "false means that the translations have to be flushed before entering"]
    pub fn enter(&self, vcpu: usize, flushed: u64) -> bool {
        let Some(inside) = self.inside.get(vcpu) else { return false };
        inside.store(true, SeqCst); // E1
        fence(SeqCst);
        if self.changes.load(SeqCst) == flushed {
            return true; // E2
        }
        inside.store(false, SeqCst);
        false
    }

    /// The vCPU is back in the host.
    pub fn left(&self, vcpu: usize) {
        if let Some(inside) = self.inside.get(vcpu) {
            inside.store(false, SeqCst);
        }
    }

    /// Makes a change on vCPU `me`'s core, which is in the host. `kick` makes another vCPU leave the guest. One change at
    /// a time.
    pub fn change<R>(&self, me: usize, mut kick: impl FnMut(usize), act: impl FnOnce() -> R) -> R {
        self.changes.fetch_add(1, SeqCst); // C1
        fence(SeqCst);
        for (vcpu, inside) in self.inside.iter().enumerate().filter(|&(vcpu, _)| vcpu != me) {
            let mut kicked = false;
            while inside.load(SeqCst) {
                // C2. It may be on its way in and about to turn back; the kick is then one too many.
                if !kicked {
                    kick(vcpu);
                    kicked = true;
                }
                pause();
            }
        }
        let result = act(); // C3
        self.changes.fetch_add(1, SeqCst); // C4
        result
    }
}
