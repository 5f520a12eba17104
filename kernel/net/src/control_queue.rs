//! The control queue of a network device (virtio 1.3 5.1.6.5): the receive filter that its driver sets, and the number
//! of queue pairs that it uses.
//!
//! A command is copied once, as a whole, into the engine's memory. It is executed or refused as a whole. It affects the
//! driver's own port only. A filter keeps frames away from that port. It never gives the port a frame that the switch
//! would not give it.

use engine::device::Device;
use engine::schedule::{Portion, Served};
use virtio::chain::Segments;
use virtio::fault::Fault;
use virtio::queue::Request;

use crate::counters::PortCounters;
use crate::cursor::Cursor;
use crate::features::Features;
use crate::mac::Mac;
use crate::status;

/// Longest command in bytes. Drivers have no reason to send longer address tables.
pub const COMMAND_BYTES: usize = 2048;
/// Most addresses in each table, unicast and multicast. With more, all frames of that kind are accepted.
const ADDRESSES: usize = 16;
/// Number of VLAN IDs.
const VLANS: usize = 4096;

const MAC_BYTES: usize = 6;

/// Command classes, and the commands of each (5.1.6.5).
mod command {
    pub const RX: u8 = 0;
    pub const RX_PROMISC: u8 = 0;
    pub const RX_ALLMULTI: u8 = 1;
    pub const RX_ALLUNI: u8 = 2;
    pub const RX_NOMULTI: u8 = 3;
    pub const RX_NOUNI: u8 = 4;
    pub const RX_NOBCAST: u8 = 5;

    pub const MAC: u8 = 1;
    pub const MAC_TABLE_SET: u8 = 0;

    pub const VLAN: u8 = 2;
    pub const VLAN_ADD: u8 = 0;
    pub const VLAN_DEL: u8 = 1;

    pub const ANNOUNCE: u8 = 3;
    pub const ANNOUNCE_ACK: u8 = 0;

    pub const MQ: u8 = 4;
    pub const MQ_VQ_PAIRS_SET: u8 = 0;
}

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// VIRTIO_NET_OK: it was executed.
    Done,
    /// VIRTIO_NET_OK: the driver announced itself, and the status bit that requested this must be cleared.
    Announced,
    /// VIRTIO_NET_ERR: the command does not exist, its feature was not negotiated, or its data are wrong.
    Refused,
}

impl Ack {
    /// Returns the byte that the driver reads.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Done | Self::Announced => 0,
            Self::Refused => 1,
        }
    }
}

/// An address table.
#[derive(Clone, Debug, Default)]
struct Addresses {
    known: heapless::Vec<Mac, ADDRESSES>,
    /// The driver set more addresses than there is room for.
    overflowed: bool,
}

impl Addresses {
    fn contains(&self, mac: Mac) -> bool {
        self.overflowed || self.known.contains(&mac)
    }
}

/// Receive modes (5.1.6.5.1).
#[derive(Clone, Copy, Debug, Default)]
struct Modes {
    promiscuous: bool,
    all_multicast: bool,
    all_unicast: bool,
    no_multicast: bool,
    no_unicast: bool,
    no_broadcast: bool,
}

/// What the driver of a port has set through its control queue: its receive filter, and the number of queue pairs.
#[derive(Clone, Debug)]
pub struct ReceiveSettings {
    features: Features,
    /// The device's own address.
    own: Mac,
    max_pairs: u16,
    pairs: u16,
    modes: Modes,
    unicast: Addresses,
    multicast: Addresses,
    vlans: [u64; VLANS / 64],
}

impl ReceiveSettings {
    /// The settings of a driver that has sent no command: it uses one pair and accepts every frame.
    pub const NONE: Self = Self {
        features: Features::empty(),
        own: Mac::NONE,
        max_pairs: 1,
        pairs: 1,
        modes: Modes {
            promiscuous: true,
            all_multicast: false,
            all_unicast: false,
            no_multicast: false,
            no_unicast: false,
            no_broadcast: false,
        },
        unicast: Addresses { known: heapless::Vec::new(), overflowed: false },
        multicast: Addresses { known: heapless::Vec::new(), overflowed: false },
        vlans: [0; VLANS / 64],
    };

