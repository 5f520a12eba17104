//! A front-end: its messages (QEMU's "vhost-user protocol"), its settings, and its device.
//!
//! A queue is *ready* once it has a size, addresses within the memory and a kick, and is enabled. The device is
//! attached to the engine with the queues that are ready. A message that changes something first detaches the device,
//! which saves it as plain data. Afterwards the device is attached again and continues from there.

use std::fs::File;
use std::io;
use std::sync::Arc;

use engine::control::{Attachment, Command, Reply};
use engine::requests::Requests;
use memory::copy::Copier;
use memory::guest::MAX_REGIONS;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio::config::{MAX_QUEUES, NO_VECTOR, QueueConfig};
use virtio::queue::QueueState;
use virtio::state::{BadState, DeviceState, STATE_VERSION};

use crate::calls;
use crate::control::EngineControl;
use crate::inflight::{self, Inflight};
use crate::kicks::Kicks;
use crate::map::Regions;
use virtio::config::Features;

use crate::port::Port;

/// The feature bit of the protocol itself: it is not one of virtio.
const PROTOCOL: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

/// Addresses of a queue in the front-end: descriptor table, available ring, used ring.
#[derive(Clone, Copy)]
struct Addresses {
    desc: u64,
    avail: u64,
    used: u64,
}

/// A queue's settings.
#[derive(Default)]
struct Queue {
    size: u16,
    addresses: Option<Addresses>,
    /// The next position in the available ring, as in [`QueueState`]. None: the beginning.
    base: Option<u16>,
    /// SET_VRING_KICK has come, and no GET_VRING_BASE since.
    started: bool,
    kick: Option<File>,
    enabled: bool,
    has_call: bool,
}

/// A connected front-end.
pub struct Client {
    port: Arc<Port>,
    control: Arc<EngineControl>,
    kicks: Arc<Kicks>,
    copier: Copier,
    features: Option<u64>,
    /// REPLY_ACK was negotiated.
    acknowledges: bool,
    regions: Option<Regions>,
    /// The file of the in-flight tracking.
    inflight: Option<Inflight>,
    queues: [Queue; MAX_QUEUES],
    /// The queues with which the device is attached, one bit each. 0: it is not attached.
    attached: u16,
}

/// An error of the front-end.
fn refused<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::ReqHandlerError(io::Error::other(what.into())))
}

impl Client {
    /// A front-end that has sent nothing yet.
    pub fn new(port: Arc<Port>, control: Arc<EngineControl>, kicks: Arc<Kicks>, copier: Copier) -> Self {
        let queues = std::array::from_fn(|_| Queue::default());
        Self {
            port,
            control,
            kicks,
            copier,
            features: None,
            acknowledges: false,
            regions: None,
            inflight: None,
            queues,
            attached: 0,
        }
    }

    /// Handles the end of the connection: detaches the device.
    pub fn leave(&mut self) {
        self.detach();
        for queue in 0..MAX_QUEUES {
            self.set_call(queue, None);
        }
        self.queues = std::array::from_fn(|_| Queue::default());
        self.regions = None;
        inflight::turn(self.port.number, false);
        self.inflight = None;
        self.features = None;
        self.acknowledges = false;
        // The next front-end finds the configuration as it was at first.
        let shared = self.port.shared;
        for (at, byte) in shared.device().config.into_iter().enumerate() {
            // Only bytes that a driver may write change.
            shared.write_config(at as u64, 1, byte.into());
        }
    }

    /// Whether the front-end may send messages that the `vhost` crate does not accept yet.
    pub fn is_early(&self) -> bool {
        self.features.is_none_or(|features| features & PROTOCOL == 0)
    }

    /// Whether REPLY_ACK was negotiated: the front-end expects the replies that it requests.
    pub fn acknowledges(&self) -> bool {
        self.acknowledges
    }

