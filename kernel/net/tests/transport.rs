//! The virtio-pci transport against an engine with the network back-end: as Linux's virtio_pci_modern driver uses it,
//! and as a hostile driver would.

use std::cell::RefCell;

use engine::control::{Attachment, Command, Control};
use engine::deliver::Deliver;
use engine::engine::Engine;
use engine::requests::Requests;
use engine::schedule::{GuestWeight, PerDevice};
use machine::pci::function::{Function, Place};
use machine::virtio_pci::VirtioPci;
use memory::GuestMemory;
use memory::guest::testing::memory;
use net::backend::Net;
use net::device;
use net::port::Port;
use proptest::prelude::*;
use virtio::config::NO_VECTOR;
use virtio::msix::Interrupt;
use virtio::phase::Phase;
use virtio::shared::Shared;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A function that has decoding enabled.
fn function() -> VirtioPci<'static> {
    let shared = Box::leak(Box::new(Shared::new(device::config(MAC, 1500, 1))));
    let mut f = VirtioPci::new(shared, 1);
    f.write_config(4, 2, 7, &mut |_| {});
    f
}

/// Remembers what the engine delivered.
#[derive(Default)]
struct Delivered(RefCell<Vec<Interrupt>>);

impl Deliver for Delivered {
    fn deliver(&self, _: usize, interrupt: Interrupt) -> bool {
        self.0.borrow_mut().push(interrupt);
        true
    }
}

type TestEngine = Engine<Net, PerDevice, &'static Delivered>;

fn engine(f: &VirtioPci<'static>, memory: GuestMemory) -> (TestEngine, &'static Delivered) {
    let control: &'static Control<Port> = Box::leak(Box::default());
    let delivered: &'static Delivered = Box::leak(Box::default());
    let mut engine = Engine::new(control, Net::new(1, u64::MAX), PerDevice::new(64), delivered);
    let attachment = Attachment {
        slot: 0,
        number: 0,
        shared: f.shared(),
        memory,
        requests: Requests::Poll,
        share: GuestWeight::of_guest(0),
        config: Port::new(Box::leak(Box::default())),
        state: None,
    };
    control.submit(Command::Attach(attachment)).unwrap();
    engine.turn(0);
    (engine, delivered)
}

/// Where the MSI-X capability is in configuration space.
fn msix(f: &mut VirtioPci) -> usize {
    let mut at = f.read_config(0x34, 1) as usize;
    while f.read_config(at, 1) != 0x11 {
        at = f.read_config(at + 1, 1) as usize;
        assert_ne!(at, 0, "no MSI-X capability");
    }
    at
}

fn bar0(offset: u64) -> Place {
    Place { bar: 0, offset }
}

fn bar1(offset: u64) -> Place {
    Place { bar: 1, offset }
}

fn get(f: &mut VirtioPci, offset: u64, size: u8) -> u64 {
    f.read_bar(bar0(offset), size)
}

fn put(f: &mut VirtioPci, offset: u64, size: u8, value: u64) {
    f.write_bar(bar0(offset), size, value, &mut |m| panic!("{m:?} was sent"));
}

/// Sets a queue up as vp_modern_setup_vq does; the first ring starts at `base`.
fn set_up_queue(f: &mut VirtioPci, index: u16, vector: u16, base: u64) {
    put(f, 0x16, 2, index.into());
    let size = get(f, 0x18, 2);
    assert_eq!((size, get(f, 0x1c, 2)), (256, 0));
    put(f, 0x18, 2, size);
    assert_eq!(get(f, 0x1e, 2), u64::from(index));
    for (offset, address) in [(0x20, base), (0x28, base + 0x1000), (0x30, base + 0x2000)] {
        put(f, offset, 4, address & 0xffff_ffff);
        put(f, offset + 4, 4, address >> 32);
        assert_eq!(get(f, offset, 8), address);
    }
    put(f, 0x1a, 2, vector.into());
    assert_eq!(get(f, 0x1a, 2), u64::from(vector));
    put(f, 0x1c, 2, 1);
    assert_eq!(get(f, 0x1c, 2), 1);
}

/// Negotiates everything on offer.
fn negotiate(f: &mut VirtioPci) -> u64 {
    put(f, 0x14, 1, 0);
    assert_eq!(get(f, 0x14, 1), 0);
    put(f, 0x14, 1, 1);
    put(f, 0x14, 1, 3);
    let mut features = 0;
    for select in 0..2 {
        put(f, 0x00, 4, select);
        features |= get(f, 0x04, 4) << (32 * select);
    }
    for select in 0..2 {
        put(f, 0x08, 4, select);
        put(f, 0x0c, 4, features >> (32 * select) & 0xffff_ffff);
    }
    put(f, 0x14, 1, 11);
    assert_eq!(get(f, 0x14, 1), 11, "FEATURES_OK stands");
    features
}

