//! What the control core and an engine share: a slot for one command at a time, the engine's counters, and the wish to
//! stop. The engine's doorbell for notifications is here too, because it outlives everything else.
//!
//! The control core never touches the engine's own data. It leaves a command here and reads the reply turns later; the
//! engine looks at one word a turn and waits for nobody.

use memory::GuestMemory;

use crate::atomics::{AtomicBool, AtomicU32, Ordering, UnsafeCell};
use crate::device::{BadState, DeviceState};
use crate::doorbell::Doorbell;
use crate::requests::Requests;
use crate::schedule::Share;
use crate::shared::Shared;
use crate::slot::{self, Slot};
use crate::stats::EngineCounters;

/// A device to attach.
#[derive(Debug)]
pub struct Attachment {
    /// The port it gets, below [`MAX_PORTS`](crate::backend::MAX_PORTS).
    pub port: usize,
    /// What [`Deliver`](crate::shared::Deliver) is told about whose interrupts these are.
    pub number: usize,
    /// What it shares with its transport; as after [`Shared::restart`], unless there is a state.
    pub shared: &'static Shared,
    /// Its guest's memory. The engine's copy is gone when [`Reply::Detached`] has come.
    pub memory: GuestMemory,
    /// How the engine learns of its requests.
    pub requests: Requests,
    /// Whose it is.
    pub share: Share,
    /// To go on from, rather than from reset.
    pub state: Option<DeviceState>,
}

impl core::fmt::Debug for Shared {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("phase", &self.phase()).finish_non_exhaustive()
    }
}

/// What an engine can be told.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one slot, and no heap on an engine's core")]
pub enum Command {
    /// Serve a device.
    Attach(Attachment),
    /// Let go of the device at a port, once the back-end holds nothing of it. Its guest's cores must be stopped.
    Detach {
        /// Which.
        port: usize,
    },
}

/// What came of a command.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there is one slot, and no heap on an engine's core")]
pub enum Reply {
    /// The device is attached.
    Attached,
    /// The device is detached and its memory is no longer touched; its state, unless requests had to be dropped.
    Detached(Option<DeviceState>),
    /// There is no such port.
    NoSuchPort,
    /// The port has a device already.
    Occupied,
    /// The port has no device.
    Vacant,
    /// The state to go on from is not acceptable.
    BadState(BadState),
}

/// One engine's seat with the control core.
pub struct Control {
    slot: Slot<Command, Reply>,
    stop: AtomicBool,
    pub(crate) doorbell: Doorbell,
    /// What the engine did with its time.
    pub counters: EngineCounters,
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

impl Control {
    /// With no command.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            slot: Slot {
                state: AtomicU32::new(slot::EMPTY),
                command: UnsafeCell::new(None),
                reply: UnsafeCell::new(None),
            },
            stop: AtomicBool::new(false),
            doorbell: Doorbell::new(),
            counters: EngineCounters::new(),
        }
    }

    /// Leaves a command for the engine.
    ///
    /// # Errors
    /// Gives the command back while an earlier one has no reply taken.
    #[allow(clippy::result_large_err, reason = "the command is given back")]
    pub fn submit(&self, command: Command) -> Result<(), Command> {
        self.slot.submit(command)
    }

    /// Takes the reply to the last command, once there is one.
    pub fn reply(&self) -> Option<Reply> {
        self.slot.reply()
    }

    /// Asks [`run`](crate::engine::run) to return after its turn.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Takes the command. For the engine alone.
    #[inline]
    pub(crate) fn take(&self) -> Option<Command> {
        self.slot.take()
    }

    /// Answers the command taken. For the engine alone, which took it.
    pub(crate) fn answer(&self, reply: Reply) {
        self.slot.answer(reply);
    }
}
