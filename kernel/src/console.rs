//! The log and the two serial ports: COM1 for people, COM2 for programs.
//!
//! Only the boot core touches the UARTs. Another core's log record waits in a queue, which the boot core empties on
//! each tick. If the queue is full, the record is dropped and counted. So no core ever waits for a console.

#![allow(unsafe_code, reason = "opens the UARTs by their port numbers")]

use crate::{cores, mem};
use control::{Event, Level as EventLevel};
use core::{
    fmt::{self, Write},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};
use drivers::serial::Serial;
use heapless::{String, mpmc::Queue};
use log::{Level, LevelFilter, Log, Metadata, Record};
use spin::Mutex;

static COM1: Mutex<Option<Serial>> = Mutex::new(None);
static COM2: Mutex<Option<Serial>> = Mutex::new(None);

/// Longest record from another core, in bytes. The rest of a longer one is cut off.
const RECORD: usize = 240;
type Waiting = (Level, String<RECORD>);
// 32 records are enough for a burst from all guest cores within one tick of the boot core.
#[expect(deprecated, reason = "the queue's known fault needs its producers preempted, and cores here are not")]
static QUEUE: Queue<Waiting, 32> = Queue::new();
/// Number of records dropped because the queue was full.
pub static DROPPED: AtomicU64 = AtomicU64::new(0);
/// Whether the log stays off COM1, because the operator's shell shows a guest's console there.
pub static QUIET: AtomicBool = AtomicBool::new(false);

struct Logger;
static LOGGER: Logger = Logger;

/// Opens both ports and starts the log.
pub fn open() {
    // SAFETY: these are the standard ports of COM1 and COM2. This runs once, on the boot core, before any other core is
    // started.
    unsafe {
        *COM1.lock() = Serial::open(0x3f8);
        *COM2.lock() = Serial::open(0x2f8);
    }
    // This fails only on a second call.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(LevelFilter::Info);
}

/// Whether the machine has COM2.
pub fn has_com2() -> bool {
    COM2.lock().is_some()
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        if cores::is_boot_core() {
            emit(record.level(), format_args!("{}", record.args()));
            return;
        }
        let mut text = String::new();
        let mut cut = Cut(&mut text);
        let _ = write!(cut, "{}", record.args());
        if QUEUE.enqueue((record.level(), text)).is_err() {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self) {}
}

/// Writes the characters that fit and drops the rest.
struct Cut<'a>(&'a mut String<RECORD>);

impl Write for Cut<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for c in s.chars() {
            if self.0.push(c).is_err() {
                break;
            }
        }
        Ok(())
    }
}

fn emit(level: Level, args: fmt::Arguments<'_>) {
    if !QUIET.load(Ordering::Relaxed) {
        let name = match level {
            Level::Error => "error",
            Level::Warn => "warning",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        };
        print(format_args!("{name}: {args}\n"));
    }
    log_event(level, args);
}

/// Sends a log record to COM2.
fn log_event(level: Level, args: fmt::Arguments<'_>) {
    if mem::heap_ready() {
        let mut text = alloc::string::String::new();
        let _ = write!(text, "{args}");
        let level = match level {
            Level::Error => EventLevel::Error,
            Level::Warn => EventLevel::Warn,
            Level::Info => EventLevel::Info,
            Level::Debug | Level::Trace => EventLevel::Debug,
        };
        send(Event::Log { level, text }.to_line().as_bytes());
    }
}

/// Writes the records of other cores. The boot core calls this on each tick.
pub fn drain() {
    while let Some((level, text)) = QUEUE.dequeue() {
        emit(level, format_args!("{text}"));
    }
}

/// Writes to COM1. Each LF becomes CR LF.
pub fn print(args: fmt::Arguments<'_>) {
    let mut port = COM1.lock();
    if let Some(port) = port.as_mut() {
        let _ = Crlf(port).write_fmt(args);
    }
}

/// Writes bytes to COM1 as they are.
pub fn print_bytes(bytes: &[u8]) {
    if let Some(port) = COM1.lock().as_mut() {
        bytes.iter().for_each(|&b| port.send(b));
    }
}

/// Returns a byte typed on COM1, if there is one.
pub fn read() -> Option<u8> {
    COM1.lock().as_mut()?.receive()
}

/// Writes to COM2.
pub fn send(bytes: &[u8]) {
    if let Some(port) = COM2.lock().as_mut() {
        bytes.iter().for_each(|&b| port.send(b));
    }
}

/// Waits until both ports have sent everything.
pub fn flush() {
    for port in [&COM1, &COM2] {
        if let Some(port) = port.lock().as_mut() {
            port.flush();
        }
    }
}

/// Returns a byte received on COM2, if there is one.
pub fn receive() -> Option<u8> {
    COM2.lock().as_mut()?.receive()
}

/// Unlocks both ports for a panic, even if this core holds them.
pub fn break_locks() {
    // SAFETY: all other cores have been told to park, and the panicking core never returns. So no guard is used again.
    unsafe {
        COM1.force_unlock();
        COM2.force_unlock();
    }
}

struct Crlf<'a>(&'a mut Serial);

impl Write for Crlf<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for b in s.bytes() {
            if b == b'\n' {
                self.0.send(b'\r');
            }
            self.0.send(b);
        }
        Ok(())
    }
}