    /// Resets all settings. The device was activated with `features`, and has the address `own` and `max_pairs` queue
    /// pairs.
    pub fn restart(&mut self, features: Features, own: Mac, max_pairs: u16) {
        *self = Self { features, own, max_pairs, ..Self::NONE };
    }

    /// Returns the number of the control queue. `None`: there is none (5.1.2).
    #[must_use]
    pub const fn control_queue(&self) -> Option<u16> {
        if !self.features.contains(Features::NET_CTRL_VQ) {
            None
        } else if self.features.contains(Features::NET_MQ) {
            Some(self.max_pairs.saturating_mul(2))
        } else {
            Some(2)
        }
    }

    /// Returns the number of queue pairs in use, 1 or more. Frames are received on these only.
    #[must_use]
    #[inline]
    pub const fn pairs(&self) -> u16 {
        self.pairs
    }

    /// Returns whether every frame is accepted, so that [`ReceiveSettings::accepts`] need not be called.
    #[must_use]
    #[inline]
    pub const fn accepts_all(&self) -> bool {
        self.modes.promiscuous
            || !self.features.contains(Features::NET_CTRL_RX) && !self.features.contains(Features::NET_CTRL_VLAN)
    }

    /// Returns whether a frame for `destination` is accepted. `vlan` is the VLAN of its tag, if it has one.
    #[must_use]
    pub fn accepts(&self, destination: Mac, vlan: Option<u16>) -> bool {
        if self.accepts_all() {
            return true;
        }
        let tag = match vlan {
            Some(vlan) if self.features.contains(Features::NET_CTRL_VLAN) => self.has_vlan(vlan),
            _ => true,
        };
        if !tag || !self.features.contains(Features::NET_CTRL_RX) {
            return tag;
        }
        let Modes { all_multicast, all_unicast, no_multicast, no_unicast, no_broadcast, .. } = self.modes;
        if destination == Mac::BROADCAST {
            !no_broadcast
        } else if destination.is_multicast() {
            !no_multicast && (all_multicast || self.multicast.contains(destination))
        } else {
            !no_unicast && (destination == self.own || all_unicast || self.unicast.contains(destination))
        }
    }

    /// Returns the multicast groups that are accepted. `None`: all.
    #[must_use]
    pub fn groups(&self) -> Option<&[Mac]> {
        let Modes { promiscuous, all_multicast, no_multicast, .. } = self.modes;
        if promiscuous || !self.features.contains(Features::NET_CTRL_RX) {
            None
        } else if no_multicast {
            Some(&[])
        } else if all_multicast || self.multicast.overflowed {
            None
        } else {
            Some(&self.multicast.known)
        }
    }

    fn has_vlan(&self, vlan: u16) -> bool {
        self.vlans.get(usize::from(vlan / 64)).is_some_and(|word| word >> (vlan % 64) & 1 == 1)
    }

    /// Executes a command: class, command and data, without the byte for the result.
    pub fn execute(&mut self, command: &[u8]) -> Ack {
        self.try_execute(command).unwrap_or(Ack::Refused)
    }

