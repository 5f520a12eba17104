//! Part of `cargo mk bench switch --instructions`: what the class `histograms` of the trace adds to a frame.

use anyhow::{Result, ensure};

use super::figure::Figure;
use crate::callgrind;

/// Frames that kernel/net/src/testing/forward.rs sends.
const FRAMES: u64 = 64 * 64;

/// A case, with instructions added to a frame: the aim, and the kept value, which the gate compares with.
struct Case {
    name: &'static str,
    /// The words of kernel/net/benches/counted.rs.
    words: &'static [&'static str],
    aim: f64,
    kept: f64,
}

const CASES: [Case; 2] = [
    Case { name: "in a batch", words: &["60"], aim: 8.0, kept: 8.2 },
    Case { name: "alone in its turn", words: &["60", "lone"], aim: 60.0, kept: 469.0 },
];
/// Largest ratio of a value to the kept value. A larger one is an error. These are differences of larger counts.
const TOLERANCE: f64 = 1.05;

/// Counts all cases.
fn count() -> Result<Vec<(Case, f64)>> {
    let program = callgrind::program("net", "counted", Some("testing"))?;
    let one = |case: Case| {
        let count = |words: &[&str]| callgrind::instructions(&program, words, "*measured*");
        let (without, with) = (count(case.words)?, count(&[case.words, &["histograms"]].concat())?);
        ensure!(with > without, "histograms cost {with} instructions, and {without} without them");
        Ok((case, ((with - without) as f64 / FRAMES as f64 * 10.0).round() / 10.0))
    };
    CASES.into_iter().map(one).collect()
}

/// Counts all cases, as figures.
pub fn figures() -> Result<Vec<Figure>> {
    let figure = |(case, value): (Case, f64)| Figure {
        name: format!("histograms add to a frame {}", case.name),
        value,
        unit: "",
        aim: Some(case.aim),
    };
    Ok(count()?.into_iter().map(figure).collect())
}

/// Fails if the histograms cost more than they did.
pub fn gate() -> Result<String> {
    let mut said = Vec::new();
    for (case, now) in count()? {
        ensure!(
            now <= case.kept * TOLERANCE,
            "engine: histograms add {now} instructions to a frame {}, kept are {}; if it has to be, change \
             mk/src/bench/histograms.rs",
            case.name,
            case.kept
        );
        said.push(format!("{now} {}", case.name));
    }
    Ok(format!("histograms add {}", said.join(" and ")))
}
