// The tests of what holds for rings of either form. `packed.rs` and `split.rs` include them and say which form it is.

#[path = "ring.rs"]
mod ring;
