//! Traces for the tests: one like a machine's, and arbitrary ones.

use proptest::collection::vec;
use proptest::prelude::*;
use sidecore_trace::clock::Clock;
use sidecore_trace::model::{Damage, Device, Event, Loss, Names, Trace};
use trace::record::{BUSY, INTERRUPT, NO_GUEST, NOTIFIED};
use trace::{Kind, Record};

fn names() -> Names {
    let mut names = Names::default();
    names.cores.extend([(1, "engine".to_owned()), (2, "guest".to_owned())]);
    names.engines.insert(1, 0);
    names.guests.extend([(0, "alpha".to_owned()), (1, "b;<&\" c".to_owned())]);
    names.devices.insert((0, 3), Device { guest: Some(0), name: "net0".to_owned() });
    names.reasons.extend([(0, "cpuid".to_owned()), (1, "hlt".to_owned())]);
    names
}

/// Three exits of one guest, an injection, and a turn of an engine with a visit, at 2 GHz, with a loss.
pub fn example() -> Trace {
    let exit = |tsc, code, span| Record {
        guest: 0,
        code,
        span,
        a: 0xffff_ffff_8100_0110,
        b: 0x4000_0001,
        ..Record::new(Kind::Exit, tsc)
    };
    let records = [
        (2, exit(1_000, 0, 2_000)),
        (1, Record { code: BUSY, span: 5_000, a: 4, ..Record::new(Kind::Turn, 2_000) }),
        (1, Record { guest: 0, unit: 1, span: 3_000, a: 3 << 32 | 4, b: 240, ..Record::new(Kind::Visit, 2_500) }),
        (1, Record { guest: 0, unit: 1, code: NOTIFIED, a: 3 << 32, ..Record::new(Kind::Completion, 5_400) }),
        (2, exit(10_000, 0, 4_000)),
        (2, Record { guest: 0, code: 0x41, b: INTERRUPT, ..Record::new(Kind::Injection, 13_000) }),
        (2, exit(20_000, 1, 6_000)),
    ];
    let events = records.iter().zip(0..).map(|(&(core, record), number)| Event { core, number, record }).collect();
    let losses = vec![Loss { core: 2, number: 5, records: 1, before: Some(20_000) }];
    Trace::new(Clock::new(2_000_000, Some(1_700_000_000_000_000_000)), names(), events, losses, Damage::default())
}

prop_compose! {
    /// A record with any numbers. Times are often near each other, so that spans overlap.
    fn record()(
        tsc in prop_oneof![0_u64..200, any::<u64>()],
        kind in prop_oneof![0_u8..20, any::<u8>()],
        code in prop_oneof![0_u8..3, any::<u8>()],
        guest in prop_oneof![0_u8..3, Just(NO_GUEST), any::<u8>()],
        unit in 0_u8..3,
        span in prop_oneof![0_u32..100, any::<u32>()],
        a in prop_oneof![0_u64..3, any::<u64>()],
        b: u64,
    ) -> Record {
        Record { tsc, kind, code, guest, unit, span, a, b }
    }
}

prop_compose! {
    /// A trace of any records, of three cores, with losses, at any frequency.
    pub fn any_trace()(
        records in vec((0_u32..3, record()), 0..60),
        losses in vec((0_u32..3, any::<u64>(), any::<u64>(), any::<Option<u64>>()), 0..5),
        khz in prop_oneof![Just(0_u64), Just(2_000_000), any::<u64>()],
        wall: Option<u64>,
    ) -> Trace {
        let events = records.iter().zip(0..).map(|(&(core, record), number)| Event { core, number, record }).collect();
        let losses =
            losses.into_iter().map(|(core, number, records, before)| Loss { core, number, records, before }).collect();
        Trace::new(Clock::new(khz, wall), names(), events, losses, Damage::default())
    }
}
