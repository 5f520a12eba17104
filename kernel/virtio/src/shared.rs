//! The state of one virtio device that its transport (the guest's cores) and its engine (the engine's own core) share
//! (virtio 1.3 ch. 2.1, 2.4, 2.5, 4.1.4).
//!
//! All of it is atomics; neither side waits for the other. When the transport changes `phase`, it kicks the engine
//! ([`kick`]). The engine then reads the phase:
//!
//! ```text
//!              activate (transport)            engine took it
//!    Idle ───────────────────▶ Activating ───────────────────▶ Running
//!      ▲                            │ request_reset (transport)   │
//!      │       engine let go        ▼                             │
//!      └──────────────────────── Resetting ◀──────────────────────┘
//! ```
//!
//! The engine reads queue addresses once, at activation. It does not notice a queue that is re-addressed while the
//! device runs. It reads vectors at each interrupt.
//!
//! With RING_RESET (2.6.1) the driver may reset one queue and set it up again while the device runs. The transport may
//! write the queue's configuration only while the queue is neither enabled nor being reset. It tells the engine with
//! the queue's bit: in `starting` for a set-up, in `stopping` for a reset. The bit in `stopping` stays until the engine
//! has released the queue.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::config::{CONFIG_BYTES, DeviceConfig, Features, MAX_QUEUES, NO_VECTOR, QueueConfig, VECTORS};
use crate::counters::{Counter, DeviceCounters};
use crate::fault::Fault;
use crate::kick::{self, Bits as _, KickSender};
use crate::line::OwnLine;
use crate::msix::MsixTable;
use crate::phase::{Phase, PhaseWord};
use crate::state::DeviceState;

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

/// The state of one virtio device that transport and engine share.
pub struct Shared {
    phase: OwnLine<PhaseWord>,
    kick_sender: KickSender,
    negotiated: AtomicU64,
    queues: [QueueSlot; MAX_QUEUES],
    /// Queues that were set up while the device runs, one bit each.
    starting: AtomicU64,
    /// Queues that are to be reset, one bit each.
    stopping: AtomicU64,
    config_vector: AtomicU16,
    config: [AtomicU8; CONFIG_BYTES],
    generation: AtomicU8,
    /// A change of the configuration is under way.
    changing: AtomicBool,
    isr: AtomicU8,
    needs_reset: AtomicBool,
    kicks_only: AtomicBool,
    fixed: DeviceConfig,
    /// The function's MSI-X table.
    pub msix: MsixTable<VECTORS>,
    counters: OwnLine<DeviceCounters>,
    faults: [Counter; Fault::COUNT],
}

impl Shared {
    /// A device that no driver has touched.
    #[must_use]
    pub fn new(fixed: DeviceConfig) -> Self {
        Self {
            phase: OwnLine(PhaseWord(AtomicU32::new(Phase::Idle as u32))),
            kick_sender: KickSender::new(),
            negotiated: AtomicU64::new(0),
            queues: [const { QueueSlot::new() }; MAX_QUEUES],
            starting: AtomicU64::new(0),
            stopping: AtomicU64::new(0),
            config_vector: AtomicU16::new(NO_VECTOR),
            config: fixed.config.map(AtomicU8::new),
            generation: AtomicU8::new(0),
            changing: AtomicBool::new(false),
            isr: AtomicU8::new(0),
            needs_reset: AtomicBool::new(false),
            kicks_only: AtomicBool::new(false),
            fixed,
            msix: MsixTable::new(),
            counters: OwnLine(DeviceCounters::new()),
            faults: [const { Counter::new() }; Fault::COUNT],
        }
    }

    /// What the device is.
    #[must_use]
    pub const fn device(&self) -> &DeviceConfig {
        &self.fixed
    }

    /// Its counters.
    #[must_use]
    pub const fn counters(&self) -> &DeviceCounters {
        &self.counters.0
    }

    /// How often each rule was broken.
    pub fn faults(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        Fault::ALL.iter().copied().zip(self.faults.iter().map(Counter::get))
    }

