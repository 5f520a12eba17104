//! `cargo mk bench switch --instructions`: instructions of the engine for a frame from one guest to another, without
//! the copy routine. It counts them in a process, and inside the kernel's image.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use control::Event;
use scenarios::platform::Platform;
use scenarios::setup::Setup;
use serde_json::Value;

use super::figure::Figure;
use super::{attackers, histograms};
use crate::emulator::Emulator;
use crate::{callgrind, fetch, image, ui};

/// Frames that kernel/net/src/testing/forward.rs sends.
const FRAMES: u64 = 64 * 64;
/// One case that is counted.
struct Row {
    /// Bytes of a frame.
    bytes: u32,
    /// Whether the ports have rules: anti-spoofing, a VLAN, and one stage.
    rules: bool,
    /// Whether the rings are packed.
    packed: bool,
    /// Whether there are 1,000 more queues, which nobody uses.
    idle: bool,
    /// Whether each frame has a turn of its own.
    lone: bool,
    /// Whether the class `frames` of the trace is on.
    traced: bool,
    /// The aim, if there is one.
    aim: Option<f64>,
    /// The kept value, which the gate compares with.
    kept: f64,
}

/// A frame of 60 bytes in a batch, without anything else.
const PLAIN: Row = Row {
    bytes: 60,
    rules: false,
    packed: false,
    idle: false,
    lone: false,
    traced: false,
    aim: Some(150.0),
    kept: 136.8,
};

const ROWS: [Row; 10] = [
    PLAIN,
    Row { bytes: 1500, kept: 144.8, ..PLAIN },
    Row { rules: true, aim: Some(200.0), kept: 162.4, ..PLAIN },
    Row { bytes: 1500, rules: true, aim: Some(200.0), kept: 170.4, ..PLAIN },
    Row { packed: true, kept: 137.7, ..PLAIN },
    Row { bytes: 1500, packed: true, kept: 147.8, ..PLAIN },
    // The aim is 5 % more than without idle queues.
    Row { idle: true, aim: Some(143.3), ..PLAIN },
    Row { lone: true, aim: None, kept: 1964.3, ..PLAIN },
    Row { rules: true, packed: true, lone: true, aim: None, kept: 2776.8, ..PLAIN },
    // The aim is 60 more than without the trace.
    Row { traced: true, aim: Some(198.0), kept: 195.6, ..PLAIN },
];
/// Largest ratio of a value to the kept value. A larger one is an error.
const TOLERANCE: f64 = 1.02;
/// Largest ratio of the image's instructions to the process's.
const IMAGE: f64 = 1.2;

impl Row {
    /// Its description.
    fn name(&self) -> String {
        let rules = if self.rules { ", anti-spoofing, VLAN, stage" } else { "" };
        let rings = if self.packed { ", packed rings" } else { "" };
        let idle = if self.idle { ", 1,000 idle queues" } else { "" };
        let lone = if self.lone { ", alone in its turn" } else { "" };
        let traced = if self.traced { ", with records of the class frames" } else { "" };
        format!("{} bytes{rules}{rings}{idle}{lone}{traced}", self.bytes)
    }

    /// Its key in the output of kernel/src/count.rs.
    fn key(&self) -> (u64, bool, bool) {
        (self.bytes.into(), self.rules, self.packed)
    }
}

/// Instructions for a frame, without the copy routine.
struct Count {
    /// In a process.
    native: f64,
    /// In the kernel's image. `None` for idle queues, for which the image has no room, for lone frames and for traced ones.
    image: Option<f64>,
}

impl Count {
    /// The ratio of the image's instructions to the process's.
    fn ratio(&self) -> Option<f64> {
        self.image.map(|image| (image / self.native * 1000.0).round() / 1000.0)
    }
}

/// Counts all rows.
fn count() -> Result<Vec<(Row, Count)>> {
    fetch::ensure(false)?;
    let program = callgrind::program("net", "forward", Some("testing"))?;
    let image = in_image()?;
    let one = |row: Row| {
        let bytes = row.bytes.to_string();
        let words = [
            ("rules", row.rules),
            ("packed", row.packed),
            ("idle", row.idle),
            ("lone", row.lone),
            ("traced", row.traced),
        ];
        let words = words.into_iter().filter_map(|(word, said)| said.then_some(word));
        let arguments: Vec<&str> = [bytes.as_str()].into_iter().chain(words).collect();
        let (native, copies) = callgrind::instructions_apart(&program, &arguments, "*measured*", "sidecore_copy_")?;
        let a_frame = |count: u64| (count as f64 / FRAMES as f64 * 10.0).round() / 10.0;
        let native = a_frame(native);
        if row.idle || row.lone || row.traced {
            return Ok((row, Count { native, image: None }));
        }
        let all = *image.get(&row.key()).with_context(|| format!("the image has not counted {}", row.name()))?;
        // The copy routine is the same machine code in both, and gets the same lengths.
        ensure!(all > copies, "the image has counted {all} for {}, and {copies} are copies alone", row.name());
        Ok((row, Count { native, image: Some(a_frame(all - copies)) }))
    };
    ROWS.into_iter().map(one).collect()
}

/// Counts the rows inside the image, copies included. The unit is a tick of Bochs' TSC: on a single core, one tick is
/// one instruction.
fn in_image() -> Result<HashMap<(u64, bool, bool), u64>> {
    const LIMIT: Duration = Duration::from_secs(60);
    ui::step("bench", "instructions of the engine inside the image, on bochs");
    let setup = Setup { options: "", ..Setup::new("bench-switch", 1, 256) };
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

/// Reads the rows from the image's lines. It is an error if a tick is not an instruction.
fn counted(lines: &[String]) -> Result<HashMap<(u64, bool, bool), u64>> {
    let mut rows = HashMap::new();
    let mut exact = false;
    for line in lines {
        let object: Value = serde_json::from_str(line).with_context(|| format!("{line:?} is not what was expected"))?;
        let number = |name: &str| object[name].as_u64();
        let ticks = number("ticks").with_context(|| format!("no ticks in {line}"))?;
        if let Some(instructions) = number("instructions") {
            // The instructions that read the TSC are counted too.
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

/// Counts all rows, as figures.
pub fn figures() -> Result<Vec<Figure>> {
    let figures = |(row, count): (Row, Count)| {
        let figure = |name, value, aim| Figure { name, value, unit: "", aim };
        let ratio = count.ratio().map(|ratio| figure(format!("{}: image / process", row.name()), ratio, Some(IMAGE)));
        [Some(figure(format!("a frame of {}", row.name()), count.native, row.aim)), ratio].into_iter().flatten()
    };
    let frames = count()?.into_iter().flat_map(figures);
    let frames = frames.chain(histograms::figures()?);
    Ok(frames.chain(attackers::count()?.iter().flat_map(attackers::Count::figures)).collect())
}

/// Part of `cargo mk test`: fails if the engine has become slower, or the image too slow compared with the process.
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
    said.push(histograms::gate()?);
    let attackers = attackers::count()?;
    attackers.iter().try_for_each(attackers::Count::check)?;
    said.push(format!("{} kinds of attackers are charged for what they cause", attackers.len()));
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
