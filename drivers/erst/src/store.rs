//! The records of the store, and the order of the steps to read, write and clear one (ACPI 6.5, 18.5.2).

use alloc::vec::Vec;

use crate::{Action, Bus, Error, Program, Table};

/// Pauses between two questions whether the firmware is done, and how many. Writing to flash may take a tenth of a second.
const PAUSE: u64 = 100;
const MOST_PAUSES: u32 = 20_000;
/// Most records whose numbers are asked for.
const MOST_RECORDS: usize = 1024;
/// No number of a record: the end of the list, and "any".
const END: u64 = u64::MAX;

/// Statuses (table 18.21).
const SUCCESS: u64 = 0;
const EMPTY: u64 = 4;
const NOT_FOUND: u64 = 5;
/// Attribute of the range of records: it is non-volatile memory itself.
const NON_VOLATILE: u64 = 2;

/// The firmware's store of records.
#[derive(Debug)]
pub struct Store<'a, B> {
    program: Program<'a, B>,
    /// Address and bytes of the range in which records are handed over.
    range: (u64, u64),
}

impl<'a, B: Bus> Store<'a, B> {
    /// Asks the firmware where records are handed over.
    ///
    /// # Errors
    /// There is no answer, or the store is of a kind that is not supported.
    pub fn open(table: &'a Table, bus: B) -> Result<Self, Error> {
        let mut program = Program::new(table, bus);
        let attributes = program.run(Action::Attributes, 0)?;
        if attributes & NON_VOLATILE != 0 {
            return Err(Error::Range(attributes));
        }
        let range = (program.run(Action::Range, 0)?, program.run(Action::Length, 0)?);
        Ok(Self { program, range })
    }

    /// The store whose range of records is known from an earlier [`Store::open`].
    pub const fn with_range(table: &'a Table, bus: B, range: (u64, u64)) -> Self {
        Self { program: Program::new(table, bus), range }
    }

    /// Address and bytes of the range in which records are handed over. It has to be reachable before a record is read or written.
    pub const fn range(&self) -> (u64, u64) {
        self.range
    }

    /// The numbers of all records, each once. More than 1,024 are left out.
    ///
    /// # Errors
    /// There is no answer.
    pub fn ids(&mut self) -> Result<Vec<u64>, Error> {
        let count = usize::try_from(self.program.run(Action::Count, 0)?).unwrap_or(MOST_RECORDS).min(MOST_RECORDS);
        let mut ids = Vec::new();
        // The list begins anew after its end, and a firmware may say a number twice.
        for _ in 0..count.saturating_add(1) {
            let id = self.program.run(Action::RecordId, 0)?;
            if id != END && !ids.contains(&id) {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    /// Reads a record into `to`, as much of it as fits. Returns its bytes that are there; they may be anything.
    ///
    /// # Errors
    /// There is none of this number, or the firmware fails.
    pub fn read<'b>(&mut self, id: u64, to: &'b mut [u8]) -> Result<&'b [u8], Error> {
        self.program.run_optional(Action::BeginRead, 0)?;
        self.program.run(Action::SetOffset, 0)?;
        self.program.run(Action::SetRecordId, id)?;
        self.execute()?;
        let (at, len) = self.range;
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(to.len());
        let to = to.get_mut(..len).unwrap_or_default();
        self.program.bus().load(at, to).ok_or(Error::Unreachable(at))?;
        Ok(to)
    }

    /// Writes a record, which has its number in itself. It replaces one of the same number.
    ///
    /// # Errors
    /// It is too long, or the firmware fails.
    pub fn write(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        let (at, most) = self.range;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len as u64 > most {
            return Err(Error::TooLong(most));
        }
        let mut to = at;
        for part in parts {
            self.program.bus().store(to, part).ok_or(Error::Unreachable(to))?;
            to = to.saturating_add(part.len() as u64);
        }
        self.program.run_optional(Action::BeginWrite, 0)?;
        self.program.run(Action::SetOffset, 0)?;
        self.execute()
    }

    /// Clears a record.
    ///
    /// # Errors
    /// There is none of this number, or the firmware fails.
    pub fn clear(&mut self, id: u64) -> Result<(), Error> {
        self.program.run_optional(Action::BeginClear, 0)?;
        self.program.run(Action::SetRecordId, id)?;
        self.execute()
    }

    /// Has the firmware do it, and waits for its end.
    fn execute(&mut self) -> Result<(), Error> {
        self.program.begin();
        let done = self.wait();
        let ended = self.program.run_optional(Action::End, 0);
        done?;
        ended?;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.program.run(Action::Execute, 0)?;
        for _ in 0..MOST_PAUSES {
            if self.program.run(Action::Busy, 0)? == 0 {
                return match self.program.run(Action::Status, 0)? {
                    SUCCESS => Ok(()),
                    EMPTY | NOT_FOUND => Err(Error::NotFound),
                    other => Err(Error::Status(other)),
                };
            }
            self.program.wait(PAUSE)?;
        }
        Err(Error::Busy)
    }
}

#[cfg(test)]
mod tests;
