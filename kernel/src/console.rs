//! The log and the two serial ports. The screen shows what people's port gets.
//!
//! People's port is called COM1 here and that of programs COM2, because that is where they usually are. `boot::console` chooses
//! the UARTs.
//!
//! Nobody waits for a UART. Output goes into the queues of `control::Output`; the control core gives the UART what it takes
//! on each tick. What does not fit is dropped whole and counted, and the count is told when there is room again. Output
//! waits for a UART, for a bounded time, in two cases only: before the control loop begins, when there are no guests yet,
//! and when the machine ends.
//!
//! The screen gets the bytes that COM1 has taken, so both show the same. Without COM1 it gets them at once.
//!
//! If `json=` names people's port, both are on that UART (`control::SharedOutput`). What is COM2's here then begins each line with RS,
//! and the screen does not show it.
//!
//! Only the boot core touches the UARTs and the screen. Another core's log record waits in a queue, which the boot core empties on
//! each tick. If the queue is full, the record is dropped and counted.

#![allow(unsafe_code, reason = "opens the UARTs by their port numbers")]

use crate::{boots::kept, channel, cores, heap, screen};
use alloc::vec::Vec;
use boot::console::{Consoles, Uart};
use control::{
    Class, Event, LEAVE_TOP, Level as EventLevel, Loss, NoMemory, Output, Prompt, Received, SharedInput, SharedOutput,
    TerminalFilter, Text, Whose, without_mark,
};
use core::{
    fmt::{self, Write},
    iter::once,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};
use drivers::serial::Serial;
use findings::consoles::Found;
use heapless::{Deque, String, mpmc::Queue};
use log::{Level, LevelFilter, Log, Metadata, Record};
use spin::Mutex;

/// Most bytes that a UART gets in a tick. A real one takes 16. An emulated one may take any number at once.
const TICK_BYTES: usize = 4 << 10;
/// Times that the end of the machine looks whether a UART takes a byte. A full FIFO takes 1.4 ms at 115,200 baud; a read of
/// the port takes well over 100 ns, so this is at least 100 ms.
const LAST_TRIES: u32 = 1_000_000;

/// A UART with its output. COM1's text keeps its order, so nothing of it is in the queue for answers.
struct Port<const ANSWERS: usize, const REST: usize> {
    uart: Option<Serial>,
    output: Output<ANSWERS, REST>,
}

/// Both ports. Guests have the first KiB of COM1: as much as 115,200 baud send in 90 ms, so an answer to a person is late by no
/// more. COM2: the counters of 64 vCPUs are an answer of 130 KiB. Guests have 8 KiB: their longest line is 6 KiB when it is
/// escaped.
struct Ports {
    com1: Port<1, { 64 << 10 }>,
    com2: Port<{ 256 << 10 }, { 64 << 10 }>,
    /// COM2 has no UART, and its lines are on COM1's.
    shared: Option<Shared>,
}

/// Which of both ports.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Com1,
    Com2,
}

/// How both ports are on one UART.
struct Shared {
    output: SharedOutput,
    input: SharedInput,
    /// Bytes of commands that have been received. When it is full, the rest waits in the UART.
    received: Deque<u8, 256>,
}

// SAFETY: the section is data like any other. Guests' cores and idle cores do not map it, and do not use it: what they log is
// in `QUEUE`.
#[unsafe(link_section = ".control")]
static PORTS: Mutex<Ports> = Mutex::new(Ports { com1: Port::new(1 << 10), com2: Port::new(8 << 10), shared: None });

/// Output may wait for a UART: there is no control loop yet, or it has ended.
static WAITS: AtomicBool = AtomicBool::new(true);

/// Longest record from another core, in bytes. The rest of a longer one is cut off.
const RECORD: usize = 240;
type Waiting = (Level, String<RECORD>);
// 32 records are enough for a burst from all guest cores within one tick of the boot core.
#[expect(deprecated, reason = "the queue's known fault needs its producers preempted, and cores here are not")]
static QUEUE: Queue<Waiting, 32> = Queue::new();
/// Number of records dropped because the queue was full.
pub static DROPPED: AtomicU64 = AtomicU64::new(0);
/// Whether what guests write stays off COM2: `[com2] allow` lacks `console`.
static NO_GUESTS_ON_COM2: AtomicBool = AtomicBool::new(false);
/// Whether the log stays off COM1, because the operator's shell shows a guest's console there.
pub static QUIET: AtomicBool = AtomicBool::new(false);

