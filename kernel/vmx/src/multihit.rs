//! Which CPUs have the erratum "iTLB multihit" (CVE-2018-12207): a guest that changes the size of an executable page can
//! stop the whole machine by a machine check. `memory::split` is the way around it.

/// IA32_ARCH_CAPABILITIES (SDM vol. 4, table 2-2). It exists if CPUID leaf 7 has bit 29 in EDX.
pub(crate) const ARCH_CAPABILITIES: u32 = 0x10a;
/// IF_PSCHANGE_MC_NO in it: the CPU does not have the erratum.
const IF_PSCHANGE_MC_NO: u64 = 1 << 6;

/// Models of family 6 that do not have it, though most of them do not say so.
const WITHOUT: [u8; 19] = [
    0x1c, 0x26, 0x27, 0x35, 0x36, // Bonnell, Saltwell
    0x37, 0x4a, 0x4d, 0x5a, // Silvermont
    0x4c, 0x75, // Airmont
    0x5c, 0x5f, 0x7a, // Goldmont, Goldmont Plus
    0x86, 0x96, 0x9c, // Tremont
    0x57, 0x85, // Knights Landing, Knights Mill
];

/// A CPU as CPUID and IA32_ARCH_CAPABILITIES describe it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processor {
    /// Its vendor is GenuineIntel.
    pub intel: bool,
    /// Family and model, each with the extended part (SDM vol. 2A, CPUID leaf 1).
    pub family: u8,
    pub model: u8,
    /// The MSR, if it has it.
    pub arch_capabilities: Option<u64>,
}

impl Processor {
    /// Whether it has the erratum. A CPU of Intel's that is not known is taken for one that has it.
    pub fn has_itlb_multihit(self) -> bool {
        let denies = self.arch_capabilities.is_some_and(|value| value & IF_PSCHANGE_MC_NO != 0);
        self.intel && self.family == 6 && !denies && !WITHOUT.contains(&self.model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_with_and_without_the_erratum() {
        let cpus = [
            ("Xeon E5 v3 (Haswell)", 0x3f, None, true),
            ("Xeon E5 v4 (Broadwell)", 0x4f, None, true),
            ("Xeon Scalable (Skylake), and Bochs' skylake_x", 0x55, None, true),
            ("Xeon Scalable 2 (Cascade Lake): says something, but not that", 0x55, Some(0x2b), true),
            ("Xeon Scalable 3 (Ice Lake)", 0x6a, Some(IF_PSCHANGE_MC_NO | 0x2b), false),
            ("Xeon Scalable 4 (Sapphire Rapids)", 0x8f, Some(IF_PSCHANGE_MC_NO | 0x2b), false),
            ("Atom C3000 (Denverton)", 0x5f, Some(0), false),
            ("Atom P5900 (Snow Ridge)", 0x86, Some(0), false),
            ("Xeon Phi x200 (Knights Landing)", 0x57, None, false),
            ("Core i7 (Kaby Lake)", 0x9e, None, true),
        ];
        for (name, model, arch_capabilities, expected) in cpus {
            let cpu = Processor { intel: true, family: 6, model, arch_capabilities };
            assert_eq!(cpu.has_itlb_multihit(), expected, "{name}");
            assert!(!Processor { intel: false, ..cpu }.has_itlb_multihit(), "another vendor's");
        }
    }
}
