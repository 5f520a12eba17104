//! A CPU as CPUID and IA32_ARCH_CAPABILITIES describe it.

#![allow(missing_docs, reason = "the names are the manual's")]

use bitflags::bitflags;

/// IA32_ARCH_CAPABILITIES. It exists if CPUID leaf 7 has bit 29 in EDX.
const ARCH_CAPABILITIES: u32 = 0x10a;

bitflags! {
    /// IA32_ARCH_CAPABILITIES (SDM vol. 4, table 2-2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ArchCapabilities: u64 {
        const RDCL_NO = 1 << 0;
        const IBRS_ALL = 1 << 1;
        const RSBA = 1 << 2;
        const SKIP_L1DFL_VMENTRY = 1 << 3;
        const SSB_NO = 1 << 4;
        const MDS_NO = 1 << 5;
        const IF_PSCHANGE_MC_NO = 1 << 6;
        const TSX_CTRL = 1 << 7;
        const TAA_NO = 1 << 8;
        const SBDR_SSDP_NO = 1 << 13;
        const FBSDP_NO = 1 << 14;
        const PSDP_NO = 1 << 15;
        const FB_CLEAR = 1 << 17;
        const RRSBA = 1 << 19;
        const BHI_NO = 1 << 20;
        const PBRSB_NO = 1 << 24;
        const GDS_CTRL = 1 << 25;
        const GDS_NO = 1 << 26;
        const RFDS_NO = 1 << 27;
        const RFDS_CLEAR = 1 << 28;
        const ITS_NO = 1 << 62;
    }

    /// CPUID leaf 7, EDX.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Leaf7Edx: u32 {
        const SRBDS_CTRL = 1 << 9;
        const MD_CLEAR = 1 << 10;
        /// IBRS and IBPB.
        const SPEC_CTRL = 1 << 26;
        const STIBP = 1 << 27;
        const L1D_FLUSH = 1 << 28;
        const ARCH_CAPABILITIES = 1 << 29;
        const SSBD = 1 << 31;
    }

    /// CPUID leaf 0x8000_0008, EBX.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Leaf8Ebx: u32 {
        const IBPB = 1 << 12;
        const IBRS = 1 << 14;
        const STIBP = 1 << 15;
        const SSBD = 1 << 24;
        const SSB_NO = 1 << 26;
        const BTC_NO = 1 << 29;
        /// IBPB clears return predictions too.
        const IBPB_RET = 1 << 30;
    }

    /// CPUID leaf 0x8000_0021, EAX.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Leaf21Eax: u32 {
        /// VERW clears buffers.
        const VERW_CLEAR = 1 << 5;
        const AUTO_IBRS = 1 << 8;
        /// IBPB clears branch types too.
        const IBPB_BRTYPE = 1 << 28;
        const SRSO_NO = 1 << 29;
        const BP_SPEC_REDUCE = 1 << 31;
    }
}

/// Leaf 0x8000_0021 ECX: the CPU has neither TSA-SQ nor TSA-L1.
const TSA_NO: u32 = 1 << 1 | 1 << 2;
/// Leaf 7 EBX: RTM.
const RTM: u32 = 1 << 11;
/// Leaf 7.2 EDX: IA32_SPEC_CTRL has BHI_DIS_S.
const BHI_CTRL: u32 = 1 << 4;

/// EAX, EBX, ECX and EDX as CPUID returns them.
pub type Leaf = [u32; 4];

/// Who made the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    Intel,
    Amd,
    Hygon,
    Other,
}

/// A CPU.
#[derive(Clone, Copy, Debug)]
pub struct Processor {
    pub(crate) vendor: Vendor,
    /// With the extended part (SDM vol. 2A, CPUID leaf 1).
    pub(crate) family: u32,
    /// With the extended part.
    pub(crate) model: u32,
    pub(crate) stepping: u32,
    pub(crate) rtm: bool,
    pub(crate) bhi_ctrl: bool,
    pub(crate) leaf_7: Leaf7Edx,
    pub(crate) leaf_8: Leaf8Ebx,
    pub(crate) leaf_21: Leaf21Eax,
    /// It denies both kinds of TSA.
    pub(crate) tsa_no: bool,
    /// Empty if the CPU does not have the MSR.
    pub(crate) arch_capabilities: ArchCapabilities,
}

