//! Real CPUs, and what the assembly does for each. The words of CPUID and IA32_ARCH_CAPABILITIES are those of CPUs with
//! the microcode of 2024, if the name says nothing else. Reserved bits and bits that do not matter here are left out.

#![allow(unsafe_code, reason = "reads the code of the routines")]

use super::*;
use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};

#[derive(Clone, Copy)]
struct Cpu {
    name: &'static str,
    vendor: &'static [u8; 12],
    signature: u32,
    leaf_7: [u32; 2], // EBX, EDX
    leaf_7_2_edx: u32,
    leaf_8_ebx: u32,
    leaf_21_eax: u32,
    arch_capabilities: u64,
    affected: Vulnerabilities,
    vulnerable: Vulnerabilities,
    steps: Steps,
    begin: &'static [(u32, u64)],
}

const RTM: u32 = 1 << 11;
const INTEL: &[u8; 12] = b"GenuineIntel";
const AMD: &[u8; 12] = b"AuthenticAMD";
/// IBRS and IBPB, STIBP, L1D_FLUSH, SSBD, MD_CLEAR.
const MICROCODE: u32 = 1 << 26 | 1 << 27 | 1 << 28 | 1 << 31 | 1 << 10;
const ARCH: u32 = 1 << 29;
/// IBPB, IBRS, STIBP, SSBD.
const AMD_MICROCODE: u32 = 1 << 12 | 1 << 14 | 1 << 15 | 1 << 24;

use Vulnerabilities as V;

const fn v(names: &[V]) -> V {
    let (mut bits, mut i) = (0, 0);
    while i < names.len() {
        bits |= names[i].bits();
        i += 1;
    }
    V::from_bits_retain(bits)
}

const fn steps(bits: u32) -> Steps {
    Steps::from_bits_retain(bits)
}

const NONE: Cpu = Cpu {
    name: "",
    vendor: INTEL,
    signature: 0,
    leaf_7: [0; 2],
    leaf_7_2_edx: 0,
    leaf_8_ebx: 0,
    leaf_21_eax: 0,
    arch_capabilities: 0,
    affected: V::empty(),
    vulnerable: V::SPECTRE_V1,
    steps: Steps::empty(),
    begin: &[],
};

/// What Intel's CPUs until Skylake have.
const OLD: V = v(&[V::MELTDOWN, V::SPECTRE_V1, V::SPECTRE_V2, V::SPEC_STORE_BYPASS, V::L1TF, V::MDS, V::ITLB_MULTIHIT]);
const SKYLAKE: V = v(&[OLD, V::MMIO_STALE_DATA, V::RETBLEED, V::GATHER_DATA_SAMPLING, V::TSX_ASYNC_ABORT]);
const NEW: V = v(&[V::SPECTRE_V1, V::SPECTRE_V2, V::SPEC_STORE_BYPASS]);

