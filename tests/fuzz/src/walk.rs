//! Walks of a guest's page tables in every paging mode, against a walk that is written here from SDM vol. 3A ch. 4. The tables are
//! random, most of their entries good. The address, the page fault, and the accessed and dirty bits have to be the same.
//!
//! Bits that are reserved in large pages and above the physical address width are clear in all entries: hardware has met those
//! faults before an exit.

use std::cell::RefCell;

use machine::testing::FakeVcpu;
use machine::walk::{self, Access, PageFault};
use memory::GuestMemory;
use memory::guest::testing::memory;

use crate::input::Input;
use crate::planted::planted;

/// Memory of the guest in bytes, from address 0: sixteen tables.
const MEMORY: usize = 0x1_0000;

const PAGING: u64 = 1 << 31;
const WRITE_PROTECT: u64 = 1 << 16;
const PSE: u64 = 1 << 4;
const PAE: u64 = 1 << 5;
const LA57: u64 = 1 << 12;
const SMEP: u64 = 1 << 20;
const SMAP: u64 = 1 << 21;
const PKE: u64 = 1 << 22;
const LONG: u64 = 1 << 10;
const NXE: u64 = 1 << 11;
const AC: u64 = 1 << 18;

thread_local! {
    static GUEST: RefCell<GuestMemory> = RefCell::new(memory(0, MEMORY));
}

/// A guest's memory as the walk here sees it.
struct Tables(Vec<u8>);

impl Tables {
    /// An entry; all ones where there is no memory.
    fn read(&self, at: u64, bytes: usize) -> u64 {
        let mut entry = [0xff; 8];
        if bytes == 4 {
            entry[4..].fill(0);
        }
        if let Some(found) = usize::try_from(at).ok().and_then(|at| self.0.get(at..at.checked_add(bytes)?)) {
            entry[..bytes].copy_from_slice(found);
        }
        u64::from_le_bytes(entry)
    }

    fn set(&mut self, at: u64, bits: u8) {
        if let Some(byte) = usize::try_from(at).ok().and_then(|at| self.0.get_mut(at)) {
            *byte |= bits;
        }
    }
}

/// An access to be translated.
struct Walk<'a> {
    vcpu: &'a FakeVcpu,
    access: Access,
    user: bool,
    /// SMAP does not stop this access of the supervisor: RFLAGS.AC is set.
    explicit: bool,
    linear: u64,
}

