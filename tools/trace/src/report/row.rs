//! The columns of every table of a report.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::statistics::{Summary, Times, percent};

/// Some durations as the report shows them, in cycles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Row {
    /// How many.
    pub samples: u64,
    /// Share of the samples of all rows, in percent.
    pub samples_percent: f64,
    /// Their sum.
    pub cycles: u64,
    /// Share of the cycles of all rows, in percent.
    pub cycles_percent: f64,
    /// Shortest.
    pub min: u32,
    /// Longest. 4,294,967,295: that long or longer.
    pub max: u32,
    /// Average.
    pub average: f64,
    /// Standard error of the average, in percent of it.
    pub deviation_percent: f64,
    /// Half of them are not longer.
    pub p50: u32,
    /// 99 % of them are not longer.
    pub p99: u32,
}

impl Row {
    /// The figures of `summary`, with shares of these sums.
    #[must_use]
    pub fn new(summary: &Summary, all_samples: u64, all_cycles: u64) -> Self {
        Self {
            samples: summary.samples,
            samples_percent: percent(summary.samples, all_samples),
            cycles: summary.total,
            cycles_percent: percent(summary.total, all_cycles),
            min: summary.min,
            max: summary.max,
            average: summary.average,
            deviation_percent: summary.deviation,
            p50: summary.p50,
            p99: summary.p99,
        }
    }

    /// The only row of its table.
    #[must_use]
    pub fn alone(times: Times) -> Self {
        let summary = times.summary();
        Self::new(&summary, summary.samples, summary.total)
    }
}

/// Rows of times by key, with shares of their sums: what took the most cycles first.
#[must_use]
pub fn rows<K: Clone + Ord>(times: BTreeMap<K, Times>) -> Vec<(K, Row)> {
    let summaries: Vec<(K, Summary)> = times.into_iter().map(|(key, times)| (key, times.summary())).collect();
    let sum =
        |of: fn(&Summary) -> u64| summaries.iter().fold(0_u64, |sum, (_, summary)| sum.saturating_add(of(summary)));
    let (samples, cycles) = (sum(|summary| summary.samples), sum(|summary| summary.total));
    let mut rows: Vec<(K, Row)> =
        summaries.iter().map(|(key, summary)| (key.clone(), Row::new(summary, samples, cycles))).collect();
    rows.sort_by(|(a, x), (b, y)| y.cycles.cmp(&x.cycles).then(y.samples.cmp(&x.samples)).then(a.cmp(b)));
    rows
}
