//! Carries interrupts, NMIs, INIT, start-up and stop from any core to a virtual CPU on another core.
//!
//! A virtual CPU's local APIC belongs to its own core. Everybody else (the engine, a sibling, the control core) posts
//! to the [`Mailbox`] and sends an NMI only if told to. The virtual CPU drains the mailbox on its way into the guest.
//! This is the posted-interrupt descriptor of SDM vol. 3C 30.6 (pending bits and ON), in software. If the CPU
//! virtualizes the guest's local APIC, there is also a real descriptor ([`Descriptor`]), for edge-triggered vectors.
//!
//! # Why no post is lost
//!
//! The sender does, in this order:   (S1) set the pending bit   (S2) swap ON to true   (S3) load `state`.
//! The owner drains in this order:   (D1) swap ON to false      (D2) take the pending bits.
//! The owner enters in this order:   (E1) store `state` = guest (E2) load ON; on true store `state` = host, go back.
//!
//! All of these are sequentially consistent. So there is one order S of them on which all cores agree.
//!
//! 1. *The sender that turns ON from false to true is responsible.* If S3 reads guest or halted, the sender kicks. If
//!    S3 reads host, then S3 precedes any later E1 in S, hence S2 precedes E2. There are two cases. Either E2 reads
//!    true, and the owner goes back to drain. Or a drain (D1) came between S2 and E2. In that drain, D2 follows D1, D1
//!    follows S2, and S2 follows S1. So D2 takes the bit.
//! 2. *A sender that finds ON true has nothing to do.* Another sender has set ON and is responsible under 1. The next
//!    drain has its D1 after this S2, because D1 turns ON to false. Its D2 takes this bit too.
//! 3. *The guest never runs with ON set and no kick.* E2 read false, so ON was set after E2. The S3 of the sender that
//!    set it reads guest. Or it reads host again, because the owner has left the guest, and then 1 applies.
//!
//! A kick between E2 and the entry itself must not be lost. The sender sets the core's kick flag before it sends the
//! NMI. The back-ends check that flag once more: on SVM under CLGI, where an NMI stays pending until the guest runs; on
//! VT-x in a window in which the NMI handler gives the entry up. The same holds for [`Mailbox::halting`] and the
//! instruction that waits.
//!
//! # The same with the CPU as a reader
//!
//! [`Mailbox::post_virtual`] does S1 to S3 with PIR and the descriptor's ON. [`Mailbox::drain`] and the check before an
//! entry (E2) use both ONs. So the argument above holds for both. The differences are:
//!
//! 4. *While the guest runs, the CPU drains too*, when the notification vector arrives. It clears ON, then takes PIR
//!    (30.6, steps 3 and 5). These are D1 and D2. So a sender that reads "guest" need not make the guest exit.
//! 5. *A notification between E2 and the entry is not lost.* The host runs with interrupts off, so the notification
//!    stays pending in the core's local APIC. The CPU recognizes it as soon as the guest runs, because
//!    external-interrupt exiting ignores the guest's IF.
//! 6. *A late notification is harmless.* If the core has left the guest and drained, the notification finds nothing in
//!    PIR and does nothing. If a handler in the host takes the notification, it ends it. ON is still set, so the drain
//!    before the next entry takes what was posted.
//! 7. *A guest that halts is reached.* Either it halts in guest mode, where the notification wakes it (30.2.2, 30.6).
//!    Then it counts as running. Or its HLT exits, and the core waits in [`Mailbox::halting`]. Then it is kicked.
//!
//! loom tries every interleaving of this with one sender and with two (`model.rs`), including the CPU's part as the manual
//! has it (`model/posted.rs`).

use super::atomics::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use super::descriptor::Descriptor;
use crate::bitmap::word;
use crate::{
    lapic::{Accepts, Delivery, Message},
    posted::Wake,
};

const HOST: u8 = 0;
const GUEST: u8 = 1;
const HALTED: u8 = 2;

