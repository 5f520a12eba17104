//! Tests of the CPUID policy against made-up hosts.

use super::*;

const OPTIONS: Options = Options {
    vcpus: 3,
    tsc_khz: 2_500_000,
    timer_hz: 2_500_000_000,
    tsc_deadline: false,
    tsc_adjust: false,
    rdtscp: true,
    invpcid: true,
};
const FIRST: Current = Current { apic_id: 0, cr4: 0, xcr0: 1 };

fn vendor(name: &[u8; 12]) -> Regs {
    let word = |i: usize| u32::from_le_bytes([name[i], name[i + 1], name[i + 2], name[i + 3]]);
    Regs { eax: 0x20, ebx: word(0), edx: word(4), ecx: word(8) }
}

/// A CPU with every bit of every feature leaf set, three cache levels and Skylake's XSAVE layout.
fn everything(name: &'static [u8; 12]) -> impl Fn(u32, u32) -> Regs {
    move |leaf, subleaf| match (leaf, subleaf) {
        (0, _) => vendor(name),
        (4, 0..=2) => Regs { eax: 0xffff_c001 | (subleaf + 1) << 5, ebx: 0x01c0_003f, ecx: 0x3f, edx: 0 },
        (4, _) => Regs::default(),
        (0x8000_0000, _) => Regs { eax: 0x8000_0028, ..vendor(name) },
        (0xd, 0) => Regs { eax: 0x6_02ff, ebx: 576, ecx: 11_008, edx: 0 },
        (0xd, 1) => Regs { eax: 0x1f, ebx: 2_000, ecx: 0x1900, edx: 0 },
        (0xd, 2) => Regs { eax: 256, ebx: 576, ecx: 0, edx: 0 },
        (0xd, 3..=4) => Regs { eax: 64, ebx: 960, ecx: 0, edx: 0 },
        (0xd, 5) => Regs { eax: 64, ebx: 1088, ecx: 0, edx: 0 },
        (0xd, 6) => Regs { eax: 512, ebx: 1152, ecx: 0, edx: 0 },
        (0xd, 7) => Regs { eax: 1024, ebx: 1664, ecx: 2, edx: 0 },
        (0xd, _) => Regs { eax: 8, ebx: 2688, ecx: 0, edx: 0 },
        _ => Regs { eax: u32::MAX, ebx: u32::MAX, ecx: u32::MAX, edx: u32::MAX },
    }
}

fn guest(name: &'static [u8; 12]) -> Cpuid {
    Cpuid::new(everything(name), &OPTIONS)
}

#[test]
fn features_that_need_state_we_do_not_keep_are_hidden() {
    for name in [b"GenuineIntel", b"AuthenticAMD"] {
        let c = guest(name);
        let one = c.answer(1, 0, &FIRST);
        for bit in [2, 3, 4, 5, 6, 7, 8, 10, 11, 14, 15, 18, 24, 27] {
            assert_eq!(one.ecx >> bit & 1, 0, "leaf 1 ECX bit {bit}");
        }
        for bit in [7, 14, 18, 21, 22, 29, 31] {
            assert_eq!(one.edx >> bit & 1, 0, "leaf 1 EDX bit {bit}");
        }
        let seven = c.answer(7, 0, &FIRST);
        for bit in [1, 2, 4, 11, 12, 14, 15, 25] {
            assert_eq!(seven.ebx >> bit & 1, 0, "leaf 7 EBX bit {bit}");
        }
        for bit in [4, 5, 7, 13, 16, 23, 24, 29, 30, 31] {
            assert_eq!(seven.ecx >> bit & 1, 0, "leaf 7 ECX bit {bit}");
        }
        for bit in [5, 9, 11, 13, 15, 18, 19, 20, 22, 24, 25, 28, 30] {
            assert_eq!(seven.edx >> bit & 1, 0, "leaf 7 EDX bit {bit}");
        }
        let extended = c.answer(0x8000_0001, 0, &FIRST);
        for bit in [2, 3, 9, 10, 12, 15, 19, 22, 23, 24, 26, 28, 29] {
            assert_eq!(extended.ecx >> bit & 1, 0, "leaf 0x8000_0001 ECX bit {bit}");
        }
        assert_eq!(extended.edx >> 25 & 1, 0, "FFXSR");
        assert_eq!(extended.edx & (1 << 7 | 1 << 14), 0, "AMD's copies of MCE and MCA");
        assert_eq!(c.answer(0x8000_0008, 0, &FIRST).ebx, 0x1100_d005, "IBPB, IBRS, STIBP, SSBD, PSFD and no more");
        assert_eq!(c.spec_ctrl(), 0x87);
        assert!(c.pred_cmd() && c.arch_capabilities());
    }
}

