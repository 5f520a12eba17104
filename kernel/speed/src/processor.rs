//! A processor as CPUID describes it, as far as its speed goes.

use bitflags::bitflags;

/// Who made the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// Intel.
    Intel,
    /// AMD, or Hygon, whose processors are alike.
    Amd,
    /// Somebody else: nothing is read or written.
    Other,
}

bitflags! {
    /// What CPUID promises.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Features: u32 {
        /// There is a hypervisor beneath (leaf 1, ECX 31).
        const VIRTUAL = 1 << 0;
        /// IA32_PERF_CTL and IA32_PERF_STATUS (leaf 1, ECX 7: EIST).
        const PERF_CTL = 1 << 1;
        /// IA32_THERM_STATUS (leaf 1, EDX 22: ACPI).
        const THERMAL = 1 << 2;
        /// Turbo, and it is not switched off (leaf 6, EAX 1).
        const TURBO = 1 << 3;
        /// The thermal registers tell of the power limit (leaf 6, EAX 4: PLN).
        const POWER_LIMIT = 1 << 4;
        /// IA32_PACKAGE_THERM_STATUS (leaf 6, EAX 6: PTM).
        const PACKAGE_THERMAL = 1 << 5;
        /// The base registers of HWP (leaf 6, EAX 7).
        const HWP = 1 << 6;
        /// HWP has an energy-performance preference (leaf 6, EAX 10).
        const EPP = 1 << 7;
        /// IA32_APERF and IA32_MPERF (leaf 6, ECX 0).
        const APERF = 1 << 8;
        /// IA32_ENERGY_PERF_BIAS (leaf 6, ECX 3).
        const EPB = 1 << 9;
        /// AMD: P-states by MSRs (leaf 0x8000_0007, EDX 7).
        const P_STATES = 1 << 10;
        /// AMD: core performance boost (leaf 0x8000_0007, EDX 9).
        const BOOST = 1 << 11;
        /// AMD: CPPC by MSRs (leaf 0x8000_0008, EBX 27).
        const CPPC = 1 << 12;
        /// MONITOR and MWAIT (leaf 1, ECX 3), and leaf 5, which has their states.
        const MWAIT = 1 << 13;
    }
}

/// A processor. All cores are taken to be alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Who made it.
    pub vendor: Vendor,
    /// With the extended part (SDM vol. 2A, CPUID leaf 1).
    pub family: u32,
    /// With the extended part.
    pub model: u32,
    /// What it has.
    pub features: Features,
}

impl Processor {
    /// Asks CPUID (leaf, sub-leaf). A leaf that is not there has no features.
    #[must_use]
    pub fn new(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Self {
        let [last, b, c, d] = cpuid(0, 0);
        let vendor = match [b, d, c].map(u32::to_le_bytes).as_flattened() {
            b"GenuineIntel" => Vendor::Intel,
            b"AuthenticAMD" | b"HygonGenuine" => Vendor::Amd,
            _ => Vendor::Other,
        };
        let extended = cpuid(0x8000_0000, 0)[0];
        let within = |leaf: u32| {
            let known = if leaf < 0x8000_0000 { leaf <= last } else { (leaf..=0x8000_ffff).contains(&extended) };
            if known { cpuid(leaf, 0) } else { [0; 4] }
        };
        let [signature, _, leaf_1_ecx, leaf_1_edx] = within(1);
        let base = signature >> 8 & 0xf;
        // Both parts are small.
        let family = if base == 0xf { base.saturating_add(signature >> 20 & 0xff) } else { base };
        let high = if base == 0xf || base == 6 { signature >> 12 & 0xf0 } else { 0 };
        let [leaf_6_eax, _, leaf_6_ecx, _] = within(6);
        let (power_edx, size_ebx) = (within(0x8000_0007)[3], within(0x8000_0008)[1]);
        let monitor = if last >= 5 { leaf_1_ecx } else { 0 };
        let (intel, amd) = (vendor == Vendor::Intel, vendor == Vendor::Amd);
        let mut features = Features::empty();
        for (feature, maker, word, bit) in [
            (Features::VIRTUAL, true, leaf_1_ecx, 31),
            (Features::MWAIT, true, monitor, 3),
            (Features::PERF_CTL, intel, leaf_1_ecx, 7),
            (Features::THERMAL, intel, leaf_1_edx, 22),
            (Features::TURBO, intel, leaf_6_eax, 1),
            (Features::POWER_LIMIT, intel, leaf_6_eax, 4),
            (Features::PACKAGE_THERMAL, intel, leaf_6_eax, 6),
            (Features::HWP, intel, leaf_6_eax, 7),
            (Features::EPP, intel, leaf_6_eax, 10),
            (Features::APERF, intel || amd, leaf_6_ecx, 0),
            (Features::EPB, intel, leaf_6_ecx, 3),
            (Features::P_STATES, amd, power_edx, 7),
            (Features::BOOST, amd, power_edx, 9),
            (Features::CPPC, amd, size_ebx, 27),
        ] {
            features.set(feature, maker && word >> bit & 1 != 0);
        }
        Self { vendor, family, model: high | signature >> 4 & 0xf, features }
    }

    /// Whether it has all of these.
    #[must_use]
    pub const fn has(&self, features: Features) -> bool {
        self.features.contains(features)
    }
}
