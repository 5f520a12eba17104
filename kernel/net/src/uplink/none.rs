//! The NIC type of an engine without uplinks.

use nic::{Link, Nic, Outcome, Outgoing, Received, Refused, Statistics};

use crate::uplink::held::Held;

/// A NIC that does not exist: the type has no values.
#[derive(Debug)]
pub enum NoNic {}

impl Nic for NoNic {
    type Token = Held;

    fn address(&self) -> [u8; 6] {
        match *self {}
    }
    fn limits(&self) -> nic::Limits {
        match *self {}
    }
    fn link(&self) -> Link {
        match *self {}
    }
    fn statistics(&self) -> Statistics {
        match *self {}
    }
    fn service(&mut self, _: u64) -> bool {
        match *self {}
    }
    fn receive(&mut self, _: u16, _: u32, _: impl FnMut(Received<'_>)) -> u32 {
        match *self {}
    }
    fn transmit(&mut self, _: u16, _: &Outgoing<'_>, _: Held) -> Result<(), (Refused, Held)> {
        match *self {}
    }
    fn flush(&mut self, _: u16) {
        match *self {}
    }
    fn reclaim(&mut self, _: u16, _: impl FnMut(Held, Outcome)) -> u32 {
        match *self {}
    }
}
