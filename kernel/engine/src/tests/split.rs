//! What holds for rings of either form, on split rings.

use virtio::config::Features;

/// Every feature.
const ALL: Features = Features::all().difference(Features::RING_PACKED);
/// No feature that need not be.
const PLAIN: Features = Features::VERSION_1;
/// Whether rings are packed.
const PACKED: bool = false;

include!("forms.rs");
