//! The control channel of the management guest: the lines of COM2 over a port of that guest's console device.
//!
//! ```text
//!  guest ──▶ port ──▶ next: lines, Request::from_line ──▶ command
//!  guest ◀── port ◀── pump ◀─┬─ answers, one command's at a time
//!                            └─ events, guests' output
//! ```
//!
//! The guest's bytes are hostile. What it can cost is bounded: [`READ_BYTES`] a call, one line of memory, the answers to one
//! command, [`EVENTS`] bytes of events. While an answer waits for the guest, no further command is read; the commands wait in
//! the port's ring and in the guest. An event that does not fit is dropped whole and counted, and the count is told.

use alloc::collections::VecDeque;
use alloc::string::String;
use core::ops::Range;

use crate::event::Event;
use crate::line::LineReader;
use crate::no_memory::{NoMemory, sentence};
use crate::output::Loss;
use crate::request::{Refused, Request};

/// Bytes that are read from the port at once.
pub const READ_BYTES: usize = 256;
/// Most instructions of a tick of the control core, whatever a management guest with the permission `view` sends by its channel. It is
/// what a tick's limits come to: [`READ_BYTES`] are read, and no command is carried out while an answer waits. The scenario
/// `longest-tick` holds the control core to it on Bochs, on a machine with one guest, where 748,490 were the most. Each further guest
/// adds to the answer to `counters`.
pub const TICK_INSTRUCTIONS: u64 = 1_000_000;
/// Most bytes of answers to one command that wait for the guest. The counters of 64 vCPUs are 130 KiB.
pub const ANSWER: usize = 256 << 10;
/// Bytes of answers for which there is always room.
const SHORT_ANSWER: usize = 4 << 10;
/// Bytes of events that wait for the guest.
pub const EVENTS: usize = 32 << 10;
/// The share of guests' output in [`EVENTS`].
const GUESTS: usize = 16 << 10;
/// The part of that share in which output for followers finds room. The rest is for whole lines.
const FOLLOWED: usize = 8 << 10;

/// Which queue a line comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Answers,
    Events,
}

/// The sizes of what a channel has sent and dropped since sidecore's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelCounts {
    /// Lines read: commands, and lines that were none.
    pub lines: u64,
    /// Events that were dropped because too much waited.
    pub dropped: Loss,
}

/// The control core's end of the channel.
#[derive(Debug)]
pub struct Channel {
    lines: LineReader,
    chunk: [u8; READ_BYTES],
    /// The part of `chunk` that is not in a line yet.
    left: Range<usize>,
    answers: VecDeque<u8>,
    events: VecDeque<u8>,
    /// The queue of which the guest has got a part of a line.
    within: Option<Queue>,
    untold: Loss,
    counts: ChannelCounts,
}

impl Channel {
    /// Makes a channel on which nothing was said. It allocates what events and short answers need.
    #[must_use]
    pub fn new() -> Self {
        Self {
            lines: LineReader::new(),
            chunk: [0; READ_BYTES],
            left: 0..0,
            answers: VecDeque::with_capacity(SHORT_ANSWER),
            events: VecDeque::with_capacity(EVENTS),
            within: None,
            untold: Loss { messages: 0, bytes: 0 },
            counts: ChannelCounts::default(),
        }
    }

    /// Forgets the conversation: half lines, answers and events that wait. Call it when the guest opens the port.
    pub fn restart(&mut self) {
        self.lines = LineReader::new();
        self.left = 0..0;
        self.answers.clear();
        self.answers.shrink_to(SHORT_ANSWER);
        self.events.clear();
        self.within = None;
        self.untold = Loss::default();
    }

    /// What it has read and dropped.
    #[must_use]
    pub const fn counts(&self) -> ChannelCounts {
        self.counts
    }

    /// Whether an answer waits for the guest.
    #[must_use]
    pub fn is_answering(&self) -> bool {
        !self.answers.is_empty()
    }