    fn try_execute(&mut self, command: &[u8]) -> Option<Ack> {
        let (&[class, number], data) = command.split_first_chunk()?;
        let feature = match (class, number) {
            (command::RX, command::RX_PROMISC | command::RX_ALLMULTI) | (command::MAC, _) => Features::NET_CTRL_RX,
            (command::RX, _) => Features::NET_CTRL_RX_EXTRA,
            (command::VLAN, _) => Features::NET_CTRL_VLAN,
            (command::ANNOUNCE, _) => Features::NET_GUEST_ANNOUNCE,
            (command::MQ, _) => Features::NET_MQ,
            _ => return None,
        };
        if !self.features.contains(feature) {
            return None;
        }
        match (class, number) {
            (command::RX, _) => {
                let &[on] = data else { return None };
                let modes = &mut self.modes;
                let mode = match number {
                    command::RX_PROMISC => &mut modes.promiscuous,
                    command::RX_ALLMULTI => &mut modes.all_multicast,
                    command::RX_ALLUNI => &mut modes.all_unicast,
                    command::RX_NOMULTI => &mut modes.no_multicast,
                    command::RX_NOUNI => &mut modes.no_unicast,
                    command::RX_NOBCAST => &mut modes.no_broadcast,
                    _ => return None,
                };
                *mode = on != 0;
            }
            (command::MAC, command::MAC_TABLE_SET) => {
                let (unicast, rest) = table(data)?;
                let (multicast, rest) = table(rest)?;
                if !rest.is_empty() {
                    return None;
                }
                (self.unicast, self.multicast) = (unicast, multicast);
            }
            (command::VLAN, command::VLAN_ADD | command::VLAN_DEL) => {
                let vlan = u16::from_le_bytes(data.try_into().ok()?);
                let word = self.vlans.get_mut(usize::from(vlan / 64))?;
                let bit = 1 << (vlan % 64);
                if number == command::VLAN_ADD { *word |= bit } else { *word &= !bit }
            }
            (command::ANNOUNCE, command::ANNOUNCE_ACK) if data.is_empty() => return Some(Ack::Announced),
            (command::MQ, command::MQ_VQ_PAIRS_SET) => {
                let pairs = u16::from_le_bytes(data.try_into().ok()?);
                if pairs == 0 || pairs > self.max_pairs {
                    return None;
                }
                self.pairs = pairs;
            }
            _ => return None,
        }
        Some(Ack::Done)
    }
}

/// Resets the settings of a device that was activated. `resumed`: its driver continues from a saved state.
pub fn activate(settings: &mut ReceiveSettings, device: &mut Device, resumed: bool) {
    let pairs = device.shared().queues() / 2;
    let own = Mac::new(device.shared().config_bytes(0));
    let features = Features::of(device);
    settings.restart(features, own, pairs);
    // Switches outside may still send the guest's frames to the place where it was before.
    if resumed && features.contains(Features::NET_GUEST_ANNOUNCE) {
        status::set(device.shared(), status::ANNOUNCE, true);
        device.notify_config_change();
    }
}

/// Executes commands of the control queue, up to a portion.
pub fn serve(
    settings: &mut ReceiveSettings,
    device: &mut Device,
    queue: u16,
    segments: &mut Segments,
    portion: &Portion,
    counters: &PortCounters,
) -> Served {
    let mut taken = Served::default();
    while taken.requests < portion.requests {
        segments.clear();
        let Some(Request { token, chain }) = device.pop(queue, segments) else { break };
        taken.add(Served::new(1, chain.readable_bytes.into()));
        counters.frames.commands.add(1);
        // The result is written to the last byte that the device may write.
        let Some(answer) =
            chain.writable(segments).last().map(|last| last.gpa.wrapping_add(u64::from(last.len).wrapping_sub(1)))
        else {
            device.fail(Fault::Direction);
            break;
        };
        let mut bytes = [0; COMMAND_BYTES];
        // `None`: the command is too long, or not in the guest's memory.
        let command = bytes.get_mut(..chain.readable_bytes as usize).and_then(|command| {
            Cursor::new(chain.readable(segments)).read(device.memory(), command)?;
            Some(&*command)
        });
        let ack = command.map_or(Ack::Refused, |command| settings.execute(command));
        if ack == Ack::Announced {
            status::set(device.shared(), status::ANNOUNCE, false);
        }
        if device.memory().write(answer, &[ack.byte()]).is_err() {
            device.fail(Fault::Buffer);
            break;
        }
        device.complete(token, chain.writable_bytes);
    }
    taken
}

