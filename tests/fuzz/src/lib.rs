//! Fuzz targets: functions that take any bytes and panic if something is wrong.
//!
//! Each is also a test that runs with a fixed number of random inputs, and a program: `cargo run -p fuzz --bin fuzz-NAME
//! FILES` replays files and the files of folders, and with the feature `libfuzzer` it looks for new inputs (README.md says how).

#![allow(unsafe_code, reason = "memory is given to a model of a device")]

pub mod agent;
pub mod apic;
// The same driver on the same model as in the driver's own tests.
#[path = "../../../drivers/x520/tests/on_model/bench.rs"]
#[allow(dead_code, missing_docs, reason = "what the driver's other tests need")]
mod bench;
pub mod block;
pub mod bzimage;
pub mod channel;
pub mod commands;
pub mod console;
pub mod console_tool;
pub mod conversation;
pub mod elf;
pub mod emulate;
pub mod entropy;
pub mod firmware;
// The same images as in the crate's own tests.
#[path = "../../../kernel/gpt/src/tests/image.rs"]
#[allow(dead_code, missing_docs, reason = "what the crate's own tests need")]
mod gpt_image;
mod hostile;
pub mod igb;
#[path = "../../../drivers/igb/tests/on_model/bench.rs"]
#[allow(dead_code, missing_docs, reason = "what the driver's other tests need")]
mod igb_bench;
mod input;
mod late;
pub mod nvme;
#[path = "../../../drivers/nvme/tests/on_model/bench.rs"]
#[allow(dead_code, missing_docs, reason = "what the driver's other tests need")]
mod nvme_bench;
pub mod offload;
mod orderly;
pub mod partitions;
pub mod pci;
mod planted;
mod play;
pub mod records;
pub mod settings;
pub mod shadow;
pub mod trace;
pub mod uart;
pub mod vhost_user;
pub mod virtio_net;
pub mod walk;
pub mod x520;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Checks a text that says why something was refused, or what has happened: one line of a log.
fn is_line(text: &str) {
    assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
}

/// Makes the program of a target: `program!(fuzz::NAME::run);`.
#[macro_export]
macro_rules! program {
    ($target:path) => {
        #[cfg(feature = "libfuzzer")]
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $target(bytes));

        #[cfg(not(feature = "libfuzzer"))]
        fn main() -> std::process::ExitCode {
            fuzz::replay($target)
        }
    };
}

/// Runs a target on the files that the command line names, and on the files of folders.
#[must_use]
pub fn replay(target: fn(&[u8])) -> ExitCode {
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        if let Err(error) = replay_one(target, &path) {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn replay_one(target: fn(&[u8]), path: &Path) -> std::io::Result<()> {
    if !path.is_dir() {
        target(&std::fs::read(path)?);
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        target(&std::fs::read(entry?.path())?);
    }
    Ok(())
}
