//! The fields of a VMCS and their encodings (SDM vol. 3D appendix B). Only those that this back-end uses.
//!
//! A field has the width of its value in its type. So a 64-bit value can't be written to a 16-bit field. The width is
//! checked against the encoding at compile time. Fields of the host-state area have a type of their own. Only an unsafe
//! function writes them, because a wrong value there breaks the host at the next exit.

use core::marker::PhantomData;

/// The width of a field (bits 14:13 of its encoding).
pub trait Width: Copy {
    /// Type of the value.
    type Value: Copy + Into<u64>;
    /// Bits 14:13 of the encoding (SDM vol. 3D table B-1 to B-15, and vol. 3C table 25-21).
    const CODE: u32;
    /// Converts the register that VMREAD fills to the value. The bits beyond the width are zero in that register.
    fn truncate(raw: u64) -> Self::Value;
}

/// 16 bits.
#[derive(Clone, Copy, Debug)]
pub struct Bits16;
/// 32 bits.
#[derive(Clone, Copy, Debug)]
pub struct Bits32;
/// 64 bits.
#[derive(Clone, Copy, Debug)]
pub struct Bits64;
/// As wide as a register: 64 bits on every CPU that this hypervisor runs on.
#[derive(Clone, Copy, Debug)]
pub struct Natural;

macro_rules! width {
    ($name:ident, $value:ty, $code:expr) => {
        impl Width for $name {
            type Value = $value;
            const CODE: u32 = $code;
            fn truncate(raw: u64) -> $value {
                raw as $value
            }
        }
    };
}
width!(Bits16, u16, 0);
width!(Bits64, u64, 1);
width!(Bits32, u32, 2);
width!(Natural, u64, 3);

/// A field of the guest-state, control or exit-information areas.
#[derive(Clone, Copy, Debug)]
pub struct Field<W>(u32, PhantomData<W>);

impl<W: Width> Field<W> {
    const fn new(encoding: u32) -> Self {
        assert!(encoding >> 13 & 3 == W::CODE, "bits 14:13 are the width");
        Self(encoding, PhantomData)
    }

    /// The encoding that VMREAD and VMWRITE take.
    pub const fn encoding(self) -> u32 {
        self.0
    }
}

/// A field of the host-state area.
#[derive(Clone, Copy, Debug)]
pub struct HostField<W>(u32, PhantomData<W>);

impl<W: Width> HostField<W> {
    const fn new(encoding: u32) -> Self {
        assert!(encoding >> 13 & 3 == W::CODE, "bits 14:13 are the width");
        Self(encoding, PhantomData)
    }

    /// The encoding that VMWRITE takes.
    pub const fn encoding(self) -> u32 {
        self.0
    }
}

macro_rules! fields {
    ($kind:ident, $all:ident: $($name:ident $width:ident $encoding:literal,)*) => {
        $(
            #[allow(missing_docs, reason = "the names are the manual's")]
            pub const $name: $kind<$width> = $kind::new($encoding);
        )*
        #[cfg(test)]
        const $all: &[(&str, u32)] = &[$((stringify!($name), $encoding)),*];
    };
}

