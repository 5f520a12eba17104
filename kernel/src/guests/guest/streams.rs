//! What a guest writes and reads as a stream of bytes: its UART, its console device, and the named ports of that.

use super::Guest;
use crate::{
    guests::{console::Drain, device::Device, ports::ConsolePorts, resources::Resources, signal},
    heap::For,
};
use alloc::string::String;
use config::is_reserved_port;
use control::{Event, Joined, NoMemory, Pause, Text, Way, sentence};
use core::{fmt, fmt::Write as _, sync::atomic::Ordering};
use lifecycle::Refused;

/// Most bytes of output that are taken from a named port of the console device in a tick. A UART of 115,200 baud needs 44 ms
/// for them.
const PORT_BYTES: usize = 512;
/// Bytes of JSON for a byte of a named port, at most, and for the rest of its event without the names.
const JSON_BYTES: usize = 6;
const EVENT_BYTES: usize = 64;

impl Guest {
    /// Sends all output, and the unfinished line at its end.
    pub fn finish_output(&mut self, how: Drain) {
        let _own = For::guest(self.number);
        if self.drain(usize::MAX, how).1 == Pause::Idle {
            self.reader.flush(&self.config.name, how);
        }
    }

    /// Takes waiting output of the guest and sends up to `most` bytes of it: of the UART, of the console device, of open
    /// named ports. Returns how much that was, and why it stopped.
    pub fn drain(&mut self, most: usize, how: Drain) -> (usize, Pause) {
        let _own = For::guest(self.number);
        let name = &self.config.name;
        let dropped = self.console.dropped.load(Ordering::Relaxed);
        self.reader.lost_before(dropped.saturating_sub(self.known_dropped));
        self.known_dropped = dropped;
        let output = &mut self.output;
        let from_uart = self.reader.drain(name, most, how, |chunk| output.pop_partial_slice(chunk).0.len());
        let Some((_, ports)) = self.resources.as_ref().ok().and_then(Resources::console) else { return from_uart };
        let (mut sent, mut pause) = from_uart;
        if pause == Pause::Idle {
            let (more, why) = self.reader.drain(name, most.saturating_sub(sent), how, |chunk| ports.read(0, chunk));
            (sent, pause) = (sent.saturating_add(more), why);
        }
        for (number, port) in ports.open_ports() {
            // Without a reader of COM2 who may see it, it waits in the guest.
            let room =
                crate::console::room_for_guests().unwrap_or(0).saturating_sub(EVENT_BYTES).saturating_sub(name.len());
            let room = room.saturating_sub(port.len());
            let mut chunk = [0; PORT_BYTES];
            let most = PORT_BYTES.min(room / JSON_BYTES);
            let len = ports.read(number, chunk.get_mut(..most).unwrap_or_default());
            if len != 0 {
                match port_event(name, port, chunk.get(..len).unwrap_or_default()) {
                    Ok(event) => {
                        sent = sent.saturating_add(event.len());
                        crate::console::send_guest(&event);
                    }
                    Err(NoMemory) => self.reader.lost_before(len as u64),
                }
            }
        }
        (sent, pause)
    }

    /// Opens or closes a named port of its console device.
    ///
    /// # Errors
    /// It has no such port.
    pub fn open_port(&self, port: &str, open: bool) -> Result<(), Text> {
        let (device, ports, number) = self.find_port(port)?;
        ports.set_open(number, open);
        device.ring_console();
        Ok(())
    }

    /// Gives bytes to a named port of its console device.
    ///
    /// # Errors
    /// It has no such port, or the port does not take all of them now. Then it gets none.
    pub fn port_input(&self, port: &str, bytes: &[u8]) -> Result<(), Text> {
        let (device, ports, number) = self.find_port(port)?;
        let room = ports.room(number);
        if room < bytes.len() {
            let len = bytes.len();
            return Err(sentence(format_args!("port `{port}` takes {room} bytes now, and {len} are too many")));
        }
        ports.write(number, bytes);
        device.ring_console();
        Ok(())
    }