    /// Returns to the state after [`Shared::new`], for a guest that starts again. Only the counters stay. Call it only
    /// while the device is attached to no engine and none of the guest's cores runs.
    pub fn restart(&self) {
        self.clear();
        self.msix.reset();
        for (byte, value) in self.config.iter().zip(self.fixed.config) {
            byte.store(value, Ordering::Relaxed);
        }
        self.kicks_only.store(false, Ordering::Relaxed);
        self.phase.0.set(Phase::Idle);
    }

    /// Has the engine look at queues after their kicks only, until the device has been in use and is reset, or is used by
    /// a driver with EVENT_IDX. For a guest that starts with firmware: firmware may leave its rings behind in memory that
    /// the system uses for something else. Buffers that wait for data, as on a receive queue, are taken from the ring at
    /// the kick. Call it after [`Shared::restart`].
    pub fn serve_after_kicks_only(&self) {
        self.kicks_only.store(true, Ordering::Relaxed);
    }

    // The transport's side.

    /// Offered features.
    #[must_use]
    pub const fn offered(&self) -> u64 {
        self.fixed.features
    }

    /// Whether the driver's choice of features is acceptable (FEATURES_OK). It must contain VERSION_1 and only offered
    /// features.
    #[must_use]
    pub const fn accepts(&self, features: u64) -> bool {
        features & !self.offered() == 0 && features & Features::VERSION_1.bits() != 0
    }

    /// Number of queues.
    #[must_use]
    pub const fn queues(&self) -> u16 {
        self.fixed.queues
    }

    /// The largest queue size. The driver reads it in `queue_size` before it writes one.
    #[must_use]
    pub const fn max_queue_size(&self) -> u16 {
        self.fixed.queue_size
    }

    /// Configures a queue with the driver's values. The engine checks them when it takes the queue into use. Returns
    /// true in two cases:
    /// - the device is idle;
    /// - the device runs with RING_RESET, and the queue is not in use.
    ///
    /// Otherwise, or if there is no such queue, it does nothing and returns false.
    pub fn configure_queue(&self, index: u16, queue: &QueueConfig) -> bool {
        let Some(slot) = self.slot(index) else { return false };
        match self.phase() {
            Phase::Idle => slot.store(queue),
            Phase::Running if self.resets_queues() && queue.enabled && !self.in_use(index) => {
                slot.store(queue);
                self.starting.set(1 << index);
                self.kick_sender.ring(kick::ATTENTION);
            }
            _ => return false,
        }
        true
    }

    /// Requests the reset of one queue: the driver wrote 1 to `queue_reset`. The reset is done when
    /// [`Shared::queue_reset_done`] says so. Returns false, and does nothing, without RING_RESET or if the queue is not
    /// in use.
    pub fn reset_queue(&self, index: u16) -> bool {
        let resets = self.phase() != Phase::Idle && self.resets_queues() && self.in_use(index);
        if resets {
            self.stopping.set(1 << index);
            self.kick_sender.ring(kick::ATTENTION);
        }
        resets
    }

    /// Whether the reset of a queue is done: the engine holds none of its buffers.
    #[must_use]
    pub fn queue_reset_done(&self, index: u16) -> bool {
        index >= self.fixed.queues || self.stopping.load(Ordering::Acquire) >> index & 1 == 0
    }

    /// Whether the driver has accepted RING_RESET.
    fn resets_queues(&self) -> bool {
        self.negotiated() & Features::RING_RESET.bits() != 0
    }

    /// Whether a queue is enabled, or its reset is not done.
    fn in_use(&self, index: u16) -> bool {
        !self.queue_reset_done(index) || self.slot(index).is_some_and(|slot| slot.enabled.load(Ordering::Relaxed))
    }

    /// A queue's configuration. If there is no such queue, it is the one after reset.
    #[must_use]
    pub fn queue(&self, index: u16) -> QueueConfig {
        self.slot(index).map_or(QueueConfig::RESET, QueueSlot::load)
    }

    /// Sets the MSI-X entry of a queue, at any time. Returns what the driver reads back: the entry, or [`NO_VECTOR`] if
    /// there is no such entry or queue.
    pub fn set_queue_vector(&self, index: u16, vector: u16) -> u16 {
        self.slot(index).map_or(NO_VECTOR, |slot| set_vector(&slot.vector, vector))
    }

