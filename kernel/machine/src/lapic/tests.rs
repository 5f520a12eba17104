//! Registers, priorities and errors of the local APIC.

use super::*;
use proptest::prelude::*;

const NOW: Clock = Clock { tsc: 1_000_000, offset: 0 };

fn apic() -> LocalApic {
    LocalApic::new(Settings {
        id: 0x12,
        bootstrap: true,
        timer_hz: 1_000_000_000,
        tsc_hz: 2_000_000_000,
        tsc_deadline: true,
    })
}

fn enabled() -> LocalApic {
    let mut a = apic();
    assert_eq!(a.write(msr::SVR, 0x1ff, NOW), Ok(Effect::None));
    a
}

/// Takes interrupts as a CPU with IF set would, each in service until its EOI.
fn inject(a: &mut LocalApic) -> Option<u8> {
    let vector = a.next_interrupt()?;
    a.acknowledge(vector);
    Some(vector)
}

fn eoi(a: &mut LocalApic) -> Effect {
    a.write(msr::EOI, 0, NOW).unwrap()
}

#[test]
fn starts_in_x2apic_mode_disabled_by_software_and_cannot_leave_the_mode() {
    let mut a = apic();
    assert_eq!(a.read(msr::APIC_BASE, NOW), Ok(0xfee0_0d00));
    assert_eq!(a.write(msr::APIC_BASE, 0xfee0_0d00, NOW), Ok(Effect::None));
    for refused in [0xfee0_0900, 0xfee0_0100, 0xfee0_0500, 0xfed0_0d00, 0xfee0_0d01, 0x1_fee0_0d00] {
        assert_eq!(a.write(msr::APIC_BASE, refused, NOW), Err(GeneralProtection), "{refused:#x}");
    }
    assert_eq!(a.read(msr::SVR, NOW), Ok(0xff));
    assert_eq!(a.read(msr::ID, NOW), Ok(0x12));
    assert_eq!(a.read(msr::LDR, NOW), Ok(0x0001_0004));
    assert_eq!(a.read(msr::VERSION, NOW), Ok(0x5_0015));
    for lvt in msr::LVT_TIMER..=msr::LVT_ERROR {
        assert_eq!(a.read(lvt, NOW), Ok(0x1_0000));
    }
    assert!(!a.deliver(0x40), "a disabled APIC takes no interrupts");
    assert_eq!(a.next_interrupt(), None);
}

#[test]
fn every_register_is_readable_and_writable_exactly_as_the_manual_says() {
    let readable =
        |n: u32| matches!(n, 0x802 | 0x803 | 0x808 | 0x80a | 0x80d | 0x80f..=0x828 | 0x830 | 0x832..=0x839 | 0x83e);
    let writable = |n: u32| matches!(n, 0x808 | 0x80b | 0x80f | 0x828 | 0x830 | 0x832..=0x838 | 0x83e | 0x83f);
    for number in 0x800..=0x8ff {
        assert!(LocalApic::owns(number));
        let mut a = enabled();
        assert_eq!(a.read(number, NOW).is_ok(), readable(number), "read {number:#x}");
        assert_eq!(a.write(number, 0, NOW).is_ok(), writable(number), "write {number:#x}");
    }
}

#[test]
fn reserved_bits_fault() {
    // Register and the bits that may be set without a fault, one at a time.
    let cases: [(u32, u64); 14] = [
        (msr::TPR, 0xff),
        (msr::EOI, 0),
        (msr::SVR, 0x3ff),
        (msr::ESR, 0),
        (msr::ICR, 0xffff_ffff_000c_dfff),
        (msr::LVT_TIMER, 0x7_50ff),
        (msr::LVT_THERMAL, 0x1_57ff),
        (msr::LVT_PERFORMANCE, 0x1_57ff),
        (msr::LVT_LINT0, 0x1_f7ff),
        (msr::LVT_LINT1, 0x1_f7ff),
        (msr::LVT_ERROR, 0x1_50ff),
        (msr::INITIAL_COUNT, 0xffff_ffff),
        (msr::DIVIDE, 0b1011),
        (msr::SELF_IPI, 0xff),
    ];
    for (number, allowed) in cases {
        for bit in 0..64 {
            let ok = enabled().write(number, 1 << bit, NOW).is_ok();
            assert_eq!(ok, allowed >> bit & 1 != 0, "{number:#x} bit {bit}");
        }
    }
    assert_eq!(enabled().write(msr::LVT_TIMER, 0x6_0040, NOW), Err(GeneralProtection), "timer mode 3");
}