fields! { Field, FIELDS:
    // 16-bit control and guest-state fields (B.1).
    VPID Bits16 0x0000,
    POSTED_INTERRUPT_NOTIFICATION_VECTOR Bits16 0x0002,
    GUEST_ES_SELECTOR Bits16 0x0800,
    GUEST_INTERRUPT_STATUS Bits16 0x0810,
    // 64-bit fields (B.2).
    MSR_BITMAP_ADDRESS Bits64 0x2004,
    TSC_OFFSET Bits64 0x2010,
    VIRTUAL_APIC_ADDRESS Bits64 0x2012,
    POSTED_INTERRUPT_DESCRIPTOR_ADDRESS Bits64 0x2016,
    EPT_POINTER Bits64 0x201a,
    EOI_EXIT_BITMAP0 Bits64 0x201c,
    EOI_EXIT_BITMAP1 Bits64 0x201e,
    EOI_EXIT_BITMAP2 Bits64 0x2020,
    EOI_EXIT_BITMAP3 Bits64 0x2022,
    XSS_EXITING_BITMAP Bits64 0x202c,
    ENCLS_EXITING_BITMAP Bits64 0x202e,
    ENCLV_EXITING_BITMAP Bits64 0x2036,
    GUEST_PHYSICAL_ADDRESS Bits64 0x2400,
    VMCS_LINK_POINTER Bits64 0x2800,
    GUEST_IA32_DEBUGCTL Bits64 0x2802,
    GUEST_IA32_PAT Bits64 0x2804,
    GUEST_IA32_EFER Bits64 0x2806,
    GUEST_PDPTE0 Bits64 0x280a,
    GUEST_PDPTE1 Bits64 0x280c,
    GUEST_PDPTE2 Bits64 0x280e,
    GUEST_PDPTE3 Bits64 0x2810,
    // 32-bit fields (B.3).
    PIN_BASED_CONTROLS Bits32 0x4000,
    PRIMARY_CONTROLS Bits32 0x4002,
    EXCEPTION_BITMAP Bits32 0x4004,
    PAGE_FAULT_ERROR_CODE_MASK Bits32 0x4006,
    PAGE_FAULT_ERROR_CODE_MATCH Bits32 0x4008,
    CR3_TARGET_COUNT Bits32 0x400a,
    EXIT_CONTROLS Bits32 0x400c,
    EXIT_MSR_STORE_COUNT Bits32 0x400e,
    EXIT_MSR_LOAD_COUNT Bits32 0x4010,
    ENTRY_CONTROLS Bits32 0x4012,
    ENTRY_MSR_LOAD_COUNT Bits32 0x4014,
    ENTRY_INTERRUPTION_INFORMATION Bits32 0x4016,
    ENTRY_EXCEPTION_ERROR_CODE Bits32 0x4018,
    ENTRY_INSTRUCTION_LENGTH Bits32 0x401a,
    TPR_THRESHOLD Bits32 0x401c,
    SECONDARY_CONTROLS Bits32 0x401e,
    INSTRUCTION_TIMEOUT_CONTROL Bits32 0x4024,
    INSTRUCTION_ERROR Bits32 0x4400,
    EXIT_REASON Bits32 0x4402,
    EXIT_INTERRUPTION_INFORMATION Bits32 0x4404,
    EXIT_INTERRUPTION_ERROR_CODE Bits32 0x4406,
    IDT_VECTORING_INFORMATION Bits32 0x4408,
    IDT_VECTORING_ERROR_CODE Bits32 0x440a,
    EXIT_INSTRUCTION_LENGTH Bits32 0x440c,
    GUEST_ES_LIMIT Bits32 0x4800,
    GUEST_GDTR_LIMIT Bits32 0x4810,
    GUEST_IDTR_LIMIT Bits32 0x4812,
    GUEST_ES_ACCESS_RIGHTS Bits32 0x4814,
    GUEST_CS_ACCESS_RIGHTS Bits32 0x4816,
    GUEST_SS_ACCESS_RIGHTS Bits32 0x4818,
    GUEST_INTERRUPTIBILITY Bits32 0x4824,
    GUEST_ACTIVITY_STATE Bits32 0x4826,
    GUEST_SYSENTER_CS Bits32 0x482a,
    GUEST_PREEMPTION_TIMER_VALUE Bits32 0x482e,
    // Natural-width fields (B.4).
    CR0_GUEST_HOST_MASK Natural 0x6000,
    CR4_GUEST_HOST_MASK Natural 0x6002,
    CR0_READ_SHADOW Natural 0x6004,
    CR4_READ_SHADOW Natural 0x6006,
    EXIT_QUALIFICATION Natural 0x6400,
    GUEST_CR0 Natural 0x6800,
    GUEST_CR3 Natural 0x6802,
    GUEST_CR4 Natural 0x6804,
    GUEST_ES_BASE Natural 0x6806,
    GUEST_FS_BASE Natural 0x680e,
    GUEST_GS_BASE Natural 0x6810,
    GUEST_GDTR_BASE Natural 0x6816,
    GUEST_IDTR_BASE Natural 0x6818,
    GUEST_DR7 Natural 0x681a,
    GUEST_RSP Natural 0x681c,
    GUEST_RIP Natural 0x681e,
    GUEST_RFLAGS Natural 0x6820,
    GUEST_PENDING_DEBUG_EXCEPTIONS Natural 0x6822,
    GUEST_SYSENTER_ESP Natural 0x6824,
    GUEST_SYSENTER_EIP Natural 0x6826,
}