    /// Sets the MSI-X entry for configuration changes. Returns what the driver reads back, as
    /// [`Shared::set_queue_vector`] does.
    pub fn set_config_vector(&self, vector: u16) -> u16 {
        set_vector(&self.config_vector, vector)
    }

    /// The MSI-X entry for configuration changes.
    #[must_use]
    pub fn config_vector(&self) -> u16 {
        self.config_vector.load(Ordering::Relaxed)
    }

    /// Activates the device: the driver set DRIVER_OK and accepted `features`. Returns false if the device is not idle.
    pub fn activate(&self, features: u64) -> bool {
        if self.phase() != Phase::Idle {
            return false;
        }
        self.negotiated.store(features, Ordering::Relaxed);
        let activated = self.step(Phase::Idle, Phase::Activating);
        self.kick_sender.ring(kick::ATTENTION);
        activated
    }

    /// Requests a device reset: the driver wrote 0 to the status. The transport reports the old status until
    /// [`Shared::reset_done`].
    pub fn request_reset(&self) {
        match self.phase.0.request_reset() {
            Phase::Idle => return self.clear(),
            Phase::Resetting => return,
            Phase::Activating | Phase::Running => {}
        }
        self.kick_sender.ring(kick::ATTENTION);
    }

    /// Whether the reset is done: the engine holds none of the device's buffers.
    #[must_use]
    pub fn reset_done(&self) -> bool {
        self.phase() == Phase::Idle
    }

    /// Whether the driver broke a rule: DEVICE_NEEDS_RESET is set in the status.
    #[must_use]
    pub fn needs_reset(&self) -> bool {
        self.needs_reset.load(Ordering::Acquire)
    }

    /// The driver notified a queue, which cost an exit. It has an effect only on a queue that is not polled.
    pub fn kick(&self, queue: u16) {
        self.counters.0.kicks.add_shared(1);
        if queue < self.fixed.queues {
            self.kick_sender.ring(1 << queue);
        }
    }

    /// Reads and clears the ISR status.
    pub fn take_isr(&self) -> u8 {
        self.isr.swap(0, Ordering::AcqRel)
    }

    /// `config_generation`. While a change is under way, each read returns another value: a driver that reads the field
    /// meanwhile reads it again (virtio 1.3 2.5.1), and nobody waits.
    #[must_use]
    pub fn config_generation(&self) -> u8 {
        if self.changing.load(Ordering::Acquire) {
            return self.generation.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        }
        self.generation.load(Ordering::Acquire)
    }

    /// Reads `size` bytes (up to 8) of device-specific configuration; zero beyond its end.
    #[must_use]
    pub fn read_config(&self, offset: u64, size: u8) -> u64 {
        let byte = |at: u64| {
            let at = usize::try_from(at).ok().filter(|&at| at < usize::from(self.fixed.config_len))?;
            Some(self.config.get(at)?.load(Ordering::Acquire))
        };
        let mut bytes = [0; 8];
        for (into, i) in bytes.iter_mut().zip(0..u64::from(size)) {
            *into = byte(offset.wrapping_add(i)).unwrap_or(0);
        }
        u64::from_le_bytes(bytes)
    }

    /// Writes `size` bytes (up to 8) of device-specific configuration for the driver. Only the bytes of
    /// [`DeviceConfig::driver_writes`] change. The engine sees them when it next reads them.
    pub fn write_config(&self, offset: u64, size: u8, value: u64) {
        let Ok(offset) = usize::try_from(offset) else { return };
        for (i, new) in value.to_le_bytes().into_iter().take(usize::from(size)).enumerate() {
            let at = offset.saturating_add(i);
            if let Some(byte) = self.config.get(at).filter(|_| self.driver_may_write(at)) {
                byte.store(new, Ordering::Release);
            }
        }
    }

    const fn driver_may_write(&self, at: usize) -> bool {
        at < CONFIG_BYTES && self.fixed.driver_writes >> at & 1 != 0
    }

