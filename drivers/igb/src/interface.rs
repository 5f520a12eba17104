//! The device behind the [`Nic`] trait.

use intel_nic::family::Family as _;
use intel_nic::life::{self, Steps as _};
use intel_nic::nic::{
    Filtered, HEADER_ROOM, Limits, Link, Nic, Outcome, Outgoing, Port, ReceiveFilter, Received, Refused, Single,
    Statistics,
};
use intel_nic::{MAX_HEADER, guarded};

use crate::device::{Gigabit, Igb, QUEUE};
use crate::filter_tables::{Tables, change};
use crate::registers::{LEDCTL, Registers};

impl<R: Registers, T> Nic for Igb<R, T> {
    type Token = T;

    fn address(&self) -> [u8; 6] {
        self.address
    }

    fn limits(&self) -> Limits {
        Limits {
            receive_queues: 1,
            transmit_queues: 1,
            max_frame: self.config.max_frame,
            max_header: MAX_HEADER,
            max_segments: Gigabit::MAX_SEGMENTS,
            offloads: true,
        }
    }

    fn link(&self) -> Link {
        self.life.link
    }

    fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn service(&mut self, now: u64) -> bool {
        let before = self.life.link;
        life::step(self, now);
        if self.life.is_running() {
            self.watch(now);
        }
        if self.life.is_running() {
            self.lights.poll(&self.bus, &LEDCTL, now);
            self.phy.poll(&self.bus, now);
        }
        self.open_or_close();
        self.life.link != before
    }

    fn port(&self) -> Option<&dyn Port> {
        Some(&self.phy)
    }

    fn blink(&mut self, until: u64) {
        self.lights.blink(until);
    }

    fn set_receive_filter(&mut self, wanted: &ReceiveFilter<'_>) -> Filtered {
        let running = self.life.is_running();
        let tables = Tables { bus: &self.bus, kind: self.kind, enabled: running };
        change(&tables, running, &mut self.filter, wanted)
    }

    #[inline(always)]
    fn receive(&mut self, queue: u16, budget: u32, sink: impl FnMut(Received<'_>)) -> u32 {
        if !self.life.is_running() || queue != QUEUE {
            return 0;
        }
        self.receive.poll(&self.bus, budget, sink)
    }

    fn transmit(&mut self, queue: u16, frame: &Outgoing<'_>, token: T) -> Result<(), (Refused, T)> {
        if queue != QUEUE {
            return Err((Refused::Queue, token));
        }
        self.transmit.add(frame, token, self.config.max_frame)
    }

    #[inline(always)]
    fn transmit_all<'a, I>(
        &mut self,
        queue: u16,
        items: &'a [I],
        write: impl FnMut(&'a I, &mut [u8; HEADER_ROOM]) -> Option<Single<T>>,
    ) -> (usize, Option<(Refused, T)>) {
        if queue != QUEUE {
            return (0, None);
        }
        self.transmit.add_all(items, self.config.max_frame, write)
    }

    #[inline(always)]
    fn flush(&mut self, queue: u16) {
        if queue == QUEUE {
            self.transmit.flush(&self.bus);
        }
    }

    #[inline(always)]
    fn reclaim(&mut self, queue: u16, done: impl FnMut(T, Outcome)) -> u32 {
        if queue != QUEUE {
            return 0;
        }
        if !self.transmit.draining {
            return self.transmit.reclaim(done);
        }
        let count = self.transmit.drain(done);
        self.transmit.open_or_close(&self.life);
        count
    }
}

/// A device that masters the bus only while its driver controls it.
pub type Guarded<R, T, B> = guarded::Guarded<Igb<R, T>, B>;
