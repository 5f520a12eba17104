//! Real processors, and each register that is written for them, with its value and in its order.
//!
//! The words of CPUID are those of dumps that people have published: each processor as its firmware had set it up. MSRs are from published
//! output of turbostat where `measured` is true. For the others the ratios are those of the data sheet, in the form that the manual
//! describes.

use std::collections::BTreeMap;

use super::*;
use crate::meter::{APERF, MPERF, PACKAGE_THERM_STATUS, SMI_COUNT, THERM_STATUS};
use crate::microcode::REVISION;
use crate::raise::{
    CPPC_CAPABILITIES, CPPC_ENABLE, CPPC_REQUEST, ENERGY_PERF_BIAS, HWCR, HWP_CAPABILITIES, HWP_REQUEST, MISC_ENABLE,
    P_STATE_0, P_STATE_CONTROL, P_STATE_LIMIT, PERF_CTL, PLATFORM_INFO, PM_ENABLE, TURBO_RATIO_LIMIT,
};

const INTEL: &[u8; 12] = b"GenuineIntel";
const AMD: &[u8; 12] = b"AuthenticAMD";

struct Cpu {
    name: &'static str,
    vendor: &'static [u8; 12],
    /// EAX, ECX and EDX of leaf 1.
    leaf_1: [u32; 3],
    /// EAX and ECX of leaf 6.
    leaf_6: [u32; 2],
    /// EDX of leaf 0x8000_0007, EBX of leaf 0x8000_0008.
    extended: [u32; 2],
    msrs: &'static [(u32, u64)],
    measured: bool,
    written: &'static [(u32, u64)],
    asked: Result<Asked, Left>,
    turbo: Turbo,
}

/// IA32_MISC_ENABLE with SpeedStep on, as on most servers.
const USUAL: (u32, u64) = (MISC_ENABLE, 0x0085_0089);
/// The same with turbo switched off in the firmware's setup.
const STEADY: (u32, u64) = (MISC_ENABLE, 0x40_0085_0089);
const EDX: u32 = 0xbfeb_fbff;
const AMD_EDX: u32 = 0x178b_fbff;

const fn ratio(ratio: u8, base: u8, unit: u16) -> Result<Asked, Left> {
    Ok(Asked::Ratio { ratio, base, unit })
}

const NONE: Cpu = Cpu {
    name: "",
    vendor: INTEL,
    leaf_1: [0; 3],
    leaf_6: [0; 2],
    extended: [0x100, 0],
    msrs: &[],
    measured: false,
    written: &[],
    asked: Err(Left::Nothing),
    turbo: Turbo::Absent,
};

