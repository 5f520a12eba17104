//! What holds for rings of either form, on split rings.

use crate::features::Features;
use crate::testing::SPLIT;

/// Every feature.
const ALL: Features = SPLIT;
/// No feature that need not be.
const PLAIN: Features = Features::VERSION_1;
/// Whether rings are packed.
const PACKED: bool = false;

include!("forms.rs");
