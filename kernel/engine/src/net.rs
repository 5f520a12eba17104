//! The net back-end: virtio-net devices joined by a learning switch (virtio 1.3 ch. 5.1).
//!
//! A frame's headers are copied once out of the sender's memory, checked there, and that copy is what every receiver gets;
//! the rest goes from the sender's buffers straight into the receiver's. All work of this back-end is done at once: it
//! holds no token beyond a call.

use memory::GuestMemory;
use nic::{Nic, Received};

use crate::backend::{Backend, Devices, MAX_PORTS};
use crate::chain::{Segment, Segments};
use crate::device::Device;
use crate::fault::Fault;
use crate::queue::{Request, Token};
use crate::schedule::{Portion, Served};
use crate::shared::{CONFIG_BYTES, DeviceConfig, Features, MAX_QUEUE_PAIRS};
use crate::stats::{Counter, UplinkCounters};
use crate::switch::{Mac, Switch};
use crate::uplink::{Held, Leaving, NoNic, Uplink};

/// Bytes of `virtio_net_hdr`, which comes before each frame (5.1.6).
pub const HEADER_BYTES: usize = 12;
/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: u32 = 14;
/// Bytes that a VLAN tag adds.
pub const VLAN_BYTES: u32 = 4;
/// Buffers that one frame may be spread over (MRG_RXBUF).
pub const MAX_BUFFERS: usize = 64;

const STATUS_LINK_UP: u8 = 1;
const HDR_F_NEEDS_CSUM: u8 = 1;
const HDR_GSO_NONE: u8 = 0;
const NUM_BUFFERS: core::ops::Range<usize> = 10..12;
const MTU: usize = 10;

/// Bytes of a frame that are copied out and checked: Ethernet, and room for what is in it up to TCP.
const FRONT_BYTES: usize = 64;

/// What a net device with `pairs` queue pairs is: receive and transmit queues alternate from 0. `mtu` is the largest
/// payload of a frame in bytes.
#[must_use]
pub const fn config(mac: [u8; 6], mtu: u16, pairs: u16) -> DeviceConfig {
    assert!(pairs as usize <= MAX_QUEUE_PAIRS);
    let mut config = [0; CONFIG_BYTES];
    let mut i = 0;
    while i < mac.len() {
        config[i] = mac[i];
        i += 1;
    }
    config[6] = STATUS_LINK_UP;
    [config[8], config[9]] = pairs.to_le_bytes();
    [config[MTU], config[MTU + 1]] = mtu.to_le_bytes();
    DeviceConfig {
        device_type: 1,
        features: Features::all(),
        queues: 2 * pairs,
        queue_size: 256,
        config,
        config_len: 12,
    }
}

/// A frame on its way.
struct Frame<'s> {
    /// The header for its receivers, and the frame's first bytes as they were checked.
    front: [u8; HEADER_BYTES + FRONT_BYTES],
    /// Bytes of `front` in use.
    front_len: usize,
    /// Bytes of the frame, without virtio-net header.
    len: u32,
    /// The sender's buffers, virtio-net header included.
    buffers: &'s [Segment],
}

/// Why a frame from a guest goes nowhere.
enum Bad {
    Length,
    Header,
    Source,
}

enum Route {
    Nowhere,
    Port(usize),
    Flood,
}

/// The net back-end. `N` is the NIC that is its way out of the machine.
pub struct Net<N = NoNic> {
    switch: Switch,
    uplink: Option<Uplink<N>>,
    /// The largest frame of each port in bytes, without virtio-net header.
    max_frame: [u32; MAX_PORTS],
    sent: Segments,
    posted: Segments,
}

impl<N: Nic<Token = Held>> Net<N> {
    /// With no ports. `seed` should be unpredictable to guests; an address that was silent for `max_age` ticks of the
    /// engine's clock is forgotten.
    #[must_use]
    pub const fn new(seed: u64, max_age: u64) -> Self {
        Self {
            switch: Switch::new(seed, max_age),
            uplink: None,
            max_frame: [0; MAX_PORTS],
            sent: Segments::new(),
            posted: Segments::new(),
        }
    }

