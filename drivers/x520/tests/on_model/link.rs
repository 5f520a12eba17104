//! From the module in the cage to a link, with modules of all kinds, and with what goes wrong.

use std::cell::Cell;

use x520::id::Medium;
use x520::nic::{Link, Nic};
use x520::{Cage, Config, Device, Filter, Status};
use x520_model::registers::Reg;
use x520_model::sfp::Module;
use x520_model::{Faults, Offers};

use crate::bench::{Bench, small};

/// A bench with that module. The driver has not begun.
fn with(module: &str, device: x520_model::Config, config: Config) -> Bench {
    let device = x520_model::Config { module: Module::named(module), ..device };
    Bench::with(config, Filter::all(), device)
}

fn plain(module: &str) -> Bench {
    with(module, x520_model::Config::default(), small())
}

/// What the driver says of its port.
fn said(b: &Bench) -> String {
    b.nic.port().expect("it has a port").to_string()
}

/// Lets the driver look into the cage, as quickly as at boot.
fn settle(b: &mut Bench) {
    b.until(|b| b.nic.status() == Status::Running);
    for _ in 0..20_000 {
        if b.nic.is_settled() {
            return;
        }
        b.pass(50);
    }
    panic!("not settled: {}", said(b));
}

/// Has another look of the driver into the cage. It comes after 2 s, and takes 1.6 s at a step a millisecond.
fn look_again(b: &mut Bench) {
    (0..6_000).for_each(|_| b.pass(1_000));
}

#[test]
fn each_module_has_its_rate_at_both_ports_or_is_refused_with_a_sentence() {
    let cases = [
        ("sr", Some(10_000), "SFP+ module 10GBASE-SR, Intel Corp MODEL-SR"),
        ("lr", Some(10_000), "SFP+ module 10GBASE-LR, Intel Corp MODEL-LR"),
        ("passive", Some(10_000), "SFP+ module passive copper cable, CABLES DAC-3M"),
        ("active", Some(10_000), "SFP+ module active copper cable, CABLES ACU-7M"),
        ("dual-sr", Some(10_000), "SFP+ module 10GBASE-SR and 1000BASE-SX, Intel Corp MODEL-SX-SR"),
        ("dual-sr", Some(1_000), "SFP+ module 10GBASE-SR and 1000BASE-SX, Intel Corp MODEL-SX-SR"),
        ("sx", Some(1_000), "SFP+ module 1000BASE-SX, SOMEBODY SB-SX"),
        ("lx", Some(1_000), "SFP+ module 1000BASE-LX, SOMEBODY SB-LX"),
        ("t", Some(1_000), "SFP+ module 1000BASE-T, SOMEBODY SB-T"),
        (
            "foreign-sr",
            None,
            "this module is not supported by the NIC: 10GBASE-SR, SOMEBODY SB-SR-85: the NIC's EEPROM allows 10 Gb/s optics \
             by Intel only, and the configuration allows no others",
        ),
        (
            "er",
            None,
            "this module is not supported by the NIC: 10GBASE-ER, Intel Corp MODEL-ER: the 82599 has no mode for it",
        ),
        (
            "active-linear",
            None,
            "this module is not supported by the NIC: active copper cable that does not limit, CABLES ACL-7M: the 82599 has \
             no mode for it",
        ),
        (
            "ten-t",
            None,
            "this module is not supported by the NIC: module without a known code, SOMEBODY SB-10T: the 82599 has no mode \
             for it",
        ),
        (
            "qsfp",
            None,
            "this module is not supported by the NIC: module with the identifier 0x0d, which is no SFP, SOMEBODY SB-Q: the \
             82599 has no mode for it",
        ),
        ("none", None, "no SFP+ module in the cage"),
    ];
    for (module, rate, text) in cases {
        for port in [0, 1] {
            let mut b = with(module, x520_model::Config { port, ..x520_model::Config::default() }, small());
            b.model.borrow_mut().set_partner(rate.unwrap_or(10_000));
            settle(&mut b);
            assert_eq!(said(&b), text);
            let port = b.nic.port().expect("it has a port");
            assert_eq!(port.is_obstructed(), rate.is_none());
            for _ in 0..3_000 {
                b.pass(1_000);
            }
            assert_eq!(b.nic.link(), rate.map_or(Link::Down, Link::Up), "{module}");
            let laser_off = b.model.borrow_mut().read(Reg::Esdp.offset(0)) & 1 << 3 != 0;
            assert_eq!(laser_off, rate.is_none(), "{module}");
            b.clean();
        }
    }
}

