//! The interface to a running emulator.

use anyhow::{Result, bail};
use serde_json::Value;

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

    /// Types on COM1. Only a machine whose setup says `typed` can.
    fn type_in(&mut self, _: &[u8]) -> Result<()> {
        bail!("nobody types on COM1 of this machine")
    }

    /// Gives the emulator's monitor a command (QEMU's QMP), and returns the answer.
    fn monitor(&mut self, command: &str, _: &Value) -> Result<Value> {
        bail!("this machine has no monitor for {command}")
    }

    /// Resets the machine. It boots the plain Linux of its setup's `after_reset` then.
    fn reset_into_linux(&mut self) -> Result<()> {
        bail!("this machine has nothing else to boot")
    }

    /// The emulator's own count of entries into a guest so far. `None`: it does not record them.
    fn recorded_entries(&self) -> Result<Option<u64>>;
}
