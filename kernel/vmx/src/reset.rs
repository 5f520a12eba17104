//! Resets a vCPU's registers: the guest-state and control areas (SDM vol. 3C 25.4, 25.6 to 25.8), and the registers
//! that no entry or exit switches, because only the guest uses them on a guest core.
//!
//! One of these, PKRU, limits memory accesses. It applies only while CR4.PKE is set and only to user pages. Entry and
//! exit switch CR4, the host's PKE is clear, and the host has no user pages. So the guest's PKRU cannot stop the host.
//! The host executes no WRPKRU, and XRSTOR only when the vCPU is reset. So the guest finds its PKRU at the next entry as
//! it left it.

#![allow(unsafe_code, reason = "FPU, debug registers and MSRs of the core that the guest has for good")]

use crate::{
    capability::ControlWords,
    control_registers::{LMA, Rules},
    controls::{Entry, Secondary},
    fields::*,
    instructions::CurrentVmcs,
    msr, segments,
};
use core::arch::asm;
use machine::vcpu::{SegmentName, StartState};
use x86_64::registers::{
    control::{Cr4, Cr4Flags},
    model_specific::Msr,
    xcontrol::XCr0,
};

/// Exceptions that always exit: #DB, #UD, #AC and #MC. #UD may be VMMCALL, which is a hypercall here. A guest can make
/// #DB or #AC recur for ever during the event delivery of one instruction. The CPU would take no NMI there.
pub const EXCEPTIONS: u32 = 1 << 1 | 1 << 6 | 1 << 17 | 1 << 18;
const DR6_RESET: u64 = 0xffff_0ff0;
const DR7_RESET: u64 = 0x400;
/// EPT pointer (table 25-9): the EPT is in write-back memory.
const EPT_WRITE_BACK: u64 = 6;
/// EPT pointer: walk length 4, stored minus one.
const EPT_WALK_4: u64 = 3 << 3;

/// The EPT pointer of a four-level table with its root at `root`.
pub const fn ept_pointer(root: u64) -> u64 {
    root | EPT_WALK_4 | EPT_WRITE_BACK
}

/// The content of the control area besides the control words.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Address of the MSR bitmap.
    pub msr_bitmap: u64,
    /// The EPT pointer.
    pub ept_pointer: u64,
    /// The VPID, not 0.
    pub vpid: u16,
}

/// Time without an end of an instruction after which the guest exits (SDM vol. 3C, "Instruction Timeout"), in cycles of the crystal clock:
/// tens of milliseconds. No instruction that ends takes so long, and a guest loses no more than its own time.
const INSTRUCTION_TIMEOUT: u32 = 1 << 20;

/// The bitmaps of instructions of which every leaf is to exit, with their values, for this secondary control word. A CPU without the
/// control has no such field.
fn exiting_bitmaps(secondary: u32) -> impl Iterator<Item = (Field<Bits64>, u64)> {
    [(Secondary::ENCLS_EXITING, ENCLS_EXITING_BITMAP), (Secondary::ENCLV_EXITING, ENCLV_EXITING_BITMAP)]
        .into_iter()
        .filter(move |(control, _)| secondary & control.bits() != 0)
        .map(|(_, field)| (field, u64::MAX))
}

