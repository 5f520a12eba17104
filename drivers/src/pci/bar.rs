//! Base address registers (PCI 3.0, 6.2.5.1): what their bits say.

/// The memory that a base address register names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBar {
    /// Physical address.
    pub base: u64,
    /// Size in bytes, a power of two.
    pub size: u64,
}

/// Why a base address register cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadBar {
    /// The function has no such register.
    Absent,
    /// The register names ports.
    Ports,
    /// The type is reserved, or the size is no power of two. The values: as first read, and as read after all ones were
    /// written.
    Nonsense(u32, u32),
    /// The firmware assigned no address, or one that is not a multiple of the size. The values: address and size.
    Unassigned(u64, u64),
}

impl core::fmt::Display for BadBar {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Absent => f.write_str("it has none"),
            Self::Ports => f.write_str("it names ports and not memory"),
            Self::Nonsense(was, sized) => {
                write!(f, "it reads {was:#x}, and {sized:#x} when its size is asked for, which means nothing")
            }
            Self::Unassigned(base, size) => {
                write!(
                    f,
                    "the firmware gave its {size:#x} bytes no usable address, but {base:#x}; its setup may say how much memory \
                     devices get (\"above 4G decoding\", \"MMIO\")"
                )
            }
        }
    }
}

impl MemoryBar {
    /// Decodes a register and the next one (6.2.5.1). `was`: their values. `sized`: their values after all ones were
    /// written.
    ///
    /// # Errors
    /// They name no usable memory.
    pub fn decode(was: [u32; 2], sized: [u32; 2]) -> Result<Self, BadBar> {
        if sized == [0; 2] || sized[0] == u32::MAX {
            return Err(BadBar::Absent);
        }
        if was[0] & 1 != 0 {
            return Err(BadBar::Ports);
        }
        let (base, mask) = match was[0] >> 1 & 3 {
            0 => (joined([was[0], 0]), joined([sized[0], u32::MAX])),
            2 => (joined(was), joined(sized)),
            _ => return Err(BadBar::Nonsense(was[0], sized[0])),
        };
        let size = mask.wrapping_neg();
        if !size.is_power_of_two() {
            return Err(BadBar::Nonsense(was[0], sized[0]));
        }
        if base == 0 || !base.is_multiple_of(size) {
            return Err(BadBar::Unassigned(base, size));
        }
        Ok(Self { base, size })
    }
}

/// Whether a memory base address register takes two registers (PCI 3.0, 6.2.5.1).
pub(super) const fn is_wide(register: u32) -> bool {
    register & 7 == 4
}

/// The address in the two registers of a memory base address, without the low bits that say its kind.
pub(super) fn joined([low, high]: [u32; 2]) -> u64 {
    u64::from(high) << 32 | u64::from(low & !0xf)
}
