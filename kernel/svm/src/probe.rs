//! Finds out what this processor's SVM can do, and enables it (APM vol. 2 15.4, 15.30; vol. 3 E.4.9 CPUID Fn8000_000A).

#![allow(unsafe_code, reason = "reads and writes model-specific and control registers")]

use bitfield_struct::bitfield;
use machine::cpuid::Regs;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags, Efer, EferFlags};
use x86_64::registers::model_specific::Msr;

const VM_CR_NUMBER: u32 = 0xc001_0114;
const VM_CR: Msr = Msr::new(VM_CR_NUMBER);
const VM_HSAVE_PA: Msr = Msr::new(0xc001_0117);

/// VM_CR (15.30.1).
#[bitfield(u64)]
pub struct VmCr {
    /// DPD: external debug port disabled.
    pub debug_port_disabled: bool,
    /// R_INIT: INIT becomes #SX.
    pub redirect_init: bool,
    /// DIS_A20M.
    pub disable_a20m: bool,
    /// LOCK: this bit and SVMDIS cannot be written.
    pub lock: bool,
    /// SVMDIS: EFER.SVME cannot be set.
    pub svm_disabled: bool,
    #[bits(59)]
    __: u64,
}

/// CPUID Fn8000_000A_EDX.
#[bitfield(u32)]
#[allow(missing_docs, reason = "the names are the manual's")]
pub struct Features {
    pub nested_paging: bool,
    pub lbr_virtualization: bool,
    pub svm_lock: bool,
    pub next_rip_save: bool,
    pub tsc_rate_msr: bool,
    pub vmcb_clean: bool,
    pub flush_by_asid: bool,
    pub decode_assists: bool,
    #[bits(2)]
    __: u8,
    pub pause_filter: bool,
    __: bool,
    pub pause_filter_threshold: bool,
    pub avic: bool,
    __: bool,
    pub virtual_vmsave_vmload: bool,
    pub vgif: bool,
    pub gmet: bool,
    pub x2avic: bool,
    pub supervisor_shadow_stack: bool,
    pub spec_ctrl: bool,
    #[bits(4)]
    __: u8,
    pub vnmi: bool,
    #[bits(3)]
    __: u8,
    pub bus_lock_threshold: bool,
    #[bits(2)]
    __: u8,
}

/// What the back-end knows about the processor.
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// Number of ASIDs, the host's included.
    pub asids: u32,
    /// Optional features.
    pub features: Features,
    /// EFER.FFXSR exists.
    pub ffxsr: bool,
    /// RDTSCP and TSC_AUX exist.
    pub rdtscp: bool,
    /// State components that XCR0 can enable. `None` without XSAVE.
    pub xcr0: Option<u64>,
}

/// Why SVM cannot be used. Its text says what would help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// CPUID does not offer SVM.
    Svm,
    /// VM_CR.SVMDIS is set and locked.
    Disabled,
    /// No nested paging.
    NestedPaging,
    /// The number of ASIDs is too small.
    Asids(u32),
}

impl core::fmt::Display for Missing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Svm => f.write_str("the processor has no SVM (CPUID Fn8000_0001_ECX bit 2 is clear)"),
            Self::Disabled => f.write_str(
                "the firmware has disabled SVM and locked that (VM_CR.SVMDIS and LOCK are set); enable \"SVM mode\" or \
                 \"virtualization\" in its setup",
            ),
            Self::NestedPaging => f.write_str(
                "SVM has no nested paging (CPUID Fn8000_000A_EDX bit 0 is clear); family 10h and \
                 later have it",
            ),
            Self::Asids(count) => write!(f, "SVM has {count} address space identifiers and at least 2 are needed"),
        }
    }
}

/// An optional feature, for the capability report.
pub struct Optional {
    /// The manual's name.
    pub name: &'static str,
    /// The processor has it.
    pub present: bool,
    /// What happens without it, as the rest of a sentence.
    pub fallback: &'static str,
}

impl Capabilities {
    /// The optional features, for the capability report.
    #[must_use]
    pub fn optional(&self) -> [Optional; 5] {
        let f = self.features;
        let feature = |name, present, fallback| Optional { name, present, fallback };
        [
            feature("next-RIP save", f.next_rip_save(), "instructions are decoded to find their length"),
            feature("decode assists", f.decode_assists(), "instruction bytes are read from guest memory"),
            feature("flush by ASID", f.flush_by_asid(), "a flush takes a fresh ASID"),
            feature("bus lock threshold", f.bus_lock_threshold(), "split locks of guests are not noticed"),
            feature("XSAVE", self.xcr0.is_some(), "guests have no AVX"),
        ]
    }
}

