//! What holds for rings of either form, on packed rings.

use virtio::config::Features;

/// Every feature.
const ALL: Features = Features::all();
/// No feature that need not be.
const PLAIN: Features = Features::VERSION_1.union(Features::RING_PACKED);
/// Whether rings are packed.
const PACKED: bool = true;

include!("forms.rs");