#[test]
fn optics_of_any_vendor_are_taken_if_the_eeprom_or_the_configuration_says_so() {
    for (by_eeprom, by_configuration) in [(true, false), (false, true)] {
        let device = x520_model::Config { any_module: by_eeprom, ..x520_model::Config::default() };
        let mut b = with("foreign-sr", device, Config { any_module: by_configuration, ..small() });
        b.until_up();
        assert_eq!(said(&b), "SFP+ module 10GBASE-SR, SOMEBODY SB-SR-85");
        b.clean();
    }
}

#[test]
fn modules_come_and_go_while_the_device_runs() {
    let mut b = plain("none");
    settle(&mut b);
    assert_eq!((b.nic.cage(), b.nic.link()), (Cage::Empty, Link::Down));
    let before = b.nic.port().map(|p| p.changes());
    b.model.borrow_mut().set_module(Module::named("sr"));
    look_again(&mut b);
    assert_eq!(b.nic.link(), Link::Up(10_000));
    assert_ne!(b.nic.port().map(|p| p.changes()), before);
    for (module, text, link) in [
        ("passive", "SFP+ module passive copper cable, CABLES DAC-3M", Link::Up(10_000)),
        ("none", "no SFP+ module in the cage", Link::Down),
        ("ten-t", "this module is not supported by the NIC: module without", Link::Down),
        ("sr", "SFP+ module 10GBASE-SR", Link::Up(10_000)),
    ] {
        b.model.borrow_mut().set_module(Module::named(module));
        b.pass(1_000);
        assert_eq!(b.nic.link(), Link::Down, "a module that was taken out has no link");
        look_again(&mut b);
        assert_eq!(b.nic.link(), link, "{module}");
        assert!(said(&b).starts_with(text), "{}", said(&b));
    }
    b.clean();
}

#[test]
fn a_step_is_a_few_accesses_and_with_a_link_there_are_none() {
    let mut b = plain("sr");
    let most = Cell::new(0);
    let accesses = |b: &Bench| {
        let (reads, writes) = b.model.borrow().accesses();
        reads + writes
    };
    b.until(|b| b.nic.status() == Status::Running);
    for _ in 0..4_000 {
        let before = accesses(&b);
        b.pass(1_000);
        // The statistics are read every second.
        if accesses(&b) - before < 40 {
            most.set(most.get().max(accesses(&b) - before));
        }
    }
    assert_eq!(b.nic.link(), Link::Up(10_000));
    assert!(most.get() <= 10, "{} accesses in a step", most.get());
    let before = accesses(&b);
    b.pass(1_000);
    assert!(accesses(&b) - before <= 2, "LINKS and ESDP");
    b.clean();
}

#[test]
fn a_module_that_stops_the_clock_or_the_data_wire_or_answers_wrongly_is_read_all_the_same() {
    let faults: [fn(&mut Faults); 3] =
        [|f| f.module_slow = 400, |f| f.module_bad_byte = 120, |f| (f.module_bad_byte, f.module_slow) = (97, 100)];
    for fault in faults {
        let mut b = plain("sr");
        fault(&mut b.model.borrow_mut().faults);
        b.model.borrow_mut().stick_module();
        settle(&mut b);
        assert!(matches!(b.nic.cage(), Cage::Usable(_)), "{}", said(&b));
        b.until_up();
        b.clean();
    }
}

#[test]
fn a_module_that_cannot_be_read_is_told_and_looked_at_again() {
    for (fault, text) in [
        ((|f| f.module_bad_byte = 7) as fn(&mut Faults), "the SFP+ module answers, but what it says cannot be read"),
        (|f| f.module_slow = 1_000_000, "the SFP+ module answers, but what it says cannot be read"),
        (|f| f.module_silent = true, "no SFP+ module in the cage"),
    ] {
        let mut b = plain("sr");
        fault(&mut b.model.borrow_mut().faults);
        settle(&mut b);
        assert_eq!(said(&b), text);
        b.model.borrow_mut().faults = Faults::default();
        look_again(&mut b);
        assert_eq!(b.nic.link(), Link::Up(10_000));
        b.clean();
    }
}

#[test]
fn a_wrong_checksum_is_accepted_if_the_module_says_it_twice() {
    let mut b = plain("sr");
    let module = Module::named("sr").expect("it is in the table").with_byte(56, b'7');
    b.model.borrow_mut().set_module(Some(module));
    b.until_up();
    b.clean();
}

#[test]
fn whatever_bytes_a_module_has_its_text_is_plain_and_the_device_goes_on() {
    let mut b = plain("sr");
    let mut module = Module::named("sr").expect("it is in the table");
    for (at, value) in (20..56).zip([0x1b, 0x07, 0x00, 0xff, b'\n', b'A'].into_iter().cycle()) {
        module = module.with_byte(at, value);
    }
    b.model.borrow_mut().set_module(Some(module));
    settle(&mut b);
    assert!(said(&b).chars().all(|c| c == ' ' || c.is_ascii_graphic()), "{}", said(&b));
    b.clean();
}

