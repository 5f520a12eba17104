//! The back-end as the engine sees it: takes requests, has them checked, gives them to the storage, and completes them.

use alloc::boxed::Box;

use engine::backend::Backend;
use engine::device::Device;
use engine::devices::{Devices, table};
use engine::requests::ServiceMode;
use engine::schedule::{Portion, Served};
use engine::slots::MAX_SLOTS;
use virtio::chain::Segments;
use virtio::config::DeviceConfig;
use virtio::fault::Fault;
use virtio::queue::{Completer, Purpose, Request as Popped, Token};

use crate::check::{Checked, Driver, Rules};
use crate::counters::BlockCounters;
use crate::device::{CAPACITY, sectors};
use crate::ended::{self, Done, Ended};
use crate::fast::{self, Stopped, Volume};
use crate::flushes::{Before, Flushes, Record};
use crate::header;
use crate::in_flight::{Entry, InFlight, MAX_IN_FLIGHT, Removed};
use crate::outcome::{self, IOERR, OK, UNSUPP};
use crate::storage::{Geometry, Operation, SECTOR, Status, Storage, Submitted, Tag, Target, Visitor};
use crate::watch::{self, DiskWatcher, Seen, Step, Watch};

/// Bytes of a serial number (virtio 1.3 5.2.6).
pub const SERIAL_BYTES: usize = 20;

/// What the back-end must know of a device.
#[derive(Clone, Copy, Debug)]
pub struct Disk<V> {
    /// Its volume.
    pub volume: V,
    /// Its serial number, with zeroes behind it.
    pub serial: [u8; SERIAL_BYTES],
    /// Its counters.
    pub counters: &'static BlockCounters,
    /// Keeps beyond its devices which writes may be lost. `None`: a device that is attached anew begins anew.
    pub record: Option<&'static Record>,
}

/// The device of a slot.
struct Slot<V> {
    disk: Disk<V>,
    geometry: Geometry,
    in_flight: u16,
    flushes: Flushes,
}

/// The block back-end.
pub struct Block<S: Storage> {
    storage: S,
    slots: Box<[Option<Slot<S::Volume>>; MAX_SLOTS]>,
    in_flight: InFlight,
    ended: ended::Room,
    segments: Box<Segments>,
    watch: Option<Watch>,
    #[cfg(test)]
    pub(crate) paths: Paths,
}

/// What tests ask of the two paths.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Paths {
    /// Requests that it has taken.
    pub fast: u64,
}

/// The outcome of taking a request.
enum Taken {
    /// It was completed or is in flight.
    Served(Served),
    /// It stays in the queue.
    Waits,
}

impl<S: Storage> Block<S> {
    /// Makes a back-end without devices.
    #[must_use]
    pub fn new(storage: S) -> Self {
        Self {
            storage,
            slots: table(|| None),
            in_flight: InFlight::new(),
            ended: ended::room(),
            segments: Box::default(),
            watch: None,
            #[cfg(test)]
            paths: Paths::default(),
        }
    }

    /// Its storage, to configure it.
    pub const fn storage_mut(&mut self) -> &mut S {
        &mut self.storage
    }

