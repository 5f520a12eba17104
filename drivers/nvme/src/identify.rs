//! Identify data (NVMe Base 2.0, 5.17.2.1; NVM Command Set 1.0, 4.1.5.1). The device wrote it: nothing is believed
//! without a check.

use alloc::string::String;
use core::fmt;

use crate::dma::PAGE;

/// Reads `N` bytes at an offset. Zeroes beyond the end.
pub(crate) fn field<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    if let Some(from) = data.get(at..at.saturating_add(N)) {
        bytes.copy_from_slice(from);
    }
    bytes
}

pub(crate) fn byte(data: &[u8], at: usize) -> u8 {
    data.get(at).copied().unwrap_or(0)
}

/// Text of ASCII characters, without spaces at its ends. Other bytes become `?`.
fn text<const N: usize>(data: &[u8], at: usize) -> String {
    let bytes = field::<N>(data, at);
    let shown: String = bytes.iter().map(|b| if (0x20..0x7f).contains(b) { char::from(*b) } else { '?' }).collect();
    shown.trim_matches([' ', '?']).into()
}

/// What a controller says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// PCI vendor.
    pub vendor: u16,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Version of the specification: major, minor.
    pub version: (u16, u8),
    /// Most bytes of a transfer: a power of two. `None`: no limit.
    pub max_transfer: Option<u64>,
    /// Microseconds that a shutdown may take. 0: not told.
    pub shutdown_time: u32,
    /// It has a volatile write cache.
    pub volatile_cache: bool,
    /// Number of namespace identifiers.
    pub namespaces: u32,
    /// Optional asynchronous events.
    pub(crate) oaes: u32,
    /// Optional commands.
    pub(crate) oncs: u16,
}

/// Why a controller cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// CAP.CSS says that it has no NVM command set. The value.
    CommandSet(u8),
    /// CAP.MPSMIN says that its smallest page has more than 4,096 bytes. log2 of the bytes.
    PageSize(u8),
    /// CAP.MQES says that a queue has less than two entries. The value.
    QueueEntries(u16),
    /// Its queue entries have other sizes than 64 and 16 bytes: SQES and CQES.
    EntrySizes(u8, u8),
    /// It is a discovery or administrative controller. CNTRLTYPE.
    Type(u8),
    /// It has no serial number.
    NoSerial,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CommandSet(css) => write!(f, "it does not have the NVM command set (CAP.CSS is {css:#x})"),
            Self::PageSize(shift) => {
                write!(f, "its smallest page has 2^{shift} bytes; expected 4,096 (CAP.MPSMIN)")
            }
            Self::QueueEntries(mqes) => write!(f, "its queues are too short (CAP.MQES is {mqes}; expected 1 or more)"),
            Self::EntrySizes(sqes, cqes) => write!(
                f,
                "its queue entries have unknown sizes (SQES is {sqes:#x}, CQES is {cqes:#x}; expected 2^6 and 2^4 bytes)"
            ),
            Self::Type(kind) => write!(f, "it is no I/O controller (CNTRLTYPE is {kind})"),
            Self::NoSerial => f.write_str("it has no serial number"),
        }
    }
}

impl Identity {
    /// Decodes the data of Identify Controller.
    ///
    /// # Errors
    /// The driver cannot use the controller.
    pub(crate) fn parse(data: &[u8; PAGE]) -> Result<Self, Unusable> {
        let (sqes, cqes) = (byte(data, 512), byte(data, 513));
        let allows = |range: u8, size: u8| range & 0xf <= size && size <= range >> 4;
        if !allows(sqes, 6) || !allows(cqes, 4) {
            return Err(Unusable::EntrySizes(sqes, cqes));
        }
        let kind = byte(data, 111);
        if kind > 1 {
            return Err(Unusable::Type(kind));
        }
        let serial = text::<20>(data, 4);
        if serial.is_empty() {
            return Err(Unusable::NoSerial);
        }
        let mdts = byte(data, 77);
        let version = u32::from_le_bytes(field(data, 80));
        Ok(Self {
            vendor: u16::from_le_bytes(field(data, 0)),
            serial,
            model: text::<40>(data, 24),
            firmware: text::<8>(data, 64),
            version: ((version >> 16) as u16, (version >> 8) as u8),
            // An absurd value is no limit: lists are shorter anyway.
            max_transfer: (1..=32).contains(&mdts).then(|| (PAGE as u64) << mdts),
            shutdown_time: u32::from_le_bytes(field(data, 88)),
            volatile_cache: byte(data, 525) & 1 != 0,
            namespaces: u32::from_le_bytes(field(data, 516)),
            oaes: u32::from_le_bytes(field(data, 92)),
            oncs: u16::from_le_bytes(field(data, 520)),
        })
    }

    /// Whether it supports Dataset Management.
    #[must_use]
    pub const fn can_deallocate(&self) -> bool {
        self.oncs & 1 << 2 != 0
    }

    /// Whether it supports Write Zeroes.
    #[must_use]
    pub const fn can_write_zeroes(&self) -> bool {
        self.oncs & 1 << 3 != 0
    }

