//! Enables VMX operation on a core (SDM vol. 3C 24.6 to 24.8).

#![allow(unsafe_code, reason = "control registers, IA32_FEATURE_CONTROL and VMXON")]

use crate::{
    capability::{Capabilities, FeatureControl},
    instructions::{Failed, vmxon},
};
use core::fmt;
use x86_64::registers::{
    control::{Cr0, Cr4},
    model_specific::Msr,
};

const IA32_FEATURE_CONTROL: u32 = 0x3a;
const CR0_MP: u64 = 1 << 1;
const CR0_EM: u64 = 1 << 2;
const CR0_TS: u64 = 1 << 3;
const CR4_OSFXSR: u64 = 1 << 9;
const CR4_OSXSAVE: u64 = 1 << 18;

/// Why a core can't enter VMX operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// IA32_FEATURE_CONTROL is locked with VMX off.
    Firmware,
    /// VMXON failed.
    Vmxon(Failed),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Firmware => f.write_str(
                "The firmware has locked VT-x off (IA32_FEATURE_CONTROL): switch Virtualization Technology on in its set-up.",
            ),
            Self::Vmxon(e) => write!(f, "VMXON failed: {e}."),
        }
    }
}

/// Enters VMX root operation on this core. Sets the control registers as VT-x requires. Enables FPU and XSAVE
/// instructions, so that their state can be reset. From then on the core ignores INIT.
///
/// # Errors
/// The firmware has locked VT-x off, or VMXON fails (the core is in VMX operation already, the region is bad).
///
/// # Safety
/// Call it once per core, at CPL 0 in 64-bit mode. `region` is a 4 KiB frame of write-back memory, mapped at its
/// physical address. It is used for nothing else as long as the core runs. `capabilities` are those of this CPU.
pub unsafe fn enable(region: u64, capabilities: &Capabilities) -> Result<(), Refused> {
    let mut feature_control = Msr::new(IA32_FEATURE_CONTROL);
    // SAFETY: the MSR exists on every CPU with VMX.
    let state = FeatureControl::from_bits(unsafe { feature_control.read() });
    if !state.locked() {
        let on = state.with_locked(true).with_vmx_outside_smx(true);
        // SAFETY: the register is unlocked, so it can be written. The write only allows VMXON.
        unsafe { feature_control.write(on.into_bits()) };
    } else if !state.vmx_outside_smx() {
        return Err(Refused::Firmware);
    }
    let xsave = raw_cpuid::CpuId::new().get_feature_info().is_some_and(|f| f.has_xsave());
    let cr0 = (Cr0::read_raw() | capabilities.cr0.must_be_one | CR0_MP) & capabilities.cr0.may_be_one;
    let extensions = CR4_OSFXSR | if xsave { CR4_OSXSAVE } else { 0 };
    let cr4 = (Cr4::read_raw() | capabilities.cr4.must_be_one | extensions) & capabilities.cr4.may_be_one;
    // SAFETY: VMX operation requires NE and VMXE, besides what 64-bit mode has set already. FPU instructions run with
    // EM and TS clear, and MP, OSFXSR and OSXSAVE set. The host uses them only to reset a guest's state.
    unsafe {
        Cr0::write_raw(cr0 & !(CR0_EM | CR0_TS));
        Cr4::write_raw(cr4);
    }
    // SAFETY: by the caller's promise the frame is ours and mapped at its physical address. Its first word is the
    // revision identifier (24.11.5). The rest belongs to the CPU.
    unsafe {
        core::ptr::with_exposed_provenance_mut::<u32>(region as usize).write_volatile(capabilities.basic.revision());
        vmxon(region).map_err(Refused::Vmxon)
    }
}
