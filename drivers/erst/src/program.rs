//! Carries out the program of an action (ACPI 6.5, 18.5.1.2, "Serialization Instruction Entries").

use crate::{Action, Bus, Error, Register, Table, table::Entry};

/// Most instructions that a program carries out, jumps included.
const MOST_STEPS: u32 = 10_000;
/// Longest wait of one instruction, in microseconds. Linux allows 50.
const LONGEST_STALL: u64 = 1_000;
/// Longest wait for a register to change, in microseconds. Linux allows 1,000.
const LONGEST_WAIT: u64 = 100_000;
/// Longest wait of all instructions for one operation of the store, in microseconds. An honest firmware takes milliseconds.
const LONGEST_OPERATION: u64 = 4_000_000;
/// The other bits of a register stay as they are (PRESERVE_REGISTER).
const PRESERVE: u8 = 1;

/// Carries out programs of a table.
#[derive(Debug)]
pub struct Program<'a, B> {
    table: &'a Table,
    /// What they reach.
    bus: B,
    /// Microseconds that may be waited yet.
    left: u64,
}

/// The state of a program.
#[derive(Default)]
struct State {
    value: u64,
    first: u64,
    second: u64,
}

impl<'a, B: Bus> Program<'a, B> {
    /// Programs of this table.
    pub const fn new(table: &'a Table, bus: B) -> Self {
        Self { table, bus, left: LONGEST_OPERATION }
    }

    /// What the programs reach.
    pub const fn bus(&mut self) -> &mut B {
        &mut self.bus
    }

    /// An operation begins, which may wait again.
    pub const fn begin(&mut self) {
        self.left = LONGEST_OPERATION;
    }

    /// Waits for so many microseconds.
    ///
    /// # Errors
    /// All programs of the operation together have waited for too long.
    pub fn wait(&mut self, micros: u64) -> Result<(), Error> {
        self.left = self.left.checked_sub(micros).ok_or(Error::Busy)?;
        self.bus.wait(micros);
        Ok(())
    }

    /// Carries out the program of an action with an input, and returns its output.
    ///
    /// # Errors
    /// There is none, or it cannot be carried out.
    pub fn run(&mut self, action: Action, input: u64) -> Result<u64, Error> {
        self.run_optional(action, input)?.ok_or(Error::Missing(action))
    }

    /// The same. `None`: the table has none.
    ///
    /// # Errors
    /// It cannot be carried out.
    pub fn run_optional(&mut self, action: Action, input: u64) -> Result<Option<u64>, Error> {
        let entries = |table: &'a Table| table.0.iter().filter(move |entry| entry.action == action as u8);
        if entries(self.table).next().is_none() {
            return Ok(None);
        }
        let mut state = State { value: input, ..State::default() };
        let mut next = 0_u64;
        for _ in 0..MOST_STEPS {
            let Some(entry) = usize::try_from(next).ok().and_then(|next| entries(self.table).nth(next)) else {
                return Ok(Some(state.value));
            };
            next = self.step(entry, next.saturating_add(1), &mut state)?;
        }
        Err(Error::Endless(action))
    }

    /// Carries out an instruction. `next`: the number of the one behind it. Returns the number of the one to go on with.
    fn step(&mut self, entry: &Entry, next: u64, state: &mut State) -> Result<u64, Error> {
        match entry.instruction {
            0x0 => state.value = self.read(entry)?,
            0x1 => state.value = (self.read(entry)? == entry.value).into(),
            0x2 => self.write(entry, state.value)?,
            0x3 => self.write(entry, entry.value)?,
            0x4 => {}
            0x5 => state.first = self.read(entry)?,
            0x6 => state.second = self.read(entry)?,
            0x7 => self.write(entry, state.first)?,
            0x8 => state.first = state.first.wrapping_add(state.second),
            0x9 => state.first = state.first.wrapping_sub(state.second),
            0xa => {
                let sum = self.read(entry)?.wrapping_add(entry.value);
                self.write(entry, sum)?;
            }
            0xb => {
                let difference = self.read(entry)?.wrapping_sub(entry.value);
                self.write(entry, difference)?;
            }
            0xc => self.wait(entry.value.min(LONGEST_STALL))?,
            0xd => {
                let pause = state.first.clamp(1, LONGEST_STALL);
                let mut waited = 0;
                while self.read(entry)? == entry.value {
                    if waited >= LONGEST_WAIT {
                        return Err(Error::Busy);
                    }
                    self.wait(pause)?;
                    waited = pause.saturating_add(waited);
                }
            }
            0xe => {
                if self.read(entry)? == entry.value {
                    return Ok(next.saturating_add(1));
                }
            }
            0xf => return Ok(entry.value),
            // The bases of 0x12, which moves memory of addresses that the firmware names at run time. No firmware is known that needs it.
            other => return Err(Error::Instruction(other)),
        }
        Ok(next)
    }

    fn read(&mut self, entry: &Entry) -> Result<u64, Error> {
        let register = register(entry)?;
        Ok(self.whole(register)? >> register.bit & entry.mask)
    }

    fn whole(&mut self, at: Register) -> Result<u64, Error> {
        self.bus.read(at.space, at.address, at.bytes).ok_or(Error::Unreachable(at.address))
    }

    fn write(&mut self, entry: &Entry, value: u64) -> Result<(), Error> {
        let at = register(entry)?;
        let mut value = (value & entry.mask) << at.bit;
        if entry.flags & PRESERVE != 0 {
            value |= self.whole(at)? & !(entry.mask << at.bit);
        }
        self.bus.write(at.space, at.address, at.bytes, value).ok_or(Error::Unreachable(at.address))
    }
}

fn register(entry: &Entry) -> Result<Register, Error> {
    entry.register.ok_or(Error::Unreachable(0))
}