impl Walk<'_> {
    fn fault(&self, error: u32) -> PageFault {
        let no_execute = self.vcpu.efer & NXE != 0 && self.vcpu.cr4 & PAE != 0;
        let fetch = self.access == Access::Fetch && (no_execute || self.vcpu.cr4 & SMEP != 0);
        let error = error
            | if self.access == Access::Write { 2 } else { 0 }
            | if self.user { 4 } else { 0 }
            | if fetch { 16 } else { 0 };
        PageFault { address: self.linear, error }
    }

    fn run(&self, tables: &mut Tables) -> Result<u64, PageFault> {
        let v = self.vcpu;
        if v.cr0 & PAGING == 0 {
            return Ok(self.linear & 0xffff_ffff);
        }
        let four_bytes = v.efer & LONG == 0 && v.cr4 & PAE == 0;
        // The shifts of the levels, the bits of an index, the address of the first table.
        let (shifts, bits, mut table): (&[u32], u32, u64) = if v.efer & LONG != 0 {
            let shifts: &[u32] = if v.cr4 & LA57 != 0 { &[48, 39, 30, 21, 12] } else { &[39, 30, 21, 12] };
            (shifts, 9, v.cr3 & 0x000f_ffff_ffff_f000)
        } else if !four_bytes {
            let pointer = tables.read((v.cr3 & 0xffff_ffe0) + (self.linear >> 30 & 3) * 8, 8);
            if pointer & 1 == 0 {
                return Err(self.fault(0));
            }
            (&[21, 12], 9, pointer & 0x000f_ffff_ffff_f000)
        } else {
            (&[22, 12], 10, v.cr3 & 0xffff_f000)
        };
        if v.efer & LONG != 0 {
            let top = self.linear >> (shifts[0] + 8);
            if top != 0 && top != u64::MAX >> (shifts[0] + 8) {
                return Err(self.fault(0));
            }
        }
        let (size, address) = if four_bytes { (4, 0xffff_f000) } else { (8, 0x000f_ffff_ffff_f000) };
        let (mut writable, mut user, mut executable) = (true, true, true);
        for shift in shifts {
            let at = table + (self.linear >> shift & ((1 << bits) - 1)) * size;
            let entry = tables.read(at, size as usize);
            if entry & 1 == 0 {
                return Err(self.fault(0));
            }
            let large = *shift != 12 && entry & 0x80 != 0 && (!four_bytes || v.cr4 & PSE != 0);
            let reserved = large && *shift > 30 || entry >> 63 != 0 && v.efer & NXE == 0 || entry == u64::MAX;
            if reserved {
                return Err(self.fault(1 | 8));
            }
            writable &= entry & 2 != 0;
            user &= entry & 4 != 0;
            executable &= entry >> 63 == 0;
            if *shift != 12 && !large {
                tables.set(at, 0x20);
                table = entry & address;
                continue;
            }
            if !self.permitted(writable, user, executable) {
                return Err(self.fault(1));
            }
            if !self.key_permits(entry, user) {
                return Err(self.fault(1 | 32));
            }
            tables.set(at, if self.access == Access::Write { 0x60 } else { 0x20 });
            let within = (1_u64 << shift) - 1;
            let frame = if four_bytes && large {
                entry & 0xffc0_0000 | (entry >> 13 & 0xff) << 32
            } else {
                entry & address & !within
            };
            return Ok(frame | self.linear & within);
        }
        unreachable!("the last level has shift 12")
    }

    /// 4.6.1.
    fn permitted(&self, writable: bool, user: bool, executable: bool) -> bool {
        let v = self.vcpu;
        if self.user {
            return user && (self.access != Access::Write || writable) && (self.access != Access::Fetch || executable);
        }
        match self.access {
            Access::Fetch => executable && !(user && v.cr4 & SMEP != 0),
            _ if user && v.cr4 & SMAP != 0 && !self.explicit => false,
            Access::Read => true,
            Access::Write => writable || v.cr0 & WRITE_PROTECT == 0,
        }
    }

    /// 4.6.2.
    fn key_permits(&self, entry: u64, user: bool) -> bool {
        let v = self.vcpu;
        if v.cr4 & PKE == 0 || v.efer & LONG == 0 || !user || self.access == Access::Fetch {
            return true;
        }
        let rights = v.pkru >> (2 * (entry >> 59 & 15)) & 3;
        let write_disabled = rights & 2 != 0 && (self.user || v.cr0 & WRITE_PROTECT != 0);
        rights & 1 == 0 && !(self.access == Access::Write && write_disabled)
    }
}

/// Runs one input.
///
/// # Panics
/// A walk was wrong.
pub fn run(bytes: &[u8]) {
    GUEST.with_borrow(|guest| one(guest, &mut Input::new(bytes)));
}

fn entry(input: &mut Input<'_>) -> u64 {
    let table = input.within(0, 20) << 12;
    let rights = u64::from(input.byte());
    // Most entries are present.
    let present = u64::from(rights & 0xe0 != 0);
    let bits = (rights & 0x06) | present | u64::from(input.byte() & 0x60);
    let large = if input.byte().is_multiple_of(4) { 0x80 } else { 0 };
    let high = match input.byte() {
        kind @ 0..64 => u64::from(kind & 1) << 63 | u64::from(kind >> 1 & 15) << 59,
        64..72 => 1 << 40,
        _ => 0,
    };
    // A large page has no table's address.
    table & if large == 0 { u64::MAX } else { !0x3f_f000 } | bits | large | high
}