#[test]
fn leaves_without_a_line_are_zero() {
    let c = guest(b"GenuineIntel");
    for leaf in [3, 5, 8, 9, 0xa, 0xc, 0xe, 0xf, 0x10, 0x12, 0x14, 0x17, 0x1f, 0x20, 0x21, 0x4000_0002, 0x4000_0100] {
        assert_eq!(c.answer(leaf, 0, &FIRST), Regs::default(), "leaf {leaf:#x}");
    }
    for leaf in [0x8000_0009, 0x8000_000a, 0x8000_001b, 0x8000_001d, 0x8000_001e, 0x8000_001f, 0x8000_0022, u32::MAX] {
        assert_eq!(c.answer(leaf, 0, &FIRST), Regs::default(), "leaf {leaf:#x}");
    }
    assert_eq!(c.answer(7, 2, &FIRST), Regs::default());
}

#[test]
fn kvms_signature_offers_the_clock_and_nothing_else() {
    let c = guest(b"GenuineIntel");
    let r = c.answer(0x4000_0000, 0, &FIRST);
    assert_eq!((r.eax, r.ebx, r.ecx, r.edx), (0x4000_0001, 0x4b4d_564b, 0x564b_4d56, 0x4d));
    assert_eq!(c.answer(0x4000_0001, 0, &FIRST), Regs { eax: 1 << 3 | 1 << 24, ..Regs::default() });
    let one = c.answer(1, 0, &FIRST);
    assert_eq!(one.ecx >> 31, 1, "hypervisor");
    assert_eq!(one.ecx >> 21 & 1, 1, "x2APIC");
}

#[test]
fn topology_is_one_package_of_single_threaded_cores() {
    let c = guest(b"GenuineIntel");
    let third = Current { apic_id: 2, ..FIRST };
    let one = c.answer(1, 0, &third);
    assert_eq!(one.ebx >> 24, 2);
    assert_eq!(one.ebx >> 16 & 0xff, 4);
    assert_eq!(c.answer(0xb, 0, &third), Regs { eax: 0, ebx: 1, ecx: 0x100, edx: 2 });
    assert_eq!(c.answer(0xb, 1, &third), Regs { eax: 2, ebx: 3, ecx: 0x201, edx: 2 });
    assert_eq!(c.answer(0xb, 2, &third), Regs { eax: 0, ebx: 0, ecx: 2, edx: 2 });
    let l1 = c.answer(4, 0, &FIRST);
    assert_eq!((l1.eax >> 26, l1.eax >> 14 & 0xfff), (3, 0), "four core IDs, level 1 is a core's own");
    assert_eq!(c.answer(4, 2, &FIRST).eax >> 14 & 0xfff, 3, "level 3 is shared");
    assert_eq!(c.answer(4, 3, &FIRST), Regs::default());

    let amd = guest(b"AuthenticAMD");
    assert_eq!(amd.answer(4, 0, &FIRST), Regs::default());
    assert_eq!(amd.answer(0x8000_0008, 0, &FIRST).ecx, 2 | 2 << 12);
    assert_eq!(amd.answer(0x8000_0001, 0, &FIRST).ecx >> 1 & 1, 1, "CMP_LEGACY");

    let alone = Cpuid::new(everything(b"GenuineIntel"), &Options { vcpus: 1, ..OPTIONS });
    assert_eq!(alone.answer(1, 0, &FIRST).edx >> 28 & 1, 0, "HTT");
    assert_eq!(alone.answer(0xb, 1, &FIRST), Regs { eax: 0, ebx: 1, ecx: 0x201, edx: 0 });
}

