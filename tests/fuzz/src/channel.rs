//! The control channel of the management guest (`control::Channel`): any bytes in any pieces, a guest that reads nothing, a byte at a
//! time or everything, and that opens the port again at any time, while answers of any length and events come.
//!
//! - The target cuts the guest's bytes into lines itself. Each whole line is returned once, in order, within the budget, and not while an
//!   answer waits.
//! - The guest gets whole lines: all answers in order, all events in order that the channel has not counted as dropped.
//! - An answer that waits goes before an event of which the guest has got nothing yet.
//! - What waits is at most [`ANSWER`] and [`EVENTS`]. An event is dropped only if there is no room for it; guests' output has half of the
//!   room, and leaves the rest to sidecore's own events. Output for followers has a quarter, and none of it is dropped here.
//! - The guest is told how many events were dropped, and their bytes, before the next event.

use std::collections::VecDeque;

use control::{ANSWER, Channel, Command, EVENTS, Event, Level, Loss, MAX_LINE, NoMemory, READ_BYTES, Refused, Request};

use crate::input::Input;
use crate::planted::planted;

/// Most steps of a run.
const STEPS: usize = 120;
/// Commands that the control core takes from the channel in a tick.
const COMMANDS: usize = 4;
/// More than the bytes of a line that tells of dropped events.
const TOLD: usize = 128;
/// Pieces of lines.
const PIECES: [&[u8]; 16] = [
    b"{\"command\":\"list\",\"id\":",
    b"{\"command\":\"",
    b"{\"command\":\"counters\"}\n",
    b"{\"command\":\"lsit\",\"id\":3}\n",
    b"\",\"guest\":\"a",
    b"stop",
    b"1",
    b"18446744073709551615",
    b"}\n",
    b"}\r\n",
    b"\"",
    b"\n",
    b"\r",
    b"\\u00",
    b"\xff\xfe",
    b"nonsense\n",
];

/// An event that the guest is to get.
struct Awaited {
    line: String,
    guest: bool,
    /// What was dropped in this conversation before it.
    dropped: Loss,
}

/// Both ends of the channel, and what each is to get.
struct World {
    channel: Channel,
    /// What the guest has sent, and the channel has not read.
    sent: VecDeque<u8>,
    /// What the channel has read of a line without its end.
    line: Vec<u8>,
    /// What the channel is to return.
    asked: VecDeque<Result<Request, Refused>>,
    /// Lines of answers that the guest is to get, and their bytes.
    answers: VecDeque<String>,
    answer_bytes: usize,
    /// Events that the guest is to get.
    events: VecDeque<Awaited>,
    /// What the guest has got of a line without its end.
    got: Vec<u8>,
    /// Whether an answer waited when the guest got the line's first byte.
    answer_is_due: bool,
    /// What was dropped in this conversation, and what the guest knows of it.
    dropped: Loss,
    told: Loss,
    /// The number of the last event.
    number: u64,
    /// Lines that the channel has returned.
    lines: u64,
    /// Bytes that the guest has got.
    bytes: u64,
}

/// What a line of the guest is.
fn request(line: &[u8]) -> Result<Request, Refused> {
    if line.len() > MAX_LINE {
        return Err(Refused { id: None, error: format!("the line is longer than {MAX_LINE} bytes").into() });
    }
    Request::from_line(&String::from_utf8_lossy(line))
}

impl World {
    fn new() -> Self {
        Self {
            channel: Channel::new(),
            sent: VecDeque::new(),
            line: Vec::new(),
            asked: VecDeque::new(),
            answers: VecDeque::new(),
            answer_bytes: 0,
            events: VecDeque::new(),
            got: Vec::new(),
            answer_is_due: false,
            dropped: Loss::default(),
            told: Loss::default(),
            number: 0,
            lines: 0,
            bytes: 0,
        }
    }

    /// The guest opens the port anew. What it has sent before may still be in the port.
    fn reopen(&mut self, keeps: bool) {
        self.channel.restart();
        assert!(!self.channel.is_answering(), "a new conversation begins with nothing");
        if !keeps {
            self.sent.clear();
        }
        self.line.clear();
        self.asked.clear();
        self.answers.clear();
        self.answer_bytes = 0;
        self.events.clear();
        self.got.clear();
        (self.dropped, self.told) = (Loss::default(), Loss::default());
    }

