//! `[[port]]`: uplinks.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::mac::Mac;
use crate::mistake::Place;
use crate::rules::Rules;

/// The PCI function of an uplink's NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciDevice {
    /// The first NIC that has a driver.
    First,
    /// Bus, device (0 to 31) and function (0 to 7).
    At(u8, u8, u8),
}

impl PciDevice {
    /// Reads `first`, or an address as `lspci` writes it: `01:00.0`, with or without segment 0 before it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "first" {
            return Some(Self::First);
        }
        let address = text.strip_prefix("0000:").unwrap_or(text);
        let (bus, rest) = address.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let number = |text: &str, digits: usize, limit: u8| {
            let hexadecimal = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
            u8::from_str_radix(text, 16).ok().filter(|&n| hexadecimal && n <= limit)
        };
        Some(Self::At(number(bus, 2, 255)?, number(device, 2, 31)?, number(function, 1, 7)?))
    }
}

impl core::fmt::Display for PciDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::First => f.write_str("first"),
            Self::At(bus, device, function) => write!(f, "{bus:02x}:{device:02x}.{function}"),
        }
    }
}

/// How a NIC chooses the receive queue of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steering {
    /// There is one queue.
    #[default]
    None,
    /// By a hash of its addresses and ports.
    Flows,
    /// By its destination address. Each guest's device has a separate queue.
    Addresses,
}

impl Steering {
    /// The values with their words.
    pub(crate) const WORDS: [(&'static str, Self); 3] =
        [("none", Self::None), ("flows", Self::Flows), ("addresses", Self::Addresses)];
}

/// Which optics of 10 Gb/s may be in the cage of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Optics {
    /// Those that the NIC's EEPROM allows. Most allow only those of the NIC's maker.
    #[default]
    Allowed,
    /// Those of any vendor.
    Any,
}

impl Optics {
    /// The values with their words.
    pub(crate) const WORDS: [(&'static str, Self); 2] = [("allowed", Self::Allowed), ("any", Self::Any)];
}

/// The gateway of an uplink: the router that the guests reach by it. No guest may have its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gateway {
    /// Its IP addresses.
    pub addresses: Vec<IpAddr>,
    /// Its MAC addresses.
    pub macs: Vec<Mac>,
}

/// `[[port]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Its name, to which a guest's `port` refers. The default is its device.
    pub name: String,
    /// Its NIC. `None` if its entry has a mistake. Then no frame passes.
    pub device: Option<PciDevice>,
    /// How its NIC chooses the receive queue.
    pub steering: Steering,
    /// Which optics its NIC takes.
    pub optics: Optics,
    /// Its gateway. Both lists together have up to [`MAX_GATEWAY`](crate::MAX_GATEWAY) addresses.
    pub gateway: Gateway,
    /// Its rules.
    pub rules: Rules,
    /// Its place in the file.
    pub place: Place,
}
