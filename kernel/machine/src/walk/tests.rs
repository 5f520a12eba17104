//! Tests of the page walk.

use super::*;
use crate::testing::FakeVcpu;
use memory::guest::testing::memory;
use proptest::prelude::*;

const P: u64 = PRESENT;
const PW: u64 = PRESENT | WRITABLE;
const PWU: u64 = PRESENT | WRITABLE | USER;

fn long() -> FakeVcpu {
    FakeVcpu { cr0: CR0_PG | 1, cr3: 0x1000, cr4: CR4_PAE, efer: EFER_LMA | EFER_NXE, ..FakeVcpu::long_mode() }
}

/// PML4 at 0x1000, PDPT 0x2000, PD 0x3000, PT 0x4000.
fn tables() -> GuestMemory {
    let m = memory(0, 0x10_0000);
    m.write_u64(0x1000, 0x2000 | PWU).unwrap();
    m.write_u64(0x2000, 0x3000 | PWU).unwrap();
    m.write_u64(0x2008, 0x4000_0000 | LARGE | PW).unwrap(); // 1 GiB page at 1 GiB
    m.write_u64(0x3000, 0x4000 | PWU).unwrap();
    m.write_u64(0x3008, 0x60_0000 | LARGE | PWU).unwrap(); // 2 MiB page at 2 MiB
    m.write_u64(0x4000 + 5 * 8, 0x9_9000 | PW).unwrap();
    m.write_u64(0x4000 + 6 * 8, 0x8_8000 | P | USER).unwrap();
    m.write_u64(0x4000 + 7 * 8, 0x7_7000 | PW | NO_EXECUTE).unwrap();
    m
}

#[test]
fn pages_of_every_size_translate() {
    let (m, v) = (tables(), long());
    assert_eq!(translate(&v, &m, 0x5123, Access::Read), Ok(0x9_9123));
    assert_eq!(translate(&v, &m, 0x20_0123, Access::Write), Ok(0x60_0123));
    assert_eq!(translate(&v, &m, 0x4123_4567, Access::Read), Ok(0x4123_4567));
}

#[test]
fn errors_are_those_of_the_manual() {
    let (m, mut v) = (tables(), long());
    let error = |v: &FakeVcpu, linear, access| translate(v, &m, linear, access).unwrap_err().error;
    assert_eq!(error(&v, 0xc000, Access::Read), 0, "not present");
    assert_eq!(error(&v, 0xc000, Access::Write), ERROR_WRITE);
    assert_eq!(error(&v, 0x7000, Access::Fetch), ERROR_PRESENT | ERROR_FETCH, "no-execute");
    assert!(translate(&v, &m, 0x6000, Access::Write).is_ok(), "supervisor without CR0.WP");
    v.cr0 |= CR0_WP;
    assert_eq!(error(&v, 0x6000, Access::Write), ERROR_PRESENT | ERROR_WRITE);
    v.cr4 |= CR4_SMAP | CR4_SMEP;
    assert_eq!(error(&v, 0x6000, Access::Read), ERROR_PRESENT, "SMAP");
    assert_eq!(error(&v, 0x6000, Access::Fetch), ERROR_PRESENT | ERROR_FETCH, "SMEP");
    v.rflags |= RFLAGS_AC;
    assert!(translate(&v, &m, 0x6000, Access::Read).is_ok(), "STAC");
    v.cpl = 3;
    assert_eq!(error(&v, 0x5000, Access::Read), ERROR_PRESENT | ERROR_USER);
    v.efer &= !EFER_NXE;
    assert_eq!(error(&v, 0x7000, Access::Read), ERROR_PRESENT | ERROR_RESERVED | ERROR_USER);
}

#[test]
fn with_32_bit_paging_a_fetch_is_told_by_smep_alone() {
    let m = memory(0, 0x1_0000);
    let mut v = FakeVcpu { cr0: CR0_PG | 1, cr3: 0x1000, efer: EFER_NXE, ..FakeVcpu::default() };
    let error = |v: &FakeVcpu| translate(v, &m, 0x5000, Access::Fetch).unwrap_err().error;
    assert_eq!(error(&v), 0, "entries of 32 bits have no XD bit (4.7)");
    v.cr4 = CR4_SMEP;
    assert_eq!(error(&v), ERROR_FETCH);
    v.cr4 = CR4_PAE;
    assert_eq!(error(&v), ERROR_FETCH);
}

