//! The content of a VMCB when a guest starts, and access to the MSRs that are in it (APM vol. 2 14.1.3 for the state
//! after reset, 15.5.1 for what VMRUN accepts).

use crate::fields::{Intercepts1, Intercepts2, Intercepts3, InterruptControl, NestedControl};
use crate::probe::Capabilities;
use crate::vmcb::{Save, SavedSegment, Vmcb};
use machine::control_registers::{CD, MCE, NW, PE, PG};
use machine::msr::{
    CSTAR, EFER, FS_BASE, GS_BASE, KERNEL_GS_BASE, LSTAR, PAT, SFMASK, STAR, SYSENTER_CS, SYSENTER_EIP, SYSENTER_ESP,
};
use machine::vcpu::{Intercepts, Interrupts, StartState};

const EFER_SCE: u64 = 1;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const EFER_NXE: u64 = 1 << 11;
const EFER_SVME: u64 = 1 << 12;
const EFER_FFXSR: u64 = 1 << 14;
/// CR0.ET. It is always 1.
const CR0_ET: u64 = 1 << 4;
/// The bits of CR0 that exist: PE, MP, EM, TS, ET, NE, WP, AM, NW, CD, PG. Writes of others have no effect.
const CR0_DEFINED: u64 = 0xe005_003f;
/// The bits of CR0 that switch caches off. The guest sees what it wrote to them. In the processor they stay clear.
const CR0_CACHES: u64 = CD | NW;
/// Bits of CR0 whose change makes translations of the guest's stale (APM vol. 2 5.5.3).
const CR0_TRANSLATION: u64 = PG | CR0_WP | PE;
const CR0_WP: u64 = 1 << 16;
/// Bits of CR4 whose change does so: PSE, PAE, PGE, PCIDE, SMEP, SMAP, PKE.
const CR4_TRANSLATION: u64 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 22;
/// PAT after reset: write-back, write-through, UC-, UC, twice.
const PAT_RESET: u64 = 0x0007_0406_0007_0406;
const DR6_RESET: u64 = 0xffff_0ff0;
const DR7_RESET: u64 = 0x400;
const RFLAGS_FIXED: u64 = 2;

/// Exceptions that exit: #DB, #UD, #AC and #MC. A guest can make the processor deliver #DB or #AC for ever. It takes no
/// NMI meanwhile. #UD may be VMCALL, which is a hypercall here.
const EXCEPTIONS: u32 = 1 << 1 | 1 << 6 | 1 << 17 | 1 << 18;
/// #NP, as a bit of the exception intercepts.
const NOT_PRESENT: u32 = 1 << 11;
/// CR0, CR4 and CR8, as bits of the control register intercepts.
const CR0: u16 = 1 << 0;
const CR4: u16 = 1 << 4;
const CR8: u16 = 1 << 8;

const INTERCEPTS_1: Intercepts1 = Intercepts1::INTR
    .union(Intercepts1::NMI)
    .union(Intercepts1::INIT)
    .union(Intercepts1::CR0_SELECTIVE_WRITE)
    .union(Intercepts1::RDPMC)
    .union(Intercepts1::CPUID)
    .union(Intercepts1::INVD)
    .union(Intercepts1::HLT)
    .union(Intercepts1::INVLPGA)
    .union(Intercepts1::IOIO_PROT)
    .union(Intercepts1::MSR_PROT)
    .union(Intercepts1::FERR_FREEZE)
    .union(Intercepts1::SHUTDOWN);

const INTERCEPTS_2: Intercepts2 = Intercepts2::VMRUN
    .union(Intercepts2::VMMCALL)
    .union(Intercepts2::VMLOAD)
    .union(Intercepts2::VMSAVE)
    .union(Intercepts2::STGI)
    .union(Intercepts2::CLGI)
    .union(Intercepts2::SKINIT)
    .union(Intercepts2::WBINVD)
    .union(Intercepts2::MONITOR)
    .union(Intercepts2::MWAIT)
    .union(Intercepts2::MWAIT_ARMED)
    .union(Intercepts2::XSETBV)
    .union(Intercepts2::RDPRU);

