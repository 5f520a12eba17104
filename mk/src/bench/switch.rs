//! `cargo mk bench switch --instructions`: instructions of the engine for a frame from one guest to another, the copy routine left out.

use anyhow::{Result, bail};

use super::Figure;
use crate::{callgrind, fetch, ui};

/// Frames that kernel/engine/benches/forward.rs sends.
const FRAMES: u64 = 64 * 64;
/// What it should be, whatever the size.
const AIM: f64 = 150.0;
/// Bytes of a frame, and what it was when this was last changed.
const KEPT: [(u32, f64); 2] = [(60, 163.7), (1500, 164.1)];
/// What is above the kept value by more is an error.
const TOLERANCE: f64 = 1.02;

/// For each size, instructions for a frame and the kept value.
fn count() -> Result<Vec<(u32, f64, f64)>> {
    fetch::ensure(false)?;
    let program = callgrind::program("engine", "forward", Some("testing"))?;
    let one = |(bytes, kept): (u32, f64)| {
        let count = callgrind::instructions(&program, &[&bytes.to_string()], "*measured*", Some("sidecore_copy_"))?;
        Ok((bytes, (count as f64 / FRAMES as f64 * 10.0).round() / 10.0, kept))
    };
    KEPT.into_iter().map(one).collect()
}

/// All of them.
pub fn figures() -> Result<Vec<Figure>> {
    let figure = |(bytes, value, _)| Figure {
        name: format!("a frame of {bytes} bytes from guest to guest"),
        value,
        unit: "",
        aim: Some(AIM),
    };
    Ok(count()?.into_iter().map(figure).collect())
}

/// Part of `cargo mk test`: the engine has not become slower.
pub fn gate() -> Result<String> {
    ui::step("bench", "instructions of the engine");
    let mut said = Vec::new();
    for (bytes, now, kept) in count()? {
        said.push(format!("{now} for {bytes} bytes"));
        if now > kept * TOLERANCE {
            bail!(
                "engine: a frame of {bytes} bytes takes {now} instructions, kept are {kept}; if it has to be, change \
                 mk/src/bench/switch.rs"
            );
        }
    }
    Ok(format!("engine, instructions a frame: {}", said.join(", ")))
}
