//! Tests the network device: interrupts of completions, MSI-X, reset (virtio 1.3 2.4, 2.7, 4.1; PCI 3.0 6.8.2).
//!
//! The tests use only the transmit queue, with frames to nobody. They offer no receive buffer, so frames of other
//! guests cause no interrupt here.

use bare::cpu;
use bare::virtio_pci::Parts;

use crate::apic;
use crate::device::{Device, Features, HEADER, Mac, RX, SIZE, TX, VECTORS};
use crate::events;
use crate::report::{Outcome, Why, ensure, equal};
use crate::time::{self, open_us};

const SPINS: u32 = 200;
const LENGTH: usize = HEADER + 60;
const VECTOR: u8 = VECTORS[TX as usize];
/// A wait in microseconds. An unwanted interrupt would come within it.
const LONG: u64 = 3000;

fn why(text: &str) -> Why {
    Why::try_from(text).unwrap_or_default()
}

fn open_with(features: Features, interrupt: bool) -> Result<Device, Why> {
    let parts = Parts::of_nets().next().ok_or_else(|| why("no network device"))?;
    let device = Device::open(parts, features, [false, interrupt]).map_err(|_| why("the device does not come up"))?;
    for number in 0..SIZE {
        let frame = &mut Device::buffer(TX, number)[..LENGTH];
        frame.fill(0);
        // To nobody, from us, of a local experimental type.
        frame[HEADER..HEADER + 6].copy_from_slice(&[2, 0, 0, 0, 0xfe, 0xfe]);
        frame[HEADER + 6..HEADER + 12].copy_from_slice(&device.mac.0);
        frame[HEADER + 12..HEADER + 14].copy_from_slice(&[0x88, 0xb5]);
    }
    Ok(device)
}

fn open() -> Result<Device, Why> {
    open_with(Features::VERSION_1, true)
}

fn send(device: &mut Device, number: usize) -> Outcome {
    device.give(TX, number, LENGTH).map_err(|_| why("the queue does not take a buffer"))
}

/// Sends a frame and waits, with interrupts closed, until the device is done with it.
fn send_and_see(device: &mut Device, number: usize) -> Outcome {
    send(device, number)?;
    let (start, limit) = (cpu::tsc(), time::us_in_tsc(2_000_000));
    while device.take(TX).is_none() {
        ensure!(cpu::tsc().wrapping_sub(start) < limit, "the device does not take a frame");
        core::hint::spin_loop();
    }
    // The interrupt is sent after the ring is written; give it the time.
    time::spin_us(LONG);
    Ok(())
}

/// Waits, with interrupts closed, until `seen` shows that a sent interrupt waits. Returns whether it does.
fn waits(mut seen: impl FnMut() -> bool) -> bool {
    let (start, limit) = (cpu::tsc(), time::us_in_tsc(2_000_000));
    while !seen() && cpu::tsc().wrapping_sub(start) < limit {
        core::hint::spin_loop();
    }
    seen()
}

pub fn a_completion_wakes_a_halted_cpu() -> Outcome {
    let mut device = open()?;
    for round in 0..100 {
        events::clear();
        apic::watchdog();
        send(&mut device, round % SIZE)?;
        cpu::wait_for_interrupt();
        let done = device.take(TX).is_some();
        apic::stop_timer();
        equal!(events::vectors(), [VECTOR], "taken");
        ensure!(done, "woken before the request was done");
    }
    Ok(())
}

pub fn completions_while_closed_wait_for_their_turn() -> Outcome {
    let mut device = open()?;
    apic::self_ipi(0x41);
    send_and_see(&mut device, 0)?;
    apic::self_ipi(0x91);
    equal!(events::taken(), 0, "taken with interrupts closed");
    ensure!(waits(|| apic::requested(VECTOR)), "the completion is not requested");
    ensure!(time::wait_taken(3), "{} arrived", events::taken());
    equal!(events::vectors(), [0x91, VECTOR, 0x41], "taken");
    Ok(())
}

pub fn a_masked_entry_keeps_its_interrupt() -> Outcome {
    let mut device = open()?;
    device.parts().mask_entry(TX, true);
    for number in 0..3 {
        send_and_see(&mut device, number)?;
    }
    open_us(LONG);
    equal!(events::taken(), 0, "taken while masked");
    ensure!(waits(|| device.parts().pending(TX)), "nothing is pending");
    ensure!(!device.parts().pending(RX), "the other entry is pending");
    device.parts().mask_entry(TX, false);
    ensure!(time::wait_taken(1), "nothing arrived after the unmask");
    open_us(LONG);
    equal!(events::vectors(), [VECTOR], "taken after the unmask");
    ensure!(!device.parts().pending(TX), "it is still pending");
    Ok(())
}

