//! A port of the switch or a disk, which its client's thread and the server share.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use block::flushes::Record;
use engine::pair::Half;
use engine::requests::Requests;
use engine::schedule::GuestWeight;
use net::device;
use net::features::Features;
use net::policy::configured::Rules;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use virtio::config::DeviceConfig;
use virtio::shared::Shared;

use crate::backends::Config;
use crate::config;
use crate::disk::Disk;

/// Queue pairs of a port.
const PAIRS: u16 = 1;
/// Features that a front-end handles with its driver. The engine has no part in them, so it does not offer them.
const NOT_OF_THE_DATA_PATH: Features = Features::NET_MAC
    .union(Features::NET_STATUS)
    .union(Features::NET_MTU)
    .union(Features::NET_CTRL_VQ)
    .union(Features::NET_CTRL_RX)
    .union(Features::NET_CTRL_VLAN)
    .union(Features::NET_CTRL_RX_EXTRA)
    .union(Features::NET_GUEST_ANNOUNCE)
    .union(Features::NET_MQ)
    .union(Features::RING_RESET);

/// Counts an engine's turns while a device is attached.
#[derive(Default)]
pub struct Turns {
    /// Of each time that is over.
    over: AtomicU64,
    /// The engine's turns before the present time, plus 1. 0: it is not attached.
    since: AtomicU64,
}

impl Turns {
    /// It was attached. The engine has finished `now` turns.
    pub fn begin(&self, now: u64) {
        self.since.store(now + 1, Ordering::Relaxed);
    }

    /// It was detached.
    pub fn end(&self, now: u64) {
        self.over.store(self.count(now), Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
    }

    /// Their number until now.
    pub fn count(&self, now: u64) -> u64 {
        let over = self.over.load(Ordering::Relaxed);
        match self.since.load(Ordering::Relaxed) {
            0 => over,
            since => over + (now + 1).saturating_sub(since),
        }
    }
}

/// A port of the switch, or a disk.
pub struct Port {
    /// Its slot in the engine.
    pub number: usize,
    /// Its socket, for messages and tables.
    pub name: String,
    /// The state that the engine and its clients share.
    pub shared: &'static Shared,
    /// How the engine learns of its requests.
    pub requests: Requests,
    /// Its configuration for its back-end.
    pub backend: Config,
    /// The protocol features that its front-end is offered, besides REPLY_ACK.
    pub protocol: VhostUserProtocolFeatures,
    /// The rules for its frames. `None`: everything is allowed.
    pub rules: Option<Rules>,
    /// Its guest number and weight.
    pub share: GuestWeight,
    /// The engine's turns while it was attached.
    pub turns: Turns,
    /// The connection, if there is one.
    connection: Mutex<Option<UnixStream>>,
}

impl Port {
    /// A port of the switch without a client.
    pub fn new(number: usize, config: &config::Port, requests: Requests, rules: Option<Rules>) -> Self {
        let base = device::config(config.mac.unwrap_or_default(), config.mtu, PAIRS);
        let device = DeviceConfig {
            // The front-end implements the control queue, if there is one, and the configuration. It shows both to its
            // driver.
            features: base.features & !NOT_OF_THE_DATA_PATH.bits(),
            queues: 2 * PAIRS,
            queue_size: config.queue_size,
            ..base
        };
        Self {
            number,
            name: config.socket.display().to_string(),
            shared: Box::leak(Box::new(Shared::new(device))),
            requests,
            backend: Half::First(net::port::Port {
                policy: rules.as_ref().map(|rules| rules.policy),
                ..net::port::Port::new(Box::leak(Box::default()))
            }),
            protocol: VhostUserProtocolFeatures::empty(),
            rules,
            share: GuestWeight { guest: number, weight: config.weight },
            turns: Turns::default(),
            connection: Mutex::new(None),
        }
    }

    /// A disk without a client.
    pub fn of_disk(number: usize, config: &config::Disk, requests: Requests, disk: &Disk) -> Self {
        // What a RAM disk holds ends with the process, so there is nothing to go on with.
        let lasting = config.file.is_some();
        let tracking =
            if lasting { VhostUserProtocolFeatures::INFLIGHT_SHMFD } else { VhostUserProtocolFeatures::empty() };
        Self {
            number,
            name: config.socket.display().to_string(),
            shared: Box::leak(Box::new(Shared::new(disk.device))),
            requests,
            backend: Half::Second(disk.backend),
            protocol: VhostUserProtocolFeatures::CONFIG
                | VhostUserProtocolFeatures::MQ
                | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
                | tracking,
            rules: None,
            share: GuestWeight { guest: number, weight: config.weight },
            turns: Turns::default(),
            connection: Mutex::new(None),
        }
    }

    /// Whether a FLUSH of its disk has failed, if it is a disk that lasts.
    pub fn record(&self) -> Option<&'static Record> {
        match &self.backend {
            Half::First(_) => None,
            Half::Second(disk) => disk.record,
        }
    }

    /// The features that a front-end is offered.
    pub fn offer(&self) -> u64 {
        self.shared.offered()
    }

    /// Sets the connection; `None` when the front-end has gone.
    pub fn connected(&self, connection: Option<UnixStream>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }

    /// Ends the connection. The client's thread then sees its end.
    pub fn hang_up(&self) {
        if let Some(connection) = &*self.connection.lock().unwrap_or_else(PoisonError::into_inner) {
            // It may have ended by itself.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}
