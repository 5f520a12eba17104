//! How this CPU notices split and bus locks, and what is written to switch that on and off.
//!
//! - MSR_TEST_CTRL bit 29: a split lock raises #AC(0) (SDM vol. 4 table 2-2, vol. 3A 10.1.2.3). IA32_CORE_CAPABILITIES bit
//!   5 says that it is there. The register belongs to the physical core: its threads share it.
//! - The secondary control "VMM bus-lock detection": a bus lock exits after the instruction (vol. 3C 25.6.2, 28.2).
//!
//! A CPU that has both has both switched on: the second also notices locked accesses to memory that is not write-back.

use crate::controls::{Allowed, Secondary};
use machine::cpuid::Regs;

/// MSR_TEST_CTRL.
pub const TEST_CTRL: u32 = 0x33;
/// IA32_CORE_CAPABILITIES.
const CORE_CAPABILITIES: u32 = 0xcf;
/// MSR_TEST_CTRL: split locks raise #AC.
const SPLIT_LOCK_DETECT: u64 = 1 << 29;
/// IA32_CORE_CAPABILITIES: that bit exists.
const HAS_SPLIT_LOCK_DETECT: u64 = 1 << 5;
/// CPUID leaf 7 EDX: IA32_CORE_CAPABILITIES exists.
const HAS_CORE_CAPABILITIES: u32 = 1 << 30;
/// CPUID leaf 1 ECX: this is a virtual machine.
const HYPERVISOR: u32 = 1 << 31;
/// Models of family 6 that have the bit in MSR_TEST_CTRL, and no IA32_CORE_CAPABILITIES to say so: Ice Lake (server X and D,
/// client L). Linux knows the same (arch/x86/kernel/cpu/bus_lock.c).
const UNTOLD: [u32; 3] = [0x6a, 0x6c, 0x7e];

/// What this CPU has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitLock {
    /// A split lock can raise #AC.
    pub alignment_check: bool,
    /// A bus lock can exit.
    pub bus_lock_exiting: bool,
}

/// A write that switches something on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// The value of MSR_TEST_CTRL.
    TestCtrl(u64),
    /// The bits that the secondary controls have besides the others.
    Secondary(Secondary),
}

impl SplitLock {
    /// Finds it out. `cpuid` returns the registers of a leaf and sub-leaf. `rdmsr` is called for MSRs that exist.
    pub fn find(cpuid: impl Fn(u32, u32) -> Regs, rdmsr: impl Fn(u32) -> u64, secondary: Allowed) -> Self {
        let (first, one) = (cpuid(0, 0), cpuid(1, 0));
        let told = first.eax >= 7 && cpuid(7, 0).edx & HAS_CORE_CAPABILITIES != 0;
        let alignment_check = if told {
            rdmsr(CORE_CAPABILITIES) & HAS_SPLIT_LOCK_DETECT != 0
        } else {
            // A virtual machine may have the model's number and not its MSRs.
            is_intel(first)
                && one.ecx & HYPERVISOR == 0
                && model_of_family_6(one.eax).is_some_and(|m| UNTOLD.contains(&m))
        };
        let bus_lock = Secondary::BUS_LOCK_DETECTION.bits();
        Self { alignment_check, bus_lock_exiting: secondary.may_be_one & bus_lock != 0 }
    }

    /// What is written, in this order, to have split and bus locks noticed or not. `test_ctrl` is MSR_TEST_CTRL as it was
    /// before the first of these writes.
    ///
    /// The MSR is the last to be set and the first to be cleared: it takes effect at once, the control at the next entry.
    pub fn writes(self, on: bool, test_ctrl: u64) -> [Option<Write>; 2] {
        let value = test_ctrl & !SPLIT_LOCK_DETECT | if on { SPLIT_LOCK_DETECT } else { 0 };
        let msr = self.alignment_check.then_some(Write::TestCtrl(value));
        let bits = if on { Secondary::BUS_LOCK_DETECTION } else { Secondary::empty() };
        let control = self.bus_lock_exiting.then_some(Write::Secondary(bits));
        if on { [control, msr] } else { [msr, control] }
    }
}

