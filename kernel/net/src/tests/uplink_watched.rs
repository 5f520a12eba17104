//! What is shown of frames at an uplink: as many steps, drops and captured frames as its counters have, on both paths, and nothing while
//! nobody follows or captures frames.

use std::sync::Mutex;

use super::LEAVING;
use crate::counters::{UplinkCounters, UplinkDrop};
use crate::offload::samples::{Sent, sample};
use crate::policy::Policy;
use crate::policy::stage::{Action, Rule, Stage};
use crate::policy::vlan::Membership;
use crate::testing::{BROADCAST, Guest};
use crate::tests::support::Bench;
use crate::tests::support::nic::{End, OUTSIDE, TestNic, from_outside, with_uplinks};
use crate::watch::{Batch, FrameWatcher, Seen, Step, UplinkStep, Watch};
use engine::control::Reply;
use trace::capture::Way;
use trace::frames::{Destination, FIRST_UPLINK, FIRST_UPLINK_CAUSE};
use trace::{Classes, Switch};

/// A captured frame: which way, its length, its first bytes, the cause if it was dropped.
type Captured = (Way, u32, Vec<u8>, Option<u8>);

/// Keeps the steps at uplinks: the number of the uplink, the step, the bytes of the frame. Also the frames that are captured at the first
/// one.
#[derive(Default)]
struct Keeper(Mutex<Vec<(usize, UplinkStep, u32)>>, Mutex<Vec<Captured>>);

impl FrameWatcher for Keeper {
    fn dropped(&self, _: usize, _: u8, _: u32) {}
    fn seen(&self, seen: &Seen<'_>) {
        if seen.port == usize::from(FIRST_UPLINK) {
            self.1.lock().unwrap().push((seen.way, seen.len, seen.bytes.to_vec(), seen.dropped));
        }
    }
    fn step(&self, _: Step, _: usize, _: u32) {}
    fn batch(&self, _: &Batch<'_>) {}

    fn at_uplink(&self, uplink: usize, step: UplinkStep, lengths: &[u32]) {
        self.0.lock().unwrap().extend(lengths.iter().map(|&len| (uplink, step, len)));
    }
}

impl Keeper {
    /// Takes what was kept.
    fn take(&self) -> Vec<(usize, UplinkStep, u32)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Two guests and two uplinks: the first one has these rules, the second one no port uses.
struct World {
    bench: Bench<TestNic>,
    end: End,
    keeper: &'static Keeper,
    on: &'static Switch,
    guests: [Guest; 2],
}

impl World {
    fn new(policy: Option<Policy>, fast: bool) -> Self {
        let (mut bench, mut ends) = with_uplinks([policy, None]);
        if !fast {
            bench.engine.backend_mut().disable_fast_path();
        }
        let (keeper, on): (&Keeper, &Switch) = (Box::leak(Box::default()), Box::leak(Box::default()));
        bench.engine.backend_mut().watch(Watch { watcher: keeper, on });
        on.set(Classes::FRAMES);
        let mut guests = [1, 2].map(|number| Guest::new(number, LEAVING, 256, 1500));
        for (port, guest) in guests.iter_mut().enumerate() {
            guest.post(32, &[1600]);
            assert_eq!(bench.attach(port, guest), Reply::Attached);
        }
        Self { bench, end: ends.remove(0), keeper, on, guests }
    }

