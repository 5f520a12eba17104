//! The setup header of a bzImage, read and checked.

use core::fmt;

use memory::BadAddress;

/// Offset of the setup header in the file and in boot_params.
pub(super) const START: usize = 0x1f1;
/// End of the header in protocol 2.12: after handover_offset. Later fields are copied if the file has them.
const MINIMUM_END: usize = 0x268;
/// End of the room for the header in boot_params.
const ROOM_END: usize = 0x290;

/// Protocol 2.12, the first with xloadflags.
const MINIMUM_VERSION: u16 = 0x020c;

/// Why a kernel cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the message says it")]
pub enum Error {
    TooShort { len: u64, needed: u64, what: &'static str },
    Field { name: &'static str, offset: u64, value: u64, expected: &'static str },
    NoRoomForKernel { at: u64, needed: u64, room: u64 },
    NoRoomForInitrd { len: u64, from: u64, to: u64 },
    CommandLineTooLong { len: u64, limit: u64 },
    CommandLineHasZero { at: u64 },
    Memory(BadAddress),
}

impl From<BadAddress> for Error {
    fn from(e: BadAddress) -> Self {
        Self::Memory(e)
    }
}

impl core::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooShort { len, needed, what } => {
                write!(f, "the kernel file has {len} bytes, but {what} ends at byte {needed}")
            }
            Self::Field { name, offset, value, expected } => {
                write!(f, "the kernel's header has {name} = {value:#x} at byte {offset:#x}; expected {expected}")
            }
            Self::NoRoomForKernel { at, needed, room } => write!(
                f,
                "the kernel wants {needed:#x} bytes of memory at {at:#x}, but the guest's memory below 3 GiB ends at {room:#x}"
            ),
            Self::NoRoomForInitrd { len, from, to } => {
                write!(f, "the initrd of {len:#x} bytes does not fit between the kernel's end at {from:#x} and {to:#x}")
            }
            Self::CommandLineTooLong { len, limit } => {
                write!(f, "the command line has {len} bytes; this kernel takes at most {limit}")
            }
            Self::CommandLineHasZero { at } => write!(f, "the command line has a zero byte at position {at}"),
            Self::Memory(e) => write!(f, "the guest's memory has no room for the boot structures: {e}"),
        }
    }
}

/// The fields of the setup header that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Offset in the file of the protected-mode kernel.
    payload: usize,
    /// End of the header in the file.
    end: usize,
    /// Length of the protected-mode kernel.
    payload_len: usize,
    /// Highest address that the last byte of the ramdisk may have.
    pub initrd_addr_max: u32,
    /// Its alignment if it is not at its preferred address. It is a power of two, at least 4 KiB.
    pub kernel_alignment: u32,
    /// Whether it may be at another address than its preferred one.
    pub relocatable: bool,
    /// Longest command line without the zero.
    pub cmdline_size: u32,
    /// Preferred address.
    pub pref_address: u64,
    /// Bytes of memory that it needs from its load address on, until it has its own memory map.
    init_size: u32,
}

impl Header {
    /// Reads the header of a bzImage.
    ///
    /// # Errors
    /// The file is too short or not a bzImage, its protocol is too old, or it has no 64-bit entry.
    pub fn parse(file: &[u8]) -> Result<Self, Error> {
        let f = Fields(file);
        f.reaches(MINIMUM_END, "the setup header")?;
        let expect = |name, offset: usize, value: u64, good: bool, expected| {
            if good { Ok(()) } else { Err(Error::Field { name, offset: offset as u64, value, expected }) }
        };
        let flag = f.number(0x1fe, 2);
        expect("boot_flag", 0x1fe, flag, flag == 0xaa55, "0xaa55: this is no bzImage")?;
        let magic = f.number(0x202, 4);
        expect("header", 0x202, magic, magic == 0x5372_6448, "\"HdrS\" (0x53726448): this is no bzImage")?;
        let version = f.number(0x206, 2);
        let recent = version >= u64::from(MINIMUM_VERSION);
        expect("version", 0x206, version, recent, "boot protocol 2.12 (0x20c) or later, Linux 3.8")?;
        let flags = f.number(0x211, 1);
        expect("loadflags", 0x211, flags, flags & 1 != 0, "LOADED_HIGH (bit 0): this is a zImage")?;
        let xflags = f.number(0x236, 2);
        expect("xloadflags", 0x236, xflags, xflags & 1 != 0, "XLF_KERNEL_64 (bit 0): this is a 32-bit kernel")?;

        // The jump at 0x200 goes to the first byte after the header.
        let end = 0x202_usize.saturating_add(f.number(0x201, 1) as usize);
        expect("jump", 0x201, f.number(0x201, 1), end >= MINIMUM_END, "a header of protocol 2.12 or longer (0x66)")?;
        let end = end.min(ROOM_END);
        let alignment = f.number(0x230, 4);
        let relocatable = f.number(0x234, 1) != 0;
        let sane = (0x1000..=1 << 30).contains(&alignment) && alignment.is_power_of_two();
        expect("kernel_alignment", 0x230, alignment, sane, "a power of two from 0x1000 to 0x40000000")?;

        let sectors = match f.number(0x1f1, 1) {
            0 => 4,
            n => n,
        };
        let payload = (sectors as usize).saturating_add(1).saturating_mul(512);
        f.reaches(payload.saturating_add(0x201), "the setup code with the kernel's 64-bit entry")?;
        f.reaches(end, "the setup header")?;
        Ok(Self {
            payload,
            end,
            payload_len: file.len().saturating_sub(payload),
            initrd_addr_max: f.number(0x22c, 4) as u32,
            kernel_alignment: alignment as u32,
            relocatable,
            cmdline_size: f.number(0x238, 4) as u32,
            pref_address: f.number(0x258, 8),
            init_size: f.number(0x260, 4) as u32,
        })
    }

    /// The protected-mode kernel within the file.
    #[must_use]
    pub fn payload<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        file.get(self.payload..).unwrap_or_default()
    }

    /// The header's bytes, from [`START`].
    pub(super) fn bytes<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        file.get(START..self.end).unwrap_or_default()
    }

    /// Returns the bytes of memory that the kernel needs from the load address on.
    #[must_use]
    pub fn memory_needed(&self) -> u64 {
        u64::from(self.init_size).max(self.payload_len as u64)
    }
}

/// Reads little-endian fields of a file. They are zero beyond its end, but `reaches` has checked that.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn reaches(&self, needed: usize, what: &'static str) -> Result<(), Error> {
        let len = self.0.len();
        if len >= needed { Ok(()) } else { Err(Error::TooShort { len: len as u64, needed: needed as u64, what }) }
    }

    fn number(&self, offset: usize, size: usize) -> u64 {
        let bytes = self.0.get(offset..).and_then(|rest| rest.get(..size)).unwrap_or_default();
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }
}
