//! A record: one event of 32 bytes.
//!
//! Layout in a saved trace, all numbers little-endian:
//!
//! | offset | bytes | field | meaning |
//! |---|---|---|---|
//! | 0 | 8 | `tsc` | TSC at the beginning of what the record describes |
//! | 8 | 1 | `kind` | number of the [`Kind`]; a newer writer may have others |
//! | 9 | 1 | `code` | by kind: see [`Kind`] |
//! | 10 | 1 | `guest` | number of the guest, or [`NO_GUEST`] |
//! | 11 | 1 | `unit` | by kind: vCPU, queue or port |
//! | 12 | 4 | `span` | TSC ticks that it took, [`u32::MAX`] for more; 0: an instant |
//! | 16 | 8 | `a` | by kind |
//! | 24 | 8 | `b` | by kind |

/// Bytes of a record.
pub const RECORD_BYTES: usize = 32;
/// The `guest` of a record that concerns no guest.
pub const NO_GUEST: u8 = u8::MAX;
/// `code` of [`Kind::Turn`]: no request was moved.
pub const IDLE: u8 = 0;
/// `code` of [`Kind::Turn`]: requests were moved.
pub const BUSY: u8 = 1;
/// `code` of [`Kind::Completion`]: the driver has suppressed the interrupt.
pub const SUPPRESSED: u8 = 0;
/// `code` of [`Kind::Completion`]: an interrupt is sent.
pub const NOTIFIED: u8 = 1;
/// `code` of [`Kind::Kick`]: an NMI.
pub const BY_NMI: u8 = 0;
/// `code` of [`Kind::Delivery`]: posted, and the notification vector was sent.
pub const POSTED: u8 = 1;
/// `code` of [`Kind::Delivery`]: the guest's own vector was sent to its core.
pub const DIRECT: u8 = 2;
/// `code` of [`Kind::Kick`]: an interrupt with a vector of the host's.
pub const BY_CALL: u8 = 3;
/// `b` of [`Kind::Injection`]: an interrupt.
pub const INTERRUPT: u64 = 0;
/// `b` of [`Kind::Injection`]: an NMI.
pub const NON_MASKABLE: u64 = 1;
/// `b` of [`Kind::Injection`]: an exception.
pub const EXCEPTION: u64 = 2;
/// `code` of [`Kind::Nmi`]: SERR#, an error of a PCI device or of memory.
pub const SYSTEM_ERROR: u8 = 1;
/// `code` of [`Kind::Nmi`]: IOCHK#, an error of a device on the LPC bus.
pub const IO_CHECK: u8 = 2;
/// `code` of [`Kind::MachineCheck`]: the error is from before the start. Nothing follows.
pub const BEFORE_START: u8 = 0;
/// `code` of [`Kind::MachineCheck`]: nobody ends. A guest whose memory it is does not start again.
pub const WITHHELD: u8 = 1;
/// `code` of [`Kind::MachineCheck`]: the guest whose memory it is ends, and does not start again.
pub const ENDS_GUEST: u8 = 2;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)+) => {
        /// What a record describes. Numbers and names are an interface, and never change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $variant = $number,)+ }

        impl Kind {
            /// All kinds, by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The kind with this number, or `None` if only a newer writer knows it.
            #[must_use]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)+ _ => None }
            }

            /// Its name in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

kinds! {
    /// An exit of a vCPU. `unit`: the vCPU. `code`: the reason, by the header's table. `span`: ticks in the host. `a`: RIP
    /// of the guest. `b`: what the exit named (port, MSR, address, vector).
    Exit = 1, "exit";
    /// A vCPU's entry into the guest. `unit`: the vCPU.
    Entry = 2, "entry";
    /// An event that is injected by the next entry. `unit`: the vCPU. `code`: the vector. `b`: [`INTERRUPT`],
    /// [`NON_MASKABLE`] or [`EXCEPTION`].
    Injection = 3, "injection";
    /// An interrupt is sent to a vCPU's core, which takes it without an exit. `unit`: the vCPU. `code`: [`POSTED`] or
    /// [`DIRECT`]. `a`: the vector, 0 if it was posted.
    Delivery = 4, "delivery";
    /// A vCPU's core is made to look at its mailbox, where an interrupt or a request was posted. `unit`: the vCPU. `code`:
    /// [`BY_NMI`] or [`BY_CALL`].
    Kick = 5, "kick";
    /// A turn of an engine. `code`: [`BUSY`] or [`IDLE`]. `span`: its length. `a`: requests that it moved.
    Turn = 6, "turn";
    /// A visit to a queue. `unit`: the queue. `span`: its length. `a`: the engine's slot of the device, times 2^32, plus the
    /// requests taken. `b`: bytes of them.
    Visit = 7, "visit";
    /// Completed requests of a queue were published. `unit`: the queue. `code`: [`NOTIFIED`] or [`SUPPRESSED`]. `a`: the
    /// engine's slot of the device, times 2^32.
    Completion = 8, "completion";
    /// A frame was taken from a guest's port, or came from the wire. `unit`: the port, or the number of the uplink, which has no
    /// guest. `a`: its slot, times 2^32, plus its length in bytes. The slot of an uplink is its number plus
    /// [`FIRST_UPLINK`](crate::frames::FIRST_UPLINK).
    FrameIn = 9, "frame-in";
    /// The switch has chosen where a frame goes. `unit`: the port or uplink that it came from. `a`: as for `frame-in`. `b`: where
    /// to, as [`Destination`](crate::frames::Destination).
    FrameSwitched = 10, "frame-switched";
    /// A frame was given to a guest's port, or a frame or a segment to an uplink's NIC. The NIC sends it later: the sender's
    /// request is completed when the NIC does not need its buffers any more. `unit` and `a`: as for `frame-in`, of this port.
    FrameOut = 11, "frame-out";
    /// A frame was dropped at a port of a guest, where `unit` is 0, or at an uplink, where it is the uplink's number. `code`: the
    /// cause, by the header's table. `a`: as for `frame-in`. A frame that the NIC has returned unsent has length 0: it is not
    /// known any more.
    FrameDropped = 12, "frame-dropped";
    /// A request was given to a disk. `unit`: the queue. `code`: its type, as the driver gave it (virtio 1.3 5.2.6): 0 a read, 1
    /// a write, 4 a flush, 11 a discard, 13 write zeroes. `a`: the engine's slot of the device, times 2^32, plus a number that no
    /// other request of the engine has until this one has ended. `b`: the first sector of 512 bytes.
    DiskSubmitted = 13, "disk-submitted";
    /// The driver was told of the end of a request. `unit` and `a`: as for `disk-submitted`. `code`: the status byte (virtio 1.3
    /// 5.2.6): 0 done, 1 failed, 2 not supported. `b`: bytes of its data, or of the range that it names. A request that was
    /// cancelled by a reset of its device has no such record.
    DiskCompleted = 14, "disk-completed";
    /// A device has moved to another engine. `a`: the slot it had. `b`: the slot it has.
    Moved = 15, "moved";
    /// A guest's state has changed, or lasts for long. `code`: the state, by the header's table. `a`: why the guest has
    /// stopped, by the header's table; 0 in every other state. Written when the control core reports the state.
    Life = 16, "life";
    /// An NMI of the machine. `code`: 0 unknown, [`SYSTEM_ERROR`] or [`IO_CHECK`]. `a`: how many there were since the last
    /// such record. `tsc`: when the control core told it, up to a tick after the NMI.
    Nmi = 17, "nmi";
    /// A machine check. `guest`: whose memory it is. `unit`: the core that found it. `code`: [`BEFORE_START`],
    /// [`WITHHELD`] or [`ENDS_GUEST`]. `a`: the physical address, 0 if it is not known. `b`: the bank's status. `tsc`: when
    /// the control core told it. A machine check that stops the machine has no record.
    MachineCheck = 18, "machine-check";
    /// The driver of a queue was seen to have taken completions. `unit`: the queue. `a`: the engine's slot of the device, times
    /// 2^32. `b`: ticks since they were published. That is an upper bound: the driver has taken them since the engine's look
    /// before. Not each publication has such a record: see `engine::follow`.
    Taken = 19, "taken";
}

/// An event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// TSC at the beginning of what it describes.
    pub tsc: u64,
    /// Number of its [`Kind`]. A reader keeps numbers that it does not know.
    pub kind: u8,
    /// By kind.
    pub code: u8,
    /// Number of the guest, or [`NO_GUEST`].
    pub guest: u8,
    /// vCPU, queue or port, by kind.
    pub unit: u8,
    /// TSC ticks that it took: at most [`u32::MAX`]. 0: an instant.
    pub span: u32,
    /// By kind.
    pub a: u64,
    /// By kind.
    pub b: u64,
}

