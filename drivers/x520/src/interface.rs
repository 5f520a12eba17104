//! The device behind the [`Nic`] trait.

use intel_nic::family::Family as _;
use intel_nic::life::{self, Steps as _};
use intel_nic::state::State;
use intel_nic::{MAX_HEADER, guarded};

use crate::device::{Of82599, X520};
use crate::filter_tables::{Tables, change};
use crate::nic::{
    Filtered, HEADER_ROOM, Limits, Link, Nic, Outcome, Outgoing, Port, ReceiveFilter, Received, Refused, Single,
    Statistics,
};
use crate::registers::{LEDCTL, Registers};

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
            max_segments: Of82599::MAX_SEGMENTS,
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
            self.lights.poll(&self.bus, &LEDCTL, now);
        }
        if matches!(self.life.state, State::Enabling { .. } | State::Running) {
            self.link_setup.poll(&self.bus, now, self.life.link != Link::Down);
        }
        self.open_or_close();
        self.life.link != before
    }

    fn port(&self) -> Option<&dyn Port> {
        Some(&self.link_setup)
    }

    fn blink(&mut self, until: u64) {
        self.lights.blink(until);
    }

    fn set_receive_filter(&mut self, wanted: &ReceiveFilter<'_>) -> Filtered {
        let tables = Tables { bus: &self.bus, steering: self.config.steering, queues: self.config.receive_queues };
        change(&tables, self.life.is_running(), &mut self.filter, wanted)
    }

    #[inline(always)]
    fn receive(&mut self, queue: u16, budget: u32, sink: impl FnMut(Received<'_>)) -> u32 {
        if !self.life.is_running() {
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
        queue.open_or_close(&self.life);
        count
    }
}

/// An 82599 that masters the bus only while its driver controls it.
pub type Guarded<R, T, B> = guarded::Guarded<X520<R, T>, B>;
