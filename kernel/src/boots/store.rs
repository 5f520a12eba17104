//! The firmware's store of records: its registers, and its range of records.

#![allow(unsafe_code, reason = "reaches the registers of the firmware's store")]

use crate::{arch::time, facts::facts, mem, registers};
use alloc::{format, string::String, vec::Vec};
use core::ptr;
use erst::{Bus, Error, Register, Space, Store};
use spin::Mutex;

/// Most bytes of the range in which the firmware takes records.
const MOST_RANGE: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// The pages of registers that are mapped, and the range in which the firmware takes records.
static MAPPED: Mutex<Mapped> = Mutex::new(Mapped { pages: Vec::new(), range: (0, 0) });

/// What of the firmware's store can be reached.
struct Mapped {
    pages: Vec<u64>,
    range: (u64, u64),
}

/// Makes the firmware's store reachable. Call it before the cores have maps of their own.
///
/// # Errors
/// There is one and it is not used; the text says why.
pub fn open() -> Result<(), String> {
    let Some(table) = &facts().platform.store else { return Ok(()) };
    for Register { address, .. } in table.registers().filter(|register| register.space == Space::Memory) {
        let page = page_of(address);
        let pages = &mut MAPPED.lock().pages;
        if !pages.contains(&page) {
            map(page);
            pages.push(page);
        }
    }
    match Store::open(table, Firmware).map(|store| store.range()) {
        Ok((at, len)) if at != 0 && (1 << 10..=MOST_RANGE).contains(&len) => {
            (page_of(at)..at.saturating_add(len)).step_by(PAGE as usize).for_each(map);
            MAPPED.lock().range = (at, len);
        }
        Ok((at, len)) => {
            return Err(format!("the firmware's store (ERST) takes records of {len} bytes at {at:#x}: not used"));
        }
        Err(why) => return Err(format!("the firmware's store (ERST) is not used: {why}")),
    }
    Ok(())
}

/// The page that an address is in.
const fn page_of(address: u64) -> u64 {
    address & !(PAGE - 1)
}

/// Maps a page of registers. One that is mapped already is another device's or the firmware's, and can be reached too.
fn map(page: u64) {
    let _ = mem::map_device(page, PAGE);
}

/// Frees the lock for a panic.
///
/// # Safety
/// As for [`crate::console::break_locks`].
pub unsafe fn break_lock() {
    // SAFETY: the caller's promise.
    unsafe { MAPPED.force_unlock() };
}

/// Bytes of the range in which the firmware takes records. 0: the store cannot be used.
pub fn room() -> u64 {
    MAPPED.lock().range.1
}

/// Whether the firmware's store can be used.
pub fn is_open() -> bool {
    room() != 0
}

/// Uses the firmware's store, if there is one.
pub fn with<R>(with: impl FnOnce(&mut Store<'_, Firmware>) -> Result<R, Error>) -> Option<Result<R, Error>> {
    let range = MAPPED.lock().range;
    if range.1 == 0 {
        return None;
    }
    let table = facts().platform.store.as_ref()?;
    Some(with(&mut Store::with_range(table, Firmware, range)))
}

/// The registers of the firmware's store.
pub struct Firmware;

impl Firmware {
    /// A register that may be used: one in memory has to be in a page that is mapped for the store.
    fn register(space: Space, address: u64, bytes: u8) -> Option<Register> {
        let is_mapped = space == Space::Ports || MAPPED.lock().pages.contains(&page_of(address));
        is_mapped.then_some(Register { space, address, bytes, bit: 0 })
    }

    /// Bytes of the range of records.
    fn range(address: u64, bytes: usize) -> Option<usize> {
        let (at, len) = MAPPED.lock().range;
        let behind = address.checked_add(bytes as u64)?;
        (at <= address && behind <= at.saturating_add(len)).then_some(address as usize)
    }
}

impl Bus for Firmware {
    fn read(&mut self, space: Space, address: u64, bytes: u8) -> Option<u64> {
        let register = Self::register(space, address, bytes)?;
        // SAFETY: ACPI names the register for this purpose, and its page is mapped.
        unsafe { registers::read(register) }
    }

    fn write(&mut self, space: Space, address: u64, bytes: u8, value: u64) -> Option<()> {
        let register = Self::register(space, address, bytes)?;
        // SAFETY: as in `read`.
        unsafe { registers::write(register, value) }
    }

    fn load(&mut self, address: u64, to: &mut [u8]) -> Option<()> {
        let from = ptr::with_exposed_provenance::<u8>(Self::range(address, to.len())?);
        for (index, byte) in to.iter_mut().enumerate() {
            // SAFETY: the range of records is mapped, and all bytes are within it.
            *byte = unsafe { from.add(index).read_volatile() };
        }
        Some(())
    }

    fn store(&mut self, address: u64, from: &[u8]) -> Option<()> {
        let to = ptr::with_exposed_provenance_mut::<u8>(Self::range(address, from.len())?);
        for (index, byte) in from.iter().enumerate() {
            // SAFETY: as in `load`.
            unsafe { to.add(index).write_volatile(*byte) };
        }
        Some(())
    }

    fn wait(&mut self, micros: u64) {
        time::delay_micros(micros);
    }
}
