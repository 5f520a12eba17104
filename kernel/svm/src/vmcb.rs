//! The virtual machine control block: control area and state-save area, in the processor's layout (APM vol. 2 appendix
//! B). The types of single fields are in [`crate::fields`].

use crate::exit_code::ExitCode;
use crate::fields::{
    CacheClean, EventInfo, Intercepts1, Intercepts2, Intercepts3, InterruptControl, InterruptShadow, NestedControl,
    TlbControl,
};
use machine::vcpu::{Segment, SegmentAttributes};

/// The control area (table B-1): the intercepts, the reason of the last exit, the event to inject.
#[repr(C)]
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of table B-1")]
pub struct Control {
    pub intercept_cr_read: u16,
    pub intercept_cr_write: u16,
    pub intercept_dr_read: u16,
    pub intercept_dr_write: u16,
    /// One bit per vector.
    pub intercept_exceptions: u32,
    pub intercepts_1: Intercepts1,
    pub intercepts_2: Intercepts2,
    pub intercepts_3: Intercepts3,
    reserved_018: [u8; 36],
    pub pause_filter_threshold: u16,
    pub pause_filter_count: u16,
    pub iopm_base_pa: u64,
    pub msrpm_base_pa: u64,
    pub tsc_offset: u64,
    pub guest_asid: u32,
    pub tlb_control: TlbControl,
    reserved_05d: [u8; 3],
    pub interrupt_control: InterruptControl,
    pub interrupt_shadow: InterruptShadow,
    pub exit_code: ExitCode,
    pub exit_info_1: u64,
    pub exit_info_2: u64,
    /// EXITINTINFO: the event whose delivery the exit interrupted.
    pub exit_int_info: EventInfo,
    pub nested: NestedControl,
    pub avic_apic_bar: u64,
    pub ghcb: u64,
    /// EVENTINJ: the event to deliver at entry.
    pub event_injection: EventInfo,
    pub n_cr3: u64,
    /// LBR virtualization (bit 0) and virtualized VMSAVE/VMLOAD (bit 1).
    pub lbr_control: u64,
    pub clean: CacheClean,
    reserved_0c4: u32,
    /// Address of the next instruction. Valid if the processor has next-RIP save.
    pub next_rip: u64,
    /// Number of valid bytes in `instruction_bytes`. Valid if the processor has decode assists.
    pub instruction_length: u8,
    pub instruction_bytes: [u8; 15],
    pub avic_backing_page: u64,
    reserved_0e8: u64,
    pub avic_logical_table: u64,
    pub avic_physical_table: u64,
    reserved_100: [u8; 0x20],
    /// Bus locks until the next exits (15.14.5). The processor counts it down.
    pub bus_lock_counter: u16,
    reserved_122: [u8; 0x2de],
}

/// A segment register in the state-save area.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of table B-2")]
pub struct SavedSegment {
    pub selector: u16,
    /// Bits 40 to 47 and 52 to 55 of a descriptor, without a gap.
    pub attributes: u16,
    pub limit: u32,
    pub base: u64,
}

impl From<Segment> for SavedSegment {
    fn from(s: Segment) -> Self {
        let a = s.attributes.into_bits();
        Self { selector: s.selector, attributes: a & 0xff | a >> 4 & 0xf00, limit: s.limit, base: s.base }
    }
}

impl From<SavedSegment> for Segment {
    fn from(s: SavedSegment) -> Self {
        let attributes = SegmentAttributes::from_bits(s.attributes & 0xff | (s.attributes & 0xf00) << 4);
        Self { selector: s.selector, attributes, limit: s.limit, base: s.base }
    }
}