const CPUS: &[Cpu] = &[
    Cpu {
        name: "Xeon X5667 (Westmere-EP), 3.07 GHz, without EPB",
        leaf_1: [0x206c1, 0x029e_e3ff, EDX],
        leaf_6: [0x7, 0x1],
        msrs: &[USUAL, (PLATFORM_INFO, 0x0c00_6001_1700), (TURBO_RATIO_LIMIT, 0x1919_1a1a), (PERF_CTL, 0x17)],
        written: &[(PERF_CTL, 0x1a)],
        asked: ratio(26, 23, 133),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "Xeon W3670 (Westmere), 3.2 GHz, turbo switched off",
        leaf_1: [0x206c2, 0x029e_e3ff, EDX],
        leaf_6: [0x5, 0x9],
        msrs: &[STEADY, (PLATFORM_INFO, 0x0c00_7001_1800), (PERF_CTL, 0x18), (ENERGY_PERF_BIAS, 6)],
        written: &[(PERF_CTL, 0x18), (ENERGY_PERF_BIAS, 0)],
        asked: ratio(24, 24, 133),
        turbo: Turbo::Off,
        ..NONE
    },
    Cpu {
        name: "Xeon X7560 (Nehalem-EX) in a virtual machine",
        leaf_1: [0x206e6, 0x80b8_6381, 0xbfcb_fbff],
        leaf_6: [0x3, 0x1],
        asked: Err(Left::Virtual),
        ..NONE
    },
    Cpu {
        name: "Xeon E3-1230 v2 (Ivy Bridge), 3.3 GHz",
        leaf_1: [0x306a9, 0x7fba_e3ff, EDX],
        leaf_6: [0x77, 0x9],
        msrs: &[
            USUAL,
            (PLATFORM_INFO, 0x0008_1010_e001_2100),
            (TURBO_RATIO_LIMIT, 0x2324_2525),
            (PERF_CTL, 0x2100),
            (ENERGY_PERF_BIAS, 7),
        ],
        written: &[(PERF_CTL, 0x2500), (ENERGY_PERF_BIAS, 0)],
        asked: ratio(37, 33, 100),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "Xeon E5-2660 v3 (Haswell-EP), 2.6 GHz, turbo switched off",
        leaf_1: [0x306f2, 0x7ffe_fbff, EDX],
        leaf_6: [0x75, 0x9],
        msrs: &[STEADY, (PLATFORM_INFO, 0x0008_0c3f_2811_1a00), (PERF_CTL, 0x0c00), (ENERGY_PERF_BIAS, 6)],
        written: &[(PERF_CTL, 0x1a00), (ENERGY_PERF_BIAS, 0)],
        asked: ratio(26, 26, 100),
        turbo: Turbo::Off,
        ..NONE
    },
    Cpu {
        name: "Xeon E5-2697 v4 (Broadwell-EP), 2.3 GHz, whose IA32_PERF_CTL the firmware has left without turbo",
        leaf_1: [0x406f1, 0x7ffe_fbff, EDX],
        leaf_6: [0x77, 0x9],
        msrs: &[
            USUAL,
            (PLATFORM_INFO, 0x0007_0c3b_f881_1700),
            (TURBO_RATIO_LIMIT, 0x1c1c_1d1e_1f20_2224),
            (PERF_CTL, 0x1_0000_1700),
            (ENERGY_PERF_BIAS, 6),
        ],
        written: &[(PERF_CTL, 0x2400), (ENERGY_PERF_BIAS, 0)],
        asked: ratio(36, 23, 100),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "Xeon Gold 6130 (Skylake-SP), 2.1 GHz, whose firmware hides HWP",
        leaf_1: [0x50654, 0x7ffe_fbff, EDX],
        leaf_6: [0x77, 0x9],
        msrs: &[
            USUAL,
            (PLATFORM_INFO, 0x0008_0a3c_f381_1500),
            (TURBO_RATIO_LIMIT, 0x1c1c_1c1f_2121_2525),
            (PERF_CTL, 0x1500),
            (ENERGY_PERF_BIAS, 0),
        ],
        written: &[(PERF_CTL, 0x2500), (ENERGY_PERF_BIAS, 0)],
        asked: ratio(37, 21, 100),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "Xeon Platinum 8180 (Skylake-SP), 2.5 GHz",
        leaf_1: [0x50654, 0x7ffe_fbff, EDX],
        leaf_6: [0xef7, 0x9],
        msrs: &[
            USUAL,
            (PM_ENABLE, 0),
            (HWP_CAPABILITIES, 0x0a0a_1926),
            (HWP_REQUEST, 0x8000_ff01),
            (ENERGY_PERF_BIAS, 6),
        ],
        written: &[(PM_ENABLE, 1), (HWP_REQUEST, 0x2626), (ENERGY_PERF_BIAS, 0)],
        asked: Ok(Asked::Hwp { highest: 38, guaranteed: 25 }),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "Xeon Platinum 8280 (Cascade Lake), 2.7 GHz: HWP without EPP, turbo switched off",
        leaf_1: [0x50657, 0x7ffe_fbff, EDX],
        leaf_6: [0xaf5, 0x9],
        msrs: &[
            STEADY,
            (PM_ENABLE, 1),
            (HWP_CAPABILITIES, 0x0a0a_1b1b),
            (HWP_REQUEST, 0xff0a),
            (ENERGY_PERF_BIAS, 0xf6),
        ],
        written: &[(HWP_REQUEST, 0x1b1b), (ENERGY_PERF_BIAS, 0xf0)],
        asked: Ok(Asked::Hwp { highest: 27, guaranteed: 27 }),
        turbo: Turbo::Off,
        ..NONE
    },
    Cpu {
        name: "Xeon Gold 6330 (Ice Lake-SP), 2.0 GHz, whose firmware hides HWP",
        leaf_1: [0x606a6, 0x7ffe_fbff, EDX],
        leaf_6: [0x77, 0x9],
        msrs: &[
            USUAL,
            (PLATFORM_INFO, 0x0008_083c_f381_1400),
            (TURBO_RATIO_LIMIT, 0x1a1a_1a1a_1c1d_1f1f),
            (PERF_CTL, 0x1400),
            (ENERGY_PERF_BIAS, 6),
        ],
        written: &[(PERF_CTL, 0x1f00), (ENERGY_PERF_BIAS, 0)],
        asked: ratio(31, 20, 100),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "Xeon w9-3475X (Sapphire Rapids), 2.2 GHz",
        leaf_1: [0x806f8, 0x7ffe_fbff, EDX],
        leaf_6: [0x0045_cef7, 0x9],
        msrs: &[
            USUAL,
            (PM_ENABLE, 0),
            (HWP_CAPABILITIES, 0x0808_1630),
            (HWP_REQUEST, 0x8000_ff01),
            (ENERGY_PERF_BIAS, 7),
        ],
        written: &[(PM_ENABLE, 1), (HWP_REQUEST, 0x3030), (ENERGY_PERF_BIAS, 0)],
        asked: Ok(Asked::Hwp { highest: 48, guaranteed: 22 }),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "Xeon 6 (Granite Rapids), 2.1 GHz",
        leaf_1: [0xa06d1, 0x7ffe_fbff, EDX],
        leaf_6: [0xef7, 0x9],
        msrs: &[
            (MISC_ENABLE, 0x0081_0089),
            (PM_ENABLE, 1),
            (HWP_CAPABILITIES, 0x0508_1527),
            (HWP_REQUEST, 0x8000_ff00),
            (ENERGY_PERF_BIAS, 0),
        ],
        measured: true,
        written: &[(HWP_REQUEST, 0x2727), (ENERGY_PERF_BIAS, 0)],
        asked: Ok(Asked::Hwp { highest: 39, guaranteed: 21 }),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "Atom C3958 (Denverton), 2.0 GHz, without turbo",
        leaf_1: [0x506f1, 0x4ff8_ebbf, EDX],
        leaf_6: [0x55, 0x9],
        msrs: &[USUAL, (PLATFORM_INFO, 0x0008_083c_0001_1400), (PERF_CTL, 0x1400), (ENERGY_PERF_BIAS, 6)],
        written: &[(PERF_CTL, 0x1400), (ENERGY_PERF_BIAS, 0)],
        asked: ratio(20, 20, 100),
        ..NONE
    },
    Cpu {
        name: "Atom C2750 (Avoton), whose ratios are not known here",
        leaf_1: [0x406d8, 0x43d8_e3bf, EDX],
        leaf_6: [0x5, 0x9],
        msrs: &[USUAL, (ENERGY_PERF_BIAS, 6)],
        written: &[(ENERGY_PERF_BIAS, 0)],
        asked: Ok(Asked::Bias),
        ..NONE
    },
    Cpu {
        name: "Opteron 6380 (Piledriver), 2.5 GHz",
        vendor: AMD,
        leaf_1: [0x0060_0f20, 0x3e98_320b, AMD_EDX],
        leaf_6: [0, 1],
        extended: [0x7d9, 0x1000],
        msrs: &[(HWCR, 0x0100_0010), (P_STATE_LIMIT, 0x40), (P_STATE_CONTROL, 2), (P_STATE_0, 0x8000_01a1_0000_2009)],
        written: &[(P_STATE_CONTROL, 0)],
        asked: Ok(Asked::PState { state: 0, mhz: Some(2500) }),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "EPYC 7551P (Zen), 2.0 GHz, boost switched off",
        vendor: AMD,
        leaf_1: [0x0080_0f12, 0x7ed8_320b, AMD_EDX],
        leaf_6: [0x4, 1],
        extended: [0x6799, 0x7],
        msrs: &[(HWCR, 0x0300_0011), (P_STATE_LIMIT, 0x20), (P_STATE_CONTROL, 0), (P_STATE_0, 0x8000_0000_4009_0850)],
        written: &[(P_STATE_CONTROL, 0)],
        asked: Ok(Asked::PState { state: 0, mhz: Some(2000) }),
        turbo: Turbo::Off,
        ..NONE
    },
    Cpu {
        name: "EPYC 7713 (Zen 3), 2.0 GHz, whose firmware forbids P-state 0",
        vendor: AMD,
        leaf_1: [0x00a0_0f11, 0x7eda_320b, AMD_EDX],
        leaf_6: [0x4, 1],
        extended: [0x6799, 0x91be_f75f],
        msrs: &[
            (HWCR, 0x0100_0011),
            (P_STATE_LIMIT, 0x21),
            (P_STATE_CONTROL, 2),
            (P_STATE_0 + 1, 0x8000_0000_4009_0a55),
        ],
        written: &[(P_STATE_CONTROL, 1)],
        asked: Ok(Asked::PState { state: 1, mhz: Some(1700) }),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "EPYC 9654 (Zen 4), 2.4 GHz: CPPC stays off",
        vendor: AMD,
        leaf_1: [0x00a1_0f11, 0x7efa_320b, AMD_EDX],
        leaf_6: [0x4, 1],
        extended: [0x6799, 0x79be_f25f],
        msrs: &[
            (HWCR, 0x0100_0011),
            (CPPC_ENABLE, 0),
            (P_STATE_LIMIT, 0x20),
            (P_STATE_CONTROL, 1),
            (P_STATE_0, 0x8000_0000_4400_0860),
        ],
        written: &[(P_STATE_CONTROL, 0)],
        asked: Ok(Asked::PState { state: 0, mhz: Some(2400) }),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "EPYC 9124 (Zen 4), whose firmware has switched CPPC on (levels made up)",
        vendor: AMD,
        leaf_1: [0x00a1_0f11, 0x7efa_320b, AMD_EDX],
        leaf_6: [0x4, 1],
        extended: [0x6799, 0x79be_f25f],
        msrs: &[(HWCR, 0x0100_0011), (CPPC_ENABLE, 1), (CPPC_CAPABILITIES, 0xc49f_5a16), (CPPC_REQUEST, 0x8000_16c4)],
        written: &[(CPPC_REQUEST, 0xc4c4)],
        asked: Ok(Asked::Cppc { highest: 0xc4, nominal: 0x9f }),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "EPYC 9655 (Zen 5), 2.6 GHz",
        vendor: AMD,
        leaf_1: [0x00b0_0f21, 0x7efa_320b, AMD_EDX],
        leaf_6: [0x4, 1],
        extended: [0x6799, 0x79be_f25f],
        msrs: &[
            (HWCR, 0x0100_0011),
            (CPPC_ENABLE, 0),
            (P_STATE_LIMIT, 0x20),
            (P_STATE_CONTROL, 0),
            (P_STATE_0, 0x8000_0000_4400_0208),
        ],
        written: &[(P_STATE_CONTROL, 0)],
        asked: Ok(Asked::PState { state: 0, mhz: Some(2600) }),
        turbo: Turbo::On,
        ..NONE
    },
    Cpu {
        name: "QEMU's translator: `-cpu max`",
        vendor: AMD,
        leaf_1: [0x663, 0xfffa_b223, 0x0f8b_fbff],
        leaf_6: [0x4, 0],
        asked: Err(Left::Virtual),
        ..NONE
    },
];