#[test]
fn a_driver_brings_the_device_up_and_resets_it_with_the_engine_at_work() {
    let mut f = function();
    let (mut engine, delivered) = engine(&f, memory(0, 0x10_0000));
    let features = negotiate(&mut f);
    assert_eq!(features, f.shared().offered());
    assert_eq!((0..6).map(|i| get(&mut f, 0x2000 + i, 1) as u8).collect::<Vec<_>>(), MAC);
    assert_eq!(get(&mut f, 0x2006, 2), 1, "link up");
    assert_eq!(get(&mut f, 0x12, 2), 3, "queues");
    put(&mut f, 0x10, 2, 0);
    assert_eq!(get(&mut f, 0x10, 2), 0);
    set_up_queue(&mut f, 0, 1, 0x1_0000);
    set_up_queue(&mut f, 1, 2, 0x2_0000);
    f.write_bar(bar1(4), 2, 1, &mut |_| {});
    assert_eq!(f.shared().counters().kicks.get(), 0, "not yet running");
    put(&mut f, 0x14, 1, 15);
    assert_eq!(get(&mut f, 0x14, 1), 15);
    engine.turn(1);
    assert_eq!(f.shared().phase(), Phase::Running);
    assert_eq!(f.shared().queue(1).avail, 0x2_1000);
    f.write_bar(bar1(4), 2, 1, &mut |_| {});
    f.write_bar(bar1(12), 2, 3, &mut |_| {});
    f.write_bar(bar1(5), 2, 1, &mut |_| {});
    assert_eq!(f.shared().counters().kicks.get(), 1, "three queues, and no ports between theirs");

    put(&mut f, 0x14, 1, 0);
    assert_eq!(get(&mut f, 0x14, 1), 15, "the engine has not let go");
    put(&mut f, 0x14, 1, 1);
    put(&mut f, 0x16, 2, 1);
    assert_eq!(get(&mut f, 0x14, 1), 15, "and nothing can be written meanwhile");
    engine.turn(2);
    assert_eq!(get(&mut f, 0x14, 1), 0);
    assert_eq!((get(&mut f, 0x16, 2), get(&mut f, 0x18, 2), get(&mut f, 0x20, 8)), (0, 256, 0));
    assert_eq!((get(&mut f, 0x1a, 2), get(&mut f, 0x10, 2), get(&mut f, 0x1c, 2)), (0xffff, 0xffff, 0));

    // And all over again, to the end.
    negotiate(&mut f);
    set_up_queue(&mut f, 0, NO_VECTOR, 0x1_0000);
    set_up_queue(&mut f, 1, NO_VECTOR, 0x2_0000);
    put(&mut f, 0x14, 1, 15);
    engine.turn(3);
    assert_eq!(f.shared().phase(), Phase::Running);
    assert!(delivered.0.borrow().is_empty());
}

