//! ELF files with a PVH entry, from bytes that decide how a good file is damaged. Whatever is in the file: it is refused, or the
//! guest starts inside one of its segments, and nothing is written but these and the boot structures.

use std::cell::RefCell;

use machine::elf::image::{Image, note};
use machine::pvh::{self, Pvh};
use memory::GuestMemory;
use memory::guest::testing::memory;

use crate::input::Input;
use crate::planted::planted;

/// Memory of the guest in bytes.
const MEMORY: u64 = 4 << 20;
/// Most bytes of a file that are overwritten.
const MOST_DAMAGE: u64 = 16;

thread_local! {
    static GUEST: RefCell<GuestMemory> = RefCell::new(memory(0, MEMORY as usize));
}

/// Runs one input.
///
/// # Panics
/// A file was loaded wrongly.
pub fn run(bytes: &[u8]) {
    GUEST.with_borrow(|guest| load(guest, &mut Input::new(bytes), bytes));
}

fn load(guest: &GuestMemory, input: &mut Input<'_>, raw: &[u8]) {
    guest.zero(0, MEMORY).expect("it is memory");
    let mut file = build(input);
    for _ in 0..input.within(0, MOST_DAMAGE) {
        let at = input.within(0, file.len() as u64) as usize;
        file[at] = input.byte();
    }
    let initrd = (!raw.is_empty() && input.flag()).then_some(raw);
    // One in eight is not built at all.
    let file = if input.within(0, 8) == 0 { raw } else { &file };
    let (state, placement) = match pvh::load(guest, &Pvh { file, initrd, command_line: "quiet" }) {
        Ok(loaded) => loaded,
        Err(why) => return crate::is_line(&why.to_string()),
    };
    let elf = machine::elf::Elf::parse(file).expect("it was loaded");
    let holds = |at: u64| elf.segments.iter().any(|s| (s.address..s.address + s.size).contains(&at));
    assert!(holds(state.rip), "the guest starts at {:#x}, outside all segments", state.rip);
    for segment in &elf.segments {
        assert!(segment.address >= 1 << 20 && segment.address + segment.size <= MEMORY, "{segment:x?}");
        let mut there = vec![0; segment.size as usize];
        guest.read(segment.address, &mut there).expect("it is memory");
        let (own, zeroes) = there.split_at(segment.file_size as usize);
        assert_eq!(own, elf.bytes(segment));
        assert!(zeroes.iter().all(|byte| *byte == 0));
    }
    let (start, len) = placement.initrd.unwrap_or((MEMORY, 0));
    assert!((start..start + len).step_by(4096).all(|page| !holds(page)), "a segment and the initrd overlap");
    if planted() {
        guest.write_u8(0x500, 1).expect("it is memory");
    }
    let mut below = vec![0; 1 << 20];
    guest.read(0, &mut below).expect("it is memory");
    let boot = pvh::BOOT_INFO as usize..pvh::TABLES_END as usize;
    assert!(below.iter().enumerate().all(|(at, byte)| *byte == 0 || boot.contains(&at)), "something else below 1 MiB");
}

/// Builds a file with up to three segments, most of them good.
fn build(input: &mut Input<'_>) -> Vec<u8> {
    let mut image = Image::new(input.flag(), 0x10_0000 + input.within(0, 0x1100) as u32);
    image.segments = (0..input.within(0, 4))
        .map(|number| {
            let address = (1 << 20) * (number + 1) + input.within(0, 0x2000) - 0x100 * input.within(0, 2);
            (address, 16 + input.within(0, 0x1000), b"sixteen bytes!!!".to_vec())
        })
        .collect();
    if input.within(0, 4) == 0 {
        image.notes = (note(b"Xen\0", 18, &(1_u64 << input.within(0, 40)).to_le_bytes(), 8), 8);
    }
    image.bytes()
}

crate::planted::tests!(any_file_is_loaded_whole_or_refused, 512, 0..200);
