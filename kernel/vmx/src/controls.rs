//! The VM-execution, VM-exit and VM-entry controls (SDM vol. 3C 25.6 to 25.8) and their adjustment to what the CPU
//! allows (vol. 3D A.3 to A.5).

use bitflags::bitflags;
use core::fmt;

bitflags! {
    /// Pin-based VM-execution controls.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PinBased: u32 {
        /// External interrupts exit.
        const EXTERNAL_INTERRUPT_EXITING = 1 << 0;
        /// NMIs exit.
        const NMI_EXITING = 1 << 3;
        /// NMI blocking belongs to the guest. Allows [`Primary::NMI_WINDOW_EXITING`].
        const VIRTUAL_NMIS = 1 << 5;
        /// The preemption timer counts down in the guest.
        const PREEMPTION_TIMER = 1 << 6;
        /// Posted interrupts.
        const PROCESS_POSTED_INTERRUPTS = 1 << 7;
    }

    /// Primary processor-based VM-execution controls.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Primary: u32 {
        /// Exit when the guest can take an interrupt.
        const INTERRUPT_WINDOW_EXITING = 1 << 2;
        /// The TSC offset is added to what the guest reads of the TSC.
        const USE_TSC_OFFSETTING = 1 << 3;
        /// HLT exits.
        const HLT_EXITING = 1 << 7;
        /// MWAIT exits.
        const MWAIT_EXITING = 1 << 10;
        /// RDPMC exits.
        const RDPMC_EXITING = 1 << 11;
        /// MOV to CR3 exits (1 by default on old CPUs).
        const CR3_LOAD_EXITING = 1 << 15;
        /// MOV from CR3 exits (1 by default on old CPUs).
        const CR3_STORE_EXITING = 1 << 16;
        /// MOV to CR8 exits.
        const CR8_LOAD_EXITING = 1 << 19;
        /// MOV from CR8 exits.
        const CR8_STORE_EXITING = 1 << 20;
        /// The TPR is virtual.
        const USE_TPR_SHADOW = 1 << 21;
        /// Exit when virtual NMIs are not blocked.
        const NMI_WINDOW_EXITING = 1 << 22;
        /// Every port access exits.
        const UNCONDITIONAL_IO_EXITING = 1 << 24;
        /// The MSR bitmap says which MSRs exit.
        const USE_MSR_BITMAPS = 1 << 28;
        /// MONITOR exits.
        const MONITOR_EXITING = 1 << 29;
        /// The secondary controls are in use.
        const ACTIVATE_SECONDARY_CONTROLS = 1 << 31;
    }

    /// Secondary processor-based VM-execution controls.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Secondary: u32 {
        /// Accesses to the APIC page are virtual.
        const VIRTUALIZE_APIC_ACCESSES = 1 << 0;
        /// Extended page tables.
        const ENABLE_EPT = 1 << 1;
        /// LGDT, LIDT, LLDT, LTR and the instructions that store those registers exit.
        const DESCRIPTOR_TABLE_EXITING = 1 << 2;
        /// RDTSCP and RDPID do not #UD.
        const ENABLE_RDTSCP = 1 << 3;
        /// x2APIC MSRs are virtual.
        const VIRTUALIZE_X2APIC_MODE = 1 << 4;
        /// Translations are tagged with the VPID.
        const ENABLE_VPID = 1 << 5;
        /// WBINVD exits.
        const WBINVD_EXITING = 1 << 6;
        /// The guest may run with CR0.PE or CR0.PG clear.
        const UNRESTRICTED_GUEST = 1 << 7;
        /// APIC registers are read from the virtual-APIC page.
        const APIC_REGISTER_VIRTUALIZATION = 1 << 8;
        /// Virtual interrupts are delivered without an exit.
        const VIRTUAL_INTERRUPT_DELIVERY = 1 << 9;
        /// INVPCID does not #UD.
        const ENABLE_INVPCID = 1 << 12;
        /// ENCLS exits where its bitmap says so.
        const ENCLS_EXITING = 1 << 15;
        /// XSAVES and XRSTORS do not #UD.
        const ENABLE_XSAVES = 1 << 20;
        /// TPAUSE, UMONITOR and UMWAIT do not #UD.
        const ENABLE_USER_WAIT_AND_PAUSE = 1 << 26;
        /// PCONFIG does not #UD. No guest gets it.
        const ENABLE_PCONFIG = 1 << 27;
        /// ENCLV exits where its bitmap says so.
        const ENCLV_EXITING = 1 << 28;
        /// A bus lock exits after its instruction.
        const BUS_LOCK_DETECTION = 1 << 30;
        /// An instruction that does not end in time exits.
        const INSTRUCTION_TIMEOUT = 1 << 31;
    }

    /// VM-exit controls.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Exit: u32 {
        /// DR7 and IA32_DEBUGCTL are saved.
        const SAVE_DEBUG_CONTROLS = 1 << 2;
        /// The host is in 64-bit mode.
        const HOST_ADDRESS_SPACE_SIZE = 1 << 9;
        /// An exit by an external interrupt takes its vector from the interrupt controller.
        const ACKNOWLEDGE_INTERRUPT = 1 << 15;
        /// IA32_PAT is saved.
        const SAVE_IA32_PAT = 1 << 18;
        /// IA32_PAT is loaded.
        const LOAD_IA32_PAT = 1 << 19;
        /// IA32_EFER is saved.
        const SAVE_IA32_EFER = 1 << 20;
        /// IA32_EFER is loaded.
        const LOAD_IA32_EFER = 1 << 21;
    }

    /// VM-entry controls.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Entry: u32 {
        /// DR7 and IA32_DEBUGCTL are loaded.
        const LOAD_DEBUG_CONTROLS = 1 << 2;
        /// The guest is in IA-32e mode: equal to EFER.LMA at every entry.
        const IA32E_MODE_GUEST = 1 << 9;
        /// IA32_PAT is loaded.
        const LOAD_IA32_PAT = 1 << 14;
        /// IA32_EFER is loaded.
        const LOAD_IA32_EFER = 1 << 15;
    }
}

