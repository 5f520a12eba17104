//! The configuration of a console device, and the numbers of its queues (virtio 1.3 5.3.2 to 5.3.4).

use virtio::config::{CONFIG_BYTES, DeviceConfig, Features};

/// Virtio device type of a console (virtio 1.3 5).
pub const DEVICE_TYPE: u16 = 3;
/// Most ports of a device: the console and two named ports. A port has two queues, and there are two control queues.
/// With three ports a device has 8 of the 9 queues that a device may have ([`virtio::config::MAX_QUEUES`]). More queues
/// would enlarge the tables of every engine by 128 entries a queue. The guest that manages sidecore needs two named
/// ports: commands and trace records.
pub const MAX_PORTS: usize = 3;
/// Feature bit MULTIPORT: control queues, and ports beside the console (5.3.3).
pub const MULTIPORT: u64 = 1 << 1;
/// Largest size of a queue, in descriptors. Linux fills a receive queue with a page for each descriptor, so 64 of them
/// take 256 KiB of the guest for each port.
const QUEUE_SIZE: u16 = 64;
/// Bytes of configuration: `cols`, `rows`, `max_nr_ports`, `emerg_wr` (5.3.4).
const CONFIG_LEN: usize = 12;

/// The queue on which the device sends control messages: `control receiveq` (5.3.2).
pub const CONTROL_RECEIVE: u16 = 2;
/// The queue on which the driver sends control messages: `control transmitq`.
pub const CONTROL_TRANSMIT: u16 = 3;

/// What a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The driver's buffers for input to this port.
    Receive(usize),
    /// Output of this port.
    Transmit(usize),
    /// The driver's buffers for control messages.
    ControlReceive,
    /// Control messages of the driver.
    ControlTransmit,
}

/// Returns what a queue is for (5.3.2). The port may not exist.
#[must_use]
pub const fn role(queue: u16) -> Role {
    let pair = (queue / 2) as usize;
    let port = pair.saturating_sub(1);
    match (queue, queue % 2) {
        (CONTROL_RECEIVE, _) => Role::ControlReceive,
        (CONTROL_TRANSMIT, _) => Role::ControlTransmit,
        (_, 0) => Role::Receive(port),
        _ => Role::Transmit(port),
    }
}

/// Returns the queue with the driver's buffers for input to a port (5.3.2).
#[must_use]
pub const fn receive_queue(port: usize) -> u16 {
    if port == 0 { 0 } else { (port as u16).saturating_mul(2).saturating_add(2) }
}

/// Returns the queue with the output of a port (5.3.2).
#[must_use]
pub const fn transmit_queue(port: usize) -> u16 {
    receive_queue(port).saturating_add(1)
}

/// Returns the configuration of a console device with so many ports, 1 to [`MAX_PORTS`]. The console is one of them.
///
/// Not offered: SIZE, because the size of the terminal at the far end of a serial line is not known; EMERG_WRITE,
/// because the transport has no way to pass a write of configuration to a back-end; packed rings and RING_RESET, because
/// this device moves few requests.
#[must_use]
pub fn config(ports: usize) -> DeviceConfig {
    let ports = ports.clamp(1, MAX_PORTS);
    let features = Features::VERSION_1.union(Features::EVENT_IDX).union(Features::INDIRECT_DESC);
    let mut config = [0; CONFIG_BYTES];
    config[4..8].copy_from_slice(&(ports as u32).to_le_bytes());
    DeviceConfig {
        device_type: DEVICE_TYPE,
        features: features.bits() | MULTIPORT,
        queues: transmit_queue(ports.saturating_sub(1)).max(CONTROL_TRANSMIT).saturating_add(1),
        queue_size: QUEUE_SIZE,
        config,
        config_len: CONFIG_LEN as u16,
        driver_writes: 0,
    }
}

#[cfg(test)]
mod tests {
    use virtio::config::MAX_QUEUES;

    use super::{MAX_PORTS, Role, config, receive_queue, role, transmit_queue};

    #[test]
    fn queues_are_numbered_as_the_standard_numbers_them() {
        let roles: Vec<_> = (0..8).map(role).collect();
        let expected = [
            Role::Receive(0),
            Role::Transmit(0),
            Role::ControlReceive,
            Role::ControlTransmit,
            Role::Receive(1),
            Role::Transmit(1),
            Role::Receive(2),
            Role::Transmit(2),
        ];
        assert_eq!(roles, expected);
        for port in 0..MAX_PORTS {
            assert_eq!(role(receive_queue(port)), Role::Receive(port));
            assert_eq!(role(transmit_queue(port)), Role::Transmit(port));
        }
    }

    #[test]
    fn a_device_has_the_queues_of_its_ports_and_says_how_many_ports_it_has() {
        // A driver sets up two queues for each port and two for control (5.3.5).
        for ports in 1..=MAX_PORTS {
            let config = config(ports);
            assert_eq!(usize::from(config.queues), 2 * (ports + 1));
            assert!(usize::from(config.queues) <= MAX_QUEUES);
            assert_eq!(config.config[..12], [0, 0, 0, 0, ports as u8, 0, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!((config(0).queues, config(9).queues), (4, 8));
    }
}
