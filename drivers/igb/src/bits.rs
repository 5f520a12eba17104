//! Registers with fields, as types (82576 data sheet, chapter 8). The I350 has the same where nothing else is said.

use bitfield_struct::bitfield;

/// Device control (8.2).
#[bitfield(u32)]
pub(crate) struct Ctrl {
    #[bits(2)]
    _reserved: u8,
    pub master_disable: bool,
    #[bits(3)]
    _reserved2: u8,
    /// The MAC uses the PHY's link.
    pub set_link_up: bool,
    #[bits(4)]
    _reserved3: u8,
    pub force_speed: bool,
    pub force_duplex: bool,
    #[bits(13)]
    _reserved4: u16,
    pub rst: bool,
    /// The MAC obeys PAUSE.
    pub receive_flow_control: bool,
    /// The MAC sends PAUSE.
    pub transmit_flow_control: bool,
    _reserved5: bool,
    /// VLAN tags are removed from received frames, and inserted where a descriptor asks for it.
    pub vme: bool,
    _phy_rst: bool,
}

/// Device status (8.2).
#[bitfield(u32)]
pub(crate) struct Status {
    _full_duplex: bool,
    pub link_up: bool,
    /// The number of the port.
    #[bits(2)]
    pub lan_id: u8,
    #[bits(2)]
    _reserved: u8,
    /// 0: 10 Mb/s, 1: 100 Mb/s, 2 and 3: 1 Gb/s.
    #[bits(2)]
    pub speed: u8,
    #[bits(11)]
    _reserved2: u16,
    pub master_enabled: bool,
    #[bits(12)]
    _reserved3: u16,
}

/// MDI control: an access to a register of the PHY (8.2).
#[bitfield(u32)]
pub(crate) struct Mdic {
    pub data: u16,
    #[bits(5)]
    pub register: u8,
    /// The PHY's address. The I350 takes it from another register.
    #[bits(5)]
    pub phy: u8,
    /// 1: write, 2: read.
    #[bits(2)]
    pub operation: u8,
    pub ready: bool,
    _interrupt: bool,
    pub error: bool,
    _reserved: bool,
}

/// Receive control (8.10).
#[bitfield(u32)]
pub(crate) struct Rctl {
    _reserved: bool,
    pub enable: bool,
    _store_bad: bool,
    /// All unicasts.
    pub upe: bool,
    /// All multicasts.
    pub mpe: bool,
    /// Frames up to RLPML.
    pub long: bool,
    #[bits(9)]
    _reserved2: u16,
    /// Broadcasts.
    pub bam: bool,
    #[bits(2)]
    _reserved3: u8,
    /// The VLAN filter table is used.
    pub vfe: bool,
    #[bits(7)]
    _reserved4: u8,
    pub strip_crc: bool,
    #[bits(5)]
    _reserved5: u8,
}

/// Split receive control (8.10).
#[bitfield(u32)]
pub(crate) struct Srrctl {
    /// Bytes of a buffer, in units of 1 KiB.
    #[bits(7)]
    pub buffer_size: u8,
    #[bits(18)]
    _reserved: u32,
    /// 1: advanced, one buffer.
    #[bits(3)]
    pub descriptor_type: u8,
    #[bits(4)]
    _reserved2: u8,
}

/// Receive descriptor control (8.10), and transmit descriptor control (8.12).
#[bitfield(u32)]
pub(crate) struct Dctl {
    #[bits(5)]
    pub pthresh: u8,
    #[bits(3)]
    _reserved: u8,
    #[bits(5)]
    pub hthresh: u8,
    #[bits(3)]
    _reserved2: u8,
    #[bits(5)]
    pub wthresh: u8,
    #[bits(4)]
    _reserved3: u8,
    pub enable: bool,
    #[bits(6)]
    _reserved4: u8,
}

/// Transmit control (8.12).
#[bitfield(u32)]
pub(crate) struct Tctl {
    _reserved: bool,
    pub enable: bool,
    _reserved2: bool,
    /// Short frames are padded.
    pub pad: bool,
    /// Attempts at half duplex.
    pub collision_threshold: u8,
    /// Byte times at half duplex.
    #[bits(10)]
    pub collision_distance: u16,
    #[bits(2)]
    _reserved3: u8,
    /// A late collision is tried again.
    pub retransmit: bool,
    #[bits(7)]
    _reserved4: u8,
}

/// CTRL_EXT: how the MAC is connected, bits 23:22 (8.2).
pub(crate) const fn link_mode(ctrl_ext: u32) -> u32 {
    ctrl_ext >> 22 & 3
}

/// EECD: the EEPROM has been read after reset (8.4).
pub(crate) const EECD_AUTO_READ: u32 = 1 << 9;
/// EEMNGCTL: firmware has finished the configuration of port 0. The next bits are those of ports 1 to 3 (8.4).
pub(crate) const EEMNGCTL_CONFIG_DONE: u32 = 1 << 18;
/// RXCSUM: the device checks IPv4 checksums, and TCP's and UDP's, and writes no checksum of fragments (8.10).
pub(crate) const RXCSUM_CHECK: u32 = 1 << 8 | 1 << 9 | 1 << 13;
/// PHPM of the I350: a lower speed in state D0 (1), no link at all (5).
pub(crate) const PHPM_SLOW_OR_OFF: u32 = 1 << 1 | 1 << 5;