    /// Whether it tells of changed namespaces.
    pub(crate) const fn tells_of_namespaces(&self) -> bool {
        self.oaes & 1 << 8 != 0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, serial, firmware, version: (major, minor), .. } = self;
        write!(f, "{model}, serial {serial}, firmware {firmware}, NVMe {major}.{minor}")?;
        f.write_str(if self.volatile_cache { ", volatile write cache" } else { ", no volatile write cache" })
    }
}

/// A namespace's unique identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniqueId {
    /// EUI-64.
    Eui64([u8; 8]),
    /// NGUID.
    Nguid([u8; 16]),
}

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: &[u8] = match self {
            Self::Eui64(bytes) => bytes,
            Self::Nguid(bytes) => bytes,
        };
        bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// A namespace that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// log2 of the bytes of a block: 9 to 16.
    pub shift: u32,
    /// Number of blocks, 1 or more. Their bytes are less than 2^64.
    pub blocks: u64,
    /// It is write protected.
    pub read_only: bool,
    /// Its unique identifier, NGUID before EUI-64.
    pub unique: Option<UniqueId>,
    /// Its EUI-64, if it has an NGUID too.
    pub eui64: Option<UniqueId>,
    /// Other controllers may have it too (NMIC bit 0).
    pub shared: bool,
}

impl Format {
    /// Bytes of a block.
    #[must_use]
    pub const fn block_bytes(&self) -> u32 {
        1 << self.shift
    }

    /// Its unique identifiers.
    pub fn identifiers(&self) -> impl Iterator<Item = UniqueId> {
        self.unique.into_iter().chain(self.eui64)
    }

    /// Bytes of the namespace.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.blocks << self.shift
    }
}

/// Why a namespace cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadNamespace {
    /// It has no blocks, or is not active.
    Empty,
    /// FLBAS names a format that does not exist: the format and the number of formats.
    NoFormat(u8, u8),
    /// A block has metadata. The bytes.
    Metadata(u16),
    /// A block has not 512 to 65,536 bytes. LBADS.
    BlockSize(u8),
    /// Its bytes are 2^64 or more. The blocks.
    TooLarge(u64),
    /// A block is longer than a transfer: the bytes of both.
    Transfer(u32, u32),
    /// The controller has more namespaces than the driver takes.
    TooMany,
    /// The controller did not answer.
    NoAnswer,
}

impl fmt::Display for BadNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => f.write_str("it has no blocks"),
            Self::NoFormat(format, count) => {
                write!(f, "it is formatted with LBA format {format}, but has only {count} (FLBAS, NLBAF)")
            }
            Self::Metadata(bytes) => write!(
                f,
                "its LBA format has {bytes} bytes of metadata for each block; expected 0 (nvme format changes that and erases it)"
            ),
            Self::BlockSize(lbads) => {
                write!(f, "its blocks have 2^{lbads} bytes; expected 2^9 to 2^16 (LBADS)")
            }
            Self::TooLarge(blocks) => write!(f, "it claims {blocks} blocks, which is more than 2^64 bytes"),
            Self::Transfer(block, transfer) => {
                write!(f, "its blocks have {block} bytes, but a transfer has at most {transfer} (MDTS)")
            }
            Self::TooMany => write!(f, "the driver uses at most {} namespaces", crate::table::MAX_NAMESPACES),
            Self::NoAnswer => f.write_str("the controller does not answer Identify Namespace for it"),
        }
    }
}

impl Format {
    /// Decodes the data of Identify Namespace. `transfer`: most bytes of a transfer.
    ///
    /// # Errors
    /// The namespace cannot be used.
    pub(crate) fn parse(data: &[u8; PAGE], transfer: u32) -> Result<Self, BadNamespace> {
        let blocks = u64::from_le_bytes(field(data, 0));
        if blocks == 0 {
            return Err(BadNamespace::Empty);
        }
        let (count, flbas) = (byte(data, 25), byte(data, 26));
        // Bits 6:5 are the index's upper bits, if there are more than 16 formats.
        let index = flbas & 0xf | if count >= 16 { flbas >> 1 & 0x30 } else { 0 };
        if index > count || index > 63 {
            return Err(BadNamespace::NoFormat(index, count.saturating_add(1)));
        }
        let format = u32::from_le_bytes(field(data, usize::from(index).saturating_mul(4).saturating_add(128)));
        if format as u16 != 0 {
            return Err(BadNamespace::Metadata(format as u16));
        }
        let lbads = (format >> 16) as u8;
        if !(9..=16).contains(&lbads) {
            return Err(BadNamespace::BlockSize(lbads));
        }
        if blocks >= 1 << 64_u8.saturating_sub(lbads) {
            return Err(BadNamespace::TooLarge(blocks));
        }
        if 1 << lbads > transfer {
            return Err(BadNamespace::Transfer(1 << lbads, transfer));
        }
        let (nguid, eui64) = (field(data, 104), field(data, 120));
        let eui64 = (eui64 != [0; 8]).then_some(UniqueId::Eui64(eui64));
        let (unique, eui64) = if nguid == [0; 16] { (eui64, None) } else { (Some(UniqueId::Nguid(nguid)), eui64) };
        let (read_only, shared) = (byte(data, 99) & 1 != 0, byte(data, 30) & 1 != 0);
        Ok(Self { shift: u32::from(lbads), blocks, read_only, unique, eui64, shared })
    }
}

