//! The control queue of a net device: what its driver wishes to receive, and on how many queue pairs (virtio 1.3
//! 5.1.6.5).
//!
//! A command is read once, as a whole, into memory of the engine's, and obeyed or refused as a whole. What a driver asks
//! for here concerns its own port alone: a filter keeps frames from it and never gives it one that the switch would not.

use memory::GuestMemory;

use super::status::{self, ANNOUNCE};
use crate::chain::{Segment, Segments};
use crate::device::Device;
use crate::fault::Fault;
use crate::queue::Request;
use crate::schedule::{Portion, Served};
use crate::shared::Features;
use crate::switch::Mac;

/// Bytes of the longest command that is read: address tables of any length that a driver has reason to send.
pub const COMMAND_BYTES: usize = 2048;
/// Addresses of either kind that are told apart. With more of them, all of that kind are let through.
const ADDRESSES: usize = 16;
const VLANS: usize = 4096;

const MAC_BYTES: usize = 6;

/// Command classes, and the commands of each.
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

/// What a command came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// Done: VIRTIO_NET_OK.
    Done,
    /// Done; the driver has announced itself, and the status bit that asked for it is to be cleared.
    Announced,
    /// VIRTIO_NET_ERR: no such command, its feature was not negotiated, or what it says is not as it should be.
    Refused,
}

impl Ack {
    /// The byte that the driver reads.
    #[must_use]
    pub const fn byte(self) -> u8 {
        match self {
            Self::Done | Self::Announced => 0,
            Self::Refused => 1,
        }
    }
}

/// Addresses of one kind.
#[derive(Clone, Debug, Default)]
struct Addresses {
    known: heapless::Vec<Mac, ADDRESSES>,
    /// There were more than can be told apart.
    all: bool,
}

impl Addresses {
    fn has(&self, mac: Mac) -> bool {
        self.all || self.known.contains(&mac)
    }
}

/// Receive modes, a bit each.
#[derive(Clone, Copy, Debug, Default)]
struct Modes {
    promiscuous: bool,
    all_multicast: bool,
    all_unicast: bool,
    no_multicast: bool,
    no_unicast: bool,
    no_broadcast: bool,
}

/// A driver's wishes.
#[derive(Clone, Debug)]
pub struct Wishes {
    features: Features,
    /// Its own address.
    own: Mac,
    max_pairs: u16,
    pairs: u16,
    modes: Modes,
    unicast: Addresses,
    multicast: Addresses,
    vlans: [u64; VLANS / 64],
}

