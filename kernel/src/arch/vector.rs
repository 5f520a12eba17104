//! Enables the vector registers that the copy routine uses, on cores that run no guest: the engine's core, and the
//! control core, which may run an engine too. Guest cores leave them to their guests. No other host code uses them,
//! because the target has no floating point.
//!
//! Follows SDM vol. 1 13.3 and vol. 3A 2.5, 2.6.

#![allow(unsafe_code, reason = "writes control registers and XCR0")]

use core::arch::x86_64::__cpuid_count;
use x86_64::registers::{
    control::{Cr0, Cr0Flags, Cr4, Cr4Flags},
    xcontrol::XCr0,
};

/// The state components wanted in XCR0: x87, SSE, AVX, and the three parts of AVX-512.
const WANTED: u64 = 0xe7;

/// Enables on this core all vector state that the CPU has and the copy routine may use. Does nothing on a CPU without
/// XSAVE. There the copy routine uses no vector registers.
pub fn enable() {
    if !raw_cpuid::CpuId::new().get_feature_info().is_some_and(|f| f.has_xsave()) {
        return;
    }
    let leaf = __cpuid_count(0xd, 0);
    let supported = u64::from(leaf.edx) << 32 | u64::from(leaf.eax);
    // AVX-512's three parts go together (13.3).
    let mask = if supported & 0xe0 == 0xe0 { WANTED } else { WANTED & !0xe0 };
    // SAFETY: the CPU has XSAVE and supports all these bits. x87 is among them, and SSE if AVX is. No code on this core
    // keeps anything in these registers.
    unsafe {
        Cr0::update(|f| {
            f.remove(Cr0Flags::EMULATE_COPROCESSOR | Cr0Flags::TASK_SWITCHED);
            f.insert(Cr0Flags::MONITOR_COPROCESSOR);
        });
        Cr4::update(|f| f.insert(Cr4Flags::OSFXSR | Cr4Flags::OSXSAVE));
        XCr0::write_raw(supported & mask | 1);
    }
}