#[cfg(test)]
mod tests {
    use super::{BadNamespace, Format, Identity, UniqueId, Unusable};
    use crate::dma::PAGE;
    use std::string::ToString;

    fn controller() -> [u8; PAGE] {
        let mut data = [0; PAGE];
        data[4..24].copy_from_slice(b"S123                ");
        data[24..64].fill(b' ');
        data[24..29].copy_from_slice(b"Disk\x07");
        data[64..72].copy_from_slice(b"1.0     ");
        (data[77], data[512], data[513], data[525]) = (5, 0x66, 0x44, 1);
        data[80..84].copy_from_slice(&0x0002_0000_u32.to_le_bytes());
        data
    }

    #[test]
    fn a_controller_is_known_by_its_text_without_padding() {
        let identity = Identity::parse(&controller()).unwrap();
        assert_eq!(identity.to_string(), "Disk, serial S123, firmware 1.0, NVMe 2.0, volatile write cache");
        assert_eq!(identity.max_transfer, Some(128 << 10));
    }

    #[test]
    fn absurd_controllers_are_refused_or_harmless() {
        for (at, value, why) in [
            (512, 0x77, Unusable::EntrySizes(0x77, 0x44)),
            (513, 0x33, Unusable::EntrySizes(0x66, 0x33)),
            (111, 2, Unusable::Type(2)),
        ] {
            let mut data = controller();
            data[at] = value;
            assert_eq!(Identity::parse(&data), Err(why));
        }
        let mut data = controller();
        data[77] = 0xff;
        assert_eq!(Identity::parse(&data).unwrap().max_transfer, None);
        data[4..24].fill(0);
        assert_eq!(Identity::parse(&data), Err(Unusable::NoSerial));
        assert!(Identity::parse(&[0xff; PAGE]).is_err());
    }

    fn namespace(blocks: u64, flbas: u8, formats: &[u32]) -> [u8; PAGE] {
        let mut data = [0; PAGE];
        data[..8].copy_from_slice(&blocks.to_le_bytes());
        (data[25], data[26]) = (formats.len() as u8 - 1, flbas);
        for (at, format) in formats.iter().enumerate() {
            data[128 + 4 * at..][..4].copy_from_slice(&format.to_le_bytes());
        }
        data
    }

    #[test]
    fn a_namespace_is_used_only_if_its_format_makes_sense() {
        let parse = |blocks, flbas, formats: &[u32]| Format::parse(&namespace(blocks, flbas, formats), 0x2_0000);
        let good = parse(1000, 1, &[0x9_0000, 0xc_0000]).unwrap();
        assert_eq!((good.block_bytes(), good.bytes(), good.unique), (4096, 4_096_000, None));
        let many: std::vec::Vec<u32> = (0..20).map(|i| if i == 17 { 0xc_0000 } else { 0x9_0000 }).collect();
        assert_eq!(parse(1, 0x21, &many).unwrap().shift, 12);
        assert_eq!(parse(0, 0, &[0x9_0000]), Err(BadNamespace::Empty));
        assert_eq!(parse(1, 2, &[0x9_0000]), Err(BadNamespace::NoFormat(2, 1)));
        assert_eq!(parse(1, 0, &[0x9_0008]), Err(BadNamespace::Metadata(8)));
        assert_eq!(parse(1, 0, &[0x8_0000]), Err(BadNamespace::BlockSize(8)));
        assert_eq!(parse(1, 0, &[0xff_0000]), Err(BadNamespace::BlockSize(255)));
        assert_eq!(parse(1 << 55, 0, &[0x9_0000]), Err(BadNamespace::TooLarge(1 << 55)));
        assert_eq!(Format::parse(&namespace(1, 0, &[0x10_0000]), 8192), Err(BadNamespace::Transfer(65536, 8192)));
        assert!(parse(1, 0, &[0x9_0008]).unwrap_err().to_string().contains("8 bytes of metadata"));
        assert!(Format::parse(&[0xff; PAGE], 8192).is_err());
    }

    #[test]
    fn unique_identifiers_are_shown_as_hexadecimal_digits() {
        let mut data = namespace(1, 0, &[0x9_0000]);
        data[120..128].copy_from_slice(&[0, 0x1b, 0x44, 0x8b, 0x44, 0, 0, 1]);
        let unique = Format::parse(&data, 4096).unwrap().unique.unwrap();
        assert_eq!(unique.to_string(), "001b448b44000001");
        data[119] = 9;
        data[30] = 1;
        let format = Format::parse(&data, 4096).unwrap();
        assert!(matches!(format.unique, Some(UniqueId::Nguid(_))) && format.shared);
        assert_eq!(format.identifiers().map(|id| id.to_string().len()).collect::<std::vec::Vec<_>>(), [32, 16]);
    }
}
