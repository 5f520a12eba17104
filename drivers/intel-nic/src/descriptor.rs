//! Advanced descriptors (82599 data sheet 7.1.6, 7.2.3; 82576 data sheet 7.1.5, 7.2.2).

use bitfield_struct::bitfield;

use crate::family::Family;

/// First word of an advanced receive descriptor after write-back (7.1.6.2).
#[bitfield(u64)]
pub struct ReceiveInfo {
    #[bits(4)]
    pub rss_type: u8,
    /// A bit for each: IPv4, IPv4 with options, IPv6, IPv6 with extensions, TCP, UDP, SCTP and more.
    #[bits(13)]
    pub packet_type: u16,
    #[bits(15)]
    _header: u16,
    pub hash: u32,
}

/// Packet type: UDP.
pub const PACKET_UDP: u16 = 1 << 5;

/// Second word of an advanced receive descriptor after write-back (7.1.6.2).
#[bitfield(u64)]
pub struct ReceiveStatus {
    pub dd: bool,
    pub eop: bool,
    _flm: bool,
    /// The device removed a VLAN tag.
    pub vp: bool,
    _udpcs: bool,
    /// The device checked the TCP or UDP checksum.
    pub l4cs: bool,
    /// The device checked the IPv4 checksum.
    pub ipcs: bool,
    #[bits(13)]
    _status: u16,
    /// See [`Family`] for their meaning.
    #[bits(12)]
    pub errors: u16,
    _len: u16,
    pub vlan: u16,
}

impl ReceiveStatus {
    /// Whether this descriptor is written back, ends its frame, and the frame is not damaged. If the frame also begins
    /// here, it is a frame of one descriptor.
    #[inline(always)]
    #[must_use]
    pub fn is_single<F: Family>(self) -> bool {
        const WANTED: u64 = ReceiveStatus::new().with_dd(true).with_eop(true).into_bits();
        let looked_at = const { WANTED | ReceiveStatus::new().with_errors(F::DAMAGED).into_bits() };
        self.into_bits() & looked_at == WANTED
    }

    /// Whether the device reports one of these errors.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, errors: u16) -> bool {
        self.errors() & errors != 0
    }

    /// Bytes in this buffer.
    #[inline(always)]
    #[must_use]
    pub const fn bytes(self) -> usize {
        (self.into_bits() >> 32) as u16 as usize
    }
}

/// First word of a transmit context descriptor (7.2.3.2.3).
#[bitfield(u64)]
pub struct ContextLow {
    #[bits(9)]
    pub iplen: u16,
    #[bits(7)]
    pub maclen: u8,
    pub vlan: u16,
    _ipsec: u32,
}

/// Second word of a transmit context descriptor.
#[bitfield(u64)]
pub struct ContextHigh {
    #[bits(9)]
    _esp: u16,
    _snap: bool,
    pub ipv4: bool,
    /// 0: UDP, 1: TCP.
    #[bits(2)]
    pub l4t: u8,
    #[bits(7)]
    _tucmd: u8,
    #[bits(4)]
    pub dtyp: u8,
    #[bits(5)]
    _rsv: u8,
    pub dext: bool,
    #[bits(6)]
    _rsv2: u8,
    #[bits(1)]
    pub idx: u8,
    #[bits(3)]
    _rsv3: u8,
    pub l4len: u8,
    pub mss: u16,
}

/// Second word of an advanced transmit data descriptor (7.2.3.2.4). The first is the address.
#[bitfield(u64)]
pub struct TransmitData {
    pub len: u16,
    #[bits(4)]
    _mac: u8,
    #[bits(4)]
    pub dtyp: u8,
    pub eop: bool,
    pub ifcs: bool,
    _rsv: bool,
    pub rs: bool,
    _rsv2: bool,
    pub dext: bool,
    pub vle: bool,
    pub tse: bool,
    /// The descriptor is written back.
    pub dd: bool,
    #[bits(3)]
    _sta: u8,
    #[bits(1)]
    pub idx: u8,
    #[bits(2)]
    _idx: u8,
    pub cc: bool,
    pub ixsm: bool,
    pub txsm: bool,
    #[bits(4)]
    _popts: u8,
    #[bits(18)]
    pub paylen: u32,
}

/// DTYP of a context descriptor.
pub const TYPE_CONTEXT: u8 = 2;
/// DTYP of an advanced data descriptor.
pub const TYPE_DATA: u8 = 3;
