//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sidecore_trace::export::folded::Weight;
use sidecore_trace::record::Capture;
use sidecore_trace::record::source::Source;
use sidecore_trace::symbols::Choice;

/// Records what a sidecore machine does, and shows why guests exit and what the engines work on.
#[derive(Parser)]
#[command(name = "sidecore-trace", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Example:
  sidecore-trace record --from unix:/tmp/com2 --seconds 10 -o a.trace
  sidecore-trace report a.trace --by-rip --symbols alpha=vmlinuz
  sidecore-trace export a.trace --format perfetto -o a.perfetto-trace
  sidecore-trace record --from unix:/tmp/com2 --capture alpha -o - | wireshark -k -i -

Exit codes:
  0 done, 1 output not writable, 2 wrong command line, 3 machine not reachable or refuses, 4 no trace or nothing in it";

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    Record(Record),
    Report(Reported),
    Export(Export),
}

/// Takes a trace from a machine into a file, until Ctrl-C.
///
/// It switches the classes on, has the machine send what its cores write, and switches the trace off at the end. Then it
/// takes what is left in the machine's rings; a second Ctrl-C ends that. COM2 carries about 250 records a second at 115,200
/// baud. The machine counts what it writes faster and has no room for.
#[derive(Args)]
pub struct Record {
    /// Where the machine's COM2 is: unix:PATH (QEMU's socket), tcp:HOST:PORT, serial:DEVICE[@BAUD], file:PATH (what COM2
    /// said before), - (standard input), or a path of one of these.
    #[arg(long, value_name = "SOURCE")]
    pub from: Source,
    /// The port is people's too (`json=` on sidecore's command line names it): only lines that begin with the byte 0x1e are read, and
    /// each command begins with it.
    #[arg(long)]
    pub shared: bool,
    /// The file for the trace, or - for standard output. With --capture, a name that ends in .pcapng and standard output get pcap-ng
    /// while the frames come, such as for: record --capture alpha -o - | wireshark -k -i -
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// What to trace: names of classes with commas between them, such as exits,visits. Without it, the machine chooses. The
    /// machine names its classes if one is wrong.
    #[arg(value_name = "CLASSES")]
    pub classes: Option<String>,
    /// When the ring of a core is full, drops new records, not the oldest ones.
    #[arg(long)]
    pub stop_when_full: bool,
    /// Captures the frames of this guest's port or of this uplink instead: its first bytes, length, time and fate. May be repeated. A filter is
    /// words with commas between them: in, out, mac=M, ethertype=E, vlan=V, 1/N, bytes=N, net=N.
    #[arg(long, value_name = "NAME[=FILTER]", conflicts_with_all = ["classes", "stop_when_full"])]
    pub capture: Vec<Capture>,
    /// Ends after so many seconds.
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,
    /// Ends as soon as there are so many records.
    #[arg(long, value_name = "N")]
    pub records: Option<u64>,
}

/// A trace that was recorded, and what of it.
#[derive(Args)]
pub struct Input {
    /// The trace.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Only what concerns this guest. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub guest: Vec<String>,
    /// Names the functions of a guest's kernel: the kernel that it boots (bzImage), a vmlinux, a System.map, or its
    /// /proc/kallsyms (read as root). The offset of KASLR is found from the trace, or given as in alpha=vmlinuz+0x1e000000.
    #[arg(long, value_name = "GUEST=FILE")]
    pub symbols: Vec<Choice>,
}

/// Prints exits by guest and reason, turns and visits of engines, stages of frames and requests.
#[derive(Args)]
pub struct Reported {
    #[command(flatten)]
    pub input: Input,
    /// One JSON object, with times in cycles.
    #[arg(long)]
    pub json: bool,
    /// Also the instructions that exits came from.
    #[arg(long)]
    pub by_rip: bool,
    /// With --by-rip: at most so many a guest and reason.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
}

/// Writes a trace in a format that other programs read.
#[derive(Args)]
pub struct Export {
    #[command(flatten)]
    pub input: Input,
    /// The format.
    #[arg(long, value_enum)]
    pub format: Format,
    /// The file to write, or - for standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// What folded stacks and flame graphs count.
    #[arg(long, value_enum, default_value_t = By::Time)]
    pub by: By,
}

/// A format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For ui.perfetto.dev: a track for each core, vCPU, queue and port.
    Perfetto,
    /// Captured frames, for Wireshark: an interface for each port.
    Pcapng,
    /// Stacks of exits by guest, reason and function, one a line.
    Folded,
    /// The same as a flame graph, for a browser.
    Svg,
    /// One record a line.
    Json,
}

/// What stacks count.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Nanoseconds in the host.
    Time,
    /// Exits.
    Samples,
}

impl From<By> for Weight {
    fn from(by: By) -> Self {
        match by {
            By::Time => Self::Time,
            By::Samples => Self::Samples,
        }
    }
}
