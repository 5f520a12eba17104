//! What the control channel of the management guest keeps. Events go into it from everywhere, so it knows nothing of guests.
//! `management.rs` serves it.

use alloc::string::String;
use control::{ANSWER, Caller, Channel, EVENTS, Event, NoMemory, Permissions, Record, collect};
use spin::Mutex;

/// Bytes of the control core's part of the heap that the channel keeps or may need.
pub const HEAP_BYTES: usize = ANSWER + EVENTS + (16 << 10);

/// The control core's end.
pub struct End {
    /// The lines in both directions.
    pub channel: Channel,
    /// Who is at the guest's end.
    pub caller: Caller,
    /// The guest's number.
    pub guest: usize,
    /// Its name.
    pub name: String,
    /// The guest's life, and which of its openings of the port was the present one at the last look. `None`: the guest had
    /// it closed. A new conversation begins when one of them changes.
    pub conversation: (u64, Option<u64>),
    /// Bytes that the guest may still send in this tick.
    pub budget: usize,
    /// How many host keys of the guest's present life the console may still say.
    pub host_keys: u8,
}

/// `None`: no guest manages the machine. Only the control core uses it.
#[expect(unsafe_code, reason = "in data that guests' cores and idle cores do not map")]
// SAFETY: the section is data like any other.
#[unsafe(link_section = ".control")]
pub static END: Mutex<Option<End>> = Mutex::new(None);

/// Tells the guest an event. `of`: the guest whose output it is. It needs the permission `console` to see one. Its own output is
/// not told to it, because a program that logs what it reads would never end.
pub fn event(line: &str, of: Option<&str>) {
    // `management.rs` may log while it holds the lock. The guest does not get such a line.
    let Some(mut end) = END.try_lock() else { return };
    if let Some(end) = &mut *end
        && end.conversation.1.is_some()
        && of.is_none_or(|of| of != &*end.name && end.caller.allowed.contains(Permissions::CONSOLE))
    {
        end.channel.event(line, of.is_some());
    }
}

/// Tells the guest output of a guest that it follows. Returns whether there was room. Its own output is not told to it.
pub fn output(line: &str, of: &str) -> bool {
    let Some(mut end) = END.try_lock() else { return false };
    end.as_mut().is_some_and(|end| end.conversation.1.is_some() && of != &*end.name && end.channel.output(line))
}

/// Tells the guest a new record of the audit, if it may see the audit. COM2 is not told, because this guest may have as many records made
/// as it likes.
pub fn audited(record: Record) {
    let sees = |end: &End| end.conversation.1.is_some() && end.caller.allowed.contains(Permissions::VIEW);
    if !END.try_lock().is_some_and(|end| end.as_ref().is_some_and(sees)) {
        return;
    }
    let records = collect(core::iter::once(Ok(record)));
    match records.and_then(|records| Event::Audit { id: None, records }.to_line()) {
        Ok(line) => event(&line, None),
        Err(NoMemory) => event_lost(),
    }
}

/// Notes an event for which there was no memory.
pub fn event_lost() {
    if let Some(mut end) = END.try_lock()
        && let Some(end) = &mut *end
    {
        end.channel.lost(0);
    }
}