impl Cpu {
    fn cpuid(&self, leaf: u32, _: u32) -> [u32; 4] {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| self.vendor[at + n]));
        match leaf {
            0 => [0x16, word(0), word(8), word(4)],
            1 => [self.leaf_1[0], 0, self.leaf_1[1], self.leaf_1[2]],
            6 => [self.leaf_6[0], 2, self.leaf_6[1], 0],
            0x8000_0000 => [0x8000_0008, 0, 0, 0],
            0x8000_0007 => [0, 0, 0, self.extended[0]],
            0x8000_0008 => [0x3030, self.extended[1], 0, 0],
            _ => [0; 4],
        }
    }

    fn processor(&self) -> Processor {
        Processor::new(|leaf, subleaf| self.cpuid(leaf, subleaf))
    }

    fn registers(&self) -> Registers {
        Registers { values: self.msrs.iter().copied().collect(), ..Registers::default() }
    }
}

fn cpu(name: &str) -> &'static Cpu {
    CPUS.iter().find(|cpu| cpu.name.contains(name)).expect("a processor with this name")
}

/// A core's registers. Those that are not there, and those of HWP while it is off, are refused.
#[derive(Default)]
struct Registers {
    values: BTreeMap<u32, u64>,
    /// A register that can be read and does not take what is written.
    deaf: Option<u32>,
    /// A register that refuses writes.
    read_only: Option<u32>,
    read: Vec<u32>,
    written: Vec<(u32, u64)>,
}

