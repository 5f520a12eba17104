//! What can be wrong with the device.

use std::collections::BTreeMap;

/// Faults, each off by default.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// It has left the bus: registers read as all ones, nothing is done.
    pub gone: bool,
    /// Its registers read as zeroes then, as some platforms do it.
    pub zeroes: bool,
    /// CSTS.CFS, until the next reset.
    pub fatal: bool,
    /// CSTS.RDY never becomes 1.
    pub never_ready: bool,
    /// CSTS.RDY never becomes 0, and commands that were fetched are executed all the same.
    pub never_stops: bool,
    /// I/O commands are fetched and not executed.
    pub hold: bool,
    /// I/O commands that are fetched together are executed last first.
    pub reverse: bool,
    /// So many I/O commands are executed without a completion.
    pub lose: u32,
    /// So many I/O completions are posted twice.
    pub double: u32,
    /// So many I/O completions name an identifier that is not outstanding.
    pub forge: u32,
    /// So many I/O completions name a submission queue head beyond the queue.
    pub bad_head: u32,
    /// So many I/O completions name another submission queue.
    pub bad_queue: u32,
    /// So many I/O completions have the wrong phase tag.
    pub bad_phase: u32,
    /// Abort says that it has not aborted, and does not.
    pub refuse_abort: bool,
    /// Admin commands are not completed.
    pub admin_silent: bool,
    /// Admin completions name an identifier that is not outstanding.
    pub admin_forge: bool,
    /// Status of admin commands by opcode, instead of their execution.
    pub admin_status: BTreeMap<u8, u16>,
    /// Status of the next I/O commands, instead of their execution.
    pub io_status: Vec<u16>,
    /// Identify with this CNS fails.
    pub identify_fails: Option<u32>,
    /// Bytes that replace those of Identify: the CNS, an offset, and the bytes.
    pub identify: Vec<(u32, usize, Vec<u8>)>,
}
