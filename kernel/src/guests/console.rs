//! A guest's console on its way to the operator: bytes to COM1 while attached, lines to COM2 always. The output of the
//! guest's UART and of its console device make one stream.

use crate::console;
use alloc::{boxed::Box, collections::VecDeque, string::String, vec::Vec};
use control::Event;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Mutex;

/// Most bytes of output that wait for the control core. It takes them every millisecond.
const WAITING: usize = 32 << 10;
/// Most bytes of earlier output that an operator sees on attaching.
const BACKLOG: usize = 4 << 10;
/// Longest line in bytes. A longer one is sent in pieces.
const LINE: usize = 1 << 10;
/// Most typed bytes that wait for the guest to read them.
const INPUT: usize = 4 << 10;

/// The part of a guest's console that guest cores and the control core share.
pub struct Console {
    out: Mutex<VecDeque<u8>>,
    input: Mutex<VecDeque<u8>>,
    /// Bytes of output that were dropped because the queue was full.
    pub dropped: AtomicU64,
}

impl Console {
    /// Makes an empty console. It allocates now, so that a guest's output never allocates.
    pub fn new() -> Self {
        Self {
            out: Mutex::new(VecDeque::with_capacity(WAITING)),
            input: Mutex::new(VecDeque::with_capacity(INPUT)),
            dropped: AtomicU64::new(0),
        }
    }

    /// Adds a byte that the guest has sent. A guest core calls it.
    pub fn put(&self, byte: u8) {
        let mut out = self.out.lock();
        if out.len() < WAITING {
            out.push_back(byte);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds bytes typed for the guest, as many as fit.
    pub fn type_in(&self, bytes: &[u8]) {
        let mut input = self.input.lock();
        for &b in bytes.iter().take(INPUT - input.len()) {
            input.push_back(b);
        }
    }

    /// Takes the next byte for the guest's UART.
    pub fn typed(&self) -> Option<u8> {
        self.input.lock().pop_front()
    }

    /// Whether typed bytes wait for the guest.
    pub fn has_input(&self) -> bool {
        !self.input.lock().is_empty()
    }

    /// Drops all typed bytes. The guest they were for is gone.
    pub fn clear_input(&self) {
        self.input.lock().clear();
    }
}

/// The control core's part of a guest's console: it makes lines and keeps the backlog.
pub struct Reader {
    line: Vec<u8>,
    backlog: VecDeque<u8>,
    chunk: Box<[u8]>,
}

impl Reader {
    /// Makes a reader that has read nothing.
    pub fn new() -> Self {
        Self { line: Vec::new(), backlog: VecDeque::new(), chunk: alloc::vec![0; 2048].into_boxed_slice() }
    }

    /// Takes the waiting output of the guest's UART. Sends it to COM1 if `attached`, and as lines to COM2. Takes at most
    /// as many bytes as the queue holds; otherwise a guest that writes faster than a UART sends would keep the control
    /// core here.
    pub fn drain(&mut self, name: &str, from: &Console, attached: bool) {
        self.drain_from(name, WAITING, attached, |chunk| {
            let mut out = from.out.lock();
            let n = chunk.len().min(out.len());
            for (place, byte) in chunk.iter_mut().zip(out.drain(..n)) {
                *place = byte;
            }
            n
        });
    }

    /// The same for output that `read` takes: up to `most` bytes. `read` returns how many bytes it took.
    pub fn drain_from(&mut self, name: &str, most: usize, attached: bool, mut read: impl FnMut(&mut [u8]) -> usize) {
        let mut left = most;
        while left > 0 {
            let len = left.min(self.chunk.len());
            let n = read(&mut self.chunk[..len]);
            left -= n;
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

    /// Sends the unfinished line, if there is one.
    pub fn flush(&mut self, name: &str) {
        if self.line.is_empty() {
            return;
        }
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        console::send(Event::Console { guest: name.into(), line }.to_line().as_bytes());
    }

    /// Writes the last output to COM1, for an operator who has just attached.
    pub fn show_backlog(&self) {
        let (a, b) = self.backlog.as_slices();
        console::print_bytes(a);
        console::print_bytes(b);
    }
}