    /// A port of its console device for sidecore's own use. Only the management guest has the reserved ones.
    pub fn own_port(&self, name: &str) -> Option<OwnPort<'_>> {
        let (device, ports) = self.resources.as_ref().ok().and_then(Resources::console)?;
        let number = ports.find(name)?;
        Some(OwnPort { device, ports, number, life: self.life.starts() })
    }

    fn find_port(&self, name: &str) -> Result<(&Device, &ConsolePorts, usize), Text> {
        let guest = &self.config.name;
        if is_reserved_port(name) {
            return Err(sentence(format_args!("port `{name}` is the management guest's; nobody else has it")));
        }
        let Some((device, ports)) = self.resources.as_ref().ok().and_then(Resources::console) else {
            return Err(sentence(format_args!("guest `{guest}` has no console device, so no port `{name}`")));
        };
        match ports.find(name) {
            Some(number) => Ok((device, ports, number)),
            None => {
                let names = Joined(ports.names());
                Err(sentence(format_args!("guest `{guest}` has no port `{name}`; there are: {names}")))
            }
        }
    }

    /// Types into its console: the console device's once the guest uses that, the UART's before.
    ///
    /// # Errors
    /// It does not run.
    pub fn input(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        if !self.life.is_up() {
            return Err(Refused::NotRunning);
        }
        if let Some((device, ports)) = self.resources.as_ref().ok().and_then(Resources::console)
            && ports.is_console_used()
        {
            let lost = bytes.len().saturating_sub(ports.write(0, bytes)) as u64;
            self.typed.dropped = self.typed.dropped.saturating_add(lost);
            device.ring_console();
            return Ok(());
        }
        self.typed.add(bytes);
        self.hand_over_input();
        Ok(())
    }

    /// Passes typed bytes to the guest's UART, as many as it takes.
    pub(super) fn hand_over_input(&mut self) {
        let Self { machine, typed, cores, .. } = self;
        if let Some(machine) = machine.as_ref().filter(|_| !typed.is_empty()) {
            machine.type_in(|| typed.next(), |s| signal::send(cores, s));
        }
    }

    /// Returns the last output of its console.
    pub fn backlog(&self) -> impl Iterator<Item = &[u8]> {
        self.reader.backlog()
    }

    /// Its output is sent by this way as it comes, or no more. Returns the answer to the command `id`.
    ///
    /// # Errors
    /// There is no memory for it. Then nothing has changed.
    pub fn follow_output(&mut self, way: Way, id: Option<u64>) -> Result<Event, NoMemory> {
        let answer = self.reader.followed(&self.config.name, id)?;
        self.reader.follow(way, true);
        Ok(answer)
    }

    /// Its output is not sent by this way as it comes any more.
    pub fn unfollow_output(&mut self, way: Way) {
        self.reader.follow(way, false);
    }

    /// Sends its output to those who follow it, as far as there is room.
    pub fn tell_followers(&mut self) {
        let _own = For::guest(self.number);
        self.reader.tell_followers(&self.config.name);
    }
}

/// A port of the management guest for sidecore's own use.
pub struct OwnPort<'a> {
    device: &'a Device,
    ports: &'a ConsolePorts,
    number: usize,
    /// The number of the guest's life.
    pub life: u64,
}

impl OwnPort<'_> {
    /// Which of the guest's openings of the port is the present one. `None`: the guest has it closed.
    pub fn guest_opening(&self) -> Option<u64> {
        self.ports.guest_opening(self.number)
    }

    /// Takes bytes that the guest has sent. Returns how many.
    pub fn read(&self, bytes: &mut [u8]) -> usize {
        self.ports.read(self.number, bytes)
    }

    /// Gives bytes to the guest, as many as fit. Returns how many. Call [`OwnPort::ring`] afterwards.
    pub fn write(&self, bytes: &[u8]) -> usize {
        self.ports.write(self.number, bytes)
    }

    /// How many bytes fit now.
    pub fn room(&self) -> usize {
        self.ports.room(self.number)
    }

    /// Whether the guest's buffers have taken all that was given.
    pub fn is_drained(&self) -> bool {
        self.ports.is_drained(self.number)
    }

    /// Opens or closes it on this side.
    pub fn set_open(&self, open: bool) {
        self.ports.set_open(self.number, open);
        self.ring();
    }

    /// Has the engine look at what was given.
    pub fn ring(&self) {
        self.device.ring_console();
    }
}

/// The line of COM2 for output of a named port.
fn port_event(guest: &str, port: &str, bytes: &[u8]) -> Result<String, NoMemory> {
    let text = control::write(fmt::from_fn(|f| bytes.iter().try_for_each(|&byte| f.write_char(char::from(byte)))))?;
    Event::Port { guest: control::copy(guest)?, port: control::copy(port)?, text }.to_line()
}