    /// Gives it a way out. Before the first turn.
    pub fn set_uplink(&mut self, uplink: Uplink<N>) {
        self.uplink = Some(uplink);
    }

    /// Its way out.
    pub const fn uplink(&self) -> Option<&Uplink<N>> {
        self.uplink.as_ref()
    }
}

impl<N: Nic<Token = Held>> Backend for Net<N> {
    fn attached(&mut self, port: usize, device: &DeviceConfig) {
        let c = &device.config;
        if let Some(max) = self.max_frame.get_mut(port) {
            *max = u32::from(u16::from_le_bytes([c[MTU], c[MTU + 1]])) + ETHERNET_BYTES + VLAN_BYTES;
            let mac = Mac::new([c[0], c[1], c[2], c[3], c[4], c[5]]);
            // None configured: the port has no address of its own.
            if mac != Mac::NONE {
                self.switch.set_own(mac, port);
            }
        }
    }

    fn detached(&mut self, port: usize) {
        self.switch.forget_port(port);
    }

    fn polls(&self, queue: u16) -> bool {
        queue % 2 == 1
    }

    fn serve(&mut self, devices: &mut Devices, port: usize, queue: u16, portion: &Portion, now: u64) -> Served {
        let mut taken = Served::default();
        while taken.requests < portion.requests && taken.bytes < portion.bytes {
            let Some(device) = devices.get_mut(port) else { break };
            self.sent.clear();
            let Some(Request { token, chain }) = device.pop(queue, &mut self.sent) else { break };
            taken.requests += 1;
            taken.bytes += u64::from(chain.readable_bytes);
            if chain.writable_bytes != 0 {
                device.fail(Fault::Direction);
                break;
            }
            let max = self.max_frame.get(port).copied().unwrap_or(0);
            let counters = device.shared().counters();
            counters.tx_packets.add(1);
            counters.tx_bytes.add(u64::from(chain.readable_bytes.saturating_sub(HEADER_BYTES as u32)));
            match Frame::take(device.memory(), chain.readable(&self.sent), chain.readable_bytes, max) {
                Ok(mut frame) => {
                    let out = self.uplink.as_ref().is_some_and(Uplink::is_up);
                    let switch = &mut self.switch;
                    let leaves =
                        forward(switch, &self.max_frame, &mut self.posted, devices, port, queue, &mut frame, out, now);
                    if leaves && let Some(uplink) = &mut self.uplink {
                        uplink.send(devices, frame.leaving(port), token);
                        continue;
                    }
                }
                Err(Bad::Length) => counters.tx_bad_length.add(1),
                Err(Bad::Header) => counters.tx_bad_header.add(1),
                Err(Bad::Source) => counters.tx_bad_source.add(1),
            }
            if let Some(device) = devices.get_mut(port) {
                device.complete(token, 0);
            }
        }
        if let Some(uplink) = &mut self.uplink {
            uplink.flush();
        }
        taken
    }

    fn poll(&mut self, devices: &mut Devices, now: u64) -> u32 {
        self.switch.age(now);
        let Self { switch, uplink, max_frame, posted, .. } = self;
        let Some(uplink) = uplink else { return 0 };
        let counters = uplink.counters();
        uplink.poll(devices, now, |devices, frame| arrive(switch, max_frame, posted, devices, frame, counters, now))
    }

    fn cancel(&mut self, devices: &mut Devices, port: usize) -> bool {
        let Some(uplink) = &mut self.uplink else { return true };
        uplink.reclaim(devices);
        !uplink.holds(port)
    }
}

