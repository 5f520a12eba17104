//! A guest that ends with requests at an NVMe disk. Once the engine has said that its device is detached, its memory belongs to
//! somebody else, and the disk makes no access to it, however late it is.

use engine::control::{Command, Reply};
use nvme_model::{Faults, Model};

use super::guest_driver::Driver;
use super::nvme::{COMMAND_TIME, MAX_BYTES, Stand, pattern};
use super::support::{FLUSH, IN, IOERR, OK, OUT};

/// Most milliseconds until a device is detached. The driver needs its time for a command and for the Abort, and the model's
/// CAP.TO for a controller that does not stop: 5.5 s.
const PATIENCE: u64 = 2 * COMMAND_TIME / 1_000 + 6_000;
/// Milliseconds for which the disk is watched afterwards.
const AFTERWARDS: usize = 2_000;

/// A guest with a driver. A write was answered. The disk has fetched reads and writes and holds them, and with `long` one read
/// that is longer than the driver takes.
fn in_mid_write(long: bool) -> (Stand, Driver) {
    let mut stand = Stand::without_driver(9);
    let (host, len) = (stand.of_guest.host, stand.of_guest.len);
    let mut driver = Driver::new(stand.guest.shared, host, len);
    let written = driver.offer(true, 1, pattern(4096));
    let answered = (0..100).find_map(|_| {
        stand.turn();
        driver.take()
    });
    assert_eq!(answered.map(|(token, done, _)| (token, done)), Some((written, true)));
    assert!(stand.model.borrow().namespaces[0].data[512..][..4096] == pattern(4096));
    stand.model.borrow_mut().faults.hold = true;
    for n in 0..2 {
        driver.offer(true, 64 + 8 * n, pattern(4096));
        driver.offer(false, 128 + 8 * n, vec![0; 4096]);
    }
    if long {
        driver.offer(false, 256, vec![0; 5 * MAX_BYTES as usize / 2]);
    }
    (0..5).for_each(|_| stand.turn());
    assert!(driver.waiting() == 4 + usize::from(long) && driver.take().is_none(), "the disk holds them");
    (stand, driver)
}

/// Ends the guest of [`in_mid_write`] while the disk behaves like this. Watches the disk afterwards with these faults.
fn ends(name: &str, meanwhile: impl Fn(&mut Model), afterwards: Faults) -> Stand {
    ends_with(false, name, &meanwhile, afterwards.clone());
    ends_with(true, name, &meanwhile, afterwards)
}

fn ends_with(long: bool, name: &str, meanwhile: &impl Fn(&mut Model), afterwards: Faults) -> Stand {
    let (mut stand, _driver) = in_mid_write(long);
    meanwhile(&mut stand.model.borrow_mut());
    let slot = stand.guest.slot;
    // The engine alone cannot know that the disk is done.
    for _ in 0..10 {
        let reply = stand.bench.command(Command::Detach { slot });
        assert_eq!(reply, Reply::Detaching, "{name}: given back while the disk has the requests");
    }
    let reply = (0..PATIENCE).find_map(|_| {
        stand.turn();
        Some(stand.bench.command(Command::Detach { slot })).filter(|reply| *reply != Reply::Detaching)
    });
    assert_eq!(reply, Some(Reply::Detached(None)), "{name}");
    // What comes now is the access of a device to memory that is not the guest's any more. The model reports it.
    stand.memory.revoke(stand.of_guest.bus, stand.of_guest.len);
    let before = stand.memory.copy(stand.of_guest.bus, stand.of_guest.len);
    stand.model.borrow_mut().faults = afterwards;
    (0..AFTERWARDS).for_each(|_| stand.turn());
    assert_eq!(stand.model.borrow_mut().take_diagnostics(), Vec::<String>::new(), "{name}");
    assert!(stand.memory.copy(stand.of_guest.bus, stand.of_guest.len) == before, "{name}: the memory changed");
    stand
}

