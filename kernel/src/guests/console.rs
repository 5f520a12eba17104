//! A guest's console on its way to the operator: bytes to COM1 while attached, lines to COM2 always. The output of the
//! guest's UART and of its console device make one stream.
//!
//! ```text
//!  guest cores ──▶ Console, 32 KiB ──┐
//!                                    ├─▶ Reader: lines ──▶ COM2, COM1
//!  engine ───────▶ console device ───┘
//! ```
//!
//! No core waits here. A line that COM2 has no room for waits in the [`Reader`], which takes nothing more meanwhile. Then the
//! console device makes its guest wait, and the queue of the UART fills up. What does not fit there is dropped and counted.
//! While the guest is attached, or if nobody takes what COM2 has, lines are dropped and counted instead.

use crate::{channel, console};
use alloc::{boxed::Box, collections::VecDeque, string::String, vec::Vec};
use control::{Event, Loss, NoMemory, Pause, Recent, Way};
use core::sync::atomic::{AtomicU64, Ordering};
use rtrb::{Consumer, Producer, RingBuffer};
use spin::Mutex;

/// Most bytes of output of the UART that wait for the control core.
const WAITING: usize = 32 << 10;
/// Longest line in bytes. A longer one is sent in pieces.
const LINE: usize = 1 << 10;
/// Bytes that are taken at once.
const CHUNK: usize = 512;
/// Most typed bytes that wait for the guest to read them.
const INPUT: usize = 4 << 10;

/// The guest cores' part of a console: output of the UART. The lock is shared by cores of one guest only.
pub struct Console {
    out: Mutex<Out>,
    /// Bytes of output that were dropped because the queue was full.
    pub dropped: AtomicU64,
}

struct Out {
    queue: Producer<u8>,
    /// The queue was full in this line. The rest of the line is dropped.
    dropping: bool,
}

impl Console {
    /// Makes an empty console, and its other end. It allocates now, so that a guest's output never allocates.
    pub fn new() -> (Self, Consumer<u8>) {
        let (queue, output) = RingBuffer::new(WAITING);
        (Self { out: Mutex::new(Out { queue, dropping: false }), dropped: AtomicU64::new(0) }, output)
    }

    /// Adds a byte that the guest has sent. A guest core calls it. If the queue is full, the rest of the line is dropped.
    pub fn put(&self, byte: u8) {
        let mut out = self.out.lock();
        if (out.dropping && byte != b'\n') || out.queue.push(byte).is_err() {
            out.dropping = true;
            self.dropped.fetch_add(1, Ordering::Relaxed);
        } else {
            out.dropping = false;
        }
    }
}

/// Bytes typed for the guest's UART that it has not read yet.
pub struct Typed {
    bytes: VecDeque<u8>,
    /// Bytes that were dropped because the guest did not read.
    pub dropped: u64,
}

impl Typed {
    /// Nothing typed.
    pub fn new() -> Self {
        Self { bytes: VecDeque::with_capacity(INPUT), dropped: 0 }
    }

    /// Adds bytes, as many as fit.
    pub fn add(&mut self, bytes: &[u8]) {
        let fit = bytes.len().min(INPUT.saturating_sub(self.bytes.len()));
        self.bytes.extend(bytes.iter().take(fit));
        self.dropped = self.dropped.saturating_add(bytes.len().saturating_sub(fit) as u64);
    }

    /// Takes the next byte.
    pub fn next(&mut self) -> Option<u8> {
        self.bytes.pop_front()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Drops all. The guest they were for is gone.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}

/// How output is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// To COM2 only. What it has no room for waits.
    Detached,
    /// To COM1, as much as it has room for. COM2 gets the lines that it has room for.
    Attached,
    /// To COM2 only. What it has no room for is dropped.
    AtOnce,
}

/// The control core's part of a guest's console: it makes lines and keeps the last output.
pub struct Reader {
    line: Vec<u8>,
    recent: Recent,
    chunk: Box<[u8]>,
    /// The part of `chunk` that was taken and is not in a line yet.
    left: core::ops::Range<usize>,
    /// An event that COM2 had no room for.
    waiting: Option<String>,
    untold: Loss,
    /// Lines that were dropped.
    pub dropped: u64,
}

impl Reader {
    /// Makes a reader that has read nothing.
    pub fn new() -> Self {
        Self {
            line: Vec::with_capacity(LINE),
            recent: Recent::new(),
            chunk: alloc::vec![0; CHUNK].into_boxed_slice(),
            left: 0..0,
            waiting: None,
            untold: Loss::default(),
            dropped: 0,
        }
    }

