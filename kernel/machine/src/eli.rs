//! The shadow IDT of a guest that owns its cores' local APICs. By it, interrupts with a vector of the host's reach the
//! host without help from the guest.
//!
//! Follows ELVIS 2.4; SDM vol. 3A 6.10 to 6.15, vol. 3C 26.2, 28.2; APM vol. 2 15.12, 15.13, 15.15.
//!
//! ```text
//!             an IDT of one page, nobody has written to it for a while
//!         ┌───────────────────────────────────────────────────────────▶ the page is replaced in the nested tables
//!   interrupts exit                                                     by a copy that cannot be written to, with P
//!   (`Mode::Exiting`)                                                   clear in the host's gates: `Mode::Shadowed`
//!         ▲                                                                                  │
//!         └── a vCPU writes to the page: the page is handed back, for all vCPUs ◀────────────┤
//!         └── LIDT, an exit while shadowed: this vCPU alone                     ◀────────────┘
//! ```
//!
//! - *Exiting*: a physical interrupt makes the guest exit when the guest can take one. The host takes the interrupt
//!   from the APIC. If it has a vector of the host's, the host keeps and ends it. Any other interrupt the host injects.
//!   It is in service in the APIC, as if the guest had taken it directly, and the guest ends it. The guest's IDT may be
//!   anything.
//! - *Shadowed*: interrupts go through the guest's IDT. At a gate of the host's, an interrupt becomes #NP. The #NP
//!   exits with the vector in the IDT-vectoring information. The host ends the interrupt in the APIC: it is the most
//!   urgent one in service, because the CPU has just taken it. The guest never sees it. Only LIDT and writes to the
//!   page exit too.
//!
//! The host emulates none of the guest's instructions for this. After the exit of a write, the real page is mapped
//! again and the guest runs the write again. After the exit of LIDT, LIDT no longer exits and the guest runs it again.
//! Later the vCPU's core reads IDTR and shadows the IDT again.
//!
//! While a vCPU is in the guest, it is always in one of the two modes. So the host gets an interrupt even if it arrives
//! during a change.
//!
//! A guest can defeat this in two ways. It can map another page at its IDT's linear address while shadowed; no exit
//! reports that. Or it can leave interrupts off. So the control core repeats a kick by NMI if the vCPU has not answered
//! it by the next tick.

extern crate alloc;

use alloc::{boxed::Box, vec::Vec};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use memory::swap::Shadow;
use spin::{Mutex, MutexGuard};

mod backoff;
mod fault;
mod host_vectors;
pub mod idt;
mod quiesce;
mod vectors;

/// The atomics of `quiesce.rs` and `vectors.rs`. Their model test has loom's instead.
mod sync {
    pub use core::hint::spin_loop as pause;
    pub use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}

pub use crate::vcpu::Interrupted;
pub use backoff::Backoff;
pub use fault::{Verdict, judge};
pub use host_vectors::HostVectors;
pub use idt::Unfit;
pub use quiesce::Quiesce;
pub use vectors::Used;
use vectors::Vectors;

/// How a vCPU's physical interrupts reach it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Each makes the guest exit.
    #[default]
    Exiting,
    /// They go through the guest's IDT, whose page is shadowed.
    Shadowed,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// A vCPU began to rely on the shadow.
    Shadowed,
    /// The page was handed back because the guest wrote to it.
    Written,
    /// A vCPU stopped relying on it because of LIDT or another instruction that exits with it.
    Moved,
    /// The host moved to other vectors, because the guest began to use one of the host's.
    Vectors,
    /// Interrupts with a vector of the host's, taken through the shadow.
    HostInterrupts,
    /// Interrupts with a vector of the host's, taken by an exit while there was no shadow.
    HostInterruptsByExit,
    /// The guest's own interrupts taken by an exit and injected, while there was no shadow.
    Injected,
    /// Kicks that were not answered in time and repeated by NMI.
    LateKicks,
}

const NAMES: [&str; 8] = [
    "shadowed",
    "idt-written",
    "idt-moved",
    "vectors-moved",
    "host-interrupts",
    "host-interrupts-by-exit",
    "injected",
    "late-kicks",
];

/// What the vCPUs of a guest share, for one life.
pub struct Eli {
    shadow: &'static Mutex<Shadow>,
    state: Mutex<State>,
    /// Guards the nested tables.
    pub quiesce: Quiesce,
    vectors: Vectors,
    /// The TSC at which each vCPU next tries to shadow its IDT. `u64::MAX` if no try is planned.
    next_tries: Box<[AtomicU64]>,
    counts: [AtomicU64; NAMES.len()],
    /// Kinds of [`Unfit`] that the log has named, one bit each.
    told: AtomicU32,
}

/// The state that the vCPUs change under a lock. Only the vCPUs' cores take the lock.
pub struct State {
    /// Guest-physical address of the page that is shadowed.
    page: Option<u64>,
    /// Which vCPUs rely on the shadow.
    joined: Vec<bool>,
    /// No page may be shadowed before this TSC.
    due: u64,
    backoff: Backoff,
}

impl Eli {
    /// Makes the state for a guest's life. Removes a former life's page from `shadow`. No vCPU may run.
    #[must_use]
    pub fn new(shadow: &'static Mutex<Shadow>, vcpus: usize, tsc_khz: u64) -> Self {
        shadow.lock().remove();
        let this = Self {
            shadow,
            state: Mutex::new(State {
                page: None,
                joined: alloc::vec![false; vcpus],
                due: 0,
                backoff: Backoff::new(tsc_khz),
            }),
            quiesce: Quiesce::new(vcpus),
            vectors: Vectors::default(),
            next_tries: (0..vcpus).map(|_| AtomicU64::new(u64::MAX)).collect(),
            counts: [const { AtomicU64::new(0) }; NAMES.len()],
            told: AtomicU32::new(0),
        };
        this.vectors.choose(None);
        this
    }

