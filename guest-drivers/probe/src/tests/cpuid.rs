//! Tests CPUID of this machine (SDM vol. 2A "CPUID"; Documentation/virt/kvm/x86/cpuid.rst of Linux).

use bare::cpu::{self, cpuid, cpuid_of};
use bare::memory::{self, ARENA};

use crate::report::{Outcome, ensure, equal};
use crate::time;

pub fn the_hypervisor_says_what_it_is() -> Outcome {
    ensure!(cpuid(1).ecx & 1 << 31 != 0, "no hypervisor bit");
    ensure!(cpuid(1).ecx & 1 << 21 != 0, "no x2APIC");
    let leaf = cpuid(0x4000_0000);
    let name = [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes);
    equal!(name.as_flattened(), b"KVMKVMKVM\0\0\0", "signature");
    equal!(leaf.eax, 0x4000_0001, "last leaf");
    // The clock and its stability, and nothing else of KVM's interface.
    equal!(cpuid(0x4000_0001).eax, 1 << 3 | 1 << 24, "features");
    Ok(())
}

pub fn frequencies_agree_with_the_clock_page() -> Outcome {
    const SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;
    let page = ARENA;
    memory::clear(page, 32);
    equal!(cpu::write_msr(SYSTEM_TIME_NEW, page | 1), Ok(()), "the clock page");
    let (version, multiplier, shift) =
        (memory::read32(page), memory::read32(page + 24), memory::read8(page + 28) as i8);
    equal!(cpu::write_msr(SYSTEM_TIME_NEW, 0), Ok(()), "no clock page");
    ensure!(version != 0 && version % 2 == 0, "the clock page has version {version}");
    // Nanoseconds are (ticks << shift) * multiplier >> 32.
    let hz = (1_000_000_000_u128 << 32) / u128::from(multiplier.max(1));
    let hz = if shift < 0 { hz << -shift } else { hz >> shift } as u64;
    ensure!(hz.abs_diff(time::tsc_hz()) <= hz / 1000, "{hz} Hz by the clock page, {} by CPUID 0x15", time::tsc_hz());
    let mhz = u64::from(cpuid(0x16).eax);
    ensure!((hz / 1_000_000).abs_diff(mhz) <= 1 + mhz / 1000, "{hz} Hz by the clock page, {mhz} MHz by CPUID 0x16");
    Ok(())
}

pub fn what_is_the_hosts_own_is_not_offered() -> Outcome {
    let (leaf1, leaf7) = (cpuid(1), cpuid(7));
    for (bit, name) in [(3, "MONITOR"), (5, "VMX"), (6, "SMX"), (15, "PDCM"), (18, "DCA")] {
        ensure!(leaf1.ecx & 1 << bit == 0, "{name} is offered");
    }
    for (bit, name) in [(2, "SGX"), (12, "RDT"), (25, "PT")] {
        ensure!(leaf7.ebx & 1 << bit == 0, "{name} is offered");
    }
    for (bit, name) in [(28, "L1D_FLUSH"), (30, "CORE_CAPABILITIES")] {
        ensure!(leaf7.edx & 1 << bit == 0, "{name} is offered");
    }
    ensure!(cpuid(0x8000_0001).ecx & 1 << 2 == 0, "SVM is offered");
    equal!(cpuid(0xa).eax, 0, "performance counters");
    Ok(())
}

pub fn osxsave_follows_cr4() -> Outcome {
    const OSXSAVE: u64 = 1 << 18;
    if cpuid(1).ecx & 1 << 26 == 0 {
        return Ok(());
    }
    let said = || cpuid(1).ecx & 1 << 27 != 0;
    let before = cpu::cr4();
    cpu::set_cr4(before | OSXSAVE);
    let with = said();
    cpu::set_cr4(before & !OSXSAVE);
    let without = said();
    cpu::set_cr4(before);
    ensure!(with && !without, "set: {with}, clear: {without}");
    Ok(())
}

pub fn the_topology_is_one_core() -> Outcome {
    const CORE: u32 = 2;
    let level = cpuid_of(0xb, 1);
    equal!(level.ecx >> 8 & 0xff, CORE, "the second level's type");
    equal!(level.ebx & 0xffff, 1, "logical processors");
    equal!(level.edx, cpuid_of(0xb, 0).edx, "ID at both levels");
    equal!(cpuid(1).ebx >> 24, level.edx & 0xff, "the ID of leaf 1");
    Ok(())
}

pub fn leaves_beyond_the_last_are_empty() -> Outcome {
    for leaf in [cpuid(0).eax + 1, 0x4000_0002, 0x4000_0100, 0x5000_0000, 0x8fff_fff0] {
        let regs = cpuid(leaf);
        equal!([regs.eax, regs.ebx, regs.ecx, regs.edx], [0; 4], "a leaf that is not there");
    }
    Ok(())
}
