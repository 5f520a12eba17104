//! `cargo mk bench switch --instructions`: instructions of the engine for a frame from one guest to another, the copy routine
//! left out; as a process, and inside the kernel's image.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use control::Event;
use scenarios::platform::Platform;
use scenarios::setup::{Setup, Uplink};
use serde_json::Value;

use super::figure::Figure;
use crate::emulator::Emulator;
use crate::{callgrind, fetch, image, ui};

/// Frames that kernel/net/src/testing/forward.rs sends.
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
    /// Whether each frame has a turn of its own.
    lone: bool,
    /// What it should be, if that is said.
    aim: Option<f64>,
    /// What it was when this was last changed.
    kept: f64,
}

const ROWS: [Row; 9] = [
    Row { bytes: 60, rules: false, packed: false, idle: false, lone: false, aim: Some(150.0), kept: 135.9 },
    Row { bytes: 1500, rules: false, packed: false, idle: false, lone: false, aim: Some(150.0), kept: 143.9 },
    Row { bytes: 60, rules: true, packed: false, idle: false, lone: false, aim: Some(200.0), kept: 161.5 },
    Row { bytes: 1500, rules: true, packed: false, idle: false, lone: false, aim: Some(200.0), kept: 169.5 },
    Row { bytes: 60, rules: false, packed: true, idle: false, lone: false, aim: Some(150.0), kept: 138.6 },
    Row { bytes: 1500, rules: false, packed: true, idle: false, lone: false, aim: Some(150.0), kept: 148.7 },
    // Five in a hundred more than without them.
    Row { bytes: 60, rules: false, packed: false, idle: true, lone: false, aim: Some(143.3), kept: 135.9 },
    Row { bytes: 60, rules: false, packed: false, idle: false, lone: true, aim: None, kept: 1928.4 },
    Row { bytes: 60, rules: true, packed: true, idle: false, lone: true, aim: None, kept: 2732.8 },
];
/// What is above the kept value by more is an error.
const TOLERANCE: f64 = 1.02;
/// What the image may take, as a multiple of what the process takes.
const IMAGE: f64 = 1.2;

impl Row {
    /// What it is about.
    fn name(&self) -> String {
        let rules = if self.rules { ", anti-spoofing, VLAN, stage" } else { "" };
        let rings = if self.packed { ", packed rings" } else { "" };
        let idle = if self.idle { ", 1,000 idle queues" } else { "" };
        let lone = if self.lone { ", alone in its turn" } else { "" };
        format!("{} bytes{rules}{rings}{idle}{lone}", self.bytes)
    }

    /// How kernel/src/count.rs names it.
    fn key(&self) -> (u64, bool, bool) {
        (self.bytes.into(), self.rules, self.packed)
    }
}

/// Instructions for a frame, without the copy routine.
struct Count {
    /// As a process.
    native: f64,
    /// In the kernel's image, which has no room for the idle queues, and does not count lone frames.
    image: Option<f64>,
}

impl Count {
    /// How many times as many the image takes.
    fn ratio(&self) -> Option<f64> {
        self.image.map(|image| (image / self.native * 1000.0).round() / 1000.0)
    }
}

/// Each row with what was counted.
fn count() -> Result<Vec<(Row, Count)>> {
    fetch::ensure(false)?;
    let program = callgrind::program("net", "forward", Some("testing"))?;
    let image = in_image()?;
    let one = |row: Row| {
        let bytes = row.bytes.to_string();
        let words = [("rules", row.rules), ("packed", row.packed), ("idle", row.idle), ("lone", row.lone)];
        let words = words.into_iter().filter_map(|(word, said)| said.then_some(word));
        let arguments: Vec<&str> = [bytes.as_str()].into_iter().chain(words).collect();
        let (native, copies) = callgrind::instructions_apart(&program, &arguments, "*measured*", "sidecore_copy_")?;
        let a_frame = |count: u64| (count as f64 / FRAMES as f64 * 10.0).round() / 10.0;
        let native = a_frame(native);
        if row.idle || row.lone {
            return Ok((row, Count { native, image: None }));
        }
        let all = *image.get(&row.key()).with_context(|| format!("the image has not counted {}", row.name()))?;
        // The copy routine is the same machine code in both, and is given the same lengths.
        ensure!(all > copies, "the image has counted {all} for {}, and {copies} are copies alone", row.name());
        Ok((row, Count { native, image: Some(a_frame(all - copies)) }))
    };
    ROWS.into_iter().map(one).collect()
}