impl<'s> Frame<'s> {
    /// Copies the headers out of a sent chain of `bytes` bytes, and checks them.
    fn take(memory: &GuestMemory, buffers: &'s [Segment], bytes: u32, max: u32) -> Result<Self, Bad> {
        let len = bytes.checked_sub(HEADER_BYTES as u32).ok_or(Bad::Length)?;
        if len < ETHERNET_BYTES || len > max {
            return Err(Bad::Length);
        }
        let front_len = HEADER_BYTES + FRONT_BYTES.min(len as usize);
        let mut front = [0; HEADER_BYTES + FRONT_BYTES];
        let mut from = Cursor::new(buffers);
        let mut at = 0;
        while at < front_len {
            let (gpa, n) = from.run(front_len - at).ok_or(Bad::Length)?;
            let into = front.get_mut(at..at + n).ok_or(Bad::Length)?;
            memory.read(gpa, into).map_err(|_| Bad::Length)?;
            at += n;
        }
        // No offload was offered, so the driver may ask for none (5.1.6.2.1). Unknown flags are to be ignored.
        if front[0] & HDR_F_NEEDS_CSUM != 0 || front[1] != HDR_GSO_NONE {
            return Err(Bad::Header);
        }
        // Receivers get a header of our own making: nothing of the sender's goes through.
        front[..HEADER_BYTES].fill(0);
        let frame = Self { front, front_len, len, buffers };
        if frame.source().is_multicast() { Err(Bad::Source) } else { Ok(frame) }
    }

    /// The frame for the wire: what was checked, and where the rest lies.
    fn leaving(&self, port: usize) -> Leaving<'_, impl Iterator<Item = Segment>> {
        let mut from = Cursor::new(self.buffers);
        from.skip(self.front_len);
        let mut left = HEADER_BYTES + self.len as usize - self.front_len;
        let rest = core::iter::from_fn(move || {
            let (gpa, n) = from.run(left)?;
            left -= n;
            Some(Segment { gpa, len: n as u32 })
        });
        Leaving { port, header: &self.front[HEADER_BYTES..self.front_len], rest, len: self.len }
    }

    fn destination(&self) -> Mac {
        self.mac(HEADER_BYTES)
    }

    fn source(&self) -> Mac {
        self.mac(HEADER_BYTES + 6)
    }

    fn mac(&self, at: usize) -> Mac {
        let mut bytes = [0; 6];
        bytes.copy_from_slice(&self.front[at..at + 6]);
        Mac::new(bytes)
    }
}

/// Sends a frame from `port` to the guests that it is for. True: it is for the wire as well, or alone. `out`: there is
/// one to which frames can leave; whatever no guest is known to have is there.
#[allow(clippy::too_many_arguments, reason = "the back-end's parts, some of them borrowed already")]
fn forward(
    switch: &mut Switch,
    max_frame: &[u32; MAX_PORTS],
    posted: &mut Segments,
    devices: &mut Devices,
    port: usize,
    queue: u16,
    frame: &mut Frame<'_>,
    out: bool,
    now: u64,
) -> bool {
    switch.learn(frame.source(), port, now);
    let destination = frame.destination();
    let route = if destination.is_multicast() {
        Route::Flood
    } else {
        match switch.lookup(destination, now) {
            Some(to) if to == port => Route::Nowhere,
            Some(to) => Route::Port(to),
            None if out => return true,
            None => Route::Flood,
        }
    };
    let ports = devices.ports();
    let mut give_to = |to: usize, flooded: bool| -> bool {
        let max = max_frame.get(to).copied().unwrap_or(0);
        let Some((sender, receiver)) = devices.pair(port, to) else { return false };
        let counters = receiver.shared().counters();
        if !receiver.running() {
            if !flooded {
                counters.rx_not_running.add(1);
            }
            return false;
        }
        match give(posted, frame, sender.memory(), receiver, queue, max) {
            Ok(()) => {
                counters.rx_packets.add(1);
                counters.rx_bytes.add(u64::from(frame.len));
            }
            Err(Some(cause)) => cause(counters).add(1),
            // The receiver has lost its device meanwhile, which has been counted.
            Err(None) => {}
        }
        true
    };
    let found = match route {
        Route::Nowhere => false,
        // A known receiver counts what it does not get, whatever the reason.
        Route::Port(to) => {
            give_to(to, false);
            true
        }
        Route::Flood => ports.filter(|&to| to != port && give_to(to, true)).count() != 0,
    };
    let leaves = out && destination.is_multicast();
    if !found
        && !leaves
        && let Some(device) = devices.get(port)
    {
        device.shared().counters().tx_no_destination.add(1);
    }
    leaves
}

