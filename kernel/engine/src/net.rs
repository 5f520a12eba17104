//! The net back-end: virtio-net devices joined by a learning switch (virtio 1.3 ch. 5.1).
//!
//! A frame's headers are copied once out of the sender's memory, checked there, and that copy is what every receiver gets;
//! the rest goes from the sender's buffers straight into the receiver's. All work of this back-end is done at once: it
//! holds no token beyond a call.
//!
//! Most frames lie in one buffer and go to one port that has a buffer large enough: that way ([`Net::burst`]) is short.
//! Everything else goes the general way ([`Net::forward`]).

mod frame;

use memory::Span;
use memory::copy::Copier;

use crate::backend::{Backend, Devices, MAX_PORTS};
use crate::chain::Segments;
use crate::device::Device;
use crate::fault::Fault;
use crate::net::frame::{Bad, Front};
use crate::queue::{AHEAD, Next, Request, Single, Token};
use crate::shared::{CONFIG_BYTES, DeviceConfig, Features, MAX_QUEUE_PAIRS};
use crate::stats::{Counter, PortCounters};
use crate::switch::{Mac, Path, Switch};

/// Bytes of `virtio_net_hdr`, which comes before each frame (5.1.6).
pub const HEADER_BYTES: usize = 12;
/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: u32 = 14;
/// Bytes that a VLAN tag adds.
pub const VLAN_BYTES: u32 = 4;
/// Buffers that one frame may be spread over (MRG_RXBUF).
pub const MAX_BUFFERS: usize = 64;

const STATUS_LINK_UP: u8 = 1;
const MTU: usize = 10;

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

/// Frames and bytes that are counted together at the end of a run of them.
#[derive(Default)]
struct Tally {
    packets: u64,
    bytes: u64,
}

/// The net back-end.
pub struct Net {
    copier: Copier,
    switch: Switch,
    /// The largest frame of each port in bytes, without virtio-net header.
    max_frame: [u32; MAX_PORTS],
    /// The way of the last frame from each port.
    paths: [Path; MAX_PORTS],
    sent: Segments,
    posted: Segments,
}

impl Net {
    /// With no ports. `seed` should be unpredictable to guests; an address that was silent for `max_age` ticks of the
    /// engine's clock is forgotten.
    #[must_use]
    pub const fn new(seed: u64, max_age: u64) -> Self {
        Self {
            copier: Copier::PLAIN,
            switch: Switch::new(seed, max_age),
            max_frame: [0; MAX_PORTS],
            paths: [Path::NONE; MAX_PORTS],
            sent: Segments::new(),
            posted: Segments::new(),
        }
    }

    /// Copies frames with this variant of the copy routine from now on.
    pub const fn set_copier(&mut self, copier: Copier) {
        self.copier = copier;
    }
}

impl Backend for Net {
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

    fn serve(&mut self, devices: &mut Devices, port: usize, queue: u16, limit: u32, now: u64) -> u32 {
        let mut taken = 0;
        while taken < limit {
            let (n, next) = self.burst(devices, port, queue, limit - taken, now);
            taken += n;
            match next {
                Next::Other if taken < limit => {
                    if !self.one(devices, port, queue, now) {
                        break;
                    }
                    taken += 1;
                }
                Next::Empty if n == 0 => break,
                _ => {}
            }
        }
        taken
    }

    fn poll(&mut self, _devices: &mut Devices, now: u64) -> u32 {
        self.switch.age(now);
        0
    }

    fn cancel(&mut self, _devices: &mut Devices, _port: usize) -> bool {
        true
    }
}