#[test]
fn without_tsc_deadline_mode_its_bits_fault() {
    let mut a = LocalApic::new(Settings { tsc_deadline: false, ..apic().settings });
    assert_eq!(a.write(msr::LVT_TIMER, 0x4_0040, NOW), Err(GeneralProtection));
    assert_eq!(a.write(msr::TSC_DEADLINE, 1, NOW), Err(GeneralProtection));
    assert_eq!(a.read(msr::TSC_DEADLINE, NOW), Err(GeneralProtection));
}

#[test]
fn interrupts_nest_by_class_and_wait_within_one() {
    let mut a = enabled();
    for vector in [0x31, 0x35, 0x42, 0xfe] {
        assert!(a.deliver(vector));
    }
    assert_eq!(inject(&mut a), Some(0xfe));
    assert_eq!(a.ppr(), 0xf0);
    assert_eq!(inject(&mut a), None);
    eoi(&mut a);
    assert_eq!(inject(&mut a), Some(0x42));
    a.deliver(0x4f);
    assert_eq!(inject(&mut a), None, "same class");
    a.deliver(0x50);
    assert_eq!(inject(&mut a), Some(0x50), "higher class nests");
    eoi(&mut a);
    assert_eq!(a.ppr(), 0x40);
    eoi(&mut a);
    assert_eq!(inject(&mut a), Some(0x4f));
    eoi(&mut a);
    assert_eq!(inject(&mut a), Some(0x35));
    eoi(&mut a);
    assert_eq!(inject(&mut a), Some(0x31));
    eoi(&mut a);
    assert_eq!((inject(&mut a), eoi(&mut a)), (None, Effect::None));
}

#[test]
fn tpr_holds_back_its_class_and_cr8_is_its_upper_half() {
    let mut a = enabled();
    a.deliver(0x58);
    a.write(msr::TPR, 0x5c, NOW).unwrap();
    assert_eq!((a.next_interrupt(), a.ppr(), a.cr8()), (None, 0x5c, 5));
    a.set_cr8(4).unwrap();
    assert_eq!((a.next_interrupt(), a.read(msr::TPR, NOW)), (Some(0x58), Ok(0x40)));
    assert_eq!(a.set_cr8(16), Err(GeneralProtection));
    assert_eq!(a.set_cr8(15), Ok(()));
    assert_eq!(a.next_interrupt(), None);
}

#[test]
fn requested_in_service_and_trigger_mode_are_seen_in_their_registers() {
    let mut a = enabled();
    a.accept(0x61, true);
    assert_eq!(a.read(msr::IRR + 3, NOW), Ok(2));
    assert_eq!(a.read(msr::TMR + 3, NOW), Ok(2));
    assert_eq!(inject(&mut a), Some(0x61));
    assert_eq!((a.read(msr::IRR + 3, NOW), a.read(msr::ISR + 3, NOW)), (Ok(0), Ok(2)));
    a.deliver(0x62);
    assert_eq!(eoi(&mut a), Effect::EndOfInterrupt(0x61), "level-triggered: the IOAPIC must hear of it");
    assert_eq!(inject(&mut a), Some(0x62));
    assert_eq!(eoi(&mut a), Effect::None);
    a.deliver(0x61);
    assert_eq!(a.read(msr::TMR + 3, NOW), Ok(0), "the mode of the last acceptance");
}