    // The engine's side.

    /// Directs the device's kicks to bit `bit` (0 to 63) of an engine's word, or to none. Call it only while none of
    /// the guest's cores runs.
    pub fn connect(&self, engine: Option<(&'static AtomicU64, u8)>) {
        self.kick_sender.connect(engine);
    }

    /// Takes the kicks since the last call: one bit for each queue, and [`kick::ATTENTION`].
    pub fn take_rung(&self) -> u64 {
        self.kick_sender.take()
    }

    /// Takes the queues that the driver has set up since the last call, one bit each.
    pub fn take_starting(&self) -> u64 {
        self.starting.take()
    }

    /// Queues that the driver wants to reset, one bit each.
    pub fn stopping(&self) -> u64 {
        self.stopping.load(Ordering::Acquire)
    }

    /// Whether a queue waits to be taken into use or out of use.
    pub fn queues_change(&self) -> bool {
        (self.starting.load(Ordering::Relaxed) | self.stopping.load(Ordering::Relaxed)) != 0
    }

    /// Whether queues are looked at after their kicks only; see [`Shared::serve_after_kicks_only`].
    #[must_use]
    pub fn kicks_only(&self) -> bool {
        self.kicks_only.load(Ordering::Relaxed) && self.negotiated() & Features::EVENT_IDX.bits() == 0
    }

    /// Answers [`Shared::reset_queue`]: the engine has released the queue.
    pub fn queue_stopped(&self, index: u16) {
        if let Some(slot) = self.slot(index) {
            slot.store(&QueueConfig::RESET);
        }
        self.stopping.fetch_and(!(1 << index), Ordering::Release);
    }

    /// The device's phase.
    #[must_use]
    #[inline]
    pub fn phase(&self) -> Phase {
        self.phase.0.get()
    }

    /// The features that the driver accepted; valid from [`Phase::Activating`] on.
    #[must_use]
    pub fn negotiated(&self) -> u64 {
        self.negotiated.load(Ordering::Relaxed)
    }

    /// Changes the phase `from` to `to`. Returns false if the other side has changed it before.
    pub fn step(&self, from: Phase, to: Phase) -> bool {
        self.phase.0.step(from, to)
    }

    /// Restores a saved device. None of the guest's cores may run.
    pub fn restore(&self, state: &DeviceState) {
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
    pub fn isr(&self) -> u8 {
        self.isr.load(Ordering::Relaxed)
    }

    /// The device-specific configuration now.
    pub fn config(&self) -> [u8; CONFIG_BYTES] {
        self.config.each_ref().map(|byte| byte.load(Ordering::Relaxed))
    }

    /// Bytes of device-specific configuration from `offset` on; zero beyond its end.
    pub fn config_bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let byte = |i| Some(self.config.get(offset.checked_add(i)?)?.load(Ordering::Relaxed));
        core::array::from_fn(|i| byte(i).unwrap_or(0))
    }

    /// Counts a broken rule.
    pub fn count_fault(&self, fault: Fault) {
        self.counters.0.faults.add(1);
        if let Some(counter) = self.faults.get(fault as usize) {
            counter.add(1);
        }
    }

    /// Answers [`Shared::request_reset`]: the engine holds nothing any more.
    pub fn acknowledge_reset(&self) {
        self.kicks_only.store(false, Ordering::Relaxed);
        self.clear();
        self.step(Phase::Resetting, Phase::Idle);
    }

    /// Sets DEVICE_NEEDS_RESET. The caller sends the configuration-change interrupt.
    pub fn set_needs_reset(&self) {
        self.needs_reset.store(true, Ordering::Release);
        self.isr.fetch_or(ISR_CONFIG, Ordering::AcqRel);
    }

    /// Sets an ISR bit. Only a driver without MSI-X needs it.
    pub fn set_isr(&self, bits: u8) {
        self.isr.fetch_or(bits, Ordering::AcqRel);
    }

    /// The MSI-X entry of a queue now.
    pub fn queue_vector(&self, index: u16) -> u16 {
        self.slot(index).map_or(NO_VECTOR, |slot| slot.vector.load(Ordering::Relaxed))
    }

    /// Changes bytes of device-specific configuration. The caller sends the configuration change interrupt. Only one core
    /// changes a device's configuration.
    pub fn change_config(&self, offset: usize, bytes: &[u8]) {
        self.changing.store(true, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
        for (place, byte) in self.config.iter().skip(offset).zip(bytes) {
            place.store(*byte, Ordering::Release);
        }
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.changing.store(false, Ordering::Release);
        self.isr.fetch_or(ISR_CONFIG, Ordering::AcqRel);
    }

    fn slot(&self, index: u16) -> Option<&QueueSlot> {
        self.queues.get(usize::from(index)).filter(|_| index < self.fixed.queues)
    }

    /// Clears what a device reset clears (virtio 1.3 2.4.1, 4.1.4.3.1). The MSI-X table belongs to the function and
    /// stays.
    fn clear(&self) {
        for slot in &self.queues {
            slot.store(&QueueConfig::RESET);
        }
        for (at, (byte, initial)) in self.config.iter().zip(self.fixed.config).enumerate() {
            if self.driver_may_write(at) {
                byte.store(initial, Ordering::Release);
            }
        }
        self.starting.store(0, Ordering::Relaxed);
        self.stopping.store(0, Ordering::Release);
        self.negotiated.store(0, Ordering::Relaxed);
        self.config_vector.store(NO_VECTOR, Ordering::Relaxed);
        self.isr.store(0, Ordering::Relaxed);
        self.needs_reset.store(false, Ordering::Release);
    }
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("phase", &self.phase()).finish_non_exhaustive()
    }
}

fn set_vector(slot: &AtomicU16, vector: u16) -> u16 {
    let vector = if usize::from(vector) < VECTORS { vector } else { NO_VECTOR };
    slot.store(vector, Ordering::Relaxed);
    vector
}

#[cfg(test)]
mod tests {
    use super::{DeviceConfig, NO_VECTOR, Ordering, Phase, QueueConfig, Shared};
    use crate::testing;

