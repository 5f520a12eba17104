//! A submission queue and its completion queue (NVMe Base 2.0, 3.3). The driver's own indices are the truth.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::command::{Command, Completion, Good};
use crate::dma::{DmaBuffer, Entries};
use crate::registers::{Registers, head_doorbell, tail_doorbell};

/// A pair of queues in memory.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Its place is the tail: where the next command goes.
    submission: Entries<{ Command::WORDS }>,
    completion: Entries<{ Completion::WORDS }>,
    /// Queue identifier of both. 0: the admin queues.
    id: u16,
    /// Entries of each.
    entries: u16,
    /// The tail that the device was told.
    told: u16,
    /// Commands that were added up to there, since the start. It wraps.
    pushed: u32,
    /// Where the next completion comes.
    head: u16,
    /// Phase tag of a new completion.
    phase: bool,
    /// CAP.DSTRD.
    stride: u8,
}

/// Bytes of a submission queue entry.
pub(crate) const SUBMISSION_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub(crate) const COMPLETION_BYTES: usize = 16;

/// Completions of commands that succeeded, while they are taken.
pub(crate) struct GoodOnes<'r> {
    /// The entries from the head to the end of the queue.
    left: core::slice::Iter<'r, [AtomicU64; Completion::WORDS]>,
    good: Good,
    entries: u16,
}

impl GoodOnes<'_> {
    /// The identifier of the next completion, if its phase tag is that of a new one, its queue is this one, its head is
    /// within the queue, and its command succeeded. The word with all that is read once; the other word, which I/O
    /// commands do not use, is not read. It is taken by [`GoodOnes::take`].
    #[inline(always)]
    pub(crate) fn cid(&self) -> Option<u16> {
        let [_, second] = self.left.as_slice().first()?;
        let second = u64::from_le(second.load(Ordering::Acquire));
        (self.good.is(second) && Completion::head(second) < self.entries).then_some(Completion::cid(second))
    }

    /// Takes the next completion.
    #[inline(always)]
    pub(crate) fn take(&mut self) {
        self.left.next();
    }

    /// Completions that were not taken, up to the end of the queue.
    pub(crate) fn left(&self) -> u16 {
        self.left.len() as u16
    }
}

impl Ring {
    /// A ring of `entries` entries in each direction. `None`: the memory has no room for them.
    pub(crate) fn new(id: u16, entries: u16, submission: DmaBuffer, completion: DmaBuffer) -> Option<Self> {
        let (submission, completion) = (Entries::new(submission, entries)?, Entries::new(completion, entries)?);
        Some(Self { submission, completion, id, entries, told: 0, pushed: 0, head: 0, phase: true, stride: 0 })
    }

    /// Queue identifier.
    pub(crate) const fn id(&self) -> u16 {
        self.id
    }

    /// Entries of each queue.
    pub(crate) const fn entries(&self) -> u16 {
        self.entries
    }

    /// Bus address of the submission queue.
    pub(crate) const fn submission(&self) -> u64 {
        self.submission.bus()
    }

    /// Bus address of the completion queue.
    pub(crate) const fn completion(&self) -> u64 {
        self.completion.bus()
    }

    /// Makes both queues empty. The device does not use them.
    pub(crate) fn reset(&mut self, stride: u8) {
        self.pushed = self.pushed();
        (self.told, self.head, self.phase, self.stride) = (0, 0, true, stride);
        self.submission.reset();
        self.completion.reset();
    }

    #[inline(always)]
    const fn after(&self, at: u16) -> u16 {
        let next = at.wrapping_add(1);
        if next == self.entries { 0 } else { next }
    }

    /// Adds a command. The caller keeps fewer commands outstanding than there are entries, so there is room. Words that
    /// are 0 in every command are not written: they are 0 since the reset.
    #[inline(always)]
    pub(crate) fn push(&mut self, command: &Command) {
        let entry = self.submission.next();
        for (at, word) in command.words() {
            if let Some(place) = entry.get(at) {
                place.store(word.to_le(), Ordering::Relaxed);
            }
        }
    }

    /// Commands that were added since the start. It wraps.
    #[inline(always)]
    pub(crate) const fn pushed(&self) -> u32 {
        let tail = self.submission.place();
        let lap = if tail < self.told { self.entries } else { 0 };
        self.pushed.wrapping_add(tail.wrapping_add(lap).wrapping_sub(self.told) as u32)
    }

    /// Tells the device of the commands that were added.
    #[inline(always)]
    pub(crate) fn notify(&mut self, registers: &impl Registers) {
        let tail = self.submission.place();
        if self.told != tail {
            self.pushed = self.pushed();
            self.told = tail;
            registers.write(tail_doorbell(self.id, self.stride), u32::from(tail));
        }
    }

    /// The completions from the head to the end of the queue, as long as they are of commands that succeeded. What was
    /// taken of them is told to [`Ring::took`].
    #[inline(always)]
    pub(crate) fn good_ones(&self) -> GoodOnes<'_> {
        let left = self.completion.all().get(usize::from(self.head)..).unwrap_or_default();
        GoodOnes { left: left.iter(), good: Good::new(self.id, self.phase), entries: self.entries }
    }

    /// [`GoodOnes`] has left so many completions up to the end of the queue.
    #[inline(always)]
    pub(crate) fn took(&mut self, left: u16) {
        self.head = self.entries.saturating_sub(left);
        if self.head == self.entries {
            (self.head, self.phase) = (0, !self.phase);
        }
    }

    /// Takes the next completion. The entry is read once: first the word with the phase tag, then the other.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        let [first, second] = self.completion.all().get(usize::from(self.head))?;
        let second = u64::from_le(second.load(Ordering::Acquire));
        if Completion::phase(second) != self.phase {
            return None;
        }
        let first = u64::from_le(first.load(Ordering::Acquire));
        self.head = self.after(self.head);
        self.phase ^= self.head == 0;
        Some(Completion::new(first, second))
    }

    /// Gives the entries of the completions that were taken back to the device.
    #[inline(always)]
    pub(crate) fn release(&self, registers: &impl Registers) {
        registers.write(head_doorbell(self.id, self.stride), u32::from(self.head));
    }

    /// Whether a completion's fields fit this ring: its submission queue is this one and the head is within it. The
    /// head is not compared with earlier ones, because nothing depends on it.
    #[inline(always)]
    pub(crate) const fn fits(&self, completion: &Completion) -> bool {
        completion.queue == self.id && completion.head < self.entries
    }
}
