//! What the transport (the guest's cores) and the engine (its own core) share about one virtio device (virtio 1.3
//! ch. 2.1, 2.4, 2.5, 4.1.4).
//!
//! All of it is atomics and neither side waits for the other. The engine looks at `phase` when the transport has rung
//! its [`doorbell`] to tell that it changed:
//!
//! ```text
//!              activate (transport)            engine took it
//!    Idle ───────────────────▶ Activating ───────────────────▶ Running
//!      ▲                            │ request_reset (transport)   │
//!      │       engine let go        ▼                             │
//!      └──────────────────────── Resetting ◀──────────────────────┘
//! ```
//!
//! Queue addresses are read by the engine once, at activation; a queue that is re-addressed while the device runs is
//! not noticed at all. Vectors are read at each interrupt.
//!
//! With RING_RESET a queue may be taken out of use and set up anew while the device runs (2.6.1). Its slot is the transport's
//! to write while the queue is neither enabled nor being reset; a bit for it goes to the engine in `starting` and in
//! `stopping`, and the latter stays until the engine has let go of the queue.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

pub use crate::config::{
    CONFIG_BYTES, DeviceConfig, Features, MAX_QUEUE_PAIRS, MAX_QUEUE_SIZE, MAX_QUEUES, NO_VECTOR, QueueConfig, VECTORS,
};
use crate::device::DeviceState;
use crate::doorbell::{self, Bits as _, Doorbell, Wire};
use crate::fault::Fault;
use crate::msix::{Interrupt, MsixTable};
pub use crate::phase::Phase;
use crate::phase::PhaseWord;
use crate::stats::{Counter, PortCounters};

/// ISR status bit: a queue has used buffers.
pub const ISR_QUEUE: u8 = 1;
/// ISR status bit: the configuration has changed, or the device needs a reset.
pub const ISR_CONFIG: u8 = 2;

struct QueueSlot {
    size: AtomicU16,
    vector: AtomicU16,
    enabled: AtomicBool,
    desc: AtomicU64,
    avail: AtomicU64,
    used: AtomicU64,
}

impl QueueSlot {
    const fn new() -> Self {
        Self {
            size: AtomicU16::new(0),
            vector: AtomicU16::new(NO_VECTOR),
            enabled: AtomicBool::new(false),
            desc: AtomicU64::new(0),
            avail: AtomicU64::new(0),
            used: AtomicU64::new(0),
        }
    }

    fn store(&self, q: &QueueConfig) {
        self.size.store(q.size, Ordering::Relaxed);
        self.vector.store(q.vector, Ordering::Relaxed);
        self.enabled.store(q.enabled, Ordering::Relaxed);
        self.desc.store(q.desc, Ordering::Relaxed);
        self.avail.store(q.avail, Ordering::Relaxed);
        self.used.store(q.used, Ordering::Relaxed);
    }

    fn load(&self) -> QueueConfig {
        QueueConfig {
            size: self.size.load(Ordering::Relaxed),
            vector: self.vector.load(Ordering::Relaxed),
            enabled: self.enabled.load(Ordering::Relaxed),
            desc: self.desc.load(Ordering::Relaxed),
            avail: self.avail.load(Ordering::Relaxed),
            used: self.used.load(Ordering::Relaxed),
        }
    }
}

/// Keeps what different cores write on different cache lines (two, for the adjacent-line prefetcher).
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct OwnLine<T>(pub(crate) T);

/// The state of one virtio device that transport and engine share.
pub struct Shared {
    phase: OwnLine<PhaseWord>,
    wire: Wire,
    negotiated: AtomicU64,
    queues: [QueueSlot; MAX_QUEUES],
    /// Queues that were set up while the device runs, and such as are to be reset: a bit each.
    starting: AtomicU64,
    stopping: AtomicU64,
    config_vector: AtomicU16,
    config: [AtomicU8; CONFIG_BYTES],
    generation: AtomicU8,
    isr: AtomicU8,
    needs_reset: AtomicBool,
    fixed: DeviceConfig,
    /// The function's MSI-X table.
    pub msix: MsixTable<VECTORS>,
    counters: OwnLine<PortCounters>,
    faults: [Counter; Fault::COUNT],
}