#[test]
fn a_disk_whose_completions_are_late_does_not_touch_a_guests_memory_after_its_device_is_detached() {
    // It aborts what it is asked to.
    let stand = ends("aborts", |_| {}, Faults::default());
    assert!(!stand.model.borrow().aborts.is_empty());
    assert_eq!(stand.model.borrow().starts, 1, "no reset was needed");
    // It refuses that, and is done by itself.
    let late =
        |model: &mut Model| (model.faults.refuse_abort, model.faults.hold, model.faults.reverse) = (true, false, true);
    assert_eq!(ends("late", late, Faults::default()).model.borrow().starts, 1);
}

#[test]
fn a_disk_that_hangs_does_not_touch_a_guests_memory_after_its_device_is_detached() {
    let hangs = |model: &mut Model| model.faults.refuse_abort = true;
    assert_eq!(ends("hangs", hangs, Faults::default()).model.borrow().starts, 2, "it was reset");
    let loses = |model: &mut Model| (model.faults.lose, model.faults.hold) = (4, false);
    assert_eq!(ends("loses completions", loses, Faults::default()).model.borrow().starts, 2, "it was reset");
    let fails = |model: &mut Model| model.faults.fatal = true;
    assert_eq!(ends("CSTS.CFS", fails, Faults::default()).model.borrow().starts, 2, "it was reset");
    let leaves = |model: &mut Model| model.faults.gone = true;
    ends("all ones", leaves, Faults { gone: true, ..Faults::default() });
    ends("all ones, and back", leaves, Faults::default());
}

#[test]
fn a_disk_that_cannot_be_stopped_loses_its_right_to_master_the_bus_before_the_device_is_detached() {
    let runs_on = |model: &mut Model| (model.faults.refuse_abort, model.faults.never_stops) = (true, true);
    let stand = ends("never stops", runs_on, Faults { never_stops: true, ..Faults::default() });
    assert!(matches!(stand.controller.status(), nvme::ControllerStatus::Failed(nvme::Failure::DoesNotStop)));
    // It would have gone on.
    stand.model.borrow_mut().run();
    assert_ne!(stand.model.borrow_mut().take_diagnostics(), Vec::<String>::new());
}

#[test]
fn a_disk_that_was_taken_out_and_put_in_again_serves_its_guest_but_its_next_flush_fails() {
    let mut stand = Stand::without_driver(9);
    stand.guest.start();
    (0..2).for_each(|_| stand.turn());
    assert_eq!((stand.ask(OUT, 8, Some(Ok(&pattern(512)))).0, stand.ask(FLUSH, 0, None).0), (OK, OK));
    assert_eq!(stand.ask(OUT, 16, Some(Ok(&pattern(512)))).0, OK);
    stand.model.borrow_mut().faults.gone = true;
    assert_eq!(stand.ask(IN, 8, Some(Err(512))).0, IOERR);
    // After power-on, CC is 0.
    stand.model.borrow_mut().faults.gone = false;
    stand.model.borrow_mut().write(0x14, 0);
    stand.controller.restart();
    (0..100).for_each(|_| stand.turn());
    let (status, at) = stand.ask(IN, 8, Some(Err(512)));
    assert!(status == OK && stand.guest.bytes(at[1], 512) == pattern(512));
    // The second write may have been in the cache.
    assert_eq!([(); 2].map(|()| stand.ask(FLUSH, 0, None).0), [IOERR; 2]);
    // It is reported until the driver resets the device.
    stand.guest.shared.request_reset();
    (0..10).for_each(|_| stand.turn());
    assert!(stand.guest.shared.reset_done());
    stand.guest.start();
    (0..2).for_each(|_| stand.turn());
    assert_eq!((stand.ask(OUT, 16, Some(Ok(&pattern(512)))).0, stand.ask(FLUSH, 0, None).0), (OK, OK));
}
