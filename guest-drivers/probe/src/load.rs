//! Makes I/O that can be counted exactly: the notifications, the interrupts, and the requests that ended with an
//! interrupt of their own. The timer is off, so nothing else ends a HLT. A lost interrupt stops the guest for ever.
//!
//! Frames have a local experimental type (IEEE 802, 0x88B5). They contain addresses, type, kind and a number.

use bare::virtio_pci::Parts;
use bare::{console, cpu, trap};
use virtio_drivers::Error;

use crate::device::{Device, Features, HEADER, Mac, RX, SIZE, TX, VECTORS};
use crate::flood::until_line;
use crate::report::say;
use crate::time;

/// An address that nobody has.
const NOBODY: Mac = Mac([0x02, 0, 0, 0, 0xfe, 0xfe]);
/// Bytes of a short frame, without the virtio-net header.
const SHORT: usize = 60;
/// Bytes of a full frame, without the virtio-net header.
const FULL: usize = 1514;
const TYPE: [u8; 2] = [0x88, 0xb5];

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The peer answers it.
    Request = 1,
    Reply = 2,
    /// The peer counts it.
    Data = 3,
    /// The peer answers it with the count.
    End = 4,
    Count = 5,
    /// Nobody receives it.
    Single = 6,
}

/// Writes a frame into a transmit buffer and sends it.
fn send(device: &mut Device, number: usize, to: Mac, kind: Kind, value: u64, length: usize) -> Result<(), Error> {
    let frame = &mut Device::buffer(TX, number)[..HEADER + length];
    frame[..HEADER].fill(0);
    let frame = &mut frame[HEADER..];
    frame[0..6].copy_from_slice(&to.0);
    frame[6..12].copy_from_slice(&device.mac.0);
    frame[12..14].copy_from_slice(&TYPE);
    frame[14] = kind as u8;
    frame[16..24].copy_from_slice(&value.to_le_bytes());
    device.give(TX, number, HEADER + length)
}

/// Takes a received frame. Returns its sender, its kind and its number. The buffer goes back to the device.
fn receive(device: &mut Device) -> Result<Option<(Mac, u8, u64)>, Error> {
    let Some(done) = device.take(RX) else { return Ok(None) };
    let frame = &Device::buffer(RX, done.buffer)[HEADER..];
    let from = Mac([frame[6], frame[7], frame[8], frame[9], frame[10], frame[11]]);
    let value = frame[16..24].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let kind = if done.length >= HEADER + SHORT && frame[12..14] == TYPE { frame[14] } else { 0 };
    device.give_to_receive(done.buffer)?;
    Ok(Some((from, kind, value)))
}

/// A device that counts the notifications that its driver has sent.
pub trait Counted {
    /// Notifications sent so far.
    fn kicks(&self) -> u64;
}

impl Counted for Device {
    fn kicks(&self) -> u64 {
        self.kicks()
    }
}

/// The counts of a series of requests.
pub struct Tally {
    /// Requests that ended with exactly one interrupt, their own.
    woken: u32,
    /// Requests that took more than one HLT, or ended in another way.
    other: u32,
    /// Interrupts and notifications before the requests.
    before: (u32, u64),
}

fn interrupts() -> u32 {
    VECTORS.iter().map(|vector| trap::arrived(*vector)).fold(0, u32::wrapping_add)
}

impl Tally {
    /// Begins to count.
    pub fn begin(device: &impl Counted) -> Self {
        Self { woken: 0, other: 0, before: (interrupts(), device.kicks()) }
    }

    /// Halts until `done`, and counts the request as `woken` or `other`. Interrupts are closed until the HLT.
    pub fn halt_until(&mut self, mut done: impl FnMut() -> bool) {
        let before = interrupts();
        cpu::wait_for_interrupt();
        if interrupts().wrapping_sub(before) == 1 && done() {
            self.woken += 1;
            return;
        }
        self.other += 1;
        while !done() {
            cpu::wait_for_interrupt();
        }
    }

    /// Interrupts and notifications since it began.
    pub fn since(&self, device: &impl Counted) -> (u32, u64) {
        (interrupts().wrapping_sub(self.before.0), device.kicks() - self.before.1)
    }
}

