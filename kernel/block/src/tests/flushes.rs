//! Flushes that fail, and what they mean for later ones.

use engine::control::{Command, Reply};
use virtio::config::Features;

use super::support::{Bench, FLUSH, FORMS, Guest, IOERR, OK, OUT, Sent, Slow, WRITE_ZEROES, range, with_slow};
use crate::emulate::{Emulate, Emulated};
use crate::flushes::Record;
use crate::pair::{Either, Pair};
use crate::part::{Part, Parts};
use crate::storage::{Operation, Status, Storage as _};

/// Sends a request, has the storage end it, and returns its status. The storage must get it if `tried`.
fn ask(bench: &mut Bench<Slow>, guest: &mut Guest, kind: u32, status: Status, tried: bool) -> u8 {
    let data = [1; 512];
    let sent: Sent = guest.send(kind, 0, (kind == OUT).then_some(Ok(&data)));
    bench.turn();
    let tags = bench.storage().tags();
    assert_eq!(tags.len(), usize::from(tried));
    for tag in tags {
        bench.storage().end(tag, status);
    }
    bench.turn();
    assert_eq!(guest.used(), Some((sent.id, 1)));
    guest.status(&sent)
}

#[test]
fn after_a_failed_flush_every_flush_fails_until_the_driver_resets_the_device() {
    for features in FORMS {
        let (mut guest, mut bench) = with_slow(Slow::new(512, 64), 1, features);
        // A driver without CONFIG_WCE and FLUSH has durable writes; this one has both.
        assert_eq!(ask(&mut bench, &mut guest, FLUSH, Status::Failed, true), IOERR);
        assert_eq!(ask(&mut bench, &mut guest, FLUSH, Status::Ok, true), OK, "no write was lost");
        assert_eq!(ask(&mut bench, &mut guest, OUT, Status::Ok, true), OK);
        assert_eq!(ask(&mut bench, &mut guest, FLUSH, Status::Failed, true), IOERR);
        for _ in 0..3 {
            assert_eq!(ask(&mut bench, &mut guest, FLUSH, Status::Ok, false), IOERR, "{features:?}");
        }
        assert_eq!(ask(&mut bench, &mut guest, OUT, Status::Ok, true), OK, "the disk goes on");
        let counted = guest.counted();
        assert!(counted.contains(&("flushes_refused", 3)) && counted.contains(&("storage_errors", 2)), "{counted:?}");

        guest.shared.request_reset();
        (0..3).for_each(|_| _ = bench.turn());
        assert!(guest.shared.reset_done());
        guest.start();
        bench.turn();
        assert_eq!(ask(&mut bench, &mut guest, FLUSH, Status::Ok, true), OK);
    }
}

#[test]
fn the_failed_flush_of_one_device_loses_the_writes_of_others_to_the_same_disk() {
    let (mut guest, mut bench) = with_slow(Slow::new(512, 64), 1, FORMS[0]);
    let geometry = bench.storage().geometry;
    let mut others = [5, 6].map(|slot| Guest::new(slot, &geometry, 1, FORMS[0]));
    others.iter().for_each(|other| _ = bench.attach(other, ()));
    bench.turn();
    let [wrote, idle] = &mut others;
    assert_eq!(ask(&mut bench, wrote, OUT, Status::Ok, true), OK);
    assert_eq!(ask(&mut bench, &mut guest, FLUSH, Status::Failed, true), IOERR);
    assert_eq!(ask(&mut bench, &mut guest, FLUSH, Status::Ok, true), OK, "it had written nothing");
    assert_eq!(ask(&mut bench, wrote, FLUSH, Status::Ok, false), IOERR);
    assert_eq!(ask(&mut bench, idle, FLUSH, Status::Ok, true), OK);
}

/// Whether two parts of a storage's volume are flushed together, through all that lies between it and a guest.
#[test]
fn parts_of_a_disk_are_flushed_together_and_parts_of_others_are_not() {
    type Inner = Parts<Slow>;
    type Beneath = Pair<Inner, Inner>;
    let part = |first| Part::new((), 64, first, 8).expect("it is within");
    let [a, b, c] = [Either::First(part(0)), Either::First(part(8)), Either::Second(part(0))];
    assert!(Beneath::are_flushed_together(a, b) && !Beneath::are_flushed_together(a, c));
    let of = |volume| Emulated { volume, counters: None };
    assert!(Emulate::<Beneath>::are_flushed_together(of(a), of(b)));
    assert!(!Emulate::<Beneath>::are_flushed_together(of(b), of(c)));
}