#[test]
fn a_module_whose_kind_the_eeprom_does_not_know_is_refused() {
    let mut b = plain("sr");
    b.model.borrow_mut().forget_sequences();
    settle(&mut b);
    assert!(said(&b).ends_with("the NIC's EEPROM has no initialisation for it"), "{}", said(&b));
    b.clean();
}

#[test]
fn firmware_that_keeps_the_link_is_waited_for_and_then_overruled() {
    // The wires to the module, and the MAC's registers.
    for owned in [1 << 6, 1 << 8] {
        for lets_go in [true, false] {
            let mut b = plain("sr");
            b.model.borrow_mut().faults.firmware_owns = owned;
            (0..700).for_each(|_| b.pass(1_000));
            assert_eq!((b.nic.status(), b.nic.link()), (Status::Running, Link::Down));
            if lets_go {
                b.model.borrow_mut().faults.firmware_owns = 0;
            }
            b.until_up_within(12_000);
            let told = said(&b).contains("the NIC's firmware did not release a semaphore, so it was taken");
            assert_eq!(told, !lets_go, "{}", said(&b));
            b.clean();
        }
    }
}

#[test]
fn firmware_that_never_gives_the_semaphore_of_semaphores_is_overruled_too() {
    let mut b = plain("sr");
    b.model.borrow_mut().faults.firmware_holds_swesmbi = true;
    b.until_up_within(15_000);
    assert!(said(&b).contains("so it was taken"));
    b.clean();
}

#[test]
fn a_configuration_that_firmware_never_finishes_is_told_and_not_waited_for() {
    let mut b = plain("sr");
    b.model.borrow_mut().faults.configuration_hangs = true;
    b.until(|b| b.nic.status() == Status::Running);
    assert!((200_000..400_000).contains(&b.now), "{} us", b.now);
    b.until_up();
    assert!(said(&b).ends_with("; the NIC's firmware never said that it has configured the port"), "{}", said(&b));
    b.clean();
}

#[test]
fn firmware_knows_whether_a_driver_has_the_device() {
    let loaded = |b: &Bench| b.model.borrow_mut().read(Reg::CtrlExt.offset(0)) & 1 << 28 != 0;
    let mut b = Bench::up(small());
    assert!(loaded(&b));
    b.nic.stop(b.now);
    b.until(|b| b.nic.status() == Status::Stopped);
    assert!(!loaded(&b));
    b.nic.restart(b.now);
    b.until_up();
    assert!(loaded(&b));
    b.clean();
}

#[test]
fn nothing_is_left_held_if_the_device_is_stopped_at_any_step() {
    for steps in (0..2_300).step_by(7) {
        let mut b = plain("sr");
        b.until(|b| b.nic.status() == Status::Running);
        (0..steps).for_each(|_| b.pass(1_000));
        b.nic.stop(b.now);
        b.until(|b| b.nic.status() == Status::Stopped);
        let owners = b.model.borrow_mut().read(Reg::SwFwSync.offset(0));
        assert_eq!(owners, 0, "after {steps} steps");
    }
}

#[test]
fn a_slow_device_comes_up() {
    let mut b = plain("sr");
    b.model.borrow_mut().faults.slow = 20_000;
    b.until_up_within(12_000);
    b.clean();
}

#[test]
fn a_known_module_is_not_read_again_after_a_reset() {
    let mut b = Bench::up(small());
    b.nic.restart(b.now);
    let begin = b.now;
    b.until_up();
    assert!(b.now - begin < 800_000, "{} us, of which the link needs 500,000", b.now - begin);
    b.clean();
}

#[test]
fn a_signal_without_a_module_is_the_other_port_s() {
    let mut b = Bench::up(small());
    // The wires hear nothing of it, and the link stays up, as LINKS has it.
    b.model.borrow_mut().feign_signal();
    b.pass(1_000);
    assert_eq!(b.nic.link(), Link::Down);
    b.clean();
}