    /// Takes the next command within a budget of bytes. `piece`: most bytes that the port gives at once.
    fn next(&mut self, budget: &mut usize, piece: usize) -> Option<Result<Request, Refused>> {
        let (before, answering) = (*budget, self.channel.is_answering());
        assert_eq!(answering, !self.answers.is_empty(), "whether an answer waits");
        let Self { channel, sent, line, asked, .. } = self;
        let found = channel.next(budget, |bytes| {
            assert!(!answering, "nothing is read while an answer waits");
            let len = bytes.len().min(piece).min(sent.len());
            for (byte, place) in sent.drain(..len).zip(bytes) {
                *place = byte;
                match byte {
                    b'\r' | b'\n' if line.is_empty() => {}
                    b'\r' | b'\n' => {
                        asked.push_back(request(line));
                        line.clear();
                    }
                    _ => line.push(byte),
                }
            }
            len
        });
        assert!(*budget <= before, "the budget is counted down");
        match &found {
            Some(found) => {
                self.lines += 1;
                assert_eq!(Some(found), self.asked.pop_front().as_ref(), "each line is returned once, in order");
            }
            None if *budget > 0 && !answering => assert!(self.asked.is_empty(), "a whole line stays: {:?}", self.asked),
            None => {}
        }
        assert_eq!(self.channel.counts().lines, self.lines);
        found
    }

    /// Whether the channel has dropped an event of so many bytes since it had dropped `before` in all. Counts it.
    fn has_dropped(&mut self, before: Loss, len: usize) -> bool {
        let Loss { messages, bytes } = self.channel.counts().dropped;
        let (messages, bytes) = (messages - before.messages, bytes - before.bytes);
        if messages == 0 {
            assert_eq!(bytes, 0);
            return false;
        }
        assert_eq!((messages, bytes), (1, len as u64), "one event is dropped, with its bytes");
        self.dropped.add(len);
        true
    }

    /// Adds a line of an answer, as the control core does.
    fn answer(&mut self, event: Result<Event, NoMemory>, id: Option<u64>) {
        let before = self.channel.counts().dropped;
        let line = event.clone().and_then(|event| event.to_line());
        self.channel.answer(event, id);
        let room = ANSWER - self.answer_bytes;
        let line = match line {
            Ok(line) if line.len() <= room => line,
            other => {
                let why = other.map_or_else(
                    |_| "out of memory".to_owned(),
                    |line| {
                        format!(
                            "the answer has {} bytes; there is no room for them, and at most for {ANSWER}",
                            line.len()
                        )
                    },
                );
                Event::refused(id, why.into()).to_line().expect("there is memory")
            }
        };
        let fits = line.len() <= room;
        assert_eq!(self.has_dropped(before, 0), !fits, "an answer for which there is room is not dropped");
        if fits {
            self.answer_bytes += line.len();
            self.answers.push_back(line);
        }
        assert!(self.answer_bytes <= ANSWER);
    }

    /// An event comes, with a text of so many characters.
    fn event(&mut self, guest: bool, len: usize) {
        self.number += 1;
        let text = format!("{} {}", self.number, "t".repeat(len));
        let event = if guest {
            Event::Console { guest: "g".to_owned(), line: text }
        } else {
            Event::Log { level: Level::Warn, text }
        };
        let line = event.to_line().expect("there is memory");
        let (before, dropped) = (self.channel.counts().dropped, self.dropped);
        self.channel.event(&line, guest);
        let waits = |counts: fn(&Awaited) -> bool| -> usize {
            self.events.iter().filter(|event| counts(event)).map(|event| event.line.len() + TOLD).sum()
        };
        // Lines that tell of losses take room, too: at most one before each event.
        let (waiting, share) =
            if guest { (waits(|_| true), EVENTS / 2) } else { (waits(|event| !event.guest), EVENTS / 2 - TOLD) };
        let must_fit = waiting + TOLD + line.len() <= share;
        if self.has_dropped(before, line.len()) {
            assert!(!must_fit, "there is room for an event of {} bytes beside {waiting} bytes", line.len());
        } else {
            self.events.push_back(Awaited { line, guest, dropped });
        }
        let waiting = self.events.iter().map(|event| event.line.len()).sum::<usize>();
        assert!(waiting <= EVENTS + self.got.len(), "{waiting} bytes of events wait");
    }