/// The prompt on COM1.
pub static PROMPT: Prompt = Prompt::new();

/// Whether a picture has the whole screen of COM1.
static FULL_SCREEN: AtomicBool = AtomicBool::new(false);

/// The terminal of the attached guest.
struct Terminal {
    filter: TerminalFilter,
    raw: bool,
}

static TERMINAL: Mutex<Terminal> = Mutex::new(Terminal { filter: TerminalFilter::new(), raw: false });

/// The address of what waits for the UARTs.
#[cfg(feature = "read-memory")]
pub fn place_of_waiting() -> usize {
    core::ptr::from_ref(&PORTS).addr()
}

struct Logger;
static LOGGER: Logger = Logger;

impl<const ANSWERS: usize, const REST: usize> Port<ANSWERS, REST> {
    const fn new(guests: usize) -> Self {
        Self { uart: None, output: Output::new(guests) }
    }

    /// Gives the UART what it takes now, and the screen the same if the port is `shown` there. Returns how many bytes they took.
    fn pump(&mut self, shown: bool) -> usize {
        let Self { uart, output } = self;
        let mut taken = 0;
        if uart.is_some() || shown && screen::is_open() {
            output.pump(|bytes| {
                let sent = uart.as_mut().map_or(bytes.len(), |uart| uart.send(bytes)).min(bytes.len());
                if shown {
                    screen::feed(bytes.get(..sent).unwrap_or_default());
                }
                taken = sent.saturating_add(taken);
                sent
            });
        }
        taken
    }

    fn counters(&self) -> control::SerialPort {
        control::SerialPort {
            dropped: self.output.total_loss().messages,
            dropped_bytes: self.output.total_loss().bytes,
            overruns: self.uart.as_ref().map_or(0, Serial::overruns),
        }
    }
}

impl Ports {
    /// Whether somebody takes output: a UART, or the screen.
    fn is_open(&self, side: Side) -> bool {
        match side {
            Side::Com1 => self.com1.uart.is_some() || screen::is_open(),
            Side::Com2 if self.shared.is_some() => self.com1.uart.is_some(),
            Side::Com2 => self.com2.uart.is_some(),
        }
    }

    /// Whether all output has gone out. A shared UART has that of both.
    fn is_empty(&self, side: Side) -> bool {
        let [one, other] = [self.com1.output.is_empty(), self.com2.output.is_empty()];
        match side {
            _ if self.shared.is_some() => one && other,
            Side::Com1 => one,
            Side::Com2 => other,
        }
    }

    fn begin_tick(&mut self, side: Side, budget: usize) {
        let is_shared = self.shared.is_some();
        if is_shared || side == Side::Com1 {
            self.com1.output.begin_tick(budget);
        }
        if is_shared || side == Side::Com2 {
            self.com2.output.begin_tick(budget);
        }
    }

    fn room(&self, side: Side, class: Class) -> usize {
        match side {
            Side::Com1 => self.com1.output.room(class),
            Side::Com2 => self.com2.output.room(class),
        }
    }

