//! Part of `cargo mk bench switch --instructions`: what a frame of an attacker costs the engine, and what the engine's
//! back-end says that it costs (kernel/net/src/testing/attackers.rs).

use anyhow::{Result, ensure};

use super::figure::Figure;
use crate::{callgrind, fetch};

/// The attackers, by their names in kernel/net/src/testing/attackers.rs.
const NAMES: [&str; 10] = [
    "broadcasts",
    "multicasts",
    "small-segments",
    "segments-for-all",
    "segments-for-nobody",
    "long-chains",
    "tiny-buffers",
    "short-buffers",
    "no-buffers",
    "mirrored",
];
/// Largest difference of what is charged from what was counted, as a part of it. Aim of SECURITY.md.
const CHARGE: f64 = 0.05;
/// Largest difference of what was counted from what the tests in virtual time take for it.
const KEPT: f64 = 0.02;

/// What was counted for one attacker.
pub struct Count {
    name: &'static str,
    /// Instructions of a frame, copies included.
    counted: f64,
    /// What the back-end says of a frame, as a part of that.
    charged: f64,
    /// What the tests take for the instructions of a frame, as a part of them.
    kept: f64,
}

/// Counts for all attackers.
pub fn count() -> Result<Vec<Count>> {
    fetch::ensure(false)?;
    let program = callgrind::program("net", "attackers", Some("testing"))?;
    NAMES
        .into_iter()
        .map(|name| {
            let (instructions, said) = callgrind::instructions_and_output(&program, &[name], "*measured*")?;
            Count::read(name, instructions, &said)
        })
        .collect()
}

impl Count {
    /// Reads a line of the benchmark: the frames, the work of all of them, and what the tests take for a frame.
    fn read(name: &'static str, instructions: u64, said: &str) -> Result<Self> {
        let numbers: Vec<f64> = said.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [frames, work, kept] = numbers[..] else {
            anyhow::bail!("{said:?} is not what an attacker says");
        };
        ensure!(frames > 0.0 && work > 0.0, "{name} has sent nothing");
        let counted = instructions as f64 / frames;
        let part = |of: f64| (of / counted * 1000.0).round() / 1000.0;
        Ok(Self { name, counted: counted.round(), charged: part(work / frames), kept: part(kept) })
    }

    /// Its figures.
    pub fn figures(&self) -> impl Iterator<Item = Figure> {
        let figure = |name, value, aim| Figure { name, value, unit: "", aim };
        [
            figure(format!("a frame of the attacker `{}`", self.name), self.counted, None),
            figure(format!("`{}`: charged / counted, distance from 1", self.name), off(self.charged), Some(CHARGE)),
            figure(
                format!("`{}`: kept by the tests / counted, distance from 1", self.name),
                off(self.kept),
                Some(KEPT),
            ),
        ]
        .into_iter()
    }

    /// Fails if the charge is wrong, or if the tests in virtual time take a wrong figure.
    pub fn check(&self) -> Result<()> {
        let Self { name, counted, charged, kept } = self;
        ensure!(
            off(*charged) <= CHARGE,
            "engine: a frame of the attacker `{name}` takes {counted} instructions, and {charged} times that is charged; see \
             kernel/net/src/work.rs"
        );
        ensure!(
            off(*kept) <= KEPT,
            "engine: a frame of the attacker `{name}` takes {counted} instructions, and kernel/net/src/testing/attackers.rs has \
             {kept} times that"
        );
        Ok(())
    }
}

/// The distance of a part from 1, to three decimals.
fn off(part: f64) -> f64 {
    ((part - 1.0).abs() * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(said: &str) -> Result<()> {
        Count::read("some", 200_000, said)?.check()
    }

    #[test]
    fn the_benchmark_shows_what_the_gate_checks() {
        let met = |said| Count::read("some", 200_000, said).unwrap().figures().all(|figure| figure.is_met());
        assert!(met("100 190000 1960") && !met("100 189000 2000") && !met("100 200000 1950"));
    }

    #[test]
    fn a_charge_may_be_five_percent_off_and_a_kept_figure_two() {
        assert!(of("100 190000 1960\n").is_ok() && of("100 210000 2040\n").is_ok());
        for wrong in
            ["100 189000 2000", "100 211000 2000", "100 200000 1950", "100 200000 2050", "0 1 1", "100 0 1", "", "a"]
        {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
