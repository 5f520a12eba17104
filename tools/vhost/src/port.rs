//! A port of the switch as its client's thread and the server know it.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use engine::config::{DeviceConfig, Features};
use engine::net;
use engine::requests::Requests;
use engine::schedule::Share;
use engine::shared::Shared;
use rules::Rules;

use crate::config;

/// Queue pairs of a port.
const PAIRS: u16 = 1;
/// Features that are between a front-end and its driver.
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

/// A port.
pub struct Port {
    /// Its number with the engine.
    pub number: usize,
    /// Its socket, for messages and tables.
    pub name: String,
    /// What the engine and its clients share.
    pub shared: &'static Shared,
    /// How the engine learns of its requests.
    pub requests: Requests,
    /// What its frames may do; none: everything.
    pub rules: Option<Rules>,
    /// Whose it is, and the share of that one.
    pub share: Share,
    /// The connection, if there is one.
    connection: Mutex<Option<UnixStream>>,
}

impl Port {
    /// A port without a client.
    pub fn new(number: usize, config: &config::Port, requests: Requests, rules: Option<Rules>) -> Self {
        let base = net::config(config.mac.unwrap_or_default(), config.mtu, PAIRS);
        let device = DeviceConfig {
            // The front-end has the control queue, if there is one, and the configuration: it shows its driver both.
            features: base.features.difference(NOT_OF_THE_DATA_PATH),
            queues: 2 * PAIRS,
            queue_size: config.queue_size,
            policy: rules.as_ref().map(|rules| rules.policy),
            ..base
        };
        Self {
            number,
            name: config.socket.display().to_string(),
            shared: Box::leak(Box::new(Shared::new(device))),
            requests,
            rules,
            share: Share { guest: number, weight: config.weight },
            connection: Mutex::new(None),
        }
    }

    /// The features that a front-end is offered.
    pub fn offer(&self) -> u64 {
        self.shared.offered()
    }

    /// A front-end has connected or has gone.
    pub fn connected(&self, connection: Option<UnixStream>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }

    /// Parts with the front-end; its thread finds the connection ended.
    pub fn hang_up(&self) {
        if let Some(connection) = &*self.connection.lock().unwrap_or_else(PoisonError::into_inner) {
            // It may have ended by itself.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}
