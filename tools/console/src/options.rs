//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Parser};
use sidecore_trace::record::Capture;
use sidecore_trace::symbols::Choice;

use crate::views::View;

/// The ways to a machine that runs.
const LIVE: [&str; 4] = ["socket", "tcp", "serial", "ssh"];

/// Shows what a running sidecore does: its cores, engines, guests, ports and disks.
#[derive(Clone, Debug, Parser)]
#[command(name = "sidecore-console", version)]
#[command(group = ArgGroup::new("way").required(true).args(["socket", "tcp", "serial", "ssh", "replay"]))]
pub struct Options {
    /// A UNIX socket with COM2 behind it, such as QEMU's.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// A TCP port with COM2 behind it, such as a console server's.
    #[arg(long, value_name = "HOST:PORT")]
    pub tcp: Option<String>,
    /// A serial device.
    #[arg(long, value_name = "DEVICE")]
    pub serial: Option<PathBuf>,
    /// The serial device's speed.
    #[arg(long, value_name = "BAUD", default_value_t = 115_200, conflicts_with_all = ["socket", "tcp", "ssh", "replay"])]
    pub baud: u32,
    /// The port is people's too (`json=` on sidecore's command line names it): only lines that begin with the byte 0x1e are read, and
    /// each request begins with it.
    #[arg(long, conflicts_with_all = ["ssh", "replay"])]
    pub shared: bool,
    /// A host that the system's ssh logs in to, by a key.
    #[arg(long, value_name = "HOST")]
    pub ssh: Option<String>,
    /// What ssh runs there: a program that passes sidecore's JSON lines on.
    #[arg(long, value_name = "COMMAND", default_value = "sidecore-agent pipe", conflicts_with_all = ["socket", "tcp", "serial", "replay"])]
    pub command: String,
    /// A recording, or the log of a COM2.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// How many times faster than it was recorded. 0: without pauses.
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, conflicts_with_all = LIVE, value_parser = speed)]
    pub speed: f64,
    /// Ends the recording after so many seconds of it.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = LIVE, value_parser = until)]
    pub until: Option<f64>,
    /// Seconds between two requests for counters.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// The view that is shown first.
    #[arg(long, value_enum, default_value_t)]
    pub view: View,
    /// Of one engine, guest, port or disk of that view, by its name: `0`, `alpha`, `alpha:0`.
    #[arg(long, value_name = "NAME")]
    pub detail: Option<String>,
    /// Prints the view once as text of 80 columns, from two readings, and ends.
    #[arg(long)]
    pub once: bool,
    /// Prints it as a JSON object instead.
    #[arg(long, requires = "once")]
    pub json: bool,
    /// Seconds that --once waits for the readings.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = interval)]
    pub wait: f64,
    /// Has the machine trace exits, and record how long they take, while this program runs: the key `t` from the beginning.
    #[arg(long, conflicts_with = "replay")]
    pub trace: bool,
    /// Names the functions of a guest's kernel, as `sidecore-trace --symbols` does: the kernel that it boots, a vmlinux, or its
    /// /proc/kallsyms.
    #[arg(long, value_name = "GUEST=FILE")]
    pub symbols: Vec<Choice>,
    /// Where the key `c` of the view of ports writes captured frames, as pcap-ng while they come: a file, a named pipe, or the input
    /// of a program, as in --capture '|wireshark -k -i -'.
    #[arg(long, value_name = "FILE|COMMAND", conflicts_with = "replay")]
    pub capture: Option<String>,
    /// What the key `c` captures, in place of the chosen port: a guest or an uplink, and the words of a filter.
    #[arg(long, value_name = "NAME[=FILTER]", requires = "capture")]
    pub capture_of: Option<Capture>,
    /// Writes what the machine sends to a file, with times. The file must not exist.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Largest size of that file in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024, requires = "record")]
    pub record_limit: u64,
}

fn speed(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1_000_000.0)
}

fn until(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1e9)
}

fn interval(text: &str) -> Result<f64, String> {
    number(text, 0.1, 3600.0)
}

fn number(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (least..=most).contains(&value) { Ok(value) } else { Err(format!("expected {least} to {most}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Options, clap::error::ErrorKind> {
        let words = std::iter::once("sidecore-console").chain(words.split_whitespace());
        Options::try_parse_from(words).map_err(|error| error.kind())
    }

    #[test]
    fn exactly_one_way_to_the_machine_is_needed() {
        use clap::error::ErrorKind::{ArgumentConflict, MissingRequiredArgument, ValueValidation};
        assert_eq!(parse("").unwrap_err(), MissingRequiredArgument);
        assert_eq!(parse("--socket a --tcp b:1").unwrap_err(), ArgumentConflict);
        assert_eq!(parse("--socket a --speed 2").unwrap_err(), ArgumentConflict);
        assert_eq!(parse("--socket a --json").unwrap_err(), MissingRequiredArgument);
        assert_eq!(parse("--ssh a --shared").unwrap_err(), ArgumentConflict);
        assert!(parse("--serial a --shared").unwrap().shared);
        assert_eq!(parse("--replay a --speed nan").unwrap_err(), ValueValidation);
        assert_eq!(parse("--replay a --interval 0").unwrap_err(), ValueValidation);
        let options = parse("--ssh host --view guest --detail a --once --json").unwrap();
        assert_eq!((&*options.command, options.view), ("sidecore-agent pipe", View::Guest));
    }
}
