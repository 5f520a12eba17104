//! The devices with registers. Finds the device for each port and address.

use crate::{
    ioapic::IoApic,
    lapic::Message,
    layout,
    pci::Bus,
    power::{PULSE_RESET, Power, Request},
    reason::Reason,
    uart::{Line, Uart},
    virtio_pci::VirtioPci,
};

/// The port of POST codes. Linux writes to it for a short delay. It exists and has no effect.
const DELAY: u16 = 0x80;

/// The result of an access to a port or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A device answered. The value is what a read returns.
    Found(u64),
    /// The access was to configuration space of a function that does not exist. It reads as all ones.
    NoFunction,
    /// No device answered. A read returns all ones.
    Nobody,
}

/// The bus and what is on it.
pub(super) type Functions = Bus<VirtioPci<'static>>;

/// The devices of one machine. Callers hold the machine's lock.
pub(super) struct Devices {
    uart: Uart,
    /// A typed byte for which the console has no room yet.
    held: Option<u8>,
    ioapic: IoApic,
    power: Power,
    pci: Functions,
}

impl Devices {
    pub(super) fn new(pci: Functions) -> Self {
        Self { uart: Uart::new(), held: None, ioapic: IoApic::new(), power: Power::new(), pci }
    }

    /// Returns the reason that an access to a port counts as.
    pub(super) fn port_reason(&self, port: u16) -> Reason {
        match port {
            _ if is_com1(port) => Reason::IoUart,
            layout::CONFIG_ADDRESS..=0xcff => Reason::IoPciConfig,
            _ => self.pci.port_reason(port).unwrap_or(Reason::IoOther),
        }
    }

    /// Returns the reason that an access to a guest-physical address counts as.
    pub(super) fn memory_reason(&self, gpa: u64) -> Reason {
        if gpa.wrapping_sub(layout::IOAPIC) < layout::IOAPIC_SIZE {
            Reason::MmioIoapic
        } else if gpa.wrapping_sub(layout::ECAM) < layout::ECAM_SIZE {
            Reason::MmioPciConfig
        } else {
            self.pci.memory_reason(gpa).unwrap_or(Reason::NestedFault)
        }
    }

    /// IN of 1, 2 or 4 bytes.
    pub(super) fn read_port(&mut self, port: u16, size: u8, send: impl FnMut(Message)) -> Answer {
        if port == DELAY {
            return Answer::Found(u64::MAX);
        }
        if let Some(read) = self.byte_device(port, size) {
            return Answer::Found(self.read_bytes(port, size, read, send));
        }
        let no_function = self.port_names_no_function(port);
        match self.pci.read_port(port, size) {
            Some(_) if no_function => Answer::NoFunction,
            Some(value) => Answer::Found(u64::from(value)),
            None => Answer::Nobody,
        }
    }

    /// OUT of 1, 2 or 4 bytes. `transmit` takes what the console sends.
    pub(super) fn write_port(
        &mut self,
        port: u16,
        size: u8,
        value: u32,
        mut transmit: impl FnMut(u8),
        mut send: impl FnMut(Message),
    ) -> (Answer, Option<Request>) {
        if port == DELAY {
            return (Answer::Found(0), None);
        }
        if (port, size, value) == (layout::KEYBOARD_COMMAND, 1, u32::from(PULSE_RESET)) {
            return (Answer::Found(0), self.power.write(port, PULSE_RESET));
        }
        let Some(device) = self.byte_device(port, size) else {
            let no_function = self.port_names_no_function(port);
            let found = self.pci.write_port(port, size, value, send);
            let answer = match (found, no_function) {
                (true, false) => Answer::Found(0),
                (true, true) => Answer::NoFunction,
                (false, _) => Answer::Nobody,
            };
            return (answer, None);
        };
        let mut request = None;
        // A wide access is a byte access to each of the ports, lowest first, as on an 8-bit bus.
        for (i, byte) in value.to_le_bytes().into_iter().take(usize::from(size)).enumerate() {
            let port = port.wrapping_add(i as u16);
            match device {
                ByteDevice::Uart => {
                    let line = self.uart.write(port.wrapping_sub(layout::COM1) & 7, byte, &mut transmit);
                    self.console_line(line, &mut send);
                }
                ByteDevice::Power => request = request.or(self.power.write(port, byte)),
            }
        }
        (Answer::Found(0), request)
    }

    fn read_bytes(&mut self, port: u16, size: u8, device: ByteDevice, mut send: impl FnMut(Message)) -> u64 {
        let mut value = 0;
        for i in 0..u16::from(size.min(4)) {
            let port = port.wrapping_add(i);
            let byte = match device {
                ByteDevice::Uart => {
                    let (byte, line) = self.uart.read(port.wrapping_sub(layout::COM1) & 7);
                    self.console_line(line, &mut send);
                    byte
                }
                ByteDevice::Power => self.power.read(port),
            };
            value |= u64::from(byte) << (i << 3);
        }
        value
    }