/// Parses an address table: the number of entries, then the entries (5.1.6.5.2).
/// Returns the table, and the bytes after it.
fn table(data: &[u8]) -> Option<(Addresses, &[u8])> {
    let (entries, rest) = data.split_first_chunk()?;
    let bytes = usize::try_from(u32::from_le_bytes(*entries)).ok()?.checked_mul(MAC_BYTES)?;
    let (macs, rest) = rest.split_at_checked(bytes)?;
    let mut addresses = Addresses::default();
    for &mac in macs.as_chunks().0 {
        addresses.overflowed |= addresses.known.push(Mac::new(mac)).is_err();
    }
    Some((addresses, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWN: Mac = Mac::new([2, 0, 0, 0, 0, 1]);
    const OTHER: Mac = Mac::new([2, 0, 0, 0, 0, 2]);
    const GROUP: Mac = Mac::new([1, 0, 0x5e, 0, 0, 1]);

    fn settings() -> ReceiveSettings {
        let mut settings = ReceiveSettings::NONE;
        settings.restart(Features::all(), OWN, 4);
        settings
    }

    fn set(unicast: &[[u8; 6]], multicast: &[[u8; 6]]) -> Vec<u8> {
        let mut bytes = vec![command::MAC, command::MAC_TABLE_SET];
        for table in [unicast, multicast] {
            bytes.extend((table.len() as u32).to_le_bytes());
            bytes.extend(table.concat());
        }
        bytes
    }

    #[test]
    fn a_driver_that_has_said_nothing_wants_all() {
        for mac in [OWN, OTHER, GROUP, Mac::BROADCAST] {
            assert!(settings().accepts(mac, Some(7)));
            assert!(ReceiveSettings::NONE.accepts(mac, None));
        }
        assert_eq!((ReceiveSettings::NONE.control_queue(), settings().control_queue()), (None, Some(8)));
    }

    #[test]
    fn the_control_queue_follows_the_first_pair_if_there_is_only_one_in_use() {
        let mut w = ReceiveSettings::NONE;
        w.restart(Features::all().difference(Features::NET_MQ), OWN, 4);
        assert_eq!(w.control_queue(), Some(2));
        assert_eq!(w.execute(&[command::MQ, command::MQ_VQ_PAIRS_SET, 2, 0]), Ack::Refused);
    }

    #[test]
    fn each_mode_lets_through_what_its_name_says() {
        let mut w = settings();
        assert_eq!(w.execute(&[0, 0, 0]), Ack::Done);
        let wanted = |w: &ReceiveSettings| [OWN, OTHER, GROUP, Mac::BROADCAST].map(|mac| w.accepts(mac, None));
        assert_eq!(wanted(&w), [true, false, false, true]);
        for (mode, expected) in [
            (command::RX_PROMISC, [true, true, true, true]),
            (command::RX_ALLMULTI, [true, false, true, true]),
            (command::RX_ALLUNI, [true, true, false, true]),
            (command::RX_NOMULTI, [true, false, false, true]),
            (command::RX_NOUNI, [false, false, false, true]),
            (command::RX_NOBCAST, [true, false, false, false]),
        ] {
            assert_eq!(w.execute(&[command::RX, mode, 1]), Ack::Done);
            assert_eq!(wanted(&w), expected, "mode {mode}");
            assert_eq!(w.groups().is_none(), expected[2], "mode {mode}");
            assert_eq!(w.execute(&[command::RX, mode, 0]), Ack::Done);
        }
        assert_eq!(w.execute(&set(&[[2, 0, 0, 0, 0, 2]], &[[1, 0, 0x5e, 0, 0, 1]])), Ack::Done);
        assert_eq!(wanted(&w), [true, true, true, true]);
        assert_eq!(w.groups(), Some(&[GROUP][..]));
        assert!(!w.accepts(Mac::new([2, 0, 0, 0, 0, 3]), None));
        assert_eq!(w.execute(&set(&[], &[])), Ack::Done);
        assert_eq!(wanted(&w), [true, false, false, true]);
    }

    #[test]
    fn of_more_addresses_than_can_be_told_apart_all_are_let_through() {
        let mut w = settings();
        w.execute(&[0, 0, 0]);
        let many: Vec<[u8; 6]> = (0..=ADDRESSES as u8).map(|i| [1, 0, 0x5e, 1, 1, i]).collect();
        assert_eq!(w.execute(&set(&[], &many)), Ack::Done);
        assert!(w.accepts(GROUP, None) && !w.accepts(OTHER, None));
        assert_eq!(w.groups(), None);
    }

    #[test]
    fn tagged_frames_pass_if_their_vlan_was_asked_for() {
        let mut w = settings();
        w.execute(&[0, 0, 0]);
        assert!(!w.accepts(OWN, Some(4095)) && w.accepts(OWN, None));
        assert_eq!(w.execute(&[command::VLAN, command::VLAN_ADD, 0xff, 0xf]), Ack::Done);
        assert!(w.accepts(OWN, Some(4095)) && !w.accepts(OWN, Some(4094)) && !w.accepts(OTHER, Some(4095)));
        assert_eq!(w.execute(&[command::VLAN, command::VLAN_DEL, 0xff, 0xf]), Ack::Done);
        assert!(!w.accepts(OWN, Some(4095)));
        assert_eq!(w.execute(&[command::VLAN, command::VLAN_ADD, 0, 0x10]), Ack::Refused, "VLAN 4096");
    }

    #[test]
    fn pairs_are_from_one_to_as_many_as_there_are() {
        let mut w = settings();
        for (pairs, ack) in [(4, Ack::Done), (5, Ack::Refused), (0, Ack::Refused), (2, Ack::Done)] {
            assert_eq!(w.execute(&[command::MQ, command::MQ_VQ_PAIRS_SET, pairs, 0]), ack);
        }
        assert_eq!(w.pairs(), 2);
        assert_eq!(w.execute(&[command::MQ, 1, 1, 0]), Ack::Refused, "RSS");
        w.restart(Features::all(), OWN, 4);
        assert_eq!(w.pairs(), 1);
    }

    #[test]
    fn an_announcement_is_acknowledged() {
        assert_eq!(settings().execute(&[command::ANNOUNCE, command::ANNOUNCE_ACK]), Ack::Announced);
        assert_eq!((Ack::Announced.byte(), Ack::Refused.byte()), (0, 1));
    }

    #[test]
    fn what_was_not_negotiated_is_refused() {
        let mut w = ReceiveSettings::NONE;
        w.restart(Features::VERSION_1.union(Features::NET_CTRL_VQ), OWN, 4);
        for command in [&[0, 0, 0][..], &[0, 2, 0], &set(&[], &[]), &[2, 0, 1, 0], &[3, 0], &[4, 0, 1, 0], &[9, 9], &[]]
        {
            assert_eq!(w.execute(command), Ack::Refused);
        }
        assert!(w.accepts_all());
    }

    #[test]
    fn tables_that_do_not_fit_their_length_change_nothing() {
        let mut w = settings();
        w.execute(&[0, 0, 0]);
        w.execute(&set(&[[2, 0, 0, 0, 0, 2]], &[]));
        let good = set(&[[2, 0, 0, 0, 0, 3]], &[[1; 6]]);
        for len in 0..good.len() {
            assert_eq!(w.execute(&good[..len]), Ack::Refused);
        }
        let mut long = good.clone();
        long.push(0);
        let huge = [&[1, 0][..], &[0xff; 4]].concat();
        assert_eq!((w.execute(&long), w.execute(&huge)), (Ack::Refused, Ack::Refused));
        assert!(w.accepts(OTHER, None));
    }

    proptest! {
        #[test]
        fn no_command_breaks_anything(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut w = settings();
            w.execute(&bytes);
            prop_assert!((1..=4).contains(&w.pairs()));
        }
    }
}
