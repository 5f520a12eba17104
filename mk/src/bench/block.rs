//! `cargo mk bench block --instructions`: instructions of the engine for a read or a write of 4 KiB of a RAM disk,
//! without the copy routine. It counts them in a process.

use anyhow::{Result, bail};

use super::figure::Figure;
use crate::{callgrind, fetch, ui};

/// Requests that kernel/block/src/testing.rs makes.
const REQUESTS: f64 = 4096.0;
/// Largest ratio of a value to the kept value. A larger one is an error.
const TOLERANCE: f64 = 1.02;

/// One case that is counted.
struct Row {
    /// Requests that the queue holds when it is visited.
    batch: u32,
    packed: bool,
    write: bool,
    /// The aim, if there is one.
    aim: Option<f64>,
    /// The kept value, which the gate compares with.
    kept: f64,
}

const ROWS: [Row; 8] = [
    Row { batch: 32, packed: false, write: false, aim: Some(250.0), kept: 238.2 },
    Row { batch: 32, packed: true, write: false, aim: Some(250.0), kept: 246.5 },
    Row { batch: 32, packed: false, write: true, aim: Some(250.0), kept: 236.2 },
    Row { batch: 32, packed: true, write: true, aim: Some(250.0), kept: 246.5 },
    Row { batch: 1, packed: false, write: false, aim: None, kept: 1366.1 },
    Row { batch: 1, packed: true, write: false, aim: None, kept: 1593.0 },
    Row { batch: 1, packed: false, write: true, aim: None, kept: 1364.1 },
    Row { batch: 1, packed: true, write: true, aim: None, kept: 1592.9 },
];

impl Row {
    fn name(&self) -> String {
        let rings = if self.packed { ", packed ring" } else { "" };
        let request = if self.write { "write" } else { "read" };
        format!("a {request} of 4 KiB of RAM, batches of {}{rings}", self.batch)
    }
}

/// Counts all rows: instructions for a request.
fn count() -> Result<Vec<(Row, f64)>> {
    fetch::ensure(false)?;
    let program = callgrind::program("block", "read", Some("testing"))?;
    let one = |row: Row| {
        let batch = row.batch.to_string();
        let words = [("packed", row.packed), ("write", row.write)];
        let words = words.into_iter().filter_map(|(word, said)| said.then_some(word));
        let arguments: Vec<&str> = [batch.as_str()].into_iter().chain(words).collect();
        let (count, _) = callgrind::instructions_apart(&program, &arguments, "*measured*", "sidecore_copy_")?;
        Ok((row, (count as f64 / REQUESTS * 10.0).round() / 10.0))
    };
    ROWS.into_iter().map(one).collect()
}

/// Counts all rows, as figures.
pub fn figures() -> Result<Vec<Figure>> {
    let figure = |(row, value): (Row, f64)| Figure { name: row.name(), value, unit: "", aim: row.aim };
    Ok(count()?.into_iter().map(figure).collect())
}

/// Part of `cargo mk test`: fails if the engine has become slower.
pub fn gate() -> Result<String> {
    ui::step("bench", "instructions of the engine for disks");
    let mut said = Vec::new();
    for (row, now) in count()? {
        if now > row.kept * TOLERANCE {
            bail!(
                "engine: {} takes {now} instructions, kept are {}; if it has to be, change mk/src/bench/block.rs",
                row.name(),
                row.kept
            );
        }
        said.push(format!("{now} for {}", row.name()));
    }
    Ok(format!("engine, instructions: {}", said.join("; ")))
}