#[test]
fn acknowledging_what_is_not_requested_does_nothing() {
    let mut a = enabled();
    a.acknowledge(0x80);
    assert_eq!(a.ppr(), 0);
}

#[test]
fn software_disable_masks_the_table_and_holds_what_is_pending() {
    let mut a = enabled();
    a.write(msr::LVT_ERROR, 0xfe, NOW).unwrap();
    a.deliver(0x77);
    a.write(msr::SVR, 0xff, NOW).unwrap();
    assert_eq!(a.read(msr::LVT_ERROR, NOW), Ok(0x1_00fe));
    a.write(msr::LVT_ERROR, 0xfd, NOW).unwrap();
    assert_eq!(a.read(msr::LVT_ERROR, NOW), Ok(0x1_00fd), "cannot be unmasked while disabled");
    assert_eq!(a.next_interrupt(), Some(0x77));
    assert!(!a.deliver(0x78));
}

#[test]
fn errors_show_after_a_write_and_raise_the_error_interrupt() {
    let mut a = enabled();
    a.write(msr::LVT_ERROR, 0xfe, NOW).unwrap();
    assert_eq!(a.write(msr::ICR, 0x0000_0001_0000_000e, NOW), Ok(Effect::None));
    assert_eq!(inject(&mut a), Some(0xfe));
    assert_eq!(a.read(msr::ESR, NOW), Ok(0), "not before a write");
    a.write(msr::ESR, 0, NOW).unwrap();
    assert_eq!(a.read(msr::ESR, NOW), Ok(0x20));
    a.write(msr::ESR, 0, NOW).unwrap();
    assert_eq!(a.read(msr::ESR, NOW), Ok(0));
    assert!(!a.deliver(0x0f));
    a.write(msr::LVT_ERROR, 0x05, NOW).unwrap();
    a.write(msr::SELF_IPI, 3, NOW).unwrap();
    a.write(msr::ESR, 0, NOW).unwrap();
    assert_eq!(a.read(msr::ESR, NOW), Ok(0x60));
}

#[test]
fn self_ipis_arrive_and_others_are_handed_out() {
    let mut a = enabled();
    assert_eq!(a.write(msr::SELF_IPI, 0xf6, NOW), Ok(Effect::None));
    assert_eq!(inject(&mut a), Some(0xf6));
    eoi(&mut a);
    assert_eq!(a.write(msr::ICR, 0x4_00f5, NOW), Ok(Effect::None));
    assert_eq!(inject(&mut a), Some(0xf5));
    let message = Message { destination: Destination::AllBut(0x12), delivery: Delivery::Nmi };
    assert_eq!(a.write(msr::ICR, 0xc_0400, NOW), Ok(Effect::Ipi(message)));
    assert_eq!(a.write(msr::ICR, 0x7_000c_1400, NOW), Ok(Effect::Ipi(message)));
    assert_eq!(a.read(msr::ICR, NOW), Ok(0x7_000c_0400), "the status bit reads as idle");
}

#[test]
fn the_timer_interrupts_through_its_entry() {
    let mut a = enabled();
    a.write(msr::DIVIDE, 0b1011, NOW).unwrap();
    a.write(msr::LVT_TIMER, 0xec, NOW).unwrap();
    a.write(msr::INITIAL_COUNT, 1000, NOW).unwrap();
    assert_eq!(a.deadline(), Some(NOW.tsc + 2000));
    assert_eq!(a.read(msr::CURRENT_COUNT, Clock { tsc: NOW.tsc + 1000, offset: 0 }), Ok(500));
    a.expire(Clock { tsc: NOW.tsc + 1999, offset: 0 });
    assert_eq!(a.next_interrupt(), None);
    a.expire(Clock { tsc: NOW.tsc + 2000, offset: 0 });
    assert_eq!((inject(&mut a), a.deadline()), (Some(0xec), None));

    a.write(msr::LVT_TIMER, 0x4_00ec, NOW).unwrap();
    a.write(msr::TSC_DEADLINE, 5_000_000, NOW).unwrap();
    assert_eq!(a.read(msr::TSC_DEADLINE, NOW), Ok(5_000_000));
    assert_eq!(a.deadline(), Some(5_000_000));
    eoi(&mut a);
    a.expire(Clock { tsc: 5_000_000, offset: 0 });
    assert_eq!((inject(&mut a), a.read(msr::TSC_DEADLINE, NOW)), (Some(0xec), Ok(0)));
}

