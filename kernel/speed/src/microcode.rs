//! The revision of a core's microcode.

use crate::msrs::{Msrs, Refused};
use crate::processor::{Features, Processor, Vendor};

/// IA32_BIOS_SIGN_ID; AMD: the patch level.
pub(crate) const REVISION: u32 = 0x8b;

/// Whether the revision of this processor's microcode says something: it is no virtual one, and its maker has revisions (Intel
/// since P6, AMD since K8).
#[must_use]
pub fn has_microcode(processor: &Processor) -> bool {
    let Processor { vendor, family, .. } = *processor;
    let has = match vendor {
        Vendor::Intel => family >= 6,
        Vendor::Amd => family >= 0xf,
        Vendor::Other => false,
    };
    has && !processor.has(Features::VIRTUAL)
}

/// Reads the revision on the core that runs this (SDM vol. 3A, "Microcode Update Resources": 0 is written, CPUID leaf 1 is executed,
/// and the upper half has the revision; AMD: the lower half has it at any time). `cpuid_1` executes CPUID leaf 1. Returns `None`
/// if it has none: see [`has_microcode`].
///
/// # Errors
/// The processor refuses.
pub fn microcode(processor: &Processor, msrs: &mut impl Msrs, cpuid_1: impl FnOnce()) -> Option<Result<u32, Refused>> {
    if !has_microcode(processor) {
        return None;
    }
    match processor.vendor {
        Vendor::Intel => Some(msrs.write(REVISION, 0).and_then(|()| {
            cpuid_1();
            msrs.read(REVISION).map(|value| (value >> 32) as u32)
        })),
        Vendor::Amd => Some(msrs.read(REVISION).map(|value| value as u32)),
        Vendor::Other => None,
    }
}
