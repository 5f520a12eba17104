//! The machine's screen: shows what the people's UART gets. The crate `screen` draws, and this file gives it the memory that
//! GRUB's framebuffer tag names: VGA's text mode by BIOS, a framebuffer by UEFI.
//!
//! Only the control core maps and draws it, and a core that panics, when the others have stopped. A screen below 4 GiB is used
//! from the start. One above is not mapped before the hypervisor has its own tables.

#![allow(unsafe_code, reason = "writes to the screen's memory")]

use crate::arch::time;
use ::screen::{Cell, Cells, Channel, Kind, MOST_CELLS, Memory, Pixels, Screen};
use alloc::format;
use boot::information::{Framebuffer, FramebufferContent, Information};
use control::{ReportEntry, ReportKind};
use core::{fmt, ptr};
use memory::maps::Range;
use spin::{Mutex, MutexGuard};

/// What the boot tables map.
const MAPPED_AT_START: u64 = 4 << 30;

/// A screen that text is on.
static SCREEN: Mutex<Option<Screen<'static, Mapped>>> = Mutex::new(None);
/// What is to be said about it.
static FOUND: Mutex<Found> = Mutex::new(Found::Nothing);
/// What the screen should show, and what it shows.
// SAFETY: the section is data like any other. Guests' cores and idle cores do not map it, and do not use it.
#[unsafe(link_section = ".control")]
static CELLS: [Mutex<Cells>; 2] = [const { Mutex::new([Cell::BLANK; MOST_CELLS]) }; 2];

/// What GRUB says about the screen.
#[derive(Clone, Copy)]
enum Found {
    Nothing,
    Usable(Kind, u64),
    /// Its address, and why there is no text on it.
    Unusable(u64, Why),
}

/// Why there is no text on a screen.
#[derive(Clone, Copy)]
enum Why {
    Pixels(::screen::Unusable),
    /// Framebuffers of this type are not supported.
    Type(u8),
    /// Something else is at its addresses, or it goes beyond the address space.
    Place,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pixels(why) => why.fmt(f),
            Self::Type(kind) => write!(f, "it is of type {kind}; text (2) and direct colours (1) are supported"),
            Self::Place => f.write_str("memory or other devices are at its addresses"),
        }
    }
}

/// The screen's memory, which is mapped at its physical address.
struct Mapped {
    start: u64,
    bytes: usize,
}

impl Memory for Mapped {
    fn write(&mut self, offset: usize, mut bytes: &[u8]) {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.bytes) {
            return;
        }
        let mut at = (self.start as usize).saturating_add(offset);
        // Each store crosses the bus, so a large one is as fast as a small one.
        while !bytes.is_empty() {
            // SAFETY: the bytes are within the screen's memory, as checked above. It is mapped, is nobody's memory, and only this
            // `Mapped` writes there. Each store is aligned to its size.
            unsafe {
                if at.is_multiple_of(8)
                    && let Some((first, rest)) = bytes.split_first_chunk::<8>()
                {
                    ptr::with_exposed_provenance_mut::<u64>(at).write_volatile(u64::from_le_bytes(*first));
                    (at, bytes) = (at.saturating_add(8), rest);
                } else if at.is_multiple_of(2)
                    && let Some((first, rest)) = bytes.split_first_chunk::<2>()
                {
                    ptr::with_exposed_provenance_mut::<u16>(at).write_volatile(u16::from_le_bytes(*first));
                    (at, bytes) = (at.saturating_add(2), rest);
                } else if let Some((first, rest)) = bytes.split_first() {
                    ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(*first);
                    (at, bytes) = (at.saturating_add(1), rest);
                }
            }
        }
    }
}

/// Takes the screen that GRUB's information names, if it is below 4 GiB. One above waits for [`open_mapped`]. It allocates
/// nothing.
pub fn find(info: Information<'_>) {
    let found = info.framebuffer().map_or(Found::Nothing, read);
    *FOUND.lock() = found;
    if range().is_some_and(|(_, end)| end <= MAPPED_AT_START) {
        open();
    }
}

