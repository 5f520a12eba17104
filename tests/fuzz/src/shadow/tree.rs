//! Frames for tables, and a second walk of nested tables (SDM vol. 3C, chapter on EPT; APM vol. 2 15.25).

use std::cell::RefCell;
use std::collections::BTreeSet;

use memory::GuestMemory;
use memory::frames::OutOfMemory;
use memory::tables::{Format, FrameSource};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Frames that a run needs at most: those of the pool are the most.
const FRAMES: usize = 1200;

thread_local! {
    static ARENA: RefCell<Option<u64>> = const { RefCell::new(None) };
    /// Guest memory: 64 KiB from 0 on. A run zeroes it.
    pub static MEMORY_OF_GUEST: GuestMemory = memory::guest::testing::memory(0, 0x1_0000);
}

/// The frames of a run. The next run has the same ones.
pub struct Frames {
    start: u64,
    taken: usize,
}

impl Frames {
    /// All frames are free. No tables of an earlier run are in use.
    pub fn new() -> Self {
        let start = ARENA.with_borrow_mut(|arena| {
            *arena.get_or_insert_with(|| {
                let bytes = vec![0xff_u8; (FRAMES + 1) * PAGE as usize].leak();
                (bytes.as_mut_ptr().expose_provenance() as u64).next_multiple_of(PAGE)
            })
        });
        Self { start, taken: 0 }
    }

    /// Whether a frame was taken.
    fn has(&self, frame: u64) -> bool {
        frame.is_multiple_of(PAGE) && frame >= self.start && frame < self.start + self.taken as u64 * PAGE
    }
}

impl FrameSource for Frames {
    fn frame(&mut self) -> Result<u64, OutOfMemory> {
        assert!(self.taken < FRAMES, "the arena is large enough");
        self.taken += 1;
        Ok(self.start + (self.taken as u64 - 1) * PAGE)
    }
}

/// Where an address leads, and what is allowed there. `None` in a field: it is not known.
#[derive(Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The physical address.
    pub to: Option<u64>,
    /// Stores.
    pub write: bool,
    /// Fetches.
    pub execute: Option<bool>,
}

/// Bits 51 to 12.
fn frame_of(entry: u64) -> u64 {
    entry & 0x000f_ffff_ffff_f000
}

fn entry(table: u64, index: u64) -> u64 {
    let place = std::ptr::with_exposed_provenance::<u64>((table + 8 * index) as usize);
    // SAFETY: a table is a frame of the arena, which is never freed, and nobody changes it meanwhile.
    unsafe { place.read_volatile() }
}

/// Walks the tables as the CPU does: rights are those of all levels together.
pub fn walk(root: u64, format: Format, at: u64) -> Option<Leaf> {
    let (mut table, mut write, mut execute) = (root, true, true);
    for shift in [39, 30, 21, 12] {
        let e = entry(table, at >> shift & 511);
        if e & 1 == 0 {
            return None;
        }
        write &= e & 2 != 0;
        execute &= match format {
            Format::Ept => e & 4 != 0,
            _ => e >> 63 == 0,
        };
        // U, which every level of NPT needs.
        assert!(format == Format::Ept || e & 4 != 0, "a walk of the guest's is a user access");
        let is_leaf = shift == 12 || e & 0x80 != 0;
        assert!(shift != 39 || !is_leaf, "no page is as large");
        if is_leaf {
            let size = 1_u64 << shift;
            if format == Format::Ept {
                assert_eq!(e >> 3 & 7, 6, "write-back");
                assert!(shift != 12 || e & 0x80 == 0, "bit 7 of the last level is not used");
            } else {
                assert!(shift != 12 || e & 0x80 == 0, "bit 7 of the last level is PAT");
            }
            assert_eq!(frame_of(e) & (size - 1), 0, "an aligned page");
            return Some(Leaf { to: Some(frame_of(e) + at % size), write, execute: Some(execute) });
        }
        table = frame_of(e);
    }
    None
}

/// Bytes that are mapped. Each table is a frame that was taken, and is in the tree once.
pub fn mapped(root: u64, frames: &Frames) -> u64 {
    fn below(table: u64, shift: u32, frames: &Frames, seen: &mut BTreeSet<u64>) -> u64 {
        assert!(frames.has(table), "a table is a frame of this run");
        assert!(seen.insert(table), "a table is in the tree once");
        let mut bytes = 0;
        for index in 0..512 {
            let e = entry(table, index);
            if e & 1 == 0 {
                assert_eq!(e, 0, "nothing in what is not present");
            } else if shift == 12 || e & 0x80 != 0 {
                bytes += 1 << shift;
            } else {
                bytes += below(frame_of(e), shift - 9, frames, seen);
            }
        }
        bytes
    }
    below(root, 39, frames, &mut BTreeSet::new())
}
