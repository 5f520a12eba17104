//! A submission queue and its completion queue (NVMe Base 2.0, 3.3). The driver's own indices are the truth.

use crate::command::{Command, Completion};
use crate::dma::DmaBuffer;
use crate::registers::{Registers, head_doorbell, tail_doorbell};

/// A pair of queues in memory.
#[derive(Debug)]
pub(crate) struct Ring {
    submission: DmaBuffer,
    completion: DmaBuffer,
    /// Queue identifier of both. 0: the admin queues.
    id: u16,
    /// Entries of each.
    entries: u16,
    /// Where the next command goes.
    tail: u16,
    /// Where the next completion comes.
    head: u16,
    /// Phase tag of a new completion.
    phase: bool,
    /// The tail has moved since the doorbell was written.
    unseen: bool,
    /// CAP.DSTRD.
    stride: u8,
}

/// Bytes of a submission queue entry.
pub(crate) const SUBMISSION_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub(crate) const COMPLETION_BYTES: usize = 16;

impl Ring {
    /// A ring of `entries` entries in each direction. The memory has room for them.
    pub(crate) fn new(id: u16, entries: u16, submission: DmaBuffer, completion: DmaBuffer) -> Self {
        Self { submission, completion, id, entries, tail: 0, head: 0, phase: true, unseen: false, stride: 0 }
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
        (self.tail, self.head, self.phase, self.unseen, self.stride) = (0, 0, true, false, stride);
        self.completion.clear();
    }

    #[inline(always)]
    const fn after(&self, at: u16) -> u16 {
        if at + 1 == self.entries { 0 } else { at + 1 }
    }

    /// Adds a command. The caller keeps fewer commands outstanding than there are entries, so there is room.
    #[inline(always)]
    pub(crate) fn push(&mut self, words: &[u64; Command::WORDS]) {
        let at = usize::from(self.tail) * Command::WORDS;
        for (i, word) in words.iter().enumerate() {
            self.submission.store(at + i, *word);
        }
        self.tail = self.after(self.tail);
        self.unseen = true;
    }

    /// Tells the device of the commands that were added.
    #[inline(always)]
    pub(crate) fn notify(&mut self, registers: &impl Registers) {
        if self.unseen {
            self.unseen = false;
            registers.write(tail_doorbell(self.id, self.stride), u32::from(self.tail));
        }
    }

    /// Takes the next completion. The entry is read once: first the word with the phase tag, then the other.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        let at = usize::from(self.head) * Completion::WORDS;
        let second = self.completion.load(at + 1);
        if Completion::phase(second) != self.phase {
            return None;
        }
        let first = self.completion.load(at);
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