/// The physical addresses in the control area.
#[derive(Clone, Copy, Debug)]
pub struct Roots {
    /// I/O permission map.
    pub io_map: u64,
    /// MSR permission map.
    pub msr_map: u64,
    /// Root of the nested page tables.
    pub nested: u64,
}

/// Fills a VMCB anew. No former content remains.
pub fn fill(vmcb: &mut Vmcb, roots: Roots, interrupts: Interrupts, start: &StartState) {
    vmcb.clone_from(&Vmcb::ZERO);
    let control = &mut vmcb.control;
    control.intercept_exceptions = EXCEPTIONS;
    control.intercepts_1 = INTERCEPTS_1;
    control.intercept_cr_write = CR4;
    control.intercept_cr_read = CR4;
    match interrupts {
        // No guest gets a virtual APIC here: `posted` is refused with SVM.
        Interrupts::Emulated | Interrupts::Virtualized => {
            control.intercept_cr_read |= CR8;
            control.intercept_cr_write |= CR8;
            // The host's RFLAGS.IF masks physical interrupts, and the guest's RFLAGS.IF masks the guest's.
            control.interrupt_control = InterruptControl::new().with_v_intr_masking(true);
        }
        // Physical interrupts obey the guest's RFLAGS.IF and CR8.
        Interrupts::Owned => control.intercepts_1.remove(Intercepts1::INTR | Intercepts1::HLT),
    }
    control.intercepts_2 = INTERCEPTS_2;
    control.iopm_base_pa = roots.io_map;
    control.msrpm_base_pa = roots.msr_map;
    control.nested = NestedControl::new().with_nested_paging(true);
    control.n_cr3 = roots.nested;

    let table = |(base, limit): (u64, u16)| SavedSegment { selector: 0, attributes: 0, limit: limit.into(), base };
    let save = &mut vmcb.save;
    let data = SavedSegment::from(start.data);
    (save.es, save.ss, save.ds, save.fs, save.gs) = (data, data, data, data, data);
    (save.cs, save.tr, save.ldtr) = (start.cs.into(), start.tr.into(), start.ldtr.into());
    (save.gdtr, save.idtr) = (table(start.gdt), table(start.idt));
    (save.cr0, save.cr3, save.cr4) = (start.cr0, start.cr3, start.cr4 | MCE);
    save.efer = start.efer | EFER_SVME;
    (save.dr6, save.dr7) = (DR6_RESET, DR7_RESET);
    save.rflags = start.rflags | RFLAGS_FIXED;
    save.rip = start.rip;
    save.g_pat = PAT_RESET;
}

/// Bus locks that a guest is free to make after one has exited. Each takes the core a thousand cycles or more, so this is
/// about a millisecond of nothing else. No clock is needed, and no exit comes without a bus lock.
const FREE_BUS_LOCKS: u16 = 1000;

/// Has the guest's first bus lock exit, if `wanted` and if the processor has the threshold (15.14.5).
pub fn notice_bus_locks(vmcb: &mut Vmcb, capabilities: &Capabilities, wanted: bool) {
    let on = wanted && capabilities.features.bus_lock_threshold();
    vmcb.control.intercepts_3.set(Intercepts3::BUS_LOCK_THRESHOLD, on);
    vmcb.control.bus_lock_counter = 0;
}

/// Reloads the threshold after an exit. The instruction runs again and takes the first.
pub fn free_bus_locks(vmcb: &mut Vmcb) {
    vmcb.control.bus_lock_counter = FREE_BUS_LOCKS;
}

/// Sets what else exits, besides what [`fill`] has set. For a guest that owns its local APIC. Interrupts obey the
/// guest's RFLAGS.IF and TPR whether they exit or not (APM vol. 2 15.13.1: V_INTR_MASKING is clear).
pub fn intercept(vmcb: &mut Vmcb, what: Intercepts) {
    let control = &mut vmcb.control;
    control.intercepts_1.set(Intercepts1::INTR, what.interrupts);
    control.intercepts_1.set(Intercepts1::IDTR_WRITE, what.idt);
    control.intercept_exceptions = EXCEPTIONS | if what.not_present { NOT_PRESENT } else { 0 };
}

