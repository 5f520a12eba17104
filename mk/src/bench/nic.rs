//! `cargo mk bench nic`: instructions of the x520 driver for a packet, without the work of the device's model.

use anyhow::{Result, bail};

use super::figure::Figure;
use crate::{callgrind, fetch, ui};

const BATCHES: [u32; 4] = [1, 8, 32, 64];
/// Batches for each count.
const ROUNDS: u32 = 128;

/// A case of drivers/x520/benches/instructions, with instructions for a packet in batches of 32: the aim, and the kept
/// value, which the gate compares with.
struct Case {
    name: &'static str,
    aim: Option<f64>,
    kept: f64,
}

const CASES: [Case; 5] = [
    Case { name: "receive", aim: Some(35.0), kept: 31.97 },
    Case { name: "transmit", aim: Some(40.0), kept: 38.59 },
    Case { name: "transmit-alone", aim: None, kept: 294.81 },
    Case { name: "transmit-checksum", aim: None, kept: 54.3 },
    Case { name: "transmit-context", aim: None, kept: 88.41 },
];
/// Most additional instructions for a packet whose context the device does not know.
const CONTEXT_AIM: f64 = 35.0;
/// Largest ratio of a value to the kept value. A larger one is an error.
const TOLERANCE: f64 = 1.02;

fn per_packet(program: &std::path::Path, case: &str, batch: u32) -> Result<f64> {
    let arguments = [case, &batch.to_string(), &ROUNDS.to_string()];
    let count = callgrind::instructions(program, &arguments, "*measured*")?;
    Ok((count as f64 / f64::from(ROUNDS * batch) * 100.0).round() / 100.0)
}

/// Counts all cases.
pub fn figures() -> Result<Vec<Figure>> {
    fetch::ensure(false)?;
    let program = callgrind::program("x520", "instructions", None)?;
    let mut figures = Vec::new();
    for case in CASES {
        for batch in BATCHES {
            figures.push(Figure {
                name: format!("{}, a packet in batches of {batch}", case.name),
                value: per_packet(&program, case.name, batch)?,
                unit: "",
                aim: case.aim.filter(|_| batch == 32),
            });
        }
    }
    let at_32 = |case: &str| {
        let name = format!("{case}, a packet in batches of 32");
        figures.iter().find(|figure| figure.name == name).map_or(f64::NAN, |figure| figure.value)
    };
    let more = ((at_32("transmit-context") - at_32("transmit-checksum")) * 100.0).round() / 100.0;
    figures.push(Figure { name: "a new context, more".to_owned(), value: more, unit: "", aim: Some(CONTEXT_AIM) });
    Ok(figures)
}

/// Part of `cargo mk test`: fails if the driver has become slower.
pub fn gate() -> Result<String> {
    fetch::ensure(false)?;
    ui::step("bench", "instructions of the x520 driver");
    let program = callgrind::program("x520", "instructions", None)?;
    let mut said = Vec::new();
    for case in CASES {
        let now = per_packet(&program, case.name, 32)?;
        said.push(format!("{} {now}", case.name));
        if now > case.kept * TOLERANCE {
            bail!(
                "x520: {} takes {now} instructions a packet, kept are {}; if it has to be, change mk/src/bench/nic.rs",
                case.name,
                case.kept
            );
        }
    }
    Ok(format!("x520, instructions a packet: {}", said.join(", ")))
}
