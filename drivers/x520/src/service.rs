//! The device in operation: its link, its counters, and whether it hangs.

use intel_nic::filter::Tables as _;
use intel_nic::life;
use intel_nic::receive::ReceiveQueue;
use intel_nic::state::Failure;

use crate::bits::{Esdp, Links};
use crate::device::X520;
use crate::filter::{Filter, MAX_ADDRESSES};
use crate::nic::Link;
use crate::registers::{ESDP, LINKS, Registers};
use crate::statistics;

impl<R: Registers, T> X520<R, T> {
    /// Changes the receive filter, now and after each reset.
    pub fn set_filter(&mut self, filter: Filter) {
        self.filter = filter.preallocated(MAX_ADDRESSES);
        if self.life.is_running() {
            self.tables().program(&self.filter);
        }
    }

    /// Watches a running device: link, statistics, hangs.
    pub(crate) fn watch(&mut self, now: u64) {
        let links = self.bus.read(&LINKS, 0);
        if links == u32::MAX {
            self.life.fail(Failure::Gone);
            return;
        }
        let links = Links::from_bits(links);
        let up = links.up() && self.link_setup.is_configured();
        // The signal may be the other port's if there is no module.
        let up = up && (!self.link_setup.has_crosstalk() || Esdp::from_bits(self.bus.read(&ESDP, 0)).present());
        self.life.link = match links.speed() {
            _ if !up => Link::Down,
            3 => Link::Up(10_000),
            2 => Link::Up(1_000),
            _ => Link::Up(100),
        };
        let mut hung = now >= self.statistics_at && self.read_statistics(now);
        for (queue, progress) in self.transmit.iter().zip(&mut self.progress) {
            hung |= progress.hangs(queue, self.life.link, now, self.config.hang_time);
        }
        if hung {
            life::recover(self, now);
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
            hung |= queue.hangs(&self.bus, skipped);
        }
        hung
    }
}
