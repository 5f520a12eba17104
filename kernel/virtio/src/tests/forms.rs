// Tests that hold for both ring formats. `packed.rs` and `split.rs` include them and choose the format.

#[path = "ring.rs"]
mod ring;
