//! Converts guest segment registers between the machine's form and the VMCS's (SDM vol. 3C 25.4.1, table 25-2).

use crate::fields::SegmentFields;
use machine::vcpu::{Segment, SegmentAttributes, SegmentName};

/// Access rights: the register is unusable. It holds a null selector, or none yet.
const UNUSABLE: u32 = 1 << 16;
/// Access rights: L, a 64-bit code segment.
const LONG: u32 = 1 << 13;
/// The bits that access rights share with [`SegmentAttributes`]. The bits between them are reserved and must be zero.
const ATTRIBUTES: u32 = 0xf0ff;

/// Access rights as the VMCS holds them. A segment that is not present is unusable.
pub fn access_rights(attributes: SegmentAttributes) -> u32 {
    if attributes.present() { u32::from(attributes.into_bits()) & ATTRIBUTES } else { UNUSABLE }
}

/// Attributes from access rights. An unusable segment shows as not present.
pub fn attributes(access_rights: u32) -> SegmentAttributes {
    let attributes = SegmentAttributes::from_bits((access_rights & ATTRIBUTES) as u16);
    if access_rights & UNUSABLE == 0 { attributes } else { attributes.with_present(false) }
}

/// Wraps RIP after an instruction was skipped. Outside 64-bit code RIP has 32 bits. The CPU refuses an entry with more
/// (SDM vol. 3C 27.3.1.4).
pub fn wrap_rip(next: u64, cs_access_rights: u32) -> u64 {
    if cs_access_rights & LONG == 0 { next & 0xffff_ffff } else { next }
}

/// The fields of a segment register.
pub const fn fields(name: SegmentName) -> SegmentFields {
    SegmentFields::new(match name {
        SegmentName::Es => 0,
        SegmentName::Cs => 1,
        SegmentName::Ss => 2,
        SegmentName::Ds => 3,
        SegmentName::Fs => 4,
        SegmentName::Gs => 5,
        SegmentName::Ldtr => 6,
        SegmentName::Tr => 7,
    })
}

/// DPL from access rights. The CPL is the DPL of SS.
pub fn dpl(access_rights: u32) -> u8 {
    (access_rights >> 5 & 3) as u8
}

/// Reads a segment register of the guest.
pub fn read(vmcs: &crate::instructions::CurrentVmcs, name: SegmentName) -> Segment {
    let f = fields(name);
    Segment {
        selector: vmcs.read(f.selector),
        attributes: attributes(vmcs.read(f.access_rights)),
        limit: vmcs.read(f.limit),
        base: vmcs.read(f.base),
    }
}

/// Writes a segment register of the guest.
pub fn write(vmcs: &mut crate::instructions::CurrentVmcs, name: SegmentName, segment: &Segment) {
    let f = fields(name);
    vmcs.write(f.selector, segment.selector);
    vmcs.write(f.access_rights, access_rights(segment.attributes));
    vmcs.write(f.limit, segment.limit);
    vmcs.write(f.base, segment.base);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_is_not_present_becomes_unusable_and_back() {
        assert_eq!(access_rights(SegmentAttributes::new()), 1 << 16);
        assert!(!attributes(1 << 16 | 0x93).present());
    }

    #[test]
    fn flat_64_bit_code_has_the_manuals_bits() {
        let code = SegmentAttributes::new()
            .with_kind(0xb)
            .with_code_or_data(true)
            .with_present(true)
            .with_long(true)
            .with_granularity(true);
        assert_eq!(access_rights(code), 0xa09b);
        assert_eq!(attributes(0xa09b), code);
    }

    #[test]
    fn rip_wraps_at_4_gib_outside_64_bit_code_only() {
        assert_eq!(wrap_rip(0x1_0000_0001, 0xc09b), 1);
        assert_eq!(wrap_rip(0x1_0000_0001, 0xa09b), 0x1_0000_0001);
    }

    #[test]
    fn the_privilege_level_is_in_bits_6_and_5() {
        assert_eq!(dpl(0xc0f3), 3);
        assert_eq!(dpl(0xc093), 0);
    }
}
