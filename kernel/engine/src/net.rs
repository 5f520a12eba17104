//! The net back-end: virtio-net devices joined by a learning switch (virtio 1.3 ch. 5.1).
//!
//! ```text
//!   transmit ring ─▶ stream: runs of frames of the usual form ─▶ receive ring
//!        │              └─ leave ──▶ uplink                            ▲
//!        └─ else ──▶ frame, forward: any frame, one at a time ────────┤
//!                                  │                                  │
//!                                  └──▶ uplink ──▶ wire ──▶ arrive ───┘
//! ```
//!
//! What is looked at of a frame is copied once out of the sender's memory, and that copy is what every receiver gets; the
//! rest goes from the sender's buffers straight into the receiver's. All work of this back-end is done at once: it holds
//! no token beyond a call, but for the frames that a NIC is sending.

mod alike;
mod arrive;
mod beginning;
mod buffers;
mod controlq;
mod exits;
mod flow;
mod forward;
mod frame;
mod leave;
mod rules;
mod software;
pub(crate) mod status;
mod stream;
mod wanted;

use nic::Nic;

use crate::backend::{Attends, Backend, Devices};
use crate::chain::Segments;
use crate::device::Device;
use crate::fault::Fault;
use crate::offload::Can;
pub use crate::offload::HEADER_BYTES;
use crate::policy::Policy;
use crate::queue::Request;
use crate::schedule::{Portion, Served};
use crate::shared::{CONFIG_BYTES, DeviceConfig, Features, MAX_QUEUE_PAIRS};
use crate::switch::Mac;
use crate::uplink::{Held, MAX_UPLINKS, NoNic, Uplink};
pub(crate) use buffers::Cursor;
use controlq::Wishes;
use forward::Bridge;
use frame::{Bad, Frame};

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: u32 = 14;
/// Bytes that a VLAN tag adds.
pub const VLAN_BYTES: u32 = 4;
/// Buffers that one frame may be spread over (MRG_RXBUF).
pub const MAX_BUFFERS: usize = 64;

const DEVICE_TYPE: u16 = 1;
const MTU: usize = 10;

/// What a net device with `pairs` queue pairs is: receive and transmit queues alternate from 0, the control queue comes
/// last. `mtu` is the largest payload of a frame in bytes. It offers every feature; one whose frames can leave by an uplink must not
/// offer IN_ORDER.
#[must_use]
pub const fn config(mac: [u8; 6], mtu: u16, pairs: u16) -> DeviceConfig {
    assert!(pairs as usize <= MAX_QUEUE_PAIRS);
    let mut config = [0; CONFIG_BYTES];
    let mut i = 0;
    while i < mac.len() {
        config[i] = mac[i];
        i += 1;
    }
    config[status::OFFSET] = status::LINK_UP;
    [config[8], config[9]] = pairs.to_le_bytes();
    [config[MTU], config[MTU + 1]] = mtu.to_le_bytes();
    DeviceConfig {
        device_type: DEVICE_TYPE,
        features: Features::all(),
        queues: 2 * pairs + 1,
        queue_size: 256,
        config,
        config_len: 12,
        policy: None,
        uplink: None,
    }
}

/// The net back-end. `N` is the NIC that is its way out of the machine.
pub struct Net<N = NoNic> {
    bridge: Bridge,
    /// In the order of `bridge.exits`; None: it is not there.
    uplinks: heapless::Vec<Option<Uplink<N>>, MAX_UPLINKS>,
    /// Who is there, or what they want, has changed since the NICs were told.
    changed: bool,
    sent: Segments,
    /// Frames may go the fast way.
    by_runs: bool,
}

impl<N: Nic<Token = Held>> Net<N> {
    /// With no ports. `seed` should be unpredictable to guests; an address that was silent for `max_age` ticks of the
    /// engine's clock is forgotten.
    #[must_use]
    pub fn new(seed: u64, max_age: u64) -> Self {
        Self {
            bridge: Bridge::new(seed, max_age),
            uplinks: heapless::Vec::new(),
            changed: true,
            sent: Segments::new(),
            by_runs: true,
        }
    }

