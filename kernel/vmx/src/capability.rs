//! Reads once what this CPU's VT-x can do (capability MSRs, SDM vol. 3D appendix A). Also makes the capability report.

use crate::{
    control_registers::Fixed,
    controls::{
        self, Allowed, Entry, Exit, Missing, PinBased, Primary, REQUIRED_ENTRY, REQUIRED_EXIT, REQUIRED_PIN_BASED,
        REQUIRED_PRIMARY, REQUIRED_SECONDARY, Secondary, adjust,
    },
    split_lock::SplitLock,
};
use bitfield_struct::bitfield;
use core::fmt;
use machine::{cpuid::Regs, quirk::Quirks, vcpu::Interrupts};

/// Numbers of the MSRs read here.
mod number {
    pub const FEATURE_CONTROL: u32 = 0x3a;
    pub const BASIC: u32 = 0x480;
    pub const PIN_BASED: u32 = 0x481;
    pub const PRIMARY: u32 = 0x482;
    pub const EXIT: u32 = 0x483;
    pub const ENTRY: u32 = 0x484;
    pub const MISC: u32 = 0x485;
    pub const CR0_FIXED0: u32 = 0x486;
    pub const CR0_FIXED1: u32 = 0x487;
    pub const CR4_FIXED0: u32 = 0x488;
    pub const CR4_FIXED1: u32 = 0x489;
    pub const SECONDARY: u32 = 0x48b;
    pub const EPT_VPID: u32 = 0x48c;
    pub const TRUE_PIN_BASED: u32 = 0x48d;
    pub const TRUE_PRIMARY: u32 = 0x48e;
    pub const TRUE_EXIT: u32 = 0x48f;
    pub const TRUE_ENTRY: u32 = 0x490;
}

/// IA32_FEATURE_CONTROL (SDM vol. 3C 24.7).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct FeatureControl {
    /// The register can't be written until the next reset.
    pub locked: bool,
    pub vmx_inside_smx: bool,
    /// VMXON works.
    pub vmx_outside_smx: bool,
    #[bits(61)]
    __: u64,
}

/// IA32_VMX_BASIC (A.1).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Basic {
    /// VMCS revision identifier, the first word of a VMCS and of a VMXON region.
    #[bits(31)]
    pub revision: u32,
    __: bool,
    /// Bytes of a VMCS or VMXON region, at most 4096.
    #[bits(13)]
    pub region_size: u16,
    #[bits(5)]
    __: u8,
    #[bits(4)]
    pub memory_type: u8,
    pub ins_outs_information: bool,
    /// The TRUE control MSRs exist.
    pub true_controls: bool,
    __: u8,
}

/// IA32_VMX_MISC (A.6).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Misc {
    /// The preemption timer counts at the TSC's rate, shifted right by this.
    #[bits(5)]
    pub preemption_timer_shift: u8,
    /// An exit stores EFER.LMA in the entry control "IA-32e mode guest".
    pub stores_lma: bool,
    #[bits(58)]
    __: u64,
}

/// IA32_VMX_EPT_VPID_CAP (A.10).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct EptVpid {
    pub execute_only: bool,
    #[bits(5)]
    __: u8,
    /// 4-level EPT.
    pub walk_4: bool,
    pub walk_5: bool,
    pub uncacheable: bool,
    #[bits(5)]
    __: u8,
    /// The EPT's own accesses may be write-back.
    pub write_back: bool,
    __: bool,
    pub pages_2m: bool,
    pub pages_1g: bool,
    #[bits(2)]
    __: u8,
    pub invept: bool,
    /// Accessed and dirty bits.
    pub accessed_dirty: bool,
    #[bits(3)]
    __: u8,
    pub invept_single: bool,
    pub invept_all: bool,
    #[bits(5)]
    __: u8,
    pub invvpid: bool,
    #[bits(7)]
    __: u8,
    pub invvpid_address: bool,
    pub invvpid_single: bool,
    pub invvpid_all: bool,
    pub invvpid_retaining_globals: bool,
    #[bits(20)]
    __: u32,
}