    /// Adds a message. Returns whether it fitted.
    fn push<'a>(&mut self, side: Side, class: Class, pieces: impl Iterator<Item = &'a [u8]> + Clone) -> bool {
        if !self.is_open(side) {
            return true;
        }
        let bytes = pieces.clone().map(<[u8]>::len).sum();
        if WAITS.load(Ordering::Relaxed) && self.room(side, class) < bytes {
            self.finish(side);
        }
        let fits = match side {
            // Nobody but a program's line may begin with its mark.
            Side::Com1 if self.shared.is_some() => self.com1.output.push(class, without_mark(pieces)),
            Side::Com1 => self.com1.output.push(class, pieces),
            Side::Com2 => self.com2.output.push(class, pieces),
        };
        if WAITS.load(Ordering::Relaxed) {
            self.begin_tick(side, usize::MAX);
        }
        self.pump(side);
        fits
    }

    /// Gives the UART what it takes now, and the screen the same if it is people's. Returns how many bytes they took.
    fn pump(&mut self, side: Side) -> usize {
        let Self { com1, com2, shared } = self;
        let Some(shared) = shared else {
            return match side {
                Side::Com1 => com1.pump(true),
                Side::Com2 => com2.pump(false),
            };
        };
        let Port { uart, output } = com1;
        let mut taken = 0;
        shared.output.pump(output, &mut com2.output, &PROMPT, |whose, bytes| {
            let sent = uart.as_mut().map_or(bytes.len(), |uart| uart.send(bytes)).min(bytes.len());
            if whose == Whose::People {
                screen::feed(bytes.get(..sent).unwrap_or_default());
            }
            taken = sent.saturating_add(taken);
            sent
        });
        taken
    }

    /// Tells how much was dropped, if there is room for it. `line` makes the line that says it, if there is memory for it.
    fn tell<L: AsRef<str>>(&mut self, side: Side, line: impl FnOnce(Loss) -> Option<L>) {
        let untold = match side {
            Side::Com1 => self.com1.output.untold(),
            Side::Com2 => self.com2.output.untold(),
        };
        let Some(line) = untold.and_then(line) else { return };
        let line = line.as_ref().as_bytes();
        if self.room(side, Class::Event) >= line.len() {
            match side {
                Side::Com1 => self.com1.output.told(),
                Side::Com2 => self.com2.output.told(),
            }
            self.push(side, Class::Event, once(line));
        }
    }

    /// Waits until the UART has taken everything, or takes nothing for too long. Then nothing is sent by it any more, and what
    /// is left is on the screen only. Draws at least the last rows of the screen.
    fn finish(&mut self, side: Side) {
        let mut tries = LAST_TRIES;
        while self.is_open(side) && !self.is_empty(side) {
            self.begin_tick(side, usize::MAX);
            tries = if self.pump(side) == 0 { tries.saturating_sub(1) } else { LAST_TRIES };
            if tries == 0 {
                match side {
                    Side::Com2 if self.shared.is_none() => self.com2.uart = None,
                    Side::Com1 | Side::Com2 => self.com1.uart = None,
                }
            }
        }
        if side == Side::Com1 {
            screen::draw_line();
        }
    }

    /// Waits until all bytes have left the UART, and draws the whole screen.
    fn flush(&mut self, side: Side) {
        self.finish(side);
        if side == Side::Com1 {
            screen::draw_all();
        }
        let uart = match side {
            Side::Com1 => &mut self.com1.uart,
            Side::Com2 => &mut self.com2.uart,
        };
        if let Some(uart) = uart {
            let _ = (0..LAST_TRIES).any(|_| uart.is_idle());
        }
    }
}

/// What [`open`] was asked for. `None`: it was not called yet.
static WANTED: Mutex<Option<Consoles>> = Mutex::new(None);

/// Opens both ports and starts the log. Without a UART where people's is wanted, COM1 is taken. Programs share people's UART if the
/// command line names it for them.
pub fn open(wanted: Consoles) {
    let usual = Consoles::USUAL.people;
    let people = wanted.people.and_then(|uart| uart_at(uart).or_else(|| usual.and_then(uart_at)));
    let free = |uart: &Uart| people.as_ref().is_none_or(|people| people.port() != uart.port);
    let programs = wanted.programs.filter(free).and_then(uart_at);
    let is_shared = people.as_ref().is_some_and(|people| wanted.share(people.port()));
    // GRUB's menu is on COM1, and its last line may have no end.
    let is_menus = programs.as_ref().is_some_and(|uart| uart.port() == boot::console::COM1);
    {
        let mut ports = PORTS.lock();
        (ports.com1.uart, ports.com2.uart) = (people, programs);
        if is_shared {
            ports.shared =
                Some(Shared { output: SharedOutput::new(), input: SharedInput::new(), received: Deque::new() });
        }
    }
    *WANTED.lock() = Some(wanted);
    if is_menus {
        send(b"\n");
    }
    // This fails only on a second call.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(LevelFilter::Info);
}