impl Registers {
    fn is_there(&self, msr: u32) -> bool {
        let off = matches!(msr, HWP_CAPABILITIES | HWP_REQUEST) && self.values.get(&PM_ENABLE) != Some(&1);
        self.values.contains_key(&msr) && !off
    }
}

impl Msrs for Registers {
    fn read(&mut self, msr: u32) -> Result<u64, Refused> {
        self.read.push(msr);
        if self.is_there(msr) { Ok(self.values[&msr]) } else { Err(Refused { msr, access: Access::Read }) }
    }

    fn write(&mut self, msr: u32, value: u64) -> Result<(), Refused> {
        if !self.is_there(msr) || self.read_only == Some(msr) {
            return Err(Refused { msr, access: Access::Write });
        }
        self.written.push((msr, value));
        if self.deaf != Some(msr) {
            self.values.insert(msr, value);
        }
        Ok(())
    }
}

#[test]
fn each_processor_has_its_writes_in_their_order() {
    for cpu in CPUS {
        let mut registers = cpu.registers();
        let outcome = raise(&cpu.processor(), &mut registers);
        assert_eq!(registers.written, cpu.written, "{}", cpu.name);
        assert_eq!((outcome.asked, outcome.turbo), (cpu.asked, cpu.turbo), "{}", cpu.name);
        let biased = cpu.written.iter().any(|(msr, _)| *msr == ENERGY_PERF_BIAS);
        assert_eq!(outcome.bias, biased.then_some(Ok(())), "{}", cpu.name);
        if outcome.asked == Err(Left::Virtual) {
            assert_eq!(registers.read, [], "{}: nothing is read in a virtual machine", cpu.name);
        }
    }
    assert!(CPUS.iter().any(|cpu| cpu.measured));
    let real = CPUS.iter().filter(|cpu| !cpu.written.is_empty()).count();
    assert_eq!(real, 19);
}