/// The capability MSRs of one CPU.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are the manual's")]
pub struct Capabilities {
    pub feature_control: FeatureControl,
    pub basic: Basic,
    pub pin_based: Allowed,
    pub primary: Allowed,
    pub secondary: Allowed,
    pub exit: Allowed,
    pub entry: Allowed,
    pub misc: Misc,
    pub cr0: Fixed,
    pub cr4: Fixed,
    pub ept_vpid: EptVpid,
    pub split_lock: SplitLock,
}

/// One line of the capability report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is looked for.
    pub what: &'static str,
    /// Whether it is there.
    pub found: bool,
    /// Whether no guest can run without it.
    pub required: bool,
    /// If it is missing: what helps (required), or what is done instead (optional).
    pub otherwise: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, found, required, otherwise } = self;
        match (found, required) {
            (true, _) => write!(f, "VT-x: {what}: yes."),
            (false, true) => write!(f, "VT-x: {what}: missing, and required: {otherwise}."),
            (false, false) => write!(f, "VT-x: {what}: no; {otherwise}."),
        }
    }
}

/// The control words of a guest on this CPU.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are the manual's")]
pub struct ControlWords {
    pub pin_based: u32,
    pub primary: u32,
    pub secondary: u32,
    pub exit: u32,
    /// "IA-32e mode guest" is set. The user clears it for a guest that isn't in long mode.
    pub entry: u32,
}

impl Capabilities {
    /// Reads CPUID with `cpuid` (leaf, sub-leaf) and the MSRs with `rdmsr`. Reads only MSRs that exist. The CPU must have VMX
    /// (CPUID leaf 1, ECX bit 5).
    pub fn read(cpuid: impl Fn(u32, u32) -> Regs, rdmsr: impl Fn(u32) -> u64) -> Self {
        let basic = Basic::from_bits(rdmsr(number::BASIC));
        let either = |with, without| Allowed::from(rdmsr(if basic.true_controls() { with } else { without }));
        let primary = either(number::TRUE_PRIMARY, number::PRIMARY);
        let has_secondary = primary.may_be_one & Primary::ACTIVATE_SECONDARY_CONTROLS.bits() != 0;
        let secondary = if has_secondary { Allowed::from(rdmsr(number::SECONDARY)) } else { Allowed::default() };
        let has_ept_or_vpid = secondary.may_be_one & (Secondary::ENABLE_EPT | Secondary::ENABLE_VPID).bits() != 0;
        Self {
            feature_control: FeatureControl::from_bits(rdmsr(number::FEATURE_CONTROL)),
            basic,
            pin_based: either(number::TRUE_PIN_BASED, number::PIN_BASED),
            primary,
            secondary,
            exit: either(number::TRUE_EXIT, number::EXIT),
            entry: either(number::TRUE_ENTRY, number::ENTRY),
            misc: Misc::from_bits(rdmsr(number::MISC)),
            cr0: Fixed { must_be_one: rdmsr(number::CR0_FIXED0), may_be_one: rdmsr(number::CR0_FIXED1) },
            cr4: Fixed { must_be_one: rdmsr(number::CR4_FIXED0), may_be_one: rdmsr(number::CR4_FIXED1) },
            ept_vpid: EptVpid::from_bits(if has_ept_or_vpid { rdmsr(number::EPT_VPID) } else { 0 }),
            split_lock: SplitLock::find(cpuid, &rdmsr, secondary),
        }
    }

    /// Whether the firmware allows VMXON, or leaves the choice to us.
    pub fn allowed_by_firmware(&self) -> bool {
        !self.feature_control.locked() || self.feature_control.vmx_outside_smx()
    }

    /// Whether RDTSCP and RDPID can run in a guest.
    pub fn rdtscp(&self) -> bool {
        self.has(Secondary::ENABLE_RDTSCP)
    }

