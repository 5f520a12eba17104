//! The shadow IDT: a guest owns its cores' local APICs, and the host's own vectors reach the host all the same, without
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
//! - *Exiting*: a physical interrupt makes the guest exit when the guest can take one. The host takes it from the APIC; a
//!   vector of its own it keeps and ends, any other is injected, in service in the APIC as if it had come by itself,
//!   and ended by the guest. The guest's IDT may be anything.
//! - *Shadowed*: interrupts go through the guest's IDT. On a gate of the host's they end in #NP, which exits; the
//!   vector is in the IDT-vectoring information. The host ends it in the APIC: it was the most urgent in service, since
//!   the CPU took it, and the guest never sees it. LIDT exits, a write to the page exits, nothing else does.
//!
//! No instruction of the guest's is emulated for this: after a write has exited the page is there again and it is executed
//! once more, and after LIDT has exited it no longer does. Who wants the shadow back looks at IDTR later.
//!
//! At every moment in the guest one of the two holds for each vCPU, so an interrupt with a vector of the host's that is
//! on its way during a change is taken by the host whichever way it finds. What a guest can do against that is to map
//! another page at its IDT's linear address while shadowed (no exit tells of it), or not to take interrupts at all. A kick
//! that has not been answered by the next tick of the control core is repeated by NMI.

extern crate alloc;

use alloc::{boxed::Box, vec::Vec};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use memory::swap::Shadow;
use spin::{Mutex, MutexGuard};

mod fault;
pub mod idt;
mod patience;
mod quiesce;
mod vectors;

/// What `quiesce.rs` and `vectors.rs` are made of; their model test has loom's instead.
mod sync {
    pub use core::hint::spin_loop as pause;
    pub use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}

pub use fault::{Interrupted, Verdict, judge};
pub use idt::Unfit;
pub use patience::Patience;
pub use quiesce::Quiesce;
use vectors::Vectors;
pub use vectors::{HostVectors, Used};

/// How a vCPU's interrupts reach it. See the module's text.
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
    /// When each vCPU wants to look at its IDT again, on the TSC; `u64::MAX`: not by itself.
    looks: Box<[AtomicU64]>,
    counts: [AtomicU64; NAMES.len()],
    /// Kinds of [`Unfit`] that have been told.
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
    patience: Patience,
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
                patience: Patience::new(tsc_khz),
            }),
            quiesce: Quiesce::new(vcpus),
            vectors: Vectors::default(),
            looks: (0..vcpus).map(|_| AtomicU64::new(u64::MAX)).collect(),
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

    /// The host leaves a vector to the guest. Whoever relied on a shadow has to look again.
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
        state.due = state.patience.disturbed(now);
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
        HostVectors::choose(self.vectors.used(), Some(&read()?)).ok_or(Unfit::NoVectors)?;
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

    /// Vcpu `vcpu` wants to look at its IDT at `at` on the TSC.
    pub fn look_at(&self, vcpu: usize, at: u64) {
        if let Some(look) = self.looks.get(vcpu) {
            look.store(at, Relaxed);
        }
    }

    /// When it does; `u64::MAX`: not by itself.
    #[must_use]
    pub fn look(&self, vcpu: usize) -> u64 {
        self.looks.get(vcpu).map_or(u64::MAX, |look| look.load(Relaxed))
    }

    /// Kicks the vCPUs that want to look, for those that do not exit by themselves. From the control core, at `now` on the
    /// TSC.
    pub fn tick(&self, now: u64, mut kick: impl FnMut(usize)) {
        for (vcpu, look) in self.looks.iter().enumerate() {
            if look.load(Relaxed) <= now {
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

    /// Whether this kind of thing has not been told yet in this life; it is told now.
    pub fn tell(&self, unfit: Unfit) -> bool {
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