    /// Locks the state. Only a vCPU's core in the host may call it.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the host's vectors. Returns `None` if the guest uses all vectors. Then the host reaches its cores by
    /// NMI.
    #[must_use]
    pub fn vectors(&self) -> Option<HostVectors> {
        self.vectors.host()
    }

    /// Notes that the guest uses a vector. Returns true if it is one of the host's. Then the host must move
    /// ([`Eli::move_vectors`]) before the guest gets an interrupt with this vector. Any core may call it.
    pub fn uses(&self, vector: u8) -> bool {
        self.vectors.uses(vector)
    }

    /// Chooses other vectors for the host, because the guest uses one of them, and removes the shadow. Each vCPU that
    /// relied on the shadow tries again.
    pub fn move_vectors(&self, state: &mut State, me: usize, kick: impl FnMut(usize)) {
        self.count(Count::Vectors);
        self.quiesce.change(me, kick, || {
            self.shadow.lock().remove();
            self.vectors.choose(None);
        });
        state.forget();
    }

    /// Hands the page at `gpa` back to the guest if it is shadowed, because the guest writes to it. `now` is the TSC.
    /// Returns false if it is not shadowed.
    pub fn hand_back(&self, state: &mut State, me: usize, gpa: u64, now: u64, kick: impl FnMut(usize)) -> bool {
        if state.page != Some(gpa & !0xfff) {
            return false;
        }
        self.count(Count::Written);
        self.quiesce.change(me, kick, || self.shadow.lock().remove());
        state.forget();
        state.due = state.backoff.disturbed(now);
        true
    }

    /// Shadows the page at `gpa`.
    ///
    /// # Errors
    /// The page cannot be shadowed. Then none is.
    pub fn shadow(
        &self,
        state: &mut State,
        me: usize,
        gpa: u64,
        memory: &memory::GuestMemory,
        kick: impl FnMut(usize),
    ) -> Result<(), Unfit> {
        let read = || idt::Image::read(memory, gpa).ok_or(Unfit::NotMemory(gpa));
        // First check whether this can succeed. Otherwise there is no reason to stop the vCPUs.
        vectors::choose(self.vectors.used(), Some(&read()?)).ok_or(Unfit::NoVectors)?;
        state.forget();
        self.quiesce.change(me, kick, || {
            // Read the page again, now that nobody can write to it.
            let mut image = read()?;
            let mut shadow = self.shadow.lock();
            shadow.remove();
            let Some(host) = self.vectors.choose(Some(&image)) else {
                self.vectors.choose(None);
                return Err(Unfit::NoVectors);
            };
            image.shadow(host);
            shadow.install(gpa, &image.0).map_err(|_| Unfit::NotMemory(gpa))
        })?;
        state.page = Some(gpa);
        Ok(())
    }

    /// Plans that vCPU `vcpu` tries to shadow its IDT when the TSC is `at`. `u64::MAX` plans no try.
    pub fn set_next_try(&self, vcpu: usize, at: u64) {
        if let Some(next) = self.next_tries.get(vcpu) {
            next.store(at, Relaxed);
        }
    }

    /// The TSC at which vCPU `vcpu` tries next.
    #[must_use]
    pub fn next_try(&self, vcpu: usize) -> u64 {
        self.next_tries.get(vcpu).map_or(u64::MAX, |at| at.load(Relaxed))
    }

    /// Kicks the vCPUs whose next try is due, because a vCPU may run for long without an exit. `now` is the TSC. The
    /// control core calls it.
    pub fn tick(&self, now: u64, mut kick: impl FnMut(usize)) {
        for (vcpu, next) in self.next_tries.iter().enumerate() {
            if next.load(Relaxed) <= now {
                kick(vcpu);
            }
        }
    }

    /// Adds one to a count.
    pub fn count(&self, what: Count) {
        if let Some(count) = self.counts.get(what as usize) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Returns name and value of each count.
    pub fn report(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        NAMES.into_iter().zip(self.counts.each_ref().map(|c| c.load(Relaxed)))
    }

    /// Whether this kind of reason occurs for the first time in this life. The log names each kind once.
    pub fn is_first(&self, unfit: Unfit) -> bool {
        self.told.fetch_or(unfit.bit(), Relaxed) & unfit.bit() == 0
    }
}

impl State {
    fn forget(&mut self) {
        self.page = None;
        self.joined.fill(false);
    }

    /// The page that is shadowed.
    #[must_use]
    pub fn page(&self) -> Option<u64> {
        self.page
    }

    /// Whether some vCPU relies on the shadow.
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.joined.contains(&true)
    }

    /// Notes whether a vCPU relies on the shadow.
    pub fn set_joined(&mut self, vcpu: usize, joined: bool) {
        if let Some(j) = self.joined.get_mut(vcpu) {
            *j = joined;
        }
    }

    /// Returns the TSC before which no page may be shadowed.
    #[must_use]
    pub fn due(&self) -> u64 {
        self.due
    }
}

#[cfg(test)]
mod model;
// These tests are not in vectors.rs, because model.rs compiles that file a second time.
#[cfg(test)]
#[path = "eli/vectors/tests.rs"]
mod vectors_tests;
