//! Tests that hold for both ring formats, on packed rings.

use crate::config::Features;

/// Only the features that are required.
const PLAIN: Features = Features::VERSION_1.union(Features::RING_PACKED);

include!("forms.rs");