#[test]
fn a_masked_timer_runs_without_interrupting() {
    let mut a = enabled();
    a.write(msr::DIVIDE, 0b1011, NOW).unwrap();
    a.write(msr::LVT_TIMER, 0x1_00ec, NOW).unwrap();
    a.write(msr::INITIAL_COUNT, 1000, NOW).unwrap();
    assert_eq!(a.deadline(), None);
    assert_eq!(a.read(msr::CURRENT_COUNT, Clock { tsc: NOW.tsc + 1000, offset: 0 }), Ok(500));
    a.write(msr::LVT_TIMER, 0xec, Clock { tsc: NOW.tsc + 9000, offset: 0 }).unwrap();
    assert_eq!((a.next_interrupt(), a.deadline()), (None, None), "what fell due while masked is gone");
}

#[test]
fn init_forgets_all_but_identity_and_mode() {
    let mut a = enabled();
    a.deliver(0x99);
    a.write(msr::TPR, 0x10, NOW).unwrap();
    a.write(msr::LVT_TIMER, 0x2_0040, NOW).unwrap();
    a.write(msr::INITIAL_COUNT, 5, NOW).unwrap();
    a.init();
    assert_eq!((a.next_interrupt(), a.cr8(), a.deadline()), (None, 0, None));
    assert_eq!((a.read(msr::SVR, NOW), a.read(msr::ID, NOW)), (Ok(0xff), Ok(0x12)));
    assert_eq!(a.read(msr::APIC_BASE, NOW), Ok(0xfee0_0d00));
}

proptest! {
    /// Whatever is written, nothing panics, and an interrupt offered is above the processor's priority.
    #[test]
    fn hostile_register_traffic_is_harmless(
        accesses in proptest::collection::vec((0x7f8u32..0x848, any::<u64>(), 0u8..8, any::<u8>(), any::<u32>()), 1..200)
    ) {
        let mut a = apic();
        let mut clock = NOW;
        for (number, value, narrow, vector, step) in accesses {
            clock.tsc = clock.tsc.wrapping_add(u64::from(step) << narrow);
            clock.offset = clock.offset.wrapping_add(value);
            let number = if narrow == 7 { msr::TSC_DEADLINE } else { number };
            let _ = a.write(number, value >> (u32::from(narrow) * 8), clock);
            let _ = a.read(number, clock);
            a.accept(vector, value & 1 != 0);
            a.expire(clock);
            let _ = a.deadline();
            if let Some(vector) = a.next_interrupt() {
                prop_assert!(vector >= 16 && vector >> 4 > a.ppr() >> 4);
                a.acknowledge(vector);
                prop_assert!(a.ppr() >> 4 >= vector >> 4);
            }
        }
    }

    /// Each vector delivered once is injected once, highest class first among those waiting.
    #[test]
    fn every_delivery_is_injected_once(vectors in proptest::collection::btree_set(16u8.., 1..60)) {
        let mut a = enabled();
        for v in &vectors {
            a.deliver(*v);
        }
        let mut seen = Vec::new();
        while let Some(v) = inject(&mut a) {
            eoi(&mut a);
            seen.push(v);
        }
        prop_assert_eq!(seen, vectors.into_iter().rev().collect::<Vec<_>>());
    }
}
