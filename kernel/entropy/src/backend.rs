//! The back-end as the engine sees it. It takes requests and fills their buffers. It keeps a request for which the
//! source has no bytes yet, or which is above its guest's rate.

use alloc::boxed::Box;

use engine::backend::Backend;
use engine::device::Device;
use engine::devices::{Devices, table};
use engine::requests::ServiceMode;
use engine::schedule::{Portion, Served};
use engine::slots::{MAX_SLOTS, SlotSet};
use virtio::chain::{Segment, Segments, Span};
use virtio::config::DeviceConfig;
use virtio::fault::Fault;
use virtio::queue::{Request, Token};

use crate::counters::EntropyCounters;
use crate::limit::{Bucket, Limit};
use crate::source::Source;

/// Most bytes that a request gets. Linux asks for 64. RDRAND takes some hundred cycles for 8 bytes, so a request takes
/// about a microsecond.
pub const MAX_BYTES: usize = 64;

/// A request for which the source had no bytes, or which was above the guest's rate.
struct Waiting {
    token: Token,
    /// Its first buffer, the only one that is filled.
    buffer: Segment,
}

/// The device of a slot.
struct Slot {
    counters: &'static EntropyCounters,
    waiting: Option<Waiting>,
    /// What its guest may get. `None` until the first request.
    bucket: Option<Bucket>,
}

/// Counters of a slot without a device. No request is counted here.
static NO_DEVICE: EntropyCounters = EntropyCounters::new();

/// The entropy back-end.
pub struct Entropy<S> {
    source: S,
    limit: Limit,
    slots: Box<[Slot; MAX_SLOTS]>,
    /// Slots with a request that waits.
    waiting: SlotSet,
    /// The slot whose request is tried first.
    next: usize,
    /// The time of the last turn.
    now: u64,
    segments: Box<Segments>,
}

/// What a request gets.
enum Given {
    /// Its bytes.
    Bytes,
    /// None now, because the guest's rate is used up.
    Limited,
    /// None now, because the source has none.
    Starved,
}

/// Fills `bytes` for a slot if its guest may have them at `now` and the source has them.
fn give<S: Source>(source: &mut S, limit: &Limit, bucket: &mut Option<Bucket>, bytes: &mut [u8], now: u64) -> Given {
    let bucket = bucket.get_or_insert_with(|| Bucket::full(limit, now));
    let before = *bucket;
    if !bucket.take(limit, bytes.len(), now) {
        return Given::Limited;
    }
    if !source.fill(bytes) {
        *bucket = before;
        return Given::Starved;
    }
    Given::Bytes
}

impl<S: Source> Entropy<S> {
    /// Makes a back-end without devices. `limit` is the rate of each guest.
    #[must_use]
    pub fn new(source: S, limit: Limit) -> Self {
        Self {
            source,
            limit,
            slots: table(|| Slot { counters: &NO_DEVICE, waiting: None, bucket: None }),
            waiting: SlotSet::NONE,
            next: 0,
            now: 0,
            segments: Box::default(),
        }
    }

    /// Returns its source.
    pub const fn source_mut(&mut self) -> &mut S {
        &mut self.source
    }

    /// Takes the next request of a queue. `None`: there is none, or the device has failed.
    fn serve_one(&mut self, device: &mut Device, slot: usize, queue: u16, now: u64) -> Option<Served> {
        self.segments.clear();
        let Request { token, chain } = device.pop(queue, &mut self.segments)?;
        let buffers = chain.writable_span(&self.segments);
        let (Some(first), 0) = (buffers.segments().next(), chain.readable_bytes) else {
            device.fail(Fault::Direction);
            return Some(Served::new(1, 0));
        };
        let state = self.slots.get_mut(slot)?;
        let mut bytes = [0; MAX_BYTES];
        let bytes = first_of(&mut bytes, chain.writable_bytes);
        let waits = match give(&mut self.source, &self.limit, &mut state.bucket, bytes, now) {
            Given::Bytes => None,
            Given::Limited => Some(&state.counters.limited),
            Given::Starved => Some(&state.counters.starved),
        };
        if let Some(counter) = waits {
            counter.add(1);
            state.waiting = Some(Waiting { token, buffer: first });
            self.waiting.insert(slot);
            device.interrupt_visit(queue);
            return Some(Served::new(1, 0));
        }
        complete(device, state.counters, token, buffers, bytes);
        Some(Served::new(1, bytes.len() as u64))
    }