    /// Returns the next command, or why a line is none. `budget`: bytes that it may still take; it is counted down. `read`
    /// takes bytes from the port, and returns how many. `None`: there is no whole line, the budget is used up, or an answer
    /// still waits.
    pub fn next(
        &mut self,
        budget: &mut usize,
        mut read: impl FnMut(&mut [u8]) -> usize,
    ) -> Option<Result<Request, Refused>> {
        if self.is_answering() {
            return None;
        }
        loop {
            while *budget > 0 {
                let Some(at) = self.left.next() else { break };
                *budget = budget.saturating_sub(1);
                let byte = self.chunk.get(at).copied().unwrap_or(b'\n');
                let Some(line) = self.lines.push(byte) else { continue };
                self.counts.lines = self.counts.lines.saturating_add(1);
                return Some(match line {
                    Ok(line) => Request::from_line(&line),
                    Err(error) => Err(Refused { id: None, error: sentence(error) }),
                });
            }
            if *budget == 0 {
                return None;
            }
            let len = read(&mut self.chunk).min(READ_BYTES);
            if len == 0 {
                return None;
            }
            self.left = 0..len;
        }
    }

    /// Adds a line of the answer to a command. If it is longer than what there is room for, or there is no memory for it, its
    /// asker gets a short answer that says so.
    pub fn answer(&mut self, event: Result<Event, NoMemory>, id: Option<u64>) {
        let refused = match event.and_then(|event| event.to_line()) {
            Ok(line) if self.add_answer(&line) => return,
            Ok(line) => {
                let (len, most) = (line.len(), ANSWER);
                sentence(format_args!("the answer has {len} bytes; there is no room for them, and at most for {most}"))
            }
            Err(no_memory) => no_memory.into(),
        };
        if let Ok(line) = Event::refused(id, refused).to_line()
            && self.add_answer(&line)
        {
            return;
        }
        self.lost(0);
    }

    fn add_answer(&mut self, line: &str) -> bool {
        let fits = self.answers.len().saturating_add(line.len()) <= ANSWER;
        if !fits || self.answers.try_reserve(line.len()).is_err() {
            return false;
        }
        self.answers.extend(line.as_bytes());
        true
    }

    /// Adds a line of an event. `guest`: it is a guest's output, for which there is a share of the room. If it does not fit it
    /// is dropped and counted.
    pub fn event(&mut self, line: &str, guest: bool) {
        let most = if guest { GUESTS } else { EVENTS };
        let fits = |events: &VecDeque<u8>| events.len().saturating_add(line.len()) <= most;
        if fits(&self.events) {
            self.tell();
        }
        if !fits(&self.events) {
            return self.lost(line.len());
        }
        self.events.extend(line.as_bytes());
    }

    /// Adds a line with output for those who follow a guest. Returns whether it fitted. If not, the caller tries again later.
    pub fn output(&mut self, line: &str) -> bool {
        let fits = self.events.len().saturating_add(line.len()) <= FOLLOWED;
        if fits {
            self.event(line, true);
        }
        fits
    }

    /// Notes an event for which there was no memory.
    pub const fn lost(&mut self, bytes: usize) {
        self.untold.add(bytes);
        self.counts.dropped.add(bytes);
    }

    /// Tells how much was dropped, if there is room for it.
    fn tell(&mut self) {
        let Loss { messages, bytes } = self.untold;
        if messages == 0 {
            return;
        }
        let line: Result<String, NoMemory> = Event::Dropped { guest: None, messages, bytes }.to_line();
        if let Ok(line) = line
            && self.events.len().saturating_add(line.len()) <= EVENTS
        {
            self.events.extend(line.as_bytes());
            self.untold = Loss::default();
        }
    }

    /// Gives up to `budget` bytes to the guest: answers first, but never into the middle of an event. `write` gets some bytes
    /// and returns how many the port has taken. Returns how many it took in all.
    pub fn pump(&mut self, mut budget: usize, mut write: impl FnMut(&[u8]) -> usize) -> usize {
        // Otherwise it is told before the next event that fits: so what is told takes no more room than the events do.
        if self.events.is_empty() {
            self.tell();
        }
        let mut sent = 0_usize;
        while budget > 0 {
            let queue = match self.within {
                Some(queue) => queue,
                None if !self.answers.is_empty() => Queue::Answers,
                None => Queue::Events,
            };
            let from = match queue {
                Queue::Answers => &mut self.answers,
                Queue::Events => &mut self.events,
            };
            let (chunk, _) = from.as_slices();
            // No further than the budget: the line may be long, and the guest may take a byte at a time.
            let chunk = chunk.get(..budget.min(chunk.len())).unwrap_or_default();
            // Up to the end of a line: then the other queue may be next.
            let line = chunk.iter().position(|&byte| byte == b'\n').map_or(chunk.len(), |end| end.saturating_add(1));
            let chunk = chunk.get(..line).unwrap_or_default();
            let taken = write(chunk).min(chunk.len());
            let Some(&last) = chunk.get(..taken).and_then(<[u8]>::last) else { break };
            from.drain(..taken);
            self.within = (last != b'\n').then_some(queue);
            budget = budget.saturating_sub(taken);
            sent = sent.saturating_add(taken);
        }
        if self.answers.is_empty() {
            self.answers.shrink_to(SHORT_ANSWER);
        }
        sent
    }
}

