//! One socket: a front end's requests turned into a device attached to the engine.
//!
//! The engine takes a device with all its rings at once, vhost-user starts and stops them one by one. So whenever the
//! set of rings in use changes, the device is detached, its ring positions kept, and attached anew.

use std::fs::File;
use std::sync::Arc;

use engine::control::{Attachment, Command, Reply};
use engine::device::{DeviceState, STATE_VERSION};
use engine::queue::QueueState;
use engine::shared::{Features, MAX_QUEUE_SIZE, MAX_QUEUES, QueueConfig, Shared};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use crate::calls::Calls;
use crate::memory_table::MemoryTable;
use crate::seat::Seat;

const PROTOCOL_FEATURES: u64 = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
/// What is the front end's own to offer: what its configuration space holds.
const FRONT_END: Features = Features::NET_MTU.union(Features::NET_MAC).union(Features::NET_STATUS);

#[derive(Default)]
struct Ring {
    size: u16,
    /// Descriptor table, used ring and available ring, as the front end has them.
    addresses: Option<[u64; 3]>,
    /// Next position in the available and in the used ring.
    avail: u16,
    used: u16,
    kick: Option<File>,
    started: bool,
    enabled: bool,
}

/// A front end's session.
pub struct Session {
    seat: Arc<Seat>,
    calls: Arc<Calls>,
    port: usize,
    shared: &'static Shared,
    features: u64,
    table: Option<MemoryTable>,
    rings: [Ring; MAX_QUEUES],
    attached: bool,
}

impl Session {
    /// For one port of the engine.
    pub fn new(seat: Arc<Seat>, calls: Arc<Calls>, port: usize, shared: &'static Shared) -> Self {
        Self {
            seat,
            calls,
            port,
            shared,
            features: 0,
            table: None,
            rings: std::array::from_fn(|_| Ring::default()),
            attached: false,
        }
    }

    /// The front end is gone: nothing of it is used any more.
    pub fn end(&mut self) {
        self.detach();
        self.seat.doorbells.forget(self.port);
        for queue in 0..MAX_QUEUES {
            self.calls.set(self.port, queue, None);
        }
        self.rings = std::array::from_fn(|_| Ring::default());
        (self.features, self.table) = (0, None);
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring> {
        let queues = self.shared.queues();
        self.rings.get_mut(index as usize).filter(|_| index < u32::from(queues)).ok_or(Error::InvalidParam)
    }

    fn detach(&mut self) {
        if !std::mem::take(&mut self.attached) {
            return;
        }
        if let Reply::Detached(Some(state)) = self.seat.command(Command::Detach { port: self.port })
            && state.running
            && !state.needs_reset
        {
            for (ring, queue) in self.rings.iter_mut().zip(&state.queues) {
                if queue.config.enabled {
                    (ring.avail, ring.used) = (queue.avail, queue.used);
                }
            }
        }
    }

    /// Attaches the device with the rings that are started and enabled, if there are any.
    fn attach(&mut self) {
        let Some(table) = &self.table else { return };
        let vring_enable = self.features & PROTOCOL_FEATURES != 0;
        let queues = std::array::from_fn(|i| {
            let ring = &self.rings[i];
            let gpa = |user| table.gpa(user).unwrap_or(u64::MAX);
            let config = match ring.addresses {
                Some([desc, used, avail]) if ring.started && (ring.enabled || !vring_enable) => QueueConfig {
                    size: ring.size,
                    desc: gpa(desc),
                    avail: gpa(avail),
                    used: gpa(used),
                    vector: i as u16,
                    enabled: true,
                },
                _ => QueueConfig::RESET,
            };
            QueueState { config, avail: ring.avail, used: ring.used }
        });
        if queues.iter().all(|q| !q.config.enabled) {
            return;
        }
        self.shared.restart();
        Calls::route(self.shared);
        let state = DeviceState {
            version: STATE_VERSION,
            device_type: self.shared.device().device_type,
            running: true,
            needs_reset: false,
            features: self.features & !PROTOCOL_FEATURES & !FRONT_END.bits(),
            config_vector: engine::shared::NO_VECTOR,
            isr: 0,
            config: self.shared.device().config,
            queues,
            msix: self.shared.msix.save(),
        };
        let attachment = Attachment {
            port: self.port,
            number: self.port,
            shared: self.shared,
            memory: table.memory().clone(),
            state: Some(state),
        };
        match self.seat.command(Command::Attach(attachment)) {
            Reply::Attached => self.attached = true,
            other => eprintln!("port {}: not attached: {other:?}", self.port),
        }
    }

    /// Changes something while the device is not in use.
    fn change<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.detach();
        let result = f(self);
        self.attach();
        result
    }
}

const fn unsupported<T>() -> Result<T> {
    Err(Error::InvalidOperation("not offered"))
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.detach();
        self.rings = std::array::from_fn(|_| Ring::default());
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.shared.offered() & !FRONT_END.bits() | PROTOCOL_FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        self.change(|s| {
            s.features = features;
            Ok(())
        })
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        self.change(|s| match MemoryTable::new(regions, &files) {
            Ok(table) => {
                s.table = Some(table);
                Ok(None)
            }
            Err(error) => {
                eprintln!("port {}: memory table: {error:#}", s.port);
                Err(Error::InvalidParam)
            }
        })
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|n| *n <= MAX_QUEUE_SIZE && *n != 0).ok_or(Error::InvalidParam)?;
        self.ring(index)?.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.change(|s| {
            s.ring(index)?.addresses = Some([descriptor, used, available]);
            Ok(())
        })
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        // Every request that was taken has been completed, so both rings stand at the same position.
        let ring = self.ring(index)?;
        (ring.avail, ring.used) = (base as u16, base as u16);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.change(|s| {
            let ring = s.ring(index)?;
            (ring.started, ring.kick) = (false, None);
            let base = u32::from(ring.avail);
            s.seat.doorbells.set(s.port, index as u16, None);
            Ok(VhostUserVringState::new(index, base))
        })
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.change(|s| {
            let watched = fd.as_ref().and_then(|f| f.try_clone().ok());
            let ring = s.ring(u32::from(index))?;
            (ring.started, ring.kick) = (true, fd);
            s.seat.doorbells.set(s.port, u16::from(index), watched.map(|f| (f, s.shared)));
            Ok(())
        })
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.ring(u32::from(index))?;
        self.calls.set(self.port, usize::from(index), fd);
        Ok(())
    }

    fn set_vring_err(&mut self, _index: u8, _fd: Option<File>) -> Result<()> {
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(self.shared.queues()))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        if self.ring(index)?.enabled == enable {
            return Ok(());
        }
        self.change(|s| {
            s.ring(index)?.enabled = enable;
            Ok(())
        })
    }

    fn get_config(&mut self, _offset: u32, _size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        unsupported()
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        unsupported()
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        unsupported()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        unsupported()
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        unsupported()
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        unsupported()
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        unsupported()
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        unsupported()
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        unsupported()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        unsupported()
    }

    fn check_device_state(&mut self) -> Result<()> {
        unsupported()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        unsupported()
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        unsupported()
    }
}