/// Sets whether the guest exits as soon as it can take an interrupt. For that it requests a virtual interrupt of the
/// highest priority. The interrupt is never delivered: it exits instead.
pub fn interrupt_window(vmcb: &mut Vmcb, wanted: bool) {
    let control = &mut vmcb.control;
    let asked = InterruptControl::new().with_v_irq(true).with_v_ign_tpr(true).with_v_intr_prio(0xf);
    let cleared = control.interrupt_control.into_bits() & !asked.into_bits();
    let bits = if wanted { cleared | asked.into_bits() } else { cleared };
    control.interrupt_control = InterruptControl::from_bits(bits);
    control.intercepts_1.set(Intercepts1::VINTR, wanted);
}

/// Sets CR0 for a guest that is to see `value`. Returns true if translations of the guest's are stale now.
///
/// CD and NW stay clear, because they would make the core's accesses uncached. A value without them, which changes TS or MP
/// at most, does not exit, and reads do not exit (15.9: the selective CR0 write intercept). While the guest sees CD or NW,
/// every access to CR0 exits. A write that clears them would look like no change otherwise.
pub fn set_cr0(vmcb: &mut Vmcb, value: u64) -> bool {
    let save = &mut vmcb.save;
    let new = value & CR0_DEFINED & !CR0_CACHES | CR0_ET;
    let stale = (save.cr0 ^ new) & CR0_TRANSLATION != 0;
    save.cr0 = new;
    let long = new & PG != 0 && save.efer & EFER_LME != 0;
    save.efer = save.efer & !EFER_LMA | if long { EFER_LMA } else { 0 };
    let control = &mut vmcb.control;
    let exits = if value & CR0_CACHES != 0 { CR0 } else { 0 };
    control.intercept_cr_read = control.intercept_cr_read & !CR0 | exits;
    control.intercept_cr_write = control.intercept_cr_write & !CR0 | exits;
    stale
}

/// The bits of CR0 that a guest sees set if it writes `value`, and that the processor has clear.
pub fn shown_in_cr0(value: u64) -> u64 {
    value & CR0_CACHES
}

/// Sets CR4 for a guest that is to see `value`. Returns true if translations of the guest's are stale now.
///
/// MCE is always set: with MCE clear, a machine check in the guest would stop the core (APM vol. 2 9.3.1). Reads exit, so the
/// guest sees what it wrote to MCE.
pub fn set_cr4(vmcb: &mut Vmcb, value: u64) -> bool {
    let stale = (vmcb.save.cr4 ^ value) & CR4_TRANSLATION != 0;
    vmcb.save.cr4 = value | MCE;
    stale
}

/// CR4 as the guest sees it, if it has written `mce` to MCE.
pub fn seen_cr4(vmcb: &Vmcb, mce: u64) -> u64 {
    vmcb.save.cr4 & !MCE | mce & MCE
}

/// EFER as the guest sees it. VMRUN requires SVME in a guest's EFER. The guest must not see that bit.
pub fn efer(vmcb: &Vmcb) -> u64 {
    vmcb.save.efer & !EFER_SVME
}

fn set_efer(vmcb: &mut Vmcb, capabilities: &Capabilities, value: u64) -> bool {
    let offered = EFER_SCE | EFER_LME | EFER_LMA | EFER_NXE | if capabilities.ffxsr { EFER_FFXSR } else { 0 };
    let old = efer(vmcb);
    let toggles_long_mode_while_paging = (value ^ old) & EFER_LME != 0 && vmcb.save.cr0 & PG != 0;
    if value & !offered != 0 || toggles_long_mode_while_paging {
        return false;
    }
    // The processor itself sets LMA from LME and CR0.PG. What the guest writes to LMA has no effect.
    vmcb.save.efer = value & !EFER_LMA | old & EFER_LMA | EFER_SVME;
    true
}

