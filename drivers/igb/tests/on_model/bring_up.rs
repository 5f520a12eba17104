use std::cell::Cell;
use std::rc::Rc;

use igb::nic::{Nic, ReceiveFilter, Unicast};
use igb::registers::{self, Access, TABLE};
use igb::{BusMaster, Config, ConfigError, Device, Failure, Filter, Guarded, Kind, MAX_FRAME, Status};
use igb_model::made::{OWN, frame};

use crate::bench::{Bench, KINDS, small};

#[test]
fn both_kinds_come_up_with_the_address_of_the_eeprom_and_no_mistake() {
    for kind in KINDS {
        for port in 0..if kind == Kind::I350 { 4 } else { 2 } {
            let mut b = Bench::with(kind, port, small(), Filter::all());
            b.until_up();
            assert_eq!(b.nic.address(), OWN);
            b.clean();
        }
    }
}

#[test]
fn firmware_and_an_eeprom_that_never_say_that_they_have_finished_are_not_waited_for_forever() {
    for kind in KINDS {
        let mut b = Bench::cold(kind, small());
        b.model.borrow_mut().faults.configuration_hangs = true;
        let begin = b.now;
        b.until(|b| b.nic.status() == Status::Running);
        assert!((100_000..300_000).contains(&(b.now - begin)), "{} us", b.now - begin);
        b.clean();
    }
}

#[test]
fn what_a_device_does_not_do_has_a_name() {
    type Fault = fn(&mut igb_model::Faults);
    let faults: [(Fault, Failure); 3] = [
        (|f| f.gone = true, Failure::Gone),
        (|f| f.reset_hangs = true, Failure::Reset),
        (|f| f.enable_stuck = true, Failure::Queue),
    ];
    for (fault, failure) in faults {
        let mut b = Bench::cold(Kind::I82576, small());
        fault(&mut b.model.borrow_mut().faults);
        b.until(|b| b.nic.status() == Status::Failed(failure));
        b.model.borrow_mut().faults = igb_model::Faults::default();
        b.pass(10_000);
        let now = b.now;
        b.nic.restart(now);
        b.until_up();
    }
    // DMA that does not end takes two resets.
    let mut b = Bench::cold(Kind::I82576, small());
    b.model.borrow_mut().faults.master_stuck = true;
    b.until_up();
    b.clean();
}

#[test]
fn a_mistake_in_the_configuration_is_told() {
    let check = |config: Config| {
        let memory = igb_model::memory::Memory::new(64 << 20).granted(config.memory().max(4096), 128);
        // SAFETY: nobody else has it, and nothing is done with it.
        let buffer = unsafe { igb::dma::DmaBuffer::new(memory.host, memory.bus, memory.len) };
        let b = Bench::cold(Kind::I350, small());
        let port = crate::bench::Port(b.model.clone());
        igb::Igb::<_, u64>::new(port, Kind::I350, buffer, config, Filter::all()).err()
    };
    assert_eq!(check(Config { receive_descriptors: 96, ..small() }), Some(ConfigError::Descriptors(96)));
    assert_eq!(check(Config { max_frame: MAX_FRAME + 1, ..small() }), Some(ConfigError::MaxFrame(MAX_FRAME + 1)));
    assert_eq!(check(Config { max_frame: MAX_FRAME, ..small() }), None);
    let text = ConfigError::MaxFrame(9_300).to_string();
    assert_eq!(text, "frames of 9300 bytes; this NIC has 1514 to 9230");
}

#[test]
fn the_filter_has_room_for_23_or_31_addresses_and_is_promiscuous_beyond() {
    for (kind, most) in KINDS.into_iter().zip([23, 31]) {
        let mut b = Bench::up(kind, small());
        let all: Vec<_> = (0..32).map(|n| Unicast { address: [2, 7, 7, 7, 7, n], queue: 0 }).collect();
        let wanted = |n: usize| ReceiveFilter { unicasts: &all[..n], ..ReceiveFilter::default() };
        assert!(b.nic.set_receive_filter(&wanted(most)).unicasts);
        let to = |address: [u8; 6]| [&address[..], &frame(60, 0)[6..]].concat();
        for n in 0..most as u8 {
            b.deliver(&to([2, 7, 7, 7, 7, n]));
        }
        b.deliver(&to([2, 7, 7, 7, 7, most as u8]));
        b.deliver(&to(OWN));
        assert_eq!(b.received().len(), most + 1, "{kind:?}");
        assert!(!b.nic.set_receive_filter(&wanted(most + 1)).unicasts);
        b.deliver(&to([2, 7, 7, 7, 7, most as u8]));
        b.deliver(&to([2, 8, 8, 8, 8, 8]));
        assert_eq!(b.received().len(), 2);
        assert!(b.nic.set_receive_filter(&wanted(1)).unicasts);
        b.deliver(&to([2, 7, 7, 7, 7, 5]));
        b.deliver(&to([2, 7, 7, 7, 7, 0]));
        assert_eq!(b.received().len(), 1);
        b.clean();
    }
}