/// Takes an interrupt to a running guest: the seam behind which the kernel has its ways of completion.
pub trait Deliver {
    /// Delivers `interrupt` for device number `device` (the number given when its port was attached). False: no vCPU of
    /// that guest answers to the destination.
    fn deliver(&self, device: usize, interrupt: Interrupt) -> bool;
}

impl<D: Deliver + ?Sized> Deliver for &D {
    fn deliver(&self, device: usize, interrupt: Interrupt) -> bool {
        (**self).deliver(device, interrupt)
    }
}

impl Shared {
    /// A device that no driver has touched.
    #[must_use]
    pub const fn new(fixed: DeviceConfig) -> Self {
        let mut config = [const { AtomicU8::new(0) }; CONFIG_BYTES];
        let mut i = 0;
        while i < CONFIG_BYTES {
            config[i] = AtomicU8::new(fixed.config[i]);
            i += 1;
        }
        Self {
            phase: OwnLine(PhaseWord(AtomicU32::new(Phase::Idle as u32))),
            wire: Wire::new(),
            negotiated: AtomicU64::new(0),
            queues: [const { QueueSlot::new() }; MAX_QUEUES],
            starting: AtomicU64::new(0),
            stopping: AtomicU64::new(0),
            config_vector: AtomicU16::new(NO_VECTOR),
            config,
            generation: AtomicU8::new(0),
            isr: AtomicU8::new(0),
            needs_reset: AtomicBool::new(false),
            fixed,
            msix: MsixTable::new(),
            counters: OwnLine(PortCounters::new()),
            faults: [const { Counter::new() }; Fault::COUNT],
        }
    }

    /// What the device is.
    #[must_use]
    pub const fn device(&self) -> &DeviceConfig {
        &self.fixed
    }

    /// What happened so far.
    #[must_use]
    pub const fn counters(&self) -> &PortCounters {
        &self.counters.0
    }

    /// How often each rule was broken.
    pub fn faults(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.iter().copied().zip(self.faults.iter().map(Counter::get))
    }

    /// As made, for a guest that starts again: nothing but the counters stays. Only while no engine has the device
    /// attached and none of the guest's cores runs.
    pub fn restart(&self) {
        self.clear();
        self.msix.reset();
        for (byte, value) in self.config.iter().zip(self.fixed.config) {
            byte.store(value, Ordering::Relaxed);
        }
        self.phase.0.set(Phase::Idle);
    }

    // The transport's side.

    /// Offered features.
    #[must_use]
    pub const fn offered(&self) -> u64 {
        self.fixed.features.bits()
    }

    /// Whether FEATURES_OK may stand for this choice of the driver's: nothing that was not offered, and VERSION_1.
    #[must_use]
    pub const fn accepts(&self, features: u64) -> bool {
        features & !self.offered() == 0 && features & Features::VERSION_1.bits() != 0
    }

    /// Number of queues.
    #[must_use]
    pub const fn queues(&self) -> u16 {
        self.fixed.queues
    }

    /// Largest size of a queue, what the driver reads in `queue_size` before it writes one.
    #[must_use]
    pub const fn max_queue_size(&self) -> u16 {
        self.fixed.queue_size
    }

    /// Sets a queue up. The values are the driver's; the engine checks them when it takes the queue into use. False, and no
    /// effect, if there is no such queue; or if the device is not idle, but for a queue that is out of use in a device that
    /// runs with RING_RESET.
    pub fn configure_queue(&self, index: u16, queue: &QueueConfig) -> bool {
        let Some(slot) = self.slot(index) else { return false };
        match self.phase() {
            Phase::Idle => slot.store(queue),
            Phase::Running if self.resets_queues() && queue.enabled && !self.in_use(index) => {
                slot.store(queue);
                self.starting.set(1 << index);
                self.wire.ring(doorbell::ATTENTION);
            }
            _ => return false,
        }
        true
    }

    /// The driver wrote 1 to `queue_reset`: the engine is to let go of the queue, which is as after a reset of the device once
    /// [`Shared::queue_reset_done`]. False, and no effect, without RING_RESET or if the queue is not in use.
    pub fn reset_queue(&self, index: u16) -> bool {
        let resets = self.phase() != Phase::Idle && self.resets_queues() && self.in_use(index);
        if resets {
            self.stopping.set(1 << index);
            self.wire.ring(doorbell::ATTENTION);
        }
        resets
    }

