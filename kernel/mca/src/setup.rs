//! What a CPU has for machine checks (SDM vol. 3B, "Machine-Check MSRs"; AMD APM vol. 2, "Machine Check MSRs").

use crate::{GlobalCapabilities, Model};

const FEATURE_CONTROL: u32 = 0x3a;
const MCG_CAP: u32 = 0x179;
/// IA32_MCG_STATUS.
pub const MCG_STATUS: u32 = 0x17a;
const MCG_CTL: u32 = 0x17b;
const MCG_EXT_CTL: u32 = 0x4d0;
/// LMCE_EN: machine checks that can be local go to one core.
const LMCE_EN: u64 = 1;
/// IA32_FEATURE_CONTROL: it is locked, and local machine checks are allowed.
const LOCAL_ALLOWED: u64 = 1 << 20 | 1;

/// Most banks that are used. Those of Intel's and AMD's CPUs have their registers at 0x400 up to here.
pub const MAX_BANKS: u8 = 32;

/// A register of a bank (SDM vol. 3B 16.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// IA32_MCi_CTL.
    Control = 0,
    /// IA32_MCi_STATUS.
    Status = 1,
    /// IA32_MCi_ADDR.
    Address = 2,
    /// IA32_MCi_MISC.
    Further = 3,
}

/// Returns the number of a bank's register.
#[must_use]
pub const fn at(bank: u8, register: Register) -> u32 {
    (bank as u32).saturating_mul(4).saturating_add(register as u32).saturating_add(0x400)
}

/// A write to an MSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Number of the MSR.
    pub msr: u32,
    /// The bits that are set. All others are cleared, or stay if `keeps`.
    pub bits: u64,
    /// The MSR is read first, and its other bits stay.
    pub keeps: bool,
}

/// Whether a machine check goes to all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broadcast {
    /// AMD, and QEMU and KVM with a processor of AMD's.
    Never,
    /// Intel, unless the machine check is local.
    Always,
    /// An emulator with a processor of Intel's.
    Perhaps,
}

/// What the CPU has. All cores are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// MCG_CAP.
    pub capabilities: GlobalCapabilities,
    /// How a status is read.
    pub model: Model,
    /// Whether all cores get a machine check.
    pub broadcast: Broadcast,
    /// Machine checks may be local (LMCE).
    pub local: bool,
    /// The first bank whose control register is written. The P6 family's first one belongs to the firmware (SDM vol. 3B
    /// 16.3.2.1).
    pub first_control: u8,
}

impl Setup {
    /// Asks CPUID (leaf, sub-leaf; EAX, EBX, ECX, EDX) and, if CPUID says that they exist, reads MCG_CAP and, where that has
    /// local machine checks, IA32_FEATURE_CONTROL with `rdmsr`. `None`: the CPU has no machine checks.
    #[must_use]
    pub fn find(cpuid: impl Fn(u32, u32) -> [u32; 4], rdmsr: impl Fn(u32) -> u64) -> Option<Self> {
        const MCE: u32 = 1 << 7;
        const MCA: u32 = 1 << 14;
        let [signature, _, ecx, edx] = cpuid(1, 0);
        if edx & MCE == 0 || edx & MCA == 0 {
            return None;
        }
        let [_, b, c, d] = cpuid(0, 0);
        let amd = matches!([b, d, c].map(u32::to_le_bytes).as_flattened(), b"AuthenticAMD" | b"HygonGenuine");
        let [extended, ..] = cpuid(0x8000_0000, 0);
        let [_, recovery, ..] = if extended >= 0x8000_0007 { cpuid(0x8000_0007, 0) } else { [0; 4] };
        let capabilities = GlobalCapabilities::from_bits(rdmsr(MCG_CAP));
        let emulated = ecx >> 31 != 0;
        let broadcast = match (emulated, amd) {
            (_, true) => Broadcast::Never,
            (true, false) => Broadcast::Perhaps,
            (false, false) => Broadcast::Always,
        };
        let local = capabilities.local() && rdmsr(FEATURE_CONTROL) & LOCAL_ALLOWED == LOCAL_ALLOWED;
        let model = signature >> 4 & 0xf | signature >> 12 & 0xf0;
        let p6 = !amd && signature >> 8 & 0xf == 6 && model < 0x1a && !emulated;
        Some(Self {
            capabilities,
            model: Model::new(capabilities, amd.then_some(recovery)),
            broadcast,
            local,
            first_control: p6.into(),
        })
    }

