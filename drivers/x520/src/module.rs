//! What an SFP+ module says of itself, and whether the 82599 can use it (SFF-8472 chapters 5 and 6, SFF-8431).
//!
//! The bytes come from whatever is in the cage. Nothing of them is trusted: names are shown without anything that is not
//! a printable ASCII character.

use core::fmt;

/// Bytes that are read: the base ID fields and their checksum.
pub const ID_BYTES: usize = 64;

/// Offsets in the EEPROM (SFF-8472, table 4-1).
const IDENTIFIER: usize = 0;
const TEN: usize = 3;
const ONE: usize = 6;
const CABLE: usize = 8;
const VENDOR: usize = 20;
const OUI: usize = 37;
const PART: usize = 40;
const CABLE_SPEC: usize = 60;
const CHECKSUM: usize = 63;

/// IDENTIFIER: SFP or SFP+.
const SFP: u8 = 3;
/// TEN: 10GBASE-SR, -LR, -LRM, -ER.
const SR: u8 = 1 << 4;
const LR: u8 = 1 << 5;
const LRM: u8 = 1 << 6;
const ER: u8 = 1 << 7;
/// ONE: 1000BASE-SX, -LX, -T.
const SX: u8 = 1;
const LX: u8 = 1 << 1;
const T: u8 = 1 << 3;
/// CABLE: a passive or an active copper cable.
const PASSIVE: u8 = 1 << 2;
const ACTIVE: u8 = 1 << 3;
/// CABLE_SPEC of an active cable: it limits.
const LIMITING: u8 = 1 << 2;
/// Intel's identifier as a vendor.
const INTEL: [u8; 3] = [0x00, 0x1b, 0x21];

/// The kind of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A passive copper cable.
    PassiveCable,
    /// An active copper cable that limits.
    ActiveCable,
    /// An active copper cable that does not limit.
    LinearCable,
    /// 10GBASE-SR.
    Sr,
    /// 10GBASE-LR.
    Lr,
    /// 10GBASE-SR, and 1000BASE-SX.
    SrSx,
    /// 10GBASE-LR, and 1000BASE-LX.
    LrLx,
    /// 10GBASE-ER.
    Er,
    /// 10GBASE-LRM.
    Lrm,
    /// 1000BASE-SX.
    Sx,
    /// 1000BASE-LX.
    Lx,
    /// 1000BASE-T.
    T,
    /// None of these: the identifier says what it is instead of an SFP, or no code is known.
    Other {
        /// Byte 0: 3 for an SFP.
        identifier: u8,
    },
}

/// Why the NIC cannot use a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The 82599 has no mode for its kind.
    Kind,
    /// The NIC's EEPROM allows optics of 10 Gb/s by Intel only.
    Vendor,
    /// The NIC's EEPROM has no initialisation for its kind.
    Initialisation,
}

/// A module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    bytes: [u8; ID_BYTES],
}

impl Module {
    /// What these bytes of its EEPROM say: all from 0 on.
    #[must_use]
    pub const fn new(bytes: [u8; ID_BYTES]) -> Self {
        Self { bytes }
    }

    /// Its kind. The codes are looked at in the order in which other drivers do.
    #[must_use]
    pub fn kind(&self) -> Kind {
        let [identifier, ten, one, cable] = [IDENTIFIER, TEN, ONE, CABLE].map(|at| self.byte(at));
        match () {
            () if identifier != SFP => Kind::Other { identifier },
            () if cable & PASSIVE != 0 => Kind::PassiveCable,
            () if cable & ACTIVE != 0 && self.byte(CABLE_SPEC) & LIMITING != 0 => Kind::ActiveCable,
            () if cable & ACTIVE != 0 => Kind::LinearCable,
            () if ten & SR != 0 && one & SX != 0 => Kind::SrSx,
            () if ten & LR != 0 && one & LX != 0 => Kind::LrLx,
            () if ten & SR != 0 => Kind::Sr,
            () if ten & LR != 0 => Kind::Lr,
            () if ten & LRM != 0 => Kind::Lrm,
            () if ten & ER != 0 => Kind::Er,
            () if one & T != 0 => Kind::T,
            () if one & SX != 0 => Kind::Sx,
            () if one & LX != 0 => Kind::Lx,
            () => Kind::Other { identifier },
        }
    }

