//! Chooses the NIC of each `[[port]]` among the PCI functions that were found.
//!
//! ```text
//!  for each [[port]]:   NicChoice::search ─▶ candidate ─▶ open it ─┬─ failed ─▶ candidate ─▶ ...
//!                                                │                 └─ opened ─▶ what the report says
//!                                                └─ none left: why there is no uplink
//! ```
//!
//! This lives beside `plan`: as `plan` gives the cores that a machine has to those that the file names, this gives the
//! NICs. The crate `nic` would be the wrong place. It is what an engine wants of any NIC and knows no configuration.
//!
//! The caller opens the NICs. It has the drivers, and only opening a NIC shows whether it can be used.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{Mac, PciDevice, Steering, Uplink};

/// A PCI function that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundFunction {
    /// Bus, device and function, as in [`PciDevice::At`].
    pub at: (u8, u8, u8),
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// What the report calls it. `None`: no driver knows it.
    pub name: Option<&'static str>,
}

impl FoundFunction {
    fn address(&self) -> PciDevice {
        let (bus, device, function) = self.at;
        PciDevice::At(bus, device, function)
    }
}

/// Gives each uplink its NIC, and no NIC to two uplinks.
#[derive(Debug)]
pub struct NicChoice<'a> {
    uplinks: &'a [Uplink],
    found: Option<&'a [FoundFunction]>,
    /// NICs that uplinks have.
    taken: Vec<PciDevice>,
}

impl<'a> NicChoice<'a> {
    /// For all uplinks of the configuration, and what was found, in the order in which `first` is to look at it. `None`: PCI
    /// was not scanned.
    #[must_use]
    pub fn new(uplinks: &'a [Uplink], found: Option<&'a [FoundFunction]>) -> Self {
        Self { uplinks, found, taken: Vec::new() }
    }

    /// Begins the search for the NIC of `uplink`, which is one of the uplinks. They are searched for in their order.
    pub fn search<'c>(&'c mut self, uplink: &'c Uplink) -> NicSearch<'c, 'a> {
        let mut excluded = Vec::new();
        if uplink.device == Some(PciDevice::First) {
            excluded.extend(&self.taken);
            // What another uplink names is not the first one that is free.
            excluded.extend(self.uplinks.iter().filter_map(|other| other.device).filter(|&d| d != PciDevice::First));
        }
        NicSearch { choice: self, uplink, excluded, next: 0, tried: None, failures: Vec::new() }
    }
}

/// The search for one uplink's NIC.
#[derive(Debug)]
pub struct NicSearch<'c, 'a> {
    choice: &'c mut NicChoice<'a>,
    uplink: &'c Uplink,
    /// Functions that are for other uplinks.
    excluded: Vec<PciDevice>,
    /// The function to look at next.
    next: usize,
    /// The candidate that was given last: its address and what the report calls it.
    tried: Option<(PciDevice, &'static str)>,
    /// Candidates that could not be used, and why.
    failures: Vec<String>,
}

impl NicSearch<'_, '_> {
    /// The next function to open: its number among those found.
    ///
    /// # Errors
    /// There is none. The text is the report's warning.
    pub fn candidate(&mut self) -> Result<usize, String> {
        let number = self
            .find()
            .map_err(|why| format!("no uplink {}, its guests reach other guests only: {why}", self.uplink.name))?;
        self.next = number + 1;
        Ok(number)
    }

    fn find(&mut self) -> Result<usize, String> {
        let wanted = self.uplink.device.ok_or("there is a mistake in its entry")?;
        let found = self.choice.found.ok_or("PCI was not scanned")?;
        let is_named = |function: &FoundFunction| match wanted {
            PciDevice::First => !self.excluded.contains(&function.address()),
            at @ PciDevice::At(..) => function.address() == at,
        };
        for (number, function) in found.iter().enumerate().skip(self.next).filter(|(_, f)| is_named(f)) {
            if let Some(name) = function.name {
                self.tried = Some((function.address(), name));
                return Ok(number);
            }
        }
        Err(if !self.failures.is_empty() {
            self.failures.join("; left alone: ")
        } else if wanted == PciDevice::First {
            let further = if self.excluded.is_empty() { "" } else { "further " };
            format!("no {further}NIC for which there is a driver")
        } else if let Some(f) = found.iter().find(|f| is_named(f)) {
            format!("the device at {wanted} is {:04x}:{:04x}, for which there is no driver", f.vendor, f.device)
        } else {
            format!("there is no device at {wanted}")
        })
    }

    /// The last candidate cannot be used, because of `why`.
    pub fn failed(&mut self, why: &str) {
        if let Some((at, name)) = self.tried {
            self.failures.push(format!("the {name} at {at}: {why}"));
        }
    }

    /// The last candidate is the uplink's NIC. It has this MAC address and so many receive queues. Returns what the report
    /// says of it; nothing, if there was no candidate.
    #[must_use]
    pub fn opened(self, mac: Mac, receive_queues: u16) -> String {
        let Some((at, name)) = self.tried else { return String::new() };
        self.choice.taken.push(at);
        let queues = queues(receive_queues, self.uplink.steering);
        let failures: String = self.failures.iter().flat_map(|failure| ["; left alone: ", failure]).collect();
        format!(
            "uplink {}: {name} at {at}, {mac}{queues}; no IOMMU keeps it from any memory, so it and whoever made it have to \
             be trusted{failures}",
            self.uplink.name
        )
    }
}

/// What the report says of a NIC's receive queues. Nothing, where there is one and nothing else was asked for.
fn queues(count: u16, steering: Steering) -> String {
    match (count, steering) {
        (1, Steering::None) => String::new(),
        (1, _) => ", with one receive queue, so that there is nothing to steer".into(),
        (n, Steering::Addresses) => format!(", {n} receive queues for guests' addresses"),
        (n, _) => format!(", {n} receive queues for flows"),
    }
}

#[cfg(test)]
mod tests;
