//! The end: what happened, where, by which way, then every device's bus mastering off and every core parked.

#![allow(unsafe_code, reason = "walks the stack by frame pointers and takes the consoles over")]

use crate::{
    arch::{apic, frame::Frame},
    console, cores, emulator, mem, pci, symbols,
};
use core::{
    fmt::{self, Write},
    panic::PanicInfo,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

static PANICKING: AtomicBool = AtomicBool::new(false);

/// Addresses in a backtrace at most.
const DEPTH: usize = 24;

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    match info.location() {
        Some(l) => report(
            format_args!("{}", info.message()),
            Some(format_args!("{}:{}:{}", l.file(), l.line(), l.column())),
            None,
            None,
        ),
        None => report(format_args!("{}", info.message()), None, None, None),
    }
}

/// Reports and stops the machine. `frame`: the interrupted code, where an exception is the cause.
pub fn report(
    message: fmt::Arguments<'_>,
    location: Option<fmt::Arguments<'_>>,
    frame: Option<&Frame>,
    fault_address: Option<u64>,
) -> ! {
    x86_64::instructions::interrupts::disable();
    if PANICKING.swap(true, Ordering::SeqCst) {
        park();
    }
    // Before this core has its APIC in x2APIC mode the write would fault, and no other core runs.
    if cores::count() > 0 {
        apic::send_nmi_to_others();
    }
    // Devices must not write memory that nobody looks after any more.
    pci::clear_bus_masters(true);
    console::break_locks();
    let core = cores::current_index();
    console::print(format_args!("\npanic on core {core}: {message}\n"));
    console::print(format_args!("  at {}\n", location.unwrap_or(format_args!("an exception"))));
    let start = match frame {
        Some(f) => Backtrace { rip: Some(f.rip), rbp: f.rbp, left: DEPTH },
        None => Backtrace::here(),
    };
    for entry in start {
        console::print(format_args!("  from {entry}\n"));
    }
    if let Some(at) = fault_address.and_then(mem::guard_page) {
        console::print(format_args!("  the address is in a guard page of core {at}: its stack overflowed\n"));
    }
    let message = format_args!("core {core}: {message}");
    let _ = control::write_panic(&mut Com2, &message, &location.unwrap_or(format_args!("")), start);
    // Once more: a core that was giving this right when it was stopped has come to rest by now.
    pci::clear_bus_masters(true);
    emulator::leave_emulator(false);
    park()
}

struct Com2;

impl Write for Com2 {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        console::send(s.as_bytes());
        Ok(())
    }
}

/// One entry of a backtrace: a name and an offset where the symbols are known, an address otherwise.
struct Entry(u64);

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A call that never returns may be a function's last instruction, so look up the byte before.
        match symbols::name(self.0.wrapping_sub(1)) {
            Some((name, offset)) => write!(f, "{:#} +{:#x}", rustc_demangle::demangle(name), offset + 1),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

/// Walks the chain of frame pointers, innermost first, and stops at the first that cannot be one.
#[derive(Clone, Copy)]
struct Backtrace {
    rip: Option<u64>,
    rbp: u64,
    left: usize,
}

impl Backtrace {
    #[inline(always)]
    fn here() -> Self {
        let rbp;
        // SAFETY: reads a register.
        unsafe { core::arch::asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack, preserves_flags)) };
        Self { rip: None, rbp, left: DEPTH }
    }
}

impl Iterator for Backtrace {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        self.left = self.left.checked_sub(1)?;
        if let Some(rip) = self.rip.take() {
            return Some(Entry(rip));
        }
        let (start, end) = mem::text();
        if self.rbp == 0 || !self.rbp.is_multiple_of(8) || !mem::is_stack(self.rbp) || !mem::is_stack(self.rbp + 8) {
            return None;
        }
        // SAFETY: `rbp` is aligned and both words are on a mapped stack.
        let (next, from) = unsafe {
            let p = ptr::with_exposed_provenance::<u64>(self.rbp as usize);
            (p.read(), p.add(1).read())
        };
        // Frames lie higher the further out they are; anything else is not a chain.
        self.rbp = if next > self.rbp { next } else { 0 };
        (start..end).contains(&from).then_some(Entry(from))
    }
}

/// Called first thing by the NMI handler, and after an exit by NMI: if some core panics, this one stops here.
pub fn park_if_panicking() {
    if PANICKING.load(Ordering::SeqCst) {
        park();
    }
}

fn park() -> ! {
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
