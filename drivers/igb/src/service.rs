//! The device in operation: restart, stop, and the watch over a running device.

#![allow(unsafe_code, reason = "who says that the device can do no DMA has to be right")]

use intel_nic::nic::Link;
use intel_nic::state::{Failure, State};

use crate::bits::Status;
use crate::device::{Igb, QUEUE};
use crate::registers::{RDH, RDT, Registers, STATUS};
use crate::statistics;

impl<R: Registers, T> Igb<R, T> {
    /// Resets the device and brings it up again, also after it was stopped or has failed. Frames in the transmit queue are
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

    /// Resets the device and keeps it in that state. Once [`Igb::status`] says stopped, it does no DMA.
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
        self.skipped = None;
        self.restart(now);
    }

    /// Watches a running device: link, statistics, hangs.
    pub(crate) fn watch(&mut self, now: u64) {
        let status = self.bus.read(&STATUS, 0);
        if status == u32::MAX {
            self.state = State::Failed(Failure::Gone);
            self.link = Link::Down;
            return;
        }
        let status = Status::from_bits(status);
        self.link = match status.speed() {
            _ if !status.link_up() => Link::Down,
            0 => Link::Up(10),
            1 => Link::Up(100),
            _ => Link::Up(1_000),
        };
        let mut hung = now >= self.statistics_at && self.read_statistics(now);
        let queue = &self.transmit;
        // Without a link the device sends nothing and would keep its frames forever.
        hung |= self.link == Link::Down && queue.is_busy() && !queue.draining;
        if !queue.is_waiting() || queue.position() != self.position || queue.draining {
            (self.position, self.moved_at) = (queue.position(), now);
        }
        hung |= now.saturating_sub(self.moved_at) > self.config.hang_time;
        if hung {
            self.recover(now);
        }
    }

    /// Reads the counters. Returns whether receive is hung:
    /// - frames were missed, or found no buffer, while the queue received none;
    /// - the device passed a descriptor without write-back;
    /// - the tail register does not have the value that was written.
    fn read_statistics(&mut self, now: u64) -> bool {
        let before = self.statistics;
        let waited = statistics::read(&self.bus, &mut self.statistics, &mut self.seen);
        self.statistics.malformed = self.receive.malformed;
        self.statistics_at = now.saturating_add(statistics::PERIOD);
        let mut hung = (waited > 0 || self.statistics.missed > before.missed) && self.receive.is_idle();
        self.receive.delivered = false;
        // If seen twice, no write-back is on its way: the queue would wait for it forever.
        let passed = self.receive.awaited().filter(|next| self.bus.read(&RDH, QUEUE) != *next);
        hung |= passed.is_some() && passed == self.skipped;
        self.skipped = passed;
        hung |= self.bus.read(&RDT, QUEUE) != self.receive.tail();
        hung
    }
}
