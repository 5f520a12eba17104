//! The ways to a machine, each with the program itself: UNIX socket, TCP, serial device, ssh, recording.

#[allow(dead_code, reason = "what the other tests need")]
mod support;

use std::fs::{self, File};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use support::{Folder, Machine, agent, lines, session, ssh};

fn console(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore-console"));
    command.args(arguments).args(["--once", "--json", "--view", "guest"]);
    command
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// The guests, and whether they have rates.
fn guests(output: &Output) -> Vec<(String, bool)> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sheet: Value = serde_json::from_slice(&output.stdout).unwrap();
    let guest = |guest: &Value| (guest["name"].as_str().unwrap().to_owned(), guest["exits_per_second"].is_number());
    sheet["guests"].as_array().unwrap().iter().map(guest).collect()
}

fn both() -> Vec<(String, bool)> {
    vec![("a".into(), true), ("b".into(), true)]
}

#[test]
fn by_a_unix_socket_it_asks_twice_and_shows_rates() {
    let (folder, machine) = (Folder::new(), Machine::new(0));
    let path = folder.0.join("com2");
    machine.listen(&path, |_| Duration::from_secs(60));
    let file = folder.0.join("recorded");
    let output = run(&mut console(&[
        "--socket",
        path.to_str().unwrap(),
        "--interval",
        "0.2",
        "--record",
        file.to_str().unwrap(),
    ]));
    assert_eq!(guests(&output), both());
    let requests = machine.requests.lock().unwrap().clone();
    // An end for what somebody may have left unfinished comes first.
    assert_eq!(requests[0], "");
    assert_eq!(requests.iter().filter(|line| line.contains("\"counters\"")).count(), 2, "{requests:?}");
    // Somebody else may have switched the histograms on.
    assert_eq!(requests.iter().filter(|line| line.contains("\"latency\"")).count(), 1, "{requests:?}");
    assert!(!requests.iter().any(|line| line.contains("\"trace\"")), "{requests:?}");

    // What it has recorded can be played, and shows the same.
    let played = run(&mut console(&["--replay", file.to_str().unwrap(), "--speed", "0"]));
    assert_eq!(played.stdout, output.stdout);
    // A recording is not overwritten.
    let again = run(&mut console(&["--socket", path.to_str().unwrap(), "--record", file.to_str().unwrap()]));
    assert_eq!(again.status.code(), Some(3));
}

#[test]
fn on_a_port_that_people_share_only_marked_lines_count() {
    let (folder, machine) = (Folder::new(), Machine::new(0));
    let path = folder.0.join("com1");
    machine.listen(&path, |_| Duration::from_secs(60));
    let file = folder.0.join("recorded");
    let [path, recorded] = [&path, &file].map(|path| path.to_str().unwrap());
    let output = run(&mut console(&["--socket", path, "--shared", "--interval", "0.2", "--record", recorded]));
    assert_eq!(guests(&output), both());
    let recorded = fs::read_to_string(file).unwrap();
    assert!(recorded.contains("{\"event\":\"counters\"") && !recorded.contains("faked"), "{recorded}");
}

#[test]
fn a_trace_is_asked_for_shown_and_ended() {
    let (folder, machine) = (Folder::new(), Machine::new(0));
    let path = folder.0.join("com2");
    machine.listen(&path, |_| Duration::from_secs(60));
    let arguments = ["--socket", path.to_str().unwrap(), "--interval", "0.3", "--detail", "b", "--trace"];
    let output = run(&mut console(&arguments));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sheet: Value = serde_json::from_slice(&output.stdout).unwrap();
    let address = &sheet["addresses"][0];
    assert_eq!((&address["address"], &address["exits"]), (&"0x1234".into(), &2.into()), "{sheet}");
    assert_eq!(sheet["times"][0]["p99_us"], 20.0, "{sheet}");
    let requests = machine.requests.lock().unwrap().clone();
    let traces: Vec<&str> = ["\"on\"", "\"save\"", "\"off\""]
        .into_iter()
        .filter(|step| requests.iter().any(|line| line.contains("\"trace\"") && line.contains(step)))
        .collect();
    assert_eq!(traces.len(), 3, "{requests:?}");
    assert!(requests.last().is_some_and(|line| line.contains("\"off\"")), "{requests:?}");
}

#[test]
fn by_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let machine = Machine::new(0);
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        machine.serve(stream.try_clone().unwrap(), stream)
    });
    assert_eq!(guests(&run(&mut console(&["--tcp", &address]))), both());
}

#[test]
fn by_a_serial_device_whose_bytes_nobody_changes() {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let device = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    // Without raw mode the terminal would echo and change what is sent. It must be open for that to last.
    let _kept = File::options().read(true).write(true).open(&device).unwrap();
    let machine = Machine::new(0);
    let (input, output) = (File::from(terminal.try_clone().unwrap()), File::from(terminal));
    let serving = machine.clone();
    thread::spawn(move || serving.serve(input, output));
    assert_eq!(guests(&run(&mut console(&["--serial", &device, "--baud", "115200"]))), both());
    // With an echo it would have had its own answers as requests.
    assert!(machine.requests.lock().unwrap().iter().all(|line| !line.contains("event")));
    let wrong = run(&mut console(&["--serial", "/dev/null", "--wait", "1"]));
    assert_eq!(wrong.status.code(), Some(3));
    let words = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(words.contains("it is no serial device"), "{words}");
}

