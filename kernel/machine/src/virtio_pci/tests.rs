//! The transport as Linux's virtio_pci_modern driver uses it, and as a hostile driver would. What an engine does with the
//! device is tested in the crate of the network back-end.

use super::*;
use proptest::prelude::*;
use virtio::{
    config::{DeviceConfig, Features, MAX_QUEUES},
    phase::Phase,
};

use crate::{
    lapic::{Delivery, Destination},
    testing::device,
};

const VERSION_1: u64 = 1 << 32;

/// A function that has decoding enabled.
fn function() -> VirtioPci<'static> {
    let mut f = VirtioPci::new(device(), 1);
    f.write_config(4, 2, 7, &mut |_| {});
    f
}

/// What an engine does when the transport has rung: takes the device into use, and lets go of it.
fn engine_turn(shared: &Shared) {
    match shared.phase() {
        Phase::Activating => drop(shared.step(Phase::Activating, Phase::Running)),
        Phase::Resetting => shared.acknowledge_reset(),
        Phase::Idle | Phase::Running => {}
    }
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

/// Walks the capability list like a driver: (offset, cfg_type, bar, bar offset, length) of each virtio capability.
fn capabilities(f: &mut VirtioPci) -> Vec<(usize, u8, u8, u32, u32)> {
    let mut found = Vec::new();
    let mut at = f.read_config(0x34, 1) as usize;
    while at != 0 {
        if f.read_config(at, 1) == 0x09 {
            let mut byte = |o: usize, n| f.read_config(at + o, n);
            let (kind, bar) = (byte(3, 1) as u8, byte(4, 1) as u8);
            found.push((at, kind, bar, byte(8, 4) as u32, byte(12, 4) as u32));
        }
        at = f.read_config(at + 1, 1) as usize;
    }
    found
}

/// Negotiates everything on offer.
fn negotiate(f: &mut VirtioPci) -> u64 {
    negotiate_but(f, 0)
}

/// Negotiates everything on offer but these features.
fn negotiate_but(f: &mut VirtioPci, without: u64) -> u64 {
    put(f, 0x14, 1, 0);
    assert_eq!(get(f, 0x14, 1), 0);
    put(f, 0x14, 1, 1);
    put(f, 0x14, 1, 3);
    let mut features = 0;
    for select in 0..2 {
        put(f, 0x00, 4, select);
        features |= get(f, 0x04, 4) << (32 * select);
    }
    features &= !without;
    for select in 0..2 {
        put(f, 0x08, 4, select);
        put(f, 0x0c, 4, features >> (32 * select) & 0xffff_ffff);
    }
    put(f, 0x14, 1, 11);
    assert_eq!(get(f, 0x14, 1), 11, "FEATURES_OK stands");
    features
}

#[test]
fn the_function_is_a_modern_net_device_with_all_five_capabilities() {
    let mut f = function();
    assert_eq!(f.read_config(0, 4), 0x1041_1af4);
    assert_eq!(f.read_config(8, 4), 0x0200_0001);
    assert_eq!(f.read_config(0x3d, 1), 0, "no INTx");
    let caps = capabilities(&mut f);
    let parts: Vec<_> = caps.iter().map(|c| (c.1, c.2, c.3, c.4)).collect();
    assert_eq!(parts, [(1, 0, 0, 0x40), (3, 0, 0x1000, 1), (4, 0, 0x2000, 12), (2, 1, 0, 12), (5, 0, 0, 0)]);
    let notify = caps[3].0;
    assert_eq!((f.read_config(notify + 2, 1), f.read_config(notify + 16, 4)), (20, 4), "notify_off_multiplier");
}

#[test]
fn a_device_without_a_configuration_of_its_own_has_no_capability_for_it() {
    let config = DeviceConfig { device_type: 4, config_len: 0, ..virtio::testing::device() };
    let shared: &Shared = Box::leak(Box::new(Shared::new(config)));
    let mut f = VirtioPci::new(shared, 1);
    assert_eq!((f.read_config(0, 4), f.read_config(8, 4)), (0x1044_1af4, 0xff00_0001));
    let kinds: Vec<_> = capabilities(&mut f).iter().map(|c| c.1).collect();
    assert_eq!(kinds, [1, 3, 2, 5], "Linux refuses one of no bytes");
}

#[test]
fn the_driver_writes_the_configuration_where_the_device_allows_it() {
    let config = DeviceConfig { device_type: 2, driver_writes: 1 << 6, ..virtio::testing::device() };
    let mut f = VirtioPci::new(Box::leak(Box::new(Shared::new(config))), 1);
    assert_eq!((f.read_config(0, 4), f.read_config(8, 4)), (0x1042_1af4, 0x0180_0001));
    let before = get(&mut f, 0x2000, 8);
    put(&mut f, 0x2000, 8, u64::MAX);
    assert_eq!(get(&mut f, 0x2000, 8), before | 0xff << 48);
    put(&mut f, 0x2006, 1, 0x12);
    assert_eq!((get(&mut f, 0x2006, 1), get(&mut f, 0x2005, 1)), (0x12, before >> 40 & 0xff));
}

#[test]
fn features_that_are_missing_version_1_or_were_not_offered_are_refused() {
    for (select, value) in [(1, 0), (1, 3), (0, 1 << 2), (2, 1), (3, 0x8000_0000)] {
        let mut f = function();
        put(&mut f, 0x14, 1, 3);
        put(&mut f, 0x08, 4, 1);
        put(&mut f, 0x0c, 4, VERSION_1 >> 32);
        put(&mut f, 0x08, 4, select);
        put(&mut f, 0x0c, 4, value);
        put(&mut f, 0x14, 1, 11);
        assert_eq!(get(&mut f, 0x14, 1), 3, "word {select} = {value:#x}");
        put(&mut f, 0x14, 1, 7);
        assert_eq!(get(&mut f, 0x14, 1), 3, "no DRIVER_OK without FEATURES_OK");
        assert_eq!(f.shared().phase(), Phase::Idle);
        put(&mut f, 0x14, 1, 0x83);
        assert_eq!(get(&mut f, 0x14, 1), 0x83, "the driver gives up");
    }
}

#[test]
fn features_are_fixed_once_agreed_and_status_bits_only_rise() {
    let mut f = function();
    let features = negotiate(&mut f);
    put(&mut f, 0x08, 4, 0);
    put(&mut f, 0x0c, 4, 0);
    assert_eq!(get(&mut f, 0x0c, 4), features & 0xffff_ffff);
    put(&mut f, 0x14, 1, 1);
    assert_eq!(get(&mut f, 0x14, 1), 11);
    put(&mut f, 0x14, 1, 0x7b);
    assert_eq!(get(&mut f, 0x14, 1), 11, "NEEDS_RESET and undefined bits are not the driver's");
    put(&mut f, 0x00, 4, 2);
    assert_eq!(get(&mut f, 0x04, 4), 0);
    put(&mut f, 0x08, 4, u32::MAX.into());
    put(&mut f, 0x0c, 4, 5);
    assert_eq!(get(&mut f, 0x0c, 4), 0);
}

#[test]
fn an_enabled_queue_cannot_be_changed_and_sizes_are_checked() {
    let mut f = function();
    negotiate_but(&mut f, Features::RING_PACKED.bits());
    put(&mut f, 0x16, 2, 1);
    for size in [0, 3, 255, 257, 512, 0x8000] {
        put(&mut f, 0x18, 2, size);
        assert_eq!(get(&mut f, 0x18, 2), 256, "{size}");
    }
    put(&mut f, 0x18, 2, 64);
    put(&mut f, 0x20, 8, 0x1_2345_6780);
    put(&mut f, 0x1c, 2, 0);
    assert_eq!(get(&mut f, 0x1c, 2), 0);
    put(&mut f, 0x1c, 2, 1);
    for (offset, size) in [(0x18, 2), (0x20, 8), (0x20, 4), (0x24, 4), (0x28, 4), (0x30, 8)] {
        put(&mut f, offset, size, 32);
    }
    put(&mut f, 0x1c, 2, 0);
    assert_eq!((get(&mut f, 0x18, 2), get(&mut f, 0x20, 8), get(&mut f, 0x1c, 2)), (64, 0x1_2345_6780, 1));
    let queue = f.shared().queue(1);
    assert_eq!((queue.size, queue.desc, queue.enabled), (64, 0x1_2345_6780, true));
    put(&mut f, 0x14, 1, 15);
    put(&mut f, 0x16, 2, 0);
    put(&mut f, 0x1c, 2, 1);
    assert_eq!(get(&mut f, 0x1c, 2), 0, "not while the device runs");
}

#[test]
fn a_packed_ring_may_have_any_size_up_to_the_one_offered() {
    let mut f = function();
    negotiate(&mut f);
    put(&mut f, 0x16, 2, 1);
    for (size, stands) in [(3, 3), (0, 3), (257, 3), (255, 255), (0x8000, 255), (1, 1)] {
        put(&mut f, 0x18, 2, size);
        assert_eq!(get(&mut f, 0x18, 2), stands, "{size}");
    }
}

#[test]
fn a_queue_that_does_not_exist_reads_as_absent() {
    let mut f = function();
    for index in [3, MAX_QUEUES as u64, 0xffff] {
        put(&mut f, 0x16, 2, index);
        put(&mut f, 0x18, 2, 64);
        put(&mut f, 0x1a, 2, 0);
        put(&mut f, 0x1c, 2, 1);
        put(&mut f, 0x20, 8, 0x1000);
        let read: Vec<_> =
            [(0x18, 2), (0x1a, 2), (0x1c, 2), (0x1e, 2), (0x20, 8)].map(|(o, s)| get(&mut f, o, s)).into();
        assert_eq!(read, [0, 0xffff, 0, 0, 0]);
    }
}

#[test]
fn a_vector_that_does_not_exist_becomes_no_vector() {
    let mut f = function();
    for (value, wanted) in [(VECTORS as u64 - 1, VECTORS as u64 - 1), (VECTORS as u64, 0xffff), (0xffff, 0xffff)] {
        put(&mut f, 0x10, 2, value);
        put(&mut f, 0x1a, 2, value);
        assert_eq!((get(&mut f, 0x10, 2), get(&mut f, 0x1a, 2)), (wanted, wanted));
    }
}

#[test]
fn fields_are_read_at_any_width_and_written_at_their_own() {
    let mut f = function();
    put(&mut f, 0x16, 2, 1);
    assert_eq!(get(&mut f, 0x10, 4), 0x0003_ffff);
    assert_eq!(get(&mut f, 0x11, 2), 0x03ff);
    assert_eq!(get(&mut f, 0x14, 8), 0xffff_0100_0001_0000);
    put(&mut f, 0x14, 4, 0x0001_0003);
    put(&mut f, 0x16, 1, 0);
    put(&mut f, 0x15, 1, 9);
    assert_eq!(get(&mut f, 0x14, 4), 0x0001_0000);
    assert_eq!((get(&mut f, 0x40, 8), get(&mut f, 0xfff, 8)), (0, 0));
}

#[test]
fn unmasking_sends_what_was_pending_and_refuses_what_no_device_may_send() {
    let mut f = function();
    let msix = f.msix;
    assert_eq!(f.read_config(msix + 2, 2), VECTORS as u64 - 1);
    assert_eq!((f.read_config(msix + 4, 4), f.read_config(msix + 8, 4)), (0x3000, 0x3800));
    f.write_config(msix + 2, 2, 0xffff, &mut |_| unreachable!());
    assert_eq!(f.read_config(msix + 2, 2), 0xc000 | (VECTORS as u64 - 1));
    for (entry, data) in [(0, 0x41), (1, 0x441), (2, 0x1f)] {
        put(&mut f, 0x3000 + 16 * entry, 8, 0xfee0_0000);
        put(&mut f, 0x3008 + 16 * entry, 4, data);
        put(&mut f, 0x300c + 16 * entry, 4, 0);
        assert_eq!(f.shared().msix.raise(entry as u16), None);
    }
    assert_eq!(get(&mut f, 0x3800, 8), 0b111);
    let mut sent = Vec::new();
    f.write_config(msix + 2, 2, 0x8000, &mut |m| sent.push(m));
    let delivery = Delivery::Fixed { vector: 0x41, level: false };
    assert_eq!(sent, [Message { destination: Destination::Physical(0), delivery }]);
    assert_eq!(f.refused(), 2, "an NMI, and an exception's vector");
    put(&mut f, 0x300c, 4, 1);
    assert_eq!(f.shared().msix.raise(0), None);
    let mut sent = 0;
    f.write_bar(bar0(0x300c), 4, 0, &mut |_| sent += 1);
    assert_eq!((sent, get(&mut f, 0x3800, 4)), (1, 0));
}

#[test]
fn the_configuration_window_reaches_both_bars_and_nothing_else() {
    let mut f = function();
    f.write_config(4, 2, 0, &mut |_| {}); // with decoding off, which is when it is needed
    let at = f.window;
    let aim = |f: &mut VirtioPci, bar: u64, offset: u64, length: u64| {
        f.write_config(at + 4, 1, bar, &mut |_| {});
        f.write_config(at + 8, 4, offset, &mut |_| {});
        f.write_config(at + 12, 4, length, &mut |_| {});
    };
    aim(&mut f, 0, 0x2000, 4);
    assert_eq!(f.read_config(at + 16, 4), 0x2);
    aim(&mut f, 0, 0x12, 2);
    assert_eq!(f.read_config(at + 16, 2), 3, "num_queues");
    aim(&mut f, 0, 0x14, 1);
    f.write_config(at + 16, 1, 3, &mut |_| {});
    assert_eq!(get(&mut f, 0x14, 1), 3);
    for (bar, offset, length) in [(2, 0x14, 1), (0xff, 0, 4), (0, 0x4014, 1), (0, 0x16, 4), (0, 0x14, 3), (0, 0x14, 0)]
    {
        aim(&mut f, bar, offset, length);
        f.write_config(at + 16, 1, 0, &mut |_| {});
        assert_eq!(get(&mut f, 0x14, 1), 3, "{bar} {offset:#x} {length}");
    }
    negotiate(&mut f);
    put(&mut f, 0x14, 1, 15);
    aim(&mut f, 1, 4, 2);
    f.write_config(at + 16, 2, 1, &mut |_| {});
    assert_eq!(f.shared().counters().kicks.get(), 1);
    assert_eq!(f.read_config(at, 4), 0x0514_0009, "its head is read-only");
}

/// The offset in BAR0 that an address is decoded to.
fn memory_at(f: &VirtioPci, gpa: u64) -> Option<u64> {
    f.decode_memory(gpa).map(|place| {
        assert_eq!((place.bar, f.reason(place)), (0, Reason::MmioPci));
        place.offset
    })
}

/// The offset in BAR1 that a port is decoded to.
fn port_at(f: &VirtioPci, port: u16) -> Option<u64> {
    f.decode_port(port).map(|place| {
        assert_eq!((place.bar, f.reason(place)), (1, Reason::IoVirtioNotify));
        place.offset
    })
}

#[test]
fn decoding_follows_the_command_register_and_the_bars() {
    let mut f = VirtioPci::new(device(), 3);
    assert_eq!((memory_at(&f, 0xc000_c000), port_at(&f, 0xc300)), (None, None));
    f.write_config(4, 2, 3, &mut |_| {});
    assert_eq!((memory_at(&f, 0xc000_c010), port_at(&f, 0xc304)), (Some(0x10), Some(4)));
    assert_eq!((memory_at(&f, 0xc000_bfff), memory_at(&f, 0xc001_0000), port_at(&f, 0xc400)), (None, None, None));
    f.write_config(0x10, 4, 0xd000_0000, &mut |_| {});
    f.write_config(0x14, 4, 0x2000, &mut |_| {});
    assert_eq!((memory_at(&f, 0xd000_3fff), port_at(&f, 0x20ff)), (Some(0x3fff), Some(0xff)));
    f.write_config(0x14, 4, 0xffff_ff00, &mut |_| {});
    assert_eq!(port_at(&f, 0xff00), None, "beyond the last port");
    f.reset();
    f.write_config(4, 2, 3, &mut |_| {});
    assert_eq!(memory_at(&f, 0xc000_c000), Some(0));
}

#[test]
fn a_reset_is_done_when_the_engine_has_let_go_and_not_before() {
    let mut f = function();
    negotiate(&mut f);
    put(&mut f, 0x14, 1, 15);
    engine_turn(f.shared());
    assert_eq!((get(&mut f, 0x14, 1), f.shared().phase()), (15, Phase::Running));
    put(&mut f, 0x14, 1, 0);
    // The driver asks again and again, and begins anew too early.
    for status in [0, 1, 3] {
        put(&mut f, 0x14, 1, status);
        assert_eq!(get(&mut f, 0x14, 1), 15, "the engine still has the device");
    }
    engine_turn(f.shared());
    assert_eq!(get(&mut f, 0x14, 1), 0);
}

proptest! {
    /// Whatever a driver does, nothing panics, the identity stands, and DRIVER_OK never stands without FEATURES_OK.
    #[test]
    fn hostile_drivers_are_harmless(
        accesses in proptest::collection::vec((0u8..7, any::<u16>(), 0u8..=9, any::<u64>()), 1..300)
    ) {
        let mut f = function();
        for (what, offset, size, value) in accesses {
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
                    engine_turn(f.shared());
                }
            }
            let status = f.read_bar(bar0(0x14), 1);
            prop_assert!(status & 4 == 0 || status & 8 != 0);
            prop_assert_eq!(f.read_config(0, 4), 0x1041_1af4);
        }
    }
}

