//! Chooses the NIC of each `[[port]]` among the PCI functions that were found.
//!
//! ```text
//!  for each [[port]]:   NicChoice::search ─▶ candidate ─▶ open it ─┬─ failed ─▶ candidate ─▶ ...
//!                                                │                 └─ opened ─▶ what the report says
//!                                                └─ none left: why there is no uplink
//! ```
//!
//! This module is the counterpart of `plan`: `plan` gives the machine's cores to the parts of the configuration, and
//! this gives the NICs. It does not belong in the crate `nic`, which is an engine's interface to any NIC and knows no
//! configuration.
//!
//! The caller opens the NICs. It has the drivers, and only opening a NIC shows whether it can be used.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;

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
    /// Its name in the report. `None` if no driver knows it.
    pub name: Option<&'static str>,
    /// For a NIC that is known but has no driver: its name, and what it would need.
    pub needs: Option<(&'static str, &'static str)>,
}

impl FoundFunction {
    fn address(&self) -> PciDevice {
        let (bus, device, function) = self.at;
        PciDevice::At(bus, device, function)
    }
}

/// Gives each uplink its NIC. Never gives a NIC to two uplinks.
#[derive(Debug)]
pub struct NicChoice<'a> {
    uplinks: &'a [Uplink],
    found: Option<&'a [FoundFunction]>,
    /// NICs that already belong to uplinks.
    taken: Vec<PciDevice>,
}

impl<'a> NicChoice<'a> {
    /// Makes the choice for all uplinks of the configuration. `found` are the PCI functions in the order in which `first`
    /// tries them. It is `None` if PCI was not scanned.
    #[must_use]
    pub fn new(uplinks: &'a [Uplink], found: Option<&'a [FoundFunction]>) -> Self {
        Self { uplinks, found, taken: Vec::new() }
    }

    /// Begins the search for the NIC of `uplink`, which is one of the uplinks. Call it for the uplinks in their order.
    pub fn search<'c>(&'c mut self, uplink: &'c Uplink) -> NicSearch<'c, 'a> {
        let mut excluded = Vec::new();
        if uplink.device == Some(PciDevice::First) {
            excluded.extend(&self.taken);
            // A NIC that another uplink names is not free for `first`.
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
    /// Functions that other uplinks have or name.
    excluded: Vec<PciDevice>,
    /// The function to try next.
    next: usize,
    /// The last candidate: its address and its name in the report.
    tried: Option<(PciDevice, &'static str)>,
    /// Candidates that could not be used, and why.
    failures: Vec<String>,
}

impl NicSearch<'_, '_> {
    /// Returns the next function to open, as an index of the functions found.
    ///
    /// # Errors
    /// There is no further candidate. The text is the report's warning.
    pub fn candidate(&mut self) -> Result<usize, String> {
        let number = self
            .find()
            .map_err(|why| format!("no uplink {}, its guests reach other guests only: {why}", self.uplink.name))?;
        self.next = number.saturating_add(1);
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
            let known = found.iter().filter(|f| is_named(f));
            let known = known.filter_map(|f| f.needs.map(|(name, needs)| what_it_needs(name, f.address(), needs)));
            let known: String = known.flat_map(|known| ["; ".into(), known]).collect();
            format!("no {further}NIC for which there is a driver{known}")
        } else if let Some((f, (name, needs))) = found.iter().filter(|f| is_named(f)).find_map(|f| Some((f, f.needs?)))
        {
            no_driver(name, f.address(), needs)
        } else if let Some(f) = found.iter().find(|f| is_named(f)) {
            format!("the device at {wanted} is {:04x}:{:04x}, for which there is no driver", f.vendor, f.device)
        } else {
            format!("there is no device at {wanted}")
        })
    }

    /// Notes that the last candidate cannot be used, because of `why`.
    pub fn failed(&mut self, why: &str) {
        if let Some((at, name)) = self.tried {
            self.failures.push(format!("the {name} at {at}: {why}"));
        }
    }

    /// Notes that the last candidate is the uplink's NIC, with this MAC address and this number of receive queues.
    /// Returns the sentence for the report. It is empty if there was no candidate.
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

/// Says of a NIC that is known that there is no driver for it, and what a driver would need. `at` is its address.
#[must_use]
pub fn no_driver(name: &str, at: impl Display, needs: &str) -> String {
    format!("there is no driver for {}", what_it_needs(name, at, needs))
}

fn what_it_needs(name: &str, at: impl Display, needs: &str) -> String {
    format!("the {name} at {at}: {needs}")
}

/// Returns the report's words on a NIC's receive queues. They are empty if there is one queue and the port asks for no
/// steering.
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