fn one(guest: &GuestMemory, input: &mut Input<'_>) {
    let modes = [(0, 0), (0, PSE), (0, PAE), (LONG, PAE), (LONG, PAE), (LONG, PAE | LA57)];
    let (efer, cr4) = modes[usize::from(input.byte()) % modes.len()];
    let mut vcpu = FakeVcpu::default();
    let flags = input.byte();
    let flag = |number: u8, bit: u64| if flags >> number & 1 != 0 { bit } else { 0 };
    vcpu.efer = efer | flag(0, NXE);
    vcpu.cr4 = cr4 | flag(1, SMEP) | flag(2, SMAP) | flag(3, PKE);
    vcpu.cr0 = 1 | flag(4, WRITE_PROTECT) | if input.byte() < 250 { PAGING } else { 0 };
    vcpu.rflags = 2 | flag(5, AC);
    vcpu.cpl = if flags & 0x40 == 0 { 0 } else { 3 };
    vcpu.pkru = input.wide() as u32;
    vcpu.cr3 = input.within(0, 18) << 12 | u64::from(input.byte() & 0xf8);
    let eight = cr4 & PAE != 0;
    guest.zero(0, MEMORY as u64).expect("it is memory");
    // Few entries of each table, and addresses that meet them.
    let indices: [u64; 3] = std::array::from_fn(|_| input.within(0, if eight { 512 } else { 1024 }));
    for table in 0..16_u64 {
        for index in indices {
            let entry = entry(input);
            let at = table * 0x1000 + index * if eight { 8 } else { 4 };
            let written = if eight { guest.write_u64(at, entry) } else { guest.write_u32(at, entry as u32) };
            written.expect("it is memory");
        }
    }
    for pointer in 0..4 {
        if eight && efer == 0 {
            let _ = guest.write_u64((vcpu.cr3 & 0xffff_ffe0) + 8 * pointer, input.within(0, 16) << 12 | 1);
        }
    }
    for _ in 0..1 + input.byte() % 4 {
        let mut linear = input.within(0, 0x1000);
        let levels: &[u32] = if eight { &[12, 21, 30, 39, 48] } else { &[12, 22] };
        for shift in levels {
            linear |= indices[usize::from(input.byte() % 3)] << shift;
        }
        linear = match (efer & LONG != 0, cr4 & LA57 != 0, input.byte()) {
            (_, _, 0..8) => input.wide(),
            (false, _, _) => linear & 0xffff_ffff,
            (true, true, _) => ((linear << 7) as i64 >> 7) as u64,
            (true, false, _) => ((linear << 16) as i64 >> 16) as u64,
        };
        let access = [Access::Read, Access::Write, Access::Fetch][usize::from(input.byte() % 3)];
        let system = input.byte() < 32;
        let mut tables = Tables(vec![0; MEMORY]);
        guest.read(0, &mut tables.0).expect("it is memory");
        // Outside of long mode an address has 32 bits.
        let reported = if efer & LONG != 0 || vcpu.cr0 & PAGING == 0 { linear } else { linear & 0xffff_ffff };
        let (user, explicit) = if system { (false, false) } else { (vcpu.cpl == 3, flags & 0x20 != 0) };
        let walk =
            Walk { vcpu: &vcpu, access: if system { Access::Read } else { access }, user, explicit, linear: reported };
        let expected = walk.run(&mut tables);
        let mut found = if system {
            walk::translate_for_system(&vcpu, guest, linear)
        } else {
            walk::translate(&vcpu, guest, linear, access)
        };
        if planted() {
            found = found.map(|gpa| gpa ^ 0x1000);
        }
        assert_eq!(found, expected, "{linear:#x}, {access:?}, system {system}, {vcpu:x?}");
        let mut after = vec![0; MEMORY];
        guest.read(0, &mut after).expect("it is memory");
        let differs = after.iter().zip(&tables.0).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "an entry after the walk of {linear:#x}, {access:?}, {vcpu:x?}");
    }
}

crate::planted::tests!(a_walk_is_what_the_manual_says, 512, 500..800);