/// Gives a frame from the wire to the guests that it is for.
fn arrive(
    switch: &Switch,
    max_frame: &[u32; MAX_PORTS],
    posted: &mut Segments,
    devices: &mut Devices,
    frame: &Received<'_>,
    counters: &UplinkCounters,
    now: u64,
) {
    let mut front = [0; 12];
    let mut bytes = frame.pieces.iter().copied().flatten();
    front.iter_mut().zip(&mut bytes).for_each(|(to, &from)| *to = from);
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = front;
    let (destination, source) = (Mac::new([d0, d1, d2, d3, d4, d5]), Mac::new([s0, s1, s2, s3, s4, s5]));
    if frame.len() < ETHERNET_BYTES as usize || source.is_multicast() {
        return counters.rx_malformed.add(1);
    }
    if switch.lookup(source, now).is_some() {
        // A guest's address from outside: a loop, or somebody who pretends to be it.
        return counters.rx_own_source.add(1);
    }
    let mut give_to = |to: usize, flooded: bool| {
        let max = max_frame.get(to).copied().unwrap_or(0);
        let Some(receiver) = devices.get_mut(to) else { return };
        let counters = receiver.shared().counters();
        if !receiver.running() {
            if !flooded {
                counters.rx_not_running.add(1);
            }
            return;
        }
        match give_received(posted, frame, receiver, max) {
            Ok(()) => {
                counters.rx_packets.add(1);
                counters.rx_bytes.add(frame.len() as u64);
            }
            Err(Some(cause)) => cause(counters).add(1),
            Err(None) => {}
        }
    };
    if destination.is_multicast() {
        (0..MAX_PORTS).for_each(|to| give_to(to, true));
    } else {
        match switch.lookup(destination, now) {
            Some(to) => give_to(to, false),
            None => counters.rx_not_ours.add(1),
        }
    }
}

/// The counter of a reason not to deliver.
type Cause = fn(&crate::stats::PortCounters) -> &Counter;

/// Puts a frame into the receiver's buffers.
fn give(
    posted: &mut Segments,
    frame: &mut Frame<'_>,
    sender: &GuestMemory,
    receiver: &mut Device,
    from_queue: u16,
    max: u32,
) -> Result<(), Option<Cause>> {
    if frame.len > max {
        return Err(Some(|c| &c.rx_too_large));
    }
    // The pair it was sent on if the receiver has it, or else the first.
    let same = from_queue & !1;
    let queue = if receiver.has_queue(same) { same } else { 0 };
    let need = HEADER_BYTES as u32 + frame.len;
    let mut buffers = Buffers::new();
    gather(posted, receiver, queue, need, &mut buffers)?;
    // Without MRG_RXBUF it is to be 1 as well (5.1.6.4.1).
    frame.front[NUM_BUFFERS].copy_from_slice(&(buffers.len() as u16).to_le_bytes());
    if copy(frame, sender, receiver.memory(), posted.all()).is_none() {
        // Buffers were checked when they were taken; what is left is a guest with two ports whose buffers overlap.
        receiver.fail(Fault::Buffer);
        return Err(None);
    }
    complete(receiver, &mut buffers, need);
    Ok(())
}

/// Puts a frame from the wire into the receiver's buffers.
fn give_received(
    posted: &mut Segments,
    frame: &Received<'_>,
    receiver: &mut Device,
    max: u32,
) -> Result<(), Option<Cause>> {
    let Some(len) = u32::try_from(frame.len()).ok().filter(|&len| len <= max) else {
        return Err(Some(|c| &c.rx_too_large));
    };
    let need = HEADER_BYTES as u32 + len;
    let mut buffers = Buffers::new();
    gather(posted, receiver, 0, need, &mut buffers)?;
    let mut header = [0; HEADER_BYTES];
    header[NUM_BUFFERS].copy_from_slice(&(buffers.len() as u16).to_le_bytes());
    let mut to = Cursor::new(posted.all());
    let pieces = core::iter::once(&header[..]).chain(frame.pieces.iter().copied());
    for mut piece in pieces {
        while !piece.is_empty() {
            let Some((gpa, n)) = to.run(piece.len()) else { break };
            let (now, later) = piece.split_at(n);
            if receiver.memory().write(gpa, now).is_err() {
                receiver.fail(Fault::Buffer);
                return Err(None);
            }
            piece = later;
        }
    }
    complete(receiver, &mut buffers, need);
    Ok(())
}

