//! The contract between the engine's core, which knows rings, work and completions, and a back-end, which knows what
//! the bytes mean.
//!
//! A back-end takes requests with [`Device::pop`] and holds a [`Token`](crate::queue::Token) for each. It completes
//! them when it likes: at once, in another turn, in any order. When a device is reset or detached, the engine calls
//! [`Backend::cancel`] each turn until the back-end holds no token of that port; only then does the driver see its
//! reset done and get its memory back. A token that is completed all the same is stale: that is counted, and touches
//! nothing.

use alloc::boxed::Box;

use crate::device::Device;
use crate::ports::{Members, PortSet};
use crate::schedule::{Portion, Served};
use crate::shared::DeviceConfig;

pub use crate::ports::MAX_PORTS;

/// A table of its own on the heap, made there and not on a stack.
pub(crate) fn table<T, const N: usize>(entry: impl FnMut() -> T) -> Box<[T; N]> {
    let entries: Box<[T]> = core::iter::repeat_with(entry).take(N).collect();
    match entries.try_into() {
        Ok(table) => table,
        Err(_) => unreachable!("as many as were asked for"),
    }
}

/// The devices of an engine, by port.
pub struct Devices {
    /// Ports that have a device.
    attached: PortSet,
    /// Ports whose device may have something to tell its driver.
    touched: PortSet,
    ports: Box<[Option<Device>; MAX_PORTS]>,
}

impl Default for Devices {
    fn default() -> Self {
        Self::new()
    }
}

impl Devices {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self { attached: PortSet::NONE, touched: PortSet::NONE, ports: table(|| None) }
    }

    /// The device at a port.
    #[must_use]
    #[inline]
    pub fn get(&self, port: usize) -> Option<&Device> {
        self.ports.get(port)?.as_ref()
    }

    /// The device at a port.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, port: usize) -> Option<&mut Device> {
        let device = self.ports.get_mut(port)?.as_mut()?;
        self.touched.insert(port);
        Some(device)
    }

    /// The device at a port, to end its turn.
    pub(crate) fn get_untouched(&mut self, port: usize) -> Option<&mut Device> {
        self.ports.get_mut(port)?.as_mut()
    }

    /// Two different devices, to move something from `from` to `to`.
    #[must_use]
    #[inline]
    pub fn pair(&mut self, from: usize, to: usize) -> Option<(&mut Device, &mut Device)> {
        let [a, b] = self.ports.get_disjoint_mut([from, to]).ok()?;
        let devices = (a.as_mut()?, b.as_mut()?);
        self.touched.insert(from);
        self.touched.insert(to);
        Some(devices)
    }

    /// The device at a port, and all the others.
    #[must_use]
    #[inline(always)]
    pub fn split(&mut self, port: usize) -> Option<(&mut Device, Others<'_>)> {
        if port >= MAX_PORTS {
            return None;
        }
        let (before, rest) = self.ports.split_at_mut(port);
        let (this, after) = rest.split_first_mut()?;
        self.touched.insert(port);
        Some((this.as_mut()?, Others { before, after, touched: &mut self.touched }))
    }

    /// Ports that have a device. The devices may be used while going through it.
    pub fn ports(&self) -> Members {
        self.attached.into_iter()
    }

    /// Ports whose devices were handed out for changing since [`Devices::take_touched`].
    #[inline]
    pub(crate) fn touched(&self) -> PortSet {
        self.touched
    }

    /// The same, of which there are none then.
    pub(crate) fn take_touched(&mut self) -> Members {
        core::mem::take(&mut self.touched).into_iter()
    }

    /// Puts a device at a free port.
    pub(crate) fn attach(&mut self, port: usize, mut device: Device) {
        if port >= MAX_PORTS {
            return;
        }
        device.kin_mut().insert(port);
        for (other, slot) in self.ports.iter_mut().enumerate() {
            if let Some(there) = slot.as_mut().filter(|there| there.memory().shares_with(device.memory())) {
                there.kin_mut().insert(port);
                device.kin_mut().insert(other);
            }
        }
        self.ports[port] = Some(device);
        self.attached.insert(port);
    }

    /// Takes the device away from a port.
    pub(crate) fn detach(&mut self, port: usize) -> Option<Device> {
        let device = self.ports.get_mut(port)?.take()?;
        self.attached.remove(port);
        for there in self.ports.iter_mut().flatten() {
            there.kin_mut().remove(port);
        }
        Some(device)
    }
}

/// All devices but one.
pub struct Others<'d> {
    before: &'d mut [Option<Device>],
    after: &'d mut [Option<Device>],
    touched: &'d mut PortSet,
}

impl Others<'_> {
    /// The device at a port, if it is not that one.
    #[inline(always)]
    pub fn get_mut(&mut self, port: usize) -> Option<&mut Device> {
        let device = match port.checked_sub(self.before.len()) {
            None => self.before.get_mut(port),
            Some(behind) => self.after.get_mut(behind.checked_sub(1)?),
        }?;
        self.touched.insert(port);
        device.as_mut()
    }
}

/// Numbers of the bits that are set in a word, in ascending order: of queues, of MSI-X entries.
#[derive(Clone, Copy, Debug)]
pub struct Ones(pub(crate) u32);

impl Iterator for Ones {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(bit as usize)
    }
}

/// How a queue is attended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attends {
    /// Not at all: it holds buffers that wait for something to put in them.
    Never,
    /// Its requests are work, and the device's configuration says how the engine learns of them.
    AsConfigured,
    /// Its requests are work, and so rare that the driver always notifies.
    Notified,
}

/// What gives requests their meaning. One back-end serves all devices of an engine; one of several kinds of devices
/// would hand each call on by port.
pub trait Backend {
    /// A device has been attached.
    fn attached(&mut self, port: usize, device: &DeviceConfig);

    /// A device is about to be detached; the back-end holds no token of it any more.
    fn detached(&mut self, port: usize);

    /// The device has been activated, and works from now on. `resumed`: it goes on from a saved state.
    fn activated(&mut self, port: usize, device: &mut Device, resumed: bool);

    /// How a queue of an activated device is attended to.
    fn attends(&self, port: usize, queue: u16) -> Attends;

    /// Takes up to a portion of requests from a queue that it polls. What it took; less than the portion only if there
    /// was no more.
    fn serve(&mut self, devices: &mut Devices, port: usize, queue: u16, portion: &Portion, now: u64) -> Served;

    /// Called once a turn: completes what has become ready since. How many requests it completed.
    fn poll(&mut self, devices: &mut Devices, now: u64) -> u32;

    /// Completes the requests that have become ready since. Asked for while a queue waits for its requests to be back.
    fn reclaim(&mut self, devices: &mut Devices);

    /// Lets go of every token of a port, by completing it where that takes no time and by dropping it otherwise. False:
    /// something (a DMA under way) still needs the guest's buffers; the engine asks again in the next turn.
    fn cancel(&mut self, devices: &mut Devices, port: usize) -> bool;
}