    /// Sets who watches requests. While somebody does, all of them take the general path.
    pub fn watch(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    /// Takes the next request of a queue. Returns `None` if there is none, or the device has failed.
    #[cold]
    #[inline(never)]
    fn take(&mut self, device: &mut Device, slot: usize, queue: u16, now: u64) -> Option<Taken> {
        let state = self.slots.get_mut(slot)?.as_mut()?;
        self.segments.clear();
        let Popped { token, chain } = device.pop(queue, &mut self.segments)?;
        let failed = |device: &mut Device, fault: Fault| {
            device.fail(fault);
            Some(Taken::Served(Served::new(1, 0)))
        };
        let parts = match header::parts(device.memory(), &chain, &self.segments) {
            Ok(parts) => parts,
            Err(fault) => return failed(device, fault),
        };
        let request = match Rules::new(&state.geometry, &Driver::of(device), device.memory()).check(&parts) {
            Ok(Checked::Storage(request)) => request,
            Ok(Checked::Identity) => {
                let written = match parts.input.write(device.memory(), &state.disk.serial) {
                    Ok(written) => written,
                    Err(fault) => return failed(device, fault),
                };
                let used = if written == parts.input.len() { written.saturating_add(1) } else { written };
                if answer(device, token, parts.status, OK, used) {
                    state.disk.counters.identities.add(1);
                }
                return Some(Taken::Served(Served::new(1, u64::from(written))));
            }
            Ok(verdict @ (Checked::Bad | Checked::Unsupported)) => {
                let (status, counter) = match verdict {
                    Checked::Unsupported => (UNSUPP, &state.disk.counters.unsupported),
                    _ => (IOERR, &state.disk.counters.errors),
                };
                // The used length counts from the first writable byte, so it is 0 if that one was not written.
                if answer(device, token, parts.status, status, u32::from(parts.input.is_empty())) {
                    counter.add(1);
                }
                return Some(Taken::Served(Served::new(1, 0)));
            }
            Err(fault) => return failed(device, fault),
        };
        if request.operation == Operation::Flush && state.flushes.is_lost() {
            if answer(device, token, parts.status, IOERR, 1) {
                state.disk.counters.errors.add(1);
                state.disk.counters.flushes_refused.add(1);
            }
            return Some(Taken::Served(Served::new(1, 0)));
        }
        let vacancy = self.in_flight.vacancy().filter(|_| state.in_flight < MAX_IN_FLIGHT);
        let submitted = match &vacancy {
            Some(vacancy) => self.storage.submit(state.disk.volume, vacancy.tag(), &request, now),
            None => Submitted::Busy,
        };
        let bytes = request.bytes(&state.geometry);
        let watched = watch::of(self.watch).zip(vacancy.as_ref().map(|vacancy| vacancy.tag()));
        if let Some((watcher, tag)) = watched
            && submitted != Submitted::Busy
        {
            let sector = request.first.saturating_mul(u64::from(state.geometry.block_bytes) / SECTOR);
            // The types of requests that were checked are below 256.
            let step = Step::Submitted { kind: parts.kind as u8, sector };
            watcher.request(&Seen { slot, queue, number: tag.0, step });
        }
        let before = state.flushes.before();
        let entry = Entry { token, slot: slot as u8, operation: request.operation, bytes, status: parts.status };
        match submitted {
            Submitted::Done(status) => {
                let counters = state.disk.counters;
                note::<S>(&mut self.slots[..], slot, (entry.operation, before), status);
                complete(device, counters, entry, status, watched);
            }
            Submitted::Pending => {
                state.in_flight = state.in_flight.saturating_add(1);
                if let Some(vacancy) = vacancy {
                    vacancy.insert(entry, || before);
                }
            }
            Submitted::Busy => {
                device.rewind(entry.token);
                self.wait(device, slot, queue);
                return Some(Taken::Waits);
            }
        }
        Some(Taken::Served(Served::new(1, bytes)))
    }

    /// Takes requests on the fast path. `all` is what the visit has taken; it becomes what it has taken then.
    #[inline(always)]
    fn serve_usual(
        &mut self,
        device: &mut Device,
        slot: usize,
        queue: u16,
        portion: &Portion,
        now: u64,
        all: &mut Served,
    ) -> Stopped {
        if watch::of(self.watch).is_some() {
            return Stopped::Unusual;
        }
        #[cfg(test)]
        let before = all.requests;
        let Some(state) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return Stopped::Unusual };
        let requests = Requests {
            device,
            queue,
            portion,
            all,
            in_flight: &mut self.in_flight,
            own_in_flight: &mut state.in_flight,
            segments: &mut self.segments,
            geometry: &state.geometry,
            counters: state.disk.counters,
            flushes: &mut state.flushes,
            slot,
        };
        let stopped = self.storage.visit(state.disk.volume, now, requests).unwrap_or(Stopped::Unusual);
        #[cfg(test)]
        {
            self.paths.fast += u64::from(all.requests - before);
        }
        stopped
    }

