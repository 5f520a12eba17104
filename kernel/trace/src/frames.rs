//! Records of frames on their way through the switch: the class `frames`.
//!
//! The frames of a batch have the time at which the visit began as the time of `frame-in`, and the end of the batch as the time
//! of `frame-switched` and `frame-out`. So no frame costs a reading of the TSC.

use core::ops::Deref;

use crate::record::NO_GUEST;
use crate::ring::{Ring, Slot};
use crate::{Kind, Record};

/// Where the switch sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To the port with this slot of the engine.
    Port(u16),
    /// To all ports of its VLAN, and to the uplink if the port has one.
    Several,
    /// To the uplink.
    Uplink,
    /// To nobody.
    Nobody,
}

impl Destination {
    /// `b` of `frame-switched` for [`Destination::Several`].
    const SEVERAL: u64 = u64::MAX;
    /// The same for [`Destination::Uplink`].
    const UPLINK: u64 = u64::MAX - 1;
    /// The same for [`Destination::Nobody`].
    const NOBODY: u64 = u64::MAX - 2;

    /// As `b` of `frame-switched`.
    #[must_use]
    pub const fn to_b(self) -> u64 {
        match self {
            Self::Port(slot) => slot as u64,
            Self::Several => Self::SEVERAL,
            Self::Uplink => Self::UPLINK,
            Self::Nobody => Self::NOBODY,
        }
    }

    /// The destination of `b`. `None`: no writer of this version has written it.
    #[must_use]
    pub const fn from_b(b: u64) -> Option<Self> {
        match b {
            Self::SEVERAL => Some(Self::Several),
            Self::UPLINK => Some(Self::Uplink),
            Self::NOBODY => Some(Self::Nobody),
            _ if b <= u16::MAX as u64 => Some(Self::Port(b as u16)),
            _ => None,
        }
    }
}

/// The slot of the engine's first uplink in records. The others follow. Slots of devices are below.
pub const FIRST_UPLINK: u16 = 0x100;

/// The code of the first cause of drops at uplinks. Codes of causes at guests' ports are below.
pub const FIRST_UPLINK_CAUSE: u8 = 0x80;

/// A port, as records have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The engine's slot of its device, or [`FIRST_UPLINK`] plus the number of the uplink.
    pub slot: u16,
    /// The number of its guest, or [`NO_GUEST`].
    pub guest: u8,
}

impl Port {
    /// An uplink, by its number among those of the engine, below 256.
    #[must_use]
    pub const fn uplink(number: u8) -> Self {
        Self { slot: FIRST_UPLINK | number as u16, guest: NO_GUEST }
    }

    /// The record of a frame of `len` bytes at this port.
    #[must_use]
    #[inline]
    pub const fn record(self, kind: Kind, tsc: u64, len: u32) -> Record {
        // A device's slot and an uplink's number are below 256, and `a` has all of the slot.
        let a = (self.slot as u64) << 32 | len as u64;
        Record { guest: self.guest, unit: self.slot as u8, a, ..Record::new(kind, tsc) }
    }
}

/// What became of the frames of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They were dropped at their sender's port.
    Refused,
    /// They were sent there, and dropped there or handed to the uplink.
    Switched(Destination),
    /// They were given to this port.
    Given(Port),
}

/// Writes the records of a batch of frames from a port. `begin` and `end`: TSC. `lengths`: bytes of each frame.
#[inline]
pub fn write_batch<S: Deref<Target = [Slot]>>(
    ring: &Ring<S>,
    from: Port,
    fate: Fate,
    (begin, end): (u64, u64),
    lengths: &[u32],
) {
    let taken = from.record(Kind::FrameIn, begin, 0);
    let mut writer = ring.writer();
    let (to, given) = match fate {
        Fate::Refused => {
            lengths.iter().for_each(|&len| writer.write(Record { a: taken.a | u64::from(len), ..taken }));
            return;
        }
        Fate::Switched(to) => (to, None),
        Fate::Given(port) => (Destination::Port(port.slot), Some(port.record(Kind::FrameOut, end, 0))),
    };
    let switched = Record { b: to.to_b(), ..from.record(Kind::FrameSwitched, end, 0) };
    let of = |record: Record, len: u32| Record { a: record.a | u64::from(len), ..record };
    match given {
        Some(given) => {
            lengths.iter().for_each(|&len| writer.write_three(of(taken, len), of(switched, len), of(given, len)));
        }
        None => lengths.iter().for_each(|&len| {
            writer.write(of(taken, len));
            writer.write(of(switched, len));
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Cursor, WhenFull};

    #[test]
    fn destinations_come_back_from_their_numbers() {
        for to in [
            Destination::Port(0),
            Destination::Port(127),
            Destination::Several,
            Destination::Uplink,
            Destination::Nobody,
        ] {
            assert_eq!(Destination::from_b(to.to_b()), Some(to));
        }
        assert_eq!(Destination::from_b(1 << 16), None);
    }

    /// Kind, stamp, guest, unit, `a` and `b` of the records of a batch of two frames.
    fn written(fate: Fate, full: WhenFull) -> Vec<(Kind, u64, u8, u8, u64, u64)> {
        let ring = Ring::new((0..16).map(|_| Slot::new()).collect::<Vec<Slot>>()).unwrap();
        ring.when_full(full);
        write_batch(&ring, Port { slot: 3, guest: 1 }, fate, (10, 20), &[60, 1500]);
        let mut cursor = Cursor::new();
        let records = core::iter::from_fn(|| cursor.read(&ring));
        records.map(|r| (r.known_kind().unwrap(), r.tsc, r.guest, r.unit, r.a, r.b)).collect()
    }

    #[test]
    fn an_uplink_has_a_slot_above_those_of_devices_and_its_number_as_unit() {
        let record = Port::uplink(3).record(Kind::FrameOut, 7, 60);
        assert_eq!((record.guest, record.unit, record.a), (NO_GUEST, 3, 0x103 << 32 | 60));
        assert_eq!(Port::uplink(0).slot, FIRST_UPLINK);
    }

    #[test]
    fn each_frame_of_a_batch_has_a_record_of_each_step() {
        for full in [WhenFull::Overwrite, WhenFull::Stop] {
            let taken = |len: u64| (Kind::FrameIn, 10, 1, 3, 3 << 32 | len, 0);
            let switched = |len: u64, b| (Kind::FrameSwitched, 20, 1, 3, 3 << 32 | len, b);
            let given = |len: u64| (Kind::FrameOut, 20, 2, 5, 5 << 32 | len, 0);
            assert_eq!(written(Fate::Refused, full), [taken(60), taken(1500)]);
            let uplink = Destination::Uplink;
            assert_eq!(
                written(Fate::Switched(uplink), full),
                [taken(60), switched(60, uplink.to_b()), taken(1500), switched(1500, uplink.to_b())]
            );
            assert_eq!(
                written(Fate::Given(Port { slot: 5, guest: 2 }), full),
                [taken(60), switched(60, 5), given(60), taken(1500), switched(1500, 5), given(1500)]
            );
        }
    }
}