impl Net {
    /// Takes and sends frames of one buffer each: how many, and what comes next.
    fn burst(&mut self, devices: &mut Devices, port: usize, queue: u16, limit: u32, now: u64) -> (u32, Next) {
        let mut singles = [Single::NONE; AHEAD];
        let room = singles.len().min(limit as usize);
        let (Some(device), Some(slots), Some(&max)) =
            (devices.get_mut(port), singles.get_mut(..room), self.max_frame.get(port))
        else {
            return (0, Next::Empty);
        };
        let (n, next) = device.take_some(queue, slots);
        let singles = singles.get(..n).unwrap_or(&[]);
        let sender = device.shared().counters();
        let mut front = Front::new();
        let mut sent = Tally::default();
        let mut run = Run { to: MAX_PORTS, queue: 0, tally: Tally::default() };
        for single in singles {
            if single.writable {
                if let Some(device) = devices.get_mut(port) {
                    device.fail(Fault::Direction);
                }
                break;
            }
            sent.packets += 1;
            sent.bytes += u64::from(single.span.len().saturating_sub(HEADER_BYTES as u32));
            if let Err(bad) = front.take_single(self.copier, &single.span, max) {
                bad.count(sender);
                continue;
            }
            let Some(to) = self.quick(&front, port, now) else {
                self.forward(devices, port, queue, &mut front, core::slice::from_ref(&single.span), now);
                continue;
            };
            if !self.give_single(devices, &mut run, to, queue, &front, &single.span) {
                self.deliver(devices, to, queue, &mut front, core::slice::from_ref(&single.span), false);
            }
        }
        run.close(devices);
        sender.tx_packets.add(sent.packets);
        sender.tx_bytes.add(sent.bytes);
        if let Some(device) = devices.get_mut(port) {
            device.finish_all(queue, singles);
        }
        (n as u32, next)
    }

    /// The one port to which a frame goes like the one before it on its port. None: look closer.
    #[inline]
    fn quick(&mut self, front: &Front, port: usize, now: u64) -> Option<usize> {
        let path = self.paths.get_mut(port)?;
        let (destination, source) = (front.destination(), front.source());
        if let Some(to) = self.switch.again(path, destination, source, now) {
            return Some(to);
        }
        *path = self.switch.path(destination, source, port, now)?;
        Some(path.to())
    }

    /// Puts a frame into one buffer of the receiver's, which must be the next and large enough. False: nothing was done.
    #[inline]
    fn give_single(
        &mut self,
        devices: &mut Devices,
        run: &mut Run,
        to: usize,
        from_queue: u16,
        front: &Front,
        from: &Span,
    ) -> bool {
        if run.to != to {
            run.close(devices);
            let Some(receiver) = devices.get(to).filter(|d| d.running()) else { return false };
            (run.to, run.queue) = (to, receive_queue(receiver, from_queue));
        }
        let Some(receiver) = devices.get_mut(to) else { return false };
        let need = HEADER_BYTES as u32 + front.frame_len();
        if self.max_frame.get(to).is_none_or(|&max| front.frame_len() > max) {
            return false;
        }
        let Next::Single(single) = receiver.take(run.queue) else { return false };
        if !single.writable || single.span.len() < need || front.put_single(self.copier, from, &single.span).is_none() {
            receiver.untake(run.queue, single);
            return false;
        }
        receiver.finish(run.queue, single, need);
        run.tally.packets += 1;
        run.tally.bytes += u64::from(front.frame_len());
        true
    }

    /// Takes and sends one frame that is not a single buffer. False: there was none after all.
    fn one(&mut self, devices: &mut Devices, port: usize, queue: u16, now: u64) -> bool {
        let Some(device) = devices.get_mut(port) else { return false };
        let mut sent = core::mem::take(&mut self.sent);
        sent.clear();
        let request = device.pop(queue, &mut sent);
        if let Some(Request { token, chain }) = request {
            if chain.writable_bytes != 0 {
                device.fail(Fault::Direction);
            } else {
                let max = self.max_frame.get(port).copied().unwrap_or(0);
                let counters = device.shared().counters();
                counters.tx_packets.add(1);
                counters.tx_bytes.add(u64::from(chain.readable_bytes.saturating_sub(HEADER_BYTES as u32)));
                let spans = chain.readable_spans(&sent);
                let mut front = Front::new();
                match front.take(self.copier, spans, chain.readable_bytes, max) {
                    Ok(()) => self.forward(devices, port, queue, &mut front, spans, now),
                    Err(bad) => bad.count(counters),
                }
                if let Some(device) = devices.get_mut(port) {
                    device.complete(token, 0);
                }
            }
            self.sent = sent;
            return devices.get(port).is_some_and(Device::running);
        }
        self.sent = sent;
        false
    }

