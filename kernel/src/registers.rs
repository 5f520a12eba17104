//! Registers of devices that firmware's tables name, or that are at fixed addresses: pages of them, mapped uncached at
//! their physical addresses, and accesses of any width.

#![allow(unsafe_code, reason = "reads and writes registers of devices")]

use crate::mem;
use alloc::vec::Vec;
use core::ptr;
use drivers::generic::{Register, Space};
use x86_64::instructions::port::Port;

const PAGE: u64 = 4096;

/// Pages of registers that are mapped uncached at their physical address, one after the other as they are needed.
#[derive(Default)]
pub struct Pages(Vec<u64>);

impl Pages {
    /// Maps the page with this address, if it is not mapped yet. Returns false if it cannot be mapped, or if somebody else
    /// has mapped it: then it is memory, or another device's. Call it only before the cores have maps of their own.
    pub fn map(&mut self, at: u64) -> bool {
        let page = at & !(PAGE - 1);
        let there = self.0.contains(&page);
        if !there && mem::map_device(page, PAGE).is_ok() {
            self.0.push(page);
            return true;
        }
        there
    }
}

/// Reads a register. `None`: it has another width than its space has, or is at an address that is not aligned.
///
/// # Safety
/// If it is in memory, its page is mapped on this core as registers. Reading it does no harm.
pub unsafe fn read(register: Register) -> Option<u64> {
    let Register { space, address, bytes, .. } = register;
    let at = address as usize;
    if space == Space::Memory && !address.is_multiple_of(bytes.into()) {
        return None;
    }
    let port = u16::try_from(address);
    // SAFETY: the caller's promise. An address in memory is aligned.
    unsafe {
        Some(match (space, bytes) {
            (Space::Memory, 1) => ptr::with_exposed_provenance::<u8>(at).read_volatile().into(),
            (Space::Memory, 2) => ptr::with_exposed_provenance::<u16>(at).read_volatile().into(),
            (Space::Memory, 4) => ptr::with_exposed_provenance::<u32>(at).read_volatile().into(),
            (Space::Memory, 8) => ptr::with_exposed_provenance::<u64>(at).read_volatile(),
            (Space::Ports, 1) => Port::<u8>::new(port.ok()?).read().into(),
            (Space::Ports, 2) => Port::<u16>::new(port.ok()?).read().into(),
            (Space::Ports, 4) => Port::<u32>::new(port.ok()?).read().into(),
            _ => return None,
        })
    }
}

/// Writes a register. `None`: as for [`read`].
///
/// # Safety
/// As for [`read`], and the value does no harm.
pub unsafe fn write(register: Register, value: u64) -> Option<()> {
    let Register { space, address, bytes, .. } = register;
    let at = address as usize;
    if space == Space::Memory && !address.is_multiple_of(bytes.into()) {
        return None;
    }
    let port = u16::try_from(address);
    // SAFETY: as in `read`.
    unsafe {
        match (space, bytes) {
            (Space::Memory, 1) => ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(value as u8),
            (Space::Memory, 2) => ptr::with_exposed_provenance_mut::<u16>(at).write_volatile(value as u16),
            (Space::Memory, 4) => ptr::with_exposed_provenance_mut::<u32>(at).write_volatile(value as u32),
            (Space::Memory, 8) => ptr::with_exposed_provenance_mut::<u64>(at).write_volatile(value),
            (Space::Ports, 1) => Port::<u8>::new(port.ok()?).write(value as u8),
            (Space::Ports, 2) => Port::<u16>::new(port.ok()?).write(value as u16),
            (Space::Ports, 4) => Port::<u32>::new(port.ok()?).write(value as u32),
            _ => return None,
        }
    }
    Some(())
}
