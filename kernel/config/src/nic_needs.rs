//! What the NIC of a `[[port]]` needs: its receive queues by the uplink's `steering`, and the VLANs that it receives.

use crate::{Optics, Steering, Uplink, Vlan};

/// Receive buffers of the only queue. 1,024 of the shortest frames arrive in 69 us at 10 Gbit/s.
const BUFFERS: u32 = 1024;
/// Receive buffers of each queue, if there are several.
const BUFFERS_OF_SEVERAL: u32 = 512;
/// Number of queues for `steering = "flows"`.
const FLOW_QUEUES: u16 = 4;
/// Most receive queues of a NIC. An 82599 cannot steer to more by addresses.
const MAX_RECEIVE_QUEUES: u16 = 32;

/// Receive queues of a NIC that can have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveQueues {
    /// Number of queues, 1 to 32.
    pub count: u16,
    /// Buffers of each queue. A buffer has 2 KiB.
    pub buffers: u32,
}

impl ReceiveQueues {
    /// Returns the queues for `steering`. `devices` is the number of the guests' network devices.
    #[must_use]
    pub fn of(steering: Steering, devices: usize) -> Self {
        match steering {
            Steering::None => Self { count: 1, buffers: BUFFERS },
            Steering::Flows => Self { count: FLOW_QUEUES, buffers: BUFFERS_OF_SEVERAL },
            Steering::Addresses => {
                // One for each device, and the first one for all other frames.
                let wanted = u16::try_from(devices).unwrap_or(u16::MAX).saturating_add(1);
                Self { count: wanted.clamp(2, MAX_RECEIVE_QUEUES), buffers: BUFFERS_OF_SEVERAL }
            }
        }
    }
}

/// What the NIC of an uplink needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicNeeds<'a> {
    /// Bytes of the longest frame of any guest, without FCS and VLAN tag.
    pub max_frame: u32,
    /// How it chooses the receive queue of a frame.
    pub steering: Steering,
    /// Its receive queues, if it can have several.
    pub queues: ReceiveQueues,
    /// VLANs whose tagged frames it receives. `None` if the uplink has no VLANs. Then a tag is payload.
    pub vlans: Option<&'a [u16]>,
    /// Which optics of 10 Gb/s it takes.
    pub optics: Optics,
}

impl<'a> NicNeeds<'a> {
    /// Returns the needs of the NIC of `uplink`. `devices` is the number of the guests' network devices. `max_frame` is
    /// their longest frame in bytes.
    #[must_use]
    pub fn of(uplink: &'a Uplink, devices: usize, max_frame: u32) -> Self {
        let vlans = match &uplink.rules.vlan {
            Vlan::Plain => None,
            Vlan::Access(_) => Some(&[][..]),
            Vlan::Trunk { vlans, .. } => Some(vlans.as_slice()),
        };
        let queues = ReceiveQueues::of(uplink.steering, devices);
        Self { max_frame, steering: uplink.steering, queues, vlans, optics: uplink.optics }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    /// What the NIC of the only uplink needs.
    fn needs(uplink: &str, devices: usize) -> (ReceiveQueues, Option<Vec<u16>>) {
        let config = parse("f", format!("[[port]]\ndevice = 'first'\n{uplink}\n")).config;
        let needs = NicNeeds::of(&config.uplinks[0], devices, 1514);
        assert_eq!((needs.max_frame, needs.steering), (1514, config.uplinks[0].steering));
        (needs.queues, needs.vlans.map(<[u16]>::to_vec))
    }

    #[test]
    fn steering_says_how_many_receive_queues_there_are() {
        let queues = |count, buffers| ReceiveQueues { count, buffers };
        assert_eq!(needs("", 7).0, queues(1, 1024));
        assert_eq!(needs("steering = 'flows'", 7).0, queues(4, 512));
        for (devices, count) in [(0, 2), (1, 2), (2, 3), (31, 32), (32, 32), (256, 32), (usize::MAX, 32)] {
            assert_eq!(needs("steering = 'addresses'", devices).0, queues(count, 512), "{devices} devices");
        }
    }

    #[test]
    fn tagged_frames_are_received_for_the_vlans_of_a_trunk_only() {
        assert_eq!(needs("", 1).1, None);
        assert_eq!(needs("vlan = 7", 1).1, Some(vec![]));
        assert_eq!(needs("vlans = [7, 9]\nnative = 20", 1).1, Some(vec![7, 9]));
    }
}
