//! What holds for rings of either form, on packed rings.

use crate::config::Features;

/// No feature that need not be.
const PLAIN: Features = Features::VERSION_1.union(Features::RING_PACKED);

include!("forms.rs");