impl Wishes {
    /// Of a driver that has not said anything: one pair, every frame.
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
        unicast: Addresses { known: heapless::Vec::new(), all: false },
        multicast: Addresses { known: heapless::Vec::new(), all: false },
        vlans: [0; VLANS / 64],
    };

    /// Forgets all wishes: the device has been activated with `features`, and has the address `own` and `max_pairs` queue
    /// pairs.
    pub fn restart(&mut self, features: Features, own: Mac, max_pairs: u16) {
        *self = Self { features, own, max_pairs, ..Self::NONE };
    }

    /// The control queue's number; None if there is none (5.1.2).
    #[must_use]
    pub const fn queue(&self) -> Option<u16> {
        if !self.features.contains(Features::NET_CTRL_VQ) {
            None
        } else if self.features.contains(Features::NET_MQ) {
            Some(2 * self.max_pairs)
        } else {
            Some(2)
        }
    }

    /// Queue pairs in use, 1 or more: frames are received on no others.
    #[must_use]
    #[inline]
    pub const fn pairs(&self) -> u16 {
        self.pairs
    }

    /// Whether every frame is wanted, so that there is no need to ask.
    #[must_use]
    #[inline]
    pub const fn all(&self) -> bool {
        self.modes.promiscuous
            || !self.features.contains(Features::NET_CTRL_RX) && !self.features.contains(Features::NET_CTRL_VLAN)
    }

    /// Whether a frame is wanted that is for `destination`; `vlan` is that of its tag, if it has one.
    #[must_use]
    pub fn wants(&self, destination: Mac, vlan: Option<u16>) -> bool {
        if self.all() {
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
            !no_multicast && (all_multicast || self.multicast.has(destination))
        } else {
            !no_unicast && (destination == self.own || all_unicast || self.unicast.has(destination))
        }
    }

    /// The multicasts that are wanted; None: all.
    #[must_use]
    pub fn groups(&self) -> Option<&[Mac]> {
        let Modes { promiscuous, all_multicast, no_multicast, .. } = self.modes;
        if promiscuous || !self.features.contains(Features::NET_CTRL_RX) {
            None
        } else if no_multicast {
            Some(&[])
        } else if all_multicast || self.multicast.all {
            None
        } else {
            Some(&self.multicast.known)
        }
    }

    fn has_vlan(&self, vlan: u16) -> bool {
        self.vlans.get(usize::from(vlan / 64)).is_some_and(|word| word >> (vlan % 64) & 1 == 1)
    }

    /// Obeys a command: class, command and what belongs to it, without the byte for the answer.
    pub fn obey(&mut self, command: &[u8]) -> Ack {
        self.try_obey(command).unwrap_or(Ack::Refused)
    }

    fn try_obey(&mut self, command: &[u8]) -> Option<Ack> {
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

/// A device has been activated.
pub fn begin(wishes: &mut Wishes, device: &mut Device, resumed: bool) {
    let pairs = device.shared().queues() / 2;
    let own = Mac::new(device.shared().config_bytes(0));
    wishes.restart(device.features(), own, pairs);
    // Switches on the way may have learned that the guest is where it was before.
    if resumed && device.features().contains(Features::NET_GUEST_ANNOUNCE) {
        status::set(device.shared(), ANNOUNCE, true);
        device.tell_config_changed();
    }
}

/// Obeys what waits in the control queue, up to a portion of it.
pub fn serve(
    wishes: &mut Wishes,
    device: &mut Device,
    queue: u16,
    segments: &mut Segments,
    portion: &Portion,
) -> Served {
    let mut taken = Served::default();
    while taken.requests < portion.requests {
        segments.clear();
        let Some(Request { token, chain }) = device.pop(queue, segments) else { break };
        taken.requests += 1;
        taken.bytes += u64::from(chain.readable_bytes);
        device.shared().counters().commands.add(1);
        // The answer is the last byte that the driver wants written.
        let Some(answer) = chain.writable(segments).last().map(|last| last.gpa + u64::from(last.len) - 1) else {
            device.fail(Fault::Direction);
            break;
        };
        let mut bytes = [0; COMMAND_BYTES];
        let ack = match read(device.memory(), chain.readable(segments), &mut bytes) {
            Some(command) => wishes.obey(command),
            None => Ack::Refused,
        };
        if ack == Ack::Announced {
            status::set(device.shared(), ANNOUNCE, false);
        }
        if device.memory().write(answer, &[ack.byte()]).is_err() {
            device.fail(Fault::Buffer);
            break;
        }
        device.complete(token, chain.writable_bytes);
    }
    taken
}

/// Copies a command out of the guest's memory; None if it is too long.
fn read<'b>(memory: &GuestMemory, buffers: &[Segment], into: &'b mut [u8; COMMAND_BYTES]) -> Option<&'b [u8]> {
    let mut at = 0;
    for buffer in buffers {
        let end = at + buffer.len as usize;
        memory.read(buffer.gpa, into.get_mut(at..end)?).ok()?;
        at = end;
    }
    into.get(..at)
}

