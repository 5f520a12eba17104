//! What a device's FLUSH promises: that every write completed before it survives a loss of power (virtio 1.3
//! 5.2.6.2).
//!
//! When the storage fails a flush, the driver's or the one behind a durable write, nobody knows which of these writes
//! it still has. A later flush that succeeds says nothing about the lost ones: the disk may have dropped them. So such a
//! device fails every FLUSH until its driver resets it, or until it is attached anew. Where resets are not seen and a
//! device is attached anew for other reasons (behind vhost-user), a [`Record`] keeps the state of the disk beyond its
//! devices. That is what a driver can act on: Linux reports the error of a flush to the one caller of `fsync` that
//! waited for it, and marks the pages as clean, so a second `fsync` would succeed without the data. A file system on the
//! disk stops writing at the first failed flush of its journal, and reads it again after a reset of the guest. To end
//! this state when the lost blocks are written again would need a record of every block that was written between two
//! flushes, which has no bound.

use core::sync::atomic::{AtomicU8, Ordering};

/// The writes of a device and its flushes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flushes {
    /// Writes that completed without being durable.
    completed: u64,
    /// So many of them are durable.
    durable: u64,
    /// Some may be lost.
    lost: bool,
}

/// What a flush finds when it is submitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Before {
    completed: u64,
    durable: u64,
}

impl Flushes {
    /// A write has completed that a loss of power may undo.
    pub const fn wrote(&mut self) {
        self.completed = self.completed.wrapping_add(1);
    }

    /// What a flush that is submitted now finds.
    pub const fn before(&self) -> Before {
        Before { completed: self.completed, durable: self.durable }
    }

    /// A flush has succeeded. `before` is what [`Flushes::before`] said when it was submitted.
    pub const fn flushed(&mut self, before: Before) {
        if before.completed > self.durable {
            self.durable = before.completed;
        }
    }

    /// A flush has failed. Another one, in flight at the same time, may have succeeded since: it says nothing about what
    /// this one has lost.
    pub const fn failed(&mut self, before: Before) {
        self.lost |= self.completed > before.durable;
    }

    /// A flush of another device of the same disk has failed.
    pub const fn other_failed(&mut self) {
        self.lost |= self.completed > self.durable;
    }

    /// Whether every FLUSH fails.
    pub const fn is_lost(&self) -> bool {
        self.lost
    }
}

/// What is known of a disk's flushes while no device is attached to it. It is of the disk, not of a driver: whoever
/// attaches to the disk next finds it. Several threads may read it. The engine's thread alone writes it while a device of
/// the disk is attached.
#[derive(Debug, Default)]
pub struct Record(AtomicU8);

/// Writes have completed that are not durable.
const PENDING: u8 = 1;
/// Writes may be lost.
const LOST: u8 = 2;

impl Record {
    /// Nothing was written.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// The state with which a device begins.
    pub(crate) fn flushes(&self) -> Flushes {
        let bits = self.0.load(Ordering::Acquire);
        Flushes { completed: u64::from(bits & PENDING != 0), durable: 0, lost: bits & LOST != 0 }
    }

    /// Keeps the state of a device that is detached.
    pub(crate) fn keep(&self, flushes: &Flushes) {
        let pending = if flushes.completed > flushes.durable { PENDING } else { 0 };
        let lost = if flushes.lost { LOST } else { self.0.load(Ordering::Acquire) & LOST };
        self.0.store(pending | lost, Ordering::Release);
    }

    /// Whether writes may be lost, so that every FLUSH fails.
    pub fn is_lost(&self) -> bool {
        self.0.load(Ordering::Acquire) & LOST != 0
    }

    /// Notes that writes may be lost.
    pub fn lose(&self) {
        self.0.fetch_or(LOST, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::{Flushes, Record};

    #[test]
    fn a_record_keeps_what_is_not_durable_and_what_is_lost() {
        let record = Record::new();
        let mut flushes = record.flushes();
        flushes.wrote();
        record.keep(&flushes);
        let mut next = record.flushes();
        assert!(!next.is_lost() && !record.is_lost());
        // The flush of the next device covers the write of the one before.
        let before = next.before();
        next.failed(before);
        assert!(next.is_lost());
        record.keep(&next);
        assert!(record.is_lost() && record.flushes().is_lost());
        record.keep(&Flushes::default());
        assert!(record.is_lost(), "a device that saw no failure says nothing about it");

        let record = Record::new();
        let mut flushes = record.flushes();
        flushes.wrote();
        flushes.flushed(flushes.before());
        record.keep(&flushes);
        let mut next = record.flushes();
        next.failed(next.before());
        assert!(!next.is_lost(), "all was durable");
    }

    #[test]
    fn a_failed_flush_loses_the_writes_before_it_and_only_those_that_no_flush_has_made_durable() {
        let mut flushes = Flushes::default();
        flushes.failed(flushes.before());
        assert!(!flushes.is_lost(), "there was nothing to lose");
        flushes.wrote();
        let before = flushes.before();
        flushes.flushed(before);
        flushes.failed(flushes.before());
        assert!(!flushes.is_lost(), "all was durable");
        // A write that completes while a flush is under way is not covered by it.
        flushes.wrote();
        let before = flushes.before();
        flushes.wrote();
        flushes.flushed(before);
        flushes.failed(flushes.before());
        assert!(flushes.is_lost());
        let all = flushes.before();
        flushes.flushed(all);
        assert!(flushes.is_lost(), "a later flush says nothing about what is lost");
    }

    #[test]
    fn a_flush_that_fails_beside_one_that_succeeds_has_lost_what_both_covered() {
        let mut flushes = Flushes::default();
        flushes.wrote();
        let both = flushes.before();
        flushes.flushed(both);
        flushes.failed(both);
        assert!(flushes.is_lost());
    }

    #[test]
    fn flushes_that_end_out_of_order_count_as_the_later_one() {
        let mut flushes = Flushes::default();
        flushes.wrote();
        let first = flushes.before();
        flushes.wrote();
        let second = flushes.before();
        flushes.flushed(second);
        flushes.flushed(first);
        flushes.other_failed();
        assert!(!flushes.is_lost());
        flushes.wrote();
        flushes.other_failed();
        assert!(flushes.is_lost());
    }
}