fn open(parts: Parts, interrupts: [bool; 2]) -> Result<Device, &'static str> {
    Device::open(parts, Features::all(), interrupts).map_err(|_| "the device does not come up")
}

fn fill_receive_queue(device: &mut Device) -> Result<(), &'static str> {
    (0..SIZE).try_for_each(|number| device.give_to_receive(number)).map_err(|_| BROKEN)
}

const BROKEN: &str = "the queue is not as it should be";

/// Requests before the count starts. After them the device and the peer are running. The engine knows the queues, so
/// the notifications of the beginning are over.
const WARM_UP: u32 = 100;

/// Sends frames to nobody, one at a time: each after the one before was completed.
pub fn singles(parts: Parts, count: u32) -> Result<(), &'static str> {
    let mut device = open(parts, [false, true])?;
    one_by_one("singles", &mut device, count, |device, tally, number| {
        send(device, 0, NOBODY, Kind::Single, number.into(), SHORT).map_err(|_| BROKEN)?;
        tally.halt_until(|| device.has_used(TX));
        device.take(TX).map(|_| ()).ok_or(BROKEN)
    })
}

/// Sends frames that go nowhere. Masks and unmasks the MSI-X entry while their interrupts are sent. Returns how many
/// interrupts arrived: one for each frame.
pub fn masked(parts: Parts, count: u32) -> Result<u32, &'static str> {
    let mut device = open(parts, [false, true])?;
    // A frame to itself goes nowhere. No other guest must receive one.
    let (me, before) = (device.mac, interrupts());
    for number in 0..count {
        let asked = interrupts();
        if number % 2 == 0 {
            device.parts().mask_entry(TX, true);
        }
        send(&mut device, 0, me, Kind::Single, number.into(), SHORT).map_err(|_| BROKEN)?;
        device.parts().mask_entry(TX, true);
        device.parts().mask_entry(TX, false);
        if !time::wait(|| interrupts() != asked && device.has_used(TX)) {
            return Err("a completion's interrupt did not arrive");
        }
        device.take(TX).ok_or(BROKEN)?;
    }
    Ok(interrupts() - before)
}

/// Sends requests to the peer, one at a time: each after the one before was answered.
pub fn requests(parts: Parts, peer: Mac, count: u32) -> Result<(), &'static str> {
    let mut device = open(parts, [true, false])?;
    fill_receive_queue(&mut device)?;
    // Requests are never repeated. So first check that the peer is running.
    ask_for_count(&mut device, peer)?;
    one_by_one("requests", &mut device, count, |device, tally, number| ask(device, tally, peer, number))
}

/// Sends a request to the peer, and halts until it is answered.
fn ask(device: &mut Device, tally: &mut Tally, peer: Mac, number: u32) -> Result<(), &'static str> {
    send(device, 0, peer, Kind::Request, number.into(), SHORT).map_err(|_| BROKEN)?;
    tally.halt_until(|| device.has_used(RX));
    let answer = receive(device).map_err(|_| BROKEN)?;
    if answer != Some((peer, Kind::Reply as u8, number.into())) {
        return Err("an answer was not to the request that waited for it");
    }
    // The answer shows that the device has taken the request. Its completion may come a moment later.
    while device.take(TX).is_none() {
        core::hint::spin_loop();
    }
    Ok(())
}

/// Most requests of a series of [`latency`].
const SAMPLES: usize = 1000;

