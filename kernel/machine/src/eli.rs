//! The shadow IDT of a guest that owns its cores' local APICs: interrupts with a vector of the host's reach the host, without
//! help from the guest (ELVIS 2.4; SDM vol. 3A 6.10 to 6.15, vol. 3C 26.2, 28.2; APM vol. 2 15.12, 15.13, 15.15).
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
//! - *Exiting*: a physical interrupt makes the guest exit when the guest can take one. The host takes the interrupt from the
//!   APIC. It keeps and ends one with a vector of its own. It injects any other; that one is in service in the APIC, as if
//!   it had come by itself, and the guest ends it. The guest's IDT may be anything.
//! - *Shadowed*: interrupts go through the guest's IDT. One that meets a gate of the host's ends in #NP, which exits with the
//!   vector in the IDT-vectoring information. The host ends the interrupt in the APIC: it is the most urgent one in
//!   service, because the CPU has just taken it. The guest never sees it. Besides, only LIDT and writes to the page exit.
//!
//! The host emulates none of the guest's instructions for this. After a write has exited, the page is there again and the
//! guest executes the write once more. After LIDT has exited, LIDT no longer exits and the guest executes it once more.
//! The vCPU's core looks at IDTR later, and shadows the IDT again.
//!
//! At every moment in the guest, one of the two modes holds for each vCPU. So the host gets an interrupt that is on its way
//! during a change, in either mode.
//!
//! A guest can defeat this in two ways. It can map another page at its IDT's linear address while shadowed, which no exit
//! reports. Or it can leave interrupts off. The control core repeats a kick by NMI if the vCPU has not answered it by the
//! next tick.

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

/// What `quiesce.rs` and `vectors.rs` are made of; their model test has loom's instead.
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
    /// They exit.
    #[default]
    Exiting,
    /// They go through the guest's IDT, whose page is shadowed.
    Shadowed,
}

/// What is counted, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// A vCPU began to rely on the shadow.
    Shadowed,
    /// The page was handed back because the guest wrote to it.
    Written,
    /// A vCPU stopped relying on it because of LIDT or another instruction that exits with it.
    Moved,
    /// The host moved to other vectors because the guest began to use one of its own.
    Vectors,
    /// Interrupts with a vector of the host's, taken through the shadow.
    HostInterrupts,
    /// Those taken by an exit, while there was no shadow.
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
    /// When each vCPU tries to shadow its IDT next, on the TSC. `u64::MAX`: not before something else happens.
    next_tries: Box<[AtomicU64]>,
    counts: [AtomicU64; NAMES.len()],
    /// Kinds of [`Unfit`] that the log has named, a bit each.
    told: AtomicU32,
}

/// What the vCPUs decide under a lock. No other core takes it.
pub struct State {
    /// Guest-physical address of the page that is shadowed.
    page: Option<u64>,
    /// Which vCPUs rely on it.
    joined: Vec<bool>,
    /// Not to be shadowed before, on the TSC.
    due: u64,
    backoff: Backoff,
}

impl Eli {
    /// For a guest's life; `shadow` is handed back whatever it holds of a former life. No vCPU runs.
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

    /// The state, for a vCPU's core in the host.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The host's vectors. None: the guest uses all there are, and the host reaches its cores by NMI.
    #[must_use]
    pub fn vectors(&self) -> Option<HostVectors> {
        self.vectors.host()
    }

    /// The guest uses a vector. True: it is one of the host's, which has to move ([`Eli::move_vectors`]) before the guest
    /// gets an interrupt with it. From any core.
    pub fn uses(&self, vector: u8) -> bool {
        self.vectors.uses(vector)
    }

    /// Chooses other vectors for the host, because the guest uses one of them, and removes the shadow. Each vCPU that relied
    /// on the shadow tries again.
    pub fn move_vectors(&self, state: &mut State, me: usize, kick: impl FnMut(usize)) {
        self.count(Count::Vectors);
        self.quiesce.change(me, kick, || {
            self.shadow.lock().remove();
            self.vectors.choose(None);
        });
        state.forget();
    }

    /// Hands the page at `gpa` back if it is shadowed, at `now` on the TSC, because the guest writes to it. False: it is
    /// not.
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
    /// It cannot be; nothing is shadowed then.
    pub fn shadow(
        &self,
        state: &mut State,
        me: usize,
        gpa: u64,
        memory: &memory::GuestMemory,
        kick: impl FnMut(usize),
    ) -> Result<(), Unfit> {
        let read = || idt::Image::read(memory, gpa).ok_or(Unfit::NotMemory(gpa));
        // Not worth stopping anybody for, if it cannot be.
        vectors::choose(self.vectors.used(), Some(&read()?)).ok_or(Unfit::NoVectors)?;
        state.forget();
        self.quiesce.change(me, kick, || {
            // Once more, now that nobody can write to it.
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

    /// vCPU `vcpu` tries to shadow its IDT at `at` on the TSC. `u64::MAX`: not before something else happens.
    pub fn set_next_try(&self, vcpu: usize, at: u64) {
        if let Some(next) = self.next_tries.get(vcpu) {
            next.store(at, Relaxed);
        }
    }

    /// When vCPU `vcpu` tries next.
    #[must_use]
    pub fn next_try(&self, vcpu: usize) -> u64 {
        self.next_tries.get(vcpu).map_or(u64::MAX, |at| at.load(Relaxed))
    }

    /// Kicks the vCPUs whose next try is due at `now` on the TSC, because a vCPU may not exit by itself for long. From the
    /// control core.
    pub fn tick(&self, now: u64, mut kick: impl FnMut(usize)) {
        for (vcpu, next) in self.next_tries.iter().enumerate() {
            if next.load(Relaxed) <= now {
                kick(vcpu);
            }
        }
    }

    /// Counts something.
    pub fn count(&self, what: Count) {
        self.counts[what as usize].fetch_add(1, Relaxed);
    }

    /// Name and count of everything counted.
    pub fn report(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        NAMES.into_iter().zip(self.counts.each_ref().map(|c| c.load(Relaxed)))
    }

    /// Whether it is the first time in this life that an IDT is unfit for this kind of reason. The log names each once.
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

    /// A vCPU relies on the shadow, or no longer does.
    pub fn set_joined(&mut self, vcpu: usize, joined: bool) {
        if let Some(j) = self.joined.get_mut(vcpu) {
            *j = joined;
        }
    }

    /// No page is to be shadowed before this, on the TSC.
    #[must_use]
    pub fn due(&self) -> u64 {
        self.due
    }
}

#[cfg(test)]
mod model;
// Not within vectors.rs, because model.rs compiles that file a second time.
#[cfg(test)]
#[path = "eli/vectors/tests.rs"]
mod vectors_tests;