    /// Sends a frame from `port` where it belongs, the general way.
    fn forward(&mut self, devices: &mut Devices, port: usize, queue: u16, front: &mut Front, from: &[Span], now: u64) {
        self.switch.learn(front.source(), port, now);
        let destination = front.destination();
        let known = if destination.is_multicast() { None } else { self.switch.lookup(destination, now) };
        let found = match known {
            Some(to) if to == port => false,
            // A known receiver counts what it does not get, whatever the reason.
            Some(to) => {
                self.deliver(devices, to, queue, front, from, false);
                true
            }
            None => {
                let others = devices.ports().filter(|&to| to != port);
                others.filter(|&to| self.deliver(devices, to, queue, front, from, true)).count() != 0
            }
        };
        if !found && let Some(device) = devices.get(port) {
            device.shared().counters().tx_no_destination.add(1);
        }
    }

    /// Gives a frame to a port, or counts why not. False: its device is not running.
    fn deliver(
        &mut self,
        devices: &mut Devices,
        to: usize,
        queue: u16,
        front: &mut Front,
        from: &[Span],
        flooded: bool,
    ) -> bool {
        let max = self.max_frame.get(to).copied().unwrap_or(0);
        let Some(receiver) = devices.get_mut(to) else { return false };
        let counters = receiver.shared().counters();
        if !receiver.running() {
            if !flooded {
                counters.rx_not_running.add(1);
            }
            return false;
        }
        match give(self.copier, &mut self.posted, front, from, receiver, queue, max) {
            Ok(()) => {
                counters.rx_packets.add(1);
                counters.rx_bytes.add(u64::from(front.frame_len()));
            }
            Err(Some(cause)) => cause(counters).add(1),
            // The receiver has lost its device meanwhile, which has been counted.
            Err(None) => {}
        }
        true
    }
}

/// Frames in a row for the same receiver.
struct Run {
    to: usize,
    queue: u16,
    tally: Tally,
}

impl Run {
    fn close(&mut self, devices: &Devices) {
        let tally = core::mem::take(&mut self.tally);
        if tally.packets != 0
            && let Some(receiver) = devices.get(self.to)
        {
            receiver.shared().counters().rx_packets.add(tally.packets);
            receiver.shared().counters().rx_bytes.add(tally.bytes);
        }
        self.to = MAX_PORTS;
    }
}

impl Bad {
    fn count(self, counters: &PortCounters) {
        match self {
            Self::Length => &counters.tx_bad_length,
            Self::Header => &counters.tx_bad_header,
            Self::Source => &counters.tx_bad_source,
        }
        .add(1);
    }
}

/// The queue on which a frame is received that was sent on `from`: of the same pair, or else of the first.
fn receive_queue(receiver: &Device, from: u16) -> u16 {
    let same = from & !1;
    if receiver.has_queue(same) { same } else { 0 }
}

/// The counter of a reason not to deliver.
type Cause = fn(&PortCounters) -> &Counter;

/// Puts a frame into as many of the receiver's buffers as it needs.
fn give(
    copier: Copier,
    posted: &mut Segments,
    front: &mut Front,
    from: &[Span],
    receiver: &mut Device,
    from_queue: u16,
    max: u32,
) -> Result<(), Option<Cause>> {
    if front.frame_len() > max {
        return Err(Some(|c| &c.rx_too_large));
    }
    let queue = receive_queue(receiver, from_queue);
    let need = HEADER_BYTES as u32 + front.frame_len();
    let merge = receiver.features().contains(Features::NET_MRG_RXBUF);
    posted.clear();
    let mut buffers: heapless::Vec<(Token, u32), MAX_BUFFERS> = heapless::Vec::new();
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
    if front.put(copier, from, posted.spans(), buffers.len() as u16).is_none() {
        // Cannot be: the buffers were checked when they were taken, and there is room for the frame.
        receiver.fail(Fault::Buffer);
        return Err(None);
    }
    let mut left = need;
    for (token, room) in buffers {
        let written = room.min(left);
        left -= written;
        receiver.complete(token, written);
    }
    Ok(())
}
