//! What holds for split rings alone.

use virtio::config::Features;

use super::support::guest::TX;
use super::support::two;
use crate::requests::Requests;

const SPLIT: Features = Features::all().difference(Features::RING_PACKED);

#[test]
fn a_ring_that_breaks_the_rules_is_found_by_arming_too_and_rings_no_more() {
    let (a, b, mut bench) = two(SPLIT, Requests::Notify);
    a.memory.write_u16(a.tx.config.avail + 2, 300).unwrap();
    a.shared.kick(TX);
    bench.turn();
    assert_eq!(a.shared.counters().faults.get(), 1);
    assert!(a.shared.needs_reset());
    a.shared.kick(TX);
    bench.turn();
    assert_eq!(bench.engine.visited_queues(), 0);
    assert_eq!(b.shared.counters().faults.get(), 0);
}