/// A table of addresses, and what follows it: the number of entries, then the entries (5.1.6.5.2).
fn table(data: &[u8]) -> Option<(Addresses, &[u8])> {
    let (entries, rest) = data.split_first_chunk()?;
    let bytes = usize::try_from(u32::from_le_bytes(*entries)).ok()?.checked_mul(MAC_BYTES)?;
    let (macs, rest) = rest.split_at_checked(bytes)?;
    let mut addresses = Addresses::default();
    for &mac in macs.as_chunks().0 {
        addresses.all |= addresses.known.push(Mac::new(mac)).is_err();
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

    fn wishes() -> Wishes {
        let mut wishes = Wishes::NONE;
        wishes.restart(Features::all(), OWN, 4);
        wishes
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
            assert!(wishes().wants(mac, Some(7)));
            assert!(Wishes::NONE.wants(mac, None));
        }
        assert_eq!((Wishes::NONE.queue(), wishes().queue()), (None, Some(8)));
    }

    #[test]
    fn the_control_queue_follows_the_first_pair_if_there_is_only_one_in_use() {
        let mut w = Wishes::NONE;
        w.restart(Features::all().difference(Features::NET_MQ), OWN, 4);
        assert_eq!(w.queue(), Some(2));
        assert_eq!(w.obey(&[command::MQ, command::MQ_VQ_PAIRS_SET, 2, 0]), Ack::Refused);
    }

    #[test]
    fn each_mode_lets_through_what_its_name_says() {
        let mut w = wishes();
        assert_eq!(w.obey(&[0, 0, 0]), Ack::Done);
        let wanted = |w: &Wishes| [OWN, OTHER, GROUP, Mac::BROADCAST].map(|mac| w.wants(mac, None));
        assert_eq!(wanted(&w), [true, false, false, true]);
        for (mode, expected) in [
            (command::RX_PROMISC, [true, true, true, true]),
            (command::RX_ALLMULTI, [true, false, true, true]),
            (command::RX_ALLUNI, [true, true, false, true]),
            (command::RX_NOMULTI, [true, false, false, true]),
            (command::RX_NOUNI, [false, false, false, true]),
            (command::RX_NOBCAST, [true, false, false, false]),
        ] {
            assert_eq!(w.obey(&[command::RX, mode, 1]), Ack::Done);
            assert_eq!(wanted(&w), expected, "mode {mode}");
            assert_eq!(w.groups().is_none(), expected[2], "mode {mode}");
            assert_eq!(w.obey(&[command::RX, mode, 0]), Ack::Done);
        }
        assert_eq!(w.obey(&set(&[[2, 0, 0, 0, 0, 2]], &[[1, 0, 0x5e, 0, 0, 1]])), Ack::Done);
        assert_eq!(wanted(&w), [true, true, true, true]);
        assert_eq!(w.groups(), Some(&[GROUP][..]));
        assert!(!w.wants(Mac::new([2, 0, 0, 0, 0, 3]), None));
        assert_eq!(w.obey(&set(&[], &[])), Ack::Done);
        assert_eq!(wanted(&w), [true, false, false, true]);
    }

    #[test]
    fn of_more_addresses_than_can_be_told_apart_all_are_let_through() {
        let mut w = wishes();
        w.obey(&[0, 0, 0]);
        let many: Vec<[u8; 6]> = (0..=ADDRESSES as u8).map(|i| [1, 0, 0x5e, 1, 1, i]).collect();
        assert_eq!(w.obey(&set(&[], &many)), Ack::Done);
        assert!(w.wants(GROUP, None) && !w.wants(OTHER, None));
        assert_eq!(w.groups(), None);
    }

    #[test]
    fn tagged_frames_pass_if_their_vlan_was_asked_for() {
        let mut w = wishes();
        w.obey(&[0, 0, 0]);
        assert!(!w.wants(OWN, Some(4095)) && w.wants(OWN, None));
        assert_eq!(w.obey(&[command::VLAN, command::VLAN_ADD, 0xff, 0xf]), Ack::Done);
        assert!(w.wants(OWN, Some(4095)) && !w.wants(OWN, Some(4094)) && !w.wants(OTHER, Some(4095)));
        assert_eq!(w.obey(&[command::VLAN, command::VLAN_DEL, 0xff, 0xf]), Ack::Done);
        assert!(!w.wants(OWN, Some(4095)));
        assert_eq!(w.obey(&[command::VLAN, command::VLAN_ADD, 0, 0x10]), Ack::Refused, "VLAN 4096");
    }

    #[test]
    fn pairs_are_from_one_to_as_many_as_there_are() {
        let mut w = wishes();
        for (pairs, ack) in [(4, Ack::Done), (5, Ack::Refused), (0, Ack::Refused), (2, Ack::Done)] {
            assert_eq!(w.obey(&[command::MQ, command::MQ_VQ_PAIRS_SET, pairs, 0]), ack);
        }
        assert_eq!(w.pairs(), 2);
        assert_eq!(w.obey(&[command::MQ, 1, 1, 0]), Ack::Refused, "RSS");
        w.restart(Features::all(), OWN, 4);
        assert_eq!(w.pairs(), 1);
    }

    #[test]
    fn an_announcement_is_acknowledged() {
        assert_eq!(wishes().obey(&[command::ANNOUNCE, command::ANNOUNCE_ACK]), Ack::Announced);
        assert_eq!((Ack::Announced.byte(), Ack::Refused.byte()), (0, 1));
    }

    #[test]
    fn what_was_not_negotiated_is_refused() {
        let mut w = Wishes::NONE;
        w.restart(Features::VERSION_1.union(Features::NET_CTRL_VQ), OWN, 4);
        for command in [&[0, 0, 0][..], &[0, 2, 0], &set(&[], &[]), &[2, 0, 1, 0], &[3, 0], &[4, 0, 1, 0], &[9, 9], &[]]
        {
            assert_eq!(w.obey(command), Ack::Refused);
        }
        assert!(w.all());
    }

    #[test]
    fn tables_that_do_not_fit_their_length_change_nothing() {
        let mut w = wishes();
        w.obey(&[0, 0, 0]);
        w.obey(&set(&[[2, 0, 0, 0, 0, 2]], &[]));
        let good = set(&[[2, 0, 0, 0, 0, 3]], &[[1; 6]]);
        for len in 0..good.len() {
            assert_eq!(w.obey(&good[..len]), Ack::Refused);
        }
        let mut long = good.clone();
        long.push(0);
        let huge = [&[1, 0][..], &[0xff; 4]].concat();
        assert_eq!((w.obey(&long), w.obey(&huge)), (Ack::Refused, Ack::Refused));
        assert!(w.wants(OTHER, None));
    }

    proptest! {
        #[test]
        fn no_command_breaks_anything(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut w = wishes();
            w.obey(&bytes);
            prop_assert!((1..=4).contains(&w.pairs()));
        }
    }
}
