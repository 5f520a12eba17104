//! The interface between the control core and one engine: commands, counters, and the stop flag. The engine's doorbell
//! is here too, because it must outlive the engine's other data.
//!
//! The control core never touches the engine's own data. It submits a command here and reads the reply later. The engine
//! reads one word in each turn and waits for nobody. It answers a command in the turn in which it takes it. What takes
//! longer is asked again: see [`Reply::Detaching`].

use core::fmt;
use core::sync::atomic::AtomicBool;

use memory::GuestMemory;
use virtio::shared::Shared;
use virtio::state::{BadState, DeviceState};

use crate::atomics::{AtomicU32, Ordering, UnsafeCell};
use crate::channel::{self, Channel};
use crate::counters::EngineCounters;
use crate::doorbell::Doorbell;
use crate::requests::Requests;
use crate::schedule::GuestWeight;

/// A device to attach. `K` is the configuration for its back-end
/// ([`Backend::Config`](crate::backend::Backend::Config)).
#[derive(Debug)]
pub struct Attachment<K> {
    /// Its slot, below [`MAX_SLOTS`](crate::slots::MAX_SLOTS).
    pub slot: usize,
    /// The number that [`Deliver`](crate::deliver::Deliver) gets with each of its interrupts.
    pub number: usize,
    /// The state that it shares with its transport. Without a saved state it must be as after [`Shared::restart`].
    pub shared: &'static Shared,
    /// Its guest's memory. The engine drops its copy before it answers [`Reply::Detached`].
    pub memory: GuestMemory,
    /// How the engine learns of its requests.
    pub requests: Requests,
    /// Its guest and the guest's weight.
    pub share: GuestWeight,
    /// The configuration for its back-end.
    pub config: K,
    /// The state to resume from. `None`: it starts from reset.
    pub state: Option<DeviceState>,
}

/// Something of the host's to do on the engine's core, between two turns. It must be short: no queue is served meanwhile.
pub trait Errand: Sync + fmt::Debug {
    /// Does it.
    fn run(&self);
}

/// A command for an engine.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and no heap on an engine's core")]
pub enum Command<K> {
    /// Serve a device.
    Attach(Attachment<K>),
    /// Detach the device of a slot if the back-end holds nothing of it, and visit it no more. The reply is
    /// [`Reply::Detached`] or [`Reply::Detaching`]. Its guest's cores must be stopped.
    Detach {
        /// The slot.
        slot: usize,
    },
    /// As [`Command::Detach`], but the requests in flight are completed first, not dropped. The device can resume from
    /// its saved state then. Its guest may run meanwhile.
    Drain {
        /// The slot.
        slot: usize,
    },
    /// Change the weight of a guest, also for its devices' queues that are not visited now. The reply is [`Reply::Reweighed`], whether
    /// the guest has a device or not.
    Reweigh(GuestWeight),
    /// Do something on the engine's core. The reply is [`Reply::Done`].
    Run(&'static dyn Errand),
}

impl<K> Command<K> {
    /// The command to send if the reply to this one is [`Reply::Detaching`].
    #[must_use]
    pub const fn again(&self) -> Option<Self> {
        match *self {
            Self::Attach(_) | Self::Reweigh(_) | Self::Run(_) => None,
            Self::Detach { slot } => Some(Self::Detach { slot }),
            Self::Drain { slot } => Some(Self::Drain { slot }),
        }
    }
}

/// The reply to a command.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and no heap on an engine's core")]
pub enum Reply {
    /// The device is attached.
    Attached,
    /// The device is detached and its memory is no longer touched. Contains its state, unless requests had to be
    /// dropped.
    Detached(Option<DeviceState>),
    /// The device is not visited any more, but the back-end still holds requests of it, and its memory may still be
    /// written. Send the command again later. Other commands can come in between.
    Detaching,
    /// There is no such slot.
    NoSuchSlot,
    /// The slot has a device already.
    Occupied,
    /// The slot has no device.
    Vacant,
    /// The saved state is refused.
    BadState(BadState),
    /// The guest's weight is changed.
    Reweighed,
    /// It is done.
    Done,
}

/// The state that one engine shares with the control core.
pub struct Control<K> {
    channel: Channel<Command<K>, Reply>,
    stop: AtomicBool,
    observed: AtomicBool,
    pub(crate) doorbell: Doorbell,
    /// The counters of the engine.
    pub counters: EngineCounters,
}

impl<K> Default for Control<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Control<K> {
    /// An interface without a command.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            channel: Channel {
                state: AtomicU32::new(channel::EMPTY),
                command: UnsafeCell::new(None),
                reply: UnsafeCell::new(None),
            },
            stop: AtomicBool::new(false),
            observed: AtomicBool::new(false),
            doorbell: Doorbell::new(),
            counters: EngineCounters::new(),
        }
    }

    /// Submits a command to the engine.
    ///
    /// # Errors
    /// Returns the command if the reply to an earlier one was not taken.
    #[allow(clippy::result_large_err, reason = "the command is given back")]
    pub fn submit(&self, command: Command<K>) -> Result<(), Command<K>> {
        self.channel.submit(command)
    }

    /// Takes the reply to the last command, once there is one.
    pub fn reply(&self) -> Option<Reply> {
        self.channel.reply()
    }

    /// Asks [`run`](crate::engine::run) to return after its turn.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Switches the engine's observer on or off, from the next turn on.
    pub fn observe(&self, on: bool) {
        self.observed.store(on, Ordering::Relaxed);
    }

    /// Whether the engine's observer is on.
    #[must_use]
    #[inline]
    pub fn observed(&self) -> bool {
        self.observed.load(Ordering::Relaxed)
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Takes the command. For the engine alone.
    #[inline]
    pub(crate) fn take(&self) -> Option<Command<K>> {
        self.channel.take()
    }

    /// Answers the command that was taken. For the engine alone.
    pub(crate) fn answer(&self, reply: Reply) {
        self.channel.answer(reply);
    }
}
