//! What a CPU has for machine checks (SDM vol. 3B, "Machine-Check MSRs"; AMD APM vol. 2, "Machine Check MSRs").

use crate::{GlobalCapabilities, Model};

const FEATURE_CONTROL: u32 = 0x3a;
const MCG_CAP: u32 = 0x179;
/// IA32_FEATURE_CONTROL: it is locked, and local machine checks are allowed.
const LOCAL_ALLOWED: u64 = 1 << 20 | 1;

/// Most banks that are used. Those of Intel's and AMD's CPUs have their registers at 0x400 up to here.
pub const MAX_BANKS: u8 = 32;

/// Whether a machine check goes to all cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broadcast {
    /// AMD.
    Never,
    /// Intel, unless the machine check is local.
    Always,
    /// An emulator.
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
            (true, _) => Broadcast::Perhaps,
            (false, true) => Broadcast::Never,
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
    fn amd_s_go_to_one_core_an_emulator_s_anywhere_and_the_p6_keeps_its_first_bank() {
        assert_eq!(find(b"AuthenticAMD", 0x00a0_0f11, 0, BOTH, 5, None).map(|s| s.broadcast), Some(Broadcast::Never));
        let guest = find(b"AuthenticAMD", 0x00a0_0f11, 1 << 31, BOTH, 10, None).expect("it has banks");
        assert_eq!(guest.broadcast, Broadcast::Perhaps);
        assert_eq!(find(b"GenuineIntel", 0x6b1, 0, BOTH, 5, None).map(|s| s.first_control), Some(1));
        assert_eq!(find(b"GenuineIntel", 0x6b1, 1 << 31, BOTH, 5, None).map(|s| s.first_control), Some(0));
    }
}
