//! Tests of the ring with its writer and its reader on one thread.

use proptest::prelude::*;

use crate::ring::{Cursor, Ring, Slot, WhenFull};
use crate::{Kind, Record};

fn ring(slots: usize) -> Ring<Vec<Slot>> {
    Ring::new((0..slots).map(|_| Slot::new()).collect::<Vec<_>>()).unwrap()
}

fn record(number: u64) -> Record {
    Record { a: number, b: !number, ..Record::new(Kind::Exit, number) }
}

#[test]
fn the_number_of_slots_is_a_power_of_two() {
    for slots in [0, 1, 3, 6, 100] {
        assert!(Ring::new((0..slots).map(|_| Slot::new()).collect::<Vec<Slot>>()).is_none(), "{slots}");
    }
    assert_eq!(ring(8).capacity(), 7);
}

#[test]
fn records_come_in_their_order_with_their_numbers() {
    let (ring, mut cursor) = (ring(8), Cursor::new());
    for number in 0..20 {
        ring.write(record(number));
        assert_eq!((cursor.skip_lost(&ring), cursor.position()), (0, number));
        assert_eq!(cursor.read(&ring), Some(record(number)));
        assert_eq!(cursor.read(&ring), None);
    }
}

#[test]
fn a_ring_that_overwrites_keeps_the_last_records() {
    let (ring, mut cursor) = (ring(8), Cursor::new());
    (0..20).for_each(|number| ring.write(record(number)));
    assert_eq!(cursor.read(&ring), None, "record 0 is gone");
    assert_eq!(cursor.skip_lost(&ring), 13);
    assert_eq!(std::iter::from_fn(|| cursor.read(&ring)).collect::<Vec<_>>(), (13..20).map(record).collect::<Vec<_>>());
    assert_eq!(cursor.skip_lost(&ring), 0);
}

#[test]
fn a_ring_that_stops_keeps_the_first_records_and_goes_on_when_they_are_taken() {
    let (ring, mut cursor) = (ring(4), Cursor::new());
    ring.when_full(WhenFull::Stop);
    (0..5).for_each(|number| ring.write(record(number)));
    assert_eq!((ring.written(), ring.dropped()), (3, 2));
    assert_eq!(cursor.skip_lost(&ring), 2);
    assert_eq!(cursor.read(&ring), Some(record(0)));
    cursor.give_back(&ring);
    ring.write(record(5));
    let rest: Vec<_> = std::iter::from_fn(|| cursor.read(&ring)).collect();
    assert_eq!(rest, [1, 2, 5].map(record));
    assert_eq!(cursor.skip_lost(&ring), 0, "the losses are told once");
}

#[test]
fn what_was_before_is_skipped_with_its_losses() {
    let (ring, mut cursor) = (ring(4), Cursor::new());
    ring.when_full(WhenFull::Stop);
    (0..9).for_each(|number| ring.write(record(number)));
    cursor.skip_all(&ring);
    ring.write(record(100));
    assert_eq!((cursor.skip_lost(&ring), cursor.read(&ring)), (0, Some(record(100))));
}

proptest! {
    #[test]
    fn records_read_and_lost_are_all_that_was_written(
        size in 1_u32..5,
        steps in proptest::collection::vec((0_u64..30, 0_usize..30, any::<bool>()), 0..20),
    ) {
        let (ring, mut cursor) = (ring(1 << size), Cursor::new());
        let (mut made, mut read, mut lost) = (0, 0, 0);
        for (written, taken, stops) in steps {
            ring.when_full(if stops { WhenFull::Stop } else { WhenFull::Overwrite });
            for _ in 0..written {
                ring.write(record(made));
                made += 1;
            }
            lost += cursor.skip_lost(&ring);
            for _ in 0..taken {
                let number = cursor.position();
                let Some(found) = cursor.read(&ring) else { break };
                prop_assert!(found.a == found.tsc && found.b == !found.a && found.a >= number, "{:?}", found);
                read += 1;
            }
            cursor.give_back(&ring);
        }
        lost += cursor.skip_lost(&ring);
        read += std::iter::from_fn(|| cursor.read(&ring)).count() as u64;
        prop_assert_eq!((read + lost, cursor.lost()), (made, lost));
    }
}