    fn shared() -> Shared {
        Shared::new(testing::device())
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
    fn the_driver_writes_only_the_bytes_that_it_may_and_a_reset_restores_them() {
        let s = Shared::new(DeviceConfig { driver_writes: 1 << 1 | 1 << 63, ..testing::device() });
        let before = s.config();
        s.write_config(0, 8, u64::MAX);
        s.write_config(u64::MAX, 8, 0);
        s.write_config(60, 8, 0x1122_3344_5566_7788);
        let mut after = before;
        (after[1], after[63]) = (0xff, 0x55);
        assert_eq!(s.config(), after);
        assert!(s.activate(s.offered()));
        s.request_reset();
        s.acknowledge_reset();
        assert_eq!(s.config(), before);
    }

    #[test]
    fn configuration_reads_are_bounded_and_changes_are_announced() {
        let s = shared();
        assert_eq!(s.read_config(0, 8), 0x0001_0100_0000_0002);
        assert_eq!(s.read_config(10, 2), 1500);
        assert_eq!(s.read_config(12, 8), 0);
        assert_eq!(s.read_config(u64::MAX, 8) & 0xff, 0);
        let before = s.config_generation();
        s.change_config(6, &[0]);
        assert_ne!(s.config_generation(), before);
        assert_eq!(s.read_config(6, 2), 0);
        assert_eq!((s.take_isr(), s.take_isr()), (2, 0));
    }

    #[test]
    fn a_driver_accepts_no_mixture_of_an_old_and_a_new_value() {
        let s = shared();
        let before = s.config_generation();
        assert_eq!(s.config_generation(), before);
        // A driver in the middle of `change_config`: its two reads of the generation must not agree.
        s.changing.store(true, Ordering::Release);
        let during = [s.config_generation(), s.config_generation()];
        s.changing.store(false, Ordering::Release);
        assert!(during[0] != during[1] && !during.contains(&before), "{during:?}");
        s.change_config(0, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(s.read_config(0, 8), 0x0807_0605_0403_0201);
        assert!(!during.contains(&s.config_generation()));
    }
}