const CPUS: &[Cpu] = &[
    Cpu {
        name: "Xeon E5-2680 v3 (Haswell-EP)",
        signature: 0x306f2,
        leaf_7: [0, MICROCODE],
        affected: v(&[OLD, V::MMIO_STALE_DATA]),
        steps: steps(1 | 2 | 4 | 16),
        begin: &[(0x48, 1), (0x49, 1)],
        ..NONE
    },
    Cpu {
        name: "Xeon Platinum 8168 (Skylake-SP)",
        signature: 0x50654,
        leaf_7: [RTM, MICROCODE | ARCH],
        // RSBA, SKIP_L1DFL_VMENTRY clear, TSX_CTRL clear, FB_CLEAR, GDS_CTRL.
        arch_capabilities: 1 << 2 | 1 << 17 | 1 << 25,
        affected: SKYLAKE,
        steps: steps(1 | 2 | 4 | 16),
        begin: &[(0x48, 1), (0x49, 1)],
        ..NONE
    },
    Cpu {
        name: "Xeon Gold 6248 (Cascade Lake), stepping 7",
        signature: 0x50657,
        leaf_7: [RTM, MICROCODE | ARCH],
        // RDCL_NO, IBRS_ALL, SKIP_L1DFL_VMENTRY, MDS_NO, TSX_CTRL, FB_CLEAR, RRSBA, GDS_CTRL.
        arch_capabilities: 0xab | 1 << 17 | 1 << 19 | 1 << 25,
        affected: v(&[
            NEW,
            V::ITLB_MULTIHIT,
            V::MMIO_STALE_DATA,
            V::RETBLEED,
            V::GATHER_DATA_SAMPLING,
            V::TSX_ASYNC_ABORT,
            V::INDIRECT_TARGET_SELECTION,
        ]),
        vulnerable: v(&[V::SPECTRE_V1, V::INDIRECT_TARGET_SELECTION]),
        steps: steps(1 | 32 | 64),
        begin: &[(0x48, 1), (0x49, 1)],
        ..NONE
    },
    Cpu {
        name: "Xeon Gold 6338 (Ice Lake-SP)",
        signature: 0x606a6,
        leaf_7: [RTM, MICROCODE | ARCH],
        // The same, IF_PSCHANGE_MC_NO, TAA_NO, without RRSBA.
        arch_capabilities: 0xeb | 1 << 8 | 1 << 17 | 1 << 25,
        affected: v(&[NEW, V::MMIO_STALE_DATA, V::GATHER_DATA_SAMPLING]),
        steps: steps(1 | 32 | 64),
        begin: &[(0x48, 1), (0x49, 1)],
        ..NONE
    },
    Cpu {
        name: "Xeon Platinum 8480 (Sapphire Rapids)",
        signature: 0x806f8,
        leaf_7: [RTM, MICROCODE | ARCH],
        leaf_7_2_edx: 0x17, // PSFD, IPRED, RRSBA, BHI_CTRL
        // As above, SBDR_SSDP_NO, FBSDP_NO, PSDP_NO, FB_CLEAR, RRSBA, PBRSB_NO, GDS_NO, RFDS_NO.
        arch_capabilities: 0x1eb | 7 << 13 | 1 << 17 | 1 << 19 | 1 << 24 | 1 << 26 | 1 << 27,
        affected: NEW,
        begin: &[(0x48, 0x401), (0x49, 1)],
        ..NONE
    },
    Cpu {
        name: "Atom C3758 (Denverton)",
        signature: 0x506f1,
        leaf_7: [0, MICROCODE | ARCH],
        // RDCL_NO, SKIP_L1DFL_VMENTRY, RFDS_CLEAR.
        arch_capabilities: 1 | 1 << 3 | 1 << 28,
        affected: v(&[NEW, V::REG_FILE_DATA_SAMPLING]),
        steps: steps(1 | 4 | 16),
        begin: &[(0x48, 1), (0x49, 1)],
        ..NONE
    },
    Cpu {
        name: "EPYC 7302 (Zen 2)",
        vendor: AMD,
        signature: 0x830f10,
        leaf_8_ebx: AMD_MICROCODE,
        affected: v(&[NEW, V::RETBLEED, V::SPEC_RSTACK_OVERFLOW]),
        steps: steps(8 | 16),
        begin: &[(0x49, 1)],
        ..NONE
    },
    Cpu {
        name: "EPYC 7313 (Zen 3)",
        vendor: AMD,
        signature: 0xa00f11,
        leaf_8_ebx: AMD_MICROCODE | 1 << 29, // BTC_NO
        leaf_21_eax: 1 << 28,                // IBPB_BRTYPE
        affected: v(&[NEW, V::SPEC_RSTACK_OVERFLOW, V::TSA]),
        vulnerable: v(&[V::SPECTRE_V1, V::TSA]),
        steps: steps(1 | 8 | 16),
        begin: &[(0x49, 1)],
        ..NONE
    },
    Cpu {
        name: "EPYC 9354 (Zen 4)",
        vendor: AMD,
        signature: 0xa10f11,
        leaf_8_ebx: AMD_MICROCODE | 1 << 29 | 1 << 30, // BTC_NO, IBPB_RET
        leaf_21_eax: 1 << 5 | 1 << 8 | 1 << 28,        // VERW_CLEAR, which came in 2025; AUTO_IBRS, IBPB_BRTYPE
        affected: v(&[NEW, V::SPEC_RSTACK_OVERFLOW, V::TSA]),
        steps: steps(1 | 8),
        begin: &[(0xc000_0080, 0x20_1d01), (0x49, 1)],
        ..NONE
    },
    Cpu {
        name: "EPYC 9355 (Zen 5)",
        vendor: AMD,
        signature: 0xb00f21,
        leaf_8_ebx: AMD_MICROCODE | 1 << 29 | 1 << 30,
        leaf_21_eax: 1 << 8 | 1 << 28 | 1 << 30 | 1 << 31, // and SRSO_USER_KERNEL_NO, BP_SPEC_REDUCE
        affected: v(&[NEW, V::SPEC_RSTACK_OVERFLOW]),
        begin: &[(0xc000_0080, 0x20_1d01), (0xc001_102e, 0x1d11), (0x49, 1)],
        ..NONE
    },
    Cpu {
        name: "Bochs' skylake_x: no microcode",
        signature: 0x50654,
        leaf_7: [RTM, 0],
        affected: SKYLAKE,
        vulnerable: v(&[
            V::SPECTRE_V1,
            V::SPECTRE_V2,
            V::RETBLEED,
            V::L1TF,
            V::MDS,
            V::TSX_ASYNC_ABORT,
            V::MMIO_STALE_DATA,
            V::GATHER_DATA_SAMPLING,
        ]),
        steps: steps(1 | 16),
        ..NONE
    },
    Cpu {
        name: "QEMU's max: family 15, model 107",
        vendor: AMD,
        signature: 0x60fb1,
        affected: v(&[V::SPECTRE_V1, V::SPECTRE_V2]),
        vulnerable: v(&[V::SPECTRE_V1, V::SPECTRE_V2]),
        steps: steps(16),
        ..NONE
    },
    Cpu {
        name: "QEMU's max, as the scenarios have it: family 6, model 6",
        vendor: AMD,
        signature: 0x663,
        affected: NEW,
        vulnerable: v(&[V::SPECTRE_V1, V::SPECTRE_V2]),
        steps: steps(16),
        ..NONE
    },
    Cpu { name: "Atom D525 (Bonnell)", signature: 0x106ca, vulnerable: V::empty(), ..NONE },
];