    /// Output of a guest that is followed comes, of so many characters.
    fn output(&mut self, len: usize) {
        self.number += 1;
        let event = Event::Output { id: None, guest: "g".to_owned(), at: self.number, text: "t".repeat(len) };
        let line = event.to_line().expect("there is memory");
        let (before, dropped) = (self.channel.counts().dropped, self.dropped);
        let waiting = self.events.iter().map(|event| event.line.len()).sum::<usize>();
        let told = self.events.len() * TOLD;
        let fits = self.channel.output(&line);
        assert!(!self.has_dropped(before, line.len()), "the caller tries again, and nothing is dropped");
        let share = EVENTS / 4;
        if fits {
            assert!(waiting + line.len() <= share + self.got.len(), "{waiting} bytes wait");
            self.events.push_back(Awaited { line, guest: true, dropped });
        } else {
            assert!(waiting + told + TOLD + line.len() > share, "there is room beside {waiting} bytes");
        }
    }

    /// An event had no memory.
    fn lose(&mut self) {
        let before = self.channel.counts().dropped;
        self.channel.lost(0);
        assert!(self.has_dropped(before, 0));
    }

    /// The guest reads. `budget`: the channel's; `room`: what the port takes in all; `piece`: what it takes at once.
    fn pump(&mut self, budget: usize, mut room: usize, piece: usize) {
        let mut channel = std::mem::take(&mut self.channel);
        let mut taken = 0;
        let sent = channel.pump(budget, |bytes| {
            let len = bytes.len().min(room).min(piece);
            (room, taken) = (room - len, taken + len);
            bytes[..len].iter().for_each(|byte| self.gets(*byte));
            len
        });
        self.channel = channel;
        assert!(sent == taken && sent <= budget, "{sent} bytes of {taken}, at most {budget}");
        assert_eq!(self.channel.is_answering(), !self.answers.is_empty(), "whether an answer waits");
    }

    /// The guest gets a byte.
    fn gets(&mut self, byte: u8) {
        self.bytes += 1;
        if planted() && self.bytes.is_multiple_of(64) {
            return;
        }
        if self.got.is_empty() {
            self.answer_is_due = !self.answers.is_empty();
        }
        self.got.push(byte);
        if byte != b'\n' {
            return;
        }
        let line = String::from_utf8(std::mem::take(&mut self.got)).expect("lines are text");
        match Event::from_line(&line).expect("lines come whole") {
            Event::Reply { .. } => {
                assert_eq!(Some(&line), self.answers.front(), "answers come in order");
                self.answers.pop_front();
                self.answer_bytes -= line.len();
                return;
            }
            Event::Dropped { guest: None, messages, bytes } => {
                assert!(messages > 0 && line.len() <= TOLD, "{line}");
                self.told.messages += messages;
                self.told.bytes += bytes;
                let most = self.events.front().map_or(self.dropped, |event| event.dropped);
                assert!(
                    self.told.messages <= most.messages && self.told.bytes <= most.bytes,
                    "{:?} of {most:?}",
                    self.told
                );
            }
            Event::Console { .. } | Event::Log { .. } | Event::Output { .. } => {
                let event = self.events.pop_front().expect("no event comes twice");
                assert_eq!(line, event.line, "events come in order, those that are not dropped");
                // Where sidecore's own events have filled the room, there may be none for a line that tells of losses.
                if event.guest {
                    assert_eq!(self.told, event.dropped, "the guest knows what it has missed");
                }
            }
            other => panic!("nobody has sent {other:?}"),
        }
        assert!(!self.answer_is_due, "an answer goes first: {line}");
    }