    /// Handles SET_VRING_ENABLE.
    pub fn enable(&mut self, queue: u32, enable: u32) -> Result<()> {
        match enable {
            0 | 1 => self.set_vring_enable(queue, enable == 1),
            other => refused(format!("queue {queue} enabled by {other}: expected 0 or 1")),
        }
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue> {
        let queues = u32::from(self.port.shared.queues());
        match self.queues.get_mut(index as usize) {
            Some(queue) if index < queues => Ok(queue),
            _ => refused(format!("queue {index}: this port has {queues}")),
        }
    }

    /// The negotiated features, without the protocol's own bit.
    fn ring_features(&self) -> Features {
        Features::from_bits_retain(self.features.unwrap_or(0) & !PROTOCOL)
    }

    /// Whether its queues are packed rings.
    fn packed(&self) -> bool {
        self.ring_features().contains(Features::RING_PACKED)
    }

    /// A bit for each queue that is ready.
    fn ready(&self) -> u16 {
        let (Some(features), Some(_)) = (self.features, &self.regions) else { return 0 };
        let ready =
            |q: &Queue| q.size != 0 && q.addresses.is_some() && q.started && (q.enabled || features & PROTOCOL == 0);
        self.queues.iter().enumerate().filter(|(_, q)| ready(q)).fold(0, |bits, (n, _)| bits | 1 << n)
    }

    /// Detaches the device. Its queues keep their positions.
    fn detach(&mut self) {
        if self.attached == 0 {
            return;
        }
        // Requests in flight are completed first. Nobody would complete them later.
        let reply = self.control.command(Command::Drain { slot: self.port.number });
        for (n, queue) in self.queues.iter_mut().enumerate().filter(|(n, _)| self.attached & 1 << n != 0) {
            if let Some(kick) = &queue.kick {
                self.kicks.remove(kick);
            }
            // A device that broke the ring's rules has no position to resume from. It is set up again before its next
            // use.
            if let Reply::Detached(Some(state)) = &reply
                && !state.needs_reset
                && let Some(state) = state.queues.get(n)
            {
                queue.base = Some(state.avail);
            }
        }
        self.attached = 0;
        self.port.turns.end(self.control.turns());
    }

    /// Attaches the device again if the set of ready queues has changed.
    fn settle(&mut self) -> Result<()> {
        let ready = self.ready();
        if ready == self.attached {
            return Ok(());
        }
        self.detach();
        if ready == 0 {
            return Ok(());
        }
        let state = self.state(ready)?;
        let Some(regions) = &self.regions else { return Ok(()) };
        let Port { number, shared, requests, share, backend, .. } = *self.port;
        shared.restart();
        let memory = regions.memory().copied_by(self.copier);
        let state = Some(state);
        match self.control.command(Command::Attach(Attachment {
            slot: number,
            number,
            shared,
            memory,
            requests,
            share,
            config: backend,
            state,
        })) {
            Reply::Attached => {}
            Reply::BadState(BadState::Features(f)) => {
                return refused(format!(
                    "features {f:#x}: expected VERSION_1 and nothing beyond {:#x}",
                    self.port.offer()
                ));
            }
            Reply::BadState(BadState::Queue(fault)) => return refused(format!("queues {ready:#b}: {}", fault.text())),
            other => return refused(format!("the engine has not taken it: {other:?}")),
        }
        self.attached = ready;
        self.port.turns.begin(self.control.turns());
        if requests != Requests::Poll {
            for (n, queue) in self.queues.iter().enumerate().filter(|(n, _)| ready & 1 << n != 0) {
                if let Some(kick) = &queue.kick
                    && let Err(error) = self.kicks.add(number, n as u16, kick)
                {
                    return refused(format!("the kick of queue {n}: {error}"));
                }
            }
        }
        Ok(())
    }

    /// The state from which the engine resumes the device.
    fn state(&self, ready: u16) -> Result<DeviceState> {
        let mut queues = [QueueState { config: QueueConfig::RESET, avail: 0, used: 0 }; MAX_QUEUES];
        let features = self.ring_features();
        for (n, (state, queue)) in queues.iter_mut().zip(&self.queues).enumerate() {
            let Some(Addresses { desc, avail, used }) = queue.addresses.filter(|_| ready & 1 << n != 0) else {
                continue;
            };
            let place = |what: &str, user: u64| match self.regions.as_ref().and_then(|r| r.guest_address(user)) {
                Some(gpa) => Ok(gpa),
                None => refused(format!("the {what} of queue {n} at {user:#x} is not in the memory that was shared")),
            };
            let config = QueueConfig {
                size: queue.size,
                desc: place("descriptor table", desc)?,
                avail: place("available ring", avail)?,
                used: place("used ring", used)?,
                vector: if queue.has_call { n as u16 } else { NO_VECTOR },
                enabled: true,
            };
            let base = match &self.inflight {
                Some(inflight) => Some(self.tracked_base(inflight, n, &config, queue.base)?),
                None => queue.base,
            };
            *state = match base {
                Some(base) => QueueState { config, avail: base, used: base },
                None => QueueState::start(config, features),
            };
        }
        Ok(DeviceState {
            version: STATE_VERSION,
            device_type: self.port.shared.device().device_type,
            running: true,
            needs_reset: false,
            features: features.bits(),
            config_vector: NO_VECTOR,
            isr: 0,
            config: self.port.shared.config(),
            queues,
            msix: calls::table(),
        })
    }

    /// Where a queue has to start whose requests are tracked.
    fn tracked_base(&self, inflight: &Inflight, n: usize, config: &QueueConfig, base: Option<u16>) -> Result<u16> {
        if inflight.packed != self.packed() {
            return refused(format!(
                "queue {n}: the format of the rings has changed since the in-flight file was given"
            ));
        }
        let memory = self.regions.as_ref().map(Regions::memory).unwrap_or_default();
        let bytes = if inflight.packed { 16 * u64::from(config.size) } else { 16 };
        let Ok(ring) = memory.translate(config.desc, bytes) else {
            return refused(format!("the descriptor table of queue {n} is not in the memory that was shared"));
        };
        if !config.desc.is_multiple_of(16) {
            return refused(format!("the descriptor table of queue {n}: expected a multiple of 16"));
        }
        let used = || memory.read_u16(config.used + 2).ok();
        let port = self.port.number;
        match inflight.start(port, n as u16, (ring, config.size), base, used) {
            Some(base) => Ok(base),
            None => refused(format!("queue {n} of {} descriptors: the in-flight file has no room for it", config.size)),
        }
    }

    fn set_call(&mut self, index: usize, call: Option<File>) {
        let has_call = call.is_some();
        let old = calls::set(self.port.number, index, call);
        if old.is_some() {
            // The engine may be about to write to it.
            self.control.wait_for_turn();
        }
        drop(old);
        let Some(queue) = self.queues.get_mut(index) else { return };
        queue.has_call = has_call;
        if self.attached & 1 << index != 0 {
            self.port.shared.set_queue_vector(index as u16, if has_call { index as u16 } else { NO_VECTOR });
        }
    }

    /// Checks an eventfd that came with a message.
    fn event(what: &str, index: u8, file: Option<File>) -> Result<Option<File>> {
        match file.map(calls::event).transpose() {
            Ok(file) => Ok(file),
            Err(error) => refused(format!("the {what} of queue {index}: {error}")),
        }
    }
}

impl VhostUserBackendReqHandlerMut for Client {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.detach();
        self.queues.iter_mut().for_each(|queue| (queue.started, queue.enabled) = (false, false));
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset_owner()
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.port.offer() | PROTOCOL)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let beyond = features & !(self.port.offer() | PROTOCOL);
        if beyond != 0 {
            return refused(format!("features {features:#x}: {beyond:#x} was not offered"));
        }
        if self.features != Some(features) {
            self.detach();
            self.features = Some(features);
        }
        self.settle()
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        // The crate adds REPLY_ACK and handles it.
        Ok(self.port.protocol)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let offered = self.port.protocol | VhostUserProtocolFeatures::REPLY_ACK;
        self.acknowledges = features & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0;
        match features & !offered.bits() {
            0 => Ok(()),
            beyond => refused(format!("protocol features {features:#x}: {beyond:#x} was not offered")),
        }
    }

    fn set_mem_table(
        &mut self,
        table: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        self.detach();
        self.regions = None;
        match Regions::map(self.port.number, table, &files) {
            Ok(regions) => self.regions = Some(regions),
            Err(what) => return refused(what),
        }
        self.settle().map(|()| None)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        let max = self.port.shared.max_queue_size();
        let packed = self.packed();
        let size = match u16::try_from(size) {
            Ok(size) if (size.is_power_of_two() || packed && size != 0) && size <= max => size,
            _ => {
                let what = if packed { "1" } else { "a power of two" };
                return refused(format!("queue {index} with {size} descriptors: expected {what} up to {max}"));
            }
        };
        self.queue(index)?;
        self.detach();
        self.queue(index)?.size = size;
        self.settle()
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        desc: u64,
        used: u64,
        avail: u64,
        _log: u64,
    ) -> Result<()> {
        if !flags.is_empty() {
            return refused(format!("queue {index} with flags {:#x}: writes are not logged here", flags.bits()));
        }
        self.queue(index)?;
        self.detach();
        self.queue(index)?.addresses = Some(Addresses { desc, avail, used });
        self.settle()
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let (avail, used) = (base as u16, (base >> 16) as u16);
        // For a packed ring, the upper half may be the position of used descriptors. If no request is taken, it equals
        // the lower half.
        if used != 0 && !(self.packed() && used == avail) {
            return refused(format!("queue {index} from position {base:#x}: expected 16 bits"));
        }
        self.queue(index)?;
        self.detach();
        self.queue(index)?.base = Some(avail);
        self.settle()
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.queue(index)?;
        self.detach();
        let queue = self.queue(index)?;
        (queue.started, queue.kick) = (false, None);
        let base = queue.base;
        if let Some(inflight) = &self.inflight {
            inflight.stop(self.port.number, index as u16);
        }
        let packed = self.packed();
        self.settle()?;
        let base = u32::from(base.unwrap_or(QueueState::start(QueueConfig::RESET, self.ring_features()).avail));
        Ok(VhostUserVringState::new(index, if packed { base << 16 | base } else { base }))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.queue(u32::from(index))?;
        let kick = Self::event("kick", index, file)?;
        if kick.is_none() && self.port.requests != Requests::Poll {
            return refused(format!(
                "queue {index} without a kick: its requests would not be noticed, this port notifies"
            ));
        }
        self.detach();
        let queue = self.queue(u32::from(index))?;
        (queue.started, queue.kick) = (true, kick);
        self.settle()
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.queue(u32::from(index))?;
        let call = Self::event("call", index, file)?;
        self.set_call(usize::from(index), call);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        // It is never used: an error of a front-end ends its connection.
        self.queue(u32::from(index))?;
        Self::event("error", index, file).map(drop)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.queue(index)?.enabled = enable;
        self.settle()
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.port.shared.queues().into())
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        // Zeroes follow the fields that this device has. The crate limits the range to 256 bytes.
        let byte = |at: u32| self.port.shared.read_config(u64::from(at), 1) as u8;
        Ok((offset..offset.saturating_add(size)).map(byte).collect())
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        let shared = self.port.shared;
        for (at, byte) in (offset..).zip(bytes) {
            let may = at < u64::BITS && shared.device().driver_writes >> at & 1 != 0;
            if !may || *byte > 1 {
                return refused(format!(
                    "byte {at} of the configuration set to {byte}: expected 0 or 1 in `writeback`"
                ));
            }
            shared.write_config(at.into(), 1, (*byte).into());
        }
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        self.detach();
        let regions = self.regions.get_or_insert_default();
        if let Err(what) = regions.add(self.port.number, region, &file) {
            return refused(what);
        }
        self.settle().map(|()| None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.detach();
        if let Err(what) = self.regions.get_or_insert_default().remove(region) {
            return refused(what);
        }
        self.settle()
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *wanted;
        let (queues, max) = (self.port.shared.queues(), self.port.shared.max_queue_size());
        if !(1..=queues).contains(&num_queues) || !(1..=max).contains(&queue_size) {
            return refused(format!(
                "in-flight tracking of {num_queues} queues of {queue_size}: expected 1 to {queues} of 1 to {max}"
            ));
        }
        inflight::make(num_queues, queue_size).map_err(Error::ReqHandlerError)
    }

    fn set_inflight_fd(&mut self, told: &VhostUserInflight, file: File) -> Result<()> {
        self.detach();
        inflight::turn(self.port.number, false);
        self.inflight = None;
        match Inflight::map(self.port.number, self.packed(), told, &file) {
            Ok(inflight) => {
                if let Some(record) = self.port.record() {
                    inflight.share(self.port.number, record);
                }
                self.inflight = Some(inflight);
            }
            Err(what) => return refused(format!("in-flight tracking: {what}")),
        }
        inflight::turn(self.port.number, true);
        self.settle()
    }

    // The messages below belong to protocol features that are not offered. They are refused before they reach these
    // methods.

    fn set_gpu_socket(&mut self, _backend: GpuBackend) -> Result<()> {
        refused("GPU_SET_SOCKET")
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        refused("GET_SHARED_OBJECT")
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        refused("SET_DEVICE_STATE_FD")
    }

    fn check_device_state(&mut self) -> Result<()> {
        refused("CHECK_DEVICE_STATE")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        refused("GET_SHMEM_CONFIG")
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        refused("SET_LOG_BASE")
    }
}
