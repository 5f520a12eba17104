//! The fuzz target for conversations with a console device, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

#[cfg(feature = "libfuzzer")]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::console::run(bytes));

#[cfg(not(feature = "libfuzzer"))]
fn main() -> std::process::ExitCode {
    for path in std::env::args_os().skip(1) {
        match std::fs::read(&path) {
            Ok(bytes) => fuzz::console::run(&bytes),
            Err(error) => {
                eprintln!("{}: {error}", path.display());
                return std::process::ExitCode::FAILURE;
            }
        }
    }
    std::process::ExitCode::SUCCESS
}
