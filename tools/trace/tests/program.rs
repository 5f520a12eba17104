//! The program as it is called: its exit codes, its outputs, and how a recording ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use trace::stream::{ChunkWriter, Clock, HeaderWriter, NOTHING, Table};
use trace::{Kind, Record};

/// A header and two exits.
fn saved() -> Vec<u8> {
    let mut buffer = [0; 4096];
    let mut header = HeaderWriter::new(&mut buffer, Clock { tsc_khz: 1_000_000, wall: 0, tsc: 0 }).unwrap();
    header.name(Table::Guest, 0, NOTHING, "alpha").unwrap();
    header.name(Table::Reason, 0, NOTHING, "cpuid").unwrap();
    let mut all = header.finish().to_vec();
    let mut chunk = ChunkWriter::new(&mut buffer, 2, 0, 0).unwrap();
    for tsc in [1_000, 5_000] {
        chunk.push(Record { guest: 0, span: 500, ..Record::new(Kind::Exit, tsc) }).unwrap();
    }
    all.extend_from_slice(chunk.finish());
    all
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore-trace"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn exit_codes_are_those_of_the_help() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, text, out) = (path(folder.path(), "a"), path(folder.path(), "text"), path(folder.path(), "out"));
    fs::write(&trace, saved()).unwrap();
    fs::write(&text, "no trace").unwrap();
    let socket = format!("unix:{}", path(folder.path(), "nobody"));
    let unmade = path(folder.path(), "missing/out");
    let cases: [(i32, &str, &[&str]); 12] = [
        (0, "", &["report", &trace]),
        (0, "", &["export", &trace, "--format", "perfetto", "-o", &out]),
        (1, &unmade, &["export", &trace, "--format", "json", "-o", &unmade]),
        (2, "--format", &["export", &trace, "-o", &out]),
        (2, "no speed", &["record", "--from", "serial:/dev/ttyS0@x", "-o", &out]),
        (2, "cannot be told", &["record", "--from", "-", "-o", &out, "exits"]),
        (3, "nobody", &["record", "--from", &socket, "-o", &out]),
        (4, "cannot read", &["report", "/nowhere"]),
        (4, "is no trace", &["report", &text]),
        (4, "it has: alpha", &["report", &trace, "--guest", "beta"]),
        (4, "no guest `beta`", &["report", &trace, "--symbols", "beta=x"]),
        (4, "no captured frames", &["export", &trace, "--format", "pcapng", "-o", &out]),
    ];
    for (code, sentence, arguments) in cases {
        let done = run(arguments);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(sentence) && (code == 0) == said.is_empty(), "{arguments:?}: {said}");
    }
}

#[test]
fn a_trace_whose_exits_took_no_time_has_no_picture_of_times() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, out) = (path(folder.path(), "a"), path(folder.path(), "out"));
    let mut buffer = [0; 4096];
    let mut chunk = ChunkWriter::new(&mut buffer, 2, 0, 0).unwrap();
    chunk.push(Record { guest: 0, ..Record::new(Kind::Exit, 1_000) }).unwrap();
    fs::write(&trace, chunk.finish()).unwrap();
    let done = run(&["export", &trace, "--format", "svg", "-o", &out]);
    assert_eq!((done.status.code(), fs::exists(&out).unwrap()), (Some(4), false));
    assert_eq!(run(&["export", &trace, "--format", "svg", "--by", "samples", "-o", &out]).status.code(), Some(0));
}

#[test]
fn a_report_and_an_export_go_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let trace = path(folder.path(), "a");
    fs::write(&trace, saved()).unwrap();
    let report = String::from_utf8(run(&["report", &trace]).stdout).unwrap();
    assert!(report.contains("guest alpha: 2 exits, 0.001 ms in the host"), "{report}");
    let json: serde_json::Value = serde_json::from_slice(&run(&["report", "--json", &trace]).stdout).unwrap();
    assert_eq!(json["guests"][0]["reasons"][0]["cycles"], 1_000);
    let folded = run(&["export", &trace, "--format", "folded", "-o", "-"]).stdout;
    assert_eq!(String::from_utf8(folded).unwrap(), "alpha;cpuid 1000\n");
}

#[test]
fn what_com2_said_before_is_a_source() {
    let folder = tempfile::tempdir().unwrap();
    let (com2, out) = (path(folder.path(), "com2"), path(folder.path(), "out"));
    let event = format!("{{\"event\":\"boot\"}}\n{{\"event\":\"trace\",\"data\":\"{}\"}}\n", STANDARD.encode(saved()));
    fs::write(&com2, event).unwrap();
    let done = run(&["record", "--from", &com2, "-o", &out]);
    assert_eq!(done.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&done.stderr).ends_with("2 records, 0 lost; the source has ended\n"));
    assert_eq!(fs::read(&out).unwrap(), saved());
}

fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

#[test]
fn ctrl_c_switches_the_trace_off_and_keeps_what_came() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, out) = (folder.path().join("com2"), path(folder.path(), "out"));
    let listener = UnixListener::bind(&socket).unwrap();
    let mut child = program(&["record", "--from", socket.to_str().unwrap(), "-o", &out, "exits"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (ours, _) = listener.accept().unwrap();
    let mut to = ours.try_clone().unwrap();
    let data = STANDARD.encode(saved());
    let mut steps = Vec::new();
    for line in BufReader::new(ours).lines().map_while(Result::ok).filter(|line| !line.is_empty()) {
        let command: serde_json::Value = serde_json::from_str(&line).unwrap();
        let mut said = format!("{{\"event\":\"reply\",\"id\":{},\"ok\":true}}\n", command["id"]);
        let step = command["step"].as_str().unwrap().to_owned();
        match step.as_str() {
            "save" => said.push_str(&format!("{{\"event\":\"trace\",\"data\":\"{data}\"}}\n")),
            "off" => said.push_str("{\"event\":\"trace\",\"data\":\"\",\"end\":true}\n"),
            _ => {}
        }
        to.write_all(said.as_bytes()).unwrap();
        if step == "save" {
            interrupt(&child);
        }
        steps.push(step);
    }
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    assert_eq!(steps, ["on", "save", "off"]);
    assert!(said.ends_with("2 records, 0 lost; ended by a signal\n"), "{said}");
    assert_eq!(fs::read(&out).unwrap(), saved());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let trace = path(folder.path(), "a");
    fs::write(&trace, saved()).unwrap();
    let mut child = program(&["export", &trace, "--format", "json", "-o", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let done = thread::spawn(move || child.wait_with_output().unwrap()).join().unwrap();
    assert_eq!((done.status.code(), done.stderr), (Some(0), Vec::new()));
}
