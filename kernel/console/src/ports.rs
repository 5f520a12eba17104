//! The state of a device's ports that the engine's core and the control core share: names, which side has a port open,
//! counters.

use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::counters::{MessageCounters, PortCounters};
use crate::device::MAX_PORTS;

/// The guest's driver knows the port (PORT_READY).
pub(crate) const READY: u8 = 1;
/// The guest has opened the port (PORT_OPEN).
pub(crate) const OPEN: u8 = 2;
/// The guest has sent something since its driver started.
pub(crate) const SPOKE: u8 = 4;

/// What happens to output that finds its ring full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The output waits in the guest, for as long as it takes. Nothing is lost.
    Wait,
    /// The output waits for up to so many ticks of the engine's clock without any room. Then the newest bytes are
    /// dropped and counted, until there is room again. A reader that reads loses nothing, and a guest whose output
    /// nobody reads goes on.
    DropAfter(u64),
}

/// A port.
#[derive(Debug)]
pub struct Port {
    /// Its name. Empty for the console.
    name: String,
    pub(crate) overflow: Overflow,
    /// The control core has it open.
    host_open: AtomicBool,
    /// What the guest's driver has done: [`READY`], [`OPEN`], [`SPOKE`]. The engine's core writes it.
    driver: AtomicU8,
    /// Its bytes and openings.
    pub counters: PortCounters,
}

impl Port {
    /// The console: port 0. It is always open on the control core's side.
    #[must_use]
    pub const fn console(overflow: Overflow) -> Self {
        Self::new(String::new(), overflow, true)
    }

    /// A named port. It is closed on the control core's side at first. Linux makes a program wait that writes to such a
    /// port.
    #[must_use]
    pub const fn named(name: String, overflow: Overflow) -> Self {
        Self::new(name, overflow, false)
    }

    const fn new(name: String, overflow: Overflow, open: bool) -> Self {
        Self {
            name,
            overflow,
            host_open: AtomicBool::new(open),
            driver: AtomicU8::new(0),
            counters: PortCounters::new(),
        }
    }

    /// Its name. Empty for the console.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens or closes it on the control core's side. Ring the [`Bell`](crate::bell::Bell) afterwards.
    pub fn set_open(&self, open: bool) {
        self.host_open.store(open, Ordering::Relaxed);
    }

    /// Whether it is open on the control core's side.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.host_open.load(Ordering::Relaxed)
    }

    /// Whether the guest has it open.
    #[must_use]
    pub fn is_guest_open(&self) -> bool {
        self.driver() & OPEN != 0
    }

    /// Which opening of the port by the guest is the present one: 1 for the first since the machine started. `None`: the
    /// guest has it closed. Two looks that give the same number see one opening, however much time was between them: a
    /// guest that has closed the port and opened it again meanwhile has another number.
    #[must_use]
    pub fn guest_opening(&self) -> Option<u64> {
        // Acquire: whoever sees the port open by an opening also sees its count, which was written before.
        let is_open = self.driver.load(Ordering::Acquire) & OPEN != 0;
        is_open.then(|| self.counters.openings.get())
    }

    /// Whether the guest uses it: it has it open, and has sent something since its driver started. Linux opens the
    /// console as soon as its driver is loaded, even if no program and no log uses it.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.driver() & (OPEN | SPOKE) == OPEN | SPOKE
    }

    pub(crate) fn driver(&self) -> u8 {
        self.driver.load(Ordering::Relaxed)
    }

    /// Sets bits, or clears them if not `on`. Counts the opening if the port was closed and [`OPEN`] is set. Only the
    /// engine's core calls it while a device is attached.
    pub(crate) fn set_driver(&self, bits: u8, on: bool) {
        let before = self.driver();
        let after = if on { before | bits } else { before & !bits };
        if after & !before & OPEN != 0 {
            self.counters.openings.add(1);
        }
        // Release: see `guest_opening`.
        self.driver.store(after, Ordering::Release);
    }
}

/// The ports of a device, by number. Port 0 is the console.
#[derive(Debug)]
pub struct Ports {
    ports: Vec<Port>,
    /// Control messages of the device.
    pub messages: MessageCounters,
}

impl Ports {
    /// The ports of a device: the console, then the named ports. At most [`MAX_PORTS`] are kept.
    #[must_use]
    pub fn new(console: Port, named: impl IntoIterator<Item = Port>) -> Self {
        let ports = core::iter::once(console).chain(named).take(MAX_PORTS).collect();
        Self { ports, messages: MessageCounters::new() }
    }

    /// All ports, by number.
    #[must_use]
    pub fn all(&self) -> &[Port] {
        &self.ports
    }

    /// The port of this number.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&Port> {
        self.ports.get(number)
    }

    /// Forgets what the guest's driver has done. Call it for a guest that starts again, while no engine has the device.
    pub fn restart(&self) {
        for port in &self.ports {
            port.set_driver(READY | OPEN | SPOKE, false);
        }
    }
}