#[test]
fn every_bar_has_an_address_at_the_start() {
    for notify in [NotifyBar::Io, NotifyBar::Memory] {
        let mut f = VirtioPci::with_notify(device(), 1, notify);
        for bar in [0, 1] {
            let value = f.read_config(0x10 + 4 * bar, 4);
            assert_ne!(value & !0xf, 0, "{notify:?}: BAR{bar}");
            assert_eq!(value & 0b110, 0, "{notify:?}: BAR{bar} has 32 bits");
        }
        assert_eq!(f.read_config(0x18, 8) | f.read_config(0x20, 8), 0, "there are no others");
    }
}

#[test]
fn notification_words_in_memory_take_a_32_bit_store() {
    let mut f = VirtioPci::with_notify(device(), 1, NotifyBar::Memory);
    f.write_config(4, 2, 7, &mut |_| {});
    let base = f.read_config(0x14, 4);
    assert_eq!((base & 1, f.decode_port(base as u16)), (0, None), "it is in memory, and in no port");
    let place = f.decode_memory(base + 4).unwrap();
    assert_eq!((place, f.reason(place)), (Place { bar: 1, offset: 4 }, Reason::MmioVirtioNotify));
    assert_eq!((f.decode_memory(base + 0xfff).is_some(), f.decode_memory(base + 0x1000)), (true, None));
    let multiplier = capabilities(&mut f).into_iter().find(|c| c.1 == NOTIFY).map(|c| f.read_config(c.0 + 16, 4));
    assert_eq!(multiplier, Some(4));
    negotiate(&mut f);
    put(&mut f, 0x14, 1, 0xf);
    engine_turn(f.shared());
    let before = f.shared().counters().kicks.get();
    f.write_bar(place, 4, 1, &mut |_| {});
    f.write_bar(Place { offset: 6, ..place }, 4, 1, &mut |_| {});
    assert_eq!(f.shared().counters().kicks.get() - before, 1, "a word, and not what is between two words");
}
