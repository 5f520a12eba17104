//! The revision of a core's microcode.

use crate::msrs::{Msrs, Refused};
use crate::processor::{Features, Processor, Vendor};

/// IA32_BIOS_SIGN_ID; AMD: the patch level.
pub(crate) const REVISION: u32 = 0x8b;

/// Reads the revision on the core that runs this (SDM vol. 3A, "Microcode Update Resources": 0 is written, CPUID leaf 1 is executed,
/// and the upper half has the revision; AMD: the lower half has it at any time). `cpuid_1` executes CPUID leaf 1. Returns `None` in
/// a virtual machine, where the revision says nothing, and on processors of other makers and before P6 and K8.
///
/// # Errors
/// The processor refuses.
pub fn microcode(processor: &Processor, msrs: &mut impl Msrs, cpuid_1: impl FnOnce()) -> Option<Result<u32, Refused>> {
    let Processor { vendor, family, .. } = *processor;
    if processor.has(Features::VIRTUAL) {
        return None;
    }
    match vendor {
        Vendor::Intel if family >= 6 => Some(msrs.write(REVISION, 0).and_then(|()| {
            cpuid_1();
            msrs.read(REVISION).map(|value| (value >> 32) as u32)
        })),
        Vendor::Amd if family >= 0xf => Some(msrs.read(REVISION).map(|value| value as u32)),
        _ => None,
    }
}
