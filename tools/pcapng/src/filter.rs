//! What tools need to know of the filter of `capture`. The machine reads it (`kernel/control/src/capture.rs`).

/// The filter that ends the capture of the same port as `filter`.
#[must_use]
pub fn off(filter: &str) -> String {
    let device = filter.split(',').filter(|word| word.starts_with("net="));
    device.chain(["off"]).collect::<Vec<_>>().join(",")
}

/// Whether a filter ends a capture.
#[must_use]
pub fn is_off(filter: &str) -> bool {
    filter.split(',').any(|word| word == "off")
}
