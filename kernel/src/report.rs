//! The capability report: sentences about what this machine has. If something required is missing, the machine stops,
//! and the report says what would help. If something optional is missing, the report says which fallback is used.

use crate::{boots::kept, console, heap::For};
use alloc::{string::String, vec::Vec};
use control::{Event, NoMemory, Platform, QUOTED, ReportEntry, ReportKind, Virtualization, write_summary};
use core::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};
use spin::Mutex;

/// Whether the first line has gone out on COM2.
static STARTED: AtomicBool = AtomicBool::new(false);
static REPORT: Mutex<Vec<ReportEntry>> = Mutex::new(Vec::new());
/// The mistakes in the configuration.
static REFUSED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Adds a sentence, and writes it to both consoles.
fn say(kind: ReportKind, text: impl Into<String>) {
    let _control = For::control();
    add(ReportEntry { kind, text: text.into().into() });
}

/// Adds sentences that `sidecore-doctor` says too, and writes them to both consoles.
pub fn add_all(entries: impl IntoIterator<Item = ReportEntry>) {
    let _control = For::control();
    entries.into_iter().for_each(add);
}

fn add(entry: ReportEntry) {
    print(&entry);
    if STARTED.load(Ordering::Relaxed) {
        send(&entry);
    }
    REPORT.lock().push(entry);
}

/// Reports something that the machine has and sidecore uses.
pub fn found(text: impl Into<String>) {
    say(ReportKind::Found, text);
}

/// Reports something optional that the machine lacks. The text says what is used instead.
pub fn fallback(text: impl Into<String>) {
    say(ReportKind::Fallback, text);
}

/// Reports something that the operator should know.
pub fn warning(text: impl Into<String>) {
    say(ReportKind::Warning, text);
}

/// Reports how something was divided or chosen.
pub fn decision(text: impl Into<String>) {
    say(ReportKind::Decision, text);
}

/// Reports something required that the machine lacks. The text says what would help.
pub fn missing(text: impl Into<String>) {
    say(ReportKind::RequiredMissing, text);
}

/// Reports a mistake in the configuration to people. Programs get an event of their own.
pub fn refused(text: String) {
    console::print(format_args!("{text}\n"));
    REFUSED.lock().push(text);
}

/// Writes the report in short to COM1. `guests`: their names, and whether they start now.
pub fn summarize<'a>(guests: impl Iterator<Item = (&'a str, bool)> + Clone) {
    let (report, refused) = (REPORT.lock(), REFUSED.lock());
    console::print(format_args!("\n{}", fmt::from_fn(|f| write_summary(&report, &refused, guests.clone(), f))));
}

/// Whether something required is missing.
pub fn is_fatal() -> bool {
    REPORT.lock().iter().any(|e| e.kind == ReportKind::RequiredMissing)
}

/// Writes the whole report to COM1 again, for people, and behind it the mistakes in the configuration.
pub fn show() {
    REPORT.lock().iter().for_each(print);
    REFUSED.lock().iter().for_each(|text| console::print(format_args!("{text}\n")));
}

/// Sends the whole report again by `answer`, for a program that asked.
pub fn answer(mut answer: impl FnMut(Result<Event, NoMemory>)) {
    REPORT.lock().iter().for_each(|entry| answer(event(entry)));
}

/// Sends sidecore's version and the platform: the first line on COM2. Then sends everything reported before.
pub fn send_boot(virtualization: Option<Virtualization>, memory: u64) {
    let platform = Platform { virtualization, cores: crate::cores::count().max(1) as u64, memory };
    console::send_event(Ok(Event::Boot { version: env!("CARGO_PKG_VERSION").into(), platform }));
    REPORT.lock().iter().for_each(send);
    STARTED.store(true, Ordering::Relaxed);
}

/// Writes a sentence for people. A line of another boot's log is not written to the log of this one.
fn print(entry: &ReportEntry) {
    kept::quote(entry.text.starts_with(QUOTED));
    console::print(format_args!("{entry}\n"));
    kept::quote(false);
}

fn send(entry: &ReportEntry) {
    console::send_event(event(entry));
}

fn event(entry: &ReportEntry) -> Result<Event, NoMemory> {
    Ok(Event::Report(ReportEntry { kind: entry.kind, text: control::copy(&entry.text)?.into() }))
}
