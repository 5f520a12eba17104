//! Makes pages of a guest executable when it first fetches from them: see [`memory::split`].

use memory::{
    split::{CannotSplit, Pool},
    swap::Shadow,
    tables::Tables,
};
use spin::Mutex;

/// A guest's nested tables, where only pages of 4 KiB are executable.
pub enum SplitTables {
    /// They change for nothing else.
    Alone(Mutex<Tables>),
    /// They also change for the shadow IDT.
    Shadowed(&'static Mutex<Shadow>),
}

/// Splits a guest's pages, over all its lives. Only the cores of its vCPUs wait for each other here.
pub struct Splitter {
    tables: SplitTables,
    pool: Mutex<Pool>,
}

impl Splitter {
    /// Makes it from the tables, and frames for all of the guest's memory.
    #[must_use]
    pub fn new(tables: SplitTables, pool: Pool) -> Self {
        Self { tables, pool: Mutex::new(pool) }
    }

    /// Makes the page at the guest-physical address `at` executable.
    ///
    /// # Errors
    /// The nested tables do not map it.
    pub fn make_executable(&self, at: u64) -> Result<(), CannotSplit> {
        let mut pool = self.pool.lock();
        match &self.tables {
            SplitTables::Alone(tables) => tables.lock().make_executable(at, &mut pool),
            SplitTables::Shadowed(shadow) => shadow.lock().make_executable(at, &mut pool),
        }
    }
}