#[test]
fn only_registers_that_cpuid_or_the_model_promises_are_touched() {
    for cpu in CPUS {
        let mut registers = cpu.registers();
        let processor = cpu.processor();
        let _ = raise(&processor, &mut registers);
        for msr in registers.read {
            let promised = match msr {
                MISC_ENABLE => processor.vendor == Vendor::Intel,
                PM_ENABLE | HWP_CAPABILITIES | HWP_REQUEST => processor.has(Features::HWP),
                PERF_CTL | PLATFORM_INFO => processor.has(Features::PERF_CTL) && processor.model != 0x4d,
                TURBO_RATIO_LIMIT => processor.has(Features::PERF_CTL | Features::TURBO),
                ENERGY_PERF_BIAS => processor.has(Features::EPB),
                HWCR => processor.has(Features::BOOST),
                P_STATE_LIMIT | P_STATE_CONTROL => processor.has(Features::P_STATES),
                CPPC_ENABLE | CPPC_CAPABILITIES | CPPC_REQUEST => processor.has(Features::CPPC),
                _ => processor.has(Features::P_STATES) && (P_STATE_0..P_STATE_0 + 8).contains(&msr),
            };
            assert!(promised, "{}: {msr:#x}", cpu.name);
        }
    }
}

#[test]
fn what_a_firmware_hides_or_keeps_for_itself_is_an_outcome() {
    let server = cpu("Platinum 8180");
    let try_with = |change: &dyn Fn(&mut Registers)| {
        let mut registers = server.registers();
        change(&mut registers);
        (raise(&server.processor(), &mut registers), registers.written)
    };
    let refused = |msr, access| Left::Refused(Refused { msr, access });
    // Each register is missing in turn.
    for (msr, asked) in [
        (HWP_CAPABILITIES, refused(HWP_CAPABILITIES, Access::Read)),
        (HWP_REQUEST, refused(HWP_REQUEST, Access::Write)),
        // Then HWP cannot be on, and the old registers are not there in this test.
        (PM_ENABLE, refused(PLATFORM_INFO, Access::Read)),
    ] {
        let (outcome, _) = try_with(&|registers| _ = registers.values.remove(&msr));
        assert_eq!(outcome.asked, Err(asked));
        assert_eq!(outcome.bias, Some(Ok(())), "the bias is another matter");
    }
    let (outcome, _) = try_with(&|registers| _ = registers.values.remove(&ENERGY_PERF_BIAS));
    assert_eq!(outcome.bias, Some(Err(Refused { msr: ENERGY_PERF_BIAS, access: Access::Read })));
    assert!(outcome.asked.is_ok());
    let (outcome, _) = try_with(&|registers| registers.deaf = Some(HWP_REQUEST));
    assert_eq!(outcome.asked, Err(Left::NotTaken { msr: HWP_REQUEST }));
    let (outcome, written) = try_with(&|registers| _ = registers.values.insert(HWP_CAPABILITIES, 0));
    assert_eq!(outcome.asked, Err(Left::NoLevels { msr: HWP_CAPABILITIES }));
    assert_eq!(written, [(PM_ENABLE, 1), (ENERGY_PERF_BIAS, 0)]);
    // HWP cannot be switched on: the old way.
    let (outcome, written) = try_with(&|registers| {
        registers.read_only = Some(PM_ENABLE);
        registers.values.extend([(PLATFORM_INFO, 0x1900), (TURBO_RATIO_LIMIT, 0x26), (PERF_CTL, 0x1900)]);
    });
    assert_eq!(outcome.asked, ratio(38, 25, 100));
    assert_eq!(written, [(PERF_CTL, 0x2600), (ENERGY_PERF_BIAS, 0)]);
}

