//! Flushes that fail, and what they mean for later ones.

use super::support::{Bench, FLUSH, FORMS, Guest, IOERR, OK, OUT, Sent, Slow, with_slow};
use crate::storage::Status;

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