impl Cpu {
    fn processor(&self) -> Processor {
        let word = |i: usize| u32::from_le_bytes(self.vendor[i..i + 4].try_into().unwrap());
        let cpuid = |leaf, subleaf| match (leaf, subleaf) {
            (0, _) => [0x20, word(0), word(8), word(4)],
            (1, _) => [self.signature, 0, 0, 0],
            (7, 0) => [2, self.leaf_7[0], 0, self.leaf_7[1]],
            (7, 2) => [0, 0, 0, self.leaf_7_2_edx],
            (0x8000_0000, _) => [0x8000_0021, 0, 0, 0],
            (0x8000_0008, _) => [0, self.leaf_8_ebx, 0, 0],
            (0x8000_0021, _) => [self.leaf_21_eax, 0, 0, 0],
            _ => panic!("CPUID {leaf:#x}.{subleaf:#x}"),
        };
        Processor::new(cpuid, |msr| {
            assert_eq!(
                (msr, self.leaf_7[1] & ARCH),
                (0x10a, ARCH),
                "{}: an MSR that does not exist is read",
                self.name
            );
            self.arch_capabilities
        })
    }
}

#[test]
fn what_real_cpus_are_vulnerable_to() {
    for cpu in CPUS {
        assert_eq!(cpu.processor().affected(), cpu.affected, "{}", cpu.name);
    }
}

#[test]
fn what_stays_open_on_real_cpus() {
    for cpu in CPUS {
        let processor = cpu.processor();
        let plan = Plan::new(&processor);
        for (which, name) in V::NAMED {
            let status = plan.status(&processor, which);
            let expected = (cpu.affected.contains(which), cpu.vulnerable.contains(which));
            let is = (status != Status::NotAffected, matches!(status, Status::Vulnerable(_)));
            assert_eq!(is, expected, "{} of {}: {status:?}", name, cpu.name);
        }
    }
}

#[test]
fn microcode_that_is_too_old_is_said() {
    let open = |cpu: &Cpu, which| {
        let processor = cpu.processor();
        matches!(Plan::new(&processor).status(&processor, which), Status::Vulnerable(_))
    };
    let zen_3 = CPUS.iter().find(|c| c.name.contains("Zen 3")).unwrap();
    assert!(open(&Cpu { leaf_21_eax: 0, ..*zen_3 }, V::SPEC_RSTACK_OVERFLOW));
    assert!(open(&Cpu { leaf_8_ebx: 0, ..*zen_3 }, V::SPECTRE_V2));
    let ice_lake = CPUS.iter().find(|c| c.name.contains("Ice Lake")).unwrap();
    assert!(open(&Cpu { arch_capabilities: 0x1eb, ..*ice_lake }, V::MMIO_STALE_DATA));
    assert!(open(&Cpu { arch_capabilities: 0x1eb, ..*ice_lake }, V::GATHER_DATA_SAMPLING));
}

/// MSRs that record what is written. All of them hold 0x1d01, as a host's EFER does.
#[derive(Default)]
struct Recorder(Vec<(u32, u64)>);

