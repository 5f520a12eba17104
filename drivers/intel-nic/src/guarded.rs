//! Controls when a device may master the bus.
//!
//! ```text
//!   Resetting ── reset, no DMA ──▶ bus mastering on ──▶ Running
//!       ▲                                                  │ the driver gives up
//!       └── after a while ◀── Waiting ◀── bus mastering off ◀┘
//! ```
//!
//! The device may still be writing to memory for its former driver, so it gets bus mastering only after a reset. A
//! device that fails loses bus mastering before the driver gives tokens back, because it may still be reading the
//! frames.

#![allow(unsafe_code, reason = "says when a device can do no DMA")]

use crate::state::{Failure, Status};
use nic::{
    Filtered, HEADER_ROOM, Limits, Link, Nic, Outcome, Outgoing, Port, ReceiveFilter, Received, Refused, Single,
    Statistics,
};

/// The bus master enable bit of a function's command register (PCI 3.0, 6.2.2).
///
/// # Safety
/// Once `set(false)` has returned true, and until `set(true)` is called, the function reads and writes no memory.
pub unsafe trait BusMaster {
    /// Sets or clears the bit. Returns false if that is not possible now; then nothing was changed.
    fn set(&mut self, on: bool) -> bool;
}

/// A driver whose device can be stopped, so that its bus mastering can be controlled.
pub trait Device: Nic {
    /// Resets the device and keeps it in that state. Once [`Device::status`] says stopped, it does no DMA.
    fn stop(&mut self, now: u64);

    /// Resets the device and brings it up again, also after it was stopped or has failed. Frames in the transmit queues are
    /// dropped. Their tokens come back by [`Nic::reclaim`] as soon as the reset has ended all DMA.
    fn restart(&mut self, now: u64);

    /// How the device is.
    fn status(&self) -> Status;

    /// Whether everything was done for the link that can be done now. The link may be down.
    fn is_settled(&self) -> bool;

    /// The owner has ended the DMA of a device that failed. Its tokens can be given back.
    ///
    /// # Safety
    /// The device cannot DMA: its bus mastering was cleared, or it is off the bus.
    unsafe fn assume_no_dma(&mut self);
}

/// Microseconds until a device that failed is tried again.
const PAUSE: u64 = 10_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It is being reset. Bus mastering is off.
    Resetting,
    /// It runs or comes up. Bus mastering is on.
    Running,
    /// It has failed. Bus mastering is off. The driver tries it again at that time.
    Waiting(u64),
}

/// A device that masters the bus only while its driver controls it.
pub struct Guarded<N, B> {
    nic: N,
    bus_master: B,
    phase: Phase,
    failure: Option<Failure>,
}

impl<N: Device, B: BusMaster> Guarded<N, B> {
    /// Takes a device that was not serviced yet, and switches its bus mastering off. `None`: that was not possible.
    pub fn new(mut nic: N, mut bus_master: B, now: u64) -> Option<Self> {
        if !bus_master.set(false) {
            return None;
        }
        nic.stop(now);
        Some(Self { nic, bus_master, phase: Phase::Resetting, failure: None })
    }

    /// Whether the device can receive and send frames. The link may be down.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running && self.nic.status() == Status::Running
    }

    /// Whether everything was done for the link that can be done now. The link may be down.
    pub fn is_settled(&self) -> bool {
        self.nic.is_settled()
    }

    /// The reason of the last failure.
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }
}

impl<N: Device, B: BusMaster> Nic for Guarded<N, B> {
    type Token = N::Token;

    fn address(&self) -> [u8; 6] {
        self.nic.address()
    }

    fn limits(&self) -> Limits {
        self.nic.limits()
    }

    fn link(&self) -> Link {
        self.nic.link()
    }

    fn statistics(&self) -> Statistics {
        self.nic.statistics()
    }

    fn service(&mut self, now: u64) -> bool {
        let before = self.nic.link();
        self.nic.service(now);
        match (self.nic.status(), self.phase) {
            (Status::Stopped, Phase::Resetting) if self.bus_master.set(true) => {
                self.phase = Phase::Running;
                self.nic.restart(now);
            }
            (Status::Failed(failure), _) if self.bus_master.set(false) => {
                self.failure = Some(failure);
                // SAFETY: its bus mastering was just switched off.
                unsafe { self.nic.assume_no_dma() };
                self.phase = Phase::Waiting(now.saturating_add(PAUSE));
            }
            (_, Phase::Waiting(until)) if now >= until => {
                self.phase = Phase::Resetting;
                self.nic.stop(now);
            }
            _ => {}
        }
        self.nic.link() != before
    }

    fn port(&self) -> Option<&dyn Port> {
        self.nic.port()
    }

    fn blink(&mut self, until: u64) {
        self.nic.blink(until);
    }

    fn set_receive_filter(&mut self, wanted: &ReceiveFilter<'_>) -> Filtered {
        self.nic.set_receive_filter(wanted)
    }

    #[inline(always)]
    fn receive(&mut self, queue: u16, budget: u32, sink: impl FnMut(Received<'_>)) -> u32 {
        self.nic.receive(queue, budget, sink)
    }

    #[inline(always)]
    fn transmit(&mut self, queue: u16, frame: &Outgoing<'_>, token: N::Token) -> Result<(), (Refused, N::Token)> {
        self.nic.transmit(queue, frame, token)
    }

    #[inline(always)]
    fn transmit_all<'a, I>(
        &mut self,
        queue: u16,
        items: &'a [I],
        write: impl FnMut(&'a I, &mut [u8; HEADER_ROOM]) -> Option<Single<N::Token>>,
    ) -> (usize, Option<(Refused, N::Token)>) {
        self.nic.transmit_all(queue, items, write)
    }

    #[inline(always)]
    fn flush(&mut self, queue: u16) {
        self.nic.flush(queue);
    }

    #[inline(always)]
    fn reclaim(&mut self, queue: u16, done: impl FnMut(N::Token, Outcome)) -> u32 {
        self.nic.reclaim(queue, done)
    }
}
