//! Who watches requests of disks: while somebody wants it, each request that is given to a storage, and its end.
//!
//! Requests that the back-end answers itself are not shown: for the serial number, refused ones, and flushes that cannot be done.

use trace::Classes;

/// A step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The slot of its device.
    pub slot: usize,
    /// Its queue.
    pub queue: u16,
    /// Its number: unique among the requests of the engine that have not ended.
    pub number: u16,
    /// The step.
    pub step: Step,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It was given to the storage.
    Submitted {
        /// Its type, as the driver gave it (virtio 1.3 5.2.6).
        kind: u8,
        /// Its first sector of 512 bytes; 0 for a flush.
        sector: u64,
    },
    /// It has ended, and the driver gets the answer.
    Completed {
        /// The status byte (virtio 1.3 5.2.6).
        status: u8,
        /// Bytes of its data, or of the range that it names.
        bytes: u64,
    },
}

/// Watches requests. It runs on the engine's core, so it must neither wait nor allocate.
pub trait DiskWatcher: Sync {
    /// A request has made a step. It is called while [`Classes::DISKS`] is on.
    fn request(&self, seen: &Seen);
}

/// Whoever watches requests.
pub type Watch = trace::Watch<dyn DiskWatcher>;

/// Returns the watcher, if requests are to be shown.
#[inline(always)]
pub(crate) fn of(watch: Option<Watch>) -> Option<&'static dyn DiskWatcher> {
    watch.and_then(|watch| watch.of(Classes::DISKS))
}