fn read(screen: Framebuffer) -> Found {
    let Framebuffer { address, pitch, width, height, bits, content } = screen;
    let kind = match content {
        FramebufferContent::Text => Ok(Kind::Text { columns: width as usize, rows: height as usize }),
        FramebufferContent::Rgb(colours) => {
            let colours = colours.map(|(position, size)| Channel { position, size });
            Pixels::new(width, height, pitch, bits, colours).map(Kind::Pixels).map_err(Why::Pixels)
        }
        FramebufferContent::Other(kind) => Err(Why::Type(kind)),
    };
    match kind {
        // Text has no gaps between its rows.
        Ok(Kind::Text { columns, rows })
            if columns > 80 || rows > 60 || pitch as usize != columns.saturating_mul(2) =>
        {
            Found::Unusable(address, Why::Pixels(::screen::Unusable::Size))
        }
        Ok(kind) if address == 0 || address.checked_add(kind.bytes() as u64).is_none_or(|end| end >> 47 != 0) => {
            Found::Unusable(address, Why::Place)
        }
        Ok(kind) => Found::Usable(kind, address),
        Err(why) => Found::Unusable(address, why),
    }
}

/// The pages of the screen's memory, to be mapped.
pub fn range() -> Option<Range> {
    match *FOUND.lock() {
        Found::Usable(kind, address) => {
            let end = address.saturating_add(kind.bytes() as u64);
            Some((address & !0xfff, end.next_multiple_of(4096)))
        }
        Found::Nothing | Found::Unusable(..) => None,
    }
}

/// Gives the screen up if one of these ranges of memory or registers overlaps it.
pub fn check_place(others: impl IntoIterator<Item = Range>) {
    let Some((start, end)) = range() else { return };
    if others.into_iter().any(|(from, to)| from < end && start < to) {
        *SCREEN.lock() = None;
        *FOUND.lock() = Found::Unusable(start, Why::Place);
    }
}

/// Takes the screen if that has not happened yet. The hypervisor's tables map it.
pub fn open_mapped() {
    if !is_open() {
        open();
    }
}

fn open() {
    let Found::Usable(kind, start) = *FOUND.lock() else { return };
    let memory = Mapped { start, bytes: kind.bytes() };
    let [Some(cells), Some(drawn)] = CELLS.each_ref().map(|cells| cells.try_lock().map(MutexGuard::leak)) else {
        return;
    };
    *SCREEN.lock() = Screen::new(kind, memory, cells, drawn);
}

/// Whether there is a screen with text.
pub fn is_open() -> bool {
    SCREEN.lock().is_some()
}

/// Shows text, as soon as it is drawn.
pub fn feed(bytes: &[u8]) {
    if let Some(screen) = &mut *SCREEN.lock() {
        screen.feed(bytes);
    }
}

/// Draws for a tenth of a tick of the control core.
pub fn draw() {
    draw_for(100);
}

/// Draws for two milliseconds: the boot has written a line. A screen whose memory is very slow is behind then, but for its last
/// rows.
pub fn draw_line() {
    draw_for(2_000);
}

/// Draws for so many microseconds. Before the rate of the TSC is known it draws everything.
fn draw_for(micros: u64) {
    let Some(screen) = &mut *SCREEN.lock() else { return };
    let Some(rates) = time::known_rates() else {
        screen.draw(usize::MAX);
        return;
    };
    let until = time::tsc().saturating_add((rates.tsc / 1_000_000).saturating_mul(micros));
    let step = screen.kind().cells_at_once();
    while !screen.draw(step) && time::tsc() < until {}
}

/// Draws everything.
pub fn draw_all() {
    if let Some(screen) = &mut *SCREEN.lock() {
        screen.draw(usize::MAX);
    }
}

/// Unlocks the screen for a panic.
///
/// # Safety
/// All other cores have stopped, and what this core did with the screen does not go on.
pub unsafe fn break_lock() {
    // SAFETY: the caller's promise: no guard is used again.
    unsafe {
        SCREEN.force_unlock();
        FOUND.force_unlock();
    }
    if let Some(screen) = &mut *SCREEN.lock() {
        screen.begin_anew();
    }
}

/// What the screen shows, or why nothing, as a sentence of the report.
pub fn describe() -> ReportEntry {
    let (kind, text) = match *FOUND.lock() {
        Found::Nothing => {
            (ReportKind::Fallback, "the boot loader names no screen: what people see is on the serial port only".into())
        }
        Found::Usable(kind, address) => {
            let (columns, rows) = kind.size();
            let mode = match kind {
                Kind::Text { .. } => "VGA text".into(),
                Kind::Pixels(pixels) => {
                    let (width, height, bits) = pixels.mode();
                    format!("{width} by {height} pixels of {bits} bits at {address:#x}")
                }
            };
            let text = format!("the screen shows people's console in {columns} by {rows} characters ({mode})");
            (ReportKind::Decision, text)
        }
        Found::Unusable(address, why) => {
            (ReportKind::Fallback, format!("the screen at {address:#x} shows no text: {why}"))
        }
    };
    ReportEntry { kind, text: text.into() }
}