    /// Gives it a further way out. Before the first turn. False: it has [`MAX_UPLINKS`].
    pub fn add_uplink(&mut self, uplink: Uplink<N>) -> bool {
        let policy = uplink.policy();
        self.add(policy, Some(uplink))
    }

    /// Keeps the place of an uplink that is not there: what would leave by it leaves by no other. False: it has
    /// [`MAX_UPLINKS`].
    pub fn add_missing_uplink(&mut self, policy: Option<&'static Policy>) -> bool {
        self.add(policy, None)
    }

    fn add(&mut self, policy: Option<&'static Policy>, uplink: Option<Uplink<N>>) -> bool {
        self.bridge.exits.add(policy).is_some() && self.uplinks.push(uplink).is_ok()
    }

    /// Tells the NICs what is wanted.
    #[cold]
    fn tell_nics(&mut self, devices: &Devices) {
        for (n, uplink) in self.uplinks.iter_mut().enumerate() {
            if let Some(uplink) = uplink {
                uplink.set_receive_filter(&self.bridge.wanted(devices, n).wanted());
            }
        }
    }

    /// Tells the guests of the link: that of an uplink that their frames may leave by.
    #[cold]
    fn tell(&self, devices: &mut Devices) {
        let (mut there, mut up) = (0, 0);
        for (n, uplink) in self.uplinks.iter().enumerate() {
            there |= u8::from(uplink.is_some()) << n;
            up |= u8::from(uplink.as_ref().is_some_and(Uplink::is_up)) << n;
        }
        for port in devices.ports() {
            let used = self.bridge.exits.used(port) & there;
            let up = used & up != 0;
            if used != 0
                && devices.get(port).is_some_and(|device| status::set(device.shared(), status::LINK_UP, up))
                && let Some(device) = devices.get_mut(port)
            {
                device.tell_config_changed();
            }
        }
    }

    /// Makes every frame go the general way, for a comparison of the two.
    #[cfg(any(test, feature = "testing"))]
    pub fn forbid_runs(&mut self) {
        self.by_runs = false;
    }

    /// Takes one request from a queue and sends its frame the general way. None: the device has broken.
    fn serve_one(&mut self, devices: &mut Devices, port: usize, queue: u16, now: u64) -> Option<Served> {
        let device = devices.get_mut(port)?;
        self.sent.clear();
        let Request { token, chain } = device.pop(queue, &mut self.sent)?;
        let served = Served { requests: 1, bytes: u64::from(chain.readable_bytes) };
        if chain.writable_bytes != 0 {
            device.fail(Fault::Direction);
            return Some(served);
        }
        let counters = device.shared().counters();
        counters.tx_packets.add(1);
        counters.tx_bytes.add(u64::from(chain.readable_bytes.saturating_sub(HEADER_BYTES as u32)));
        let max = self.bridge.max_frame(port);
        let can = Can::device(device.features());
        let frame = Frame::take(device.memory(), chain.readable(&self.sent), chain.readable_bytes, can, max);
        let admitted = frame.and_then(|mut frame| {
            let vlan = self.bridge.admit(devices, port, queue, &mut frame, now)?;
            Ok((frame, vlan))
        });
        match admitted {
            Ok((mut frame, vlan)) => {
                let way = self.bridge.way(&self.uplinks, port, vlan);
                let leaves = self.bridge.forward(devices, port, queue, &mut frame, vlan, way, now);
                if let Some(way) = leaves
                    && let Some(Some(uplink)) = self.uplinks.get_mut(way.uplink)
                    && self.bridge.leave(devices, port, queue, &mut frame, way, uplink, now)
                {
                    uplink.send(devices, &frame.leaving(port), token, &mut self.bridge.bounce);
                    return Some(served);
                }
            }
            Err(Bad::Refused(refusal)) => refusal.entering(counters).add(1),
            Err(Bad::Length) => counters.tx_bad_length.add(1),
            Err(Bad::Header) => counters.tx_bad_header.add(1),
            Err(Bad::Source) => counters.tx_bad_source.add(1),
        }
        if let Some(device) = devices.get_mut(port) {
            device.complete(token, 0);
        }
        Some(served)
    }
}