#[test]
fn xsave_sizes_follow_the_guests_xcr0() {
    let c = guest(b"GenuineIntel");
    let sizes = |xcr0| {
        let now = Current { xcr0, ..FIRST };
        (c.answer(0xd, 0, &now).ebx, c.answer(0xd, 1, &now).ebx)
    };
    assert_eq!(sizes(0b1), (576, 576));
    assert_eq!(sizes(0b11), (576, 576));
    assert_eq!(sizes(0b111), (832, 832));
    // Compacted: 576 + 256 + 64 + 512, then the next multiple of 64 is where it is; then 1024.
    assert_eq!(sizes(0xe7), (2688, 2432));
    let main = c.answer(0xd, 0, &FIRST);
    assert_eq!((main.eax, main.ecx, main.edx), (0x2e7, 2696, 0), "neither MPX nor AMX");
    assert_eq!(c.answer(0xd, 1, &FIRST).eax, 0b111, "no XSAVES, no XFD");
    assert_eq!(c.answer(0xd, 7, &FIRST), Regs { eax: 1024, ebx: 1664, ecx: 2, edx: 0 });
    assert_eq!(sizes(0x2e7), (2696, 2440), "PKRU is behind it");
    assert_eq!(c.answer(0xd, 9, &FIRST), Regs { eax: 8, ebx: 2688, ecx: 0, edx: 0 });
    assert_eq!(c.answer(0xd, 17, &FIRST), Regs::default());
}

#[test]
fn protection_keys_need_their_state_component_and_ospke_mirrors_cr4() {
    let on = Current { cr4: 1 << 22, ..FIRST };
    for name in [b"GenuineIntel", b"AuthenticAMD"] {
        let c = guest(name);
        assert_eq!(c.answer(7, 0, &FIRST).ecx >> 3 & 3, 0b01);
        assert_eq!(c.answer(7, 0, &on).ecx >> 3 & 3, 0b11);
    }
    let without = Cpuid::new(
        |leaf, subleaf| match (leaf, subleaf) {
            (0xd, 0) => Regs { eax: 0xff, ebx: 576, ecx: 2688, edx: 0 },
            _ => everything(b"GenuineIntel")(leaf, subleaf),
        },
        &OPTIONS,
    );
    assert_eq!(without.answer(7, 0, &on).ecx >> 3 & 3, 0, "nobody could switch PKRU between tasks");
    assert!(!without.xcr0_allowed(0x201));
}

/// The register of an answer with this index.
fn register(r: Regs, index: usize) -> u32 {
    [r.eax, r.ebx, r.ecx, r.edx][index]
}

#[test]
fn a_feature_that_is_held_back_is_never_shown() {
    let options = Options { tsc_deadline: true, tsc_adjust: true, ..OPTIONS };
    let now = Current { apic_id: 0, cr4: u64::MAX, xcr0: 1 };
    for name in [b"GenuineIntel", b"AuthenticAMD"] {
        let c = Cpuid::new(everything(name), &options);
        for h in held_back::HELD_BACK {
            let shown = register(c.answer(h.leaf, h.subleaf, &now), h.register) >> h.bit & 1;
            assert_eq!(shown, 0, "{} ({:#x}.{}) is shown", h.name, h.leaf, h.subleaf);
        }
    }
}

