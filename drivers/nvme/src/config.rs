//! Configuration of the driver, and its check.

use core::fmt;

use crate::dma::PAGE;
use crate::prp::{LIST_ENTRIES, PAGE_BYTES};

/// Most entries of an I/O queue: a command identifier has 10 bits for the command's slot.
pub(crate) const MAX_DEPTH: u16 = 1024;
/// Entries of the admin queues.
pub(crate) const ADMIN_ENTRIES: u16 = 16;

/// Configuration of the driver. Times are in microseconds.
#[derive(Clone, Debug)]
pub struct Config {
    /// I/O queue pairs, 0 to 64: one for each engine. With 0 the controller is only asked what it is.
    pub queues: u16,
    /// Entries of an I/O queue, 2 to 1,024. One entry stays free. The controller may have shorter queues.
    pub depth: u16,
    /// Most bytes of a request with data: a multiple of 4,096, up to 16 MiB. Each queue has bounce pages for one such
    /// request, and for one page more for each of its commands.
    pub max_bytes: u32,
    /// Most segments of a request, 1 to 4,096.
    pub max_segments: u32,
    /// Pages of a command's PRP list, 1 to 8. With 1, a command transfers up to 2 MiB.
    pub list_pages: u16,
    /// Time for an I/O command, until it is aborted.
    pub command_time: u64,
    /// Time for an aborted command, until the controller is reset.
    pub abort_time: u64,
    /// Time for an admin command, until the controller is reset.
    pub admin_time: u64,
    /// Time at a stop for requests to complete.
    pub drain_time: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            queues: 1,
            depth: 128,
            max_bytes: 1 << 20,
            max_segments: 1024,
            list_pages: 1,
            command_time: 30_000_000,
            abort_time: 5_000_000,
            admin_time: 10_000_000,
            drain_time: 2_000_000,
        }
    }
}

/// Why no driver was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// A value is out of its range: its name, the value, the least and the most.
    Range(&'static str, u64, u64, u64),
    /// There is no memory. The pages of the piece that could not be had.
    Memory(usize),
    /// The controller does not answer: its registers read as all ones or zeroes.
    Gone,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(name, value, least, most) => write!(f, "{name} is {value}; expected {least} to {most}"),
            Self::Memory(pages) => write!(f, "there are no {pages} contiguous pages of memory for it"),
            Self::Gone => f.write_str("it does not answer: its registers read as all ones or zeroes"),
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        for (name, value, least, most) in [
            ("queues", u64::from(self.queues), 0, 64),
            ("depth", u64::from(self.depth), 2, u64::from(MAX_DEPTH)),
            ("max_bytes", u64::from(self.max_bytes), PAGE as u64, 16 << 20),
            ("the remainder of max_bytes by 4,096", u64::from(self.max_bytes) % PAGE_BYTES, 0, 0),
            ("max_segments", u64::from(self.max_segments), 1, 4096),
            ("list_pages", u64::from(self.list_pages), 1, 8),
        ] {
            if !(least..=most).contains(&value) {
                return Err(ConfigError::Range(name, value, least, most));
            }
        }
        Ok(())
    }

    /// Most bytes that a command's PRP list can name, wherever its data begins. A page of the list that is not the last
    /// one ends with the address of the next. PRP1 may name as little as 4 bytes, so it is not counted.
    pub(crate) fn list_bytes(&self) -> u32 {
        let linked = usize::from(self.list_pages).saturating_sub(1).saturating_mul(LIST_ENTRIES - 1);
        linked.saturating_add(LIST_ENTRIES).saturating_mul(PAGE) as u32
    }

    /// Most commands of a request, for a queue of `depth` entries.
    pub(crate) const fn most_commands(depth: u16) -> u32 {
        let half = depth as u32 / 2;
        if half == 0 { 1 } else { half }
    }

    /// Bounce pages of a queue: for one request of the most bytes, none of whose pages can be named where it lies. A
    /// command transfers two pages or more, except the last of a request.
    pub(crate) fn bounce_pages(&self) -> usize {
        let pages = self.max_bytes as usize / PAGE;
        pages.saturating_add(pages / 2).saturating_add(1)
    }

    /// Bytes of DMA memory that the driver takes, at most.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let depth = usize::from(self.depth);
        let pages = |bytes: usize| depth.saturating_mul(bytes).div_ceil(PAGE);
        let lists = depth.saturating_mul(self.list_pages.into());
        let queue = [pages(64), pages(16), lists, self.bounce_pages()].into_iter().fold(0, usize::saturating_add);
        usize::from(self.queues).saturating_mul(queue).saturating_add(3).saturating_mul(PAGE) as u64
    }
}