/// Sends requests to the peer, one at a time, for ever. After each series of `count` (at most [`SAMPLES`]) it reports how long they
/// took, in nanoseconds: the median, the 99th percentile and the longest. `begun` is the TSC at the first request of the series: a
/// report may reach its reader long after.
pub fn latency(parts: Parts, peer: Mac, count: u32) -> Result<(), &'static str> {
    let count = count as usize;
    if count == 0 || count > SAMPLES {
        return Err("so many requests are no series");
    }
    let mut device = open(parts, [true, false])?;
    fill_receive_queue(&mut device)?;
    ask_for_count(&mut device, peer)?;
    wait_for_line();
    let megahertz = (time::tsc_hz() / 1_000_000).max(1);
    let mut tally = Tally::begin(&device);
    let mut number = 0_u32;
    loop {
        let mut samples: heapless::Vec<u64, SAMPLES> = heapless::Vec::new();
        let first = cpu::tsc();
        while samples.len() < count {
            let begun = cpu::tsc();
            ask(&mut device, &mut tally, peer, number)?;
            let _ = samples.push(cpu::tsc().wrapping_sub(begun));
            number = number.wrapping_add(1);
        }
        samples.sort_unstable();
        // The sample with `of` hundredths of all below it or equal to it.
        let percentile = |of: usize| samples[(count * of).div_ceil(100).max(1) - 1].saturating_mul(1000) / megahertz;
        say!(
            "\"do\":\"latency\",\"count\":{count},\"begun\":{first},\"p50_ns\":{},\"p99_ns\":{},\"max_ns\":{}",
            percentile(50),
            percentile(99),
            percentile(100)
        );
    }
}

/// Makes requests one at a time by `ask`, after some that are not counted. Reports the counts.
pub fn one_by_one<D: Counted>(
    name: &str,
    device: &mut D,
    count: u32,
    mut ask: impl FnMut(&mut D, &mut Tally, u32) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    let mut warm_up = Tally::begin(device);
    (0..WARM_UP).try_for_each(|number| ask(device, &mut warm_up, number))?;
    wait_for_line();
    let mut tally = Tally::begin(device);
    (0..count).try_for_each(|number| ask(device, &mut tally, number))?;
    let Tally { woken, other, .. } = tally;
    let (interrupts, kicks) = tally.since(device);
    say!(
        "\"do\":\"{name}\",\"count\":{count},\"woken\":{woken},\"other\":{other},\"kicks\":{kicks},\
         \"interrupts\":{interrupts}"
    );
    wait_for_line();
    Ok(())
}

/// Reports that the guest is ready and waits for a line. The host reads counters meanwhile. The guest polls once a
/// millisecond, so that waiting costs few exits.
pub fn wait_for_line() {
    say!("\"do\":\"ready\"");
    while console::typed() != Some(b'\n') {
        time::spin_us(1000);
    }
}

/// Sends full frames to the peer, as fast as the queue takes them. Then asks how many arrived.
pub fn stream(parts: Parts, peer: Mac, count: u32) -> Result<(), &'static str> {
    let mut device = open(parts, [false, true])?;
    fill_receive_queue(&mut device)?;
    let (arrived_before, _) = ask_for_count(&mut device, peer)?;
    wait_for_line();
    let tally = Tally::begin(&device);
    send_stream(&mut device, peer, count)?;
    let (arrived, questions) = ask_for_count(&mut device, peer)?;
    let (interrupts, kicks) = tally.since(&device);
    let received = arrived - arrived_before;
    say!(
        "\"do\":\"stream\",\"count\":{count},\"received\":{received},\"questions\":{questions},\"kicks\":{kicks},\
         \"interrupts\":{interrupts}"
    );
    wait_for_line();
    Ok(())
}

/// Sends so many full frames to the peer, as fast as the queue takes them, and waits until all are completed.
fn send_stream(device: &mut Device, peer: Mac, count: u32) -> Result<(), &'static str> {
    let (mut sent, mut free) = (0_u32, SIZE);
    // It halts until the last buffer is back, and does not poll. With polling, an interrupt that has arrived would wait
    // all the time. On Bochs, sidecore reports no second interrupt to a guest before the guest has taken the first. So
    // it would force the guest out of its loop with an exit.
    while free < SIZE || sent < count {
        while free > 0 && sent < count {
            send(device, sent as usize % SIZE, peer, Kind::Data, sent.into(), FULL).map_err(|_| BROKEN)?;
            sent += 1;
            free -= 1;
        }
        // Buffers come back in order, so the next free buffer is the one for the next frame.
        while !device.has_used(TX) {
            cpu::wait_for_interrupt();
        }
        while device.take(TX).is_some() {
            free += 1;
        }
    }
    Ok(())
}