    /// A tick of the control core, which answers each command.
    fn tick(&mut self, room: usize, piece: usize, input: &mut Input<'_>) {
        self.pump(room, room, piece);
        let mut budget = READ_BYTES;
        for _ in 0..COMMANDS {
            let Some(request) = self.next(&mut budget, piece.max(1)) else { break };
            let (id, error) = match request {
                Ok(Request { id, command, .. }) => (id, matches!(command, Command::Stop(_)).then(|| "no".to_owned())),
                Err(refused) => (refused.id, Some(refused.error.into_owned())),
            };
            match input.byte() {
                // Several lines, of which only the last one has the id.
                0..16 => {
                    let len = [10, 10, 10, 10, 1000, 1000, 10_000, ANSWER / 2][usize::from(input.byte() % 8)];
                    for _ in 0..1 + input.byte() % 4 {
                        self.answer(Ok(Event::refused(None, "l".repeat(len).into())), None);
                    }
                    self.answer(Ok(Event::done(id)), id);
                }
                16..18 => {
                    let len = ANSWER - 60 + input.within(0, 80) as usize;
                    self.answer(Ok(Event::refused(id, "l".repeat(len).into())), id);
                }
                18..28 => self.answer(Err(NoMemory), id),
                _ => {
                    self.answer(Ok(error.map_or_else(|| Event::done(id), |error| Event::refused(id, error.into()))), id)
                }
            }
            self.pump(room, room, piece);
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let piece = [1, 1 + usize::from(input.byte() % 64), READ_BYTES, usize::MAX][usize::from(input.byte() % 4)];
        // Not many bytes one at a time: that takes long.
        let room =
            [0, 1, input.within(0, 300) as usize, 4 << 10][usize::from(input.byte() % 4)].min(piece.saturating_mul(64));
        match input.byte() % 12 {
            0..3 => {
                for _ in 0..input.byte() % 24 {
                    match input.byte() {
                        piece @ 0..200 => self.sent.extend(PIECES[usize::from(piece) % PIECES.len()]),
                        200..204 => {
                            let len = MAX_LINE - 8 + input.within(0, 16) as usize;
                            self.sent.extend(std::iter::repeat_n(b'x', len));
                        }
                        _ => self.sent.push_back(input.byte()),
                    }
                }
            }
            3..6 => self.tick(room, piece, input),
            6 => self.pump(input.within(0, 600) as usize, room, piece),
            7 if input.flag() => self.output(input.within(0, 3000) as usize),
            7 => self.event(input.flag(), input.within(0, 3000) as usize),
            8 | 9 => {
                // A flood, with ticks between.
                let (guest, len) = (input.flag(), input.within(0, 1200) as usize);
                for n in 0..input.byte() {
                    self.event(guest, len);
                    if n.is_multiple_of(8) {
                        self.pump(room, room, piece);
                    }
                }
            }
            10 if input.flag() => self.lose(),
            10 => {
                let mut budget = input.within(0, 600) as usize;
                if let Some(request) = self.next(&mut budget, piece) {
                    let id = request.map_or_else(|refused| refused.id, |request| request.id);
                    self.answer(Ok(Event::done(id)), id);
                }
            }
            _ if input.byte() < 64 => self.reopen(input.flag()),
            _ => {}
        }
    }

    /// The guest reads everything now: everything that it has sent is answered, and it knows everything that it has missed.
    fn settle(&mut self) {
        // A tick takes a line at least, or as many bytes as its budget has.
        for _ in 0..self.sent.len() + READ_BYTES {
            self.tick(usize::MAX, usize::MAX, &mut Input::new(&[0xff; COMMANDS]));
            if self.sent.is_empty() && self.asked.is_empty() && !self.channel.is_answering() {
                break;
            }
        }
        // Twice, because what was dropped is told when there is room again.
        self.pump(usize::MAX, usize::MAX, usize::MAX);
        self.pump(usize::MAX, usize::MAX, usize::MAX);
        assert_eq!(
            (self.sent.len(), self.asked.len(), self.answers.len()),
            (0, 0, 0),
            "what is not read or not answered"
        );
        assert_eq!((self.events.len(), self.got.len()), (0, 0), "what has not come, or not whole");
        assert_eq!(self.told, self.dropped, "what the guest knows that it has missed");
        self.event(true, 100);
        self.event(false, 100);
        assert_eq!(self.events.len(), 2, "there is room again");
    }
}

/// Runs one input.
///
/// # Panics
/// The channel is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.settle();
}

crate::planted::tests!(commands_are_answered_and_losses_are_told, 64, 0..1000);
