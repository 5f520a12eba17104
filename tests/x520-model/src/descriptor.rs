//! Transmit descriptors (data sheet 7.2.3.2).

use bitfield_struct::bitfield;

/// Second word of a legacy or advanced data descriptor (7.2.3.2.2, 7.2.3.2.4).
#[bitfield(u64)]
pub(crate) struct Data {
    pub len: u16,
    #[bits(2)]
    _reserved: u8,
    #[bits(2)]
    pub mac: u8,
    #[bits(4)]
    pub dtyp: u8,
    pub eop: bool,
    pub ifcs: bool,
    pub ic: bool,
    pub rs: bool,
    _rsv: bool,
    pub dext: bool,
    pub vle: bool,
    pub tse: bool,
    #[bits(4)]
    pub sta: u8,
    #[bits(3)]
    pub idx: u8,
    pub cc: bool,
    pub ixsm: bool,
    pub txsm: bool,
    #[bits(4)]
    _ipsec: u8,
    #[bits(18)]
    pub paylen: u32,
}

/// Second word of a legacy descriptor, where it differs: offsets for its one checksum.
#[bitfield(u64)]
pub(crate) struct Legacy {
    pub len: u16,
    pub cso: u8,
    _cmd: u8,
    _sta: u8,
    pub css: u8,
    pub vlan: u16,
}

pub(crate) const TYPE_CONTEXT: u8 = 2;
pub(crate) const TYPE_DATA: u8 = 3;

/// The descriptor that says what to do to a packet: its first one (advanced) or its last one (legacy).
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketRequest {
    pub first: Data,
    pub legacy: bool,
}
