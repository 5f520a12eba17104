//! Six honest streams of frames and a lone client on one engine, beside each kind of attacker.
//!
//! Time is virtual: a frame takes as many ticks as it was counted to take instructions. So the outcome is the same on every
//! machine. `cargo mk bench switch --instructions` counts the instructions again.

use std::cell::RefCell;

use crate::testing::attackers::{ATTACKER, Attacker, Bill, Guests, LONE, Machine, STREAMS};

/// Instructions of an honest frame of 1,500 bytes, with its copies.
const HONEST: u64 = 527;
/// Ticks of a guest's quantum: 4 us at 3 GHz.
const QUANTUM: u64 = 12_000;
/// Instructions after which a portion ends, and its most requests while others wait.
const PORTION: u64 = 24_576;
const REQUESTS: u64 = 16;
/// Ticks of a run.
const RUN: u64 = 30_000_000;
/// Ticks from an answer to the next question.
const PAUSE: u64 = 50_000;

/// The honest guest that sends single frames.
#[derive(Default)]
struct Client {
    /// Frames that the attacker had sent when the portion began in which the client asked. `None`: it pauses.
    asked: Option<u64>,
    /// When it asks again.
    next: u64,
    /// Frames that the attacker had sent at the end of the last portion.
    attacker: u64,
    /// Questions answered, and the most frames of the attacker in a wait.
    answers: u64,
    longest: u64,
}

impl Client {
    /// A portion has ended at `now`. A question may come at any time in a portion, so the whole portion counts.
    fn portion_ended(&mut self, now: u64, guests: &mut Guests) {
        let attacker = guests.sent(ATTACKER);
        match self.asked {
            Some(asked) if guests.has_come(LONE + 1) => {
                self.longest = self.longest.max(attacker - asked);
                (self.asked, self.next) = (None, now + PAUSE);
                self.answers += 1;
                guests.receive_at(LONE + 1);
            }
            None if now >= self.next => {
                guests.ask();
                self.asked = Some(self.attacker);
            }
            _ => {}
        }
        self.attacker = attacker;
    }
}

fn against(attacker: Attacker) {
    let Machine { mut engine, guests } = Machine::new(attacker, QUANTUM);
    let (guests, client, bill) = (RefCell::new(guests), RefCell::new(Client::default()), Bill::default());
    let streams = |guests: &Guests| [0, 2, 4, 6, 8, 10].map(|slot| guests.sent(slot));
    let ticks = |guests: &Guests| {
        (streams(guests).iter().sum::<u64>() + guests.sent(LONE)) * HONEST
            + guests.sent(ATTACKER) * attacker.instructions()
    };
    let clock = || {
        let guests = &mut *guests.borrow_mut();
        let now = ticks(guests);
        client.borrow_mut().portion_ended(now, guests);
        now
    };
    let mut time = 0;
    while time < RUN {
        {
            let guests = &mut *guests.borrow_mut();
            guests.receive();
            guests.attack();
            (0..STREAMS).for_each(|n| guests.stream(n));
        }
        time = engine.counted_turn(time, &clock, &bill);
    }
    let guests = guests.borrow();
    let client = client.borrow();
    let streams = streams(&guests);
    let sum: u64 = streams.iter().sum();
    let jain = (sum * sum) as f64 / (STREAMS as u64 * streams.iter().map(|n| n * n).sum::<u64>()) as f64;
    let share = (time - guests.sent(LONE) * HONEST) as f64 / (STREAMS + 1) as f64;
    let least = *streams.iter().min().unwrap() as f64 * HONEST as f64 / share;
    let caused = guests.sent(ATTACKER) * attacker.instructions();
    let billed = bill.attacker.get() as f64 / caused as f64;
    let cycles = guests.all[ATTACKER].shared.counters().engine_cycles.get();
    let portion = REQUESTS.min(PORTION.div_ceil(attacker.instructions()));
    println!(
        "{}: Jain {jain:.4}, least share {least:.3}, {} answers, at most {} frames of the attacker's in a wait (portion: \
         {portion}), bill {billed:.3}",
        attacker.name(),
        client.answers,
        client.longest
    );
    assert!(jain >= 0.99, "{jain}");
    assert!(least >= 0.95, "{least}");
    assert!(client.answers >= 50 && client.longest <= 2 * portion, "{} of {portion}", client.longest);
    assert!((0.95..=1.05).contains(&billed), "{billed}");
    assert_eq!(cycles, caused, "and the clock has charged it with all of them");
}

macro_rules! attackers {
    ($($name:ident: $attacker:ident,)*) => {
        $(
            #[test]
            fn $name() {
                against(Attacker::$attacker);
            }
        )*

        #[test]
        fn all_attackers_are_tried() {
            assert_eq!([$(Attacker::$attacker),*], Attacker::ALL);
        }
    };
}

attackers! {
    broadcasts: Broadcasts,
    multicasts: Multicasts,
    small_segments: SmallSegments,
    segments_for_all: SegmentsForAll,
    segments_for_nobody: SegmentsForNobody,
    long_chains: LongChains,
    tiny_buffers: TinyBuffers,
    short_buffers: ShortBuffers,
    no_buffers: NoBuffers,
    mirrored: Mirrored,
}