/// The state-save area (table B-2).
#[repr(C)]
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are those of table B-2")]
pub struct Save {
    pub es: SavedSegment,
    pub cs: SavedSegment,
    pub ss: SavedSegment,
    pub ds: SavedSegment,
    pub fs: SavedSegment,
    pub gs: SavedSegment,
    pub gdtr: SavedSegment,
    pub ldtr: SavedSegment,
    pub idtr: SavedSegment,
    pub tr: SavedSegment,
    reserved_0a0: [u8; 43],
    pub cpl: u8,
    reserved_0cc: u32,
    pub efer: u64,
    reserved_0d8: [u8; 0x70],
    pub cr4: u64,
    pub cr3: u64,
    pub cr0: u64,
    pub dr7: u64,
    pub dr6: u64,
    pub rflags: u64,
    pub rip: u64,
    reserved_180: [u8; 0x58],
    pub rsp: u64,
    pub s_cet: u64,
    pub ssp: u64,
    pub isst_addr: u64,
    pub rax: u64,
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub sfmask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub cr2: u64,
    reserved_248: [u8; 0x20],
    pub g_pat: u64,
    pub dbgctl: u64,
    pub br_from: u64,
    pub br_to: u64,
    pub last_excp_from: u64,
    pub last_excp_to: u64,
    reserved_298: [u8; 0x968],
}

/// A VMCB, one page. VMSAVE uses only its state-save area.
#[repr(C, align(4096))]
#[derive(Clone, Debug)]
pub struct Vmcb {
    /// Control area.
    pub control: Control,
    /// State-save area.
    pub save: Save,
}

impl Vmcb {
    /// All fields are zero. It intercepts nothing, and VMRUN refuses it (ASID 0) until it is filled.
    pub const ZERO: Self = Self { control: Control::ZERO, save: Save::ZERO };
}

impl SavedSegment {
    const ZERO: Self = Self { selector: 0, attributes: 0, limit: 0, base: 0 };
}

impl Control {
    const ZERO: Self = Self {
        intercept_cr_read: 0,
        intercept_cr_write: 0,
        intercept_dr_read: 0,
        intercept_dr_write: 0,
        intercept_exceptions: 0,
        intercepts_1: Intercepts1::empty(),
        intercepts_2: Intercepts2::empty(),
        intercepts_3: Intercepts3::empty(),
        reserved_018: [0; 36],
        pause_filter_threshold: 0,
        pause_filter_count: 0,
        iopm_base_pa: 0,
        msrpm_base_pa: 0,
        tsc_offset: 0,
        guest_asid: 0,
        tlb_control: TlbControl::NOTHING,
        reserved_05d: [0; 3],
        interrupt_control: InterruptControl::new(),
        interrupt_shadow: InterruptShadow::new(),
        exit_code: ExitCode(0),
        exit_info_1: 0,
        exit_info_2: 0,
        exit_int_info: EventInfo::new(),
        nested: NestedControl::new(),
        avic_apic_bar: 0,
        ghcb: 0,
        event_injection: EventInfo::new(),
        n_cr3: 0,
        lbr_control: 0,
        clean: CacheClean::empty(),
        reserved_0c4: 0,
        next_rip: 0,
        instruction_length: 0,
        instruction_bytes: [0; 15],
        avic_backing_page: 0,
        reserved_0e8: 0,
        avic_logical_table: 0,
        avic_physical_table: 0,
        reserved_100: [0; 0x20],
        bus_lock_counter: 0,
        reserved_122: [0; 0x2de],
    };
}

impl Save {
    const ZERO: Self = Self {
        es: SavedSegment::ZERO,
        cs: SavedSegment::ZERO,
        ss: SavedSegment::ZERO,
        ds: SavedSegment::ZERO,
        fs: SavedSegment::ZERO,
        gs: SavedSegment::ZERO,
        gdtr: SavedSegment::ZERO,
        ldtr: SavedSegment::ZERO,
        idtr: SavedSegment::ZERO,
        tr: SavedSegment::ZERO,
        reserved_0a0: [0; 43],
        cpl: 0,
        reserved_0cc: 0,
        efer: 0,
        reserved_0d8: [0; 0x70],
        cr4: 0,
        cr3: 0,
        cr0: 0,
        dr7: 0,
        dr6: 0,
        rflags: 0,
        rip: 0,
        reserved_180: [0; 0x58],
        rsp: 0,
        s_cet: 0,
        ssp: 0,
        isst_addr: 0,
        rax: 0,
        star: 0,
        lstar: 0,
        cstar: 0,
        sfmask: 0,
        kernel_gs_base: 0,
        sysenter_cs: 0,
        sysenter_esp: 0,
        sysenter_eip: 0,
        cr2: 0,
        reserved_248: [0; 0x20],
        g_pat: 0,
        dbgctl: 0,
        br_from: 0,
        br_to: 0,
        last_excp_from: 0,
        last_excp_to: 0,
        reserved_298: [0; 0x968],
    };
}