#[test]
fn speedstep_and_ratios_that_are_off_are_outcomes() {
    let server = cpu("E5-2697 v4");
    let mut registers = server.registers();
    registers.values.insert(MISC_ENABLE, 0x0084_0089);
    assert_eq!(raise(&server.processor(), &mut registers).asked, Err(Left::SpeedStepOff));
    assert_eq!(registers.written, [(ENERGY_PERF_BIAS, 0)]);
    let mut registers = server.registers();
    registers.values.insert(PLATFORM_INFO, 0);
    assert_eq!(raise(&server.processor(), &mut registers).asked, Err(Left::NoLevels { msr: PLATFORM_INFO }));
    // A limit below the base is nonsense.
    let mut registers = server.registers();
    registers.values.insert(TURBO_RATIO_LIMIT, 0);
    assert_eq!(raise(&server.processor(), &mut registers).asked, ratio(23, 23, 100));
    // Nehalem-EX on the machine itself has no register for the limit.
    let ex = Cpu { leaf_1: [0x206e6, 0x00be_e3ff, EDX], ..NONE };
    let ex = Cpu { leaf_6: [0x7, 0x1], ..ex };
    let mut registers = Registers::default();
    registers.values.extend([USUAL, (PLATFORM_INFO, 0x1100), (PERF_CTL, 0x11)]);
    assert_eq!(raise(&ex.processor(), &mut registers).asked, ratio(18, 17, 133));
    assert_eq!(registers.written, [(PERF_CTL, 0x12)]);
}

