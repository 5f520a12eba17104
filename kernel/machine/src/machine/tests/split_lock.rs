//! Split and bus locks, as the back-ends report them.

use super::{rig::rig_with_split_locks, *};

#[test]
fn a_slow_guest_goes_on_and_is_free_for_a_millisecond() {
    let mut r = rig_with_split_locks(SplitLocks::Slow);
    r.host.tsc.set(7_000);
    assert_eq!(r.exit(&[], Exit::SplitLock), Next::Continue);
    r.enter(0);
    // The host's clock is 1 GHz, and moves on when it is read.
    let waits = r.vcpu().free_until.map(|until| until - 7_000);
    assert!(waits.is_some_and(|ticks| (1_000_000..1_000_100).contains(&ticks)), "{waits:?}");
    assert_eq!(r.vcpu().event, None);
    assert_eq!(r.vcpu().rip, 0x1000, "the instruction runs again, or it was executed already");
    assert_eq!(r.counted(Reason::SplitLock), 1);
}

#[test]
fn a_killed_guest_ends_with_the_address() {
    let mut r = rig_with_split_locks(SplitLocks::Kill);
    let why = "a split or bus lock at 0x1000 (split_lock = \"kill\")";
    assert_eq!(r.exit(&[], Exit::SplitLock), Next::Stop(Stop::failed(why)));
    assert_eq!(r.vcpu().free_until, None);
}

#[test]
fn an_allowed_guest_is_free_for_ever() {
    let mut r = rig_with_split_locks(SplitLocks::Allow);
    assert_eq!(r.exit(&[], Exit::SplitLock), Next::Continue);
    assert_eq!(r.vcpu().free_until, Some(u64::MAX));
}

#[test]
fn an_alignment_check_of_its_own_is_the_guests() {
    for split_locks in [SplitLocks::Slow, SplitLocks::Kill] {
        let mut r = rig_with_split_locks(split_locks);
        assert_eq!(r.exit(&[], Exit::Exception { vector: 17, error: Some(0) }), Next::Continue);
        assert_eq!((r.vcpu().event, r.vcpu().free_until), (Some(Event::Exception(17, Some(0))), None));
    }
}
