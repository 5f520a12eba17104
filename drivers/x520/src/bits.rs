//! Registers with fields, as types (data sheet 8.2.3).

use bitfield_struct::bitfield;

/// Device control (8.2.3.1).
#[bitfield(u32)]
pub(crate) struct Ctrl {
    #[bits(2)]
    _reserved: u8,
    pub master_disable: bool,
    pub lrst: bool,
    #[bits(22)]
    _reserved2: u32,
    pub rst: bool,
    #[bits(5)]
    _reserved3: u8,
}

/// Device status (8.2.3.1).
#[bitfield(u32)]
pub(crate) struct Status {
    #[bits(2)]
    _reserved: u8,
    #[bits(2)]
    pub lan_id: u8,
    #[bits(15)]
    _reserved2: u16,
    pub master_enabled: bool,
    #[bits(12)]
    _reserved3: u16,
}

/// Link status (8.2.3.22).
#[bitfield(u32)]
pub(crate) struct Links {
    #[bits(28)]
    _reserved: u32,
    /// 1: 100 Mb/s, 2: 1 Gb/s, 3: 10 Gb/s.
    #[bits(2)]
    pub speed: u8,
    pub up: bool,
    /// Negotiation over a backplane has ended.
    pub negotiated: bool,
}

/// Split receive control (8.2.3.8).
#[bitfield(u32)]
pub(crate) struct Srrctl {
    /// Bytes of a buffer, in units of 1 KiB.
    #[bits(5)]
    pub buffer_size: u8,
    #[bits(3)]
    _reserved: u8,
    /// Bytes of a header, in units of 64.
    #[bits(6)]
    pub header_size: u8,
    #[bits(8)]
    _reserved2: u8,
    #[bits(3)]
    pub threshold: u8,
    /// 1: advanced, one buffer.
    #[bits(3)]
    pub descriptor_type: u8,
    pub drop_en: bool,
    #[bits(3)]
    _reserved3: u8,
}

/// Receive descriptor control (8.2.3.8).
#[bitfield(u32)]
pub(crate) struct Rxdctl {
    #[bits(25)]
    _reserved: u32,
    pub enable: bool,
    #[bits(4)]
    _reserved2: u8,
    /// Strip VLAN tags.
    pub vme: bool,
    _reserved3: bool,
}

/// Transmit descriptor control (8.2.3.9).
#[bitfield(u32)]
pub(crate) struct Txdctl {
    #[bits(8)]
    pub pthresh: u8,
    #[bits(8)]
    pub hthresh: u8,
    #[bits(9)]
    pub wthresh: u16,
    pub enable: bool,
    #[bits(6)]
    _reserved: u8,
}

/// DMA transmit control (8.2.3.9).
#[bitfield(u32)]
pub(crate) struct Dmatxctl {
    pub enable: bool,
    #[bits(15)]
    _reserved: u16,
    /// Ethernet type of inserted tags.
    pub vlan_type: u16,
}

/// Receive DMA control (8.2.3.8).
#[bitfield(u32)]
pub(crate) struct Rdrxctl {
    _reserved: bool,
    pub crc_strip: bool,
    _reserved2: bool,
    /// DMA initialization is done.
    pub done: bool,
    #[bits(13)]
    _reserved3: u16,
    /// Has to be set to 0. It is not 0 after reset.
    #[bits(5)]
    pub rsc_first_size: u8,
    #[bits(3)]
    _reserved4: u8,
    /// Two bits that have to be set (8.2.3.8).
    #[bits(2)]
    pub must_be_set: u8,
    #[bits(5)]
    _reserved5: u8,
}

/// MAC control (8.2.3.22).
#[bitfield(u32)]
pub(crate) struct Hlreg0 {
    pub tx_crc: bool,
    pub rx_crc_strip: bool,
    pub jumbo: bool,
    #[bits(7)]
    _reserved: u8,
    pub tx_pad: bool,
    #[bits(4)]
    _reserved2: u8,
    pub loopback: bool,
    #[bits(16)]
    _reserved3: u16,
}

