//! Registers that the guest has to itself on its core: FPU, SSE and AVX registers, XCR0, PKRU, debug address registers,
//! TSC_AUX. The host uses none of them, so no entry or exit switches them (APM vol. 2 15.5.1 lists what VMRUN
//! switches). They are reset when a guest starts anew.
//!
//! PKRU needs a word more, because it limits memory accesses. It applies only while CR4.PKE is set and only to user
//! pages. VMRUN and #VMEXIT switch CR4, the host's PKE is clear, and the host has no user pages. So the guest's PKRU
//! cannot stop the host. The host executes no WRPKRU, and XRSTOR only when the vCPU is reset. So the guest finds its PKRU
//! at the next entry as it left it.

#![allow(unsafe_code, reason = "writes processor state that the host does not use")]

use crate::probe::Capabilities;
use x86_64::registers::control::{Cr4, Cr4Flags};
use x86_64::registers::debug::{DebugAddressRegister, Dr0, Dr1, Dr2, Dr3};
use x86_64::registers::model_specific::Msr;
use x86_64::registers::xcontrol::XCr0;

const TSC_AUX: Msr = Msr::new(0xc000_0103);
/// MXCSR after reset: all exceptions masked.
const MXCSR_RESET: u32 = 0x1f80;

/// An XSAVE area (APM vol. 2 11.5.4) whose header says that every component is in its initial state. XRSTOR still reads
/// MXCSR from it.
#[repr(C, align(64))]
struct InitialArea {
    legacy_before_mxcsr: [u8; 24],
    mxcsr: u32,
    legacy_after_mxcsr: [u8; 484],
    header: [u8; 64],
}

static INITIAL: InitialArea =
    InitialArea { legacy_before_mxcsr: [0; 24], mxcsr: MXCSR_RESET, legacy_after_mxcsr: [0; 484], header: [0; 64] };

const _: () = assert!(core::mem::offset_of!(InitialArea, header) == 512);

/// Puts these registers into their state after reset.
///
/// # Safety
/// [`crate::probe::enable`] ran on this core with the same capabilities, and no host code on it uses the FPU or debug
/// registers.
pub unsafe fn reset(capabilities: &Capabilities) {
    // SAFETY: CR0.EM and TS are clear and CR4.OSFXSR is set (`enable`). Only the guest's FPU state is lost.
    unsafe {
        core::arch::asm!("fninit", "ldmxcsr [{}]", in(reg) &raw const INITIAL.mxcsr, options(nostack));
    }
    if let Some(components) = capabilities.xcr0 {
        // SAFETY: XSAVE exists and CR4.OSXSAVE is set (`enable`). CPUID offers these components. The area is 64-byte
        // aligned, and is as long as XRSTOR reads if no component is present in it.
        unsafe {
            XCr0::write_raw(components);
            core::arch::asm!(
                "xrstor64 [{area}]",
                area = in(reg) &raw const INITIAL,
                in("eax") components as u32,
                in("edx") (components >> 32) as u32,
                options(nostack, readonly),
            );
            XCr0::write_raw(1);
        }
    } else {
        // SAFETY: as for FNINIT. Without XSAVE there are only the sixteen XMM registers.
        unsafe {
            core::arch::asm!(
                "xorps xmm0, xmm0",
                "xorps xmm1, xmm1",
                "xorps xmm2, xmm2",
                "xorps xmm3, xmm3",
                "xorps xmm4, xmm4",
                "xorps xmm5, xmm5",
                "xorps xmm6, xmm6",
                "xorps xmm7, xmm7",
                "xorps xmm8, xmm8",
                "xorps xmm9, xmm9",
                "xorps xmm10, xmm10",
                "xorps xmm11, xmm11",
                "xorps xmm12, xmm12",
                "xorps xmm13, xmm13",
                "xorps xmm14, xmm14",
                "xorps xmm15, xmm15",
                options(nomem, nostack, preserves_flags),
            );
        }
    }
    Dr0::write(0);
    Dr1::write(0);
    Dr2::write(0);
    Dr3::write(0);
    write_tsc_aux(capabilities, 0);
}

/// Sets XCR0. It leaves out components that CPUID does not offer, so that a caller's mistake does not fault here.
pub fn set_xcr0(capabilities: &Capabilities, value: u64) {
    if let Some(components) = capabilities.xcr0 {
        // SAFETY: XSAVE exists and CR4.OSXSAVE is set (`enable` ran before any vCPU). The host uses no extended state.
        unsafe { XCr0::write_raw(value & components | 1) };
    }
}

/// Reads TSC_AUX. Returns `None` if the CPU has none.
pub fn read_tsc_aux(capabilities: &Capabilities) -> Option<u64> {
    // SAFETY: the register exists.
    capabilities.rdtscp.then(|| unsafe { TSC_AUX.read() })
}

/// Writes TSC_AUX. Returns false if the CPU has none.
pub fn write_tsc_aux(capabilities: &Capabilities, value: u32) -> bool {
    if capabilities.rdtscp {
        let mut register = TSC_AUX;
        // SAFETY: the register exists, the value has its 32 bits, and the host does not use it.
        unsafe { register.write(u64::from(value)) };
    }
    capabilities.rdtscp
}

/// Reads PKRU. Call it only if the guest has set its CR4.PKE, because not every CPU has the register.
pub fn read_pkru() -> u32 {
    let cr4 = Cr4::read();
    let value: u32;
    // SAFETY: the CPU has PKE, because the guest has set it. RDPKRU needs it set. Meanwhile the guest's PKRU applies to
    // user pages, of which the host has none.
    unsafe {
        Cr4::write(cr4 | Cr4Flags::PROTECTION_KEY_USER);
        core::arch::asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _, options(nomem, nostack, preserves_flags));
        Cr4::write(cr4);
    }
    value
}
