//! The device in operation: restart, stop, and the watch over a running device.

#![allow(unsafe_code, reason = "who says that the device can do no DMA has to be right")]

use intel_nic::filter::Tables as _;
use intel_nic::receive::ReceiveQueue;
use intel_nic::state::{Failure, State};

use crate::bits::{Esdp, Links};
use crate::device::X520;
use crate::filter::{Filter, MAX_ADDRESSES};
use crate::nic::Link;
use crate::registers::{ESDP, LINKS, RDH, RDT, Registers};
use crate::statistics;

impl<R: Registers, T> X520<R, T> {
    /// Changes the receive filter, now and after each reset.
    pub fn set_filter(&mut self, filter: Filter) {
        self.filter = filter.preallocated(MAX_ADDRESSES);
        if self.state == State::Running {
            self.tables().program(&self.filter);
        }
    }

    /// Resets the device and brings it up again, also after it was stopped or has failed. Frames in the transmit queues are
    /// dropped. Their tokens come back by [`Nic::reclaim`](crate::nic::Nic::reclaim) as soon as the reset has ended all DMA.
    pub fn restart(&mut self, now: u64) {
        self.stopping = false;
        // A reset that is under way must not be disturbed. It has the same effect.
        if !matches!(self.state, State::ResetRequested { .. } | State::Resetting { .. }) {
            self.state = State::Idle;
        }
        self.link = Link::Down;
        self.step(now);
        self.open_or_close();
    }

    /// Resets the device and keeps it in that state. Once [`X520::status`] says stopped, it does no DMA.
    pub fn stop(&mut self, now: u64) {
        self.restart(now);
        self.stopping = true;
    }

    /// The owner has ended the DMA of a device that failed. Its tokens can be given back.
    ///
    /// # Safety
    /// The device cannot DMA: its bus mastering was cleared, or it is off the bus.
    pub unsafe fn assume_no_dma(&mut self) {
        self.state = State::Stopped;
        self.take_back();
        self.open_or_close();
    }

    fn recover(&mut self, now: u64) {
        self.statistics.recoveries = self.statistics.recoveries.saturating_add(1);
        self.skipped.fill(None);
        self.restart(now);
    }

    /// Watches a running device: link, statistics, hangs.
    pub(crate) fn watch(&mut self, now: u64) {
        let links = self.bus.read(&LINKS, 0);
        if links == u32::MAX {
            self.state = State::Failed(Failure::Gone);
            self.link = Link::Down;
            return;
        }
        let links = Links::from_bits(links);
        let up = links.up() && self.link_setup.is_configured();
        // The signal may be the other port's if there is no module.
        let up = up && (!self.link_setup.has_crosstalk() || Esdp::from_bits(self.bus.read(&ESDP, 0)).present());
        self.link = match links.speed() {
            _ if !up => Link::Down,
            3 => Link::Up(10_000),
            2 => Link::Up(1_000),
            _ => Link::Up(100),
        };
        let mut hung = now >= self.statistics_at && self.read_statistics(now);
        for ((queue, position), moved_at) in self.transmit.iter().zip(&mut self.position).zip(&mut self.moved_at) {
            // Without a link the device sends nothing and would keep its frames forever.
            hung |= self.link == Link::Down && queue.is_busy() && !queue.draining;
            if !queue.is_waiting() || queue.position() != *position || queue.draining {
                (*position, *moved_at) = (queue.position(), now);
            }
            hung |= now.saturating_sub(*moved_at) > self.config.hang_time;
        }
        if hung {
            self.recover(now);
        }
    }

    /// Reads the counters. Returns whether receive is hung:
    /// - frames were missed, or a queue dropped frames for want of a buffer, while that queue received none;
    /// - the device passed a descriptor without write-back;
    /// - the tail register does not have the value that was written.
    fn read_statistics(&mut self, now: u64) -> bool {
        let before = self.statistics;
        let drops = statistics::read(&self.bus, &mut self.statistics, &mut self.seen);
        self.statistics.malformed = self.receive.iter().map(|q| q.malformed).sum();
        self.statistics_at = now.saturating_add(statistics::PERIOD);
        // Several queues may share a counter. All of them have to be idle.
        let silent = |counter: u16| {
            let sharing = (0..).zip(&self.receive).filter(|(n, _)| statistics::counter(*n) == counter);
            sharing.fold(None, |all, (_, queue)| Some(all.unwrap_or(true) && queue.is_idle())) == Some(true)
        };
        let mut hung = (0..).zip(drops).any(|(counter, drops)| drops > 0 && silent(counter));
        hung |= self.statistics.missed > before.missed && self.receive.iter().all(ReceiveQueue::is_idle);
        for (queue, skipped) in self.receive.iter_mut().zip(&mut self.skipped) {
            queue.delivered = false;
            let n = queue.number();
            // If seen twice, no write-back is on its way: the queue would wait for it forever.
            let now = queue.awaited().filter(|next| self.bus.read(&RDH, n) != *next);
            hung |= now.is_some() && now == *skipped;
            *skipped = now;
            hung |= self.bus.read(&RDT, n) != queue.tail();
        }
        hung
    }
}