impl Record {
    /// An instant of this kind at `tsc`, without a guest. The other fields are 0.
    #[must_use]
    pub const fn new(kind: Kind, tsc: u64) -> Self {
        Self { tsc, kind: kind as u8, code: 0, guest: NO_GUEST, unit: 0, span: 0, a: 0, b: 0 }
    }

    /// Sets `span` to the ticks from `tsc` to `end`.
    #[must_use]
    pub const fn until(mut self, end: u64) -> Self {
        let ticks = end.saturating_sub(self.tsc);
        self.span = if ticks > u32::MAX as u64 { u32::MAX } else { ticks as u32 };
        self
    }

    /// Without what only `profile` may see: the guest's RIP.
    #[must_use]
    pub const fn without_rip(self) -> Self {
        if self.kind == Kind::Exit as u8 { Self { a: 0, ..self } } else { self }
    }

    /// Its kind, if this version knows it.
    #[must_use]
    pub const fn known_kind(&self) -> Option<Kind> {
        Kind::from_number(self.kind)
    }

    /// As four words, in which a ring keeps it.
    #[must_use]
    #[inline]
    pub const fn to_words(self) -> [u64; 4] {
        let fields = self.kind as u64
            | (self.code as u64) << 8
            | (self.guest as u64) << 16
            | (self.unit as u64) << 24
            | (self.span as u64) << 32;
        [self.tsc, fields, self.a, self.b]
    }