fn uart_at(uart: Uart) -> Option<Serial> {
    // SAFETY: these are the standard ports of a UART, or ports that the firmware or the operator calls one. `open` runs once, on
    // the boot core, before any other core is started, and opens no port twice.
    unsafe { Serial::open(uart.port, uart.rate) }
}

/// What was asked of [`open`], and the UARTs of people and of programs, which may be the same. `None`: the ports are not opened yet.
pub fn opened() -> Option<(Consoles, [Option<Found>; 2])> {
    let place = |serial: &Serial| (serial.port(), serial.rate());
    let ports = PORTS.lock();
    let people = ports.com1.uart.as_ref().map(place);
    let programs = if ports.shared.is_some() { people } else { ports.com2.uart.as_ref().map(place) };
    WANTED.lock().map(|wanted| (wanted, [people, programs]))
}

/// Whether programs have a serial port.
pub fn has_com2() -> bool {
    PORTS.lock().is_open(Side::Com2)
}

/// Notes that the control loop begins. From now on nothing waits for a UART.
pub fn stop_waiting() {
    WAITS.store(false, Ordering::Relaxed);
}

/// Notes that the machine ends. From now on output waits for a UART, for a bounded time.
pub fn wait_again() {
    WAITS.store(true, Ordering::Relaxed);
    leave_full_screen();
}

/// Gives the whole screen of COM1 to a picture. The log stays off it.
pub fn take_full_screen() {
    QUIET.store(true, Ordering::Relaxed);
    FULL_SCREEN.store(true, Ordering::Relaxed);
}

/// Ends the picture, if there is one. The terminal shows again what it showed before.
pub fn leave_full_screen() {
    if FULL_SCREEN.swap(false, Ordering::Relaxed) {
        let _ = Com1.write_str(LEAVE_TOP);
        QUIET.store(false, Ordering::Relaxed);
    }
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
    if heap::is_ready() {
        let level = match level {
            Level::Error => EventLevel::Error,
            Level::Warn => EventLevel::Warn,
            Level::Info => EventLevel::Info,
            Level::Debug | Level::Trace => EventLevel::Debug,
        };
        send_event(control::write(args).map(|text| Event::Log { level, text }));
    }
}

/// Begins a tick: gives both UARTs what they take, tells what was dropped, and writes the records of other cores. The boot
/// core calls it.
pub fn tick() {
    {
        let mut ports = PORTS.lock();
        ports.begin_tick(Side::Com1, TICK_BYTES);
        ports.pump(Side::Com1);
        ports.tell(Side::Com1, loss_on_com1);
        screen::draw();
        if ports.shared.is_none() {
            ports.begin_tick(Side::Com2, TICK_BYTES);
        }
        ports.pump(Side::Com2);
        ports.tell(Side::Com2, loss_on_com2);
    }
    drain();
}

/// Writes the records of other cores.
pub fn drain() {
    while let Some((level, text)) = QUEUE.dequeue() {
        emit(level, format_args!("{text}"));
    }
}

/// Gives both UARTs what they take now, within the tick's budget.
pub fn pump() {
    let mut ports = PORTS.lock();
    ports.pump(Side::Com1);
    ports.pump(Side::Com2);
}

/// The line for a person that tells what was dropped.
fn loss_on_com1(Loss { messages, bytes }: Loss) -> Option<String<120>> {
    let mut text = String::new();
    PROMPT.ended();
    write!(text, "\r\n[{messages} pieces of output, {bytes} bytes, were dropped here]\r\n").ok()?;
    Some(text)
}

/// The line for a program that tells what was dropped.
fn loss_on_com2(Loss { messages, bytes }: Loss) -> Option<alloc::string::String> {
    Event::Dropped { guest: None, messages, bytes }.to_line().ok()
}

