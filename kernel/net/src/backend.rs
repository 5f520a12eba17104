//! The network back-end as the engine sees it: which path the frames of a queue take.
//!
//! ```text
//!   transmit ring ─▶ path/fast: a batch of frames of one flow ───▶ receive ring
//!        │              └─ path/egress_fast ──▶ uplink                  ▲
//!        └─ else ──▶ path/slow: any frame, one at a time ───────────────┤
//!                                  │                                    │
//!                                  └──▶ uplink ──▶ wire ──▶ path/ingress
//! ```
//!
//! The first bytes of a frame are copied once out of the sender's memory, and checked. Every receiver gets that copy.
//! The other bytes are copied from the sender's buffers directly into the receiver's. This back-end completes every
//! request at once, except the requests of frames that a NIC is sending.

use engine::backend::Backend;
use engine::device::Device;
use engine::devices::Devices;
use engine::requests::ServiceMode;
use engine::schedule::{Portion, Served};
use nic::Nic;
use virtio::chain::Segments;
use virtio::config::DeviceConfig;
use virtio::fault::Fault;
use virtio::queue::Request;

use crate::bridge::Bridge;
use crate::control_queue::ReceiveSettings;
use crate::device::MTU;
use crate::ethernet::{ETHERNET_BYTES, VLAN_BYTES};
use crate::features::Features;
use crate::frame::{Frame, Rejected};
use crate::mac::Mac;
use crate::offload::{HEADER_BYTES, OffloadSupport};
use crate::policy::Policy;
use crate::port::Port;
use crate::uplink::held::Held;
use crate::uplink::{MAX_UPLINKS, NoNic, Uplink};
use crate::watch::{Step, Watch};
use crate::{control_queue, status, work};

/// The network back-end. `N` is the type of its uplinks' NICs.
pub struct Net<N = NoNic> {
    bridge: Bridge,
    /// The uplinks, in the order of `bridge.uplink_choice`. `None`: the NIC is missing.
    uplinks: heapless::Vec<Option<Uplink<N>>, MAX_UPLINKS>,
    /// Ports or receive filters changed since the NICs' filters were last set.
    filters_changed: bool,
    /// Buffers of the current frame on the slow path, or of the current command of a control queue.
    sent: Segments,
    /// Whether frames may take the fast paths.
    fast_path: bool,
}

impl<N: Nic<Token = Held>> Net<N> {
    /// Makes a back-end without ports. `seed` should be unpredictable to guests. An address that was silent for
    /// `max_age` ticks of the engine's clock is forgotten.
    #[must_use]
    pub fn new(seed: u64, max_age: u64) -> Self {
        Self {
            bridge: Bridge::new(seed, max_age),
            uplinks: heapless::Vec::new(),
            filters_changed: true,
            sent: Segments::new(),
            fast_path: true,
        }
    }

    /// Sets who watches frames at guests' ports and at uplinks.
    pub fn watch(&mut self, watch: Watch) {
        self.bridge.watch = Some(watch);
        for (number, uplink) in self.uplinks.iter_mut().enumerate() {
            if let Some(uplink) = uplink {
                uplink.watch(Some(watch), number);
            }
        }
    }

    /// Adds an uplink. Its NIC's address and the static addresses of its rules are kept from all guests. Call it before the
    /// first turn. Returns false if there are [`MAX_UPLINKS`].
    pub fn add_uplink(&mut self, uplink: Uplink<N>) -> bool {
        let policy = uplink.policy();
        self.bridge.switch.reserve(Mac::new(uplink.address()));
        self.add(policy, Some(uplink))
    }

    /// Keeps the place of an uplink whose NIC is missing. Its frames do not leave through another uplink. Returns false
    /// if there are [`MAX_UPLINKS`].
    pub fn add_missing_uplink(&mut self, policy: Option<&'static Policy>) -> bool {
        self.add(policy, None)
    }

    fn add(&mut self, policy: Option<&'static Policy>, mut uplink: Option<Uplink<N>>) -> bool {
        if let Some(uplink) = &mut uplink {
            uplink.watch(self.bridge.watch, self.uplinks.len());
        }
        policy.iter().flat_map(|policy| &policy.fixed).for_each(|&mac| self.bridge.switch.reserve(mac));
        self.bridge.uplink_choice.add(policy) && self.uplinks.push(uplink).is_ok()
    }