/// Bits of `requests`. Byte 1 holds the start-up vector, byte 2 the stop reason.
const NMI: u64 = 1 << 0;
const INIT: u64 = 1 << 1;
const STARTUP: u64 = 1 << 2;
const STOP: u64 = 1 << 3;

/// Why a virtual CPU is asked to stop for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The operator killed the guest, or it did not stop in time after the power button.
    Killed,
    /// The guest asked for a reset on another of its virtual CPUs.
    Reset,
    /// The guest switched itself off on another of its virtual CPUs.
    PowerOff,
    /// Another of the guest's virtual CPUs cannot go on (triple fault or the like).
    Failed,
}

impl StopReason {
    /// All reasons. A request holds the index.
    const ALL: [Self; 4] = [Self::Killed, Self::Reset, Self::PowerOff, Self::Failed];
}

/// What a drain takes besides interrupt vectors. The caller handles it in the order of the fields, stop first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Stop for good.
    pub stop: Option<StopReason>,
    /// INIT: reset the virtual CPU and its APIC, then wait for start-up.
    pub init: bool,
    /// Start-up IPI. Ignore it unless the virtual CPU waits for one after `init` has been handled.
    pub startup: Option<u8>,
    /// NMI for the guest. Hold it while the virtual CPU waits for start-up.
    pub nmi: bool,
}

