//! The Serial Port Console Redirection table (Microsoft's specification of that name, revision 1.10): the UART on which the
//! firmware has its own console.

use core::fmt;

use crate::uart::{Uart, is_rate};
use crate::words::{byte, double, quad};

/// Interface types (Debug Port Table 2, subtypes of serial ports): a 16550, a 16450, a 16550 whose registers the address
/// describes.
const FULL_16550: u8 = 0;
const SUBSET_16450: u8 = 1;
const DESCRIBED_16550: u8 = 0x12;

/// Address spaces (ACPI 6.5, 5.2.3.2).
const MEMORY: u8 = 0;
const PORTS: u8 = 1;

/// The revisions from which on there are a clock frequency and a rate in baud.
const WITH_CLOCK: u8 = 3;
const WITH_RATE: u8 = 4;
/// The clock of a PC's UART in Hz.
const CLOCK: u32 = 1_843_200;

/// What the table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spcr {
    /// A 16550 at I/O ports.
    Uart(Uart),
    /// The firmware has no console on a UART.
    Off,
    /// A UART at a physical address.
    InMemory(u64),
    /// A UART of this interface type, which is no 16550.
    Type(u8),
    /// The table is cut off, or its address makes no sense.
    Damaged,
}

impl fmt::Display for Spcr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uart(uart) => write!(f, "ACPI's SPCR names the UART at port {:#x}", uart.port),
            Self::Off => f.write_str("ACPI's SPCR says that the firmware has no console on a UART"),
            Self::InMemory(at) => write!(f, "ACPI's SPCR names a UART in memory at {at:#x}, which is not supported"),
            Self::Type(kind) => {
                write!(f, "ACPI's SPCR names a UART of type {kind:#x}, which is no 16550 and not supported")
            }
            Self::Damaged => f.write_str("ACPI's SPCR is cut off, or its UART is at no usable address"),
        }
    }
}

/// Reads the table, with its header.
#[must_use]
pub fn spcr(table: &[u8]) -> Spcr {
    read(table).unwrap_or(Spcr::Damaged)
}

fn read(table: &[u8]) -> Option<Spcr> {
    let (revision, interface) = (byte(table, 8)?, byte(table, 36)?);
    let (space, bits, access, address) = (byte(table, 40)?, byte(table, 41)?, byte(table, 43)?, quad(table, 44)?);
    let code = byte(table, 58)?;
    if address == 0 {
        return Some(Spcr::Off);
    }
    if !matches!(interface, FULL_16550 | SUBSET_16450 | DESCRIBED_16550) {
        return Some(Spcr::Type(interface));
    }
    match space {
        MEMORY => return Some(Spcr::InMemory(address)),
        PORTS => {}
        _ => return None,
    }
    // Registers of a byte at consecutive ports. Old firmware leaves both numbers out.
    if !matches!(bits, 0 | 8) || access > 1 {
        return None;
    }
    let port = u16::try_from(address).ok().filter(|port| *port <= u16::MAX - 7)?;
    let field = |from: u8, at| if revision >= from { double(table, at).filter(|&value| value != 0) } else { None };
    // With another clock the divisor is not that of the rate. The firmware has set it.
    let rate = if field(WITH_CLOCK, 76).is_some_and(|clock| clock != CLOCK) {
        None
    } else {
        field(WITH_RATE, 80).or(match code {
            3 => Some(9_600),
            4 => Some(19_200),
            6 => Some(57_600),
            7 => Some(115_200),
            _ => None,
        })
    };
    Some(Spcr::Uart(Uart { port, rate: rate.filter(|&rate| is_rate(rate)) }))
}
