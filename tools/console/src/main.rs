//! `sidecore-console`: shows what a running sidecore does, on the operator's own machine. The library has the code.

use std::io::{Write as _, stdout};
use std::process::ExitCode;

use clap::Parser as _;
use sidecore_console::{app, once, options::Options};

/// Exit code: there was no connection, no answer, no file, or no terminal.
const NO_ANSWER: u8 = 3;

fn main() -> ExitCode {
    // A wrong command line ends the program with exit code 2.
    let options = Options::parse();
    let result = if options.once {
        once::run(&options).and_then(|text| Ok(stdout().write_all(text.as_bytes())?))
    } else {
        app::run(&options)
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sidecore-console: {}", sidecore_console::clean::clean(&format!("{error:#}"), 1000));
            ExitCode::from(NO_ANSWER)
        }
    }
}