/// Buffers that a frame is put into, and the bytes that each takes.
type Buffers = heapless::Vec<(Token, u32), MAX_BUFFERS>;

/// Takes buffers for `need` bytes from a receiver; their segments are in `posted`. `buffers` stay where they are: they are a
/// kilobyte, too much to be moved for each frame.
fn gather(
    posted: &mut Segments,
    receiver: &mut Device,
    queue: u16,
    need: u32,
    buffers: &mut Buffers,
) -> Result<(), Option<Cause>> {
    let merge = receiver.features().contains(Features::NET_MRG_RXBUF);
    posted.clear();
    let mut room = 0u32;
    while room < need {
        let full = buffers.is_full() || !posted.has_room() || (!merge && !buffers.is_empty());
        let request = if full { None } else { receiver.pop(queue, posted) };
        let Some(Request { token, chain }) = request else {
            if !receiver.running() {
                return Err(None);
            }
            while let Some((token, _)) = buffers.pop() {
                receiver.rewind(token);
            }
            return Err(Some(if full { |c| &c.rx_too_large } else { |c| &c.rx_no_buffer }));
        };
        if chain.readable_bytes != 0 || chain.writable_bytes == 0 {
            receiver.fail(Fault::Direction);
            return Err(None);
        }
        room = room.saturating_add(chain.writable_bytes);
        // Not full: looked at above.
        let _ = buffers.push((token, chain.writable_bytes));
    }
    Ok(())
}

/// Gives buffers back with `need` bytes in them.
fn complete(receiver: &mut Device, buffers: &mut Buffers, need: u32) {
    let mut left = need;
    for (token, room) in buffers.drain(..) {
        let written = room.min(left);
        left -= written;
        receiver.complete(token, written);
    }
}

/// Copies a frame with its new header into buffers that have room for it.
fn copy(frame: &Frame<'_>, sender: &GuestMemory, receiver: &GuestMemory, posted: &[Segment]) -> Option<()> {
    let mut to = Cursor::new(posted);
    let mut front = &frame.front[..frame.front_len];
    while !front.is_empty() {
        let (gpa, n) = to.run(front.len())?;
        let (now, later) = front.split_at(n);
        receiver.write(gpa, now).ok()?;
        front = later;
    }
    let mut from = Cursor::new(frame.buffers);
    from.skip(frame.front_len);
    let mut left = HEADER_BYTES + frame.len as usize - frame.front_len;
    while left != 0 {
        let n = from.contiguous().min(to.contiguous()).min(left);
        let ((src, n), (dst, _)) = (from.run(n)?, to.run(n)?);
        receiver.copy_from(dst, sender, src, n as u64).ok()?;
        left -= n;
    }
    Some(())
}

/// A position in a list of buffers.
struct Cursor<'s> {
    buffers: &'s [Segment],
    offset: u32,
}

impl<'s> Cursor<'s> {
    const fn new(buffers: &'s [Segment]) -> Self {
        Self { buffers, offset: 0 }
    }

    /// Bytes up to the end of this buffer.
    fn contiguous(&self) -> usize {
        self.buffers.first().map_or(0, |b| (b.len - self.offset) as usize)
    }

    /// Goes on by up to `max` bytes (not zero) within one buffer: the address and how many. None at the end.
    #[inline]
    fn run(&mut self, max: usize) -> Option<(u64, usize)> {
        let (buffer, rest) = self.buffers.split_first()?;
        let gpa = buffer.gpa + u64::from(self.offset);
        let n = self.contiguous().min(max);
        if n == 0 {
            return None;
        }
        self.offset += n as u32;
        if self.offset == buffer.len {
            (self.buffers, self.offset) = (rest, 0);
        }
        Some((gpa, n))
    }

    fn skip(&mut self, mut n: usize) {
        while n != 0 {
            let Some((_, done)) = self.run(n) else { return };
            n -= done;
        }
    }
}