/// Filter control (8.2.3.7).
#[bitfield(u32)]
pub(crate) struct Fctrl {
    #[bits(8)]
    _reserved: u8,
    /// All multicasts.
    pub mpe: bool,
    /// All unicasts.
    pub upe: bool,
    /// Broadcasts.
    pub bam: bool,
    #[bits(21)]
    _reserved2: u32,
}

/// VLAN control (8.2.3.7).
#[bitfield(u32)]
pub(crate) struct Vlnctrl {
    pub vlan_type: u16,
    #[bits(14)]
    _reserved: u16,
    /// The device uses the filter table.
    pub vfe: bool,
    _reserved2: bool,
}

/// Multiple receive queues (8.2.3.7).
#[bitfield(u32)]
pub(crate) struct Mrqc {
    /// 0: off, 1: RSS, 8: 64 pools of two queues.
    #[bits(4)]
    pub mode: u8,
    #[bits(12)]
    _reserved: u16,
    pub tcp_ipv4: bool,
    pub ipv4: bool,
    #[bits(2)]
    _reserved2: u8,
    pub ipv6: bool,
    pub tcp_ipv6: bool,
    pub udp_ipv4: bool,
    pub udp_ipv6: bool,
    _reserved3: u8,
}

/// Transmit queues (8.2.3.9).
#[bitfield(u32)]
pub(crate) struct Mtqc {
    _reserved: bool,
    /// The queues belong to pools.
    pub pools: bool,
    /// 1: 64 pools of two queues.
    #[bits(2)]
    pub kind: u8,
    #[bits(28)]
    _reserved2: u32,
}

/// Pools (8.2.3.27).
#[bitfield(u32)]
pub(crate) struct Pfvtctl {
    pub enable: bool,
    #[bits(6)]
    _reserved: u8,
    #[bits(6)]
    pub default_pool: u8,
    #[bits(17)]
    _reserved2: u32,
    /// A frame may go to several pools.
    pub replication: bool,
    _reserved3: bool,
}

/// The frames that a pool accepts besides those to its own addresses (8.2.3.27).
#[bitfield(u32)]
pub(crate) struct Pfvml2flt {
    #[bits(24)]
    _reserved: u32,
    /// Frames without a tag.
    pub untagged: bool,
    /// Multicasts that match the multicast table.
    pub multicast_table: bool,
    /// Unicasts that match the unicast table.
    pub unicast_table: bool,
    pub broadcast: bool,
    /// All multicasts.
    pub multicast: bool,
    #[bits(3)]
    _reserved2: u8,
}

/// The two wires to the SFP+ module (8.2.3.1). `out` is what software wants, `in` what is on the wire.
#[bitfield(u32)]
pub(crate) struct I2cctl {
    pub clock_in: bool,
    pub clock_out: bool,
    pub data_in: bool,
    pub data_out: bool,
    #[bits(28)]
    _reserved: u32,
}

/// EEPROM read (8.2.3.2).
#[bitfield(u32)]
pub(crate) struct Eerd {
    pub start: bool,
    pub done: bool,
    #[bits(14)]
    pub address: u16,
    pub data: u16,
}

/// Software definable pins of a card with an SFP+ cage (8.2.3.1, and the card's wiring).
#[bitfield(u32)]
pub(crate) struct Esdp {
    #[bits(2)]
    _reserved: u8,
    /// A module is in the cage (pin 2, in).
    pub present: bool,
    /// The module's transmitter is off (pin 3, out).
    pub laser_off: bool,
    _reserved2: bool,
    /// The module's rate: 1 for 10 Gb/s (pin 5, out).
    pub rate: bool,
    #[bits(7)]
    _reserved3: u8,
    /// Pin 5 is an output.
    pub rate_output: bool,
    #[bits(18)]
    _reserved4: u32,
}