/// Borrows the field of an MSR that VMRUN, VMLOAD and VMSAVE switch, as `&save` or `&mut save`. Returns `None` for any other MSR, EFER
/// among them. A table of functions would put an indirect call into the path of an exit (SECURITY.md, "Speculation").
macro_rules! switched {
    ($number:expr, $($save:tt)+) => {
        Some(match $number {
            SYSENTER_CS => $($save)+.sysenter_cs,
            SYSENTER_ESP => $($save)+.sysenter_esp,
            SYSENTER_EIP => $($save)+.sysenter_eip,
            PAT => $($save)+.g_pat,
            STAR => $($save)+.star,
            LSTAR => $($save)+.lstar,
            CSTAR => $($save)+.cstar,
            SFMASK => $($save)+.sfmask,
            FS_BASE => $($save)+.fs.base,
            GS_BASE => $($save)+.gs.base,
            KERNEL_GS_BASE => $($save)+.kernel_gs_base,
            _ => return None,
        })
    };
}

fn switched(save: &Save, number: u32) -> Option<&u64> {
    switched!(number, &save)
}

fn switched_mut(save: &mut Save, number: u32) -> Option<&mut u64> {
    switched!(number, &mut save)
}

/// Whether hardware accepts a value for an MSR that [`switched`] finds.
fn accepts(number: u32, value: u64) -> bool {
    match number {
        PAT => is_page_attribute_table(value),
        SYSENTER_CS | STAR | SFMASK => true,
        _ => is_canonical(value),
    }
}

/// Reads an MSR that is kept in the VMCB. Returns `None` for any other.
pub fn msr(vmcb: &Vmcb, number: u32) -> Option<u64> {
    match number {
        EFER => Some(efer(vmcb)),
        _ => switched(&vmcb.save, number).copied(),
    }
}

/// Writes an MSR that is kept in the VMCB. Returns:
/// - `Some(true)`: it was written.
/// - `Some(false)`: hardware would refuse the value.
/// - `None`: it is not kept in the VMCB.
pub fn set_msr(vmcb: &mut Vmcb, capabilities: &Capabilities, number: u32, value: u64) -> Option<bool> {
    if number == EFER {
        return Some(set_efer(vmcb, capabilities, value));
    }
    let field = switched_mut(&mut vmcb.save, number)?;
    let accepted = accepts(number, value);
    if accepted {
        *field = value;
    }
    Some(accepted)
}

/// Whether bits 47 to 63 are equal. The guest has no 57-bit addresses.
fn is_canonical(address: u64) -> bool {
    (address as i64) << 16 >> 16 == address as i64
}

