//! `cargo mk bench switch --instructions`: instructions of the engine for a frame from one guest to another, the copy routine left out.

use anyhow::{Result, bail};

use super::Figure;
use crate::{callgrind, fetch, ui};

/// Frames that kernel/engine/benches/forward.rs sends.
const FRAMES: u64 = 64 * 64;
/// What is counted.
struct Row {
    /// Bytes of a frame.
    bytes: u32,
    /// Whether the ports have rules: anti-spoofing, a VLAN, and one stage.
    rules: bool,
    /// Whether the rings are packed.
    packed: bool,
    /// Whether there are 1,000 queues more that nobody uses.
    idle: bool,
    /// What it should be.
    aim: f64,
    /// What it was when this was last changed.
    kept: f64,
}

const ROWS: [Row; 7] = [
    Row { bytes: 60, rules: false, packed: false, idle: false, aim: 150.0, kept: 152.5 },
    Row { bytes: 1500, rules: false, packed: false, idle: false, aim: 150.0, kept: 152.5 },
    Row { bytes: 60, rules: true, packed: false, idle: false, aim: 200.0, kept: 185.1 },
    Row { bytes: 1500, rules: true, packed: false, idle: false, aim: 200.0, kept: 185.1 },
    Row { bytes: 60, rules: false, packed: true, idle: false, aim: 150.0, kept: 179.3 },
    Row { bytes: 1500, rules: false, packed: true, idle: false, aim: 150.0, kept: 179.3 },
    // Five in a hundred more than without them.
    Row { bytes: 60, rules: false, packed: false, idle: true, aim: 160.1, kept: 152.5 },
];
/// What is above the kept value by more is an error.
const TOLERANCE: f64 = 1.02;

impl Row {
    /// What it is about.
    fn name(&self) -> String {
        let rules = if self.rules { ", anti-spoofing, VLAN, stage" } else { "" };
        let rings = if self.packed { ", packed rings" } else { "" };
        let idle = if self.idle { ", 1,000 idle queues" } else { "" };
        format!("{} bytes{rules}{rings}{idle}", self.bytes)
    }
}

/// Each row with its instructions for a frame.
fn count() -> Result<Vec<(Row, f64)>> {
    fetch::ensure(false)?;
    let program = callgrind::program("engine", "forward", Some("testing"))?;
    let one = |row: Row| {
        let bytes = row.bytes.to_string();
        let words = [("rules", row.rules), ("packed", row.packed), ("idle", row.idle)];
        let words = words.into_iter().filter_map(|(word, said)| said.then_some(word));
        let arguments: Vec<&str> = [bytes.as_str()].into_iter().chain(words).collect();
        let count = callgrind::instructions(&program, &arguments, "*measured*", Some("sidecore_copy_"))?;
        Ok((row, (count as f64 / FRAMES as f64 * 10.0).round() / 10.0))
    };
    ROWS.into_iter().map(one).collect()
}

/// All of them.
pub fn figures() -> Result<Vec<Figure>> {
    let figure = |(row, value): (Row, f64)| Figure {
        name: format!("a frame of {}", row.name()),
        value,
        unit: "",
        aim: Some(row.aim),
    };
    Ok(count()?.into_iter().map(figure).collect())
}

/// Part of `cargo mk test`: the engine has not become slower.
pub fn gate() -> Result<String> {
    ui::step("bench", "instructions of the engine");
    let mut said = Vec::new();
    for (row, now) in count()? {
        let (name, kept) = (row.name(), row.kept);
        if now > kept * TOLERANCE {
            bail!(
                "engine: a frame of {name} takes {now} instructions, kept are {kept}; if it has to be, change \
                 mk/src/bench/switch.rs"
            );
        }
        said.push(format!("{now} for {name}"));
    }
    Ok(format!("engine, instructions a frame: {}", said.join("; ")))
}