    /// Whether the NIC can use it. `any_vendor`: it may be of any vendor.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self, any_vendor: bool) -> Result<(), Unsupported> {
        match self.kind() {
            Kind::LinearCable | Kind::Er | Kind::Lrm | Kind::Other { .. } => Err(Unsupported::Kind),
            Kind::Sr | Kind::Lr | Kind::SrSx | Kind::LrLx if !any_vendor && self.oui() != INTEL => {
                Err(Unsupported::Vendor)
            }
            _ => Ok(()),
        }
    }

    /// The vendor's identifier (IEEE OUI).
    #[must_use]
    pub fn oui(&self) -> [u8; 3] {
        core::array::from_fn(|i| self.byte(OUI.saturating_add(i)))
    }

    /// The vendor's name.
    pub fn vendor(&self) -> impl fmt::Display {
        self.text(VENDOR)
    }

    /// The vendor's number of the part.
    pub fn part(&self) -> impl fmt::Display {
        self.text(PART)
    }

    /// Whether the checksum over the other bytes is right.
    #[must_use]
    pub fn has_checksum(&self) -> bool {
        let sum = self.bytes.iter().take(CHECKSUM).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        sum == self.byte(CHECKSUM)
    }

    /// Whether it has two rates, of which software chooses one.
    pub(crate) fn has_rates(&self) -> bool {
        matches!(self.kind(), Kind::SrSx | Kind::LrLx)
    }

    /// Whether 1 Gb/s is all it can.
    pub(crate) fn is_slow(&self) -> bool {
        matches!(self.kind(), Kind::Sx | Kind::Lx | Kind::T)
    }

    /// The number in the EEPROM's list of the words that a port needs for it. Active cables and modules of 1 Gb/s take those of optics.
    pub(crate) fn sequence(&self, port: u8) -> u16 {
        match (self.kind(), port & 1) {
            (Kind::PassiveCable, 0) => 3,
            (Kind::PassiveCable, _) => 4,
            (_, 0) => 5,
            (_, _) => 6,
        }
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// 16 characters, without the blanks at the end.
    fn text(&self, at: usize) -> impl fmt::Display {
        let text: [u8; 16] = core::array::from_fn(|i| self.byte(at.saturating_add(i)));
        fmt::from_fn(move |f| {
            let used = text.iter().rposition(|byte| !matches!(byte, b' ' | 0)).map_or(0, |last| last.saturating_add(1));
            text.iter().take(used).try_for_each(|&byte| {
                let shown = if byte == b' ' || byte.is_ascii_graphic() { byte } else { b'?' };
                write!(f, "{}", char::from(shown))
            })
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PassiveCable => "passive copper cable",
            Self::ActiveCable => "active copper cable",
            Self::LinearCable => "active copper cable that does not limit",
            Self::Sr => "10GBASE-SR",
            Self::Lr => "10GBASE-LR",
            Self::SrSx => "10GBASE-SR and 1000BASE-SX",
            Self::LrLx => "10GBASE-LR and 1000BASE-LX",
            Self::Er => "10GBASE-ER",
            Self::Lrm => "10GBASE-LRM",
            Self::Sx => "1000BASE-SX",
            Self::Lx => "1000BASE-LX",
            Self::T => "1000BASE-T",
            Self::Other { identifier: SFP } => "module without a known code",
            Self::Other { identifier } => {
                return write!(f, "module with the identifier {identifier:#04x}, which is no SFP");
            }
        })
    }
}

impl fmt::Display for Module {
    /// Its kind, vendor and part.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} {}", self.kind(), self.vendor(), self.part())
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kind => "the 82599 has no mode for it",
            Self::Vendor => {
                "the NIC's EEPROM allows 10 Gb/s optics by Intel only, and the configuration allows no others"
            }
            Self::Initialisation => "the NIC's EEPROM has no initialisation for it",
        })
    }
}