    /// Takes output that `read` gives, as long as there is room and it has not sent `most` bytes. `read` returns how many bytes
    /// it took. Returns the bytes that it handled, each once as output and once as a part of an event, and why it stopped.
    pub fn drain(
        &mut self,
        name: &str,
        most: usize,
        how: Drain,
        mut read: impl FnMut(&mut [u8]) -> usize,
    ) -> (usize, Pause) {
        let mut sent = 0;
        loop {
            if let Some(event) = self.waiting.take() {
                let len = event.len();
                if let Err(event) = self.offer(name, event, how) {
                    self.waiting = Some(event);
                    return (sent, Pause::NoRoom);
                }
                sent = sent.saturating_add(len);
            }
            while let Some(at) = self.left.next() {
                let Some(&byte) = self.chunk.get(at) else { break };
                self.take(name, byte);
                if self.waiting.is_some() {
                    break;
                }
            }
            if self.waiting.is_some() {
                continue;
            }
            if sent >= most {
                return (sent, Pause::Spent);
            }
            let room = if how == Drain::Attached { console::room_com1() } else { CHUNK };
            let len = room.min(CHUNK).min(most.saturating_sub(sent));
            if len == 0 {
                return (sent, Pause::NoRoom);
            }
            let n = read(self.chunk.get_mut(..len).unwrap_or_default()).min(len);
            if n == 0 {
                return (sent, Pause::Idle);
            }
            if how == Drain::Attached {
                console::print_guest(self.chunk.get(..n).unwrap_or_default());
            }
            sent = sent.saturating_add(n);
            self.left = 0..n;
        }
    }

    /// Adds a byte to the line. At the end of the line, its event waits.
    fn take(&mut self, name: &str, byte: u8) {
        self.recent.put(byte);
        match byte {
            b'\r' => {}
            b'\n' => self.end_line(name),
            _ => self.line.push(byte),
        }
        if self.line.len() >= LINE {
            self.end_line(name);
        }
    }

    fn end_line(&mut self, name: &str) {
        if self.line.is_empty() {
            return;
        }
        match console_event(name, &self.line) {
            Ok(event) => self.waiting = Some(event),
            Err(NoMemory) => {
                self.untold.add(self.line.len());
                self.dropped = self.dropped.saturating_add(1);
            }
        }
        self.line.clear();
    }

    /// Sends an event to COM2, behind an event that tells what was dropped before it. Gives it back if it must wait.
    fn offer(&mut self, name: &str, event: String, how: Drain) -> Result<(), String> {
        let Loss { messages, bytes } = self.untold;
        let told = bytes == 0 || dropped_event(name, messages, bytes).is_ok_and(|event| console::send_guest(&event));
        if told {
            self.untold = Loss::default();
            if console::send_guest(&event) {
                channel::event(&event, Some(name));
                return Ok(());
            }
        }
        // Nobody waits for a UART that takes nothing.
        if how == Drain::Detached && console::room_for_guests().is_some() {
            return Err(event);
        }
        channel::event(&event, Some(name));
        self.untold.add(event.len());
        self.dropped = self.dropped.saturating_add(1);
        Ok(())
    }

    /// Notes bytes of output that were dropped before they came here. They are told with the next line.
    pub const fn lost_before(&mut self, bytes: u64) {
        self.untold.bytes = self.untold.bytes.saturating_add(bytes);
    }

    /// Sends the unfinished line, if there is one and nothing waits before it.
    pub fn flush(&mut self, name: &str, how: Drain) {
        if self.waiting.is_none() && self.left.is_empty() && !self.line.is_empty() {
            self.end_line(name);
            self.drain(name, usize::MAX, how, |_| 0);
        }
    }

    /// Returns the last output, for an operator who has just attached.
    pub fn backlog(&self) -> impl Iterator<Item = &[u8]> {
        self.recent.parts()
    }

    /// Output is sent by this way as it comes, or no more.
    pub fn follow(&mut self, way: Way, on: bool) {
        self.recent.follow(way, on);
    }

    /// The answer to `follow`.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn followed(&self, name: &str, id: Option<u64>) -> Result<Event, NoMemory> {
        self.recent.answer(name, id)
    }

    /// Sends output to those who follow it, as far as there is room. Call it once a tick.
    pub fn tell_followers(&mut self, name: &str) {
        self.recent.send(name, Way::Channel, |line| channel::output(line, name));
        self.recent.send(name, Way::Com2, |line| {
            console::room_for_guests().is_some_and(|room| room >= line.len()) && console::send_guest(line)
        });
    }
}

/// The line of COM2 for a line of a guest's console.
fn console_event(name: &str, line: &[u8]) -> Result<String, NoMemory> {
    Event::Console { guest: control::copy(name)?, line: control::lossy(line)? }.to_line()
}

/// The line of COM2 that tells what was dropped of a guest's output.
fn dropped_event(name: &str, messages: u64, bytes: u64) -> Result<String, NoMemory> {
    Event::Dropped { guest: Some(control::copy(name)?), messages, bytes }.to_line()
}