    /// Whether INVPCID can run in a guest.
    pub fn invpcid(&self) -> bool {
        self.has(Secondary::ENABLE_INVPCID)
    }

    /// Whether a guest can own its local APIC and have a shadow IDT.
    ///
    /// # Errors
    /// A control that this needs is missing.
    pub fn shadow_idt(&self) -> Result<(), Missing> {
        let descriptor_tables = Secondary::DESCRIPTOR_TABLE_EXITING;
        adjust("secondary", self.secondary, descriptor_tables, Secondary::empty(), Secondary::empty())?;
        self.control_words(Secondary::empty(), Interrupts::Owned, Quirks::default()).map(|_| ())
    }

    /// Whether WBINVD can be made to exit.
    pub fn wbinvd_exiting(&self) -> bool {
        self.has(Secondary::WBINVD_EXITING)
    }

    fn has(&self, control: Secondary) -> bool {
        self.secondary.may_be_one & control.bits() == control.bits()
    }

    /// Whether posted interrupts can be used.
    ///
    /// # Errors
    /// What is missing.
    pub fn posted_interrupts(&self) -> Result<(), Missing> {
        self.control_words(Secondary::empty(), Interrupts::Virtualized, Quirks::default()).map(|_| ())
    }

    /// Whether the CPU has the preemption timer.
    pub fn preemption_timer(&self) -> bool {
        self.pin_based.may_be_one & PinBased::PREEMPTION_TIMER.bits() != 0
    }

    /// Returns the control words of a guest.
    /// - `offered`: the secondary controls that it gets if the CPU has them.
    /// - `interrupts`: who has the local APIC.
    ///
    /// # Errors
    /// A control that this guest needs is missing.
    pub fn control_words(
        &self,
        offered: Secondary,
        interrupts: Interrupts,
        quirks: Quirks,
    ) -> Result<ControlWords, Missing> {
        let mut more = (PinBased::empty(), Primary::empty(), Secondary::empty());
        let (not_pin_based, not_primary, not_exit) = match interrupts {
            Interrupts::Emulated => (PinBased::empty(), Primary::empty(), Exit::empty()),
            Interrupts::Owned => {
                (controls::FORBIDDEN_OWNED_PIN_BASED, controls::FORBIDDEN_OWNED_PRIMARY, controls::FORBIDDEN_OWNED_EXIT)
            }
            Interrupts::Virtualized => {
                more =
                    (controls::VIRTUALIZED_PIN_BASED, controls::VIRTUALIZED_PRIMARY, controls::VIRTUALIZED_SECONDARY);
                let halt = if quirks.hlt { Primary::HLT_EXITING } else { Primary::empty() };
                (PinBased::empty(), controls::FORBIDDEN_OWNED_PRIMARY.difference(halt), Exit::empty())
            }
        };
        let pin_based = REQUIRED_PIN_BASED.difference(not_pin_based) | more.0;
        let primary = REQUIRED_PRIMARY.difference(not_primary) | more.1;
        let not_primary = not_primary | controls::FORBIDDEN_PRIMARY;
        Ok(ControlWords {
            pin_based: adjust("pin-based", self.pin_based, pin_based, PinBased::empty(), not_pin_based)?,
            primary: adjust("primary", self.primary, primary, Primary::empty(), not_primary)?,
            secondary: adjust(
                "secondary",
                self.secondary,
                REQUIRED_SECONDARY | more.2,
                offered | controls::WANTED_SECONDARY,
                Secondary::empty(),
            )?,
            exit: adjust("VM-exit", self.exit, REQUIRED_EXIT.difference(not_exit), Exit::empty(), not_exit)?,
            entry: adjust("VM-entry", self.entry, REQUIRED_ENTRY, Entry::empty(), Entry::empty())?,
        })
    }

    /// Whether nothing required is missing.
    pub fn sufficient(&self) -> bool {
        self.findings().iter().all(|f| f.found || !f.required)
    }