impl<N: Nic<Token = Held>> Backend for Net<N> {
    fn attached(&mut self, port: usize, device: &DeviceConfig) {
        let c = &device.config;
        if let Some(max) = self.bridge.max_frame.get_mut(port) {
            *max = u32::from(u16::from_le_bytes([c[MTU], c[MTU + 1]])) + ETHERNET_BYTES + VLAN_BYTES;
            let mac = Mac::new([c[0], c[1], c[2], c[3], c[4], c[5]]);
            // None configured: the port has no address of its own.
            if mac != Mac::NONE {
                self.bridge.switch.set_own(mac, port);
            }
            for &mac in device.policy.iter().flat_map(|policy| &policy.fixed) {
                // More than a port may have are not put there: they are learned, if the port has room, like any others.
                self.bridge.switch.set_static(mac, port);
            }
            self.bridge.set_rules(port, device.policy);
            self.bridge.exits.attach(port, device.policy, device.uplink);
            self.changed = true;
        }
    }

    fn detached(&mut self, port: usize) {
        self.bridge.switch.forget_port(port);
        self.bridge.set_rules(port, None);
        self.bridge.exits.detach(port);
        self.changed = true;
    }

    fn activated(&mut self, port: usize, device: &mut Device, resumed: bool) {
        if let Some(wishes) = self.bridge.wishes.get_mut(port) {
            controlq::begin(wishes, device, resumed);
        }
        self.changed = true;
    }

    fn attends(&self, port: usize, queue: u16) -> Attends {
        match self.bridge.wishes(port).and_then(Wishes::queue) {
            Some(control) if control == queue => Attends::Notified,
            _ if queue % 2 == 1 => Attends::AsConfigured,
            _ => Attends::Never,
        }
    }

    fn serve(&mut self, devices: &mut Devices, port: usize, queue: u16, portion: &Portion, now: u64) -> Served {
        let mut taken = Served::default();
        if let Some(wishes) = self.bridge.wishes.get_mut(port).filter(|w| w.queue() == Some(queue)) {
            let Some(device) = devices.get_mut(port) else { return taken };
            taken = controlq::serve(wishes, device, queue, &mut self.sent, portion);
            self.changed |= taken.requests != 0;
            return taken;
        }
        let mut by_runs = self.by_runs;
        while taken.requests < portion.requests && taken.bytes < portion.bytes {
            if devices.get_mut(port).is_none_or(|device| device.available(queue) == 0) {
                break;
            }
            let left = Portion { requests: portion.requests - taken.requests, bytes: portion.bytes - taken.bytes };
            let mut served = Served::default();
            if by_runs {
                let run = self.bridge.stream(devices, &mut self.uplinks, port, queue, &left, now);
                // A run that was looked at in vain is not looked at again for each of its frames.
                by_runs = run != Some(Served::default());
                served = run.unwrap_or_default();
            }
            if served.requests == 0 {
                let Some(one) = self.serve_one(devices, port, queue, now) else { break };
                served = one;
            }
            taken.requests += served.requests;
            taken.bytes += served.bytes;
        }
        self.uplinks.iter_mut().flatten().for_each(Uplink::flush);
        taken
    }

    fn poll(&mut self, devices: &mut Devices, now: u64) -> u32 {
        let Self { bridge, uplinks, .. } = self;
        bridge.switch.age(now);
        let (mut moved, mut looked) = (0, false);
        for (n, uplink) in uplinks.iter_mut().enumerate() {
            let Some(uplink) = uplink else { continue };
            looked |= uplink.service(now);
            let counters = uplink.counters();
            moved += uplink.poll(devices, |devices, frame| bridge.arrive(devices, frame, n, counters, now));
        }
        if looked {
            self.tell(devices);
            // No more often than that, however often a guest changes its mind.
            if core::mem::take(&mut self.changed) {
                self.tell_nics(devices);
            }
        }
        moved
    }

    fn reclaim(&mut self, devices: &mut Devices) {
        for uplink in self.uplinks.iter_mut().flatten() {
            uplink.reclaim(devices);
        }
    }

    fn cancel(&mut self, devices: &mut Devices, port: usize) -> bool {
        self.reclaim(devices);
        !self.uplinks.iter().flatten().any(|uplink| uplink.holds(port))
    }
}