    /// What switches machine checks on, on each core, in this order (SDM vol. 3B 16.8): all errors of all banks, each bank's status
    /// cleared after that, local machine checks, and the end of a machine check that was under way. CR4.MCE comes after it. Each MSR that is
    /// named exists.
    pub fn switch_on(&self) -> impl Iterator<Item = Write> {
        let write = |msr, bits| Write { msr, bits, keeps: false };
        let all = self.capabilities.control().then_some(write(MCG_CTL, u64::MAX));
        let first = self.first_control;
        let banks = self.banks().flat_map(move |bank| {
            let control = (bank >= first).then_some(write(at(bank, Register::Control), u64::MAX));
            control.into_iter().chain([write(at(bank, Register::Status), 0)])
        });
        let local = self.local.then_some(Write { msr: MCG_EXT_CTL, bits: LMCE_EN, keeps: true });
        all.into_iter().chain(banks).chain(local).chain([write(MCG_STATUS, 0)])
    }

    /// The banks that are used.
    #[must_use]
    pub fn banks(&self) -> core::ops::Range<u8> {
        0..self.capabilities.banks().min(MAX_BANKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: u32 = 1 << 7 | 1 << 14;

    /// A CPU with this vendor name, signature, ECX and EDX of leaf 1, MCG_CAP and IA32_FEATURE_CONTROL.
    fn find(vendor: &[u8; 12], signature: u32, ecx: u32, edx: u32, cap: u64, control: Option<u64>) -> Option<Setup> {
        let word = |at: usize| u32::from_le_bytes(vendor[at..at + 4].try_into().expect("four bytes"));
        let cpuid = |leaf, _| match leaf {
            0 => [1, word(0), word(8), word(4)],
            1 => [signature, 0, ecx, edx],
            0x8000_0000 => [0x8000_0007, 0, 0, 0],
            0x8000_0007 => [0, 3, 0, 0],
            leaf => panic!("leaf {leaf:#x}"),
        };
        Setup::find(cpuid, |msr| match (msr, control) {
            (MCG_CAP, _) => cap,
            (FEATURE_CONTROL, Some(control)) => control,
            (msr, _) => panic!("MSR {msr:#x} is not there"),
        })
    }

    #[test]
    fn without_machine_checks_no_register_is_read() {
        for edx in [0, 1 << 7, 1 << 14] {
            assert_eq!(Setup::find(|leaf, _| [0, 0, 0, if leaf == 1 { edx } else { 0 }], |_| panic!("read")), None);
        }
    }

    #[test]
    fn a_server_of_intel_s_has_local_ones_if_the_firmware_allows_it_and_locked_that() {
        const LMCE: u64 = 1 << 27;
        let server = |cap, control| find(b"GenuineIntel", 0x0005_0654, 0, BOTH, cap, control).expect("it has banks");
        let with = |control| server(LMCE | 20, Some(control));
        assert!(with(LOCAL_ALLOWED).local);
        assert!(!with(1).local && !with(1 << 20).local);
        assert_eq!((with(1).broadcast, with(1).first_control, with(1).banks()), (Broadcast::Always, 0, 0..20));
        assert_eq!(server(40, None).banks(), 0..MAX_BANKS, "without LMCE the other register is not read");
    }

    #[test]
    fn amd_s_go_to_one_core_an_emulator_s_of_intel_anywhere_and_the_p6_keeps_its_first_bank() {
        let of = |vendor, emulated| {
            find(vendor, 0x00a0_0f11, u32::from(emulated) << 31, BOTH, 10, None).map(|setup| setup.broadcast)
        };
        assert_eq!([false, true].map(|emulated| of(b"AuthenticAMD", emulated)), [Some(Broadcast::Never); 2]);
        assert_eq!(of(b"GenuineIntel", true), Some(Broadcast::Perhaps));
        assert_eq!(find(b"GenuineIntel", 0x6b1, 0, BOTH, 5, None).map(|s| s.first_control), Some(1));
        assert_eq!(find(b"GenuineIntel", 0x6b1, 1 << 31, BOTH, 5, None).map(|s| s.first_control), Some(0));
    }

    /// MCG_CAP of processors, as mcelog has printed it in reports that people have published, with the signature's family and model.
    /// LMCE needs the firmware's consent, which those reports do not have: each is tried with it and without.
    struct Cpu {
        name: &'static str,
        vendor: &'static [u8; 12],
        signature: u32,
        cap: u64,
        banks: u8,
        global_control: bool,
        can_be_local: bool,
    }

    const fn intel(name: &'static str, model: u32, cap: u64, banks: u8, can_be_local: bool) -> Cpu {
        let signature = 6 << 8 | (model & 0xf) << 4 | (model >> 4) << 16;
        Cpu { name, vendor: b"GenuineIntel", signature, cap, banks, global_control: false, can_be_local }
    }

    const CPUS: &[Cpu] = &[
        intel("Lynnfield (model 30)", 30, 0x1c09, 9, false),
        intel("Westmere-EP (model 44)", 44, 0x1c09, 9, false),
        intel("Westmere-EX (model 47)", 47, 0x0100_0c18, 24, false),
        intel("Sandy Bridge-EP (model 45)", 45, 0x0100_0c14, 20, false),
        intel("Avoton (model 77)", 77, 0x0806, 6, false),
        intel("Broadwell-DE (model 86)", 86, 0x0100_0c16, 22, false),
        intel("Broadwell-EP (model 79)", 79, 0x0700_0c16, 22, false),
        intel("Skylake-SP (model 85)", 85, 0x0f00_0814, 20, true),
        intel("Skylake-SP, an early one (model 85)", 85, 0x0600_0c14, 20, false),
        // Not from a report: QEMU's, which is AMD's by its vendor. Its register has all bits of the global control.
        Cpu {
            name: "QEMU's",
            vendor: b"AuthenticAMD",
            signature: 0x60fb1,
            cap: 0x010a | 1 << 24,
            banks: 10,
            global_control: true,
            can_be_local: false,
        },
    ];

    #[test]
    fn every_error_of_every_bank_is_opened_before_its_status_is_cleared_and_the_check_ends_last() {
        for cpu in CPUS {
            for allowed in [0, 1, LOCAL_ALLOWED] {
                let setup = find(cpu.vendor, cpu.signature, 0, BOTH, cpu.cap, Some(allowed)).expect(cpu.name);
                let local = cpu.can_be_local && allowed == LOCAL_ALLOWED;
                // The manual's numbers, not the names above.
                let mut expected = Vec::new();
                if cpu.global_control {
                    expected.push((0x17b, u64::MAX, false));
                }
                for bank in 0..u32::from(cpu.banks) {
                    expected.extend([(0x400 + 4 * bank, u64::MAX, false), (0x401 + 4 * bank, 0, false)]);
                }
                if local {
                    expected.push((0x4d0, 1, true));
                }
                expected.push((0x17a, 0, false));
                let writes: Vec<_> = setup.switch_on().map(|w| (w.msr, w.bits, w.keeps)).collect();
                assert_eq!(writes, expected, "{}, IA32_FEATURE_CONTROL {allowed:#x}", cpu.name);
            }
        }
    }

    #[test]
    fn the_p6_s_first_bank_is_cleared_and_not_opened_and_no_bank_beyond_the_last_is_named() {
        let p6 = find(b"GenuineIntel", 0x6b1, 0, BOTH, 5, None).expect("it has banks");
        let msrs: Vec<_> = p6.switch_on().map(|write| write.msr).collect();
        assert_eq!(msrs, [0x401, 0x404, 0x405, 0x408, 0x409, 0x40c, 0x40d, 0x410, 0x411, 0x17a]);
        let many = find(b"GenuineIntel", 0x0005_0654, 0, BOTH, 255, None).expect("it has banks");
        assert_eq!(
            many.switch_on().map(|write| write.msr).filter(|msr| *msr != 0x17a && *msr != 0x17b).max(),
            Some(0x47d)
        );
    }
}