#[test]
fn odd_words_never_panic() {
    // Every bit of each word that matters, alone and all together, on registers that are all ones.
    let words = (0..32).map(|bit| 1_u32 << bit).chain([0, u32::MAX]);
    for word in words {
        for vendor in [INTEL, AMD, b"CentaurHauls"] {
            for signature in [0, u32::MAX, 0x50654, 0x00b0_0f21, word] {
                let cpu = Cpu { vendor, leaf_1: [signature, word & !(1 << 31), word], leaf_6: [word; 2], ..NONE };
                let cpu = Cpu { extended: [word; 2], ..cpu };
                for value in [0, u64::MAX, 1 << 63 | 0x3f] {
                    let registers = (0..0x800).chain(0xc001_0000..0xc001_0300).map(|msr| (msr, value)).collect();
                    let mut registers = Registers { values: registers, ..Registers::default() };
                    let _ = raise(&cpu.processor(), &mut registers);
                    let mut meter = Meter::new();
                    (0..3).for_each(|_| _ = meter.look(&cpu.processor(), &mut registers));
                    let _ = microcode(&cpu.processor(), &mut registers, || ());
                }
            }
        }
    }
    // CPUID that ends before leaf 6.
    let short = Processor::new(|leaf, _| if leaf == 0 { [1, 0x756e_6547, 0x6c65_746e, 0x4965_6e69] } else { [!0; 4] });
    assert!(!short.has(Features::HWP) && !short.has(Features::EPB));
}

#[test]
fn speed_is_that_since_the_last_look() {
    let server = cpu("Granite Rapids");
    let mut registers = server.registers();
    let mut meter = Meter::new();
    // Two readings of a core of that server, a second apart: 3.2 GHz at a base of 2.1.
    let mut look = |aperf, mperf| {
        registers.values.extend([(APERF, aperf), (MPERF, mperf)]);
        meter.look(&server.processor(), &mut registers).permille
    };
    assert_eq!(look(0xf2dd_94e0_7175, 0x9f64_74ee_b72c), None, "there is nothing to compare with");
    assert_eq!(look(0xf2de_5afb_3155, 0x9f64_f6ec_e298), Some(1523));
    // Nobody ran, so there is no speed.
    assert_eq!(look(0xf2de_5afb_3155, 0x9f64_f6ec_e298), None);
    // The counters wrap around.
    look(u64::MAX - 99, u64::MAX - 99);
    assert_eq!(look(100, 0), Some(2000));
}

#[test]
fn throttling_is_told_once_and_its_logs_are_cleared() {
    let server = cpu("Granite Rapids");
    let processor = server.processor();
    let mut registers = server.registers();
    // The package's status is that server's, at work: the power limit was met. The core's: too hot, now and before.
    registers.values.extend([(THERM_STATUS, 0x8823_0003), (PACKAGE_THERM_STATUS, 0x8822_0800)]);
    let mut meter = Meter::new();
    assert_eq!(meter.look(&processor, &mut registers), Look::default(), "what was before the first look is forgotten");
    // Ones leave logs, zeros clear them, and nothing else is written.
    assert_eq!(registers.written, [(THERM_STATUS, 0xa828), (PACKAGE_THERM_STATUS, 0x002a)]);
    registers.values.extend([(THERM_STATUS, 0x8823_2003), (PACKAGE_THERM_STATUS, 0x8822_0000)]);
    let look = meter.look(&processor, &mut registers);
    assert_eq!(look.causes, Causes::HEAT | Causes::CURRENT);
    assert_eq!(look.causes.to_string(), "heat, the current limit");
    registers.values.extend([(THERM_STATUS, 0x8823_0001)]);
    assert_eq!(meter.look(&processor, &mut registers).causes, Causes::empty(), "a state is no log");
    // Without HWP those bits are reserved, and without PLN the power limit's.
    let old = cpu("X5667");
    let mut registers = old.registers();
    registers.values.insert(THERM_STATUS, 0xffff_ffff);
    let mut meter = Meter::new();
    let looks = [(); 2].map(|()| meter.look(&old.processor(), &mut registers).causes);
    assert_eq!(registers.written[0], (THERM_STATUS, 0));
    assert_eq!(looks, [Causes::empty(); 2]);
}