    /// Sets the receive filters of the NICs.
    #[cold]
    fn update_nic_filters(&mut self, devices: &Devices) {
        for (n, uplink) in self.uplinks.iter_mut().enumerate() {
            if let Some(uplink) = uplink {
                uplink.set_receive_filter(&self.bridge.nic_filter(devices, n).as_receive_filter());
            }
        }
    }

    /// Updates the link status of each guest: up if one of the uplinks that its port uses is up.
    #[cold]
    fn update_link_status(&self, devices: &mut Devices) {
        let (mut there, mut up) = (0, 0);
        for (n, uplink) in self.uplinks.iter().enumerate() {
            there |= u8::from(uplink.is_some()) << n;
            up |= u8::from(uplink.as_ref().is_some_and(Uplink::is_up)) << n;
        }
        for port in self.bridge.attached {
            let used = self.bridge.uplink_choice.uplinks_of(port) & there;
            let up = used & up != 0;
            if used != 0
                && devices.get(port).is_some_and(|device| status::set(device.shared(), status::LINK_UP, up))
                && let Some(device) = devices.get_mut(port)
            {
                device.notify_config_change();
            }
        }
    }

    /// Makes every frame take the slow path, so that tests can compare the paths.
    #[cfg(any(test, feature = "testing"))]
    pub fn disable_fast_path(&mut self) {
        self.fast_path = false;
    }

    /// Takes one request from a queue, and sends its frame on the slow path. `None`: the device has failed.
    ///
    /// Not inlined into [`Self::serve`]: a visit that only uses the fast path would set up this function's stack too.
    #[inline(never)]
    fn serve_one(&mut self, devices: &mut Devices, port: usize, queue: u16, now: u64) -> Option<Served> {
        let device = devices.get_mut(port)?;
        self.sent.clear();
        let Request { token, chain } = device.pop(queue, &mut self.sent)?;
        let sent = chain.all(&self.sent).len() as u32;
        self.bridge.work = 0;
        self.bridge.add_work(work::SLOW_FRAME);
        self.bridge.add_work(work::times(sent, work::DESCRIPTOR));
        let served = |work| Some(Served::new(1, u64::from(chain.readable_bytes).max(work::charged(work))));
        if chain.writable_bytes != 0 {
            device.fail(Fault::Direction);
            return served(self.bridge.work);
        }
        let (counters, watched) = (self.bridge.counters(port), self.bridge.is_watched());
        let len = chain.readable_bytes.saturating_sub(HEADER_BYTES as u32);
        counters.frames.tx_packets.add(1);
        counters.frames.tx_bytes.add(u64::from(len));
        if watched {
            self.bridge.current.begin(port);
            self.bridge.show_step(Step::Taken(now), port, len);
        }
        let max = self.bridge.max_frame(port);
        let support = OffloadSupport::device(Features::of(device));
        // The frame is only borrowed from here on: moving it would copy its first bytes.
        let mut frame = Frame::take(device.memory(), chain.readable(&self.sent), chain.readable_bytes, support, max);
        let admitted = match &mut frame {
            Ok(frame) => {
                if watched {
                    self.bridge.current.keep(frame.front().frame());
                }
                let first = sent.saturating_sub(frame.rest().0.pieces() as u32);
                self.bridge.add_work(work::times(first.saturating_sub(1), work::FIRST_PIECE));
                self.bridge.admit(devices, port, queue, frame, now).map(|vlan| (frame, vlan))
            }
            Err(rejected) => Err(*rejected),
        };
        match admitted {
            Ok((frame, vlan)) => {
                let egress_route = self.bridge.egress_route(&self.uplinks, port, vlan);
                let leaves = self.bridge.forward(devices, port, queue, frame, vlan, egress_route, now);
                if watched {
                    self.bridge.show_current(len, now);
                }
                if let Some(egress_route) = leaves
                    && let Some(Some(uplink)) = self.uplinks.get_mut(egress_route.uplink)
                    && self.bridge.check_egress(devices, port, queue, frame, egress_route, uplink, now)
                {
                    let work = uplink.send(devices, &frame.for_egress(port), token, &mut self.bridge.bounce);
                    self.bridge.add_work(work);
                    return served(self.bridge.work);
                }
            }
            Err(rejected) => {
                let drops = &counters.drops;
                let cause = match rejected {
                    Rejected::Refused(refusal) => refusal.entering(counters),
                    Rejected::Length => &drops.tx_bad_length,
                    Rejected::Header => &drops.tx_bad_header,
                    Rejected::SmallMss => &drops.tx_small_mss,
                    Rejected::Source => &drops.tx_bad_source,
                };
                self.bridge.drop_frame(port, cause, len);
                if watched {
                    self.bridge.show_current(len, now);
                }
            }
        }
        if let Some(device) = devices.get_mut(port) {
            device.complete(token, 0);
        }
        served(self.bridge.work)
    }
}

