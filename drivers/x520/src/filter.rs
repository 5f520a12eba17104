//! The receive filter: what is the 82599's (data sheet 7.1.1).

pub use intel_nic::filter::Filter;

/// Most unicast addresses in the filter besides the device's own.
pub const MAX_ADDRESSES: usize = 127;
