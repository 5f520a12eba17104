//! Traces in the formats of other programs.

pub mod folded;
pub mod json;
pub mod pcapng;
pub mod perfetto;
pub mod svg;