    /// Ends a visit although the queue holds a request: there is no room for it.
    #[cold]
    fn wait(&mut self, device: &mut Device, slot: usize, queue: u16) {
        if let Some(Some(state)) = self.slots.get(slot) {
            state.disk.counters.busy.add(1);
        }
        device.interrupt_visit(queue);
    }

    /// Tells the driver of a slot if its volume has another size than before.
    fn update_size(&mut self, device: &mut Device, slot: usize) {
        let Some(state) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        let blocks = self.storage.blocks(state.disk.volume);
        if core::mem::replace(&mut state.geometry.blocks, blocks) != blocks {
            device.shared().change_config(CAPACITY, &sectors(&state.geometry).to_le_bytes());
            device.notify_config_change();
        }
    }

    /// Looks at the sizes of all volumes again.
    #[cold]
    fn update_sizes(&mut self, devices: &mut Devices) {
        for slot in 0..MAX_SLOTS {
            if let Some(device) = devices.get_mut(slot) {
                self.update_size(device, slot);
            }
        }
    }

    /// Completes the requests that the storage reports. Returns how many.
    fn reap(&mut self, devices: &mut Devices, now: u64) -> u32 {
        if self.storage.take_size_change() {
            self.update_sizes(devices);
        }
        let watcher = watch::of(self.watch);
        let Self { storage, slots, in_flight, ended, .. } = self;
        let mut ended = Ended::new(ended);
        storage.poll(now, &mut |tag, status| ended.push(tag, status));
        let (mut completed, mut left) = (0_u32, ended.all());
        while let [first, others @ ..] = left {
            let many = match watcher {
                Some(_) => Done::default(),
                None => complete_many(devices, &mut slots[..], in_flight, left),
            };
            let Done { taken, stale, .. } = many;
            completed = completed.wrapping_add(taken.wrapping_sub(stale).into());
            left = match left.get(usize::from(taken)..) {
                Some(left) if taken != 0 => left,
                _ => {
                    let one = complete_one::<S>(devices, &mut slots[..], in_flight, *first, watcher);
                    completed = completed.saturating_add(one);
                    others
                }
            };
        }
        completed
    }
}

/// The requests of a queue for the fast path, and what it needs beside their storage.
struct Requests<'b> {
    device: &'b mut Device,
    queue: u16,
    portion: &'b Portion,
    /// What the visit has taken.
    all: &'b mut Served,
    in_flight: &'b mut InFlight,
    own_in_flight: &'b mut u16,
    segments: &'b mut Segments,
    geometry: &'b Geometry,
    counters: &'b BlockCounters,
    flushes: &'b mut Flushes,
    slot: usize,
}

impl Visitor for Requests<'_> {
    type Output = Stopped;

    /// First requests with one buffer, then the others, until there are none for the fast path.
    #[inline(always)]
    fn visit(self, target: &mut impl Target) -> Stopped {
        let Self { device, queue, portion, all, .. } = self;
        let mut volume = Volume {
            target,
            in_flight: self.in_flight,
            own_in_flight: self.own_in_flight,
            segments: self.segments,
            geometry: self.geometry,
            counters: self.counters,
            flushes: self.flushes,
            slot: self.slot,
        };
        let left = |all: &Served| Portion {
            requests: portion.requests.saturating_sub(all.requests),
            bytes: portion.bytes.saturating_sub(all.bytes),
        };
        loop {
            let (served, stopped) = fast::serve::<_, true>(&mut volume, device, queue, &left(all));
            all.add(served);
            match stopped {
                Stopped::GoOn if all.requests < portion.requests && all.bytes < portion.bytes => {}
                Stopped::Unusual => break,
                stopped => return stopped,
            }
        }
        let (served, stopped) = fast::serve::<_, false>(&mut volume, device, queue, &left(all));
        all.add(served);
        stopped
    }
}