impl Capabilities {
    /// Reads CPUID with `cpuid` (leaf, sub-leaf) and, if CPUID offers SVM, VM_CR with `rdmsr`. It reads CPUID leaves by number,
    /// because `raw-cpuid` recognises AMD only by its vendor string, and Hygon has SVM too.
    ///
    /// # Errors
    /// SVM is missing, or disabled until the next reset, or lacks a required feature.
    pub fn read(cpuid: impl Fn(u32, u32) -> Regs, rdmsr: impl Fn(u32) -> u64) -> Result<Self, Missing> {
        let extended = if cpuid(0x8000_0000, 0).eax >= 0x8000_000a { Some(cpuid(0x8000_0001, 0)) } else { None };
        let Some(extended) = extended.filter(|l| l.ecx & 1 << 2 != 0) else { return Err(Missing::Svm) };
        let svm = cpuid(0x8000_000a, 0);
        let features = Features::from_bits(svm.edx);
        judge(VmCr::from_bits(rdmsr(VM_CR_NUMBER)), svm.ebx, features)?;
        let xsave = cpuid(1, 0).ecx & 1 << 26 != 0;
        let xcr0 = xsave.then(|| cpuid(0xd, 0)).map(|l| u64::from(l.edx) << 32 | u64::from(l.eax));
        Ok(Self {
            asids: svm.ebx,
            features,
            ffxsr: extended.edx & 1 << 25 != 0,
            rdtscp: extended.edx & 1 << 27 != 0,
            xcr0,
        })
    }
}

/// Checks CPUID and VM_CR of a processor that has SVM.
fn judge(vm_cr: VmCr, asids: u32, features: Features) -> Result<(), Missing> {
    if vm_cr.svm_disabled() && vm_cr.lock() {
        return Err(Missing::Disabled);
    }
    if !features.nested_paging() {
        return Err(Missing::NestedPaging);
    }
    if asids < 2 {
        return Err(Missing::Asids(asids));
    }
    Ok(())
}

/// Enables SVM on this core. Also enables FPU and XSAVE instructions, with which the host resets the guest's FPU state
/// (the kernel itself uses no FPU). `host_save` is the physical address of a 4 KiB page for the processor's own use.
///
/// # Safety
/// [`Capabilities::read`] succeeded on this core. The page is 4 KiB aligned. As long as this core runs, it is used for nothing else.
pub unsafe fn enable(capabilities: &Capabilities, host_save: u64) {
    // SAFETY: SVM is present and not locked off. The caller owns the page. The control register bits concern only the
    // FPU, which no host code uses.
    unsafe {
        let vm_cr = VmCr::from_bits(VM_CR.read());
        if vm_cr.svm_disabled() {
            let mut register = VM_CR;
            register.write(vm_cr.with_svm_disabled(false).into_bits());
        }
        Efer::update(|efer| *efer |= EferFlags::SECURE_VIRTUAL_MACHINE_ENABLE);
        let mut register = VM_HSAVE_PA;
        register.write(host_save);
        Cr0::update(|cr0| {
            cr0.remove(Cr0Flags::EMULATE_COPROCESSOR | Cr0Flags::TASK_SWITCHED);
            cr0.insert(Cr0Flags::MONITOR_COPROCESSOR | Cr0Flags::NUMERIC_ERROR);
        });
        Cr4::update(|cr4| {
            cr4.insert(Cr4Flags::OSFXSR | Cr4Flags::OSXMMEXCPT_ENABLE);
            cr4.set(Cr4Flags::OSXSAVE, capabilities.xcr0.is_some());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_have_the_manual_s_bit_numbers() {
        let bits = |f: Features| f.into_bits();
        assert_eq!(bits(Features::new().with_decode_assists(true)), 1 << 7);
        assert_eq!(bits(Features::new().with_pause_filter(true)), 1 << 10);
        assert_eq!(bits(Features::new().with_avic(true)), 1 << 13);
        assert_eq!(bits(Features::new().with_vgif(true)), 1 << 16);
        assert_eq!(bits(Features::new().with_spec_ctrl(true)), 1 << 20);
        assert_eq!(bits(Features::new().with_vnmi(true)), 1 << 25);
        assert_eq!(bits(Features::new().with_bus_lock_threshold(true)), 1 << 29);
        assert_eq!(VmCr::new().with_svm_disabled(true).into_bits(), 1 << 4);
    }

    /// CPUID Fn8000_000A_EDX of an EPYC 7003 and an EPYC 4244P. Of Zen 5 only bit 29 is known here.
    #[test]
    fn zen_5_has_the_bus_lock_threshold_and_its_forerunners_have_not() {
        for (name, edx, has) in [("Zen 3", 0x119b_9cff, false), ("Zen 4", 0x1ebf_bcff, false), ("Zen 5", 1 << 29, true)]
        {
            assert_eq!(Features::from_bits(edx).bus_lock_threshold(), has, "{name}");
        }
    }

    #[test]
    fn a_lock_matters_only_when_svm_is_disabled() {
        let npt = Features::new().with_nested_paging(true);
        let (lock, disabled) = (VmCr::new().with_lock(true), VmCr::new().with_svm_disabled(true));
        assert_eq!(judge(lock, 16, npt), Ok(()));
        assert_eq!(judge(disabled, 16, npt), Ok(()), "it can be enabled by us");
        assert_eq!(judge(disabled.with_lock(true), 16, npt), Err(Missing::Disabled));
    }

    #[test]
    fn nested_paging_and_an_asid_are_required() {
        let npt = Features::new().with_nested_paging(true);
        assert_eq!(judge(VmCr::new(), 16, Features::new()), Err(Missing::NestedPaging));
        assert_eq!(judge(VmCr::new(), 1, npt), Err(Missing::Asids(1)));
        assert_eq!(judge(VmCr::new(), 2, npt), Ok(()));
    }

    #[test]
    fn every_refusal_says_what_is_wrong() {
        for missing in [Missing::Svm, Missing::Disabled, Missing::NestedPaging, Missing::Asids(1)] {
            assert!(missing.to_string().contains("SVM"));
        }
    }
}
