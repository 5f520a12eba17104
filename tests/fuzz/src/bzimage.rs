//! Linux as a bzImage, from bytes that decide how a good file is damaged. Whatever is in the file: it is refused, or the kernel is
//! in the guest's memory whole, where the guest starts, the initrd is apart from it, and nothing else is written but the boot
//! structures.

use std::cell::RefCell;

use machine::linux::{self, Linux};
use memory::GuestMemory;
use memory::guest::testing::memory;

use crate::input::Input;
use crate::planted::planted;

/// Memory of the guest in bytes.
const MEMORY: usize = 4 << 20;
const MIB: usize = 1 << 20;
/// Boot parameters, descriptors, page tables, and the command line.
const STRUCTURES: [std::ops::Range<usize>; 2] = [0x7000..0xf000, 0x2_0000..0x3_0000];
/// Fields of the setup header, with their sizes.
const FIELDS: [(usize, usize); 12] = [
    (0x1f1, 1),
    (0x1f4, 4),
    (0x1fe, 2),
    (0x202, 4),
    (0x206, 2),
    (0x211, 1),
    (0x22c, 4),
    (0x230, 4),
    (0x234, 1),
    (0x236, 2),
    (0x258, 8),
    (0x260, 4),
];

thread_local! {
    static GUEST: RefCell<GuestMemory> = RefCell::new(memory(0, MEMORY));
}

/// A small file that passes for a kernel.
fn build(input: &mut Input<'_>) -> Vec<u8> {
    let sectors = [1, 0, 2, 4][usize::from(input.byte() % 4)];
    let header = (if sectors == 0 { 4 } else { usize::from(sectors) } + 1) * 512;
    let mut file = vec![0; header];
    file.extend((0..0x300 + input.within(0, 0x1000)).map(|n| n as u8 | 1));
    let mut set = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    set(0x1f1, &[sectors]);
    set(0x1fe, &[0x55, 0xaa, 0xeb, 0x6a]);
    set(0x202, b"HdrS");
    set(0x206, &0x020f_u16.to_le_bytes());
    set(0x211, &[1]);
    set(0x22c, &0x7fff_ffff_u32.to_le_bytes());
    set(0x230, &(0x1000_u32 << input.within(0, 12)).to_le_bytes());
    set(0x234, &[input.byte() & 1]);
    set(0x236, &[0x7f]);
    set(0x238, &2047_u32.to_le_bytes());
    set(0x258, &(0x10_0000 + (input.within(0, 0x400) << 12)).to_le_bytes());
    set(0x260, &(input.within(0, 0x200) as u32 * 0x1000 + 0x2000).to_le_bytes());
    file
}

/// Runs one input.
///
/// # Panics
/// A file was loaded wrongly.
pub fn run(bytes: &[u8]) {
    GUEST.with_borrow(|guest| load(guest, &mut Input::new(bytes), bytes));
}

fn load(guest: &GuestMemory, input: &mut Input<'_>, raw: &[u8]) {
    guest.zero(0, MEMORY as u64).expect("it is memory");
    let mut file = build(input);
    for _ in 0..input.byte() % 4 {
        let (at, size) = FIELDS[usize::from(input.byte()) % FIELDS.len()];
        let value = input.wide() >> input.within(0, 64);
        file[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }
    if input.byte() < 16 {
        file.truncate(input.within(0, file.len() as u64) as usize);
    }
    let initrd = (!raw.is_empty() && input.flag()).then_some(raw);
    let file = if input.byte() < 8 { raw } else { &file };
    let command_line = "console=ttyS0 quiet";
    let (state, placement) = match linux::load(guest, &Linux { kernel: file, initrd, command_line }, 0xe_0000) {
        Ok(loaded) => loaded,
        Err(why) => return crate::is_line(&why.to_string()),
    };
    let mut after = vec![0; MEMORY];
    guest.read(0, &mut after).expect("it is memory");
    if planted() {
        after[MIB - 1] = 1;
    }
    let sectors = if file[0x1f1] == 0 { 4 } else { usize::from(file[0x1f1]) };
    let payload = &file[(sectors + 1) * 512..];
    let init_size = u32::from_le_bytes(file[0x260..0x264].try_into().expect("four bytes")) as usize;
    let needed = init_size.max(payload.len());
    let kernel = placement.kernel as usize;
    assert_eq!(state.rip, placement.kernel + 0x200);
    assert!(payload.len() > 0x200, "the entry is in the kernel");
    assert!(kernel >= MIB && kernel + needed <= MEMORY, "the kernel's memory");
    assert!(after[kernel..kernel + payload.len()] == *payload, "the kernel is whole");
    let (initrd_at, initrd_len) = placement.initrd.map_or((MEMORY, 0), |(at, len)| (at as usize, len as usize));
    if let Some(initrd) = initrd {
        assert!(&after[initrd_at..initrd_at + initrd_len] == initrd, "the initrd is whole");
        assert!(initrd_at >= kernel + needed, "the kernel needs the initrd's memory");
    }
    assert_eq!(&after[0x2_0000..0x2_0000 + command_line.len()], command_line.as_bytes());
    for range in STRUCTURES.into_iter().chain([kernel..kernel + payload.len(), initrd_at..initrd_at + initrd_len]) {
        after[range].fill(0);
    }
    assert_eq!(after.iter().position(|byte| *byte != 0), None, "something else was written");
}

crate::planted::tests!(any_file_is_loaded_whole_or_refused, 64, 0..200);