    /// The engine holds nothing of a queue that was to be reset.
    #[must_use]
    pub fn queue_reset_done(&self, index: u16) -> bool {
        index >= self.fixed.queues || self.stopping.load(Ordering::Acquire) >> index & 1 == 0
    }

    /// Whether the driver has accepted RING_RESET.
    fn resets_queues(&self) -> bool {
        self.negotiated() & Features::RING_RESET.bits() != 0
    }

    /// Whether the driver has enabled a queue, and its reset is not done.
    fn in_use(&self, index: u16) -> bool {
        !self.queue_reset_done(index) || self.slot(index).is_some_and(|slot| slot.enabled.load(Ordering::Relaxed))
    }

    /// A queue as configured; as after reset if there is no such queue.
    #[must_use]
    pub fn queue(&self, index: u16) -> QueueConfig {
        self.slot(index).map_or(QueueConfig::RESET, QueueSlot::load)
    }

    /// Names the MSI-X entry of a queue, at any time. What the driver reads back: the entry, or [`NO_VECTOR`] if there
    /// is no such entry or queue.
    pub fn set_queue_vector(&self, index: u16, vector: u16) -> u16 {
        self.slot(index).map_or(NO_VECTOR, |slot| set_vector(&slot.vector, vector))
    }

    /// Names the MSI-X entry for configuration changes; the result is as for [`Shared::set_queue_vector`].
    pub fn set_config_vector(&self, vector: u16) -> u16 {
        set_vector(&self.config_vector, vector)
    }

    /// The MSI-X entry for configuration changes.
    #[must_use]
    pub fn config_vector(&self) -> u16 {
        self.config_vector.load(Ordering::Relaxed)
    }

    /// DRIVER_OK: the engine is to serve the device, with the features the driver accepted. False if the device is not
    /// idle.
    pub fn activate(&self, features: u64) -> bool {
        if self.phase() != Phase::Idle {
            return false;
        }
        self.negotiated.store(features, Ordering::Relaxed);
        let activated = self.step(Phase::Idle, Phase::Activating);
        self.wire.ring(doorbell::ATTENTION);
        activated
    }

    /// The driver wrote 0 to the status: the engine is to let go of the device. The transport goes on reporting the old
    /// status until [`Shared::reset_done`].
    pub fn request_reset(&self) {
        match self.phase.0.request_reset() {
            Phase::Idle => return self.clear(),
            Phase::Resetting => return,
            Phase::Activating | Phase::Running => {}
        }
        self.wire.ring(doorbell::ATTENTION);
    }

    /// The engine holds nothing of the device any more.
    #[must_use]
    pub fn reset_done(&self) -> bool {
        self.phase() == Phase::Idle
    }

    /// The engine found the ring's rules broken: DEVICE_NEEDS_RESET is to stand in the status.
    #[must_use]
    pub fn needs_reset(&self) -> bool {
        self.needs_reset.load(Ordering::Acquire)
    }

    /// The driver notified a queue, by an exit. A queue that is polled is visited anyway; this is for the others.
    pub fn kick(&self, queue: u16) {
        self.counters.0.kicks.add_shared(1);
        if queue < self.fixed.queues {
            self.wire.ring(1 << queue);
        }
    }

    /// Reads and clears the ISR status.
    pub fn take_isr(&self) -> u8 {
        self.isr.swap(0, Ordering::AcqRel)
    }

    /// `config_generation`.
    #[must_use]
    pub fn config_generation(&self) -> u8 {
        self.generation.load(Ordering::Acquire)
    }

    /// Reads `size` bytes (up to 8) of device-specific configuration; zero beyond its end.
    #[must_use]
    pub fn read_config(&self, offset: u64, size: u8) -> u64 {
        let byte = |at: u64| {
            let at = usize::try_from(at).ok().filter(|&at| at < usize::from(self.fixed.config_len))?;
            Some(u64::from(self.config.get(at)?.load(Ordering::Acquire)))
        };
        (0..u64::from(size.min(8))).fold(0, |v, i| v | byte(offset.wrapping_add(i)).unwrap_or(0) << (8 * i))
    }

    // The engine's side.

