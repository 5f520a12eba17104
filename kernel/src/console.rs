//! The log and the two serial ports: COM1 for people, COM2 for programs.
//!
//! Only the boot core touches the UARTs. Another core's log record waits in a queue until the boot core comes by;
//! when the queue is full the record is counted and dropped, so that no core ever waits for a console.

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

/// Longest record from another core, in bytes; the rest is cut off.
const RECORD: usize = 240;
type Waiting = (Level, String<RECORD>);
// 32 records: what a burst from all guest cores within one tick of the boot core may need.
#[expect(deprecated, reason = "the queue's known fault needs its producers preempted, and cores here are not")]
static QUEUE: Queue<Waiting, 32> = Queue::new();
/// Records dropped because the queue was full.
pub static DROPPED: AtomicU64 = AtomicU64::new(0);
/// While the operator's shell shows a guest's console, the log stays off COM1.
pub static QUIET: AtomicBool = AtomicBool::new(false);

struct Logger;
static LOGGER: Logger = Logger;

/// Opens both ports and starts the log.
pub fn open() {
    // SAFETY: the standard ports of COM1 and COM2; this runs once, on the boot core, before any other core is started.
    unsafe {
        *COM1.lock() = Serial::open(0x3f8);
        *COM2.lock() = Serial::open(0x2f8);
    }
    // The only way this fails is a second call.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(LevelFilter::Info);
}

/// Whether there is a COM2 for programs.
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

/// Writes what fits and drops the rest, on a character boundary.
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

/// Writes to COM1, LF as CR LF.
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

/// A byte typed on COM1.
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

/// A byte received on COM2.
pub fn receive() -> Option<u8> {
    COM2.lock().as_mut()?.receive()
}

/// For a panic: takes the ports even if this core was holding them.
pub fn break_locks() {
    // SAFETY: all other cores have been told to park and the panicking one never returns, so no guard is used again.
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
