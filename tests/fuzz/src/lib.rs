//! Fuzz targets: functions that take any bytes and panic if something is wrong.
//!
//! Each is also a test that runs with a fixed number of random inputs, and a program: `cargo run -p fuzz --bin fuzz-NAME
//! FILES` replays files, and with the feature `libfuzzer` it looks for new inputs (README.md says how).

#![allow(unsafe_code, reason = "memory is given to a model of a device")]

// The same driver on the same model as in the driver's own tests.
#[path = "../../../drivers/x520/tests/on_model/bench.rs"]
#[allow(dead_code, missing_docs, reason = "what the driver's other tests need")]
mod bench;
pub mod block;
pub mod console;
pub mod conversation;
pub mod elf;
// The same images as in the crate's own tests.
#[path = "../../../kernel/gpt/src/tests/image.rs"]
#[allow(dead_code, missing_docs, reason = "what the crate's own tests need")]
mod gpt_image;
mod hostile;
mod input;
mod late;
pub mod nvme;
#[path = "../../../drivers/nvme/tests/on_model/bench.rs"]
#[allow(dead_code, missing_docs, reason = "what the driver's other tests need")]
mod nvme_bench;
mod orderly;
pub mod partitions;
mod play;
pub mod x520;
