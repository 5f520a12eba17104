//! The device as its owner sees it: configuration, memory, and the [`Nic`] trait.

#![allow(unsafe_code, reason = "who says that the device can do no DMA has to be right")]

use alloc::vec;
use alloc::vec::Vec;

use crate::bits::Links;
use crate::bring_up::{Failure, State};
use crate::dma::{DESCRIPTOR_BYTES, DmaBuffer, Ring};
use crate::filter::{self, Filter};
use crate::nic::{
    HEADER_ROOM, LeftOut, Limits, Link, Nic, Outcome, Outgoing, Received, Refused, Single, Statistics, Wanted,
};
use crate::offload::MAX_HEADER;
use crate::pools;
use crate::receive::{BUFFER_BYTES, ReceiveQueue};
use crate::registers::{Bus, LINKS, RDH, RDT, Registers};
use crate::rss;
use crate::statistics;
use crate::transmit::{MAX_SEGMENTS, TransmitQueue};

/// What decides by which receive queue a frame comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Steering {
    /// A hash of its addresses and ports: flows are spread over all queues, and each keeps to one (RSS).
    #[default]
    Flows,
    /// Its destination: addresses in [`Filter::addresses`] have queues of their own, the rest comes by queue 0 (VMDq).
    Addresses,
}

/// What to make of the device.
#[derive(Clone, Debug)]
pub struct Config {
    /// Receive queues: 1 to 16 over which flows are spread, 1 to 32 for addresses.
    pub receive_queues: u16,
    /// What decides among them.
    pub steering: Steering,
    /// Transmit queues, 1 to 64.
    pub transmit_queues: u16,
    /// Descriptors and buffers of a receive queue: a power of two, 64 to 4,096.
    pub receive_descriptors: u32,
    /// Descriptors of a transmit queue: a power of two, 64 to 4,096.
    pub transmit_descriptors: u32,
    /// Bytes of the longest frame, without FCS and VLAN tag: 1,514 to 15,500.
    pub max_frame: u32,
    /// VLAN tags are taken out of received frames.
    pub strip_vlan: bool,
    /// Key of the hash that spreads flows. Should be unpredictable to whoever sends.
    pub rss_key: [u8; 40],
    /// Microseconds without progress after which a queue counts as hung.
    pub hang_time: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            receive_queues: 1,
            steering: Steering::Flows,
            transmit_queues: 1,
            receive_descriptors: 512,
            transmit_descriptors: 512,
            max_frame: 1514,
            strip_vlan: false,
            // Any key spreads; this one has no long run of equal bits.
            rss_key: core::array::from_fn(|i| (i as u8).wrapping_mul(0x9d) ^ 0x6b),
            hang_time: 1_000_000,
        }
    }
}

/// What is wrong with a configuration or the memory given with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// Receive or transmit queues: how many were asked for, and how many there can be.
    Queues(u16, u16),
    /// Not a power of two from 64 to 4,096.
    Descriptors(u32),
    /// Not from 1,514 to 15,500.
    MaxFrame(u32),
    /// Bytes given, and bytes needed.
    Memory(usize, usize),
    /// The memory is not aligned to 128 bytes.
    Alignment(u64),
}

const MAX_TRANSMIT_QUEUES: u16 = 64;

impl Config {
    /// Bytes of DMA memory that [`X520::new`] needs, aligned to 128.
    #[must_use]
    pub fn memory(&self) -> usize {
        let receive = self.receive_descriptors as usize * (DESCRIPTOR_BYTES + BUFFER_BYTES);
        let transmit = self.transmit_descriptors as usize * (DESCRIPTOR_BYTES + MAX_HEADER);
        usize::from(self.receive_queues) * receive + usize::from(self.transmit_queues) * transmit
    }

    fn check(&self) -> Result<(), ConfigError> {
        let most = match self.steering {
            Steering::Flows => rss::MAX_QUEUES,
            Steering::Addresses => pools::MAX_QUEUES,
        };
        for (queues, most) in [(self.receive_queues, most), (self.transmit_queues, MAX_TRANSMIT_QUEUES)] {
            if !(1..=most).contains(&queues) {
                return Err(ConfigError::Queues(queues, most));
            }
        }
        for count in [self.receive_descriptors, self.transmit_descriptors] {
            if !count.is_power_of_two() || !(64..=4096).contains(&count) {
                return Err(ConfigError::Descriptors(count));
            }
        }
        if !(1514..=15_500).contains(&self.max_frame) {
            return Err(ConfigError::MaxFrame(self.max_frame));
        }
        Ok(())
    }
}

/// An 82599. `T` names the owner of a frame that is being sent.
pub struct X520<R, T> {
    pub(crate) bus: Bus<R>,
    pub(crate) config: Config,
    pub(crate) filter: Filter,
    pub(crate) state: State,
    pub(crate) stopping: bool,
    pub(crate) address: [u8; 6],
    pub(crate) receive: Vec<ReceiveQueue>,
    pub(crate) transmit: Vec<TransmitQueue<T>>,
    /// When each transmit queue last moved, and where it was.
    pub(crate) moved_at: Vec<u64>,
    position: Vec<u32>,
    link: Link,
    statistics: Statistics,
    /// Frames that came, whatever they were.
    seen: u64,
    pub(crate) statistics_at: u64,
    /// For each receive queue, the descriptor that the device had passed without writing it back when statistics were
    /// last read.
    skipped: Vec<Option<u32>>,
}