#[test]
fn multicasts_and_vlans_come_if_they_are_wanted_and_the_i350_is_told_its_vlans_until_it_has_them() {
    for kind in KINDS {
        let filter = Filter { vlans: Some(vec![7, 4094]), ..Filter::default() };
        let mut b = Bench::with(kind, 1, small(), filter);
        b.until_up();
        let group = [1, 0, 0x5e, 1, 2, 3];
        let with = |to: [u8; 6], vlan: Option<u16>| {
            let mut f = [&to[..], &frame(70, 0)[6..]].concat();
            if let Some(vlan) = vlan {
                f.splice(12..12, [0x81, 0, (vlan >> 8) as u8, vlan as u8]);
            }
            f
        };
        for (to, vlan, expected) in [
            (OWN, Some(7), 1),
            (OWN, Some(4094), 1),
            (OWN, Some(8), 0),
            (OWN, None, 1),
            (group, None, 0),
            ([0xff; 6], None, 0),
        ] {
            b.deliver(&with(to, vlan));
            let mut tags = Vec::new();
            b.nic.receive(0, 10, |f| tags.push(f.vlan));
            assert_eq!(tags, vec![vlan; expected], "{kind:?}, {to:?}, {vlan:?}");
        }
        b.nic.set_receive_filter(&ReceiveFilter { groups: &[group], ..ReceiveFilter::default() });
        b.deliver(&with(group, None));
        assert_eq!(b.received().len(), 1);
        b.clean();
    }
}

#[test]
fn the_light_blinks_and_is_as_it_was_afterwards() {
    let mut b = Bench::up(Kind::I82576, small());
    let before = b.model.borrow().peek(0xe00);
    let until = b.now + 1_000_000;
    b.nic.blink(until);
    let mut seen = Vec::new();
    while b.now < until + 2_000 {
        b.pass(1_000);
        let now = b.model.borrow().peek(0xe00);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    assert!(seen.len() >= 4, "{seen:x?}");
    assert_eq!(seen.last(), Some(&before));
    b.clean();
}

struct Bit(Rc<Cell<bool>>);

// SAFETY: there is no device.
unsafe impl BusMaster for Bit {
    fn set(&mut self, on: bool) -> bool {
        self.0.set(on);
        true
    }
}

#[test]
fn the_device_masters_the_bus_after_a_reset_and_not_once_it_has_failed() {
    let b = Bench::cold(Kind::I82576, small());
    let (model, bit) = (b.model.clone(), Rc::new(Cell::new(true)));
    let mut now = 20_000;
    let mut nic = Guarded::new(b.nic, Bit(bit.clone()), now).expect("free");
    assert!(!bit.get(), "off before the reset");
    let mut pass = |nic: &mut Guarded<_, _, _>| {
        now += 1_000;
        model.borrow_mut().advance(1_000);
        nic.service(now);
    };
    for _ in 0..2_000 {
        pass(&mut nic);
    }
    assert!(bit.get() && nic.is_running() && nic.is_settled());
    model.borrow_mut().faults.gone = true;
    pass(&mut nic);
    assert!(!bit.get());
    assert_eq!(nic.failure(), Some(Failure::Gone));
    model.borrow_mut().faults.gone = false;
    for _ in 0..12_000 {
        pass(&mut nic);
    }
    assert!(bit.get() && nic.is_running(), "tried again after 10 s");
}

#[test]
fn registers_lie_apart_and_within_the_bar() {
    let mut all: Vec<_> =
        TABLE.iter().flat_map(|r| (0..r.count).map(move |n| (r.offset + n * r.stride, r.name))).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup_by_key(|(offset, _)| *offset);
    assert_eq!(all.len(), count, "each once");
    assert!(all.iter().all(|(offset, _)| (*offset as usize) < registers::BAR_BYTES && offset % 4 == 0));
    assert!(TABLE.iter().any(|r| r.access == Access::ReadClear));
}