    /// The record of four words of [`Record::to_words`].
    #[must_use]
    pub const fn from_words([tsc, fields, a, b]: [u64; 4]) -> Self {
        let [kind, code, guest, unit, ..] = fields.to_le_bytes();
        Self { tsc, kind, code, guest, unit, span: (fields >> 32) as u32, a, b }
    }

    /// As the bytes of a saved trace.
    #[must_use]
    pub fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.to_words()) {
            *to = word.to_le_bytes();
        }
        bytes
    }

    /// The record of these bytes. Any bytes are a record.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Self {
        let mut words = [0; 4];
        for (word, from) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*from);
        }
        Self::from_words(words)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_layout_in_bytes_is_as_documented() {
        let record = Record {
            tsc: 0x0807_0605_0403_0201,
            kind: 9,
            code: 10,
            guest: 11,
            unit: 12,
            span: 0x100f_0e0d,
            a: 1,
            b: 2,
        };
        let mut expected: Vec<u8> = (1..=16).collect();
        expected.extend([1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(record.to_bytes()[..], expected);
    }

    #[test]
    fn names_are_distinct_and_numbers_are_found_again() {
        for (i, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(Kind::from_number(*kind as u8), Some(*kind));
            assert!(kind.name().bytes().all(|c| c.is_ascii_lowercase() || c == b'-'));
            assert!(Kind::ALL[..i].iter().all(|other| other.name() != kind.name()));
        }
        assert_eq!(Kind::from_number(0), None, "memory that nobody has written is no record");
        assert_eq!(Kind::from_number(200), None);
    }

    #[test]
    fn a_span_saturates_and_is_never_negative() {
        let at = |tsc, end| Record::new(Kind::Exit, tsc).until(end).span;
        assert_eq!([at(5, 12), at(5, 5), at(5, 4), at(0, 1 << 40)], [7, 0, 0, u32::MAX]);
    }

    #[test]
    fn only_an_exit_has_a_rip_to_lose() {
        for &kind in Kind::ALL {
            let record = Record { a: 7, b: 8, code: 9, ..Record::new(kind, 1) };
            let a = if kind == Kind::Exit { 0 } else { 7 };
            assert_eq!(record.without_rip(), Record { a, ..record });
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_and_come_back(bytes: [u8; RECORD_BYTES]) {
            let record = Record::from_bytes(&bytes);
            prop_assert_eq!(record.to_bytes(), bytes);
            prop_assert_eq!(Record::from_words(record.to_words()), record);
        }
    }
}
