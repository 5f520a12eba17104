//! How control reaches sidecore: the multiboot2 header and entry for GRUB, and the page of code on which application
//! processors start. Also reads what GRUB and the firmware hand over: boot information and ACPI tables.
//!
//! ```text
//! GRUB ── 32-bit, paging off ──▶ start.s ── long mode, first 4 GiB ──▶ start_rust(magic, information) in kernel/
//! INIT, SIPI ── 16-bit ──▶ ap.s at a page below 1 MiB ── the kernel's own tables ──▶ a function of the kernel
//! ```
//!
//! The assembly code is built only for the bare machine. What does not need it is tested on the development machine.

#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod acpi;
pub mod console;
pub mod information;
pub mod ipmi;
pub mod smbios;
pub mod srat;
pub mod startup;
pub mod step;
pub mod trampoline;
mod uart;
mod words;

#[cfg(target_os = "none")]
#[allow(unsafe_code, reason = "the entry points are assembly")]
mod entry {
    core::arch::global_asm!(include_str!("start.s"));
    core::arch::global_asm!(include_str!("ap.s"));
}

/// The value of EAX when GRUB enters a multiboot2 kernel (specification 3.3).
pub const MULTIBOOT2_MAGIC: u32 = 0x36d7_6289;