#[test]
fn by_the_systems_ssh_with_a_command() {
    let folder = Folder::new();
    let readings = folder.0.join("readings");
    let text = fs::read_to_string(session()).unwrap();
    let counters: Vec<&str> = text.lines().filter(|line| line.contains(r#"{"event":"counters""#)).collect();
    let lines: String = counters[10..12].iter().map(|line| format!("{}\n", line.split_once(' ').unwrap().1)).collect();
    fs::write(&readings, lines).unwrap();
    let script = format!("echo \"$@\" > {0}/asked; cat {1}; exec sleep 20", folder.0.display(), readings.display());
    let path = ssh(&folder, &script);
    let output = run(console(&["--ssh=-oProxyCommand=x", "--command", "relay --all"]).env("PATH", path));
    assert_eq!(guests(&output), both());
    let asked = fs::read_to_string(folder.0.join("asked")).unwrap();
    // A host that looks like an option is none.
    assert!(asked.contains("BatchMode=yes") && asked.ends_with("-- -oProxyCommand=x relay --all\n"), "{asked}");
}

#[test]
fn what_ssh_says_is_the_reason() {
    let folder = Folder::new();
    let path = ssh(&folder, "printf 'warning\\nroot@x: Permission denied \\033[2J(publickey).\\n' >&2; exit 255");
    let output = run(console(&["--ssh", "x", "--wait", "1"]).env("PATH", path));
    assert_eq!(output.status.code(), Some(3));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(words, "sidecore-console: no connection: root@x: Permission denied (publickey).\n");
}

const PIPE: &str = "sidecore-agent pipe";

/// Runs the program by the agent that [`agent`] plays, with the trace, and returns a view.
fn traced(path: &str, arguments: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore-console"));
    let command = command.args(["--ssh", "host", "--interval", "0.2", "--trace", "--once", "--json"]);
    let output = run(command.args(arguments).env("PATH", path));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What the log says of the trace.
fn said_of_the_trace(log: &Value) -> Vec<&str> {
    let entries = log["log"].as_array().unwrap().iter().filter(|entry| entry["kind"] == "trace");
    entries.map(|entry| entry["text"].as_str().unwrap()).collect()
}

#[test]
fn by_ssh_another_ssh_brings_the_trace_until_its_end() {
    let folder = Folder::new();
    let path = agent(&folder, PIPE, "cat trace; until_off; cat rest");
    let sheet = traced(&path, &["--view", "guest", "--detail", "b"]);
    let address = &sheet["addresses"][0];
    // The third exit came after the machine had told the end.
    assert_eq!((&address["address"], &address["exits"]), (&"0x1234".into(), &3.into()), "{sheet}");
    let mut asked = lines(&folder, "asked");
    asked.sort();
    assert_eq!(asked, [PIPE, "trace save exits,histograms"]);
    let requests = lines(&folder, "requests");
    let traces: Vec<&String> = requests.iter().filter(|line| line.contains("\"trace\"")).collect();
    assert!(matches!(traces[..], [off] if off.contains("\"off\"")), "{requests:?}");
}

#[test]
fn by_ssh_an_agent_that_no_key_runs_is_given_its_own_words() {
    let folder = Folder::new();
    let path = agent(&folder, "doas /opt/sidecore-agent --socket s pipe", "cat trace; until_off");
    let arguments = ["--command", "doas /opt/sidecore-agent --socket s pipe", "--view", "log"];
    let log = traced(&path, &arguments);
    let line = "doas /opt/sidecore-agent --socket s run trace save exits,histograms";
    assert!(lines(&folder, "asked").contains(&line.to_owned()), "{log}");
    assert_eq!(
        said_of_the_trace(&log),
        [
            &*format!("another ssh asks host for `{line}`"),
            "it comes; `t` ends it",
            "its end was asked for",
            "it has ended"
        ]
    );
}

#[test]
fn a_trace_that_is_refused_by_ssh_is_said_with_what_helps_and_nobody_s_trace_is_ended() {
    for (script, expected) in [
        (
            "echo 'the trace goes to another client; try again later' >&2; exit 1",
            "nothing comes: the trace goes to another client; try again later; `t` tries again",
        ),
        (
            "printf '`trace` needs the permission `profile`, which key eve does not have\\033[2J; it has: view\\n' >&2; exit 4",
            "nothing comes: `trace` needs the permission `profile`, which key eve does not have; it has: view; the key needs the \
             permission `profile`, and so does `allow` of [management]",
        ),
        (
            "echo 'sh: 1: trace: not found' >&2; exit 127",
            "nothing comes: sh: 1: trace: not found; is `trace save exits,histograms` a command at host? It needs sidecore-agent",
        ),
        (
            "echo 'no connection with the hypervisor: timed out' >&2; exit 3",
            "nothing comes: no connection with the hypervisor: timed out; the agent at host does not reach the hypervisor; `t` tries \
             again",
        ),
        (
            "printf 'a warning\\nssh: connect to host x port 22: Connection refused\\n' >&2; exit 255",
            "nothing comes: ssh: connect to host x port 22: Connection refused; try `ssh host trace save exits,histograms >FILE`; `t` \
             tries again",
        ),
        ("exit 0", "nothing comes: ssh ended with 0, without a word; `t` tries again"),
        (
            "kill -9 $$",
            "nothing comes: a signal ended ssh; try `ssh host trace save exits,histograms >FILE`; `t` tries again",
        ),
    ] {
        let folder = Folder::new();
        let path = agent(&folder, PIPE, script);
        let log = traced(&path, &["--view", "log"]);
        assert_eq!(
            said_of_the_trace(&log),
            ["another ssh asks host for `trace save exits,histograms`", expected],
            "{script}"
        );
        let requests = lines(&folder, "requests");
        assert!(!requests.iter().any(|line| line.contains("\"trace\"")), "{script}: {requests:?}");
    }
}

#[test]
fn a_trace_by_ssh_that_breaks_off_is_not_left_on() {
    for (script, expected) in [
        (
            "cat trace; echo 'Connection to host closed by remote host.' >&2; exit 255",
            "it broke off: Connection to host closed by remote host.; try `ssh host trace save exits,histograms >FILE`; `t` tries again",
        ),
        (
            "cat trace; echo 'the trace does not end' >&2; exit 1",
            "it broke off: the trace does not end; `t` tries again",
        ),
    ] {
        let folder = Folder::new();
        let log = traced(&agent(&folder, PIPE, script), &["--view", "log"]);
        let said = said_of_the_trace(&log);
        assert!(said.contains(&expected), "{said:?}");
        let requests = lines(&folder, "requests");
        let offs = requests.iter().filter(|line| line.contains("\"trace\"") && line.contains("\"off\"")).count();
        assert_eq!(offs, 1, "{requests:?}");
    }
}

#[test]
fn an_agent_that_does_not_end_the_trace_is_left_after_a_time() {
    let folder = Folder::new();
    // It takes no notice of the end.
    let log = traced(&agent(&folder, PIPE, "cat trace; exec sleep 60"), &["--view", "log"]);
    let said = said_of_the_trace(&log);
    assert_eq!(said[2..], ["its end was asked for", "ssh was ended, so the agent ends it"], "{said:?}");
    assert!(lines(&folder, "requests").iter().any(|line| line.contains("\"off\"")));
}

#[test]
fn where_the_lines_refuse_the_trace_it_is_not_left_on_but_for_another_program() {
    for (state, offs) in [(None, 1), (Some("true"), 0)] {
        let folder = Folder::new();
        let path = agent(&folder, "relay", "exit 9");
        if let Some(saving) = state {
            let state = format!(
                r#"{{"event":"trace-state","id":ID,"classes":["exits"],"stop":false,"saving":{saving},"cores":[]}}"#
            );
            fs::write(folder.0.join("state"), state + "\n").unwrap();
        }
        let log = traced(&path, &["--command", "relay", "--view", "log"]);
        let said = said_of_the_trace(&log);
        assert_eq!(said.last(), Some(&"no trace of exits: no trace goes here; `t` tries again"), "{said:?}");
        assert_eq!(lines(&folder, "asked"), ["relay"]);
        let requests = lines(&folder, "requests");
        assert_eq!(requests.iter().filter(|line| line.contains("\"off\"")).count(), offs, "{requests:?}");
    }
}

#[test]
fn a_connection_that_breaks_is_made_again() {
    let (folder, machine) = (Folder::new(), Machine::new(0));
    let path = folder.0.join("com2");
    // The first one breaks after the first reading.
    machine.listen(&path, |n| Duration::from_millis(if n == 0 { 150 } else { 60_000 }));
    let output = run(&mut console(&["--socket", path.to_str().unwrap(), "--interval", "1"]));
    assert_eq!(guests(&output), both());
    assert_eq!(machine.requests.lock().unwrap().iter().filter(|line| line.contains("\"report\"")).count(), 2);
}

#[test]
fn a_machine_that_is_not_there_is_an_error_with_its_reason() {
    let output = run(&mut console(&["--socket", "/nowhere/com2", "--wait", "1"]));
    assert_eq!(output.status.code(), Some(3));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("cannot connect to /nowhere/com2: No such file"), "{words}");
    assert_eq!(run(&mut console(&["--replay", "/nowhere"])).status.code(), Some(3));
    assert_eq!(run(&mut console(&[])).status.code(), Some(2));
}