    /// Leads the device's doorbell to `port` of an engine, or nowhere. Only while none of the guest's cores runs.
    pub(crate) fn connect(&self, engine: Option<(&'static Doorbell, usize)>) {
        self.wire.connect(engine);
    }

    /// What the transport has rung for since the last time: a bit for each queue, and [`doorbell::ATTENTION`].
    pub(crate) fn take_rung(&self) -> u64 {
        self.wire.take()
    }

    /// Queues that the driver has set up since the last time, a bit each.
    pub(crate) fn take_starting(&self) -> u64 {
        self.starting.take()
    }

    /// Queues that the driver wants to be reset, a bit each.
    pub(crate) fn stopping(&self) -> u64 {
        self.stopping.load(Ordering::Acquire)
    }

    /// Whether the driver waits for a queue to be taken into use, or out of it.
    pub(crate) fn queues_change(&self) -> bool {
        (self.starting.load(Ordering::Relaxed) | self.stopping.load(Ordering::Relaxed)) != 0
    }

    /// The engine has let go of a queue; the answer to [`Shared::reset_queue`].
    pub(crate) fn queue_stopped(&self, index: u16) {
        if let Some(slot) = self.slot(index) {
            slot.store(&QueueConfig::RESET);
        }
        self.stopping.fetch_and(!(1 << index), Ordering::Release);
    }

    /// Where the device stands.
    #[must_use]
    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase.0.get()
    }

    /// The features the driver accepted; valid once the phase is [`Phase::Activating`].
    #[must_use]
    pub fn negotiated(&self) -> u64 {
        self.negotiated.load(Ordering::Relaxed)
    }

    /// Goes from one phase to another, unless the other side has moved on.
    pub(crate) fn step(&self, from: Phase, to: Phase) -> bool {
        self.phase.0.step(from, to)
    }

    /// Puts a saved device back; none of the guest's cores runs.
    pub(crate) fn restore(&self, state: &DeviceState) {
        self.clear();
        self.negotiated.store(state.features, Ordering::Relaxed);
        self.config_vector.store(state.config_vector, Ordering::Relaxed);
        for (slot, queue) in self.queues.iter().zip(&state.queues) {
            slot.store(&queue.config);
        }
        for (byte, value) in self.config.iter().zip(state.config) {
            byte.store(value, Ordering::Relaxed);
        }
        self.msix.restore(&state.msix);
        self.isr.store(state.isr, Ordering::Relaxed);
        self.needs_reset.store(state.needs_reset, Ordering::Relaxed);
        let phase = if state.running { Phase::Running } else { Phase::Idle };
        self.phase.0.set(phase);
    }

    /// ISR status without clearing it.
    pub(crate) fn isr(&self) -> u8 {
        self.isr.load(Ordering::Relaxed)
    }

    /// Device-specific configuration as it is now.
    pub(crate) fn config(&self) -> [u8; CONFIG_BYTES] {
        core::array::from_fn(|i| self.config[i].load(Ordering::Relaxed))
    }