/// Checks at compile time that each field is at the manual's offset.
const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Vmcb>() == 0x1000 && offset_of!(Vmcb, save) == 0x400);
    assert!(size_of::<Control>() == 0x400 && size_of::<SavedSegment>() == 16);
    assert!(offset_of!(Control, intercept_exceptions) == 0x008);
    assert!(offset_of!(Control, intercepts_1) == 0x00c);
    assert!(offset_of!(Control, intercepts_2) == 0x010);
    assert!(offset_of!(Control, pause_filter_threshold) == 0x03c);
    assert!(offset_of!(Control, iopm_base_pa) == 0x040);
    assert!(offset_of!(Control, msrpm_base_pa) == 0x048);
    assert!(offset_of!(Control, tsc_offset) == 0x050);
    assert!(offset_of!(Control, guest_asid) == 0x058);
    assert!(offset_of!(Control, tlb_control) == 0x05c);
    assert!(offset_of!(Control, interrupt_control) == 0x060);
    assert!(offset_of!(Control, interrupt_shadow) == 0x068);
    assert!(offset_of!(Control, exit_code) == 0x070);
    assert!(offset_of!(Control, exit_info_1) == 0x078);
    assert!(offset_of!(Control, exit_info_2) == 0x080);
    assert!(offset_of!(Control, exit_int_info) == 0x088);
    assert!(offset_of!(Control, nested) == 0x090);
    assert!(offset_of!(Control, avic_apic_bar) == 0x098);
    assert!(offset_of!(Control, event_injection) == 0x0a8);
    assert!(offset_of!(Control, n_cr3) == 0x0b0);
    assert!(offset_of!(Control, lbr_control) == 0x0b8);
    assert!(offset_of!(Control, clean) == 0x0c0);
    assert!(offset_of!(Control, next_rip) == 0x0c8);
    assert!(offset_of!(Control, instruction_length) == 0x0d0);
    assert!(offset_of!(Control, avic_backing_page) == 0x0e0);
    assert!(offset_of!(Control, avic_logical_table) == 0x0f0);
    assert!(offset_of!(Control, avic_physical_table) == 0x0f8);
    assert!(offset_of!(Control, intercepts_3) == 0x014);
    assert!(offset_of!(Control, bus_lock_counter) == 0x120);
    assert!(offset_of!(Save, fs) == 0x040);
    assert!(offset_of!(Save, gdtr) == 0x060);
    assert!(offset_of!(Save, tr) == 0x090);
    assert!(offset_of!(Save, cpl) == 0x0cb);
    assert!(offset_of!(Save, efer) == 0x0d0);
    assert!(offset_of!(Save, cr4) == 0x148);
    assert!(offset_of!(Save, cr0) == 0x158);
    assert!(offset_of!(Save, rflags) == 0x170);
    assert!(offset_of!(Save, rip) == 0x178);
    assert!(offset_of!(Save, rsp) == 0x1d8);
    assert!(offset_of!(Save, rax) == 0x1f8);
    assert!(offset_of!(Save, star) == 0x200);
    assert!(offset_of!(Save, kernel_gs_base) == 0x220);
    assert!(offset_of!(Save, sysenter_cs) == 0x228);
    assert!(offset_of!(Save, cr2) == 0x240);
    assert!(offset_of!(Save, g_pat) == 0x268);
    assert!(offset_of!(Save, last_excp_to) == 0x290);
};

#[cfg(test)]
mod tests {
    use super::SavedSegment;
    use machine::vcpu::{Segment, StartState};

    #[test]
    fn segment_attributes_survive_the_way_through_the_vmcb() {
        let start = StartState::linux_64(0, 0, 0, (0, 0));
        for segment in [start.cs, start.data, start.tr, start.ldtr] {
            assert_eq!(Segment::from(SavedSegment::from(segment)), segment);
        }
        // Present 64-bit code, accessed, granular: type B, S, P, L, G (APM vol. 2 4.7 and 15.5.1).
        assert_eq!(SavedSegment::from(start.cs).attributes, 0xa9b);
        assert_eq!(SavedSegment::from(start.data).attributes, 0xc93);
    }
}