/// What the image counts for each row, copies included: ticks of Bochs, whose TSC has one for each instruction where there is
/// one core.
fn in_image() -> Result<HashMap<(u64, bool, bool), u64>> {
    const LIMIT: Duration = Duration::from_secs(60);
    ui::step("bench", "instructions of the engine inside the image, on bochs");
    let setup = Setup {
        name: "bench-switch".to_owned(),
        cpus: 1,
        memory_mib: 256,
        modules: Vec::new(),
        options: "",
        virtualization: true,
        uplink: Uplink::None,
        record_exits: false,
    };
    let mut session = Emulator::new(Platform::Bochs).launch_from(&setup, image::counting_disc)?;
    let mut lines = Vec::new();
    session.wait("the end of counting", LIMIT, |event| {
        if let Event::Log { text, .. } = event {
            lines.extend(text.strip_prefix("counted ").map(str::to_owned));
        }
        matches!(event, Event::End { .. }).then_some(())
    })?;
    counted(&lines)
}

/// The rows among those lines, if a tick is an instruction.
fn counted(lines: &[String]) -> Result<HashMap<(u64, bool, bool), u64>> {
    let mut rows = HashMap::new();
    let mut exact = false;
    for line in lines {
        let object: Value = serde_json::from_str(line).with_context(|| format!("{line:?} is not what was expected"))?;
        let number = |name: &str| object[name].as_u64();
        let ticks = number("ticks").with_context(|| format!("no ticks in {line}"))?;
        if let Some(instructions) = number("instructions") {
            // What reads the TSC is counted too.
            exact = (instructions..instructions + 100).contains(&ticks);
            ensure!(exact, "{ticks} ticks for {instructions} instructions: this is no way to count");
            continue;
        }
        let (Some(bytes), Some(rules), Some(packed)) =
            (number("bytes"), object["rules"].as_bool(), object["packed"].as_bool())
        else {
            bail!("{line} does not say what was counted")
        };
        ensure!(number("frames") == Some(FRAMES), "{line} is not about {FRAMES} frames");
        rows.insert((bytes, rules, packed), ticks);
    }
    ensure!(exact, "the image has not said what a tick is");
    Ok(rows)
}

/// All of them.
pub fn figures() -> Result<Vec<Figure>> {
    let figures = |(row, count): (Row, Count)| {
        let figure = |name, value, aim| Figure { name, value, unit: "", aim };
        let ratio = count.ratio().map(|ratio| figure(format!("{}: image / process", row.name()), ratio, Some(IMAGE)));
        [Some(figure(format!("a frame of {}", row.name()), count.native, row.aim)), ratio].into_iter().flatten()
    };
    Ok(count()?.into_iter().flat_map(figures).collect())
}

/// Part of `cargo mk test`: the engine has not become slower, nor the image slower than the process.
pub fn gate() -> Result<String> {
    ui::step("bench", "instructions of the engine");
    let mut said = Vec::new();
    for (row, count) in count()? {
        let (name, kept, now, ratio) = (row.name(), row.kept, count.native, count.ratio());
        if now > kept * TOLERANCE {
            bail!(
                "engine: a frame of {name} takes {now} instructions, kept are {kept}; if it has to be, change \
                 mk/src/bench/switch.rs"
            );
        }
        said.push(match ratio {
            Some(ratio) if ratio > IMAGE => bail!("engine: a frame of {name} takes {ratio} times {now} in the image"),
            Some(ratio) => format!("{now} for {name} (image: {ratio} times)"),
            None => format!("{now} for {name}"),
        });
    }
    Ok(format!("engine, instructions a frame: {}", said.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(ticks: u64) -> [String; 2] {
        [
            format!("{{\"instructions\":1000000,\"ticks\":{ticks}}}"),
            format!("{{\"bytes\":60,\"rules\":true,\"packed\":false,\"frames\":{FRAMES},\"ticks\":700}}"),
        ]
    }

    #[test]
    fn ticks_count_where_each_is_an_instruction() {
        assert_eq!(counted(&lines(1_000_004)).unwrap(), HashMap::from([((60, true, false), 700)]));
        for ticks in [999_999, 2_000_000] {
            assert!(counted(&lines(ticks)).unwrap_err().to_string().contains("no way to count"));
        }
        assert!(counted(&lines(1_000_004)[1..]).is_err(), "nobody has said what a tick is");
    }
}