    /// The lines of the report, most important first.
    pub fn findings(&self) -> [Finding; 19] {
        let required = |what, found, otherwise| Finding { what, found, required: true, otherwise };
        let optional = |what, found, otherwise| Finding { what, found, required: false, otherwise };
        let e = self.ept_vpid;
        let newer = "a CPU from 2010 (Westmere) or later has it";
        let without = "completions are delivered without `posted`";
        let posted = self.pin_based.may_be_one & PinBased::PROCESS_POSTED_INTERRUPTS.bits() != 0;
        let tpr = self.primary.may_be_one & Primary::USE_TPR_SHADOW.bits() != 0;
        [
            required(
                "allowed by the firmware",
                self.allowed_by_firmware(),
                "switch on Virtualization Technology in the firmware's set-up",
            ),
            required("extended page tables", self.has(Secondary::ENABLE_EPT), newer),
            required("four-level EPT in write-back memory", e.walk_4() && e.write_back(), newer),
            required("2 MiB pages in the EPT", e.pages_2m(), newer),
            required(
                "unrestricted guest, and EFER.LMA kept by exits",
                self.has(Secondary::UNRESTRICTED_GUEST) && self.misc.stores_lma(),
                newer,
            ),
            required("VPID", self.has(Secondary::ENABLE_VPID), newer),
            required(
                "INVEPT and INVVPID",
                e.invept()
                    && (e.invept_single() || e.invept_all())
                    && e.invvpid()
                    && (e.invvpid_single() || e.invvpid_all()),
                newer,
            ),
            required(
                "all other controls in use",
                self.control_words(Secondary::empty(), Interrupts::Emulated, Quirks::default()).is_ok(),
                newer,
            ),
            optional("1 GiB pages in the EPT", e.pages_1g(), "2 MiB pages are used"),
            optional("accessed and dirty bits in the EPT", e.accessed_dirty(), "not needed yet"),
            optional("WBINVD exiting", self.wbinvd_exiting(), "a guest can flush the caches"),
            optional(
                "instruction timeout",
                self.has(Secondary::INSTRUCTION_TIMEOUT),
                "a guest can keep its core in an instruction that does not end",
            ),
            optional("TPR shadow", tpr, without),
            optional(
                "APIC-register virtualization and virtual-interrupt delivery",
                self.has(Secondary::APIC_REGISTER_VIRTUALIZATION | Secondary::VIRTUAL_INTERRUPT_DELIVERY),
                without,
            ),
            optional("x2APIC virtualization", self.has(Secondary::VIRTUALIZE_X2APIC_MODE), without),
            optional("posted interrupts", posted, without),
            optional(
                "#AC for split locks",
                self.split_lock.alignment_check,
                "a guest's split locks are noticed only where bus locks exit",
            ),
            optional(
                "bus-lock exiting",
                self.split_lock.bus_lock_exiting,
                "a guest's locked accesses to memory that is not write-back are not noticed",
            ),
            optional("preemption timer", self.preemption_timer(), "the APIC timer stands in for the guests'"),
        ]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The MSRs of a Skylake server, as far as they are read.
    pub fn skylake(number: u32) -> u64 {
        match number {
            0x3a => 5,
            0x480 => 0x00da_0400_0000_0004,
            0x48d => 0x0000_00ff_0000_0016,
            0x48e => 0xfff9_fffe_0400_6172,
            0x48f => 0x01ff_ffff_0003_6dfb,
            0x490 => 0x0003_ffff_0000_11fb,
            0x485 => 0x7004_c1e7,
            0x486 => 0x8000_0021,
            0x487 => 0xffff_ffff,
            0x488 => 0x2000,
            0x489 => 0x0037_67ff,
            0x48b => 0x005f_fcff_0000_0000,
            0x48c => 0x0000_0f01_0673_4141,
            _ => panic!("MSR {number:#x} is not there"),
        }
    }

    /// CPUID without a leaf: nothing that these tests look at depends on it.
    fn no_leaf(_: u32, _: u32) -> Regs {
        Regs::default()
    }

    fn except(number: u32, value: u64) -> Capabilities {
        Capabilities::read(no_leaf, |n| if n == number { value } else { skylake(n) })
    }

    #[test]
    fn a_skylake_has_all_that_is_required_and_posted_interrupts() {
        let c = Capabilities::read(no_leaf, skylake);
        assert!(c.sufficient(), "{:?}", c.findings());
        assert!(c.findings().iter().any(|f| f.what == "posted interrupts" && f.found));
        assert_eq!(c.basic.revision(), 4);
        assert_eq!(c.basic.region_size(), 1024);
        assert!(c.ept_vpid.pages_1g() && c.ept_vpid.invvpid_single() && c.ept_vpid.invept_single());
    }

    /// The MSRs that KVM of Linux 6.12 presents to its machines on Bochs's Skylake server, as far as they are read.
    /// `posting`: whether its module has `enable_apicv`.
    fn nested_in_kvm(posting: bool) -> impl Fn(u32) -> u64 {
        move |number| match number {
            0x3a => 5,
            0x480 => 0x00d8_1000_11e5_7ed0,
            0x48d => 0x0000_007f_0000_0016 | u64::from(posting) << 39,
            0x48e => 0xfff9_fffe_0400_6172,
            0x48f => 0x007f_ffff_0003_6dfb,
            0x490 => 0x0000_f3ff_0000_11fb,
            0x485 => 0x2000_0165,
            0x486 => 0x8000_0021,
            0x487 => 0xffff_ffff,
            0x488 => 0x2000,
            0x489 => 0x0037_2fff,
            0x48b => 0x0213_7bff_0000_0000,
            0x48c => 0x0000_0f01_0633_4041,
            _ => panic!("MSR {number:#x} is not there"),
        }
    }

    #[test]
    fn in_kvm_guests_run_and_posting_depends_on_its_module() {
        for posting in [false, true] {
            let c = Capabilities::read(no_leaf, nested_in_kvm(posting));
            assert!(c.sufficient(), "{:?}", c.findings());
            assert_eq!((c.basic.revision(), c.basic.region_size()), (0x11e5_7ed0, 4096), "a whole page");
            assert_eq!(c.shadow_idt(), Ok(()), "completions by `eli`");
            assert!(c.preemption_timer() && c.wbinvd_exiting());
            // KVM keeps the rest of a virtual APIC when its module is without posting.
            assert!(c.has(Secondary::APIC_REGISTER_VIRTUALIZATION | Secondary::VIRTUAL_INTERRUPT_DELIVERY));
            let missing = c.posted_interrupts().err().map(|e| e.name);
            assert_eq!(missing, if posting { None } else { Some("PROCESS_POSTED_INTERRUPTS") });
        }
    }

    #[test]
    fn in_kvm_no_control_is_set_that_it_does_not_allow() {
        let c = Capabilities::read(no_leaf, nested_in_kvm(true));
        let offered = Secondary::ENABLE_RDTSCP
            | Secondary::ENABLE_INVPCID
            | Secondary::ENABLE_XSAVES
            | Secondary::ENABLE_USER_WAIT_AND_PAUSE;
        for interrupts in [Interrupts::Emulated, Interrupts::Owned, Interrupts::Virtualized] {
            let words = c.control_words(offered, interrupts, Quirks::default()).unwrap();
            for (word, allowed) in [
                (words.pin_based, c.pin_based),
                (words.primary, c.primary),
                (words.secondary, c.secondary),
                (words.exit, c.exit),
                (words.entry, c.entry),
            ] {
                assert_eq!(word & !allowed.may_be_one, 0, "{interrupts:?}: may be 1");
                assert_eq!(allowed.must_be_one & !word, 0, "{interrupts:?}: must be 1");
            }
            // KVM has no field for it, and refuses to write one.
            assert_eq!(words.secondary & Secondary::INSTRUCTION_TIMEOUT.bits(), 0);
        }
    }

    #[test]
    fn firmware_that_locked_vmx_off_is_told_with_what_helps() {
        let c = except(0x3a, 1);
        assert!(!c.sufficient());
        let sentence = c.findings()[0].to_string();
        assert!(sentence.contains("missing, and required: switch on"), "{sentence}");
        assert!(except(0x3a, 0).allowed_by_firmware(), "unlocked: we set it ourselves");
    }

    #[test]
    fn each_required_thing_is_missed_when_it_is_missing() {
        for (number, value) in [
            (0x48b, 0x005f_fc7f_0000_0000), // unrestricted guest
            (0x48b, 0x005f_fcdf_0000_0000), // VPID
            (0x48c, 0x0000_0f01_0672_4141), // 2 MiB pages: bit 16 clear
            (0x48c, 0x0000_0f01_0673_4101), // 4 levels: bit 6 clear
            (0x485, 0x7004_c1c7),           // LMA
            (0x48d, 0x0000_00df_0000_0016), // virtual NMIs
        ] {
            assert!(!except(number, value).sufficient(), "{number:#x} = {value:#x}");
        }
    }

    #[test]
    fn msrs_that_need_not_exist_are_not_read() {
        // No TRUE controls, no secondary controls: 0x48b to 0x490 would fault.
        let c = Capabilities::read(no_leaf, |n| match n {
            0x480 => 4 | 1024 << 32,
            0x481..=0x484 => 0,
            0x48b.. => panic!("MSR {n:#x} is not there"),
            n => skylake(n),
        });
        assert!(!c.sufficient());
    }

    /// A server's, which has what a desktop's lacks: APIC-register virtualization and virtual-interrupt delivery.
    fn server_except(number: u32, value: u64) -> Capabilities {
        Capabilities::read(no_leaf, |n| match n {
            n if n == number => value,
            0x48b => 0x005f_ffff_0000_0000,
            n => skylake(n),
        })
    }

    #[test]
    fn a_virtual_apic_takes_all_of_its_controls_or_none() {
        let c = server_except(0, 0);
        assert_eq!(c.posted_interrupts(), Ok(()));
        let words = |quirks| c.control_words(Secondary::empty(), Interrupts::Virtualized, quirks).unwrap();
        let real = words(Quirks::default());
        assert_eq!(real.pin_based & 0x81, 0x81, "external interrupts exit, posted ones are processed");
        assert_eq!(real.primary & (1 << 7 | 3 << 19 | 1 << 21), 1 << 21, "a TPR shadow; neither HLT nor CR8 exits");
        assert_eq!(real.secondary & 0x311, 0x310, "and no APIC-access page");
        assert_ne!(real.exit & 1 << 15, 0, "acknowledge interrupt on exit, without which the entry fails");
        let bochs = words(Quirks { hlt: true, ..Quirks::default() });
        assert_eq!(bochs.primary & (1 << 7 | 3 << 19), 1 << 7, "a halted guest would sleep on");
        let emulated = c.control_words(Secondary::empty(), Interrupts::Emulated, Quirks::default()).unwrap();
        assert_eq!((emulated.pin_based & 0x80, emulated.secondary & 0x310), (0, 0));
    }

    #[test]
    fn each_part_of_a_virtual_apic_is_missed_by_its_name() {
        for (number, value, name) in [
            (0x48d, 0x0000_007f_0000_0016, "PROCESS_POSTED_INTERRUPTS"),
            (0x48e, 0xffd9_fffe_0400_6172, "USE_TPR_SHADOW"),
            (0x48b, 0x005f_ffef_0000_0000, "VIRTUALIZE_X2APIC_MODE"),
            (0x48b, 0x005f_feff_0000_0000, "APIC_REGISTER_VIRTUALIZATION"),
            (0x48b, 0x005f_fdff_0000_0000, "VIRTUAL_INTERRUPT_DELIVERY"),
        ] {
            let c = server_except(number, value);
            assert!(c.sufficient(), "other guests still run");
            assert_eq!(c.posted_interrupts().unwrap_err().name, name);
        }
    }

    #[test]
    fn a_shadow_idt_takes_descriptor_table_exiting_and_interrupts_that_stay_in_the_apic() {
        assert_eq!(Capabilities::read(no_leaf, skylake).shadow_idt(), Ok(()));
        let e = except(0x48b, 0x005f_fcfb_0000_0000).shadow_idt().unwrap_err();
        assert!(e.to_string().contains("lacks DESCRIPTOR_TABLE_EXITING"), "{e}");
        let e = except(0x48f, 0x01ff_ffff_0003_edfb).shadow_idt().unwrap_err();
        assert!(e.to_string().contains("can't do without ACKNOWLEDGE_INTERRUPT"), "{e}");
    }

    #[test]
    fn no_instruction_that_a_guest_does_not_have_runs_without_an_exit() {
        // SDM vol. 3C tables 25-6 and 25-7.
        const HLT: u32 = 1 << 7;
        const MWAIT: u32 = 1 << 10;
        const RDPMC: u32 = 1 << 11;
        const MONITOR: u32 = 1 << 29;
        const WBINVD: u32 = 1 << 6;
        const ENCLS: u32 = 1 << 15;
        const ENCLV: u32 = 1 << 28;
        // These allow it: VMFUNC, XSAVES, TPAUSE with UMONITOR and UMWAIT, PCONFIG. No guest here was offered any.
        const ALLOW: u32 = 1 << 13 | 1 << 20 | 1 << 26 | 1 << 27;
        // A Skylake's, that of KVM, and one that has all.
        for (may_be_one, expected) in [
            (0x005f_fcff, WBINVD | ENCLS),
            (0x0213_7bff, WBINVD),
            (0xffff_ffff, WBINVD | ENCLS | ENCLV),
            (0x1013_7bff, WBINVD | ENCLV),
        ] {
            let c = server_except(0x48b, may_be_one << 32);
            for interrupts in [Interrupts::Emulated, Interrupts::Owned] {
                let words = c.control_words(Secondary::empty(), interrupts, Quirks::default()).unwrap();
                assert_eq!(words.primary & (MWAIT | RDPMC | MONITOR), MWAIT | RDPMC | MONITOR, "{may_be_one:#x}");
                assert_eq!(words.primary & HLT != 0, interrupts == Interrupts::Emulated, "{may_be_one:#x}");
                assert_eq!(words.secondary & (WBINVD | ENCLS | ENCLV | ALLOW), expected, "{may_be_one:#x}");
            }
        }
    }

    #[test]
    fn an_instruction_that_does_not_end_and_wbinvd_exit_where_the_cpu_can_do_that() {
        // Bit 6: WBINVD exiting. Bit 31: instruction timeout.
        for (may_be_one, expected) in [(0x005f_fcff, 1 << 6), (0x805f_fcff, 1 << 31 | 1 << 6), (0x805f_fcbf, 1 << 31)] {
            let c = except(0x48b, may_be_one << 32);
            for interrupts in [Interrupts::Emulated, Interrupts::Owned] {
                let words = c.control_words(Secondary::empty(), interrupts, Quirks::default()).unwrap();
                assert_eq!(words.secondary & (1 << 31 | 1 << 6), expected, "{may_be_one:#x}");
            }
        }
    }

    #[test]
    fn instructions_that_are_not_offered_stay_off() {
        let c = Capabilities::read(no_leaf, skylake);
        let word =
            c.control_words(Secondary::ENABLE_RDTSCP, Interrupts::Emulated, Quirks::default()).unwrap().secondary;
        assert_ne!(word & Secondary::ENABLE_RDTSCP.bits(), 0);
        assert_eq!(word & Secondary::ENABLE_INVPCID.bits(), 0);
    }
}
