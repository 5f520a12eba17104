//! What the driver knows of the controller, and what its owner is told.

use core::fmt;

use crate::command::Code;
use crate::gate::Trouble;
use crate::health::{ErrorEntry, Warnings};
use crate::identify::Unusable;

/// How the controller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerStatus {
    /// Bring-up or a reset is under way. Requests wait.
    Starting,
    /// Requests are carried out.
    Running,
    /// It is being shut down.
    Stopping,
    /// It was shut down and does no DMA.
    Stopped,
    /// It was given up and does no DMA.
    Failed(Failure),
}

/// Why the controller was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It does not answer: its registers read as all ones or zeroes.
    Gone,
    /// CSTS.RDY does not become 0 after CC.EN was cleared.
    DoesNotStop,
    /// The driver cannot use it.
    Unusable(Unusable),
    /// Its queues are shorter than they were, or its doorbells do not fit its BAR.
    Changed,
    /// After a reset it has another serial number.
    OtherSerial,
    /// It had to be reset too often. The last reason.
    TooManyResets(Reason),
}

/// Why the controller was reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// CSTS.CFS: the controller says that it has failed.
    FatalStatus,
    /// CSTS.RDY became 0 by itself, or did not become 1 in the time of CAP.TO.
    NotReady,
    /// An I/O queue has reported the device: the queue and the reason.
    Queue(u16, Trouble),
    /// An admin command was not completed in time.
    AdminTimedOut,
    /// An admin completion is of no command that is outstanding.
    AdminForged,
    /// A command of the bring-up has failed.
    AdminFailed(Code),
}

/// Something that happened, for the report and for the guests that use the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The controller is being reset.
    Reset(Reason),
    /// The controller runs again after a reset.
    Recovered,
    /// The controller was given up.
    Failed(Failure),
    /// A namespace has another number of blocks: its identifier and the number.
    Capacity(u32, u64),
    /// A namespace has another format, has appeared or is gone: its identifier.
    Namespace(u32),
    /// The controller warns of its health.
    Health(Warnings),
    /// The controller has logged an error.
    Error(ErrorEntry),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("it does not answer: its registers read as all ones or zeroes"),
            Self::DoesNotStop => f.write_str("it does not stop: CSTS.RDY stays 1 after CC.EN was cleared"),
            Self::Unusable(why) => why.fmt(f),
            Self::Changed => {
                f.write_str("its queues are shorter than before, or its BAR has no room for their doorbells")
            }
            Self::OtherSerial => f.write_str("it has another serial number than before its reset"),
            Self::TooManyResets(reason) => write!(f, "it had to be reset too often, the last time because {reason}"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FatalStatus => f.write_str("it reported a fatal error (CSTS.CFS)"),
            Self::NotReady => f.write_str("it was not ready (CSTS.RDY)"),
            Self::Queue(queue, Trouble::TimedOut) => write!(f, "queue {queue} had a command that did not end"),
            Self::Queue(queue, Trouble::UnknownCommand) => {
                write!(f, "queue {queue} completed a command that was not outstanding")
            }
            Self::Queue(queue, Trouble::BadCompletion) => {
                write!(f, "queue {queue} had a completion that made no sense")
            }
            Self::AdminTimedOut => f.write_str("an admin command did not end"),
            Self::AdminForged => f.write_str("it completed an admin command that was not outstanding"),
            Self::AdminFailed(code) => write!(f, "a command of its bring-up failed with {code}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(reason) => write!(f, "the controller is reset because {reason}"),
            Self::Recovered => f.write_str("the controller runs again"),
            Self::Failed(failure) => write!(f, "the controller was given up: {failure}"),
            Self::Capacity(id, blocks) => write!(f, "namespace {id} has {blocks} blocks now"),
            Self::Namespace(id) => write!(f, "namespace {id} has changed"),
            Self::Health(warnings) => write!(f, "the controller warns of its health: {warnings}"),
            Self::Error(entry) => entry.fmt(f),
        }
    }
}

/// The controller's state. Times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not begun.
    Begin,
    /// Waits until no queue writes a doorbell any more.
    Quiescing,
    /// CC.EN was cleared. Waits for CSTS.RDY to become 0.
    Disabling {
        deadline: u64,
    },
    /// Waits until each queue has taken its commands back.
    Reclaiming,
    /// CC.EN was set. Waits for CSTS.RDY to become 1.
    Enabling {
        deadline: u64,
    },
    /// Sends the admin commands of the bring-up.
    SettingUp,
    Running,
    /// Waits for the queues' commands to complete.
    Draining {
        deadline: u64,
    },
    /// Deletes the I/O queues.
    Deleting,
    /// CC.SHN was set. Waits for CSTS.SHST.
    ShuttingDown {
        deadline: u64,
    },
    /// Takes bus mastering from a controller that was shut down.
    Parting,
    Stopped,
    /// Takes bus mastering from a controller that was given up.
    Cutting(Failure),
    Failed(Failure),
}

/// The step of the bring-up or job whose admin command is next or outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Identify Controller.
    Identify,
    /// Set Features, Number of Queues.
    Queues,
    /// Create I/O Completion Queue, for a queue by its index.
    CreateCompletion(u16),
    /// Create I/O Submission Queue.
    CreateSubmission(u16),
    /// Identify, active namespace list.
    List,
    /// Identify Namespace, for a namespace by its index.
    Namespace(usize),
    /// Get Features, Volatile Write Cache.
    Cache,
    /// Set Features, Asynchronous Event Configuration.
    Events,
    /// Get Log Page, SMART / health.
    Health,
    /// Get Log Page, error information.
    Errors,
    /// Get Log Page, changed namespace list. Reading it lets the controller tell of the next change.
    Changed,
    /// Get Log Page of an event that the driver does not know, so that the controller may send the next.
    Clear(u8),
    /// Delete I/O Submission Queue.
    DeleteSubmission(u16),
    /// Delete I/O Completion Queue.
    DeleteCompletion(u16),
}