#[test]
fn every_bit_of_the_feature_words_is_shown_or_held_back_for_a_reason() {
    // Leaf, sub-leaf, register, and the bits that the manuals do not define, or that are no features: MAWAU in leaf 7.
    let words = [
        (1, 0, 2, 1 << 16),
        (1, 0, 3, 1 << 10 | 1 << 20 | 1 << 30),
        (7, 0, 1, 0),
        (7, 0, 2, 1 << 15 | 0x1f << 17 | 1 << 26),
        (7, 0, 3, 1 | 3 << 6 | 1 << 12 | 1 << 17 | 1 << 21),
        (0x8000_0001, 0, 2, 1 << 14 | 1 << 18 | 1 << 20 | 1 << 25 | 1 << 31),
    ];
    let options = Options { tsc_deadline: true, tsc_adjust: true, ..OPTIONS };
    let now = Current { apic_id: 0, cr4: u64::MAX, xcr0: 1 };
    let answers = [b"GenuineIntel", b"AuthenticAMD"].map(|name| Cpuid::new(everything(name), &options));
    for (leaf, subleaf, index, undefined) in words {
        let shown = answers.each_ref().map(|c| register(c.answer(leaf, subleaf, &now), index));
        let held = held_back::HELD_BACK.iter().filter(|h| (h.leaf, h.subleaf, h.register) == (leaf, subleaf, index));
        let held = held.fold(0, |bits, h| bits | 1_u32 << h.bit);
        assert_eq!(shown[0] | shown[1] | held | undefined, u32::MAX, "leaf {leaf:#x}.{subleaf} register {index}");
        assert_eq!((shown[0] | shown[1]) & (held | undefined), 0, "leaf {leaf:#x}.{subleaf} register {index}");
    }
}

#[test]
fn the_document_shows_what_is_held_back() {
    const NAMES: [&str; 4] = ["EAX", "EBX", "ECX", "EDX"];
    let rows = include_str!("../../CPUID.md").lines().filter(|line| line.starts_with("| ")).skip(1);
    let table = held_back::HELD_BACK.iter().map(|h| {
        assert!(!h.why.is_empty());
        format!("| {} | {:#x}.{} {} | {} | {} |", h.name, h.leaf, h.subleaf, NAMES[h.register], h.bit, h.why)
    });
    assert!(rows.eq(table), "CPUID.md does not show the table of held_back.rs");
}

#[test]
fn osxsave_mirrors_cr4() {
    let c = guest(b"GenuineIntel");
    let on = Current { cr4: 1 << 18, ..FIRST };
    assert_eq!(c.answer(1, 0, &on).ecx >> 27 & 1, 1);
    let old = |leaf, subleaf| match leaf {
        1 => Regs { ecx: 1 << 27, ..Regs::default() },
        _ => everything(b"GenuineIntel")(leaf, subleaf),
    };
    let without = Cpuid::new(old, &OPTIONS);
    assert_eq!(without.answer(1, 0, &on).ecx >> 27 & 1, 0, "no XSAVE, no OSXSAVE");
    assert_eq!(without.answer(0xd, 0, &on), Regs::default());
    assert!(!without.xcr0_allowed(1));
}

#[test]
fn xsetbv_takes_only_what_hardware_would() {
    let c = guest(b"GenuineIntel");
    for good in [0b1, 0b11, 0b111, 0xe7, 0x201, 0x2e7] {
        assert!(c.xcr0_allowed(good), "{good:#x}");
    }
    for bad in [0, 0b10, 0b101, 0x27, 0xe3, 0x1f, 0x2_0007, 1 << 63 | 1] {
        assert!(!c.xcr0_allowed(bad), "{bad:#x}");
    }
}