/// Writes the control area.
pub fn write_controls(vmcs: &mut CurrentVmcs, words: &ControlWords, addresses: &Addresses, rules: &Rules, long: bool) {
    vmcs.write(PIN_BASED_CONTROLS, words.pin_based);
    vmcs.write(PRIMARY_CONTROLS, words.primary);
    vmcs.write(SECONDARY_CONTROLS, words.secondary);
    vmcs.write(EXIT_CONTROLS, words.exit);
    let ia32e = Entry::IA32E_MODE_GUEST.bits();
    vmcs.write(ENTRY_CONTROLS, if long { words.entry | ia32e } else { words.entry & !ia32e });
    vmcs.write(EXCEPTION_BITMAP, EXCEPTIONS);
    vmcs.write(PAGE_FAULT_ERROR_CODE_MASK, 0);
    vmcs.write(PAGE_FAULT_ERROR_CODE_MATCH, 0);
    vmcs.write(CR3_TARGET_COUNT, 0);
    vmcs.write(EXIT_MSR_STORE_COUNT, 0);
    vmcs.write(EXIT_MSR_LOAD_COUNT, 0);
    vmcs.write(ENTRY_MSR_LOAD_COUNT, 0);
    vmcs.write(ENTRY_INTERRUPTION_INFORMATION, 0);
    vmcs.write(ENTRY_EXCEPTION_ERROR_CODE, 0);
    vmcs.write(ENTRY_INSTRUCTION_LENGTH, 0);
    vmcs.write(MSR_BITMAP_ADDRESS, addresses.msr_bitmap);
    vmcs.write(EPT_POINTER, addresses.ept_pointer);
    vmcs.write(VPID, addresses.vpid);
    vmcs.write(TSC_OFFSET, 0);
    if words.secondary & Secondary::ENABLE_XSAVES.bits() != 0 {
        vmcs.write(XSS_EXITING_BITMAP, 0);
    }
    for (field, value) in exiting_bitmaps(words.secondary) {
        vmcs.write(field, value);
    }
    if words.secondary & Secondary::INSTRUCTION_TIMEOUT.bits() != 0 {
        vmcs.write(INSTRUCTION_TIMEOUT_CONTROL, INSTRUCTION_TIMEOUT);
    }
    vmcs.write(CR0_GUEST_HOST_MASK, rules.cr0_mask);
    vmcs.write(CR4_GUEST_HOST_MASK, rules.cr4_mask);
}

/// Writes the guest-state area.
pub fn write_guest(vmcs: &mut CurrentVmcs, state: &StartState, rules: &Rules) {
    vmcs.write(GUEST_CR0, rules.real_cr0(state.cr0));
    vmcs.write(CR0_READ_SHADOW, state.cr0);
    vmcs.write(GUEST_CR3, state.cr3);
    vmcs.write(GUEST_CR4, rules.real_cr4(state.cr4));
    vmcs.write(CR4_READ_SHADOW, state.cr4);
    vmcs.write(GUEST_IA32_EFER, state.efer);
    vmcs.write(GUEST_IA32_PAT, msr::PAT_RESET);
    segments::write(vmcs, SegmentName::Cs, &state.cs);
    for name in [SegmentName::Es, SegmentName::Ss, SegmentName::Ds, SegmentName::Fs, SegmentName::Gs] {
        segments::write(vmcs, name, &state.data);
    }
    segments::write(vmcs, SegmentName::Tr, &state.tr);
    segments::write(vmcs, SegmentName::Ldtr, &state.ldtr);
    vmcs.write(GUEST_GDTR_BASE, state.gdt.0);
    vmcs.write(GUEST_GDTR_LIMIT, u32::from(state.gdt.1));
    vmcs.write(GUEST_IDTR_BASE, state.idt.0);
    vmcs.write(GUEST_IDTR_LIMIT, u32::from(state.idt.1));
    vmcs.write(GUEST_RIP, state.rip);
    vmcs.write(GUEST_RSP, state.gprs.rsp);
    vmcs.write(GUEST_RFLAGS, state.rflags);
    vmcs.write(GUEST_DR7, DR7_RESET);
    vmcs.write(GUEST_IA32_DEBUGCTL, 0);
    vmcs.write(GUEST_SYSENTER_CS, 0);
    vmcs.write(GUEST_SYSENTER_ESP, 0);
    vmcs.write(GUEST_SYSENTER_EIP, 0);
    for field in [GUEST_PDPTE0, GUEST_PDPTE1, GUEST_PDPTE2, GUEST_PDPTE3] {
        vmcs.write(field, 0);
    }
    vmcs.write(GUEST_INTERRUPTIBILITY, 0);
    vmcs.write(GUEST_ACTIVITY_STATE, 0);
    vmcs.write(GUEST_PENDING_DEBUG_EXCEPTIONS, 0);
    vmcs.write(VMCS_LINK_POINTER, u64::MAX);
}

/// Whether a start state is in long mode.
pub fn is_long(state: &StartState) -> bool {
    state.efer & LMA != 0
}