    /// Bytes of device-specific configuration from `offset` on; zero beyond its end.
    pub(crate) fn config_bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        core::array::from_fn(|i| self.config.get(offset + i).map_or(0, |byte| byte.load(Ordering::Relaxed)))
    }

    /// Counts a broken rule.
    pub(crate) fn count_fault(&self, fault: Fault) {
        self.counters.0.faults.add(1);
        if let Some(counter) = self.faults.get(fault as usize) {
            counter.add(1);
        }
    }

    /// The engine holds nothing any more; the answer to [`Shared::request_reset`].
    pub(crate) fn acknowledge_reset(&self) {
        self.clear();
        self.step(Phase::Resetting, Phase::Idle);
    }

    /// Sets DEVICE_NEEDS_RESET. The caller sends the configuration-change interrupt.
    pub(crate) fn set_needs_reset(&self) {
        self.needs_reset.store(true, Ordering::Release);
        self.isr.fetch_or(ISR_CONFIG, Ordering::AcqRel);
    }

    /// Sets an ISR bit; only of use to a driver without MSI-X.
    pub(crate) fn set_isr(&self, bits: u8) {
        self.isr.fetch_or(bits, Ordering::AcqRel);
    }

    /// The MSI-X entry of a queue now.
    pub(crate) fn queue_vector(&self, index: u16) -> u16 {
        self.slot(index).map_or(NO_VECTOR, |slot| slot.vector.load(Ordering::Relaxed))
    }

    /// Changes a byte of device-specific configuration: one, because a driver that reads the generation in the middle of a
    /// change of several would take what it finds for whole. The caller sends the configuration-change interrupt.
    pub fn change_config(&self, offset: usize, value: u8) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        if let Some(byte) = self.config.get(offset) {
            byte.store(value, Ordering::Release);
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.isr.fetch_or(ISR_CONFIG, Ordering::AcqRel);
    }

    fn slot(&self, index: u16) -> Option<&QueueSlot> {
        self.queues.get(usize::from(index)).filter(|_| index < self.fixed.queues)
    }

    /// What a device reset clears (virtio 1.3 2.4.1, 4.1.4.3.1): not the MSI-X table, which is the function's.
    fn clear(&self) {
        for slot in &self.queues {
            slot.store(&QueueConfig::RESET);
        }
        self.starting.store(0, Ordering::Relaxed);
        self.stopping.store(0, Ordering::Release);
        self.negotiated.store(0, Ordering::Relaxed);
        self.config_vector.store(NO_VECTOR, Ordering::Relaxed);
        self.isr.store(0, Ordering::Relaxed);
        self.needs_reset.store(false, Ordering::Release);
    }
}

fn set_vector(slot: &AtomicU16, vector: u16) -> u16 {
    let vector = if usize::from(vector) < VECTORS { vector } else { NO_VECTOR };
    slot.store(vector, Ordering::Relaxed);
    vector
}

#[cfg(test)]
mod tests {
    use super::{NO_VECTOR, Phase, QueueConfig, Shared};
    use crate::net;

    fn shared() -> Shared {
        Shared::new(net::config([2, 0, 0, 0, 0, 1], 1500, 1))
    }

    #[test]
    fn a_reset_is_done_only_when_the_engine_says_so() {
        let s = shared();
        assert!(s.activate(s.offered()));
        assert!(!s.activate(s.offered()), "twice");
        s.request_reset();
        assert!(!s.reset_done());
        assert!(!s.step(Phase::Activating, Phase::Running), "the engine must not bring it back to life");
        s.acknowledge_reset();
        assert!(s.reset_done());
    }

    #[test]
    fn a_device_that_never_ran_is_reset_at_once() {
        let s = shared();
        s.configure_queue(0, &QueueConfig { size: 8, enabled: true, ..QueueConfig::RESET });
        s.set_config_vector(0);
        s.request_reset();
        assert!(s.reset_done());
        assert_eq!((s.queue(0), s.config_vector()), (QueueConfig::RESET, NO_VECTOR));
    }

    #[test]
    fn queues_cannot_be_configured_while_the_device_runs_and_vectors_can() {
        let s = shared();
        s.activate(s.offered());
        assert!(!s.configure_queue(0, &QueueConfig { size: 8, ..QueueConfig::RESET }));
        assert_eq!(s.queue(0).size, 0);
        assert_eq!(s.set_queue_vector(0, 1), 1);
        assert_eq!(s.set_queue_vector(0, 99), NO_VECTOR);
        assert_eq!(s.set_queue_vector(3, 1), NO_VECTOR, "this device has three queues");
    }

    #[test]
    fn only_offered_features_with_version_1_are_accepted() {
        let s = shared();
        assert!(s.accepts(s.offered()));
        assert!(s.accepts(1 << 32));
        assert!(!s.accepts(0));
        assert!(!s.accepts(s.offered() | 1 << 63));
    }

    #[test]
    fn configuration_reads_are_bounded_and_changes_are_announced() {
        let s = shared();
        assert_eq!(s.read_config(0, 8), 0x0001_0100_0000_0002);
        assert_eq!(s.read_config(10, 2), 1500);
        assert_eq!(s.read_config(12, 8), 0);
        assert_eq!(s.read_config(u64::MAX, 8) & 0xff, 0);
        let before = s.config_generation();
        s.change_config(6, 0);
        assert_ne!(s.config_generation(), before);
        assert_eq!(s.read_config(6, 2), 0);
        assert_eq!((s.take_isr(), s.take_isr()), (2, 0));
    }
}