/// Pin-based controls that every guest needs here.
pub const REQUIRED_PIN_BASED: PinBased =
    PinBased::EXTERNAL_INTERRUPT_EXITING.union(PinBased::NMI_EXITING).union(PinBased::VIRTUAL_NMIS);
/// Primary controls that every guest needs here.
pub const REQUIRED_PRIMARY: Primary = Primary::HLT_EXITING
    .union(Primary::USE_TSC_OFFSETTING)
    .union(Primary::MWAIT_EXITING)
    .union(Primary::RDPMC_EXITING)
    .union(Primary::CR8_LOAD_EXITING)
    .union(Primary::CR8_STORE_EXITING)
    .union(Primary::UNCONDITIONAL_IO_EXITING)
    .union(Primary::USE_MSR_BITMAPS)
    .union(Primary::MONITOR_EXITING)
    .union(Primary::ACTIVATE_SECONDARY_CONTROLS);
/// Pin-based controls that must be 0 for a guest that owns its core's local APIC: it takes its interrupts itself.
pub const FORBIDDEN_OWNED_PIN_BASED: PinBased = PinBased::EXTERNAL_INTERRUPT_EXITING;
/// Exit controls that must be 0 for a guest that owns its core's local APIC. An interrupt that makes it exit stays in
/// the local APIC until the guest can take it.
pub const FORBIDDEN_OWNED_EXIT: Exit = Exit::ACKNOWLEDGE_INTERRUPT;
/// Primary controls that must be 0 for a guest that owns its core's local APIC, or whose local APIC the CPU
/// virtualizes: HLT and the TPR belong to the guest.
pub const FORBIDDEN_OWNED_PRIMARY: Primary =
    Primary::HLT_EXITING.union(Primary::CR8_LOAD_EXITING).union(Primary::CR8_STORE_EXITING);
/// Pin-based controls that a guest also needs if the CPU virtualizes its local APIC.
pub const VIRTUALIZED_PIN_BASED: PinBased = PinBased::PROCESS_POSTED_INTERRUPTS;
/// Primary controls that a guest also needs if the CPU virtualizes its local APIC.
pub const VIRTUALIZED_PRIMARY: Primary = Primary::USE_TPR_SHADOW;
/// Secondary controls that a guest also needs if the CPU virtualizes its local APIC.
pub const VIRTUALIZED_SECONDARY: Secondary = Secondary::VIRTUALIZE_X2APIC_MODE
    .union(Secondary::APIC_REGISTER_VIRTUALIZATION)
    .union(Secondary::VIRTUAL_INTERRUPT_DELIVERY);
/// Primary controls that must be 0. The CPU must allow that: Linux can't be run with an exit at each CR3 access.
pub const FORBIDDEN_PRIMARY: Primary = Primary::CR3_LOAD_EXITING.union(Primary::CR3_STORE_EXITING);
/// Secondary controls that every guest needs here.
pub const REQUIRED_SECONDARY: Secondary =
    Secondary::ENABLE_EPT.union(Secondary::ENABLE_VPID).union(Secondary::UNRESTRICTED_GUEST);
/// Secondary controls that every guest gets if the CPU has them: what stops instructions that no guest is to execute.
pub const WANTED_SECONDARY: Secondary = Secondary::WBINVD_EXITING
    .union(Secondary::INSTRUCTION_TIMEOUT)
    .union(Secondary::ENCLS_EXITING)
    .union(Secondary::ENCLV_EXITING);