fn is_intel(leaf_0: Regs) -> bool {
    (leaf_0.ebx, leaf_0.edx, leaf_0.ecx) == (0x756e_6547, 0x4965_6e69, 0x6c65_746e)
}

/// The display model of CPUID.1:EAX if the display family is 6 (SDM vol. 2A "CPUID").
fn model_of_family_6(eax: u32) -> Option<u32> {
    (eax >> 8 & 0xf == 6).then_some(eax >> 4 & 0xf | eax >> 12 & 0xf0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A CPU as far as it is read: CPUID.1 EAX and ECX, CPUID.7 EDX, IA32_CORE_CAPABILITIES, the upper half of
    /// IA32_VMX_PROCBASED_CTLS2; and what it has. Where only one bit of a register is known here, the others are zero.
    struct Cpu {
        name: &'static str,
        signature: u32,
        ecx_1: u32,
        edx_7: u32,
        core_capabilities: Option<u64>,
        secondary: u32,
        has: SplitLock,
    }

    const NEITHER: SplitLock = SplitLock { alignment_check: false, bus_lock_exiting: false };
    const ALIGNMENT: SplitLock = SplitLock { alignment_check: true, bus_lock_exiting: false };
    const BOTH: SplitLock = SplitLock { alignment_check: true, bus_lock_exiting: true };

    /// CPUID and MSR 0xCF of the first, second, third and fifth are dumps of libvirt's tests/cputestdata. CPUID of the last four is
    /// from other published dumps; of their control words bit 30 alone is said here.
    const CPUS: &[Cpu] = &[
        Cpu {
            name: "Xeon Gold 6148 (Skylake-SP)",
            signature: 0x5_0654,
            ecx_1: 0x7ffe_fbff,
            edx_7: 0,
            core_capabilities: None,
            secondary: 0x005f_fcff,
            has: NEITHER,
        },
        Cpu {
            name: "Xeon Platinum 8268 (Cascade Lake)",
            signature: 0x5_0656,
            ecx_1: 0x7ffe_fbff,
            edx_7: 0xbc00_0400,
            core_capabilities: None,
            secondary: 0x005f_fcff,
            has: NEITHER,
        },
        Cpu {
            name: "Ice Lake-SP",
            signature: 0x6_06a0,
            ecx_1: 0x7ffe_fbff,
            edx_7: 0xbc00_0012,
            core_capabilities: None,
            secondary: 0x005f_fcff,
            has: ALIGNMENT,
        },
        Cpu {
            name: "an Ice Lake-SP with IA32_CORE_CAPABILITIES and without the bit in it",
            signature: 0x6_06a6,
            ecx_1: 0x7ffe_fbff,
            edx_7: 0xfc00_0012,
            core_capabilities: Some(0),
            secondary: 0x005f_fcff,
            has: NEITHER,
        },
        Cpu {
            name: "Atom P5362 (Snow Ridge, Tremont)",
            signature: 0x8_0665,
            ecx_1: 0x4ff8_ebff,
            edx_7: 0xfc00_0400,
            core_capabilities: Some(0x60),
            secondary: 0,
            has: ALIGNMENT,
        },
        Cpu {
            name: "Sapphire Rapids",
            signature: 0x8_06f8,
            ecx_1: 0,
            edx_7: 1 << 30,
            core_capabilities: Some(1 << 5),
            secondary: 1 << 30,
            has: BOTH,
        },
        Cpu {
            name: "a guest of another hypervisor on Ice Lake-SP",
            signature: 0x6_06a6,
            ecx_1: 0xfffe_fbff,
            edx_7: 0xbc00_0012,
            core_capabilities: None,
            secondary: 0x0001_fcff,
            has: NEITHER,
        },
        Cpu {
            name: "Xeon E5-2699 v3 (Haswell-EP)",
            signature: 0x3_06f2,
            ecx_1: 0x7ffe_fbff,
            edx_7: 0x9c00_0400,
            core_capabilities: None,
            secondary: 0,
            has: NEITHER,
        },
        Cpu {
            name: "Xeon E5-2620 v4 (Broadwell-EP)",
            signature: 0x4_06f1,
            ecx_1: 0x7ffe_fbff,
            edx_7: 0x9c00_0400,
            core_capabilities: None,
            secondary: 0,
            has: NEITHER,
        },
        Cpu {
            name: "a Goldmont Plus",
            signature: 0x7_06a8,
            ecx_1: 0x4ff8_ebbf,
            edx_7: 0xac00_0400,
            core_capabilities: None,
            secondary: 0,
            has: NEITHER,
        },
        Cpu {
            name: "Xeon Platinum 8351N (Ice Lake-SP)",
            signature: 0x6_06a6,
            ecx_1: 0x7ffe_fbff,
            edx_7: 0xbc04_0412,
            core_capabilities: None,
            secondary: 0,
            has: ALIGNMENT,
        },
    ];

    fn find(cpu: &Cpu, vendor: u32) -> SplitLock {
        let cpuid = |leaf, _| match leaf {
            0 => Regs { eax: 0x1b, ebx: vendor, ecx: 0x6c65_746e, edx: 0x4965_6e69 },
            1 => Regs { eax: cpu.signature, ecx: cpu.ecx_1, ..Regs::default() },
            7 => Regs { edx: cpu.edx_7, ..Regs::default() },
            _ => panic!("leaf {leaf:#x} is not read"),
        };
        let rdmsr = |number| match cpu.core_capabilities {
            Some(value) if number == 0xcf => value,
            _ => panic!("{}: MSR {number:#x} is not there", cpu.name),
        };
        SplitLock::find(cpuid, rdmsr, Allowed { must_be_one: 0, may_be_one: cpu.secondary })
    }

    #[test]
    fn each_cpu_has_what_its_registers_say() {
        for cpu in CPUS {
            assert_eq!(find(cpu, 0x756e_6547), cpu.has, "{}", cpu.name);
        }
    }

    #[test]
    fn another_vendors_model_with_the_same_number_is_another_model() {
        let ice_lake = &CPUS[2];
        assert_eq!(find(ice_lake, 0x6874_7541), NEITHER);
    }

    #[test]
    fn a_cpu_without_leaf_7_is_not_asked_for_it() {
        let found = SplitLock::find(
            |leaf, _| match leaf {
                0 | 1 => Regs::default(),
                _ => panic!("leaf {leaf:#x} is not there"),
            },
            |_| panic!("no MSR"),
            Allowed::default(),
        );
        assert_eq!(found, NEITHER);
    }

    #[test]
    fn exactly_one_bit_of_each_is_written_and_the_msr_is_set_last_and_cleared_first() {
        let (on, off) = (Secondary::from_bits_retain(1 << 30), Secondary::empty());
        for base in [0, 0x8000_0000, 0xa000_0001] {
            let (clear, set) = (base & !0x2000_0000, base | 0x2000_0000);
            assert_eq!(BOTH.writes(true, base), [Some(Write::Secondary(on)), Some(Write::TestCtrl(set))]);
            assert_eq!(BOTH.writes(false, base), [Some(Write::TestCtrl(clear)), Some(Write::Secondary(off))]);
            assert_eq!(ALIGNMENT.writes(true, base), [None, Some(Write::TestCtrl(set))]);
            assert_eq!(ALIGNMENT.writes(false, base), [Some(Write::TestCtrl(clear)), None]);
        }
        assert_eq!(NEITHER.writes(true, 0), [None, None]);
        assert_eq!(NEITHER.writes(false, 0), [None, None]);
    }
}