impl<R: Registers, T> X520<R, T> {
    /// Takes the device. Nothing happens before [`Nic::service`].
    ///
    /// # Errors
    /// The configuration is out of range, or does not fit the memory.
    pub fn new(registers: R, mut memory: DmaBuffer, config: Config, filter: Filter) -> Result<Self, ConfigError> {
        config.check()?;
        let (given, needed, at) = (memory.len(), config.memory(), memory.bus());
        let mut take = |len: usize| memory.take(len).ok_or(ConfigError::Memory(given, needed));
        let (mut receive, mut transmit) = (Vec::new(), Vec::new());
        // Rings before all else: what is taken before them is a multiple of their alignment.
        for index in 0..config.receive_queues {
            let count = config.receive_descriptors as usize;
            let (descriptors, buffers) = (take(count * DESCRIPTOR_BYTES)?, take(count * BUFFER_BYTES)?);
            let ring = Ring::new(descriptors, buffers).ok_or(ConfigError::Alignment(at))?;
            let number = match config.steering {
                Steering::Flows => index,
                Steering::Addresses => pools::number(index),
            };
            receive.push(ReceiveQueue::new(number, ring));
        }
        for index in 0..config.transmit_queues {
            let count = config.transmit_descriptors as usize;
            let (descriptors, headers) = (take(count * DESCRIPTOR_BYTES)?, take(count * MAX_HEADER)?);
            let ring = Ring::new(descriptors, headers).ok_or(ConfigError::Alignment(at))?;
            transmit.push(TransmitQueue::new(index, ring));
        }
        Ok(Self {
            bus: Bus(registers),
            filter: filter.roomy(),
            state: State::Idle,
            stopping: false,
            address: [0; 6],
            skipped: vec![None; receive.len()],
            receive,
            moved_at: vec![0; transmit.len()],
            position: vec![0; transmit.len()],
            transmit,
            link: Link::Down,
            statistics: Statistics::default(),
            seen: 0,
            statistics_at: 0,
            config,
        })
    }

    /// Changes what the device lets in, now and after each reset.
    pub fn set_filter(&mut self, filter: Filter) {
        self.filter = filter.roomy();
        if self.state == State::Running {
            filter::program(&self.bus, &self.filter, self.config.steering, self.config.receive_queues);
        }
    }

    /// Resets the device and brings it up again: also after it was stopped or has failed. What is on its way is dropped;
    /// its tokens come back by [`Nic::reclaim`] as soon as the reset has ended all DMA.
    pub fn restart(&mut self, now: u64) {
        self.stopping = false;
        // A reset under way is as good, and must not be disturbed.
        if !matches!(self.state, State::Asked { .. } | State::Resetting { .. }) {
            self.state = State::Idle;
        }
        self.link = Link::Down;
        self.step(now);
        self.open_or_close();
    }

    /// Resets the device and leaves it so. Once [`X520::status`] says stopped, it does no DMA.
    pub fn stop(&mut self, now: u64) {
        self.restart(now);
        self.stopping = true;
    }

    /// A device that has failed was made harmless in another way: what it had can be given back.
    ///
    /// # Safety
    /// The device cannot DMA: its bus mastering was cleared, or it is off the bus.
    pub unsafe fn assume_no_dma(&mut self) {
        self.state = State::Stopped;
        self.take_back();
        self.open_or_close();
    }