impl<N: Nic<Token = Held>> Backend for Net<N> {
    type Config = Port;

    fn attached(&mut self, port: usize, device: &DeviceConfig, of_port: Port) {
        let c = &device.config;
        if let Some(max) = self.bridge.max_frame.get_mut(port) {
            *max = u32::from(u16::from_le_bytes([c[MTU], c[MTU + 1]])).saturating_add(ETHERNET_BYTES + VLAN_BYTES);
            let mac = Mac::new([c[0], c[1], c[2], c[3], c[4], c[5]]);
            // Without a configured address the port has no address of its own.
            if mac != Mac::NONE {
                self.bridge.switch.set_own(mac, port);
            }
            for &mac in of_port.policy.iter().flat_map(|policy| &policy.fixed) {
                // Addresses beyond the limit of a port are not static. They are learned like any others, if there is
                // room.
                self.bridge.switch.set_static(mac, port);
            }
            self.bridge.attach(port, of_port);
            self.filters_changed = true;
        }
    }

    fn detached(&mut self, port: usize) {
        self.bridge.detach(port);
        self.filters_changed = true;
    }

    fn activated(&mut self, port: usize, device: &mut Device, resumed: bool) {
        if let Some(settings) = self.bridge.settings.get_mut(port) {
            control_queue::activate(settings, device, resumed);
        }
        self.filters_changed = true;
    }

    fn service_mode(&self, port: usize, queue: u16) -> ServiceMode {
        match self.bridge.settings(port).and_then(ReceiveSettings::control_queue) {
            Some(control) if control == queue => ServiceMode::Notified,
            _ if queue % 2 == 1 => ServiceMode::AsConfigured,
            _ => ServiceMode::Unserved,
        }
    }

    fn serve(&mut self, devices: &mut Devices, port: usize, queue: u16, portion: &Portion, now: u64) -> Served {
        let mut taken = Served::default();
        let counters = self.bridge.counters(port);
        if let Some(settings) =
            self.bridge.settings.get_mut(port).filter(|settings| settings.control_queue() == Some(queue))
        {
            let Some(device) = devices.get_mut(port) else { return taken };
            taken = control_queue::serve(settings, device, queue, &mut self.sent, portion, counters);
            self.filters_changed |= taken.requests != 0;
            return taken;
        }
        let mut fast_path = self.fast_path;
        while taken.emptied(portion) {
            if devices.get_mut(port).is_none_or(|device| device.available(queue) == 0) {
                break;
            }
            let left = portion.after(&taken);
            if fast_path
                && let Some(served) = self.bridge.forward_batch(devices, &mut self.uplinks, port, queue, &left, now)
            {
                taken.add(served);
                if served.requests != 0 {
                    continue;
                }
                // The receiver did not qualify, so the fast path is not tried again in this portion.
                fast_path = false;
            }
            let Some(served) = self.serve_one(devices, port, queue, now) else { break };
            taken.add(served);
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
            let (counters, watched) = (uplink.counters(), bridge.is_watched());
            let polled =
                uplink.poll(devices, |devices, frame| bridge.ingress(devices, frame, n, counters, now, watched));
            moved = polled.saturating_add(moved);
        }
        if looked {
            self.update_link_status(devices);
            // The filters are set only after a service of a NIC, however often a guest changes its own filter.
            if core::mem::take(&mut self.filters_changed) {
                self.update_nic_filters(devices);
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