    fn comes(&self, frame: Vec<u8>) {
        self.end.wire.borrow_mut().inbox.push_back(vec![frame]);
    }
}

/// Checks the steps of the first uplink against its counters, which began at zero.
fn as_counted(steps: &[(usize, UplinkStep, u32)], c: &UplinkCounters) {
    assert!(steps.iter().all(|&(uplink, ..)| uplink == 0), "{steps:?}");
    let of = |wanted: fn(UplinkStep) -> bool| {
        let lengths = steps.iter().filter(|&&(_, step, _)| wanted(step)).map(|&(.., len)| u64::from(len));
        lengths.fold((0, 0), |(count, sum), len| (count + 1, sum + len))
    };
    let received = of(|step| matches!(step, UplinkStep::Received(_)));
    assert_eq!(received, (c.rx_packets.get(), c.rx_bytes.get()), "from the wire");
    assert_eq!(of(|step| step == UplinkStep::Given), (c.tx_packets.get(), c.tx_bytes.get()), "to the NIC");
    for drop in UplinkDrop::ALL {
        let shown = steps.iter().filter(|&&(_, step, _)| step == UplinkStep::Dropped(drop)).count();
        assert_eq!(shown as u64, drop.counter(c).get(), "{}", drop.name());
    }
    // What is not dropped before is switched.
    let before = |drop| matches!(drop, UplinkDrop::Malformed | UplinkDrop::OwnSource);
    let dropped = steps.iter().filter(|&&(_, step, _)| matches!(step, UplinkStep::Dropped(drop) if before(drop)));
    let switched = of(|step| matches!(step, UplinkStep::Switched(_)));
    assert!(switched.0 + dropped.count() as u64 <= received.0);
}

#[test]
fn frames_of_both_ways_and_of_both_paths_are_shown_as_the_counters_have_them() {
    for fast in [true, false] {
        let mut world = World::new(None, fast);
        let World { bench, end, guests, keeper, .. } = &mut world;
        let wire = &end.wire;
        // A batch, one for all, and one in too many buffers for the fast path.
        for (to, len, cuts) in [(OUTSIDE, 60, &[][..]), (OUTSIDE, 1500, &[]), (BROADCAST, 90, &[]), (OUTSIDE, 700, &[12, 90, 200])] {
            let frame = guests[0].frame(to, len, 1);
            guests[0].send(&frame, cuts);
        }
        bench.turn();
        let given: Vec<u32> =
            keeper.0.lock().unwrap().iter().filter(|(_, step, _)| *step == UplinkStep::Given).map(|&(.., len)| len).collect();
        assert_eq!(given, [60, 1500, 90, 700], "fast path: {fast}");
        // A frame in segments, of which the NIC takes two; then it takes nothing.
        let sent = Sent { payload: vec![7; 3000], mss: 1000, ..sample(false) };
        let mut frame = sent.frame();
        frame[..6].copy_from_slice(&OUTSIDE);
        frame[6..12].copy_from_slice(&guests[0].mac);
        wire.borrow_mut().room = 2;
        assert!(guests[0].send_with(&sent.header(), &frame, &[]));
        bench.turn();
        let plain = guests[0].frame(OUTSIDE, 60, 0);
        guests[0].send(&plain, &[]);
        bench.turn();
        // Frames that the NIC has and does not send.
        {
            let mut wire = wire.borrow_mut();
            (wire.room, wire.unsent) = (100, true);
        }
        guests[0].send(&plain, &[]);
        bench.turn();
        bench.turn();
        wire.borrow_mut().unsent = false;

        let (a, b) = (guests[0].mac, guests[1].mac);
        for frame in [
            from_outside(a, OUTSIDE, 1514),
            from_outside(BROADCAST, OUTSIDE, 64),
            from_outside([2, 9, 9, 9, 9, 9], OUTSIDE, 64),
            from_outside(a, b, 64),
            from_outside(a, BROADCAST, 64),
            vec![0; 13],
        ] {
            wire.borrow_mut().inbox.push_back(vec![frame]);
        }
        bench.turn();
        let c = end.counters;
        let dropped = UplinkDrop::ALL.map(|drop| drop.counter(c).get());
        assert_eq!((dropped, c.tx_segments.get()), ([2, 1, 1, 0, 0, 2, 1], 2), "fast path: {fast}");
        let steps = keeper.take();
        as_counted(&steps, c);
        let places: Vec<_> = steps.iter().filter_map(|&(_, step, _)| if let UplinkStep::Switched(to) = step { Some(to) } else { None }).collect();
        assert_eq!(places, [Destination::Port(0), Destination::Several, Destination::Nobody], "what is not dropped before");
        assert_eq!(steps.iter().find(|(_, step, _)| *step == UplinkStep::Dropped(UplinkDrop::Unsent)).unwrap().2, 0);
    }
}

#[test]
fn what_the_rules_of_an_uplink_refuse_is_shown_with_its_cause() {
    let mut policy = Policy { vlan: Membership::Plain, ..Policy::default() };
    let udp = Rule { ether_type: Some(0x1234), ..Rule::default() };
    policy.enter.push(Stage::new(udp.clone(), Action::Deny)).unwrap();
    policy.leave.push(Stage::new(udp, Action::Deny)).unwrap();
    let mut world = World::new(Some(policy), true);
    let denied = |mut frame: Vec<u8>| {
        frame[12..14].copy_from_slice(&[0x12, 0x34]);
        frame
    };
    let frame = denied(world.guests[0].frame(OUTSIDE, 80, 0));
    world.guests[0].send(&frame, &[]);
    world.comes(denied(from_outside(world.guests[0].mac, OUTSIDE, 70)));
    world.comes(from_outside(world.guests[0].mac, OUTSIDE, 71));
    world.bench.turn();
    let steps = world.keeper.take();
    as_counted(&steps, world.end.counters);
    let dropped: Vec<_> = steps.iter().filter(|(_, step, _)| matches!(step, UplinkStep::Dropped(_))).copied().collect();
    assert_eq!(dropped, [(0, UplinkStep::Dropped(UplinkDrop::Refused), 70), (0, UplinkStep::Dropped(UplinkDrop::Denied), 80)]);
}

#[test]
fn while_nobody_follows_frames_only_drops_are_shown() {
    let mut world = World::new(None, true);
    world.on.set(Classes::DROPS);
    let frame = world.guests[0].frame(OUTSIDE, 60, 0);
    world.guests[0].send(&frame, &[]);
    world.guests[0].send(&frame, &[10, 30, 50]);
    world.comes(from_outside(world.guests[0].mac, OUTSIDE, 64));
    world.comes(vec![0; 13]);
    world.bench.turn();
    assert_eq!((world.end.counters.tx_packets.get(), world.end.counters.rx_packets.get()), (2, 2));
    assert_eq!(world.keeper.take(), [(0, UplinkStep::Dropped(UplinkDrop::Malformed), 13)]);
}

#[test]
fn each_frame_at_an_uplink_is_captured_once_with_its_fate() {
    for fast in [true, false] {
        let mut world = World::new(None, fast);
        world.on.set(Classes::CAPTURES);
        let World { bench, end, guests, keeper, .. } = &mut world;
        let out: Vec<Vec<u8>> = [(OUTSIDE, 60), (OUTSIDE, 1500), (BROADCAST, 90)]
            .into_iter()
            .map(|(to, len)| guests[0].frame(to, len, 1))
            .collect();
        out.iter().for_each(|frame| assert!(guests[0].send(frame, &[])));
        bench.turn();
        let (a, b) = (guests[0].mac, guests[1].mac);
        let came = [
            from_outside(a, OUTSIDE, 1514),
            from_outside(BROADCAST, OUTSIDE, 64),
            from_outside([2, 9, 9, 9, 9, 9], OUTSIDE, 64),
            from_outside(a, b, 64),
            vec![0; 13],
        ];
        came.iter().for_each(|frame| end.wire.borrow_mut().inbox.push_back(vec![frame.clone()]));
        bench.turn();
        end.wire.borrow_mut().room = 0;
        let refused = guests[0].frame(OUTSIDE, 70, 0);
        guests[0].send(&refused, &[]);
        bench.turn();
        let cause = |drop: UplinkDrop| Some(FIRST_UPLINK_CAUSE | drop as u8);
        let of = |way, frame: &Vec<u8>, dropped| {
            (way, frame.len() as u32, frame[..frame.len().min(crate::policy::headers::LOOKED_AT)].to_vec(), dropped)
        };
        let fates = [None, None, cause(UplinkDrop::NotOurs), cause(UplinkDrop::OwnSource), cause(UplinkDrop::Malformed)];
        let mut wanted: Vec<Captured> = out.iter().map(|frame| of(Way::Out, frame, None)).collect();
        wanted.extend(came.iter().zip(fates).map(|(frame, fate)| of(Way::In, frame, fate)));
        wanted.push(of(Way::Out, &refused, cause(UplinkDrop::RefusedByNic)));
        let found = std::mem::take(&mut *keeper.1.lock().unwrap());
        assert_eq!(found, wanted, "fast path: {fast}");
        let c = end.counters;
        assert_eq!((c.rx_packets.get(), c.tx_packets.get(), c.tx_refused.get()), (5, 3, 1));
        assert_eq!(keeper.take().iter().filter(|(_, step, _)| !matches!(step, UplinkStep::Dropped(_))).count(), 0);
    }
}

#[test]
fn a_tag_that_the_nic_has_removed_is_captured_and_a_refusal_by_rules_too() {
    let mut policy = Policy { vlan: Membership::Plain, ..Policy::default() };
    let rule = Rule { ether_type: Some(0x1234), ..Rule::default() };
    policy.enter.push(Stage::new(rule.clone(), Action::Deny)).unwrap();
    policy.leave.push(Stage::new(rule, Action::Deny)).unwrap();
    let mut world = World::new(Some(policy), true);
    world.on.set(Classes::CAPTURES);
    let denied = |mut frame: Vec<u8>| {
        frame[12..14].copy_from_slice(&[0x12, 0x34]);
        frame
    };
    let frame = denied(world.guests[0].frame(OUTSIDE, 80, 0));
    world.guests[0].send(&frame, &[]);
    world.comes(denied(from_outside(world.guests[0].mac, OUTSIDE, 70)));
    world.bench.turn();
    let found: Vec<_> = world.keeper.1.lock().unwrap().iter().map(|(way, len, _, fate)| (*way, *len, *fate)).collect();
    let cause = |drop: UplinkDrop| Some(FIRST_UPLINK_CAUSE | drop as u8);
    assert_eq!(found, [(Way::In, 70, cause(UplinkDrop::Refused)), (Way::Out, 80, cause(UplinkDrop::Denied))]);
    let frame = from_outside([2, 0, 0, 0, 0, 1], OUTSIDE, 64);
    let pieces = [&frame[..]];
    let tagged = nic::Received { pieces: &pieces, checked: nic::Checked::Unknown, vlan: Some(0x6005), hash: 0 };
    let shown = crate::path::ingress::IngressFrame::new(&tagged);
    assert_eq!((shown.len(), &shown.first()[12..16]), (68, &[0x81, 0, 0x60, 0x05][..]));
}
