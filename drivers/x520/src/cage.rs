//! The SFP+ cage: reads what module is in it, a change of the wires at a call.

use crate::i2c::{CHUNK, Fault, Transfer};
use crate::module::{ID_BYTES, Module};
use crate::registers::{Bus, Registers};
use crate::semaphore;

/// Looks for a module before the cage counts as empty, and microseconds between them.
const LOOKS: u8 = 2;
const LOOK_PAUSE: u64 = 100_000;
/// Reads of a module that answers before it counts as unreadable.
const READS: u8 = 5;

/// What is in the cage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nobody answers.
    Nothing,
    /// Somebody answers, but what it says cannot be read.
    Unreadable,
    /// A module.
    Module(Module),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Begins at that time.
    Pause(u64),
    /// Waits for the wires, which firmware uses too.
    Take { deadline: u64 },
    /// Reads, and holds the wires.
    Read(Transfer),
}

/// A look into the cage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    port: u8,
    step: Step,
    bytes: [u8; ID_BYTES],
    /// Bytes that were read.
    count: usize,
    /// What was read before, if its checksum was wrong.
    before: Option<[u8; ID_BYTES]>,
    /// Looks without an answer, and reads that failed.
    silent: u8,
    failed: u8,
    /// The wires were taken from firmware that did not release them.
    pub(crate) forced: bool,
}

impl Look {
    /// Begins a look into the cage of a port.
    pub(crate) fn new(port: u8, now: u64) -> Self {
        Self {
            port,
            step: Step::Pause(now),
            bytes: [0; ID_BYTES],
            count: 0,
            before: None,
            silent: 0,
            failed: 0,
            forced: false,
        }
    }

    /// Takes one step. Returns what is in the cage once that is known.
    pub(crate) fn poll<R: Registers>(&mut self, bus: &Bus<R>, now: u64) -> Option<Found> {
        let wires = semaphore::phy(self.port);
        match &mut self.step {
            Step::Pause(until) if now < *until => None,
            Step::Pause(_) => {
                self.step = Step::Take { deadline: now.saturating_add(semaphore::LIMIT) };
                None
            }
            Step::Take { deadline } => {
                if !wires.take(bus) {
                    if now < *deadline {
                        return None;
                    }
                    wires.force(bus);
                    self.forced = true;
                }
                self.step = Step::Read(Transfer::new(self.count as u8, now));
                None
            }
            Step::Read(transfer) => {
                let read = transfer.poll(bus, now)?;
                // Others may have the wires between two transfers.
                wires.release(bus);
                self.step = Step::Pause(now);
                match read {
                    Ok(chunk) => self.take(chunk),
                    Err(Fault::NoAnswer) if self.count == 0 && self.failed == 0 => {
                        self.silent = self.silent.saturating_add(1);
                        self.step = Step::Pause(now.saturating_add(LOOK_PAUSE));
                        (self.silent >= LOOKS).then_some(Found::Nothing)
                    }
                    Err(_) => self.again(),
                }
            }
        }
    }

    /// Gives the wires back in the middle of a look.
    pub(crate) fn leave<R: Registers>(&mut self, bus: &Bus<R>) {
        if let Step::Read(transfer) = &mut self.step {
            transfer.release(bus);
            semaphore::phy(self.port).release(bus);
        }
    }

    /// Takes the next bytes.
    fn take(&mut self, chunk: [u8; CHUNK]) -> Option<Found> {
        for (place, byte) in self.bytes.iter_mut().skip(self.count).zip(chunk) {
            *place = byte;
        }
        self.count = self.count.saturating_add(CHUNK);
        if self.count < ID_BYTES {
            return None;
        }
        let module = Module::new(self.bytes);
        // Some modules have a wrong checksum. They say the same twice.
        if module.has_checksum() || self.before == Some(self.bytes) {
            return Some(Found::Module(module));
        }
        self.before = Some(self.bytes);
        self.again()
    }

    /// Begins to read again, unless that was tried too often.
    fn again(&mut self) -> Option<Found> {
        self.count = 0;
        self.failed = self.failed.saturating_add(1);
        (self.failed >= READS).then_some(Found::Unreadable)
    }
}

const _: () = assert!(ID_BYTES.is_multiple_of(CHUNK) && ID_BYTES <= u8::MAX as usize);
