//! Handles a panic: parks the other cores, takes bus mastering from every device, and reports message, place and
//! backtrace.

#![allow(unsafe_code, reason = "walks the stack by frame pointers and takes the consoles over")]

use crate::{
    arch::{apic, frame::Frame, number},
    boots::failure,
    console, cores, disks, emulator, mem, pci, step, symbols,
};
use core::{
    fmt::{self, Write},
    panic::PanicInfo,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

static PANICKING: AtomicBool = AtomicBool::new(false);

/// Most addresses in a backtrace.
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

/// Reports and stops the machine. `frame` is the interrupted code if the cause is an exception.
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
    step::code(step::Step::Panic);
    // What follows needs the heap, devices and the symbols, on whichever core it is.
    mem::map_everything();
    // Without a core number this core's APIC is not in x2APIC mode yet. The write would fault, and no other core runs.
    if cores::count() > 0 {
        apic::send_nmi_to_others();
    }
    // Devices must not write to memory that nobody controls any more.
    pci::clear_bus_masters(true);
    // Best effort: nobody waits for what a disk still has to write to its medium.
    disks::notify_abrupt_shutdown();
    console::break_locks();
    let core = number::current();
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
    // A core may have been giving a device this right when it was told to stop. By now it has stopped, so clear again.
    pci::clear_bus_masters(true);
    console::flush();
    failure::fails();
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

/// One entry of a backtrace. It prints as a name and an offset, or as an address if there is no symbol for it.
struct Entry(u64);

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // This is a return address. A call that never returns may be a function's last instruction, and then the return
        // address belongs to the next function. So look up the byte before.
        symbols::write(f, self.0, 1)
    }
}

/// Walks the chain of frame pointers, innermost first. Stops at the first value that cannot be a frame pointer.
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
        if self.rbp == 0
            || !self.rbp.is_multiple_of(8)
            || !mem::is_stack(self.rbp)
            || !mem::is_stack(self.rbp.saturating_add(8))
        {
            return None;
        }
        // SAFETY: `rbp` is aligned and both words are on a mapped stack.
        let (next, from) = unsafe {
            let p = ptr::with_exposed_provenance::<u64>(self.rbp as usize);
            (p.read(), p.add(1).read())
        };
        // An outer frame has a higher address. Anything else is not a chain of frames.
        self.rbp = if next > self.rbp { next } else { 0 };
        (start..end).contains(&from).then_some(Entry(from))
    }
}

/// Stops this core if another one panics. The NMI handler calls it first. It is also called after an exit by NMI.
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
