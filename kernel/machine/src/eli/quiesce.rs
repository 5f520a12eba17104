//! Changes nested page tables that several vCPUs share. During a change no vCPU is in the guest. After a change no vCPU
//! uses an older translation.
//!
//! The state is a counter and one flag for each vCPU. The counter is odd while a change is under way. A flag says that
//! its vCPU is in the guest.
//!
//! A vCPU enters in this order:
//! - E1: set its flag.
//! - E2: load the counter. If it is not the even value for which the vCPU has flushed, clear the flag and flush again.
//!
//! A change goes in this order:
//! - C1: make the counter odd.
//! - C2: wait for each other flag to be clear. Kick that vCPU's core once.
//! - C3: change the tables.
//! - C4: make the counter even.
//!
//! # Why it works
//!
//! There is a fence between E1 and E2, and another between C1 and C2. Each side first stores, and then loads what the
//! other side stores. There are two cases.
//!
//! 1. E1 precedes C2's last load of that flag. Then C2 waits until the vCPU has left.
//! 2. E1 follows it. Then C1 precedes E2, and E2 sees that the counter has changed.
//!
//! So no vCPU is in the guest during C3. A vCPU that enters later has flushed after C4: it reads the counter before it
//! flushes ([`Quiesce::stable`]), and E2 finds the same value.
//!
//! # Who waits for whom
//!
//! The caller's lock allows one change at a time. A core that waits for that lock, or for an even counter, is in the
//! host and its flag is clear. So nobody waits for that core.

extern crate alloc;

use alloc::boxed::Box;

use super::sync::{AtomicBool, AtomicU64, Ordering::SeqCst, fence, pause};

/// The counter of changes, and a flag for each vCPU.
#[derive(Debug)]
pub struct Quiesce {
    changes: AtomicU64,
    inside: Box<[AtomicBool]>,
}

impl Quiesce {
    /// Makes the state for `vcpus` vCPUs, none of them in the guest.
    pub fn new(vcpus: usize) -> Self {
        Self { changes: AtomicU64::new(0), inside: (0..vcpus).map(|_| AtomicBool::new(false)).collect() }
    }

    /// Returns the number of the present tables: an even value of the counter. If a change is under way, waits for its
    /// end. The caller is in the host. A flush after this call is a flush for that number.
    pub fn stable(&self) -> u64 {
        loop {
            let n = self.changes.load(SeqCst);
            if n & 1 == 0 {
                return n;
            }
            pause();
        }
    }

    /// Notes that the vCPU is about to enter. It has flushed for the tables of number `flushed`. Returns false if the
    /// tables have changed since then. Then the vCPU must not enter.
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

    /// Notes that the vCPU is back in the host.
    pub fn left(&self, vcpu: usize) {
        if let Some(inside) = self.inside.get(vcpu) {
            inside.store(false, SeqCst);
        }
    }

    /// Calls `act` while no vCPU is in the guest. Runs on the core of vCPU `me`, which is in the host. `kick` makes
    /// another vCPU leave the guest. The caller allows one change at a time.
    pub fn change<R>(&self, me: usize, mut kick: impl FnMut(usize), act: impl FnOnce() -> R) -> R {
        self.changes.fetch_add(1, SeqCst); // C1
        fence(SeqCst);
        for (vcpu, inside) in self.inside.iter().enumerate().filter(|&(vcpu, _)| vcpu != me) {
            let mut kicked = false;
            while inside.load(SeqCst) {
                // C2. The vCPU may be about to return to the host at E2. Then the kick is needless but harmless.
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
