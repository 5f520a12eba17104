//! The devices of an engine, by slot.

use alloc::boxed::Box;

use crate::device::Device;
use crate::slots::{MAX_SLOTS, Members, SlotSet};

/// Makes a table on the heap. It is built there, and is never on a stack.
pub fn table<T, const N: usize>(entry: impl FnMut() -> T) -> Box<[T; N]> {
    let entries: Box<[T]> = core::iter::repeat_with(entry).take(N).collect();
    match entries.try_into() {
        Ok(table) => table,
        Err(_) => unreachable!("as many as were asked for"),
    }
}

/// The devices of an engine, by slot.
pub struct Devices {
    /// Slots whose device may have something to publish or to notify.
    touched: SlotSet,
    devices: Box<[Option<Device>; MAX_SLOTS]>,
}

impl Default for Devices {
    fn default() -> Self {
        Self::new()
    }
}

impl Devices {
    /// No devices.
    #[must_use]
    pub fn new() -> Self {
        Self { touched: SlotSet::NONE, devices: table(|| None) }
    }

    /// The device at a slot.
    #[must_use]
    #[inline]
    pub fn get(&self, slot: usize) -> Option<&Device> {
        self.devices.get(slot)?.as_ref()
    }

    /// The device at a slot.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Device> {
        let device = self.devices.get_mut(slot)?.as_mut()?;
        self.touched.insert(slot);
        Some(device)
    }

    /// The device at a slot, without marking it as touched. For the end of a turn.
    pub(crate) fn get_untouched(&mut self, slot: usize) -> Option<&mut Device> {
        self.devices.get_mut(slot)?.as_mut()
    }

    /// Two different devices, to move data from `from` to `to`.
    #[must_use]
    #[inline]
    pub fn pair(&mut self, from: usize, to: usize) -> Option<(&mut Device, &mut Device)> {
        let [a, b] = self.devices.get_disjoint_mut([from, to]).ok()?;
        let devices = (a.as_mut()?, b.as_mut()?);
        self.touched.insert(from);
        self.touched.insert(to);
        Some(devices)
    }

    /// Returns the device at a slot, and all other devices.
    #[must_use]
    #[inline(always)]
    pub fn split(&mut self, slot: usize) -> Option<(&mut Device, Others<'_>)> {
        if slot >= MAX_SLOTS {
            return None;
        }
        let (before, rest) = self.devices.split_at_mut(slot);
        let (this, after) = rest.split_first_mut()?;
        self.touched.insert(slot);
        Some((this.as_mut()?, Others { before, after, touched: &mut self.touched }))
    }

    /// Slots whose device was borrowed mutably since the last [`Devices::take_touched`].
    #[inline]
    pub(crate) fn touched(&self) -> SlotSet {
        self.touched
    }

    /// Takes the touched slots. None is touched afterwards.
    pub(crate) fn take_touched(&mut self) -> Members {
        core::mem::take(&mut self.touched).into_iter()
    }

    /// Puts a device into a free slot.
    pub(crate) fn attach(&mut self, slot: usize, mut device: Device) {
        if slot >= MAX_SLOTS {
            return;
        }
        device.shares_memory_mut().insert(slot);
        for (other, place) in self.devices.iter_mut().enumerate() {
            if let Some(there) = place.as_mut().filter(|there| there.memory().shares_with(device.memory())) {
                there.shares_memory_mut().insert(slot);
                device.shares_memory_mut().insert(other);
            }
        }
        if let Some(place) = self.devices.get_mut(slot) {
            *place = Some(device);
        }
    }

    /// Removes the device of a slot.
    pub(crate) fn detach(&mut self, slot: usize) -> Option<Device> {
        let device = self.devices.get_mut(slot)?.take()?;
        for there in self.devices.iter_mut().flatten() {
            there.shares_memory_mut().remove(slot);
        }
        Some(device)
    }
}

/// All devices but one.
pub struct Others<'d> {
    before: &'d mut [Option<Device>],
    after: &'d mut [Option<Device>],
    touched: &'d mut SlotSet,
}

impl Others<'_> {
    /// The device at a slot, unless it is the excluded one.
    #[inline(always)]
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut Device> {
        let device = match slot.checked_sub(self.before.len()) {
            None => self.before.get_mut(slot),
            Some(behind) => self.after.get_mut(behind.checked_sub(1)?),
        }?;
        self.touched.insert(slot);
        device.as_mut()
    }
}