/// As vp_modern_disable_vq_and_reset and vp_modern_enable_vq_after_reset do.
#[test]
fn a_queue_is_reset_and_set_up_anew_while_the_device_runs() {
    let mut f = function();
    let (mut engine, _) = engine(&f, memory(0, 0x10_0000));
    assert_ne!(negotiate(&mut f) & 1 << 40, 0);
    set_up_queue(&mut f, 0, NO_VECTOR, 0x1_0000);
    set_up_queue(&mut f, 1, 2, 0x2_0000);
    put(&mut f, 0x3a, 2, 1);
    assert_eq!(get(&mut f, 0x3a, 2), 0, "a device that does not run has nothing to reset");
    put(&mut f, 0x14, 1, 15);
    engine.turn(1);
    put(&mut f, 0x3a, 2, 0);
    assert_eq!((get(&mut f, 0x3a, 2), get(&mut f, 0x1c, 2)), (0, 1), "0 asks for nothing");
    put(&mut f, 0x3a, 2, 1);
    assert_eq!((get(&mut f, 0x3a, 2), get(&mut f, 0x1c, 2)), (1, 1), "the engine has not let go");
    put(&mut f, 0x18, 2, 64);
    put(&mut f, 0x1c, 2, 1);
    assert_eq!(get(&mut f, 0x18, 2), 256, "and nothing can be written meanwhile");
    put(&mut f, 0x16, 2, 0);
    assert_eq!((get(&mut f, 0x3a, 2), get(&mut f, 0x1c, 2)), (0, 1), "the other queue");
    put(&mut f, 0x16, 2, 1);
    engine.turn(2);
    assert_eq!((get(&mut f, 0x3a, 2), get(&mut f, 0x1c, 2)), (0, 0));
    assert_eq!((get(&mut f, 0x18, 2), get(&mut f, 0x1a, 2), get(&mut f, 0x20, 8)), (256, 0xffff, 0), "as after reset");
    put(&mut f, 0x18, 2, 64);
    for (offset, address) in [(0x20, 0x3_0000), (0x28, 0x3_1000), (0x30, 0x3_2000)] {
        put(&mut f, offset, 8, address);
    }
    put(&mut f, 0x1a, 2, 2);
    put(&mut f, 0x1c, 2, 1);
    engine.turn(3);
    assert_eq!((get(&mut f, 0x1c, 2), get(&mut f, 0x3a, 2), get(&mut f, 0x14, 1)), (1, 0, 15));
    let queue = f.shared().queue(1);
    assert_eq!((queue.size, queue.desc, queue.vector, queue.enabled), (64, 0x3_0000, 2, true));
    assert_eq!((f.shared().phase(), f.shared().counters().queue_resets.get()), (Phase::Running, 1));
    // A reset of the device ends that of a queue too.
    put(&mut f, 0x3a, 2, 1);
    put(&mut f, 0x14, 1, 0);
    engine.turn(4);
    assert_eq!((get(&mut f, 0x14, 1), get(&mut f, 0x3a, 2)), (0, 0));
}

#[test]
fn a_queue_outside_guest_memory_ends_in_needs_reset_and_a_configuration_interrupt() {
    let mut f = function();
    let (mut engine, delivered) = engine(&f, memory(0, 0x10_0000));
    let msix = msix(&mut f);
    f.write_config(msix + 2, 2, 0x8000, &mut |_| unreachable!());
    put(&mut f, 0x3000, 4, 0xfee0_3000);
    put(&mut f, 0x3008, 4, 0x55);
    put(&mut f, 0x300c, 4, 0);
    negotiate(&mut f);
    put(&mut f, 0x10, 2, 0);
    set_up_queue(&mut f, 0, 1, 0x1_0000);
    set_up_queue(&mut f, 1, 2, 0xffff_ffff_f000);
    put(&mut f, 0x14, 1, 15);
    engine.turn(1);
    engine.turn(2);
    assert_eq!(get(&mut f, 0x14, 1), 15 | 64);
    assert_eq!(get(&mut f, 0x1000, 1), 2, "configuration");
    assert_eq!(get(&mut f, 0x1000, 1), 0, "reading clears");
    let interrupt = Interrupt { destination: 3, logical: false, lowest_priority: false, vector: 0x55 };
    assert_eq!(*delivered.0.borrow(), [interrupt]);
    put(&mut f, 0x14, 1, 0);
    engine.turn(3);
    assert_eq!(get(&mut f, 0x14, 1), 0);
}

proptest! {
    /// Whatever a driver does, nothing panics, the identity stands, and DRIVER_OK never stands without FEATURES_OK.
    #[test]
    fn hostile_drivers_are_harmless(
        accesses in proptest::collection::vec((0u8..7, any::<u16>(), 0u8..=9, any::<u64>()), 1..300)
    ) {
        let mut f = function();
        let (mut engine, _) = engine(&f, memory(0, 0x1_0000));
        for (i, (what, offset, size, value)) in accesses.into_iter().enumerate() {
            let offset64 = u64::from(offset);
            match what {
                0 => drop(f.read_bar(bar0(offset64), size)),
                1 => f.write_bar(bar0(offset64 & 0x3f), size & 0xf, value, &mut |_| {}),
                2 => f.write_bar(bar0(value ^ offset64), size, value, &mut |_| {}),
                3 => f.write_bar(bar1(offset64 & 0x1ff), size, value, &mut |_| {}),
                4 => f.write_config(usize::from(offset & 0x1ff), size, value, &mut |_| {}),
                5 => drop(f.read_config(usize::from(offset & 0x1ff), size)),
                _ => {
                    // A likely status, so that the device gets somewhere.
                    let status = [0, 1, 3, 11, 15, 128][usize::from(offset) % 6];
                    f.write_bar(bar0(0x14), 1, status, &mut |_| {});
                    engine.turn(i as u64);
                }
            }
            let status = f.read_bar(bar0(0x14), 1);
            prop_assert!(status & 4 == 0 || status & 8 != 0);
            prop_assert_eq!(f.read_config(0, 4), 0x1041_1af4);
        }
    }
}
