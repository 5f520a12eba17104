//! Converts counters to the form that COM2 and the operator's tables use.

use alloc::vec::Vec;
use control::{Count, ExitCount, NoMemory};
use machine::reason::Histogram;

/// Counters by name. Those that are 0 are left out.
///
/// # Errors
/// There is no memory for them.
pub fn by_name(all: impl Iterator<Item = (&'static str, u64)>) -> Result<Vec<Count>, NoMemory> {
    control::collect(all.filter(|&(_, count)| count != 0).map(|(kind, count)| Ok(Count { kind: kind.into(), count })))
}

/// A vCPU's exits by reason. Reasons without exits are left out.
///
/// # Errors
/// There is no memory for them.
pub fn exits(histogram: &Histogram) -> Result<Vec<ExitCount>, NoMemory> {
    let some = histogram.iter().filter(|&(_, count, _)| count != 0);
    control::collect(some.map(|(reason, count, cycles)| Ok(ExitCount { reason: reason.name().into(), count, cycles })))
}
