//! Shares of the last-level cache and of the memory bandwidth: decided once, and written by each core that joins a class.

#![allow(unsafe_code, reason = "writes MSRs")]

use crate::{heap::For, report};
use alloc::{format, string::String, vec::Vec};
use config::Config;
use core::arch::x86_64::__cpuid_count;
use drivers::cache::{Allocation, Classes, Share};
use spin::Once;
use x86_64::registers::model_specific::Msr;

/// The name of a guest, or `None` for the engine.
type Owner<S> = Option<S>;

/// The classes, and the owner of each but class 0.
static CLASSES: Once<(Classes, Vec<Owner<String>>)> = Once::new();

/// Divides cache and bandwidth as the configuration says, and reports it. If the CPU cannot, the report says so and nothing is
/// divided.
pub fn divide(config: &Config) {
    let of = |share: config::Share| Share { cache: share.cache, bandwidth: share.bandwidth };
    let engine = config.engines.first().map(|engine| (None, of(engine.share)));
    let guests = config.guests.iter().map(|guest| (Some(guest.name.clone()), of(guest.share)));
    let wanted: Vec<_> = engine.into_iter().chain(guests).filter(|(_, share)| share.is_wanted()).collect();
    if wanted.is_empty() {
        return;
    }
    let shares: Vec<_> = wanted.iter().map(|&(_, share)| share).collect();
    let allocation = Allocation::from_cpuid(|leaf, subleaf| {
        let r = __cpuid_count(leaf, subleaf);
        [r.eax, r.ebx, r.ecx, r.edx]
    });
    let classes = match allocation.divide(&shares) {
        Ok(classes) => classes,
        Err(why) => return report::fallback(format!("`cache` and `bandwidth` have no effect: {why}")),
    };
    if let Some(rest) = classes.ways(0) {
        let parts = wanted.iter().enumerate().filter(|(_, (_, share))| share.cache.is_some());
        let parts: Vec<_> = parts
            .map(|(n, (owner, _))| format!("{} {}", name(owner), classes.ways(n.saturating_add(1)).unwrap_or(0)))
            .collect();
        report::decision(format!("ways of the last-level cache: {}, everything else {rest}", parts.join(", ")));
    }
    for (owner, share) in &wanted {
        if let Some(percent) = share.bandwidth {
            report::decision(format!("memory bandwidth: {} at most {percent} %", name(owner)));
        }
    }
    // Each core looks for its own class.
    let _everybody = For::everybody();
    let owners = wanted.iter().map(|(owner, _)| owner.clone()).collect();
    CLASSES.call_once(|| (classes, owners));
}

fn name(owner: &Owner<String>) -> String {
    owner.as_ref().map_or_else(|| "the engine".into(), |name| format!("guest {name}"))
}

/// This core works for `owner` from now on.
pub fn join(owner: Owner<&str>) {
    if let Some((classes, owners)) = CLASSES.get() {
        let class = owners.iter().position(|one| one.as_deref() == owner).map_or(0, |at| at.saturating_add(1));
        for (msr, value) in classes.writes(class) {
            // SAFETY: CPUID names as many classes, ways and percents (`Allocation::divide`). The registers change nothing but how
            // fast memory is.
            unsafe { Msr::new(msr).write(value) };
        }
    }
}