impl Default for Channel {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Command, MAX_LINE};

    /// A port: what the guest has sent, and what it gets.
    #[derive(Default)]
    struct Port {
        sent: VecDeque<u8>,
        got: Vec<u8>,
        room: usize,
    }

    impl Port {
        fn read(&mut self, bytes: &mut [u8]) -> usize {
            let len = bytes.len().min(self.sent.len());
            self.sent.drain(..len).zip(bytes).for_each(|(byte, place)| *place = byte);
            len
        }

        fn write(&mut self, bytes: &[u8]) -> usize {
            let len = bytes.len().min(self.room);
            self.room -= len;
            self.got.extend(&bytes[..len]);
            len
        }

        fn lines(&self) -> Vec<Event> {
            let text = str::from_utf8(&self.got).unwrap();
            text.lines().map(|line| Event::from_line(line).unwrap()).collect()
        }
    }

    /// One tick as the control core does it: up to 4 commands, each answered. Returns what was asked.
    fn tick(channel: &mut Channel, port: &mut Port, room: usize) -> Vec<Result<Request, Refused>> {
        port.room = room;
        channel.pump(usize::MAX, |bytes| port.write(bytes));
        let (mut asked, mut budget) = (Vec::new(), READ_BYTES);
        while asked.len() < 4
            && let Some(request) = channel.next(&mut budget, |bytes| port.read(bytes))
        {
            match &request {
                Ok(request) => channel.answer(Ok(Event::done(request.id)), request.id),
                Err(refused) => channel.answer(Ok(Event::refused(refused.id, refused.error.clone())), refused.id),
            }
            asked.push(request);
            channel.pump(usize::MAX, |bytes| port.write(bytes));
        }
        asked
    }

    fn sends(text: &str) -> Port {
        Port { sent: text.bytes().collect(), ..Port::default() }
    }

    #[test]
    fn a_command_is_read_and_answered() {
        let (mut channel, mut port) = (Channel::new(), sends("{\"command\":\"list\",\"id\":7}\n"));
        assert_eq!(tick(&mut channel, &mut port, 4096), [Ok(Request::new(Some(7), Command::List))]);
        assert_eq!(port.lines(), [Event::done(Some(7))]);
    }

    #[test]
    fn a_half_line_waits_for_its_end_and_is_forgotten_when_the_port_is_opened_again() {
        let (mut channel, mut port) = (Channel::new(), sends("{\"command\":"));
        assert_eq!(tick(&mut channel, &mut port, 4096), []);
        port.sent.extend(b"\"list\"}\n");
        assert_eq!(tick(&mut channel, &mut port, 4096).len(), 1);
        port.sent.extend(b"{\"command\":");
        tick(&mut channel, &mut port, 4096);
        channel.restart();
        port.sent.extend(b"{\"command\":\"list\"}\n");
        assert!(matches!(&tick(&mut channel, &mut port, 4096)[..], [Ok(_)]));
    }

    #[test]
    fn nothing_of_a_former_conversation_comes_after_the_port_is_opened_again() {
        let line = Event::Console { guest: "a".into(), line: "w".repeat(500) }.to_line().unwrap();
        for begins_with_event in [false, true] {
            let asked = "{\"command\":\"list\",\"id\":1}\n{\"command\":\"list\",\"id\":2}\n";
            let (mut channel, mut port) = (Channel::new(), sends(asked));
            if begins_with_event {
                channel.event(&line, true);
            }
            // The guest gets five bytes of the first answer, or of the event. The second command waits.
            assert_eq!(tick(&mut channel, &mut port, 5).len(), 1);
            (0..100).for_each(|_| channel.event(&line, true));
            assert!(channel.counts().dropped.messages > 0);
            channel.restart();
            port = sends("{\"command\":\"list\",\"id\":3}\n");
            (0..10).for_each(|_| _ = tick(&mut channel, &mut port, 1 << 20));
            assert_eq!(port.lines(), [Event::done(Some(3))], "begins with an event: {begins_with_event}");
        }
    }

    #[test]
    fn lines_that_are_no_commands_are_answered_by_what_is_wrong_with_them() {
        let (mut channel, mut port) = (Channel::new(), sends("nonsense\n{\"command\":\"lsit\",\"id\":3}\n"));
        let asked = tick(&mut channel, &mut port, 4096);
        assert!(matches!(&asked[..], [Err(Refused { id: None, .. }), Err(Refused { id: Some(3), .. })]), "{asked:?}");
        let text = String::from_utf8(port.got).unwrap();
        assert!(text.contains("did you mean `list`"), "{text}");
    }

    #[test]
    fn an_oversized_line_costs_no_memory_and_one_answer() {
        let long = "x".repeat(10 * MAX_LINE) + "\n{\"command\":\"list\"}\n";
        let (mut channel, mut port) = (Channel::new(), sends(&long));
        let ticks = long.len() / READ_BYTES + 1;
        let asked: Vec<_> = (0..ticks).flat_map(|_| tick(&mut channel, &mut port, 4096)).collect();
        assert!(matches!(&asked[..], [Err(_), Ok(_)]), "{asked:?}");
    }

    #[test]
    fn a_tick_reads_no_more_than_its_budget_and_no_more_than_four_commands() {
        let (mut channel, mut port) = (Channel::new(), sends(&"1\n".repeat(100_000)));
        assert_eq!(tick(&mut channel, &mut port, 1 << 20).len(), 4);
        let (mut channel, mut port) = (Channel::new(), sends(&"{".repeat(100_000)));
        tick(&mut channel, &mut port, 1 << 20);
        assert_eq!(port.sent.len(), 100_000 - READ_BYTES);
    }

    #[test]
    fn while_an_answer_waits_no_command_is_read_and_memory_does_not_grow() {
        let (mut channel, mut port) = (Channel::new(), sends(&"{\"command\":\"list\"}\n".repeat(10_000)));
        let asked: usize = (0..1000).map(|_| tick(&mut channel, &mut port, 0).len()).sum();
        assert_eq!(asked, 1);
        assert!(channel.answers.len() < 100, "{}", channel.answers.len());
        // The guest reads again, and everything is answered.
        let asked: usize = (0..10_000).map(|_| tick(&mut channel, &mut port, 1 << 20).len()).sum();
        assert_eq!(asked, 9_999);
        assert_eq!(port.lines().len(), 10_000);
    }

    #[test]
    fn an_answer_beyond_the_limit_becomes_a_short_one() {
        let mut channel = Channel::new();
        let long = Event::refused(Some(1), "y".repeat(ANSWER).into());
        channel.answer(Ok(long), Some(1));
        channel.answer(Err(NoMemory), Some(2));
        let mut port = Port { room: usize::MAX, ..Port::default() };
        channel.pump(usize::MAX, |bytes| port.write(bytes));
        let lines = port.lines();
        let [
            Event::Reply { id: Some(1), ok: false, error: Some(too_long), .. },
            Event::Reply { id: Some(2), ok: false, error, .. },
        ] = &lines[..]
        else {
            panic!("{lines:?}")
        };
        // The answer itself is a refusal too, and would be sent by a channel without a limit.
        assert!(too_long.ends_with(&format!("at most for {ANSWER}")), "{} bytes", too_long.len());
        assert_eq!(error.as_deref(), Some("out of memory"));
    }

    #[test]
    fn events_that_nobody_reads_are_dropped_and_told() {
        let mut channel = Channel::new();
        let line = Event::Log { level: crate::Level::Info, text: "z".repeat(1000) }.to_line().unwrap();
        (0..100).for_each(|_| channel.event(&line, false));
        assert!(channel.events.len() <= EVENTS);
        let mut port = Port { room: usize::MAX, ..Port::default() };
        channel.pump(usize::MAX, |bytes| port.write(bytes));
        channel.pump(usize::MAX, |bytes| port.write(bytes));
        let lines = port.lines();
        let Some(Event::Dropped { messages, .. }) = lines.last() else { panic!("{:?}", lines.last()) };
        assert_eq!(lines.len() - 1 + *messages as usize, 100);
        assert_eq!(channel.counts().dropped.messages, *messages);
    }

    #[test]
    fn output_of_guests_leaves_room_for_events_of_sidecore() {
        let mut channel = Channel::new();
        let line = Event::Console { guest: "a".into(), line: "w".repeat(500) }.to_line().unwrap();
        (0..1000).for_each(|_| channel.event(&line, true));
        let before = channel.events.len();
        assert!(before <= GUESTS);
        channel.event(&Event::done(None).to_line().unwrap(), false);
        assert!(channel.events.len() > before);
    }

    #[test]
    fn output_for_followers_leaves_room_for_whole_lines_and_none_of_it_is_dropped() {
        let mut channel = Channel::new();
        let output = Event::Output { id: None, guest: "a".into(), at: 7, text: "w".repeat(500) }.to_line().unwrap();
        let lines = (0..1000).filter(|_| channel.output(&output)).count();
        assert!(lines > 0 && channel.events.len() <= FOLLOWED);
        let line = Event::Console { guest: "a".into(), line: "w".repeat(500) }.to_line().unwrap();
        channel.event(&line, true);
        assert_eq!(channel.counts().dropped, Loss::default());
        let mut port = Port { room: usize::MAX, ..Port::default() };
        channel.pump(usize::MAX, |bytes| port.write(bytes));
        assert_eq!(port.lines().len(), lines + 1);
    }

    #[test]
    fn a_flood_of_guests_that_nobody_reads_leaves_room_for_events_of_sidecore() {
        let (mut channel, mut port) = (Channel::new(), Port::default());
        let line = Event::Console { guest: "a".into(), line: "w".repeat(500) }.to_line().unwrap();
        for _ in 0..2000 {
            (0..4).for_each(|_| channel.event(&line, true));
            tick(&mut channel, &mut port, 0);
        }
        let dropped = channel.counts().dropped;
        channel.event(&Event::Log { level: crate::Level::Warn, text: "x".repeat(8 << 10) }.to_line().unwrap(), false);
        assert_eq!(channel.counts().dropped, dropped, "an event of sidecore is not dropped");
        port.room = usize::MAX;
        channel.pump(usize::MAX, |bytes| port.write(bytes));
        let told = port
            .lines()
            .iter()
            .filter_map(|event| match event {
                Event::Dropped { messages, bytes, .. } => Some((*messages, *bytes)),
                _ => None,
            })
            .collect::<Vec<_>>();
        assert_eq!(told, [(dropped.messages, dropped.bytes)], "told once, before that event");
    }

    proptest! {
        /// Whatever the guest sends and however little it reads, its lines come whole, answers in order, and memory is bounded.
        #[test]
        fn lines_come_whole(
            pieces in proptest::collection::vec(
                prop_oneof![
                    Just("{\"command\":\"list\",\"id\":1}\n".as_bytes().to_vec()),
                    Just("{\"command\":\"counters\"".as_bytes().to_vec()),
                    Just(vec![b'a'; MAX_LINE + 7]),
                    proptest::collection::vec(any::<u8>(), 0..40),
                ],
                0..20,
            ),
            rooms in proptest::collection::vec(0_usize..90, 1..60),
            events in proptest::collection::vec(any::<bool>(), 60),
        ) {
            let (mut channel, mut port) = (Channel::new(), Port::default());
            port.sent.extend(pieces.concat());
            let line = Event::Console { guest: "g".into(), line: "text".into() }.to_line().unwrap();
            for (&room, &event) in rooms.iter().zip(&events) {
                if event {
                    channel.event(&line, true);
                }
                prop_assert!(tick(&mut channel, &mut port, room).len() <= 4);
                prop_assert!(channel.answers.len() <= ANSWER && channel.events.len() <= EVENTS);
            }
            port.room = usize::MAX;
            channel.pump(usize::MAX, |bytes| port.write(bytes));
            for line in str::from_utf8(&port.got).unwrap().lines() {
                prop_assert!(Event::from_line(line).is_ok(), "{line}");
            }
        }
    }
}
