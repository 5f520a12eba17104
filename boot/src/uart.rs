//! A 16550: where it is, and its rate.

/// Rate of a PC's UART with the divisor 1.
const FASTEST: u32 = 115_200;
/// The rate where nothing says another one, in baud.
pub const USUAL_RATE: u32 = FASTEST;

/// A 16550 at eight I/O ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uart {
    /// The first port, up to 0xfff8.
    pub port: u16,
    /// Its rate in baud. `None`: as the firmware has set it.
    pub rate: Option<u32>,
}

impl Uart {
    /// A UART with the usual rate.
    pub(crate) const fn usual(port: u16) -> Self {
        Self { port, rate: Some(USUAL_RATE) }
    }
}

/// Whether a UART can have a rate: a whole number of it makes 115,200 baud. With a slower one a FIFO of 16 bytes takes so long that
/// the UART would count as one that takes nothing.
pub(crate) const fn is_rate(rate: u32) -> bool {
    rate >= 2_400 && FASTEST.is_multiple_of(rate)
}
