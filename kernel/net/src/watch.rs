//! Who watches frames at the ports of guests and at uplinks: those that are dropped, and while somebody wants it, all of them.

use engine::slots::MAX_SLOTS;
use trace::Classes;
use trace::capture::Way;
use trace::frames::{Destination, FIRST_UPLINK};

use crate::counters::UplinkDrop;

/// A frame at a port.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'f> {
    /// The port: a slot below [`MAX_SLOTS`], or [`FIRST_UPLINK`] plus the number of an uplink.
    pub port: usize,
    /// Which way it goes. At an uplink [`Way::In`] is from the wire.
    pub way: Way,
    /// When: ticks of the engine's clock. `None`: now.
    pub at: Option<u64>,
    /// Bytes of the frame, without the virtio-net header.
    pub len: u32,
    /// Its first bytes, as far as they were copied to the host's own memory. What the switch checks of a frame is among them.
    pub bytes: &'f [u8],
    /// It was dropped at this port: the number of the cause's counter in [`Drops`](crate::counters::Drops), in the order of
    /// `iter`. At an uplink: [`FIRST_UPLINK_CAUSE`](trace::frames::FIRST_UPLINK_CAUSE) plus the [`UplinkDrop`].
    pub dropped: Option<u8>,
}

/// Watches frames. It runs on the engine's core, so it must neither wait nor allocate.
pub trait FrameWatcher: Sync {
    /// A frame of `bytes` bytes was dropped at a port. `cause`: see [`Seen::dropped`].
    fn dropped(&self, port: usize, cause: u8, bytes: u32);
    /// A frame was taken from a port, or given to it, or dropped there. It is called while [`Classes::CAPTURES`] is on. A frame
    /// that both was sent and arrived is seen at both ports. At an uplink it is seen when it has come from the wire, and when the NIC
    /// has taken it, as a whole or as one segment. A frame that the NIC returns unsent is not seen again.
    fn seen(&self, frame: &Seen<'_>);
    /// A frame of `len` bytes makes a step on the slow path. It is called while [`Classes::FRAMES`] is on.
    fn step(&self, step: Step, port: usize, len: u32);
    /// A batch of frames has made its way. It is called while [`Classes::FRAMES`] is on.
    fn batch(&self, batch: &Batch<'_>);
    /// Frames of these lengths make a step at the uplink with this number. It is called for each frame that is dropped
    /// there, and for the other steps while [`Classes::FRAMES`] is on.
    fn at_uplink(&self, uplink: usize, step: UplinkStep, lengths: &[u32]);
}

/// A step of a frame at an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UplinkStep {
    /// It came from the wire. The NIC was asked at this time of the engine's clock.
    Received(u64),
    /// The switch has chosen where it goes.
    Switched(Destination),
    /// It was given to the NIC, as a whole or as one segment.
    Given,
    /// It was dropped. Its length is 0 if the NIC has returned it unsent.
    Dropped(UplinkDrop),
}

/// A step of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It was taken from a port, at this time of the engine's clock.
    Taken(u64),
    /// The switch has chosen where a frame from this port goes.
    Switched(Destination),
    /// It was given to a port.
    Given,
}

/// A batch of frames of one port.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'b> {
    /// The port that sent them.
    pub from: usize,
    /// Where they went. `None`: they were dropped at their sender's port.
    pub to: Option<Destination>,
    /// Whether they were given to the destination. Otherwise they were dropped there, or handed to an uplink.
    pub given: bool,
    /// When the visit to their queue began, in ticks of the engine's clock.
    pub at: u64,
    /// Bytes of each of them, without the virtio-net header.
    pub lengths: &'b [u32],
}

const _: () = assert!(MAX_SLOTS <= FIRST_UPLINK as usize);

/// Whoever watches frames.
pub type Watch = trace::Watch<dyn FrameWatcher>;

/// The classes for which each frame is shown.
pub const EACH_FRAME: Classes = Classes::CAPTURES.union(Classes::FRAMES);
