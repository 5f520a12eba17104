//! Completions of several devices and queues that the storage reports in one turn, in any order and with any status; and
//! resets, faults and detachments before it does.

use super::support::{Bench, FLUSH, FORMS, Guest, IN, IOERR, OK, OUT, Sent, Slow, UNSUPP, UNTOUCHED, with_slow};
use crate::storage::Status;
use engine::control::{Command, Reply};
use virtio::config::Features;

/// Queues of each guest.
const QUEUES: u64 = 3;
/// Requests: request `n` is for sector `n`.
const REQUESTS: u64 = 48;

/// A request of one of two guests.
struct Asked {
    guest: usize,
    queue: usize,
    kind: u32,
    sent: Sent,
}

/// Two guests whose requests are in flight.
fn two(slow: Slow, features: Features) -> ([Guest; 2], Bench<Slow>, Vec<Asked>) {
    let (first, mut bench) = with_slow(slow, QUEUES as u16, features);
    let second = Guest::new(5, &bench.storage().geometry, QUEUES as u16, features);
    assert_eq!(bench.attach(&second, ()), Reply::Attached);
    bench.turn();
    let mut guests = [first, second];
    bench.storage().bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 512) as u8);
    let asked = (0..REQUESTS).map(|n| {
        // Some neighbours are of one queue, others are not.
        let (guest, queue) = ((n / 3 % 2) as usize, (n / 6 % QUEUES) as usize);
        let (kind, data) = match n % 5 {
            3 => (OUT, Some(Ok(&[0xee; 512][..]))),
            4 => (FLUSH, None),
            _ => (IN, Some(Err(512))),
        };
        let sector = if kind == FLUSH { 0 } else { n };
        let sent = guests[guest].send_on(queue as u16, kind, sector, data);
        (guest, queue, kind, sent)
    });
    let asked: Vec<_> = asked.map(|(guest, queue, kind, sent)| Asked { guest, queue, kind, sent }).collect();
    for _ in 0..2 * QUEUES {
        bench.turn();
    }
    assert_eq!(bench.storage().held.len() as u64, REQUESTS);
    (guests, bench, asked)
}

/// The tags in flight, in a mixed order.
fn mixed(bench: &mut Bench<Slow>) -> Vec<u16> {
    let tags = bench.storage().tags();
    (0..tags.len()).map(|n| tags[n * 29 % tags.len()]).collect()
}

/// The requests that a guest gets back. Checks that each is one of its queue's, and gets back once.
fn used(guests: &mut [Guest; 2], asked: &[Asked], mut each: impl FnMut(&Guest, &Asked, u32)) -> u64 {
    let mut count = 0;
    for (number, guest) in guests.iter_mut().enumerate() {
        for queue in 0..QUEUES as usize {
            let mut known = Vec::new();
            while let Some((id, len)) = guest.queues[queue].take_used() {
                let its = |a: &&Asked| a.guest == number && a.queue == queue && a.sent.id == id;
                let one = asked.iter().find(its).expect("it was asked on this queue");
                assert!(!known.contains(&id), "once");
                known.push(id);
                each(guest, one, len);
                count += 1;
            }
        }
    }
    count
}