impl Processor {
    /// Asks CPUID (leaf, sub-leaf) and, if CPUID says that it exists, reads IA32_ARCH_CAPABILITIES with `rdmsr`.
    pub fn new(cpuid: impl Fn(u32, u32) -> Leaf, rdmsr: impl FnOnce(u32) -> u64) -> Self {
        let [last, b, c, d] = cpuid(0, 0);
        let vendor = match [b, d, c].map(u32::to_le_bytes).as_flattened() {
            b"GenuineIntel" => Vendor::Intel,
            b"AuthenticAMD" => Vendor::Amd,
            b"HygonGenuine" => Vendor::Hygon,
            _ => Vendor::Other,
        };
        let extended = cpuid(0x8000_0000, 0)[0];
        let within = |leaf: u32, sub| {
            let known = if leaf < 0x8000_0000 { leaf <= last } else { (leaf..=0x8000_ffff).contains(&extended) };
            if known { cpuid(leaf, sub) } else { [0; 4] }
        };
        let [signature, ..] = cpuid(1, 0);
        let base = signature >> 8 & 0xf;
        let family = if base == 0xf { base + (signature >> 20 & 0xff) } else { base };
        let high = if base == 0xf || base == 6 { signature >> 12 & 0xf0 } else { 0 };
        let [subleaves, ebx, _, edx] = within(7, 0);
        let second = if subleaves >= 2 { within(7, 2) } else { [0; 4] };
        let leaf_21 = within(0x8000_0021, 0);
        let leaf_7 = Leaf7Edx::from_bits_truncate(edx);
        let has_msr = leaf_7.contains(Leaf7Edx::ARCH_CAPABILITIES);
        Self {
            vendor,
            family,
            model: high | signature >> 4 & 0xf,
            stepping: signature & 0xf,
            rtm: ebx & RTM != 0,
            bhi_ctrl: second[3] & BHI_CTRL != 0,
            leaf_7,
            leaf_8: Leaf8Ebx::from_bits_truncate(within(0x8000_0008, 0)[1]),
            leaf_21: Leaf21Eax::from_bits_truncate(leaf_21[0]),
            tsa_no: leaf_21[2] & TSA_NO == TSA_NO,
            arch_capabilities: if has_msr {
                ArchCapabilities::from_bits_truncate(rdmsr(ARCH_CAPABILITIES))
            } else {
                ArchCapabilities::empty()
            },
        }
    }

    /// Whether it has IA32_SPEC_CTRL.
    pub(crate) fn has_spec_ctrl(&self) -> bool {
        self.leaf_7.intersects(Leaf7Edx::SPEC_CTRL | Leaf7Edx::STIBP | Leaf7Edx::SSBD)
            || self.leaf_8.intersects(Leaf8Ebx::IBRS | Leaf8Ebx::STIBP | Leaf8Ebx::SSBD)
    }

    /// Returns IA32_ARCH_CAPABILITIES as guests see it: what the CPU says about vulnerabilities, without the bits that
    /// announce other MSRs. Microcode against GDS counts as immunity. A guest has no guests, so what concerns entries and
    /// nested tables it need not care about.
    #[must_use]
    pub fn arch_capabilities_of_guests(&self) -> u64 {
        let hidden = ArchCapabilities::TSX_CTRL | ArchCapabilities::GDS_CTRL;
        let immune = ArchCapabilities::SKIP_L1DFL_VMENTRY | ArchCapabilities::IF_PSCHANGE_MC_NO;
        let mut shown = (self.arch_capabilities - hidden) | immune;
        shown.set(
            ArchCapabilities::GDS_NO,
            self.says(ArchCapabilities::GDS_NO) || self.says(ArchCapabilities::GDS_CTRL),
        );
        shown.bits()
    }

    /// AMD's, or Hygon's, which are alike.
    pub(crate) fn is_amd(&self) -> bool {
        matches!(self.vendor, Vendor::Amd | Vendor::Hygon)
    }

    /// Whether IA32_ARCH_CAPABILITIES says this.
    pub(crate) fn says(&self, bit: ArchCapabilities) -> bool {
        self.arch_capabilities.contains(bit)
    }
}
