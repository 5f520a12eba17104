//! What a core has found in its banks of machine checks. `machine_check.rs` fills and reads it.

use core::sync::atomic::{AtomicBool, AtomicU64};
use mca::MAX_ERRORS;

/// No address. No page begins here.
pub(super) const NONE: u64 = u64::MAX;

/// What a core has found in its banks. It writes its own one, and the judge reads it after they have met.
pub struct Slot {
    pub(super) global: AtomicU64,
    /// 0 for the host, otherwise the guest's number plus one.
    pub(super) place: AtomicU64,
    /// Bank, status, address and further register of each error.
    pub(super) errors: [[AtomicU64; 4]; MAX_ERRORS],
    /// Number of errors.
    pub(super) count: AtomicU64,
    pub(super) more: AtomicBool,
    /// Start of the location at which it was last hit in host mode.
    pub(super) last: AtomicU64,
}

impl Slot {
    /// Nothing was found.
    pub const fn new() -> Self {
        Self {
            global: AtomicU64::new(0),
            place: AtomicU64::new(0),
            errors: [const { [const { AtomicU64::new(0) }; 4] }; MAX_ERRORS],
            count: AtomicU64::new(0),
            more: AtomicBool::new(false),
            last: AtomicU64::new(NONE),
        }
    }
}