#[test]
fn protection_keys_limit_data_accesses_to_user_pages() {
    let m = tables();
    // Keys 3 and 4 on two user pages, key 3 on a supervisor page.
    m.write_u64(0x4000 + 8 * 8, 0x8_0000 | PWU | 3 << 59).unwrap();
    m.write_u64(0x4000 + 9 * 8, 0x9_0000 | PWU | 4 << 59).unwrap();
    m.write_u64(0x4000 + 10 * 8, 0xa_0000 | PW | 3 << 59).unwrap();
    // Key 3: no access. Key 4: no write.
    let mut v = FakeVcpu { pkru: 1 << 6 | 2 << 8, ..long() };
    assert!(translate(&v, &m, 0x8000, Access::Write).is_ok(), "not without CR4.PKE");
    v.cr4 |= CR4_PKE;
    let error = |v: &FakeVcpu, linear, access| translate(v, &m, linear, access).map_err(|fault| fault.error).err();
    assert_eq!(error(&v, 0x8000, Access::Read), Some(ERROR_PRESENT | ERROR_KEY), "the supervisor too");
    assert_eq!(error(&v, 0x8000, Access::Fetch), None);
    assert_eq!(error(&v, 0xa000, Access::Read), None);
    assert_eq!((error(&v, 0x9000, Access::Read), error(&v, 0x9000, Access::Write)), (None, None), "CR0.WP is clear");
    v.cr0 |= CR0_WP;
    assert_eq!(error(&v, 0x9000, Access::Write), Some(ERROR_PRESENT | ERROR_WRITE | ERROR_KEY));
    v.cpl = 3;
    assert_eq!(error(&v, 0x8000, Access::Read), Some(ERROR_PRESENT | ERROR_USER | ERROR_KEY));
}

#[test]
fn accessed_and_dirty_bits_are_set_as_by_hardware() {
    let (m, v) = (tables(), long());
    translate(&v, &m, 0x5000, Access::Read).unwrap();
    assert_eq!(m.read_u64(0x4028).unwrap() & (ACCESSED | DIRTY), ACCESSED);
    assert_ne!(m.read_u64(0x1000).unwrap() & ACCESSED, 0);
    translate(&v, &m, 0x5000, Access::Write).unwrap();
    assert_eq!(m.read_u64(0x4028).unwrap() & (ACCESSED | DIRTY), ACCESSED | DIRTY);
}

#[test]
fn tables_outside_memory_read_as_all_ones() {
    let (m, mut v) = (tables(), long());
    v.cr3 = 0xdead_0000_0000;
    assert_eq!(translate(&v, &m, 0x5000, Access::Read).unwrap_err().error, ERROR_PRESENT | ERROR_RESERVED);
}

#[test]
fn an_address_that_is_not_canonical_is_refused() {
    let (m, v) = (tables(), long());
    assert!(translate(&v, &m, 0x0001_0000_0000_5000, Access::Read).is_err());
}

#[test]
fn older_modes_translate_too() {
    let m = tables();
    let mut v = FakeVcpu { cr0: 1, ..FakeVcpu::default() };
    assert_eq!(translate(&v, &m, 0x1_0000_1234, Access::Read), Ok(0x1234), "no paging");
    // PAE: the pointers at 0x8020.
    m.write_u64(0x8020, 0x3000 | P).unwrap();
    v = FakeVcpu { cr0: CR0_PG | 1, cr3: 0x8020, cr4: CR4_PAE, efer: EFER_NXE, ..FakeVcpu::default() };
    assert_eq!(translate(&v, &m, 0x5123, Access::Read), Ok(0x9_9123));
    assert_eq!(translate(&v, &m, 0x20_0123, Access::Read), Ok(0x60_0123));
    assert!(translate(&v, &m, 0x4000_0000, Access::Read).is_err());
    // 32-bit: directory at 0xa000, table at 0xb000.
    m.write_u32(0xa000, 0xb000 | PW as u32).unwrap();
    m.write_u32(0xa004, 0x0080_0000 | (LARGE | PW) as u32 | 3 << 13).unwrap();
    m.write_u32(0xb000 + 5 * 4, 0x9_9000 | PW as u32).unwrap();
    v = FakeVcpu { cr0: CR0_PG | 1, cr3: 0xa000, cr4: CR4_PSE, ..FakeVcpu::default() };
    assert_eq!(translate(&v, &m, 0x5123, Access::Write), Ok(0x9_9123));
    assert_eq!(translate(&v, &m, 0x40_0123, Access::Write), Ok(0x3_0080_0123));
    assert!(translate(&v, &m, 0x80_0000, Access::Read).is_err());
}

proptest! {
    #[test]
    fn no_register_and_no_table_makes_the_walk_panic(
        cr0: u64, cr3: u64, cr4: u64, efer: u64, linear: u64, user: bool, entries: Vec<u64>, low in 0_u64..0x8000,
    ) {
        let m = memory(0, 0x8000);
        for (i, entry) in entries.iter().enumerate() {
            // Half of them point to low memory, so that walks get deep.
            let entry = if i % 2 == 0 { entry & 0x7fff | PWU } else { *entry };
            m.write_u64((i as u64 * 8) & 0x7ff8, entry).unwrap();
        }
        for cr3 in [cr3, low] {
            let v = FakeVcpu { cr0, cr3, cr4, efer, cpl: if user { 3 } else { 0 }, ..FakeVcpu::default() };
            for access in [Access::Read, Access::Write, Access::Fetch] {
                let _ = translate(&v, &m, linear, access);
                let _ = translate(&v, &m, linear & 0x7fff_ffff, access);
            }
        }
    }
}