/// Sends full frames to the peer as `stream` does, for ever. It asks nothing, so it may begin while the peer's receive queue is full.
pub fn stream_on(parts: Parts, peer: Mac) -> Result<(), &'static str> {
    let mut device = open(parts, [false, true])?;
    wait_for_line();
    loop {
        send_stream(&mut device, peer, u32::MAX)?;
    }
}

/// Sends a frame every `us` microseconds until a line is typed: a full frame to the peer, or without a peer a short one to
/// its own address, which the switch forwards nowhere. With 0 it sends as fast as the queue takes them. A frame that is late
/// does not make the next ones early.
///
/// It does not halt, and has no interrupt. So the engine's work for it is taking the frames, and copying them if there is a peer.
pub fn paced(name: &str, parts: Parts, peer: Option<Mac>, us: u32) -> Result<(), &'static str> {
    /// Microseconds between two looks at the console, each of which is an exit.
    const ROUND: u64 = 20_000;
    let mut device = open(parts, [false, false])?;
    let (to, kind, length) = match peer {
        Some(peer) => (peer, Kind::Data, FULL),
        None => (device.mac, Kind::Single, SHORT),
    };
    let (gap, round) = (time::us_in_tsc(us.into()), time::us_in_tsc(ROUND));
    let (mut sent, mut free, mut due) = (0_u32, SIZE, cpu::tsc());
    let rounds = until_line(0, || {
        let began = cpu::tsc();
        while cpu::tsc().wrapping_sub(began) < round {
            while device.take(TX).is_some() {
                free += 1;
            }
            let now = cpu::tsc();
            if now < due || free == 0 {
                core::hint::spin_loop();
                continue;
            }
            // Buffers come back in order, so the next free buffer is the one for the next frame.
            send(&mut device, sent as usize % SIZE, to, kind, sent.into(), length).map_err(|_| BROKEN)?;
            sent = sent.wrapping_add(1);
            free -= 1;
            due = now.max(due.saturating_add(gap));
        }
        Ok(sent.into())
    })?;
    while free < SIZE {
        free += usize::from(device.take(TX).is_some());
    }
    say!("\"do\":\"{name}\",\"sent\":{sent},\"rounds\":{rounds}");
    Ok(())
}

/// Asks the peer how many frames arrived. The peer may have no free buffer for the question, so it is repeated. Returns
/// the count, and the number of questions.
fn ask_for_count(device: &mut Device, peer: Mac) -> Result<(u64, u32), &'static str> {
    for questions in 1..=100 {
        time::spin_us(10_000);
        send(device, 0, peer, Kind::End, 0, SHORT).map_err(|_| BROKEN)?;
        let mut answer = None;
        time::wait(|| {
            answer = answer.or(receive(device).ok().flatten());
            answer.is_some()
        });
        while device.take(TX).is_none() {
            core::hint::spin_loop();
        }
        if let Some((_, _, received)) = answer {
            return Ok((received, questions));
        }
    }
    Err("the peer does not say how many frames arrived")
}

/// Answers requests and counts data.
pub fn serve(parts: Parts) -> Result<(), &'static str> {
    let mut device = open(parts, [true, false])?;
    fill_receive_queue(&mut device)?;
    say!("\"do\":\"serve\"");
    let (mut data, mut free, mut number) = (0_u64, SIZE, 0);
    loop {
        while !device.has_used(RX) {
            cpu::wait_for_interrupt();
        }
        while let Some((from, kind, value)) = receive(&mut device).map_err(|_| BROKEN)? {
            let (kind, value) = match kind {
                kind if kind == Kind::Request as u8 => (Kind::Reply, value),
                kind if kind == Kind::End as u8 => (Kind::Count, data),
                kind if kind == Kind::Data as u8 => {
                    data += 1;
                    continue;
                }
                _ => continue,
            };
            while device.take(TX).is_some() {
                free += 1;
            }
            while free == 0 {
                free += usize::from(device.take(TX).is_some());
            }
            send(&mut device, number % SIZE, from, kind, value, SHORT).map_err(|_| BROKEN)?;
            number += 1;
            free -= 1;
        }
    }
}
