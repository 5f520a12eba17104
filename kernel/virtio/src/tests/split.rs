//! What holds for rings of either form, on split rings.

use crate::config::Features;

/// No feature that need not be.
const PLAIN: Features = Features::VERSION_1;

include!("forms.rs");
