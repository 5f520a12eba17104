//! Converts counters to the form that COM2 and the operator's tables use.

use alloc::vec::Vec;
use control::{Count, ExitCount};
use machine::reason::Histogram;

/// Counters by name. Those that are 0 are left out.
pub fn by_name(all: impl Iterator<Item = (&'static str, u64)>) -> Vec<Count> {
    all.filter(|&(_, count)| count != 0).map(|(kind, count)| Count { kind: kind.into(), count }).collect()
}

/// A vCPU's exits by reason. Reasons without exits are left out.
pub fn exits(histogram: &Histogram) -> Vec<ExitCount> {
    histogram
        .iter()
        .filter(|&(_, count, _)| count != 0)
        .map(|(reason, count, cycles)| ExitCount { reason: reason.name().into(), count, cycles })
        .collect()
}