/// An XSAVE image with every component in its initial state: the header says that none is stored. XRSTOR takes only
/// MXCSR from it (SDM vol. 1 13.8). FXRSTOR takes MXCSR and FCW.
#[repr(C, align(64))]
struct Image([u8; 576]);

static INITIAL: Image = {
    let mut bytes = [0; 576];
    bytes[0] = 0x7f; // FCW = 0x037f
    bytes[1] = 0x03;
    bytes[24] = 0x80; // MXCSR = 0x1f80
    bytes[25] = 0x1f;
    Image(bytes)
};

/// Resets the registers that no entry or exit switches: FPU, vectors, XCR0, debug registers, CR2 and the MSRs that a
/// guest has to itself.
///
/// # Safety
/// The core is in VMX root operation after [`crate::enable`]. The host uses none of these registers.
pub unsafe fn clear_registers() {
    let cpuid = raw_cpuid::CpuId::new();
    // SAFETY: `enable` made FPU and XSAVE instructions usable. XCR0 gets exactly the components that CPUID lists, so
    // XRSTOR initializes them all. Then XCR0 gets its reset value. The image is aligned and as long as XRSTOR reads.
    unsafe {
        if cpuid.get_feature_info().is_some_and(|f| f.has_xsave()) {
            XCr0::write_raw(supported_xcr0());
            asm!("xrstor64 [{}]", in(reg) &raw const INITIAL, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack));
            XCr0::write_raw(1);
        } else {
            asm!("fxrstor64 [{}]", in(reg) &raw const INITIAL, options(nostack));
        }
    }
    // SAFETY: the host sets no breakpoints and takes no page faults.
    unsafe {
        asm!(
            "mov dr0, {zero}",
            "mov dr1, {zero}",
            "mov dr2, {zero}",
            "mov dr3, {zero}",
            "mov dr6, {dr6}",
            "mov cr2, {zero}",
            zero = in(reg) 0_u64,
            dr6 = in(reg) DR6_RESET,
            options(nostack, nomem),
        );
    }
    let extended = cpuid.get_extended_processor_and_feature_identifiers();
    let has_tsc_aux =
        extended.is_some_and(|f| f.has_rdtscp()) || cpuid.get_extended_feature_info().is_some_and(|f| f.has_rdpid());
    let has_xss = cpuid.get_extended_state_info().is_some_and(|s| s.has_xsaves_xrstors());
    // SAFETY: the host uses no SYSCALL, SWAPGS, RDTSCP or XSAVES. By CPUID each MSR exists.
    unsafe {
        for number in msr::REGISTERS {
            Msr::new(number).write(0);
        }
        if has_tsc_aux {
            Msr::new(msr::TSC_AUX).write(0);
        }
        if has_xss {
            Msr::new(msr::XSS).write(0);
        }
    }
}

/// The components that XCR0 can hold on this CPU (CPUID leaf 0xD).
pub fn supported_xcr0() -> u64 {
    let r = raw_cpuid::cpuid!(0xd, 0);
    u64::from(r.edx) << 32 | u64::from(r.eax)
}

/// Reads PKRU. Call it only if the guest has set its CR4.PKE, because not every CPU has the register.
pub fn read_pkru() -> u32 {
    let cr4 = Cr4::read();
    let value: u32;
    // SAFETY: the CPU has PKE, because the guest has set it. RDPKRU needs it set. Meanwhile the guest's PKRU applies to
    // user pages, of which the host has none.
    unsafe {
        Cr4::write(cr4 | Cr4Flags::PROTECTION_KEY_USER);
        asm!("rdpkru", in("ecx") 0, out("eax") value, out("edx") _, options(nomem, nostack, preserves_flags));
        Cr4::write(cr4);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_leaf_of_encls_and_enclv_exits_where_the_field_is_there() {
        let written =
            |secondary| exiting_bitmaps(secondary).map(|(f, value)| (f.encoding(), value)).collect::<Vec<_>>();
        assert_eq!(written(!(1 << 15 | 1 << 28)), []);
        assert_eq!(written(1 << 15), [(0x202e, u64::MAX)]);
        assert_eq!(written(1 << 28), [(0x2036, u64::MAX)]);
        assert_eq!(written(!0), [(0x202e, u64::MAX), (0x2036, u64::MAX)]);
    }
}