#[test]
fn a_cancelled_flush_says_nothing_of_other_devices_writes() {
    let (mut wrote, mut bench) = with_slow(Slow::new(512, 64), 1, FORMS[0]);
    let mut killed = Guest::new(5, &bench.storage().geometry, 1, FORMS[0]);
    bench.attach(&killed, ());
    assert_eq!(ask(&mut bench, &mut wrote, OUT, Status::Ok, true), OK);
    killed.send(FLUSH, 0, None);
    bench.turn();
    assert_eq!(bench.command(Command::Detach { slot: killed.slot }), Reply::Detaching);
    let [tag] = bench.storage().tags()[..] else { panic!("one is in flight") };
    bench.storage().end(tag, Status::Cancelled);
    (0..3).for_each(|_| _ = bench.turn());
    assert!(matches!(bench.command(Command::Detach { slot: killed.slot }), Reply::Detached(_)));
    assert_eq!(ask(&mut bench, &mut wrote, FLUSH, Status::Ok, true), OK);
}

/// Attaches a new guest to the disk with this record.
fn next(bench: &mut Bench<Slow>, record: &'static Record, features: Features) -> Guest {
    let mut guest = Guest::new(5, &bench.storage().geometry, 1, features);
    guest.record = Some(record);
    assert_eq!(bench.attach(&guest, ()), Reply::Attached);
    bench.turn();
    guest
}

fn detach(bench: &mut Bench<Slow>, guest: &Guest) {
    assert!(matches!(bench.command(Command::Detach { slot: guest.slot }), Reply::Detached(Some(_))));
}

#[test]
fn a_failed_flush_is_of_the_disk_and_outlives_its_devices_and_their_resets() {
    for features in FORMS {
        let record: &'static Record = Box::leak(Box::default());
        let (_, mut bench) = with_slow(Slow::new(512, 64), 1, features);
        let mut first = next(&mut bench, record, features);
        assert_eq!(ask(&mut bench, &mut first, OUT, Status::Ok, true), OK);
        assert_eq!(ask(&mut bench, &mut first, FLUSH, Status::Failed, true), IOERR);
        assert!(record.is_lost(), "it is known before the driver sees the answer");
        detach(&mut bench, &first);
        let mut second = next(&mut bench, record, features);
        assert_eq!(ask(&mut bench, &mut second, FLUSH, Status::Ok, false), IOERR, "{features:?}");
        second.shared.request_reset();
        (0..3).for_each(|_| _ = bench.turn());
        second.start();
        bench.turn();
        assert_eq!(ask(&mut bench, &mut second, FLUSH, Status::Ok, false), IOERR);
        detach(&mut bench, &second);
        assert!(record.is_lost());
    }
}

#[test]
fn a_flush_that_fails_loses_what_was_written_before_its_device_was_attached() {
    for written in [true, false] {
        let record: &'static Record = Box::leak(Box::default());
        let (_, mut bench) = with_slow(Slow::new(512, 64), 1, FORMS[0]);
        let mut first = next(&mut bench, record, FORMS[0]);
        if written {
            assert_eq!(ask(&mut bench, &mut first, OUT, Status::Ok, true), OK);
        }
        detach(&mut bench, &first);
        let mut second = next(&mut bench, record, FORMS[0]);
        assert_eq!(ask(&mut bench, &mut second, FLUSH, Status::Failed, true), IOERR);
        assert_eq!(record.is_lost(), written);
        let answer = ask(&mut bench, &mut second, FLUSH, Status::Ok, !written);
        assert_eq!(answer, if written { IOERR } else { OK });
    }
}

#[test]
fn zeroes_of_a_driver_in_write_through_mode_are_durable() {
    for through in [false, true] {
        let (mut guest, mut bench) = with_slow(Slow::new(512, 64), 1, FORMS[0]);
        guest.shared.write_config(32, 1, u64::from(!through));
        guest.send(WRITE_ZEROES, 0, Some(Ok(&range(8, 8, 0))));
        bench.turn();
        let held: Vec<_> = bench.storage().held.values().map(|held| held.operation).collect();
        assert_eq!(held, [Operation::WriteZeroes { unmap: false, durable: through }]);
    }
}