/// The EOI-exit bitmaps in order: vectors 0 to 63, 64 to 127 and so on.
pub const EOI_EXIT_BITMAPS: [Field<Bits64>; 4] =
    [EOI_EXIT_BITMAP0, EOI_EXIT_BITMAP1, EOI_EXIT_BITMAP2, EOI_EXIT_BITMAP3];

fields! { HostField, HOST_FIELDS:
    HOST_ES_SELECTOR Bits16 0x0c00,
    HOST_CS_SELECTOR Bits16 0x0c02,
    HOST_SS_SELECTOR Bits16 0x0c04,
    HOST_DS_SELECTOR Bits16 0x0c06,
    HOST_FS_SELECTOR Bits16 0x0c08,
    HOST_GS_SELECTOR Bits16 0x0c0a,
    HOST_TR_SELECTOR Bits16 0x0c0c,
    HOST_IA32_PAT Bits64 0x2c00,
    HOST_IA32_EFER Bits64 0x2c02,
    HOST_SYSENTER_CS Bits32 0x4c00,
    HOST_CR0 Natural 0x6c00,
    HOST_CR3 Natural 0x6c02,
    HOST_CR4 Natural 0x6c04,
    HOST_FS_BASE Natural 0x6c06,
    HOST_GS_BASE Natural 0x6c08,
    HOST_TR_BASE Natural 0x6c0a,
    HOST_GDTR_BASE Natural 0x6c0c,
    HOST_IDTR_BASE Natural 0x6c0e,
    HOST_SYSENTER_ESP Natural 0x6c10,
    HOST_SYSENTER_EIP Natural 0x6c12,
    HOST_RSP Natural 0x6c14,
    HOST_RIP Natural 0x6c16,
}

/// The four fields of one guest segment register.
#[derive(Clone, Copy, Debug)]
pub struct SegmentFields {
    /// Selector.
    pub selector: Field<Bits16>,
    /// Limit in bytes.
    pub limit: Field<Bits32>,
    /// Access rights ([`crate::segments`]).
    pub access_rights: Field<Bits32>,
    /// Base.
    pub base: Field<Natural>,
}

impl SegmentFields {
    /// The fields of the register with the manual's index: ES, CS, SS, DS, FS, GS, LDTR, TR.
    pub const fn new(index: u32) -> Self {
        let step = index.saturating_mul(2);
        Self {
            selector: Field::new(GUEST_ES_SELECTOR.0.saturating_add(step)),
            limit: Field::new(GUEST_ES_LIMIT.0.saturating_add(step)),
            access_rights: Field::new(GUEST_ES_ACCESS_RIGHTS.0.saturating_add(step)),
            base: Field::new(GUEST_ES_BASE.0.saturating_add(step)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_agrees_with_the_area_of_its_type() {
        for (name, encoding) in FIELDS {
            assert_eq!(encoding & 1, 0, "{name}: full access, not the high half");
            assert_ne!(encoding >> 10 & 3, 3, "{name} is in the host-state area");
            let guest = name.starts_with("GUEST_") && *name != "GUEST_PHYSICAL_ADDRESS" || name.starts_with("VMCS_");
            assert_eq!(encoding >> 10 & 3 == 2, guest, "{name}: guest-state area");
        }
        for (name, encoding) in HOST_FIELDS {
            assert_eq!(encoding >> 10 & 3, 3, "{name} is not in the host-state area");
        }
    }

    #[test]
    fn no_two_fields_share_an_encoding() {
        let mut all: Vec<u32> = FIELDS.iter().chain(HOST_FIELDS).map(|f| f.1).collect();
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n);
    }

    #[test]
    fn segment_fields_follow_the_order_es_cs_ss_ds_fs_gs_ldtr_tr() {
        let tr = SegmentFields::new(7);
        assert_eq!(tr.selector.encoding(), 0x080e);
        assert_eq!(tr.limit.encoding(), 0x480e);
        assert_eq!(tr.access_rights.encoding(), 0x4822);
        assert_eq!(tr.base.encoding(), 0x6814);
        assert_eq!(SegmentFields::new(2).access_rights.encoding(), GUEST_SS_ACCESS_RIGHTS.encoding());
    }
}
