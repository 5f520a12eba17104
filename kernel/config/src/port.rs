//! `[[port]]`: ways out of the machine.

use crate::{Place, Rules};

/// Which PCI function drives an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciDevice {
    /// The first for which there is a driver.
    First,
    /// Bus, device (0 to 31) and function (0 to 7).
    At(u8, u8, u8),
}

impl PciDevice {
    /// `first`, or an address as `lspci` writes it: `01:00.0`, with or without segment 0 before it.
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

/// `[[port]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its NIC.
    pub device: PciDevice,
    /// What its frames may do.
    pub rules: Rules,
    /// Where the file says so.
    pub place: Place,
}

#[cfg(test)]
mod tests {
    use super::PciDevice;

    #[test]
    fn addresses_are_those_that_lspci_writes() {
        assert_eq!(PciDevice::parse("first"), Some(PciDevice::First));
        for text in ["01:1f.7", "0000:01:1f.7"] {
            assert_eq!(PciDevice::parse(text), Some(PciDevice::At(1, 31, 7)));
        }
        for bad in ["", "First", "1:00.0", "01:20.0", "01:00.8", "01:00", "0001:01:00.0", "+1:00.0", "01:00.0 "] {
            assert_eq!(PciDevice::parse(bad), None, "{bad}");
        }
        assert_eq!(PciDevice::At(1, 0, 2).to_string(), "01:00.2");
    }
}