/// Exit controls that every guest needs here.
pub const REQUIRED_EXIT: Exit = Exit::SAVE_DEBUG_CONTROLS
    .union(Exit::HOST_ADDRESS_SPACE_SIZE)
    .union(Exit::ACKNOWLEDGE_INTERRUPT)
    .union(Exit::SAVE_IA32_PAT)
    .union(Exit::LOAD_IA32_PAT)
    .union(Exit::SAVE_IA32_EFER)
    .union(Exit::LOAD_IA32_EFER);
/// Entry controls that every guest needs here. [`Entry::IA32E_MODE_GUEST`] changes with EFER.LMA.
pub const REQUIRED_ENTRY: Entry =
    Entry::LOAD_DEBUG_CONTROLS.union(Entry::IA32E_MODE_GUEST).union(Entry::LOAD_IA32_PAT).union(Entry::LOAD_IA32_EFER);

/// The content of a capability MSR for one control word: which bits may be 0 and which may be 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// A bit set here must be 1 in the control.
    pub must_be_one: u32,
    /// A bit clear here must be 0 in the control.
    pub may_be_one: u32,
}

impl From<u64> for Allowed {
    fn from(msr: u64) -> Self {
        Self { must_be_one: msr as u32, may_be_one: (msr >> 32) as u32 }
    }
}

/// Why a control word can't be used on this CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Which control word.
    pub word: &'static str,
    /// Required bits that the CPU doesn't have.
    pub absent: u32,
    /// Bits that the CPU requires to be 1, but that must be 0 here.
    pub forced: u32,
    /// The manual's name of the lowest bit of `absent`, or else of `forced`.
    pub name: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, absent, forced, name } = self;
        if *absent != 0 {
            write!(f, "The CPU's VT-x lacks {name}, which is required ({word}, bits {absent:#x}).")
        } else {
            write!(f, "The CPU's VT-x can't do without {name}, which must be off ({word}, bits {forced:#x}).")
        }
    }
}

fn name_of<F: bitflags::Flags<Bits = u32>>(bits: u32) -> &'static str {
    F::FLAGS.iter().find(|f| f.value().bits() & bits != 0).map_or("a control", bitflags::Flag::name)
}

/// Returns a control word. It contains `required`, the bits of `wanted` that the CPU has, and the bits that the CPU
/// requires to be 1.
///
/// # Errors
/// A required bit can't be 1, or a bit of `forbidden` can't be 0.
pub fn adjust<F: bitflags::Flags<Bits = u32>>(
    word: &'static str,
    allowed: Allowed,
    required: F,
    wanted: F,
    forbidden: F,
) -> Result<u32, Missing> {
    let absent = required.bits() & !allowed.may_be_one;
    let forced = forbidden.bits() & allowed.must_be_one;
    if absent != 0 || forced != 0 {
        let name = name_of::<F>(if absent != 0 { absent } else { forced });
        return Err(Missing { word, absent, forced, name });
    }
    Ok(required.bits() | wanted.bits() & allowed.may_be_one | allowed.must_be_one)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKYLAKE_PRIMARY_TRUE: u64 = 0xfff9_fffe_0400_6172;
    const SKYLAKE_PRIMARY_OLD: u64 = 0xfff9_fffe_0401_e172;

    #[test]
    fn bits_that_the_cpu_insists_on_are_set_and_wanted_ones_it_lacks_are_not() {
        let allowed = Allowed { must_be_one: 0b0001, may_be_one: 0b0111 };
        let bits = |b| Primary::from_bits_retain(b);
        assert_eq!(adjust("p", allowed, bits(0b0010), bits(0b1100), bits(0)), Ok(0b0111));
    }

    #[test]
    fn a_skylake_offers_the_required_primary_controls() {
        let word =
            adjust("primary", SKYLAKE_PRIMARY_TRUE.into(), REQUIRED_PRIMARY, Primary::empty(), FORBIDDEN_PRIMARY)
                .unwrap();
        assert_eq!(word & REQUIRED_PRIMARY.bits(), REQUIRED_PRIMARY.bits());
        assert_eq!(word & FORBIDDEN_PRIMARY.bits(), 0);
    }

    #[test]
    fn a_missing_required_control_is_named_in_the_sentence() {
        let allowed = Allowed { must_be_one: 0, may_be_one: !Secondary::UNRESTRICTED_GUEST.bits() };
        let e = adjust("secondary", allowed, REQUIRED_SECONDARY, Secondary::empty(), Secondary::empty()).unwrap_err();
        assert_eq!(e.absent, 1 << 7);
        assert!(e.to_string().contains("lacks UNRESTRICTED_GUEST"), "{e}");
    }

    #[test]
    fn a_cpu_without_the_true_controls_is_refused_because_every_cr3_access_would_exit() {
        let e = adjust("primary", SKYLAKE_PRIMARY_OLD.into(), REQUIRED_PRIMARY, Primary::empty(), FORBIDDEN_PRIMARY)
            .unwrap_err();
        assert_eq!(e.absent, 0);
        assert!(e.to_string().contains("can't do without CR3_LOAD_EXITING"), "{e}");
    }
}
