//! The interface to a running emulator.

use anyhow::{Result, bail};

/// A running emulator.
pub trait Machine {
    /// Whether its process has ended.
    fn ended(&mut self) -> Result<bool>;

    /// Ends it.
    fn kill(&mut self);

    /// The output on COM1 so far.
    fn console(&self) -> Result<String>;

    /// The contents of a file in the folder of its logs.
    fn file(&self, name: &str) -> Result<Vec<u8>> {
        bail!("this machine has no file {name}")
    }

    /// The emulator's own count of entries into a guest so far. `None`: it does not record them.
    fn recorded_entries(&self) -> Result<Option<u64>>;
}
