//! The life of a device: from whatever state it was left in to one that runs, and back (82599 data sheet 4.2.1.6, 4.6.3,
//! 5.2.5.3.2; 82576 data sheet 4.5, 5.2). The steps never wait. What follows a reset is the driver's.

#![allow(unsafe_code, reason = "says when a device can do no DMA")]

use nic::{Link, Nic};

use crate::family::Family;
use crate::filter::RAH_VALID;
use crate::guarded::Device;
use crate::registers::{Bus, Registers};
use crate::state::{Failure, State, Status};

/// CTRL: DMA has to end.
const MASTER_DISABLE: u32 = 1 << 2;
/// CTRL: the device is in reset.
const RST: u32 = 1 << 26;
/// STATUS: DMA has not ended.
const MASTER_ENABLED: u32 = 1 << 19;
/// CTRL_EXT: a driver has the device, so firmware leaves the link to it.
const DRV_LOAD: u32 = 1 << 28;

/// Longest time in which DMA ends, in microseconds.
const QUIESCE_TIME: u64 = 100_000;
/// Time after reset without register accesses, in microseconds. The data sheets require 1 ms.
const RESET_TIME: u64 = 10_000;
const RESET_LIMIT: u64 = 200_000;
/// Most microseconds until the queues are enabled.
const ENABLE_LIMIT: u64 = 100_000;

/// How far a device is.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// The step of bring-up.
    pub state: State,
    /// It stays in reset.
    pub stopping: bool,
    /// The link, as of the last look.
    pub link: Link,
}

impl Life {
    /// Nothing was done yet.
    pub const NEW: Self = Self { state: State::Idle, stopping: false, link: Link::Down };

    /// Whether frames are received and sent. The link may be down.
    #[inline(always)]
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// The device does not work any more.
    pub fn fail(&mut self, failure: Failure) {
        (self.state, self.link) = (State::Failed(failure), Link::Down);
    }
}

/// What a driver does in its device's life. Everything that depends on the family's registers is here.
pub trait Steps: Nic {
    /// The family of its device.
    type Family: Family;
    /// The way to its registers.
    type Registers: Registers;
    /// Most microseconds that firmware may need to set up the port. Some never says that it has finished.
    const PATIENCE: u64;
    /// Most microseconds that the device itself may need after a reset.
    const LOAD_LIMIT: u64;

    /// The registers.
    fn bus(&self) -> &Bus<Self::Registers>;

    /// How far the device is.
    fn life(&self) -> &Life;

    /// The same, to change it.
    fn life_mut(&mut self) -> &mut Life;

    /// Ends what is under way for the link. `answers`: the device does.
    fn leave_link(&mut self, answers: bool);

    /// Whether everything was done for the link that can be done now.
    fn link_is_settled(&self) -> bool;

    /// Masks all interrupts.
    fn mask_interrupts(&self);

    /// Reads all causes of interrupts, which clears them.
    fn clear_interrupts(&self);

    /// Ends receive and transmit, before DMA has to end.
    fn end_traffic(&self) {}

    /// The step after a reset: waits for EEPROM and firmware, then sets up everything up to the queues' enable bits, and
    /// gives [`enabling`].
    fn load(&mut self, now: u64, patience: u64, deadline: u64) -> State;

    /// The last step: waits for the queues, then lets frames in.
    fn enable(&mut self, now: u64, deadline: u64) -> State;

    /// All DMA has ended: the transmit queues give back the tokens that they hold.
    fn take_back(&mut self);

    /// Opens or closes the transmit queues.
    fn open_or_close(&mut self);

    /// The device hung and is reset: counts that, and forgets what was watched.
    fn count_recovery(&mut self);
}

/// The state in which the queues become enabled.
#[must_use]
pub fn enabling(now: u64) -> State {
    State::Enabling { deadline: now.saturating_add(ENABLE_LIMIT) }
}

/// Takes steps until one has to wait.
pub fn step<D: Steps>(device: &mut D, now: u64) {
    loop {
        let state = device.life().state;
        let next = match state {
            State::Idle => quiesce(device, now),
            State::Quiescing { deadline } => quiescing(device, now, deadline),
            State::ResetRequested { at, again } => asked(state, now, at, again),
            State::Resetting { from, deadline, again } => resetting(device, now, from, deadline, again),
            State::Loading { patience, deadline } => device.load(now, patience, deadline),
            State::Enabling { deadline } => device.enable(now, deadline),
            State::Running | State::Stopped | State::Failed(_) => return,
        };
        if next == state {
            return;
        }
        device.life_mut().state = next;
    }
}