#[test]
fn each_queue_of_each_device_gets_its_own_back_in_any_order_and_with_any_status() {
    for features in FORMS {
        for in_order in [true, false] {
            let (mut guests, mut bench, asked) = two(Slow::new(512, 64), features);
            guests.iter_mut().flat_map(|guest| &mut guest.queues).for_each(|queue| queue.enable_interrupts());
            bench.interrupts.take();
            let tags = if in_order { bench.storage().tags() } else { mixed(&mut bench) };
            for (n, tag) in tags.into_iter().enumerate() {
                let is_flush = bench.storage().held[&tag].blocks == 0;
                let status = match n % 9 {
                    2 if !is_flush => Status::Failed,
                    5 if !is_flush => Status::Unsupported,
                    _ => Status::Ok,
                };
                bench.storage().end(tag, status);
            }
            assert_eq!(u64::from(bench.turn()), REQUESTS);
            let mut good = 0;
            let count = used(&mut guests, &asked, |guest, Asked { kind, sent, .. }, len| {
                let status = guest.status(sent);
                let is_read = *kind == IN;
                match status {
                    OK => {
                        good += 1;
                        assert_eq!(len, if is_read { 513 } else { 1 });
                    }
                    IOERR | UNSUPP => assert_eq!(len, u32::from(!is_read)),
                    _ => panic!("no status"),
                }
                if is_read {
                    let sector = asked.iter().position(|a| std::ptr::eq(&raw const a.sent, sent)).expect("it is one");
                    let byte = if status == OK { sector as u8 } else { UNTOUCHED };
                    assert_eq!(guest.bytes(sent.at[1], 512), vec![byte; 512]);
                }
            });
            assert_eq!(count, REQUESTS, "{features:?}");
            let mut interrupts = bench.interrupts.take();
            interrupts.sort_unstable();
            let each = |slot| (0..QUEUES as u32).map(move |queue| (slot, 0x41 + queue as u8));
            assert_eq!(interrupts, each(3).chain(each(5)).collect::<Vec<_>>(), "one a queue");
            let counted = |name| -> u64 {
                let of = |guest: &Guest| guest.counted().into_iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| n);
                guests.iter().map(of).sum()
            };
            assert_eq!(counted("reads") + counted("writes") + counted("flushes"), good);
            assert_eq!(counted("errors") + counted("unsupported"), REQUESTS - good);
            assert!(guests.iter().all(|guest| guest.shared.counters().stale_tokens.get() == 0));
        }
    }
}

#[test]
fn what_a_device_that_is_reset_had_in_flight_disturbs_no_other_completion() {
    for features in FORMS {
        for cancels in [true, false] {
            let (mut guests, mut bench, asked) = two(Slow { cancels, ..Slow::new(512, 64) }, features);
            guests[0].shared.request_reset();
            bench.turn();
            assert_eq!(guests[0].shared.reset_done(), cancels);
            for tag in mixed(&mut bench) {
                bench.storage().end(tag, Status::Ok);
            }
            bench.turn();
            bench.turn();
            assert!(guests[0].shared.reset_done());
            let mut of_other = 0;
            let count = used(&mut guests, &asked, |guest, asked, _| {
                assert_eq!((asked.guest, guest.status(&asked.sent)), (1, OK));
                of_other += 1;
            });
            assert_eq!((count, of_other), (REQUESTS / 2, REQUESTS / 2));
            assert!(asked.iter().filter(|a| a.guest == 0).all(|a| guests[0].status(&a.sent) == UNTOUCHED));
            // The same slot and the same tags serve the next life.
            guests[0].start();
            bench.turn();
            let sent = guests[0].send(IN, 7, Some(Err(512)));
            bench.turn();
            let tag = bench.storage().tags()[0];
            bench.storage().end(tag, Status::Ok);
            assert_eq!(bench.ask(&mut guests[0], &sent), (OK, 513));
            assert!(guests.iter().all(|guest| guest.shared.counters().stale_tokens.get() == 0));
        }
    }
}

#[test]
fn a_device_that_has_failed_completes_nothing_amid_the_completions_of_another() {
    for features in FORMS {
        let (mut guests, mut bench, asked) = two(Slow::new(512, 64), features);
        guests[1].offer(0, &[Ok(&[0; 3]), Err(1)]);
        bench.turn();
        assert!(guests[1].shared.needs_reset());
        for tag in mixed(&mut bench) {
            bench.storage().end(tag, Status::Ok);
        }
        bench.turn();
        let count = used(&mut guests, &asked, |_, asked, _| assert_eq!(asked.guest, 0));
        assert_eq!(count, REQUESTS / 2);
        assert_eq!(guests[1].shared.counters().stale_tokens.get(), REQUESTS / 2);
        assert!(
            matches!(bench.command(Command::Detach { slot: guests[1].slot }), Reply::Detached(_)),
            "nothing is left"
        );
    }
}