/// Auto-negotiation control (8.2.3.22).
#[bitfield(u32)]
pub(crate) struct Autoc {
    #[bits(12)]
    _reserved: u16,
    /// Restarts the link bring-up.
    pub restart: bool,
    /// The link's mode: see the constants `LMS_`.
    #[bits(3)]
    pub lms: u8,
    /// KR is offered to a backplane's other end.
    pub kr: bool,
    #[bits(11)]
    _reserved2: u16,
    /// PAUSE frames are offered to it, one way or both.
    #[bits(2)]
    pub pause: u8,
    /// KX is offered.
    pub kx: bool,
    /// KX4 is offered.
    pub kx4: bool,
}

/// AUTOC.LMS: 1 Gb/s without negotiation; over a backplane this is KX.
pub(crate) const LMS_ONE: u8 = 0;
/// AUTOC.LMS: 10 Gb/s over four lanes without negotiation; over a backplane this is KX4.
pub(crate) const LMS_TEN_PARALLEL: u8 = 1;

/// AUTOC.LMS: 10 Gb/s, serial.
pub(crate) const LMS_TEN: u8 = 3;
/// AUTOC.LMS: 1 Gb/s with auto-negotiation of clause 37.
pub(crate) const LMS_ONE_NEGOTIATED: u8 = 2;
/// AUTOC.LMS: modes with this bit negotiate with a backplane's other end (clause 73).
pub(crate) const LMS_NEGOTIATION_BIT: u8 = 4;

/// Auto-negotiation control, second register (8.2.3.22).
#[bitfield(u32)]
pub(crate) struct Autoc2 {
    #[bits(28)]
    _reserved: u32,
    /// Keeps the link off.
    #[bits(3)]
    pub link_off: u8,
    _reserved2: bool,
}

/// What auto-negotiation knows of the other end (8.2.3.22).
#[bitfield(u32)]
pub(crate) struct Anlp1 {
    _reserved: u16,
    /// Its state; 0: not begun.
    #[bits(4)]
    pub state: u8,
    #[bits(12)]
    _reserved2: u16,
}

/// EEPROM, device capabilities: optics of any vendor are allowed (6.3).
pub(crate) const CAPS_ANY_MODULE: u16 = 1;
/// EEPROM, device capabilities: an empty cage sees no signal of the other port.
pub(crate) const CAPS_NO_CROSSTALK: u16 = 1 << 7;

/// EEC: the EEPROM has been read after reset (8.2.3.2).
pub(crate) const EEC_AUTO_READ: u32 = 1 << 9;
/// EEMNGCTL: firmware has finished the configuration of port 0. The next bit is port 1's (8.2.3.2).
pub(crate) const EEMNGCTL_CONFIG_DONE: u32 = 1 << 18;
/// CTRL_EXT: no-snoop is off (8.2.3.1).
pub(crate) const CTRL_EXT_NS_DIS: u32 = 1 << 16;
/// DCA_RXCTRL: has to be set to 0. It is 1 after reset (4.6.7).
pub(crate) const DCA_RXCTRL_BIT_12: u32 = 1 << 12;
/// RTTDCS: the transmit arbiter is off (8.2.3.10).
pub(crate) const RTTDCS_ARBDIS: u32 = 1 << 6;
/// RXCTRL: receive is on (8.2.3.8).
pub(crate) const RXCTRL_RXEN: u32 = 1;
/// RXCSUM: descriptors carry the RSS hash (8.2.3.7).
pub(crate) const RXCSUM_PCSD: u32 = 1 << 13;
/// MCSTCTRL: the multicast table is used, with bits 47:36 of an address (8.2.3.7).
pub(crate) const MCSTCTRL_MFE: u32 = 1 << 2;
/// PFVLVF: the entry is valid (8.2.3.27).
pub(crate) const PFVLVF_VALID: u32 = 1 << 31;
