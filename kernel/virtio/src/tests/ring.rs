//! One queue against a driver's half.

use super::PLAIN;
use crate::config::{Features, MAX_QUEUE_SIZE};
use crate::fault::Fault;
use crate::queue::UsedNotification;
use crate::testing::{BUFFERS, MEMORY};
use crate::tests::support::rig;

const EVENT: Features = PLAIN.union(Features::EVENT_IDX);

#[test]
fn while_polled_no_driver_ever_notifies_however_long_it_runs() {
    for features in [PLAIN, EVENT] {
        for size in [1, 4, 256, MAX_QUEUE_SIZE] {
            let mut r = rig(size, features);
            let mut total = 0u32;
            while total < 200_000 {
                let batch = (total % u32::from(size)) as u16 + 1;
                for _ in 0..batch {
                    r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
                }
                assert!(!r.driver.kick_prepare(), "{features:?}, size {size}, after {total}");
                assert_eq!(r.serve(), batch);
                r.publish();
                while r.driver.take_used().is_some() {}
                total += u32::from(batch);
            }
        }
    }
}

#[test]
fn an_armed_queue_is_notified_at_its_next_request_at_any_position() {
    for features in [PLAIN, EVENT] {
        let mut r = rig(8, features);
        for i in 0..70_000 {
            assert_eq!(r.queue.arm(&r.memory), Ok(0));
            r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
            assert!(r.driver.kick_prepare(), "{features:?} {i}");
            r.queue.disarm(&r.memory).unwrap();
            r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
            assert!(!r.driver.kick_prepare(), "{features:?} {i}");
            assert_eq!(r.serve(), 2);
            r.publish();
            while r.driver.take_used().is_some() {}
        }
    }
}

#[test]
fn arming_finds_what_came_before_the_driver_could_know() {
    let mut r = rig(8, EVENT);
    r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
    assert!(!r.driver.kick_prepare());
    assert_eq!(r.queue.arm(&r.memory), Ok(1));
}

#[test]
fn interrupts_follow_used_event_past_65536_entries() {
    let mut r = rig(16, EVENT);
    let mut used = 0u16;
    for round in 0..20_000u32 {
        let batch = (round % 13) as u16 + 1;
        // Wanted somewhere in this batch, before it, or after it.
        let event = used.wrapping_add((round % 29) as u16).wrapping_sub(8);
        r.driver.write_used_event(event);
        for _ in 0..batch {
            r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
        }
        r.serve();
        let passed = (0..batch).any(|i| used.wrapping_add(i) == event);
        let wanted = if passed { UsedNotification::Wanted } else { UsedNotification::Suppressed };
        assert_eq!(r.publish(), wanted, "round {round}: {used} + {batch}, event {event}");
        used = used.wrapping_add(batch);
        while r.driver.take_used().is_some() {}
    }
}

#[test]
fn nothing_is_visible_before_it_is_published_and_then_all_at_once() {
    let mut r = rig(16, PLAIN);
    for _ in 0..5 {
        r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
    }
    assert_eq!(r.serve(), 5);
    assert_eq!(r.driver.used_index(), 0);
    assert_eq!(r.publish(), UsedNotification::Wanted);
    assert_eq!(r.driver.used_index(), 5);
    assert_eq!(r.publish(), UsedNotification::Nothing);
}

#[test]
fn a_wish_is_for_all_that_was_published_since_the_last_one() {
    // 0 and 1 are published first, 2 afterwards.
    for (event, wanted) in [(0, UsedNotification::Wanted), (1, UsedNotification::Wanted), (2, UsedNotification::Wanted), (3, UsedNotification::Suppressed)] {
        let mut r = rig(16, EVENT);
        r.driver.write_used_event(event);
        for batch in [2, 1] {
            for _ in 0..batch {
                r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
            }
            assert_eq!(r.serve(), batch);
            r.queue.publish();
        }
        assert_eq!(r.driver.used_index(), 3);
        assert_eq!(r.publish(), wanted, "event {event}");
        assert_eq!(r.publish(), UsedNotification::Nothing);
    }
}

#[test]
fn a_driver_that_refills_its_ring_between_two_publishings_is_told() {
    for features in [EVENT, EVENT | Features::RING_PACKED] {
        for rounds in 1..=3 {
            let mut r = rig(8, features);
            r.driver.write_used_event(if features.contains(Features::RING_PACKED) { 1 << 15 } else { 0 });
            for _ in 0..rounds {
                for _ in 0..8 {
                    r.driver.add(&[(BUFFERS, 64, false)]).unwrap();
                }
                assert_eq!(r.serve(), 8);
                r.queue.publish();
                while r.driver.take_used().is_some() {}
            }
            assert_eq!(r.publish(), UsedNotification::Wanted, "{features:?}, {rounds} rounds");
            assert_eq!(r.publish(), UsedNotification::Nothing);
        }
    }
}

#[test]
fn a_buffer_rewritten_after_it_was_checked_changes_nothing() {
    let mut r = rig(16, PLAIN);
    r.driver.add(&[(BUFFERS, 64, false), (BUFFERS + 0x1000, 32, true)]).unwrap();
    let request = r.queue.pop(&r.memory, &mut r.segments).unwrap().unwrap();
    r.memory.write(r.driver.config.desc, &[0xff; 64]).unwrap();
    let chain = request.chain;
    assert_eq!((chain.readable_bytes, chain.writable_bytes), (64, 32));
    assert_eq!(chain.readable(&r.segments)[0].gpa, BUFFERS);
    assert_eq!(chain.writable(&r.segments)[0].gpa, BUFFERS + 0x1000);
}

#[test]
fn lengths_that_add_up_to_4_gib_are_refused() {
    // Every buffer is all of the guest's memory: 1,024 times 4 MiB.
    for (buffers, wanted) in [(1023, None), (1024, Some(Fault::LengthWraps))] {
        let mut r = rig(MAX_QUEUE_SIZE, PLAIN);
        assert_eq!(MEMORY as u64 * u64::from(MAX_QUEUE_SIZE), 1 << 32);
        r.driver.add(&vec![(0, MEMORY as u32, false); buffers]).unwrap();
        assert_eq!(r.queue.pop(&r.memory, &mut r.segments).err(), wanted, "{buffers}");
    }
}

#[test]
fn requests_given_back_in_reverse_come_again() {
    let mut r = rig(16, PLAIN);
    let heads = [(); 3].map(|()| r.driver.add(&[(BUFFERS, 64, true)]).unwrap());
    let mut take = || r.queue.pop(&r.memory, &mut r.segments).unwrap().unwrap().token;
    let (a, b, c) = (take(), take(), take());
    assert!(r.queue.complete(&r.memory, a, 64).unwrap());
    assert!(r.queue.rewind(c));
    assert!(r.queue.rewind(b));
    assert_eq!(r.queue.in_flight(), 0);
    assert_eq!(r.serve(), 2);
    r.publish();
    let used: Vec<_> = std::iter::from_fn(|| r.driver.take_used()).map(|(head, _)| head).collect();
    assert_eq!(used, heads);
}

#[test]
fn a_request_that_is_not_the_last_cannot_be_given_back() {
    let mut r = rig(16, PLAIN);
    for _ in 0..2 {
        r.driver.add(&[(BUFFERS, 64, true)]).unwrap();
    }
    let mut take = || r.queue.pop(&r.memory, &mut r.segments).unwrap().unwrap().token;
    let (a, _b) = (take(), take());
    assert!(!r.queue.rewind(a));
    assert_eq!(r.queue.in_flight(), 2);
}
