//! What the ends of a backplane offer to each other (data sheet 8.2.3.22).

/// AUTOC: what is offered.
pub(crate) const KR: u32 = 1 << 16;
pub(crate) const KX: u32 = 1 << 30;
pub(crate) const KX4: u32 = 1 << 31;
/// AUTOC: PAUSE frames are offered, both ways.
const PAUSE: u32 = 3 << 28;
/// AUTOC.LMS: KR, KX4 or KX by negotiation.
const NEGOTIATED_MODE: u32 = 4 << 13;
/// AUTOC: all other bits, as after reset.
const REST: u32 = 0x009c_0004;

/// What one end of a backplane offers to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offers(u32);

impl Offers {
    /// KR, KX4 and KX.
    pub const ALL: Self = Self(KR | KX4 | KX);
    /// KR alone.
    pub const KR: Self = Self(KR);
    /// KX4 alone.
    pub const KX4: Self = Self(KX4);
    /// KX alone.
    pub const KX: Self = Self(KX);

    /// The offers with these names, which spaces or commas separate: `kr`, `kx4`, `kx`.
    #[must_use]
    pub fn named(names: &str) -> Option<Self> {
        let one = |name: &str| match name {
            "kr" => Some(KR),
            "kx4" => Some(KX4),
            "kx" => Some(KX),
            _ => None,
        };
        names.split([' ', ',']).map(one).try_fold(0, |all, one| Some(all | one?)).map(Self)
    }

    /// AUTOC of a card that offers these, and PAUSE frames, by negotiation.
    #[must_use]
    pub fn autoc(self) -> u32 {
        PAUSE | REST | NEGOTIATED_MODE | self.0
    }

    /// The same bits as in AUTOC.
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }
}