    /// Returns the device of byte-wide ports that an access goes to. The reset control register is among the ports of
    /// CONFIG_ADDRESS, so only an access of one byte reaches it.
    fn byte_device(&self, port: u16, size: u8) -> Option<ByteDevice> {
        if is_com1(port) {
            Some(ByteDevice::Uart)
        } else if layout::ACPI_PORTS.contains(&port) || (port, size) == (layout::RESET_CONTROL, 1) {
            Some(ByteDevice::Power)
        } else {
            None
        }
    }

    /// A load of `size` bytes.
    pub(super) fn read_memory(&mut self, gpa: u64, size: u8) -> Answer {
        match self.memory_reason(gpa) {
            Reason::MmioIoapic => Answer::Found(self.ioapic.read(gpa.wrapping_sub(layout::IOAPIC), size)),
            Reason::MmioPciConfig if self.no_function(gpa.wrapping_sub(layout::ECAM)) => Answer::NoFunction,
            Reason::MmioPciConfig => Answer::Found(self.pci.read_ecam(gpa.wrapping_sub(layout::ECAM), size)),
            _ => self.pci.read_memory(gpa, size).map_or(Answer::Nobody, Answer::Found),
        }
    }

    /// A store of `size` bytes.
    pub(super) fn write_memory(&mut self, gpa: u64, size: u8, value: u64, send: impl FnMut(Message)) -> Answer {
        match self.memory_reason(gpa) {
            Reason::MmioIoapic => self.ioapic.write(gpa.wrapping_sub(layout::IOAPIC), size, value, send),
            Reason::MmioPciConfig if self.no_function(gpa.wrapping_sub(layout::ECAM)) => return Answer::NoFunction,
            Reason::MmioPciConfig => self.pci.write_ecam(gpa.wrapping_sub(layout::ECAM), size, value, send),
            _ if self.pci.write_memory(gpa, size, value, send) => {}
            _ => return Answer::Nobody,
        }
        Answer::Found(0)
    }

    /// Handles the end of a level-triggered interrupt on a vCPU.
    pub(super) fn end_of_interrupt(&mut self, vector: u8, send: impl FnMut(Message)) {
        self.ioapic.end_of_interrupt(vector, send);
    }

    pub(super) fn press_power_button(&mut self, send: impl FnMut(Message)) {
        self.power.press_button();
        self.ioapic.pulse(layout::POWER_BUTTON_GSI, send);
    }

    /// Fills the console's receiver from `next` until it is full or `next` has no more.
    pub(super) fn type_in(&mut self, mut next: impl FnMut() -> Option<u8>, mut send: impl FnMut(Message)) {
        while let Some(byte) = self.held.take().or_else(&mut next) {
            let (taken, line) = self.uart.receive(byte);
            self.console_line(line, &mut send);
            if !taken {
                self.held = Some(byte);
                return;
            }
        }
    }

    /// Returns the number of interrupt messages that the functions on the bus refused to send.
    pub(super) fn refused_messages(&self) -> u64 {
        self.pci.refused()
    }

    fn console_line(&mut self, line: Line, send: &mut impl FnMut(Message)) {
        match line {
            Line::Low => self.ioapic.set_line(layout::COM1_GSI, false, send),
            Line::High => self.ioapic.set_line(layout::COM1_GSI, true, send),
            Line::Rose => self.ioapic.pulse(layout::COM1_GSI, send),
        }
    }

    /// Whether an offset in ECAM belongs to no function.
    fn no_function(&self, offset: u64) -> bool {
        let (device, function) = ((offset >> 15) as usize, offset >> 12 & 7);
        function != 0 || device > self.pci.functions()
    }

    /// Whether a port is CONFIG_DATA while CONFIG_ADDRESS names no function.
    fn port_names_no_function(&mut self, port: u16) -> bool {
        if !(layout::CONFIG_DATA..layout::CONFIG_DATA + 4).contains(&port) {
            return false;
        }
        let address = self.pci.read_port(layout::CONFIG_ADDRESS, 4).unwrap_or(0);
        let other_bus = address >> 16 & 0xff != 0;
        address >> 31 == 0 || other_bus || self.no_function(u64::from(address & 0xff00) << 4)
    }
}

/// A device of byte-wide ports.
#[derive(Clone, Copy)]
enum ByteDevice {
    Uart,
    Power,
}

fn is_com1(port: u16) -> bool {
    port.wrapping_sub(layout::COM1) < 8
}
