//! A running emulator, whatever runs in it.

use anyhow::Result;

/// A running emulator.
pub trait Machine {
    /// Whether its process has ended.
    fn ended(&mut self) -> Result<bool>;

    /// Ends it.
    fn kill(&mut self);

    /// What it has written to COM1 so far.
    fn console(&self) -> Result<String>;

    /// The emulator's own count of entries into a guest so far, where it was asked to record them.
    fn recorded_entries(&self) -> Result<Option<u64>>;
}