impl Msrs for Recorder {
    fn read(&self, _: u32) -> u64 {
        0x1d01
    }
    fn write(&mut self, number: u32, value: u64) {
        self.0.push((number, value));
    }
}

#[test]
fn what_a_core_writes_when_it_gets_a_guest() {
    for cpu in CPUS {
        let mut recorder = Recorder::default();
        let plan = Plan::new(&cpu.processor());
        plan.begin(&mut recorder);
        assert_eq!(recorder.0, cpu.begin, "{}", cpu.name);
        assert_eq!(plan.returns_between_guests, cpu.affected.contains(V::SPECTRE_V2), "{}", cpu.name);
    }
}

/// What a routine did, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Read(u32),
    /// A write to the structure: offset, value.
    Store(u64, u64),
    Write(u32, u64),
    Verw(u16),
    /// This many calls without a return between them.
    Calls(u32),
    /// This many taken branches, without calls.
    Branches(u32),
    Lfence,
}

/// Runs a routine of switch.s, instruction by instruction, from its machine code.
fn run(routine: usize, switch: &Switch) -> Vec<Did> {
    // SAFETY: the routine is code of this program. Both end well within that length, and more code follows them.
    let code = unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u8>(routine), 256) };
    let memory = |at: u64| match at {
        0 => u64::from(switch.steps().bits()),
        4 => u64::from(SELECTOR),
        8 | 12 => 0x5555 >> (8 * (at - 8)),
        16 => host(switch) & 0xffff_ffff,
        20 => host(switch) >> 32,
        _ => panic!("offset {at}"),
    };
    let mut registers = std::collections::HashMap::from([(Register::EDI, 0_u64), (Register::ESP, 0x1000)]);
    let (mut zero, mut did, mut stack) = (false, Vec::new(), 0_i64);
    let mut rip = routine as u64;
    let (mut calls, mut branches) = (0, 0);
    for _ in 0..2000 {
        let offset = (rip - routine as u64) as usize;
        let i = Decoder::with_ip(64, &code[offset..], rip, DecoderOptions::NONE).decode();
        rip = i.next_ip();
        let of = |registers: &std::collections::HashMap<_, _>, operand| match i.op_kind(operand) {
            OpKind::Register => registers[&i.op_register(operand)],
            OpKind::Memory => {
                assert_eq!(i.memory_base(), Register::RDI);
                memory(i.memory_displacement64())
            }
            _ => i.immediate(operand),
        };
        if calls != 0 && i.mnemonic() == Mnemonic::Add {
            did.push(Did::Calls(calls));
            calls = 0;
        }
        if branches != 0 && i.mnemonic() == Mnemonic::Lfence {
            did.push(Did::Branches(branches));
        }
        match i.mnemonic() {
            Mnemonic::Mov if i.op0_kind() == OpKind::Memory => {
                assert_eq!(i.memory_base(), Register::RDI);
                did.push(Did::Store(i.memory_displacement64(), of(&registers, 1)));
            }
            Mnemonic::Rdmsr => {
                did.push(Did::Read(registers[&Register::ECX] as u32));
                registers.insert(Register::EAX, 0x77);
                registers.insert(Register::EDX, 0x88);
            }
            Mnemonic::Mov => {
                let value = of(&registers, 1);
                registers.insert(i.op0_register(), value & 0xffff_ffff);
            }
            Mnemonic::Xor => {
                assert_eq!(i.op0_register(), i.op1_register());
                registers.insert(i.op0_register(), 0);
            }
            Mnemonic::Test => zero = of(&registers, 0) & of(&registers, 1) == 0,
            Mnemonic::Dec => {
                let value = of(&registers, 0) - 1;
                zero = value == 0;
                registers.insert(i.op0_register(), value);
            }
            Mnemonic::Je if zero => rip = i.near_branch64(),
            Mnemonic::Jne if !zero => {
                branches += u32::from(calls == 0);
                rip = i.near_branch64();
            }
            Mnemonic::Je | Mnemonic::Jne => {}
            Mnemonic::Jmp => {
                branches += 1;
                rip = i.near_branch64();
            }
            Mnemonic::Call => {
                calls += 1;
                stack += 8;
                rip = i.near_branch64();
            }
            Mnemonic::Add => {
                assert_eq!(i.op0_register(), Register::RSP);
                stack -= i.immediate(1) as i64;
            }
            Mnemonic::Wrmsr => {
                let value = registers[&Register::EDX] << 32 | registers[&Register::EAX];
                did.push(Did::Write(registers[&Register::ECX] as u32, value));
            }
            Mnemonic::Verw => did.push(Did::Verw(of(&registers, 0) as u16)),
            Mnemonic::Lfence => did.push(Did::Lfence),
            Mnemonic::Ret => {
                assert_eq!((stack, calls), (0, 0), "the stack is not as it was");
                return did;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("no return");
}

const SELECTOR: u16 = 0x10;

fn host(switch: &Switch) -> u64 {
    u64::from(switch.steps().contains(Steps::SPEC_CTRL))
}

#[test]
fn what_each_entry_and_exit_does_on_real_cpus() {
    for cpu in CPUS {
        let switch = Switch::new(&Plan::new(&cpu.processor()), SELECTOR);
        assert_eq!(switch.steps(), cpu.steps, "{}", cpu.name);
        assert_eq!(switch.any(), !cpu.steps.is_empty());
        let [before, after] = Switch::routines();
        let has = |step| cpu.steps.contains(step);
        let mut expected = Vec::new();
        if has(Steps::SPEC_CTRL) {
            expected.push(Did::Write(0x48, 0x5555));
        }
        if has(Steps::L1D_FLUSH) {
            expected.push(Did::Write(0x10b, 1));
        }
        if has(Steps::VERW) {
            expected.push(Did::Verw(SELECTOR));
        }
        assert_eq!(run(before, &switch), expected, "before an entry on {}", cpu.name);
        expected.clear();
        if has(Steps::SPEC_CTRL) {
            expected.extend([Did::Read(0x48), Did::Store(8, 0x77), Did::Store(12, 0x88), Did::Write(0x48, 1)]);
        }
        if has(Steps::IBPB) {
            expected.push(Did::Write(0x49, 1));
        }
        if has(Steps::RSB_ALL) {
            expected.push(Did::Calls(32));
        }
        if has(Steps::RSB_ONE) {
            expected.push(Did::Calls(1));
        }
        if has(Steps::BHB) {
            expected.push(Did::Branches(199));
        }
        expected.push(Did::Lfence);
        assert_eq!(run(after, &switch), expected, "after an exit on {}", cpu.name);
    }
}

#[test]
fn a_core_that_gets_a_guest_overwrites_all_returns_and_no_more() {
    assert_eq!(run(Switch::routines()[1], &Switch::RETURNS), [Did::Calls(32), Did::Lfence]);
    // It comes back.
    crate::switch::overwrite_returns();
}

#[test]
fn a_guest_gets_the_registers_that_the_cpu_has() {
    for cpu in CPUS {
        let mut recorder = Recorder::default();
        let plan = Plan::new(&cpu.processor());
        let mut switch = Switch::new(&plan, SELECTOR);
        let has = cpu.leaf_7[1] & 1 << 26 != 0 || cpu.leaf_8_ebx & 1 << 14 != 0;
        let passed: Vec<_> = plan.passed_through().collect();
        let ibrs = cpu.steps.contains(Steps::SPEC_CTRL);
        let expected: &[u32] = if ibrs {
            &[0x48, 0x49]
        } else if has {
            &[0x49]
        } else {
            &[]
        };
        assert_eq!(passed, expected, "{}", cpu.name);
        assert_eq!(switch.set_guest_spec_ctrl(0b100, &mut recorder), has, "{}", cpu.name);
        assert_eq!(switch.guest_ibpb(&mut recorder), has, "{}", cpu.name);
        assert_eq!(switch.guest_spec_ctrl(), has.then_some(0b100), "{}", cpu.name);
        // The host's bits stay: IBRS and BHI_DIS_S where they are written once.
        let written: Vec<_> = if ibrs { vec![] } else { vec![(0x48, 0b100 | plan.host_spec_ctrl())] };
        let written = if has { [written, vec![(0x49, 1)]].concat() } else { vec![] };
        assert_eq!(recorder.0, written, "{}", cpu.name);
    }
}

#[test]
fn what_guests_see_of_arch_capabilities() {
    let seen =
        |name: &str| CPUS.iter().find(|cpu| cpu.name.contains(name)).unwrap().processor().arch_capabilities_of_guests();
    assert_eq!(seen("Cascade Lake"), 0x6b | 1 << 17 | 1 << 19 | 1 << 26, "no TSX_CTRL; GDS_NO in place of GDS_CTRL");
    assert_eq!(seen("Skylake-SP"), 1 << 2 | 0x48 | 1 << 17 | 1 << 26);
    assert_eq!(seen("Denverton"), 1 | 0x48 | 1 << 28);
}