    /// Tokens that are out: of frames that were taken and not given back.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.transmit.iter().map(TransmitQueue::outstanding).sum()
    }

    /// The device has ended all DMA: what the transmit queues hold is to be given back.
    pub(crate) fn take_back(&mut self) {
        for queue in &mut self.transmit {
            queue.draining = queue.is_busy();
            if !queue.draining {
                queue.restart();
            }
        }
    }

    /// Tells the transmit queues whether they take frames, so that each frame costs one look.
    fn open_or_close(&mut self) {
        for queue in &mut self.transmit {
            let why = if self.state != State::Running {
                Some(Refused::NotReady)
            } else if self.link == Link::Down {
                Some(Refused::LinkDown)
            } else if queue.draining {
                Some(Refused::Full)
            } else {
                None
            };
            queue.close(why);
        }
    }

    fn recover(&mut self, now: u64) {
        self.statistics.recoveries += 1;
        self.skipped.fill(None);
        self.restart(now);
    }

    /// Looks after a running device.
    fn watch(&mut self, now: u64) {
        let links = self.bus.read(&LINKS, 0);
        if links == u32::MAX {
            self.state = State::Failed(Failure::Gone);
            self.link = Link::Down;
            return;
        }
        let links = Links::from_bits(links);
        self.link = match links.speed() {
            _ if !links.up() => Link::Down,
            3 => Link::Up(10_000),
            2 => Link::Up(1_000),
            _ => Link::Up(100),
        };
        let mut hung = now >= self.statistics_at && self.read_statistics(now);
        for (n, queue) in self.transmit.iter().enumerate() {
            // Without a link the device sends nothing and would hold what it has for good.
            hung |= self.link == Link::Down && queue.is_busy() && !queue.draining;
            if !queue.is_waiting() || queue.position() != self.position[n] || queue.draining {
                (self.position[n], self.moved_at[n]) = (queue.position(), now);
            }
            hung |= now.saturating_sub(self.moved_at[n]) > self.config.hang_time;
        }
        if hung {
            self.recover(now);
        }
    }

    /// Reads the counters. True: receive is hung. Frames were missed, or a queue's were dropped for want of a buffer, while
    /// none came; a descriptor was left out; or the device has not heard of what it was given.
    fn read_statistics(&mut self, now: u64) -> bool {
        let before = self.statistics;
        let drops = statistics::read(&self.bus, &mut self.statistics, &mut self.seen);
        self.statistics.malformed = self.receive.iter().map(|q| q.malformed).sum();
        self.statistics_at = now + statistics::PERIOD;
        // Queues may share a counter: none of them explains what it counted.
        let silent = |counter: u16| {
            let sharing = (0..).zip(&self.receive).filter(|(n, _)| statistics::counter(*n) == counter);
            sharing.fold(None, |all, (_, queue)| Some(all.unwrap_or(true) && queue.is_silent())) == Some(true)
        };
        let mut hung = (0..).zip(drops).any(|(counter, drops)| drops > 0 && silent(counter));
        hung |= self.statistics.missed > before.missed && self.receive.iter().all(ReceiveQueue::is_silent);
        for (queue, skipped) in self.receive.iter_mut().zip(&mut self.skipped) {
            queue.gave = false;
            let n = queue.number();
            // Seen twice it is no write-back on its way: the queue would wait for it for good.
            let now = queue.awaited().filter(|next| self.bus.read(&RDH, n) != *next);
            hung |= now.is_some() && now == *skipped;
            *skipped = now;
            hung |= self.bus.read(&RDT, n) != queue.tail();
        }
        hung
    }
}

impl<R: Registers, T> Nic for X520<R, T> {
    type Token = T;

    fn address(&self) -> [u8; 6] {
        self.address
    }

    fn limits(&self) -> Limits {
        Limits {
            receive_queues: self.config.receive_queues,
            transmit_queues: self.config.transmit_queues,
            max_frame: self.config.max_frame,
            max_header: MAX_HEADER,
            max_segments: MAX_SEGMENTS,
            offloads: true,
        }
    }

    fn link(&self) -> Link {
        self.link
    }

    fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn service(&mut self, now: u64) -> bool {
        let before = self.link;
        self.step(now);
        if self.state == State::Running {
            self.watch(now);
        }
        self.open_or_close();
        self.link != before
    }

    fn let_in(&mut self, wanted: &Wanted<'_>) -> LeftOut {
        let bus = (self.state == State::Running).then_some(&self.bus);
        filter::change(bus, &mut self.filter, wanted, self.config.steering, self.config.receive_queues)
    }

    #[inline(always)]
    fn receive(&mut self, queue: u16, budget: u32, sink: impl FnMut(Received<'_>)) -> u32 {
        if self.state != State::Running {
            return 0;
        }
        let Some(queue) = self.receive.get_mut(usize::from(queue)) else { return 0 };
        queue.poll(&self.bus, budget, sink)
    }

    fn transmit(&mut self, queue: u16, frame: &Outgoing<'_>, token: T) -> Result<(), (Refused, T)> {
        match self.transmit.get_mut(usize::from(queue)) {
            Some(queue) => queue.add(frame, token, self.config.max_frame),
            None => Err((Refused::Queue, token)),
        }
    }

    #[inline(always)]
    fn transmit_all<'a, I>(
        &mut self,
        queue: u16,
        items: &'a [I],
        write: impl FnMut(&'a I, &mut [u8; HEADER_ROOM]) -> Option<Single<T>>,
    ) -> (usize, Option<(Refused, T)>) {
        let Some(queue) = self.transmit.get_mut(usize::from(queue)) else { return (0, None) };
        queue.add_all(items, self.config.max_frame, write)
    }

    #[inline(always)]
    fn flush(&mut self, queue: u16) {
        if let Some(queue) = self.transmit.get_mut(usize::from(queue)) {
            queue.flush(&self.bus);
        }
    }

    #[inline(always)]
    fn reclaim(&mut self, queue: u16, done: impl FnMut(T, Outcome)) -> u32 {
        let Some(queue) = self.transmit.get_mut(usize::from(queue)) else { return 0 };
        if !queue.draining {
            return queue.reclaim(done);
        }
        let count = queue.drain(done);
        self.open_or_close();
        count
    }
}