    /// Retries the waiting requests, at most one of each slot, until the source has no more bytes. Returns how many it
    /// completed.
    fn retry(&mut self, devices: &mut Devices) -> u32 {
        let now = self.now;
        let (mut tried, mut completed) = (SlotSet::NONE, 0_u32);
        while let Some(slot) = self.waiting.next_from(self.next, &tried) {
            tried.insert(slot);
            let Some(state) = self.slots.get_mut(slot) else { break };
            if let (Some(waiting), Some(device)) = (&state.waiting, devices.get_mut(slot)) {
                let mut bytes = [0; MAX_BYTES];
                let bytes = first_of(&mut bytes, waiting.buffer.len);
                match give(&mut self.source, &self.limit, &mut state.bucket, bytes, now) {
                    Given::Bytes => {}
                    Given::Limited => continue,
                    Given::Starved => break,
                }
                if let Some(Waiting { token, buffer }) = state.waiting.take() {
                    complete(device, state.counters, token, Span::new(&[buffer], buffer.len), bytes);
                    completed = completed.saturating_add(1);
                }
            }
            self.waiting.remove(slot);
            // The other slots come first next time.
            self.next = slot.wrapping_add(1) % MAX_SLOTS;
        }
        completed
    }
}

/// The first `len` of the bytes, or all if `len` is more.
fn first_of(bytes: &mut [u8; MAX_BYTES], len: u32) -> &mut [u8] {
    bytes.get_mut(..MAX_BYTES.min(len as usize)).unwrap_or_default()
}

/// Writes `bytes` to the buffers in their order, and completes the request.
fn complete(device: &mut Device, counters: &EntropyCounters, token: Token, buffers: Span<'_>, bytes: &[u8]) {
    if let Err(fault) = buffers.write(device.memory(), bytes) {
        device.fail(fault);
        return;
    }
    if device.complete(token, bytes.len() as u32) {
        counters.requests.add(1);
        counters.bytes.add(bytes.len() as u64);
    }
}

impl<S: Source> Backend for Entropy<S> {
    type Config = &'static EntropyCounters;

    fn attached(&mut self, slot: usize, _: &DeviceConfig, counters: Self::Config) {
        if let Some(state) = self.slots.get_mut(slot) {
            state.counters = counters;
            state.bucket = None;
        }
    }

    fn detached(&mut self, slot: usize) {
        if let Some(state) = self.slots.get_mut(slot) {
            state.counters = &NO_DEVICE;
        }
    }

    fn activated(&mut self, _: usize, _: &mut Device, _: bool) {}

    fn service_mode(&self, _: usize, _: u16) -> ServiceMode {
        ServiceMode::Notified
    }

    fn serve(&mut self, devices: &mut Devices, slot: usize, queue: u16, portion: &Portion, now: u64) -> Served {
        let mut taken = Served::default();
        let Some(device) = devices.get_mut(slot) else { return taken };
        while taken.requests < portion.requests && taken.bytes < portion.bytes && !self.waiting.contains(slot) {
            let Some(one) = self.serve_one(device, slot, queue, now) else { break };
            taken.requests = taken.requests.saturating_add(one.requests);
            taken.bytes = taken.bytes.saturating_add(one.bytes);
        }
        taken
    }

    #[inline]
    fn poll(&mut self, devices: &mut Devices, now: u64) -> u32 {
        self.now = now;
        if self.waiting == SlotSet::NONE { 0 } else { self.retry(devices) }
    }

    fn reclaim(&mut self, devices: &mut Devices) {
        self.retry(devices);
    }

    /// Drops a waiting request at once, because only this back-end uses its buffers.
    fn cancel(&mut self, _: &mut Devices, slot: usize) -> bool {
        self.waiting.remove(slot);
        if let Some(state) = self.slots.get_mut(slot) {
            state.waiting = None;
        }
        true
    }
}