#[test]
fn frequencies_multiply_out_to_the_tscs() {
    for khz in [1_000_000_u64, 2_500_000, 4_294_967, 4_300_000, 5_100_000] {
        let options = Options { tsc_khz: khz, timer_hz: timer_hz(khz), ..OPTIONS };
        let c = Cpuid::new(everything(b"AuthenticAMD"), &options);
        let r = c.answer(0x15, 0, &FIRST);
        let hz = u64::from(r.ecx) * u64::from(r.ebx) / u64::from(r.eax);
        assert!(hz.abs_diff(khz * 1000) <= 1, "{hz}");
        assert_eq!(u64::from(r.ecx), timer_hz(khz));
        assert_eq!(u64::from(c.answer(0x16, 0, &FIRST).eax), khz / 1000);
    }
}

#[test]
fn a_physical_timers_frequency_is_the_crystals() {
    let options = Options { timer_hz: 24_000_000, ..OPTIONS };
    let r = Cpuid::new(everything(b"GenuineIntel"), &options).answer(0x15, 0, &FIRST);
    assert_eq!(u64::from(r.ecx), 24_000_000);
    assert_eq!(u64::from(r.ecx) * u64::from(r.ebx) / u64::from(r.eax), 2_500_000_000);
}

#[test]
fn what_a_back_end_cannot_let_run_is_hidden() {
    let c = Cpuid::new(
        everything(b"GenuineIntel"),
        &Options { rdtscp: false, invpcid: false, tsc_deadline: true, tsc_adjust: true, ..OPTIONS },
    );
    assert_eq!(c.answer(7, 0, &FIRST).ebx >> 10 & 1, 0);
    assert_eq!(c.answer(7, 0, &FIRST).ebx >> 1 & 1, 1, "TSC_ADJUST is the machine's own");
    assert_eq!(c.answer(7, 0, &FIRST).ecx >> 22 & 1, 0);
    assert_eq!(c.answer(0x8000_0001, 0, &FIRST).edx >> 27 & 1, 0);
    assert_eq!(c.answer(1, 0, &FIRST).ecx >> 24 & 1, 1);
}

#[test]
fn a_host_with_few_leaves_does_not_lend_the_guest_what_it_answers_beyond_them() {
    // Intel answers leaves beyond the last with the last one's data.
    let old = |leaf, subleaf| match leaf {
        0 => Regs { eax: 3, ..vendor(b"GenuineIntel") },
        0x8000_0000 => Regs { eax: 0x8000_0004, ..Regs::default() },
        _ => everything(b"GenuineIntel")(leaf, subleaf),
    };
    let c = Cpuid::new(old, &OPTIONS);
    assert_eq!(c.answer(0, 0, &FIRST).eax, 0x16);
    assert_eq!(c.answer(7, 0, &FIRST), Regs::default());
    assert_eq!(c.answer(0xd, 0, &FIRST), Regs::default());
    assert_eq!(c.answer(0x8000_0008, 0, &FIRST), Regs::default());
}

#[test]
fn the_bits_of_spec_ctrl_follow_the_features() {
    let with = |edx, ebx| {
        let host = move |leaf, subleaf| match (leaf, subleaf) {
            (7, 0) => Regs { edx, ..Regs::default() },
            (0x8000_0008, _) => Regs { ebx, ..Regs::default() },
            _ => everything(b"GenuineIntel")(leaf, subleaf),
        };
        let c = Cpuid::new(host, &OPTIONS);
        (c.spec_ctrl(), c.pred_cmd(), c.arch_capabilities())
    };
    assert_eq!(with(0, 0), (0, false, false));
    assert_eq!(with(1 << 26, 0), (1, true, false));
    assert_eq!(with(1 << 27, 0), (2, false, false));
    assert_eq!(with(1 << 31, 0), (4, false, false));
    assert_eq!(with(1 << 29, 0), (0, false, true));
    assert_eq!(with(0, 1 << 12), (0, true, false));
    assert_eq!(with(0, 1 << 14 | 1 << 15 | 1 << 24 | 1 << 28), (0x87, false, false));
}
