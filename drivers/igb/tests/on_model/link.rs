use igb::nic::{Link, Nic, Refused};
use igb::{Device, Kind};
use igb_model::made::frame;

use crate::bench::{Bench, KINDS, small};

#[test]
fn the_phy_is_powered_offers_no_pause_and_negotiates_at_full_speed() {
    for kind in KINDS {
        let b = Bench::up(kind, small());
        let model = b.model.borrow();
        assert_eq!(model.peek_phy(0) & 1 << 11, 0, "not powered down");
        assert_eq!(model.peek_phy(4) & 0xfff, 0x1e1, "10 and 100 Mb/s, no PAUSE");
        assert_eq!(model.peek_phy(9) & 0x300, 0x200, "1000 Mb/s, full duplex");
        assert_eq!(model.peek(0x5b5c), 0, "the semaphore is free");
        assert_eq!(b.nic.port().unwrap().to_string(), "copper port, auto-negotiation of 10, 100 and 1000 Mb/s");
    }
}

#[test]
fn a_cable_that_is_pulled_is_a_link_that_is_down() {
    let mut b = Bench::up(Kind::I350, small());
    b.model.borrow_mut().set_cable(false);
    b.pass(1_000);
    b.pass(1_000);
    assert_eq!(b.nic.link(), Link::Down);
    assert_eq!(b.send(&frame(60, 0), &[], 1), Err(Refused::LinkDown));
    b.model.borrow_mut().set_cable(true);
    b.until_up();
    assert!(!b.nic.port().unwrap().is_obstructed());
    b.clean();
}

#[test]
fn a_port_without_copper_says_how_its_link_goes() {
    for (mode, how) in [(1, "1000BASE-KX"), (2, "SGMII"), (3, "SerDes")] {
        let mut b = Bench::cold(Kind::I82576, small());
        b.model.borrow_mut().set_link_mode(mode);
        b.until(|b| b.nic.is_settled());
        let port = b.nic.port().unwrap();
        assert!(port.is_obstructed());
        assert_eq!(
            port.to_string(),
            format!("the link of this port goes by {how}, and the driver sets up copper links only")
        );
        assert_eq!(b.nic.link(), Link::Down);
    }
}

#[test]
fn a_phy_that_does_not_answer_is_told_and_asked_again() {
    for (silent, error) in [(true, false), (false, true)] {
        let mut b = Bench::cold(Kind::I82576, small());
        (b.model.borrow_mut().faults.phy_silent, b.model.borrow_mut().faults.phy_error) = (silent, error);
        b.until(|b| b.nic.is_settled());
        let changes = b.nic.port().unwrap().changes();
        assert!(b.nic.port().unwrap().to_string().starts_with("the PHY of the copper port does not answer"));
        assert!(b.nic.port().unwrap().is_obstructed());
        assert_eq!(b.model.borrow().peek(0x5b5c), 0, "the semaphore is free meanwhile");
        b.model.borrow_mut().faults = igb_model::Faults::default();
        b.until_up();
        assert_ne!(b.nic.port().unwrap().changes(), changes);
        assert_eq!(changes % 2, 1, "the text is whole");
    }
}

#[test]
fn firmware_that_keeps_the_phy_loses_it_after_a_second() {
    for (port, bit) in [(0, 1), (1, 2), (2, 5), (3, 6)] {
        let mut b = Bench::with(Kind::I350, port, small(), igb::Filter::all());
        b.model.borrow_mut().faults.firmware_owns = 1 << 16 << bit;
        let begin = b.now;
        b.until_up();
        assert!(b.now - begin > 1_000_000);
        let text = b.nic.port().unwrap().to_string();
        assert!(text.ends_with("firmware did not give the PHY up, and it was taken from it"), "{text}");
        b.clean();
    }
    // Another port's PHY is no concern.
    let mut b = Bench::with(Kind::I350, 0, small(), igb::Filter::all());
    b.model.borrow_mut().faults.firmware_owns = 1 << 16 << 2;
    b.until_up();
    assert!(!b.nic.port().unwrap().to_string().contains("firmware"));
}
