//! The NIC of an uplink, with any of the drivers. Only this file lists the drivers.

use super::{igb, virtio, x520};
use crate::pci::Function;
use alloc::{boxed::Box, string::String};
use config::NicNeeds;
use net::uplink::Held;
use nic::{
    Filtered, HEADER_ROOM, Limits, Link, Outcome, Outgoing, Port, ReceiveFilter, Received, Refused, Single, Statistics,
};

/// A NIC.
#[expect(clippy::large_enum_variant, reason = "there are few, and a box would be one more load on the data path")]
pub enum AnyNic {
    /// A virtio network device, if sidecore itself runs in a virtual machine.
    Virtio(Box<virtio::Device>),
    /// Intel's 82576 or I350.
    Igb(Box<igb::Device>),
    /// Intel's 82599.
    X520(x520::Device),
}

/// Returns the name of a function in the report, or `None` if no driver knows it.
pub fn name(function: &Function) -> Option<&'static str> {
    virtio::name(function).or_else(|| x520::name(function)).or_else(|| igb::name(function))
}

/// Sets up a function that has a [`name`].
///
/// # Errors
/// It cannot be used; the text says why.
pub fn open(function: Function, needs: &NicNeeds<'_>) -> Result<AnyNic, String> {
    if virtio::name(&function).is_some() {
        virtio::open(&function).map(|device| AnyNic::Virtio(Box::new(device)))
    } else if igb::name(&function).is_some() {
        igb::open(function, needs).map(|device| AnyNic::Igb(Box::new(device)))
    } else {
        x520::open(function, needs).map(AnyNic::X520)
    }
}

/// Calls a method of the NIC's driver.
macro_rules! of_either {
    ($nic:expr, $device:ident => $call:expr) => {
        match $nic {
            AnyNic::Virtio($device) => $call,
            AnyNic::Igb($device) => $call,
            AnyNic::X520($device) => $call,
        }
    };
}

impl nic::Nic for AnyNic {
    type Token = Held;

    fn address(&self) -> [u8; 6] {
        of_either!(self, nic => nic.address())
    }

    fn limits(&self) -> Limits {
        of_either!(self, nic => nic.limits())
    }

    fn link(&self) -> Link {
        of_either!(self, nic => nic.link())
    }

    fn statistics(&self) -> Statistics {
        of_either!(self, nic => nic.statistics())
    }

    fn service(&mut self, now: u64) -> bool {
        of_either!(self, nic => nic.service(now))
    }

    fn port(&self) -> Option<&dyn Port> {
        of_either!(self, nic => nic.port())
    }

    fn blink(&mut self, until: u64) {
        of_either!(self, nic => nic.blink(until));
    }

    fn set_receive_filter(&mut self, wanted: &ReceiveFilter<'_>) -> Filtered {
        of_either!(self, nic => nic.set_receive_filter(wanted))
    }

    #[inline(always)]
    fn receive(&mut self, queue: u16, budget: u32, sink: impl FnMut(Received<'_>)) -> u32 {
        of_either!(self, nic => nic.receive(queue, budget, sink))
    }

    #[inline(always)]
    fn transmit(&mut self, queue: u16, frame: &Outgoing<'_>, token: Held) -> Result<(), (Refused, Held)> {
        of_either!(self, nic => nic.transmit(queue, frame, token))
    }

    #[inline(always)]
    fn transmit_all<'a, I>(
        &mut self,
        queue: u16,
        items: &'a [I],
        write: impl FnMut(&'a I, &mut [u8; HEADER_ROOM]) -> Option<Single<Held>>,
    ) -> (usize, Option<(Refused, Held)>) {
        of_either!(self, nic => nic.transmit_all(queue, items, write))
    }

    #[inline(always)]
    fn flush(&mut self, queue: u16) {
        of_either!(self, nic => nic.flush(queue));
    }

    #[inline(always)]
    fn reclaim(&mut self, queue: u16, done: impl FnMut(Held, Outcome)) -> u32 {
        of_either!(self, nic => nic.reclaim(queue, done))
    }
}
