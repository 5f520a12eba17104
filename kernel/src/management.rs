//! The control channel of the management guest: binds `control::Channel` to a port of that guest's console device.
//!
//! The control core serves it once a tick, with a budget in each direction. Nothing waits for the guest. What it may ask is
//! bounded by `[management] allow`. It gets events as COM2 does while it has the port open.

use crate::{
    channel::{END, End},
    guests::Guests,
};
use config::Config;
use control::{Caller, Channel, Event, NoMemory, READ_BYTES, Refused, Request, Way};

/// Most bytes that the guest gets in a tick: what the port's ring has room for at most.
const TICK_BYTES: usize = 4 << 10;

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
    });
}

/// Who is at the guest's end. `None`: no guest manages the machine.
pub fn caller() -> Option<Caller> {
    END.lock().as_ref().map(|end| end.caller.clone())
}

/// Begins a tick: looks whether a new conversation has begun, and gives the guest what it has room for.
pub fn tick(guests: &Guests) {
    if let Some(end) = &mut *END.lock() {
        end.budget = READ_BYTES;
        let now = guests.control_port(end.guest).map_or((0, None), |port| (port.life, port.guest_opening()));
        if now != end.conversation {
            end.conversation = now;
            end.channel.restart();
        }
        end.pump(guests);
    }
}

/// Returns the guest's next command, or why a line is none.
pub fn next(guests: &Guests) -> Option<Result<Request, Refused>> {
    let mut end = END.lock();
    let end = end.as_mut()?;
    let port = guests.control_port(end.guest)?;
    end.channel.next(&mut end.budget, |bytes| port.read(bytes))
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

impl End {
    /// Gives the guest what waits, as much as its port has room for.
    fn pump(&mut self, guests: &Guests) {
        if let Some(port) = guests.control_port(self.guest).filter(|_| self.conversation.1.is_some()) {
            let sent = self.channel.pump(TICK_BYTES, |bytes| port.write(bytes));
            if sent > 0 {
                port.ring();
            }
        }
    }
}