/// Completes requests from the beginning of a list, as long as they are of one queue and of the usual form.
#[inline(never)]
fn complete_many<V>(
    devices: &mut Devices,
    slots: &mut [Option<Slot<V>>],
    in_flight: &mut InFlight,
    requests: &[(Tag, Status)],
) -> Done {
    let none = Done::default();
    let first = requests.first().and_then(|(tag, _)| in_flight.transfer_of(*tag));
    let Some((slot, queue)) = first else { return none };
    let state = slots.get_mut(usize::from(slot)).and_then(Option::as_mut);
    let (Some(state), Some(device)) = (state, devices.get_mut(slot.into())) else { return none };
    let Some(batch) = device.batch(queue) else { return none };
    let queue = ended::Queue {
        slot,
        memory: batch.memory(),
        region: batch.span(Purpose::Control),
        in_flight,
        own_in_flight: &mut state.in_flight,
        counters: state.disk.counters,
        flushes: &mut state.flushes,
    };
    let done = match batch.completer() {
        Some(Completer::Split(completer)) => queue.complete(completer, requests),
        Some(Completer::Packed(completer)) => queue.complete(completer, requests),
        None => none,
    };
    if done.lost {
        device.fail(Fault::Buffer);
    }
    if done.stale != 0 {
        device.shared().counters().stale_tokens.add(done.stale.into());
    }
    done
}

/// Completes a request of any form. Returns how many were completed: 0 if it was cancelled, or there is none with this tag.
fn complete_one<S: Storage>(
    devices: &mut Devices,
    slots: &mut [Option<Slot<S::Volume>>],
    in_flight: &mut InFlight,
    (tag, status): (Tag, Status),
    watcher: Option<&dyn DiskWatcher>,
) -> u32 {
    let Some(Removed { slot, operation, before, entry }) = in_flight.remove(tag) else { return 0 };
    let slot = usize::from(slot);
    note::<S>(slots, slot, (operation, before), status);
    let Some(state) = slots.get_mut(slot).and_then(Option::as_mut) else { return 0 };
    state.in_flight = state.in_flight.saturating_sub(1);
    let (Some(device), Some(entry)) = (devices.get_mut(slot), entry) else { return 0 };
    complete(device, state.disk.counters, entry, status, watcher.map(|watcher| (watcher, tag)));
    1
}

/// Notes what the end of a request means for flushes.
#[inline(always)]
fn note<S: Storage>(
    slots: &mut [Option<Slot<S::Volume>>],
    slot: usize,
    (operation, before): (Operation, Before),
    status: Status,
) {
    let Some(state) = slots.get_mut(slot).and_then(Option::as_mut) else { return };
    match (operation, status) {
        (Operation::Write { durable: false } | Operation::WriteZeroes { durable: false, .. }, Status::Ok) => {
            state.flushes.wrote();
        }
        (Operation::Flush, Status::Ok) => state.flushes.flushed(before),
        (Operation::Flush, Status::Failed) | (_, Status::FlushFailed) => {
            let volume = state.disk.volume;
            state.flushes.failed(before);
            // What other devices wrote to the same disk may be lost too.
            let others = slots.iter_mut().flatten().filter(|other| S::are_flushed_together(volume, other.disk.volume));
            others.for_each(|other| other.flushes.other_failed());
            for state in slots.iter().flatten().filter(|state| state.flushes.is_lost()) {
                state.disk.record.inspect(|record| record.lose());
            }
        }
        _ => {}
    }
}

/// Writes the status byte and completes a request. Returns false if a reset or a fault came first.
#[inline]
fn answer(device: &mut Device, token: Token, at: u64, status: u8, used: u32) -> bool {
    if device.running() && device.memory().write_u8(at, status).is_err() {
        // The buffer was checked when the request was taken, so this should not happen.
        device.fail(Fault::Buffer);
    }
    device.complete(token, used)
}

