//! The capability report: what this machine has, in sentences. Required and missing: stop and say what would help.
//! Optional and missing: which fallback is used.

use crate::console;
use alloc::{string::String, vec::Vec};
use control::{Event, Platform, ReportEntry, ReportKind, Virtualization};
use core::sync::atomic::{AtomicBool, Ordering};
use spin::Mutex;

/// Whether the first line has gone out on COM2.
static STARTED: AtomicBool = AtomicBool::new(false);
static REPORT: Mutex<Vec<ReportEntry>> = Mutex::new(Vec::new());

/// Adds a sentence and says it on both consoles.
pub fn say(kind: ReportKind, text: impl Into<String>) {
    let entry = ReportEntry { kind, text: text.into().into() };
    print(&entry);
    if STARTED.load(Ordering::Relaxed) {
        send(&entry);
    }
    REPORT.lock().push(entry);
}

/// Something the machine has and we use.
pub fn found(text: impl Into<String>) {
    say(ReportKind::Found, text);
}

/// Something we would use; the text says what is used instead.
pub fn fallback(text: impl Into<String>) {
    say(ReportKind::Fallback, text);
}

/// Something the operator should know.
pub fn warning(text: impl Into<String>) {
    say(ReportKind::Warning, text);
}

/// How something was divided or chosen.
pub fn decision(text: impl Into<String>) {
    say(ReportKind::Decision, text);
}

/// Something without which there is no going on; the text says what would help.
pub fn missing(text: impl Into<String>) {
    say(ReportKind::RequiredMissing, text);
}

/// Whether something required is missing.
pub fn is_fatal() -> bool {
    REPORT.lock().iter().any(|e| e.kind == ReportKind::RequiredMissing)
}

/// Says the whole report again, on COM1 for people.
pub fn show() {
    REPORT.lock().iter().for_each(print);
}

/// Sends the whole report again, on COM2.
pub fn send_all() {
    REPORT.lock().iter().for_each(send);
}

/// Says on COM2 what sidecore this is and what it runs on: the first line there. What was reported before follows.
pub fn send_boot(virtualization: Option<Virtualization>, memory: u64) {
    let platform = Platform { virtualization, cores: crate::cores::count().max(1) as u64, memory };
    console::send(Event::Boot { version: env!("CARGO_PKG_VERSION").into(), platform }.to_line().as_bytes());
    send_all();
    STARTED.store(true, Ordering::Relaxed);
}

fn print(entry: &ReportEntry) {
    let label = match entry.kind {
        ReportKind::Found => "found",
        ReportKind::RequiredMissing => "MISSING",
        ReportKind::Fallback => "fallback",
        ReportKind::Warning => "warning",
        ReportKind::Decision => "decided",
    };
    console::print(format_args!("  {label:>8}: {}\n", entry.text));
}

fn send(entry: &ReportEntry) {
    console::send(Event::Report(entry.clone()).to_line().as_bytes());
}
