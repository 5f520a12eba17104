//! The admin queues: at most one command of each [`Kind`] at a time (NVMe Base 2.0, 5).

use crate::command::{Command, Completion};
use crate::dma::DmaBuffer;
use crate::registers::Registers;
use crate::ring::Ring;

/// What an admin command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    /// A step of the bring-up, or a job of a running controller.
    Step = 0,
    /// Asynchronous Event Request. It has no deadline.
    Event = 1,
    /// Abort.
    Abort = 2,
}

const KINDS: usize = 3;
/// Bits of a command identifier that are the kind.
const KIND_BITS: u32 = 2;

/// The device completed what is not outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forged;

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    cid: u16,
    deadline: u64,
}

/// The admin queues and their data page.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) ring: Ring,
    /// Where steps' data goes.
    pub(crate) page: DmaBuffer,
    outstanding: [Option<Outstanding>; KINDS],
    uses: u16,
}

impl Admin {
    pub(crate) fn new(ring: Ring, page: DmaBuffer) -> Self {
        Self { ring, page, outstanding: [None; KINDS], uses: 0 }
    }

    /// Forgets all commands. The device does not use the queues.
    pub(crate) fn reset(&mut self, stride: u8) {
        self.ring.reset(stride);
        self.outstanding = [None; KINDS];
    }

    /// Whether a command of a kind is outstanding.
    pub(crate) fn is_busy(&self, kind: Kind) -> bool {
        self.outstanding.get(kind as usize).is_some_and(Option::is_some)
    }

    /// Whether a command was not completed by its deadline.
    pub(crate) fn is_late(&self, now: u64) -> bool {
        self.outstanding.iter().flatten().any(|command| now >= command.deadline)
    }

    /// Gives a command to the device. None of this kind is outstanding.
    pub(crate) fn submit(&mut self, registers: &impl Registers, kind: Kind, command: &Command, deadline: u64) {
        self.uses = self.uses.wrapping_add(1);
        let cid = kind as u16 | self.uses << KIND_BITS;
        // 0xffff is in use by the error log (Base 2.0, 5.16.1.2). Kinds end at 2, so it cannot be.
        if let Some(place) = self.outstanding.get_mut(kind as usize) {
            *place = Some(Outstanding { cid, deadline });
        }
        self.ring.push(&command.with_cid(cid));
        self.ring.notify(registers);
    }

    /// Takes a completion.
    ///
    /// # Errors
    /// It is of no command that is outstanding.
    pub(crate) fn poll(&mut self, registers: &impl Registers) -> Result<Option<(Kind, Completion)>, Forged> {
        let Some(completion) = self.ring.pop() else { return Ok(None) };
        let kind = match completion.cid & ((1 << KIND_BITS) - 1) {
            0 => Kind::Step,
            1 => Kind::Event,
            2 => Kind::Abort,
            _ => return Err(Forged),
        };
        let place = self.outstanding.get_mut(kind as usize).ok_or(Forged)?;
        if !self.ring.fits(&completion) || place.is_none_or(|command| command.cid != completion.cid) {
            return Err(Forged);
        }
        *place = None;
        self.ring.release(registers);
        Ok(Some((kind, completion)))
    }
}
