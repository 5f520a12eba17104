//! `sidecore-console`: shows what a running sidecore does, on the operator's own machine. The library has the code.

use std::io::{Write as _, stdout};
use std::process::ExitCode;

use clap::Parser as _;
use sidecore_console::{app, exit, once, options::Options};

fn main() -> ExitCode {
    // A wrong command line ends the program with exit code 2.
    let options = Options::parse();
    let result = if options.once {
        once::run(&options).and_then(|text| Ok(stdout().write_all(text.as_bytes())?)).map(|()| exit::GOOD)
    } else {
        app::run(&options)
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("sidecore-console: {}", sidecore_console::clean::clean(&format!("{error:#}"), 1000));
            ExitCode::from(exit::NO_ANSWER)
        }
    }
}
