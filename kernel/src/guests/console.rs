//! A guest's serial console on its way to the operator: bytes to COM1 while attached, lines to COM2 always.

use crate::console;
use alloc::{boxed::Box, collections::VecDeque, string::String, vec::Vec};
use control::Event;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Mutex;

/// Bytes that wait for the control core at most; it comes by every millisecond.
const WAITING: usize = 32 << 10;
/// Bytes of the past that are shown to whoever attaches.
const BACKLOG: usize = 4 << 10;
/// A line longer than this is sent in pieces.
const LINE: usize = 1 << 10;
/// Bytes typed that the guest has not read, at most.
const INPUT: usize = 4 << 10;

/// What guest cores and the control core share of one guest's console.
pub struct Console {
    out: Mutex<VecDeque<u8>>,
    input: Mutex<VecDeque<u8>>,
    /// Bytes of output that found no room.
    pub dropped: AtomicU64,
}

impl Console {
    /// An empty one. Its memory is taken now, so that a guest's output never allocates.
    pub fn new() -> Self {
        Self {
            out: Mutex::new(VecDeque::with_capacity(WAITING)),
            input: Mutex::new(VecDeque::with_capacity(INPUT)),
            dropped: AtomicU64::new(0),
        }
    }

    /// A byte the guest has sent; from a guest core.
    pub fn put(&self, byte: u8) {
        let mut out = self.out.lock();
        if out.len() < WAITING {
            out.push_back(byte);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Bytes typed for the guest, as many as there is room for.
    pub fn type_in(&self, bytes: &[u8]) {
        let mut input = self.input.lock();
        for &b in bytes.iter().take(INPUT - input.len()) {
            input.push_back(b);
        }
    }

    /// The next byte for the guest's UART.
    pub fn typed(&self) -> Option<u8> {
        self.input.lock().pop_front()
    }

    /// Whether something was typed that the guest has not got.
    pub fn has_input(&self) -> bool {
        !self.input.lock().is_empty()
    }

    /// Forgets what was typed for a guest that is gone.
    pub fn clear_input(&self) {
        self.input.lock().clear();
    }
}

/// The control core's half: lines and backlog.
pub struct Reader {
    line: Vec<u8>,
    backlog: VecDeque<u8>,
    chunk: Box<[u8]>,
}

impl Reader {
    /// With nothing read.
    pub fn new() -> Self {
        Self { line: Vec::new(), backlog: VecDeque::new(), chunk: alloc::vec![0; 2048].into_boxed_slice() }
    }

    /// Takes what has come: to COM1 if somebody is attached, as lines to COM2. No more than fits into the queue, or a
    /// guest that writes faster than a UART sends would keep the control core here.
    pub fn drain(&mut self, name: &str, from: &Console, attached: bool) {
        for _ in 0..WAITING / self.chunk.len() {
            let mut n = 0;
            {
                let mut out = from.out.lock();
                while n < self.chunk.len() {
                    let Some(b) = out.pop_front() else { break };
                    self.chunk[n] = b;
                    n += 1;
                }
            }
            if n == 0 {
                return;
            }
            if attached {
                console::print_bytes(&self.chunk[..n]);
            }
            for i in 0..n {
                let b = self.chunk[i];
                if self.backlog.len() == BACKLOG {
                    self.backlog.pop_front();
                }
                self.backlog.push_back(b);
                match b {
                    b'\r' => {}
                    b'\n' => self.flush(name),
                    _ => self.line.push(b),
                }
                if self.line.len() >= LINE {
                    self.flush(name);
                }
            }
        }
    }

    /// Sends the line so far, if there is one.
    pub fn flush(&mut self, name: &str) {
        if self.line.is_empty() {
            return;
        }
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        console::send(Event::Console { guest: name.into(), line }.to_line().as_bytes());
    }

    /// Shows the end of what was written so far, to whoever has just attached.
    pub fn show_backlog(&self) {
        let (a, b) = self.backlog.as_slices();
        console::print_bytes(a);
        console::print_bytes(b);
    }
}
