//! The control core's side of a guest's virtio console device: the rings of its ports.

use crate::arch::time;
use alloc::{boxed::Box, vec::Vec};
use config::{CONTROL_PORT, TRACE_PORT, is_reserved_port};
use control::{ConsolePort, NoMemory};
use core::array;
use spin::Mutex;
use virtio_console::{
    backend::Config,
    ports::{Overflow, Port, Ports},
    wire::{ControlEnd, wire},
};

/// Bytes of output of the console that wait for the control core.
const CONSOLE_OUTPUT: usize = 16 << 10;
/// Bytes of output of a named port that wait for the control core. More waits in the guest.
const PORT_OUTPUT: usize = 8 << 10;
/// Bytes of input of a port that wait for the guest.
const INPUT: usize = 4 << 10;
/// The same of the trace's port: three of its blocks. Three pages are three buffers of Linux's driver.
const TRACE_INPUT: usize = 12 << 10;
/// Bytes of output of the trace's port. Nobody reads it.
const TRACE_OUTPUT: usize = 512;
/// Milliseconds that output of the console waits for its reader before it is dropped. Meanwhile Linux's driver keeps its
/// vCPU busy. A UART of 115,200 baud sends 2.8 KiB in this time, so a control core that does nothing else makes room.
const PATIENCE: u64 = 250;

/// The ports of a guest's console device.
pub struct ConsolePorts {
    ports: &'static Ports,
    /// The ends of the rings of the present life, by number of the port. Only the control core uses them.
    ends: Mutex<Vec<ControlEnd>>,
}

impl ConsolePorts {
    /// Makes the ports that the configuration names.
    pub fn new(config: &config::Console) -> Self {
        let console = Port::console(Overflow::DropAfter((time::rates().tsc / 1000).saturating_mul(PATIENCE)));
        let named = config.ports.iter().map(|name| Port::named(name.clone(), Overflow::Wait));
        let ports = Box::leak(Box::new(Ports::new(console, named)));
        // The trace's port is open while a trace is sent there.
        if let Some(port) = ports.all().iter().find(|port| port.name() == CONTROL_PORT) {
            port.set_open(true);
        }
        Self { ports, ends: Mutex::new(Vec::new()) }
    }

    /// Makes new rings for a life of the guest. Returns what the engine's back-end gets. No engine may have the device.
    pub fn begin_life(&self) -> Config {
        self.ports.restart();
        let mut ends = self.ends.lock();
        ends.clear();
        let ends = array::from_fn(|number| {
            let (output, input) = match self.ports.get(number)?.name() {
                TRACE_PORT => (TRACE_OUTPUT, TRACE_INPUT),
                _ if number == 0 => (CONSOLE_OUTPUT, INPUT),
                _ => (PORT_OUTPUT, INPUT),
            };
            let (engine, control) = wire(output, input);
            ends.push(control);
            Some(engine)
        });
        Config { ports: self.ports, ends }
    }

    /// Whether the guest uses the console.
    pub fn is_console_used(&self) -> bool {
        self.ports.get(0).is_some_and(Port::is_used)
    }

    /// Number of a named port.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.ports.all().iter().position(|port| port.name() == name && !name.is_empty())
    }

    /// Names of its named ports.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.ports.all().iter().map(Port::name).filter(|name| !name.is_empty())
    }

    /// Named ports that are open on this side, but for the reserved ones: number and name.
    pub fn open_ports(&self) -> impl Iterator<Item = (usize, &str)> {
        let open = self.ports.all().iter().enumerate().skip(1).filter(|(_, port)| port.is_open());
        open.map(|(n, port)| (n, port.name())).filter(|(_, name)| !is_reserved_port(name))
    }

    /// Which opening of a port by the guest is the present one, see [`Port::guest_opening`].
    pub fn guest_opening(&self, number: usize) -> Option<u64> {
        self.ports.get(number).and_then(Port::guest_opening)
    }

    /// Opens or closes a named port on this side. Ring the engine afterwards.
    pub fn set_open(&self, number: usize, open: bool) {
        if let Some(port) = self.ports.get(number) {
            port.set_open(open);
        }
    }

    /// Takes output of a port. Returns how many bytes it took.
    pub fn read(&self, number: usize, bytes: &mut [u8]) -> usize {
        self.ends.lock().get_mut(number).map_or(0, |end| end.read(bytes))
    }

    /// Gives input to a port, as much as fits. Returns how many bytes fitted. Ring the engine afterwards.
    pub fn write(&self, number: usize, bytes: &[u8]) -> usize {
        self.ends.lock().get_mut(number).map_or(0, |end| end.write(bytes))
    }

    /// How many bytes of input to a port fit now.
    pub fn room(&self, number: usize) -> usize {
        self.ends.lock().get(number).map_or(0, ControlEnd::room)
    }

    /// Whether the guest's buffers have taken all input that was given to a port.
    pub fn is_drained(&self, number: usize) -> bool {
        self.ends.lock().get(number).is_none_or(ControlEnd::is_drained)
    }

    /// Returns its counters, without those that every device has.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn counters(&self) -> Result<control::Console, NoMemory> {
        let ports = self.ports.all().iter().map(|port| {
            Ok(ConsolePort {
                name: control::copy(port.name())?,
                open: port.is_open(),
                guest_open: port.is_guest_open(),
                output_bytes: port.counters.output_bytes.get(),
                output_dropped: port.counters.output_dropped.get(),
                output_requests: port.counters.output_requests.get(),
                input_bytes: port.counters.input_bytes.get(),
                waits: port.counters.waits.get(),
            })
        });
        Ok(control::Console {
            ports: control::collect(ports)?,
            messages: self.ports.messages.received.get(),
            refused: self.ports.messages.refused.get(),
            ..control::Console::default()
        })
    }
}
