//! For tests: what a small machine is made of.

use std::vec;
use std::vec::Vec;

use memory::guest::testing::memory;

use super::{Platform, Settings};
use crate::cpuid::Regs;
use crate::quirk::Quirks;
use crate::split_lock::SplitLocks;
use crate::vcpu::Interrupts;
use crate::virtio_pci::NotifyBar;

/// CPUID of a processor of AMD that has everything.
pub fn cpuid(leaf: u32, _: u32) -> Regs {
    match leaf {
        0 => Regs { eax: 0x16, ebx: 0x6874_7541, edx: 0x6974_6e65, ecx: 0x444d_4163 },
        0x8000_0000 => Regs { eax: 0x8000_0021, ..Regs::default() },
        4 => Regs::default(),
        0xd => Regs { eax: 7, ebx: 576, ecx: 832, edx: 0 },
        _ => Regs { eax: u32::MAX, ebx: u32::MAX, ecx: u32::MAX, edx: u32::MAX },
    }
}

/// A small file that passes for a kernel.
pub fn kernel() -> Vec<u8> {
    let mut file = vec![0; 1024 + 4096];
    for (offset, bytes) in [
        (0x1f1, &[1][..]),
        (0x1fe, &[0x55, 0xaa, 0xeb, 0x6a]),
        (0x202, b"HdrS\x0f\x02"),
        (0x211, &[1]),
        (0x22c, &[0xff, 0xff, 0xff, 0x7f]),
        (0x230, &[0, 0, 0x20, 0, 1, 0, 1, 0, 0xff, 7]),
        (0x258, &[0, 0, 0x20, 0]),
        (0x260, &[0, 0, 0x10, 0]),
    ] {
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    file
}

/// The settings of a machine with one vCPU and 4 MiB, without a device.
pub fn settings() -> Settings<'static> {
    Settings {
        name: "test".into(),
        memory: memory(0, 4 << 20),
        vcpus: 1,
        kernel: kernel().leak(),
        firmware: false,
        notify: NotifyBar::Io,
        initrd: None,
        cmdline: "quiet",
        devices: Vec::new(),
        interrupts: Interrupts::Emulated,
        split_locks: SplitLocks::Slow,
        watched: false,
        shadow: None,
        splitter: None,
        platform: Platform {
            cpuid,
            tsc_khz: 1_000_000,
            tsc: 0,
            apic_hz: 25_000_000,
            tsc_deadline: true,
            rdtscp: true,
            invpcid: true,
            arch_capabilities: 0xeb,
            quirks: Quirks::default(),
        },
    }
}
