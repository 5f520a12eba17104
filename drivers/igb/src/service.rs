//! The device in operation: its link, its counters, and whether it hangs.

use intel_nic::life;
use intel_nic::nic::Link;
use intel_nic::state::Failure;

use crate::bits::Status;
use crate::device::Igb;
use crate::registers::{Registers, STATUS};
use crate::statistics;

impl<R: Registers, T> Igb<R, T> {
    /// Watches a running device: link, statistics, hangs.
    pub(crate) fn watch(&mut self, now: u64) {
        let status = self.bus.read(&STATUS, 0);
        if status == u32::MAX {
            self.life.fail(Failure::Gone);
            return;
        }
        let status = Status::from_bits(status);
        self.life.link = match status.speed() {
            _ if !status.link_up() => Link::Down,
            0 => Link::Up(10),
            1 => Link::Up(100),
            _ => Link::Up(1_000),
        };
        let mut hung = now >= self.statistics_at && self.read_statistics(now);
        hung |= self.progress.hangs(&self.transmit, self.life.link, now, self.config.hang_time);
        if hung {
            life::recover(self, now);
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
        hung |= self.receive.hangs(&self.bus, &mut self.skipped);
        hung
    }
}
