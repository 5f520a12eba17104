//! Two honest guests beside one that does what it likes.

use proptest::prelude::*;

use super::Bench;
use crate::features::Features;
use crate::testing::{BROADCAST, BUFFERS, Guest};
use virtio::fault::Fault;

/// The rules that a guest has broken.
pub fn broken(guest: &Guest) -> Vec<Fault> {
    guest.shared.faults().flat_map(|(f, n)| std::iter::repeat_n(f, n as usize)).collect()
}

/// A guest does these things to its device, each followed by so many turns, and sends and receives between two others go on.
pub fn neighbours_lose_nothing<Act>(
    all: Features,
    (mrg, event): (bool, bool),
    script: &[(Act, u8)],
    perform: impl Fn(&mut Guest, &mut Bench, &Act),
) -> Result<(), TestCaseError> {
    let mut features = all;
    features.set(Features::NET_MRG_RXBUF, mrg);
    features.set(Features::EVENT_IDX, event);
    let mut hostile = Guest::new(1, features, 8, 1500);
    let (mut a, mut b) = (Guest::new(2, features, 256, 1500), Guest::new(3, features, 256, 1500));
    let mut bench = Bench::with(&[&hostile, &a, &b]);
    // b's memory outside its rings and receive buffers: nothing but its own may ever be there.
    let fence = BUFFERS + 0x20_0000;
    b.memory.write(fence, &[0xa5; 0x1000]).unwrap();
    for (n, (act, turns)) in script.iter().enumerate() {
        perform(&mut hostile, &mut bench, act);
        // One frame to b alone, one to all, so that the hostile queues are used for receiving too.
        for to in [b.mac, BROADCAST] {
            b.post(200, &[1526]);
            let frame = a.frame(to, 60 + n, n as u8);
            prop_assert!(a.send(&frame, &[20]));
            bench.turn();
            let got: Vec<_> = std::iter::from_fn(|| b.receive()).collect();
            prop_assert!(got.contains(&frame), "step {}: {} others arrived", n, got.len());
        }
        for _ in 0..*turns {
            bench.turn();
        }
    }
    let mut kept = vec![0; 0x1000];
    b.memory.read(fence, &mut kept).unwrap();
    prop_assert!(kept.iter().all(|&x| x == 0xa5));
    for honest in [&a, &b] {
        prop_assert!(!honest.shared.needs_reset());
        prop_assert_eq!(broken(honest), []);
    }
    prop_assert_eq!(b.counters().drops.rx_no_buffer.get(), 0);
    Ok(())
}