#[test]
fn the_light_blinks_as_long_as_it_is_asked_to_and_is_then_as_before() {
    let mut b = Bench::up(small());
    let light = |b: &Bench| b.model.borrow_mut().read(Reg::Ledctl.offset(0));
    b.model.borrow_mut().write(Reg::Ledctl.offset(0), 0x0502_0184);
    b.nic.blink(b.now + 3_000_000);
    let mut changes = 0;
    let mut last = 0x0502_0184;
    for _ in 0..2_990 {
        b.pass(1_000);
        changes += u32::from(light(&b) != last);
        last = light(&b);
        assert!([0x0502_010e, 0x0502_010f].contains(&last), "{last:#x}");
    }
    assert!((11..=13).contains(&changes), "{changes} changes in 3 s");
    // A reset in between does not end it.
    b.nic.blink(b.now + 2_000_000);
    b.nic.restart(b.now);
    b.until_up();
    assert_eq!(light(&b) >> 16 & 0xe, 0xe, "the third light, as this LEDCTL shows no link");
    (0..2_000).for_each(|_| b.pass(1_000));
    assert_eq!(light(&b), 0);
    b.clean();
}

#[test]
fn a_module_that_is_replaced_by_its_like_gets_its_words_too() {
    let mut b = Bench::up(small());
    b.model.borrow_mut().set_module(Module::named("sr"));
    b.pass(1_000);
    assert_eq!(b.nic.link(), Link::Down);
    look_again(&mut b);
    assert_eq!(b.nic.link(), Link::Up(10_000));
    b.clean();
}

/// A card for a backplane with that AUTOC in its EEPROM, whose other end offers something.
fn backplane(autoc: u32, offers: Offers) -> Bench {
    let device = x520_model::Config { module: None, backplane: Some(autoc), ..x520_model::Config::default() };
    let b = Bench::with(Config { medium: Medium::Backplane, ..small() }, Filter::all(), device);
    b.model.borrow_mut().set_offers(offers);
    b
}

#[test]
fn a_backplane_has_the_best_mode_of_both_ends_and_says_what_it_offers() {
    let both = "backplane: offers KR KX4 KX";
    for (own, other, rate, text) in [
        ("kr,kx4,kx", "kr,kx4,kx", Some(10_000), both),
        ("kr,kx4,kx", "kx4,kx", Some(10_000), both),
        ("kr,kx4,kx", "kx", Some(1_000), both),
        ("kr", "kr", Some(10_000), "backplane: offers KR"),
        ("kr", "kx", None, "backplane: offers KR; the other end has negotiated, and no link comes of it"),
        ("kx4", "kx4,kx", Some(10_000), "backplane: offers KX4"),
    ] {
        let (own, other) = (Offers::named(own).unwrap(), Offers::named(other).unwrap());
        let mut b = backplane(own.autoc(), other);
        settle(&mut b);
        for _ in 0..6_000 {
            b.pass(1_000);
        }
        assert_eq!((b.nic.link(), said(&b).as_str()), (rate.map_or(Link::Down, Link::Up), text));
        assert!(!b.nic.port().expect("it has a port").is_obstructed());
        b.clean();
    }
}

#[test]
fn a_backplane_without_negotiation_is_as_the_eeprom_says() {
    for (lms, other, rate, text) in [
        (0, Offers::KX, Some(1_000), "backplane: KX, not negotiated"),
        (1, Offers::KX4, Some(10_000), "backplane: KX4, not negotiated"),
        (1, Offers::KX, None, "backplane: KX4, not negotiated"),
        (3, Offers::KR, Some(10_000), "backplane: mode 3 of AUTOC, by the EEPROM"),
    ] {
        let mut b = backplane(0xc09c_0004 | lms << 13, other);
        settle(&mut b);
        for _ in 0..6_000 {
            b.pass(1_000);
        }
        assert_eq!((b.nic.link(), said(&b).as_str()), (rate.map_or(Link::Down, Link::Up), text));
        b.clean();
    }
}

#[test]
fn an_end_of_a_backplane_that_comes_later_has_a_link_without_a_new_start() {
    let mut b = backplane(Offers::ALL.autoc(), Offers::ALL);
    assert_eq!(said(&b), "backplane, not set up yet");
    b.model.borrow_mut().set_cable(false);
    settle(&mut b);
    for _ in 0..6_000 {
        b.pass(1_000);
    }
    assert_eq!(said(&b), "backplane: offers KR KX4 KX; the other end does not negotiate");
    let written = b.model.borrow().accesses().1;
    b.model.borrow_mut().set_cable(true);
    b.until_up();
    assert_eq!((b.nic.link(), said(&b).as_str()), (Link::Up(10_000), "backplane: offers KR KX4 KX"));
    assert_eq!(b.model.borrow().accesses().1, written, "it negotiates by itself");
    let autoc = b.model.borrow_mut().read(Reg::Autoc.offset(0));
    assert_eq!(autoc & 3 << 28, 0, "no PAUSE is offered");
    assert_eq!(b.model.borrow_mut().read(Reg::Esdp.offset(0)) & 1 << 11, 0, "no pin of a module is driven");
    b.clean();
}