/// The mailbox of one virtual CPU. It begins with the descriptor. It shares no cache line with another mailbox, so that
/// a post to one does not slow another.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Mailbox {
    /// For a CPU that virtualizes the APIC. That CPU reads and writes it.
    descriptor: Descriptor,
    /// One bit per vector.
    pending: [AtomicU64; 4],
    /// One bit per vector: it was level-triggered when its pending bit was last set.
    level: [AtomicU64; 4],
    /// NMI, INIT, start-up and stop.
    requests: AtomicU64,
    /// ON: something was posted since the last drain.
    outstanding: AtomicBool,
    state: AtomicU8,
    /// Whether a sender was told to kick.
    kicked: AtomicBool,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Mailbox {
    /// Makes an empty mailbox. The virtual CPU does not run.
    #[must_use]
    pub fn new() -> Self {
        Self {
            descriptor: Descriptor::new(),
            pending: core::array::from_fn(|_| AtomicU64::new(0)),
            level: core::array::from_fn(|_| AtomicU64::new(0)),
            requests: AtomicU64::new(0),
            outstanding: AtomicBool::new(false),
            state: AtomicU8::new(HOST),
            kicked: AtomicBool::new(false),
        }
    }

    /// Posts an edge-triggered interrupt. Returns true if the caller must send the core an NMI. Any core may call it.
    #[must_use = "true means that the core has to be kicked"]
    pub fn post(&self, vector: u8) -> bool {
        let (level, bit) = (word(&self.level, vector), bit(vector));
        // Usually this does not write `level`: no vector of the data path is level-triggered.
        if level.load(SeqCst) & bit != 0 {
            level.fetch_and(!bit, SeqCst);
        }
        word(&self.pending, vector).fetch_or(bit, SeqCst); // S1
        self.notify()
    }

    /// Posts a level-triggered interrupt, whose EOI must reach the IOAPIC. Otherwise it is as [`Mailbox::post`].
    ///
    /// The level bit stays set after a drain. So it is not lost if the same vector is posted again during the drain.
    #[must_use = "true means that the core has to be kicked"]
    pub fn post_level(&self, vector: u8) -> bool {
        word(&self.level, vector).fetch_or(bit(vector), SeqCst);
        word(&self.pending, vector).fetch_or(bit(vector), SeqCst); // S1
        self.notify()
    }

    /// Posts an edge-triggered interrupt to a vCPU whose local APIC the CPU virtualizes. The vector is 16 or above. Any
    /// core may call it.
    #[must_use = "the core may have to be told"]
    pub fn post_virtual(&self, vector: u8) -> Wake {
        if !self.descriptor.post(vector) {
            return Wake::Nobody; // S1, S2
        }
        match self.state.load(SeqCst) {
            HOST => Wake::Nobody, // S3
            GUEST => Wake::Notify,
            _ => {
                self.kicked.store(true, SeqCst);
                Wake::Kick
            }
        }
    }

    /// Returns the descriptor, for the VMCS.
    #[must_use]
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Posts what a message delivers. The result is as of [`Mailbox::post`].
    #[must_use = "true means that the core has to be kicked"]
    pub fn post_delivery(&self, delivery: Delivery) -> bool {
        match delivery {
            Delivery::Fixed { vector, level: false } | Delivery::LowestPriority { vector, level: false } => {
                self.post(vector)
            }
            Delivery::Fixed { vector, level: true } | Delivery::LowestPriority { vector, level: true } => {
                self.post_level(vector)
            }
            Delivery::Nmi => self.request_nmi(),
            Delivery::Init => self.request_init(),
            Delivery::Startup(vector) => self.request_startup(vector),
        }
    }

    /// Posts an NMI for the guest (not a kick). The result is as of [`Mailbox::post`].
    #[must_use = "true means that the core has to be kicked"]
    pub fn request_nmi(&self) -> bool {
        self.requests.fetch_or(NMI, SeqCst);
        self.notify()
    }

    /// Posts INIT. Drops an NMI or a start-up that still waits: it came before, and the reset would drop it too. The
    /// result is as of [`Mailbox::post`].
    #[must_use = "true means that the core has to be kicked"]
    pub fn request_init(&self) -> bool {
        self.update(|r| r & !(NMI | STARTUP | 0xff00) | INIT);
        self.notify()
    }

    /// Posts a start-up IPI. If there are several, the first counts, because after it the CPU no longer waits for one.
    /// The result is as of [`Mailbox::post`].
    #[must_use = "true means that the core has to be kicked"]
    pub fn request_startup(&self, vector: u8) -> bool {
        self.update(|r| if r & STARTUP != 0 { r } else { r | STARTUP | u64::from(vector) << 8 });
        self.notify()
    }

    /// Asks the virtual CPU to stop. If there are several reasons, the first counts. The result is as of
    /// [`Mailbox::post`].
    #[must_use = "true means that the core has to be kicked"]
    pub fn request_stop(&self, reason: StopReason) -> bool {
        self.update(|r| if r & STOP != 0 { r } else { r | STOP | (reason as u64) << 16 });
        self.notify()
    }

    /// S1 for a request that depends on earlier requests.
    fn update(&self, change: impl Fn(u64) -> u64) {
        let mut old = self.requests.load(SeqCst);
        while let Err(now) = self.requests.compare_exchange(old, change(old), SeqCst, SeqCst) {
            old = now;
        }
    }

    /// S2 and S3.
    fn notify(&self) -> bool {
        if self.outstanding.swap(true, SeqCst) || self.state.load(SeqCst) == HOST {
            return false;
        }
        // Set before the NMI is sent, so that the handler finds it.
        self.kicked.store(true, SeqCst);
        true
    }

    /// Whether an NMI was a kick. Clears the flag. The NMI handler of the owner's core calls it.
    ///
    /// False does not prove another cause. Two kicks may become one NMI. Or the NMI of a kick may come late, after its
    /// flag was taken with an earlier kick.
    pub fn take_kick(&self) -> bool {
        self.kicked.swap(false, SeqCst)
    }

    /// Notes that the owner is about to enter the guest. Returns false if something waits. Then drain and try again.
    /// From here to the entry, kicks must not be lost (see the module's text).
    #[must_use = "false means that the mailbox has to be drained before entering"]
    pub fn entering_guest(&self) -> bool {
        self.depart(GUEST)
    }

    /// Notes that the owner is about to wait for a kick, because the guest halted. Returns false if something waits.
    /// Then drain instead.
    #[must_use = "false means that the mailbox has to be drained before waiting"]
    pub fn halting(&self) -> bool {
        self.depart(HALTED)
    }

    fn depart(&self, state: u8) -> bool {
        self.state.store(state, SeqCst); // E1
        if self.pending() {
            // E2
            self.state.store(HOST, SeqCst);
            return false;
        }
        true
    }

    /// Notes that the owner is back in the host, from the guest or from waiting. Senders need not kick it any more.
    pub fn left_guest(&self) {
        self.state.store(HOST, SeqCst);
    }

    /// Whether something was posted since the last drain.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.outstanding.load(SeqCst) || self.descriptor.outstanding()
    }

    /// Whether anything but a virtual post has come since the last drain. Only that makes a running guest exit.
    #[must_use]
    pub fn has_mail(&self) -> bool {
        self.outstanding.load(SeqCst)
    }

    /// Makes the owner drain before it enters again, even if nothing was posted. The caller kicks. Any core may call
    /// it.
    pub fn ask_to_look(&self) {
        self.outstanding.store(true, SeqCst);
    }

    /// Takes everything. Puts the vectors into `apic` and returns the rest. Only the owner may call it.
    ///
    /// The vectors come first, INIT after them. So a vector that was posted after INIT is lost with the APIC's reset.
    /// On an APIC that INIT has disabled it would be lost too.
    #[must_use = "the requests are gone from the mailbox"]
    pub fn drain(&self, apic: &mut impl Accepts) -> Requests {
        for (index, word) in self.descriptor.take().into_iter().flatten().enumerate() {
            each_bit(index, word, |vector, _| {
                apic.accept(vector, false);
            });
        }
        if !self.outstanding.swap(false, SeqCst) {
            return Requests::default(); // D1; nothing, or already taken
        }
        for (index, (word, level)) in self.pending.iter().zip(&self.level).enumerate() {
            if word.load(SeqCst) == 0 {
                continue; // saves three locked instructions in the common case
            }
            let bits = word.swap(0, SeqCst); // D2
            let level = level.load(SeqCst);
            each_bit(index, bits, |vector, bit| {
                apic.accept(vector, level >> bit & 1 != 0);
            });
        }
        if self.requests.load(SeqCst) == 0 {
            return Requests::default();
        }
        let r = self.requests.swap(0, SeqCst); // D2
        Requests {
            stop: StopReason::ALL.get((r >> 16) as usize & 3).copied().filter(|_| r & STOP != 0),
            init: r & INIT != 0,
            startup: (r & STARTUP != 0).then_some((r >> 8) as u8),
            nmi: r & NMI != 0,
        }
    }

    /// Empties the mailbox before a guest's next life. Nobody may post meanwhile.
    pub fn reset(&self) {
        self.descriptor.reset();
        for word in self.pending.iter().chain(&self.level) {
            word.store(0, SeqCst);
        }
        self.requests.store(0, SeqCst);
        self.outstanding.store(false, SeqCst);
        self.state.store(HOST, SeqCst);
        self.kicked.store(false, SeqCst);
    }
}

/// Calls `each` for every bit in `bits`, with its vector and its bit number. `bits` is word `index`.
fn each_bit(index: usize, mut bits: u64, mut each: impl FnMut(u8, u32)) {
    while bits != 0 {
        let bit = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        each((index << 6) as u8 | bit as u8, bit);
    }
}

/// The bit of a vector in its word.
fn bit(vector: u8) -> u64 {
    1 << (vector & 63)
}

/// Posts a message to every virtual CPU that it names. Mailbox `i` belongs to APIC ID `i`. Calls `kick(i)` if that core
/// needs an NMI. Returns false if the message names none of them.
pub fn send<'a>(
    message: Message,
    mailboxes: impl Fn(u32) -> Option<&'a Mailbox>,
    count: u32,
    mut kick: impl FnMut(u32),
) -> bool {
    let mut any = false;
    for id in message.targets(count) {
        if let Some(mailbox) = mailboxes(id) {
            any = true;
            if mailbox.post_delivery(message.delivery) {
                kick(id);
            }
        }
    }
    any
}