pub fn a_masked_function_keeps_its_interrupts() -> Outcome {
    let mut device = open()?;
    device.parts().control_msix(true, true);
    send_and_see(&mut device, 0)?;
    open_us(LONG);
    equal!(events::taken(), 0, "taken while masked");
    ensure!(waits(|| device.parts().pending(TX)), "nothing is pending");
    device.parts().control_msix(true, false);
    ensure!(time::wait_taken(1), "nothing arrived after the unmask");
    equal!(events::vectors(), [VECTOR], "taken after the unmask");
    Ok(())
}

pub fn an_interrupt_kept_uses_the_entry_as_it_is_then() -> Outcome {
    const OTHER: u8 = 0x99;
    let mut device = open()?;
    device.parts().mask_entry(TX, true);
    send_and_see(&mut device, 0)?;
    ensure!(waits(|| device.parts().pending(TX)), "nothing is pending");
    device.parts().set_message(TX, crate::device::MESSAGES | apic::id() << 12, OTHER.into());
    ensure!(time::wait_taken(1), "nothing arrived");
    equal!(events::vectors(), [OTHER], "taken");
    Ok(())
}

pub fn a_driver_that_wants_no_interrupt_gets_none() -> Outcome {
    let mut device = open()?;
    device.want_interrupts(TX, false);
    send_and_see(&mut device, 0)?;
    open_us(LONG);
    equal!(events::taken(), 0, "taken");
    device.want_interrupts(TX, true);
    send(&mut device, 1)?;
    ensure!(time::wait_taken(1), "nothing arrived when it was wanted again");
    Ok(())
}

pub fn the_event_index_asks_for_one_interrupt() -> Outcome {
    let mut device = open_with(Features::all(), true)?;
    // The index is at the beginning: the first completion interrupts, those behind it do not.
    for number in 0..5 {
        send(&mut device, number)?;
        time::spin_us(LONG);
    }
    ensure!(time::wait_taken(1), "nothing arrived");
    open_us(LONG);
    equal!(events::vectors(), [VECTOR], "taken for five completions");
    while device.take(TX).is_some() {}
    send(&mut device, 5)?;
    ensure!(time::wait_taken(2), "nothing arrived after the index was moved");
    Ok(())
}

pub fn a_queue_without_an_entry_is_silent() -> Outcome {
    let mut device = open_with(Features::VERSION_1, false)?;
    send_and_see(&mut device, 0)?;
    open_us(LONG);
    equal!(events::taken(), 0, "taken");
    ensure!(!device.parts().pending(RX) && !device.parts().pending(TX), "something is pending");
    Ok(())
}

pub fn a_reset_device_forgets_everything() -> Outcome {
    let mut device = open()?;
    send_and_see(&mut device, 0)?;
    ensure!(time::wait_taken(1), "nothing arrived");
    ensure!(device.enabled(TX) && device.enabled(RX), "the queues are not enabled");
    let mac = device.mac;
    ensure!(device.reset(), "its status is {:x} long after", device.status());
    ensure!(!device.enabled(TX) && !device.enabled(RX), "a queue is still enabled");
    drop(device);
    let mut device = open()?;
    equal!(device.mac, mac, "its address afterwards");
    send_and_see(&mut device, 0)?;
    ensure!(time::wait_taken(2), "nothing arrived after the reset");
    Ok(())
}

pub fn a_reset_with_requests_under_way_leaves_nothing() -> Outcome {
    for _ in 0..20 {
        let mut device = open()?;
        for number in 0..SIZE {
            send(&mut device, number)?;
        }
        ensure!(device.reset(), "its status is {:x} long after", device.status());
        drop(device);
        // What was sent before the reset may be taken; after it, nothing is sent.
        cpu::open_interrupts(SPINS);
        events::clear();
        open_us(200);
        equal!(events::taken(), 0, "taken after the reset");
    }
    let mut device = open()?;
    ensure!(device.mac != Mac([0; 6]), "it has lost its address");
    events::clear();
    send(&mut device, 0)?;
    ensure!(time::wait_taken(1), "nothing arrived afterwards");
    Ok(())
}