/// Writes to COM1. Each LF becomes CR LF. It needs no heap. If the prompt is on the screen, the message takes its place.
pub fn print(args: fmt::Arguments<'_>) {
    kept::log(args);
    let mut ports = PORTS.lock();
    let erase = PROMPT.before_message();
    if WAITS.load(Ordering::Relaxed) {
        let _ = Lines(&mut ports).write_fmt(format_args!("{erase}{args}"));
        // So that both tell how far the boot has come if it goes no further.
        ports.finish(Side::Com1);
    } else if ports.is_open(Side::Com1) {
        ports.tell(Side::Com1, loss_on_com1);
        ports.com1.output.print(format_args!("{erase}{args}"));
        ports.pump(Side::Com1);
    }
}

/// The pieces of a line, with CR before its LF.
fn with_returns(line: &str) -> impl Iterator<Item = &[u8]> + Clone {
    let (text, end) = match line.strip_suffix('\n') {
        Some(text) => (text, "\r\n"),
        None => (line, ""),
    };
    [text.as_bytes(), end.as_bytes()].into_iter()
}

/// Writes each piece to COM1, and waits for room.
struct Lines<'a>(&'a mut Ports);

impl Write for Lines<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        for line in s.split_inclusive('\n') {
            self.0.push(Side::Com1, Class::Event, with_returns(line));
        }
        Ok(())
    }
}

/// Whether COM1 has sent all that it got, and what of COM2 is on the same UART.
pub fn com1_is_idle() -> bool {
    let ports = PORTS.lock();
    !ports.is_open(Side::Com1) || ports.is_empty(Side::Com1)
}

/// The terminal on COM1: text is written to it as it is.
pub struct Com1;

impl Write for Com1 {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        PORTS.lock().push(Side::Com1, Class::Event, once(text.as_bytes()));
        Ok(())
    }
}

/// A guest's console is shown on COM1 from now on. `raw`: its output is not filtered.
pub fn attach(raw: bool) {
    *TERMINAL.lock() = Terminal { filter: TerminalFilter::new(), raw };
}

/// Writes output of the attached guest to COM1. It fits if it is no longer than [`room_com1`].
pub fn print_guest(bytes: &[u8]) {
    print_filtered(Class::Guest, bytes);
}

/// Writes earlier output of the attached guest to COM1.
pub fn print_backlog(bytes: &[u8]) {
    print_filtered(Class::Event, bytes);
}

fn print_filtered(class: Class, bytes: &[u8]) {
    let mut terminal = TERMINAL.lock();
    let mut out = Vec::new();
    let filtered =
        if terminal.raw { Ok(bytes) } else { terminal.filter.feed(bytes, &mut out).map(|()| out.as_slice()) };
    match filtered {
        Ok([]) => {}
        Ok(bytes) => _ = PORTS.lock().push(Side::Com1, class, once(bytes)),
        Err(NoMemory) => PORTS.lock().com1.output.lost(),
    }
}

/// Bytes of output of the attached guest that COM1 takes now, filtered or not.
pub fn room_com1() -> usize {
    let ports = PORTS.lock();
    if !ports.is_open(Side::Com1) { usize::MAX } else { ports.room(Side::Com1, Class::Guest).saturating_sub(40) / 4 }
}

/// Bytes of guests' events that COM2 takes now. `None`: its reader takes nothing, so it is not worth to wait for it.
pub fn room_com2() -> Option<usize> {
    let ports = PORTS.lock();
    let takes = ports.is_open(Side::Com2) && !ports.com2.output.is_stalled();
    takes.then(|| ports.room(Side::Com2, Class::Guest))
}

/// Keeps what guests write off COM2 from now on.
pub fn keep_guests_off_com2() {
    NO_GUESTS_ON_COM2.store(true, Ordering::Relaxed);
}

/// Bytes of a guest's output that COM2 has room for. `None` if nobody reads it there, or nobody may.
pub fn room_for_guests() -> Option<usize> {
    if NO_GUESTS_ON_COM2.load(Ordering::Relaxed) { None } else { room_com2() }
}

/// Sends an event with a guest's output to COM2, unless nobody may see it there. Returns false if it does not fit; then the caller
/// counts it.
pub fn send_guest(line: &str) -> bool {
    if NO_GUESTS_ON_COM2.load(Ordering::Relaxed) {
        return true;
    }
    let mut ports = PORTS.lock();
    let fits = ports.room(Side::Com2, Class::Guest) >= line.len();
    if ports.is_open(Side::Com2) && !fits && !WAITS.load(Ordering::Relaxed) {
        return false;
    }
    ports.push(Side::Com2, Class::Guest, once(line.as_bytes()))
}

