//! Tests that hold for both ring formats, on split rings.

use crate::config::Features;

/// Only the feature that is required.
const PLAIN: Features = Features::VERSION_1;

include!("forms.rs");