/// Whether the device has left the bus.
pub fn is_gone<D: Steps>(device: &D) -> bool {
    device.bus().read(&D::Family::STATUS, 0) == u32::MAX
}

/// The address in the EEPROM, which the device has loaded, and whether it is valid and that of a single device.
pub fn own_address<D: Steps>(device: &D) -> ([u8; 6], bool) {
    let (low, high) = (device.bus().read(&D::Family::RAL, 0), device.bus().read(&D::Family::RAH, 0));
    let ([a, b, c, d], [e, f, ..]) = (low.to_le_bytes(), high.to_le_bytes());
    let address = [a, b, c, d, e, f];
    (address, high & RAH_VALID != 0 && a & 1 == 0 && address != [0; 6])
}

/// Has firmware leave the link to the driver.
pub fn take_from_firmware<D: Steps>(device: &D) {
    device.bus().update(&D::Family::CTRL_EXT, 0, |v| v | DRV_LOAD);
}

fn quiesce<D: Steps>(device: &mut D, now: u64) -> State {
    let answers = !is_gone(device);
    device.leave_link(answers);
    if !answers {
        return State::Failed(Failure::Gone);
    }
    device.mask_interrupts();
    // Firmware has the link to itself again.
    device.bus().update(&D::Family::CTRL_EXT, 0, |v| v & !DRV_LOAD);
    device.end_traffic();
    device.bus().update(&D::Family::CTRL, 0, |v| v | MASTER_DISABLE);
    State::Quiescing { deadline: now.saturating_add(QUIESCE_TIME) }
}

fn quiescing<D: Steps>(device: &D, now: u64, deadline: u64) -> State {
    if is_gone(device) {
        return State::Failed(Failure::Gone);
    }
    let quiet = device.bus().read(&D::Family::STATUS, 0) & MASTER_ENABLED == 0;
    if !quiet && now < deadline {
        return device.life().state;
    }
    // DMA that does not end takes two resets (82599 data sheet 5.2.5.3.2).
    reset(device, now, !quiet)
}

fn reset<D: Steps>(device: &D, now: u64, again: bool) -> State {
    device.bus().update(&D::Family::CTRL, 0, |v| v | RST | D::Family::RESET_TOO);
    // Writes are posted. A read makes sure that the device has received the write.
    let _ = device.bus().read(&D::Family::STATUS, 0);
    State::ResetRequested { at: now, again }
}

/// The reset time begins when the read has returned, so it is counted from the next call.
fn asked(state: State, now: u64, at: u64, again: bool) -> State {
    if now == at {
        return state;
    }
    State::Resetting { from: now.saturating_add(RESET_TIME), deadline: now.saturating_add(RESET_LIMIT), again }
}

fn resetting<D: Steps>(device: &mut D, now: u64, from: u64, deadline: u64, again: bool) -> State {
    let state = device.life().state;
    if now < from {
        return state;
    }
    let control = device.bus().read(&D::Family::CTRL, 0);
    if control == u32::MAX {
        return State::Failed(Failure::Gone);
    }
    if control & RST != 0 {
        return if now < deadline { state } else { State::Failed(Failure::Reset) };
    }
    if again {
        return reset(device, now, false);
    }
    // All DMA has ended, so rings and buffers are the driver's again.
    device.take_back();
    device.mask_interrupts();
    device.clear_interrupts();
    if device.life().stopping {
        return State::Stopped;
    }
    State::Loading { patience: now.saturating_add(D::PATIENCE), deadline: now.saturating_add(D::LOAD_LIMIT) }
}

/// Resets a device that hangs, and brings it up again.
pub fn recover<D: Steps>(device: &mut D, now: u64) {
    device.count_recovery();
    device.restart(now);
}

impl<D: Steps> Device for D {
    fn stop(&mut self, now: u64) {
        self.restart(now);
        self.life_mut().stopping = true;
    }

    fn restart(&mut self, now: u64) {
        let life = self.life_mut();
        life.stopping = false;
        // A reset that is under way must not be disturbed. It has the same effect.
        if !matches!(life.state, State::ResetRequested { .. } | State::Resetting { .. }) {
            life.state = State::Idle;
        }
        life.link = Link::Down;
        step(self, now);
        self.open_or_close();
    }

    fn status(&self) -> Status {
        match self.life().state {
            State::Running => Status::Running,
            State::Stopped => Status::Stopped,
            State::Failed(failure) => Status::Failed(failure),
            _ => Status::Starting,
        }
    }

    fn is_settled(&self) -> bool {
        self.link_is_settled()
    }

    unsafe fn assume_no_dma(&mut self) {
        self.life_mut().state = State::Stopped;
        self.take_back();
        self.open_or_close();
    }
}