/// Sends a line of its pieces to COM2, in the guests' share of it. Ask [`room_com2`] before.
pub fn send_pieces<const PIECES: usize>(pieces: [&str; PIECES]) {
    PORTS.lock().push(Side::Com2, Class::Guest, pieces.iter().map(|piece| piece.as_bytes()));
}

/// Returns a byte typed on COM1, if there is one.
pub fn read() -> Option<u8> {
    let Ports { com1, shared, .. } = &mut *PORTS.lock();
    let uart = com1.uart.as_mut()?;
    let Some(Shared { input, received, .. }) = shared else { return uart.receive() };
    while !received.is_full() {
        match input.take(uart.receive()?) {
            Received::People(byte) => return Some(byte),
            Received::Programs(byte) => received.push_back(byte).ok()?,
            Received::Nothing => {}
        }
    }
    None
}

/// Sends an event of sidecore's own to COM2 and to the management guest. If there was no memory to make it, or there is none
/// for its line, it is counted as dropped.
pub fn send_event(event: Result<Event, NoMemory>) {
    let mut ports = PORTS.lock();
    ports.tell(Side::Com2, loss_on_com2);
    match event.and_then(|event| event.to_line()) {
        Ok(line) => {
            ports.push(Side::Com2, Class::Event, once(line.as_bytes()));
            drop(ports);
            channel::event(&line, None);
        }
        Err(NoMemory) => {
            ports.com2.output.lost();
            drop(ports);
            channel::event_lost();
        }
    }
}

/// Sends the answer to a command to COM2. If it is longer than what there is room for, or there is no memory for it, its asker
/// gets a short answer that says so.
pub fn answer(event: Result<Event, NoMemory>, id: Option<u64>) {
    let mut ports = PORTS.lock();
    let room = ports.room(Side::Com2, Class::Answer);
    let refused: Text = match event.and_then(|event| event.to_line()) {
        Ok(line) if ports.push(Side::Com2, Class::Answer, once(line.as_bytes())) => return,
        Ok(line) => {
            let len = line.len();
            control::sentence(format_args!("the answer has {len} bytes, and COM2 has room for {room} now"))
        }
        Err(no_memory) => no_memory.into(),
    };
    match Event::refused(id, refused).to_line() {
        Ok(line) => _ = ports.push(Side::Com2, Class::Answer, once(line.as_bytes())),
        Err(NoMemory) => ports.com2.output.lost(),
    }
}

/// Writes to COM2 as it is.
pub fn send(bytes: &[u8]) {
    PORTS.lock().push(Side::Com2, Class::Event, once(bytes));
}

/// Waits until both ports have sent everything. Gives a port up that takes nothing.
pub fn flush() {
    let mut ports = PORTS.lock();
    ports.flush(Side::Com1);
    ports.flush(Side::Com2);
}

/// Returns a byte received on COM2, if there is one.
pub fn receive() -> Option<u8> {
    let mut ports = PORTS.lock();
    match &mut ports.shared {
        Some(shared) => shared.received.pop_front(),
        None => ports.com2.uart.as_mut()?.receive(),
    }
}

/// Counters of both ports.
pub fn counters() -> [control::SerialPort; 2] {
    let ports = PORTS.lock();
    [ports.com1.counters(), ports.com2.counters()]
}

/// Unlocks both ports and the screen for a panic, even if this core holds them. From now on output waits for them.
pub fn break_locks() {
    // SAFETY: all other cores have been told to park, and the panicking core never returns. So no guard is used again.
    unsafe {
        PORTS.force_unlock();
        WANTED.force_unlock();
        screen::break_lock();
        kept::break_locks();
    }
    // The fault came before the boot has chosen the ports.
    let is_open = WANTED.lock().is_some();
    if !is_open {
        open(Consoles::USUAL);
    }
    wait_again();
    // What is written now goes behind what waits, and in no line of it.
    let mut ports = PORTS.lock();
    ports.finish(Side::Com1);
    ports.finish(Side::Com2);
}
