//! The output that the README shows is what the program prints of the recorded session.

use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// What the program prints of a moment of the session.
fn printed(until: &str, arguments: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore-console"));
    let command = command.args(["--replay", "tests/session.txt", "--speed", "0", "--until", until, "--once"]);
    let output = command.args(arguments.split_whitespace()).current_dir(folder()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.trim().to_owned()).collect()
}

/// Whether the lines are in the output, in this order. Lines may be left out.
fn is_shortened(lines: &[String], output: &[String]) -> bool {
    let mut output = output.iter();
    lines.iter().all(|line| output.any(|other| other == line))
}

#[test]
fn each_output_in_the_readme_is_that_of_the_program() {
    let text = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let mut blocks = text.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = |block: &str| -> Vec<String> { block.trim_end().lines().map(|line| line.trim().to_owned()).collect() };
    // The first one is whole.
    assert_eq!(lines(blocks.next().unwrap()), printed("18", "--view guest --detail a"));
    let mut steps = 0;
    for block in blocks {
        let Some(arguments) = block.trim_start().strip_prefix("$ seen ").and_then(|rest| rest.lines().next()) else {
            continue;
        };
        let (shown, output) = (lines(block), printed("40.5", arguments));
        assert!(is_shortened(&shown[1..], &output), "{block}\nis not in\n{}", output.join("\n"));
        steps += 1;
    }
    assert_eq!(steps, 6);
}