#[test]
fn system_management_interrupts_are_counted_from_one_look_to_the_next() {
    let server = cpu("Granite Rapids");
    let mut registers = server.registers();
    let mut meter = Meter::new();
    let mut look = |count| {
        registers.values.insert(SMI_COUNT, count);
        meter.look(&server.processor(), &mut registers).smis
    };
    let looks = [0xffff_fffe, 0xffff_fffe, 0x1_0000_0001, 4].map(&mut look);
    assert_eq!(looks, [None, Some(0), Some(3), Some(3)]);
    // A processor without the register is asked once.
    registers.values.remove(&SMI_COUNT);
    let mut meter = Meter::new();
    assert_eq!(meter.look(&server.processor(), &mut registers).smis, None);
    registers.values.insert(SMI_COUNT, 1);
    assert_eq!([(); 2].map(|()| meter.look(&server.processor(), &mut registers).smis), [None; 2]);
    // AMD has another register of that number.
    let epyc = cpu("EPYC 7713");
    let mut meter = Meter::new();
    assert_eq!([(); 2].map(|()| meter.look(&epyc.processor(), &mut registers).smis), [None; 2]);
}

#[test]
fn the_longest_gap_and_the_interrupts_of_a_watched_core_are_kept() {
    let server = cpu("Granite Rapids");
    let mut registers = server.registers();
    registers.values.insert(SMI_COUNT, 7);
    // A clock whose readings are 10 ticks apart, but for two gaps.
    let after = |gaps: [(u64, u64); 2], ticks, registers: &mut Registers| {
        let mut time = 1000;
        let clock = || {
            time += 10 + gaps.iter().filter(|(at, _)| *at == time).map(|(_, gap)| gap).sum::<u64>();
            time
        };
        watch(&server.processor(), registers, clock, ticks)
    };
    let quiet = after([(0, 0); 2], 1000, &mut registers);
    assert_eq!(quiet, Watched { ticks: 1000, longest: 10, smis: Some(0) });
    let two = after([(1500, 300), (1900, 200)], 1000, &mut registers);
    assert_eq!(two, Watched { ticks: 1100, longest: 310, smis: Some(0) });
    // One that does not end in time is seen too.
    assert_eq!(after([(1990, 5000), (0, 0)], 1000, &mut registers).longest, 5010);
    // Elsewhere nobody counts, and nobody asks.
    registers.read.clear();
    registers.values.remove(&SMI_COUNT);
    assert_eq!(watch(&server.processor(), &mut registers, || 5, 0), Watched { ticks: 0, longest: 0, smis: None });
    let before = registers.read.len();
    assert_eq!(watch(&cpu("EPYC 7713").processor(), &mut registers, || 5, 0).smis, None);
    assert_eq!(registers.read.len(), before);
}

#[test]
fn where_there_is_nothing_to_look_at_nobody_looks() {
    assert!(CPUS.iter().all(|cpu| Meter::has_something(&cpu.processor()) == (cpu.asked != Err(Left::Virtual))));
}

#[test]
fn the_microcode_is_read_as_the_maker_says() {
    let server = cpu("Granite Rapids");
    let mut registers = server.registers();
    registers.values.insert(REVISION, 0x1000_0380_0000_0000);
    let mut asked = 0;
    let revision = microcode(&server.processor(), &mut registers, || asked += 1);
    // CPUID puts the revision there, which this model of a core does not do: 0 was written before it.
    assert_eq!((revision, asked, &registers.written[..]), (Some(Ok(0)), 1, &[(REVISION, 0)][..]));
    registers.deaf = Some(REVISION);
    registers.values.insert(REVISION, 0x0100_0380_0000_0000);
    assert_eq!(microcode(&server.processor(), &mut registers, || ()), Some(Ok(0x0100_0380)));
    let epyc = cpu("EPYC 7713");
    let mut registers = epyc.registers();
    registers.values.insert(REVISION, 0x0a00_1173);
    assert_eq!(microcode(&epyc.processor(), &mut registers, || panic!("AMD needs none")), Some(Ok(0x0a00_1173)));
    assert_eq!(registers.written, []);
    let refused = Refused { msr: REVISION, access: Access::Read };
    assert_eq!(microcode(&epyc.processor(), &mut Registers::default(), || ()), Some(Err(refused)));
    assert_eq!(microcode(&cpu("QEMU").processor(), &mut registers, || ()), None);
}
