//! The control channel of the management guest: binds `control::Channel` to a port of that guest's console device.
//!
//! The control core serves it once a tick, with a budget in each direction. Nothing waits for the guest. What it may ask is
//! bounded by `[management] allow`. It gets events as COM2 does while it has the port open.
//!
//! A trace goes to a port of its own, in blocks as they are ([`TracePort`]).

use crate::{
    channel::{self, END, End},
    guests::{Guests, OwnPort},
    modules,
    trace::{BLOCK, reader::Opening},
};
use ::trace::saving::Sink;
use config::{CONTROL_PORT, Config, TRACE_PORT};
use control::{Caller, Channel, Event, NoMemory, READ_BYTES, Record, Refused, Request, Text, Way, trace::TRACE_END};

/// Most bytes that the guest gets in a tick: what the port's ring has room for at most.
const TICK_BYTES: usize = 4 << 10;

/// Bytes of commands that are read in a tick while a module comes.
const PUT_BYTES: usize = 4 << 10;

/// Most host keys of one life of the guest that the console says. sshd has one of each kind.
const HOST_KEYS: u8 = 4;

/// Makes the channel, if the configuration has a management guest.
pub fn start(config: &Config) {
    let Some(management) = &config.management else { return };
    let Some(guest) = config.guests.iter().position(|guest| guest.name == management.guest) else {
        return log::warn!("no management: guest {} does not start", management.guest);
    };
    crate::report::decision(alloc::format!(
        "guest {} manages the machine; it may ask for: {}",
        management.guest,
        management.allow
    ));
    *END.lock() = Some(End {
        channel: Channel::new(),
        caller: Caller::named(Way::Channel, "", management.allow),
        guest,
        name: management.guest.clone(),
        conversation: (0, None),
        budget: 0,
        host_keys: HOST_KEYS,
    });
}

/// Begins a tick: looks whether a new conversation has begun, and gives the guest what it has room for. Returns whether it has.
pub fn tick(guests: &Guests) -> bool {
    let mut is_new = false;
    if let Some(end) = &mut *END.lock() {
        end.budget = if modules::all().is_taking() { PUT_BYTES } else { READ_BYTES };
        let now = guests.own_port(end.guest, CONTROL_PORT).map_or((0, None), |port| (port.life, port.guest_opening()));
        if now != end.conversation {
            if now.0 != end.conversation.0 {
                end.host_keys = HOST_KEYS;
            }
            end.conversation = now;
            end.channel.restart();
            is_new = true;
        }
        end.pump(guests);
    }
    is_new
}

/// Returns the guest's next command, or why a line is none, and who asks.
pub fn next(guests: &Guests) -> Option<(Caller, Result<Request, Refused>)> {
    let mut end = END.lock();
    let end = end.as_mut()?;
    let port = guests.own_port(end.guest, CONTROL_PORT)?;
    let request = end.channel.next(&mut end.budget, |bytes| port.read(bytes))?;
    Some((end.caller.clone(), request))
}

/// Answers the guest's last command.
pub fn answer(guests: &Guests, event: Result<Event, NoMemory>, id: Option<u64>) {
    if let Some(end) = &mut *END.lock() {
        end.channel.answer(event, id);
        end.pump(guests);
    }
}

/// Adds a line of the answer to the guest's last command.
pub fn answer_line(event: Result<Event, NoMemory>) {
    if let Some(end) = &mut *END.lock() {
        end.channel.answer(event, None);
    }
}

/// Says on the console which host key the guest's sshd has, as its agent reports. Whoever logs in for the first time compares it.
pub fn say_host_key(record: &Record) {
    let name = match &mut *END.lock() {
        Some(end) if end.host_keys > 0 => {
            end.host_keys = end.host_keys.saturating_sub(1);
            end.name.clone()
        }
        _ => return,
    };
    log::info!("guest {name} says: {}", record.command);
}

/// The guest's port for a trace.
pub struct TracePort<'a>(OwnPort<'a>);

impl Sink for TracePort<'_> {
    fn has_room(&self) -> bool {
        self.0.room() >= BLOCK
    }

    fn send(&mut self, block: &[u8]) {
        self.0.write(block);
        self.0.ring();
    }

    fn is_drained(&self) -> bool {
        self.0.is_drained()
    }
}

/// The guest's port for a trace, while the guest has it open.
pub fn trace_port(guests: &Guests) -> Option<(Opening, TracePort<'_>)> {
    let guest = END.lock().as_ref()?.guest;
    let port = guests.own_port(guest, TRACE_PORT)?;
    Some(((port.life, port.guest_opening()?), TracePort(port)))
}

/// Opens the port on this side, for a trace that is to be sent.
///
/// # Errors
/// The guest has it closed, or has not read what was sent there before.
pub fn open_trace_port(guests: &Guests) -> Result<Opening, Text> {
    let (opening, port) =
        trace_port(guests).ok_or("records are sent to the port org.sidecore.trace: open and read it first")?;
    if !port.is_drained() {
        return Err("the port org.sidecore.trace still has bytes of an earlier trace: read them first".into());
    }
    port.0.set_open(true);
    Ok(opening)
}

/// Closes the port after a trace, and tells the guest that it has ended.
pub fn end_trace(guests: &Guests) {
    let guest = END.lock().as_ref().map(|end| end.guest);
    if let Some(port) = guest.and_then(|guest| guests.own_port(guest, TRACE_PORT)) {
        port.set_open(false);
    }
    channel::event(TRACE_END, None);
}

impl End {
    /// Gives the guest what waits, as much as its port has room for.
    fn pump(&mut self, guests: &Guests) {
        if let Some(port) = guests.own_port(self.guest, CONTROL_PORT).filter(|_| self.conversation.1.is_some()) {
            let sent = self.channel.pump(TICK_BYTES, |bytes| port.write(bytes));
            if sent > 0 {
                port.ring();
            }
        }
    }
}
