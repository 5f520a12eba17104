//! The program: its command line, and how it ends.
//!
//! Exit codes: 0 done, 1 an output could not be written, 2 wrong command line, 3 the machine cannot be reached, or
//! refuses, 4 the file is no trace, or has nothing of what was asked for.

mod arguments;
mod progress;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context as _, Result, anyhow};
use clap::Parser as _;
use sidecore_pcapng::live::Live;
use sidecore_pcapng::pipe::has_no_reader;
use sidecore_trace::export::{folded, json, pcapng, perfetto, svg};
use sidecore_trace::model::Trace;
use sidecore_trace::report::{self, Report};
use sidecore_trace::resolve::Resolver;
use sidecore_trace::{read, record};
use signal_hook::consts::{SIGINT, SIGTERM};

use self::arguments::{Command, Export, Format, Input, Options, Record as RecordOptions, Reported};
use self::progress::Progress;

/// An output could not be written.
const OUTPUT: u8 = 1;
/// The command line is wrong. Clap's errors have the same code.
const USAGE: u8 = 2;
/// The machine cannot be reached, or refuses.
const MACHINE: u8 = 3;
/// The file is no trace, or has nothing of what was asked for.
const INPUT: u8 = 4;

/// Who writes pcap-ng.
const APPLICATION: &str = concat!("sidecore-trace ", env!("CARGO_PKG_VERSION"));

/// What went wrong, with the exit code for it.
struct Failure(u8, anyhow::Error);

/// Gives an error its exit code.
trait At<T> {
    fn at(self, code: u8) -> Result<T, Failure>;
}

impl<T> At<T> for Result<T> {
    fn at(self, code: u8) -> Result<T, Failure> {
        self.map_err(|error| Failure(code, error))
    }
}

fn main() -> ExitCode {
    let done = match Options::parse().command {
        Command::Record(options) => record(&options),
        Command::Report(options) => report(&options),
        Command::Export(options) => export(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // `sidecore-trace report FILE | head` is no error.
        Err(Failure(OUTPUT, error)) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(Failure(code, error)) => {
            eprintln!("sidecore-trace: {error:#}");
            ExitCode::from(code)
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
}

/// Takes a trace from a machine into a file.
fn record(options: &RecordOptions) -> Result<(), Failure> {
    let connection = options.from.open().at(MACHINE)?;
    if connection.to.is_none() && (options.classes.is_some() || options.stop_when_full || !options.capture.is_empty()) {
        return Err(anyhow!("{} cannot be told what to trace", options.from)).at(USAGE);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot wait for signals").at(MACHINE)?;
    }
    let what = || format!("cannot write {}", options.output.display());
    let (is_pipe, mut live) = (options.output == Path::new("-"), None);
    let mut out: Box<dyn Write> = if is_pipe {
        Box::new(stdout())
    } else {
        Box::new(File::create(&options.output).with_context(what).at(OUTPUT)?)
    };
    let is_pcapng = !options.capture.is_empty() && (is_pipe || options.output.extension() == Some("pcapng".as_ref()));
    let out: &mut dyn Write =
        if is_pcapng { live.insert(Live::new(out, APPLICATION).with_context(what).at(OUTPUT)?) } else { &mut out };
    let mut progress = Progress::new(io::stderr().is_terminal());
    let wanted = record::Options {
        classes: options.classes.clone().unwrap_or_default(),
        stop_when_full: options.stop_when_full,
        shared: options.shared,
        captures: options.capture.clone(),
        seconds: options.seconds,
        records: options.records,
    };
    // Blocks of pcap-ng go out as they come.
    let out: Box<dyn Write> = if is_pcapng { Box::new(out) } else { Box::new(BufWriter::new(out)) };
    let done = record::record(connection, &wanted, &stop, out, |state| {
        progress.show(state);
        if is_pipe && has_no_reader(&stdout()) {
            stop.store(true, Relaxed);
        }
    });
    progress.end();
    if let Some(live) = &mut live {
        live.end().with_context(what).at(OUTPUT)?;
    }
    match done {
        Ok(done) => {
            let (file, state) = (options.output.display(), done.state);
            eprintln!("{file}: {} records, {} lost; {done}", state.records, state.lost);
            Ok(())
        }
        Err(record::Error::Output(error)) => Err(error).with_context(what).at(OUTPUT),
        Err(record::Error::Machine(sentence)) => Err(anyhow!("{}: {sentence}", options.from)).at(MACHINE),
    }
}

/// Reads a trace, without what was not asked for.
fn read(input: &Input) -> Result<(Trace, Resolver), Failure> {
    let mut trace = read::file(&input.file).at(INPUT)?;
    let resolver = Resolver::new(&input.symbols, &trace).at(INPUT)?;
    trace.keep_guests(&input.guest).at(INPUT)?;
    Ok((trace, resolver))
}

/// Prints what a trace says.
fn report(options: &Reported) -> Result<(), Failure> {
    let (trace, resolver) = read(&options.input)?;
    let report = Report::new(&trace, &resolver, options.by_rip.then_some(options.top));
    let mut out = BufWriter::new(stdout().lock());
    let written = if options.json {
        serde_json::to_writer(&mut out, &report).map_err(io::Error::from).and_then(|()| out.write_all(b"\n"))
    } else {
        report::text::print(&report, &mut out)
    };
    written.and_then(|()| out.flush()).context("cannot write the report").at(OUTPUT)
}

/// Writes an export to a file or to standard output.
type Writing<'a> = Box<dyn FnOnce(&mut dyn io::Write) -> Result<()> + 'a>;

/// Writes a trace in another format.
fn export(options: &Export) -> Result<(), Failure> {
    let (trace, resolver) = read(&options.input)?;
    let stacks = || folded::stacks(&trace, options.by.into(), |event| resolver.frame(event));
    // What the trace does not have is found before the file is made.
    let write: Writing<'_> = match options.format {
        Format::Perfetto => Box::new(|mut out| Ok(perfetto::write(&trace, &mut out)?)),
        Format::Json => {
            let symbol = |event: &_| resolver.function(event).map(|(name, _)| name);
            Box::new(move |mut out| Ok(json::write(&trace, symbol, &mut out)?))
        }
        Format::Folded => Box::new(|mut out| Ok(folded::write(&stacks(), &mut out)?)),
        Format::Svg => {
            let stacks = stacks();
            if svg::is_empty(&stacks) {
                return Err(anyhow!("{} has no exit to draw", options.input.file.display())).at(INPUT);
            }
            Box::new(move |mut out| svg::write(&stacks, options.by.into(), &mut out))
        }
        Format::Pcapng => {
            if trace.captures.is_empty() {
                let sentence = "has no captured frames: record them with --capture";
                return Err(anyhow!("{} {sentence}", options.input.file.display())).at(INPUT);
            }
            Box::new(|out| pcapng::write(&trace, out))
        }
    };
    let write = |out: &mut dyn io::Write| {
        let mut out = BufWriter::new(out);
        write(&mut out)?;
        Ok(out.flush()?)
    };
    if options.output == Path::new("-") {
        write(&mut stdout().lock()).context("cannot write the export").at(OUTPUT)
    } else {
        let what = || format!("cannot write {}", options.output.display());
        File::create(&options.output)
            .map_err(anyhow::Error::from)
            .and_then(|mut file| write(&mut file))
            .with_context(what)
            .at(OUTPUT)
    }
}