/// Completes and counts a request of the storage, and shows that to whoever watches, with the request's tag.
#[inline(always)]
fn complete(
    device: &mut Device,
    counters: &BlockCounters,
    entry: Entry,
    status: Status,
    watched: Option<(&dyn DiskWatcher, Tag)>,
) {
    let Entry { token, slot, operation, bytes, status: at } = entry;
    let queue = token.queue();
    let (value, used) = outcome::answer(operation, bytes, status);
    if answer(device, token, at, value, used) {
        outcome::count(counters, operation, status, bytes);
        if let Some((watcher, Tag(number))) = watched {
            let step = Step::Completed { status: value, bytes };
            watcher.request(&Seen { slot: slot.into(), queue, number, step });
        }
    }
}

impl<S: Storage> Backend for Block<S> {
    type Config = Disk<S::Volume>;

    fn attached(&mut self, slot: usize, _: &DeviceConfig, disk: Self::Config) {
        let geometry = self.storage.geometry(disk.volume);
        if let Some(place) = self.slots.get_mut(slot) {
            let flushes = disk.record.map(Record::flushes).unwrap_or_default();
            *place = Some(Slot { disk, geometry, in_flight: 0, flushes });
        }
    }

    /// Shows the present size to a driver that looks before it is done with its set-up, as firmware does.
    fn attached_anew(&mut self, slot: usize, device: &mut Device) {
        let Some(state) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return };
        state.geometry.blocks = self.storage.blocks(state.disk.volume);
        let sectors = sectors(&state.geometry).to_le_bytes();
        if device.shared().config_bytes(CAPACITY) != sectors {
            device.shared().change_config(CAPACITY, &sectors);
        }
    }

    fn detached(&mut self, slot: usize) {
        if let Some(Slot { disk: Disk { record: Some(record), .. }, flushes, .. }) =
            self.slots.get_mut(slot).and_then(Option::take)
        {
            record.keep(&flushes);
        }
    }

    fn activated(&mut self, slot: usize, device: &mut Device, resumed: bool) {
        // The size may have changed while nobody had the volume.
        self.update_size(device, slot);
        // A driver that begins anew knows that writes may be lost. With a record, it is not for the driver to say.
        if let Some(state) = self.slots.get_mut(slot).and_then(Option::as_mut)
            && !resumed
            && state.disk.record.is_none()
        {
            state.flushes = Flushes::default();
        }
    }

    fn service_mode(&self, _: usize, _: u16) -> ServiceMode {
        ServiceMode::AsConfigured
    }

    fn serve(&mut self, devices: &mut Devices, slot: usize, queue: u16, portion: &Portion, now: u64) -> Served {
        let mut all = Served::default();
        let Some(device) = devices.get_mut(slot) else { return all };
        while all.requests < portion.requests && all.bytes < portion.bytes {
            match self.serve_usual(device, slot, queue, portion, now, &mut all) {
                Stopped::GoOn => {}
                Stopped::Empty => break,
                Stopped::Busy => {
                    self.wait(device, slot, queue);
                    break;
                }
                Stopped::Unusual => {
                    let Some(Taken::Served(one)) = self.take(device, slot, queue, now) else { break };
                    all.add(one);
                }
            }
        }
        if all.requests != 0 {
            self.storage.notify();
        }
        all
    }

    #[inline]
    fn poll(&mut self, devices: &mut Devices, now: u64) -> u32 {
        if self.in_flight.is_empty() && !self.storage.wants_poll() { 0 } else { self.reap(devices, now) }
    }

    /// Nothing to do: [`Backend::poll`] completes what has ended later in the same turn.
    fn reclaim(&mut self, _: &mut Devices) {}

    fn cancel(&mut self, _: &mut Devices, slot: usize) -> bool {
        let Some(state) = self.slots.get_mut(slot).and_then(Option::as_mut).filter(|state| state.in_flight != 0) else {
            return true;
        };
        let storage = &mut self.storage;
        let (removed, left) = self.in_flight.cancel(slot, |tag| storage.cancel(state.disk.volume, tag));
        state.in_flight = state.in_flight.saturating_sub(removed);
        !left
    }
}