/// Whether every byte is a memory type: UC, WC, WT, WP, WB or UC-.
fn is_page_attribute_table(value: u64) -> bool {
    value.to_le_bytes().iter().all(|kind| matches!(kind, 0 | 1 | 4..=7))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::EventInfo;
    use machine::cpuid::Vendor;
    use machine::msr::passed_through;

    const CAPABILITIES: Capabilities =
        Capabilities { asids: 16, features: crate::probe::Features::new(), ffxsr: false, rdtscp: true, xcr0: Some(7) };
    const ROOTS: Roots = Roots { io_map: 0x1000, msr_map: 0x4000, nested: 0x6000 };

    fn started() -> Box<Vmcb> {
        let mut vmcb = Box::new(Vmcb::ZERO);
        fill(&mut vmcb, ROOTS, Interrupts::Emulated, &StartState::linux_64(0x10_0000, 0x9000, 0x8000, (0x7000, 0x27)));
        vmcb
    }

    /// The bits of APM vol. 2 table B-1, by offset in the VMCB. The manual's numbers, not the names of `fields.rs`.
    #[test]
    fn no_instruction_that_a_guest_does_not_have_runs_without_an_exit() {
        // CR0 (selective), RDPMC, CPUID, INVD, INVLPGA, ports, MSRs, shutdown.
        const AT_00C: [u32; 8] = [5, 15, 18, 22, 26, 27, 28, 31];
        // VMRUN, VMMCALL, VMLOAD, VMSAVE, STGI, CLGI, SKINIT, WBINVD, MONITOR (and MONITORX), MWAIT (and MWAITX) without and with a
        // monitor, XSETBV, RDPRU.
        const AT_010: [u32; 13] = [0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14];
        let all = |bits: &[u32]| bits.iter().fold(0, |all, bit| all | 1 << bit);
        for interrupts in [Interrupts::Emulated, Interrupts::Owned] {
            let mut vmcb = Box::new(Vmcb::ZERO);
            fill(&mut vmcb, ROOTS, interrupts, &StartState::startup_ipi(0, 0));
            let control = &vmcb.control;
            assert_eq!(control.intercepts_1.bits() & all(&AT_00C), all(&AT_00C), "{interrupts:?}");
            assert_eq!(control.intercepts_2.bits(), all(&AT_010), "{interrupts:?}");
            // INVLPGB and TLBSYNC are #UD without "enable INVLPGB/TLBSYNC", bit 7 at 090h. MCOMMIT is #UD without EFER bit 17.
            assert_eq!(control.nested.into_bits(), 1, "nested paging, and nothing else: {interrupts:?}");
            assert!(!set_efer(&mut vmcb, &CAPABILITIES, 1 << 17), "{interrupts:?}");
            // XSAVES has no intercept. IA32_XSS, which would let it save more than XSAVEC, is no guest's.
            assert_eq!(msr(&vmcb, 0xda0), None);
        }
        assert!(!passed_through(Vendor::Amd, Interrupts::Owned).any(|(number, _)| number == 0xda0));
    }

    #[test]
    fn a_guest_that_owns_its_apic_has_its_interrupts_halts_and_tpr_to_itself() {
        let mut vmcb = Box::new(Vmcb::ZERO);
        fill(&mut vmcb, ROOTS, Interrupts::Owned, &StartState::startup_ipi(0, 0));
        let control = &vmcb.control;
        assert!(!control.intercepts_1.intersects(Intercepts1::INTR | Intercepts1::HLT));
        assert!(control.intercepts_1.contains(Intercepts1::NMI | Intercepts1::MSR_PROT), "the host gets in by NMI");
        assert_eq!((control.intercept_cr_read, control.intercept_cr_write), (CR4, CR4));
        assert!(!control.interrupt_control.v_intr_masking());
        assert_eq!(control.intercept_exceptions, EXCEPTIONS, "#AC and #DB loops would keep NMIs out");
    }

    #[test]
    fn what_a_shadow_idt_needs_comes_and_goes_and_touches_nothing_else() {
        let mut vmcb = Box::new(Vmcb::ZERO);
        fill(&mut vmcb, ROOTS, Interrupts::Owned, &StartState::startup_ipi(0, 0));
        let plain = vmcb.control.clone();
        intercept(&mut vmcb, Intercepts { interrupts: true, ..Intercepts::default() });
        assert!(vmcb.control.intercepts_1.contains(plain.intercepts_1 | Intercepts1::INTR));
        intercept(&mut vmcb, Intercepts { idt: true, not_present: true, ..Intercepts::default() });
        assert!(!vmcb.control.intercepts_1.contains(Intercepts1::INTR));
        assert!(vmcb.control.intercepts_1.contains(plain.intercepts_1 | Intercepts1::IDTR_WRITE));
        assert_eq!(vmcb.control.intercept_exceptions, EXCEPTIONS | 1 << 11);
        intercept(&mut vmcb, Intercepts::default());
        assert_eq!(vmcb.control.intercepts_1, plain.intercepts_1);
        assert_eq!(vmcb.control.intercept_exceptions, plain.intercept_exceptions);
    }

    #[test]
    fn nothing_of_a_former_life_remains() {
        let mut vmcb = started();
        vmcb.control.event_injection = EventInfo::new().with_valid(true).with_vector(14);
        vmcb.control.interrupt_shadow.set_shadow(true);
        vmcb.control.interrupt_control.set_v_irq(true);
        (vmcb.save.lstar, vmcb.save.cr2, vmcb.save.cpl, vmcb.save.kernel_gs_base) = (1, 2, 3, 4);
        fill(&mut vmcb, ROOTS, Interrupts::Emulated, &StartState::startup_ipi(0x9a, 0));
        assert_eq!(vmcb.control.event_injection, EventInfo::new());
        assert!(!vmcb.control.interrupt_shadow.shadow() && !vmcb.control.interrupt_control.v_irq());
        assert_eq!((vmcb.save.lstar, vmcb.save.cr2, vmcb.save.cpl, vmcb.save.kernel_gs_base), (0, 0, 0, 0));
        assert_eq!((vmcb.save.cs.selector, vmcb.save.cs.base, vmcb.save.rip), (0x9a00, 0x9_a000, 0));
    }

    #[test]
    fn what_vmrun_insists_on_is_set() {
        let vmcb = started();
        assert!(vmcb.control.intercepts_2.contains(Intercepts2::VMRUN));
        assert!(vmcb.control.nested.nested_paging());
        assert_eq!(vmcb.save.efer, 0x1500);
        assert_eq!((vmcb.save.dr6 >> 32, vmcb.save.dr7 >> 32), (0, 0));
    }

    #[test]
    fn what_could_hold_the_core_against_an_nmi_is_intercepted() {
        let control = started().control.clone();
        assert_eq!(control.intercept_exceptions, 0x6_0042);
        assert!(control.intercepts_1.contains(
            Intercepts1::NMI | Intercepts1::INTR | Intercepts1::INIT | Intercepts1::SHUTDOWN | Intercepts1::MSR_PROT
        ));
        assert!(control.interrupt_control.v_intr_masking());
    }

    #[test]
    fn an_interrupt_window_comes_and_goes_and_touches_nothing_else() {
        let mut vmcb = started();
        let before = (vmcb.control.interrupt_control, vmcb.control.intercepts_1);
        interrupt_window(&mut vmcb, true);
        assert!(vmcb.control.interrupt_control.v_irq() && vmcb.control.intercepts_1.contains(Intercepts1::VINTR));
        interrupt_window(&mut vmcb, false);
        assert_eq!((vmcb.control.interrupt_control, vmcb.control.intercepts_1), before);
    }

    #[test]
    fn the_first_bus_lock_exits_where_it_is_wanted_and_the_processor_can_and_then_a_thousand_are_free() {
        let can = Capabilities { features: CAPABILITIES.features.with_bus_lock_threshold(true), ..CAPABILITIES };
        for (capabilities, wanted, bits) in [(can, true, 1 << 5), (can, false, 0), (CAPABILITIES, true, 0)] {
            let mut vmcb = started();
            vmcb.control.bus_lock_counter = 9;
            notice_bus_locks(&mut vmcb, &capabilities, wanted);
            assert_eq!((vmcb.control.intercepts_3.bits(), vmcb.control.bus_lock_counter), (bits, 0));
            free_bus_locks(&mut vmcb);
            assert_eq!((vmcb.control.intercepts_3.bits(), vmcb.control.bus_lock_counter), (bits, 1000));
        }
    }

    #[test]
    fn caches_stay_on_and_the_guest_s_accesses_exit_while_it_sees_them_off() {
        let mut vmcb = started();
        assert!(vmcb.control.intercepts_1.contains(Intercepts1::CR0_SELECTIVE_WRITE));
        for value in [0xe005_0033, 0xc005_0033] {
            assert!(!set_cr0(&mut vmcb, value), "no translation changes");
            assert_eq!(vmcb.save.cr0, 0x8005_0033);
            assert_eq!(shown_in_cr0(value), value & 0x6000_0000);
            let all = CR0 | CR4 | CR8;
            assert_eq!((vmcb.control.intercept_cr_read, vmcb.control.intercept_cr_write), (all, all));
        }
        set_cr0(&mut vmcb, 0x8005_0033);
        assert_eq!((vmcb.control.intercept_cr_read, vmcb.control.intercept_cr_write), (CR4 | CR8, CR4 | CR8));
    }

    #[test]
    fn paging_makes_long_mode_and_only_with_lme() {
        let mut vmcb = Box::new(Vmcb::ZERO);
        fill(&mut vmcb, ROOTS, Interrupts::Emulated, &StartState::startup_ipi(0, 0));
        assert!(set_cr0(&mut vmcb, 0x8000_0001));
        assert_eq!((vmcb.save.cr0, efer(&vmcb)), (0x8000_0011, 0));
        assert!(set_cr0(&mut vmcb, 0x11));
        assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, 0xc000_0080, 0x100), Some(true));
        assert!(!set_cr0(&mut vmcb, 0x13), "MP");
        assert!(set_cr0(&mut vmcb, 0x8001_0011));
        assert_eq!(efer(&vmcb), 0x500);
        assert!(set_cr0(&mut vmcb, 0x1_0011));
        assert_eq!((vmcb.save.efer, efer(&vmcb)), (0x1100, 0x100), "SVME stays");
        set_cr0(&mut vmcb, 0x1_ffff);
        assert_eq!(vmcb.save.cr0, 0x1_003f, "reserved bits have no effect");
    }

    #[test]
    fn a_change_of_cr4_that_concerns_translations_is_told() {
        let mut vmcb = started();
        for bit in [4, 7, 17, 20, 21, 22] {
            assert!(set_cr4(&mut vmcb, 0x20 | 1 << bit), "bit {bit}");
            assert!(set_cr4(&mut vmcb, 0x20), "bit {bit}");
        }
        assert!(!set_cr4(&mut vmcb, 0x4_0620), "OSXSAVE, OSFXSR, OSXMMEXCPT");
        assert_eq!(vmcb.save.cr4, 0x4_0660, "with MCE");
    }

    #[test]
    fn machine_checks_are_on_whatever_the_guest_writes_and_it_sees_what_it_wrote() {
        let mut vmcb = started();
        assert_eq!(vmcb.save.cr4 & MCE, MCE, "from the start");
        for value in [0x20, 0x60] {
            assert!(!set_cr4(&mut vmcb, value), "no translation changes");
            assert_eq!((vmcb.save.cr4, seen_cr4(&vmcb, value)), (0x60, value));
            assert_eq!((vmcb.control.intercept_cr_read & CR4, vmcb.control.intercept_cr_write & CR4), (CR4, CR4));
        }
    }

    #[test]
    fn svme_stays_set_and_hidden() {
        let mut vmcb = started();
        assert_eq!(msr(&vmcb, 0xc000_0080), Some(0x500));
        assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, 0xc000_0080, 0xd01), Some(true));
        assert_eq!((vmcb.save.efer, efer(&vmcb)), (0x1d01, 0xd01));
        assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, 0xc000_0080, 0x1d01), Some(false), "SVME is not offered");
        assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, 0xc000_0080, 0x2d01), Some(false), "nor is LMSLE");
        assert_eq!(efer(&vmcb), 0xd01);
    }

    #[test]
    fn long_mode_is_not_switched_while_paging_and_lma_is_not_the_guest_s_to_write() {
        let mut vmcb = started();
        assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, 0xc000_0080, 0x400), Some(false));
        assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, 0xc000_0080, 0x100), Some(true));
        assert_eq!(efer(&vmcb), 0x500);
        fill(&mut vmcb, ROOTS, Interrupts::Emulated, &StartState::startup_ipi(0, 0));
        assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, 0xc000_0080, 0x500), Some(true));
        assert_eq!(efer(&vmcb), 0x100);
    }

    #[test]
    fn an_address_msr_takes_canonical_values_only() {
        let mut vmcb = started();
        for number in [0x175, 0x176, 0xc000_0082, 0xc000_0083, 0xc000_0100, 0xc000_0101, 0xc000_0102] {
            assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, number, 0xffff_8000_0000_0000), Some(true));
            assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, number, 0x0000_8000_0000_0000), Some(false));
            assert_eq!(msr(&vmcb, number), Some(0xffff_8000_0000_0000), "MSR {number:#x}");
        }
    }

    #[test]
    fn pat_takes_memory_types_only() {
        let mut vmcb = started();
        assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, 0x277, 0x0407_0506_0007_0106), Some(true));
        assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, 0x277, 0x0407_0506_0007_0206), Some(false));
        assert_eq!(vmcb.save.g_pat, 0x0407_0506_0007_0106);
    }

    #[test]
    fn every_switched_msr_that_passes_unseen_can_be_read_by_the_host_too() {
        let mut vmcb = started();
        for (number, _) in passed_through(Vendor::Amd, Interrupts::Emulated).filter(|(n, _)| *n != 0xc000_0103) {
            assert!(msr(&vmcb, number).is_some(), "MSR {number:#x}");
        }
        assert_eq!(msr(&vmcb, 0xc001_0117), None);
        assert_eq!(set_msr(&mut vmcb, &CAPABILITIES, 0x1b, 0), None);
    }
}
