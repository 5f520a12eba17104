//! Tests of recording, against a machine that is played by a thread at the other end of a socket.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use trace::stream::ChunkWriter;
use trace::{Kind, Record};

use super::*;

fn chunk(first: u64, count: u64) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let mut writer = ChunkWriter::new(&mut buffer, 2, first, 0).unwrap();
    (0..count).for_each(|number| writer.push(Record::new(Kind::Exit, number)).unwrap());
    writer.finish().to_vec()
}

fn trace_event(bytes: &[u8], end: bool) -> String {
    let end = if end { r#","end":true"# } else { "" };
    format!("{{\"event\":\"trace\",\"data\":\"{}\"{end}}}\r\n", STANDARD.encode(bytes))
}

/// Plays a machine: calls `answer` with each command's step and id, and says what it returns.
fn machine(
    mut answer: impl FnMut(&str, u64, &str) -> String + Send + 'static,
) -> (Connection, JoinHandle<Vec<String>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let played = thread::spawn(move || {
        let mut to = theirs.try_clone().unwrap();
        let mut commands = Vec::new();
        // What was on the line before.
        to.write_all(b"nsole\",\"line\":\"half a line\"}\r\n").unwrap();
        for line in BufReader::new(theirs).lines().map_while(Result::ok).filter(|line| !line.is_empty()) {
            // As on a port that people share.
            let (line, marked) = line.strip_prefix('\x1e').map_or((&*line, false), |rest| (rest, true));
            let command: serde_json::Value = serde_json::from_str(line).unwrap();
            let step = command["step"].as_str().or(command["command"].as_str()).unwrap().to_owned();
            let mut said = answer(&step, command["id"].as_u64().unwrap(), line);
            if marked {
                let lines = said.lines().map(|line| format!("sidecore> st\r\x1b[K\x1e{line}\r\n"));
                // What a guest writes looks like an event.
                said = lines.collect::<String>() + &trace_event(b"faked", false);
            }
            commands.push(step);
            if to.write_all(said.as_bytes()).is_err() {
                break;
            }
        }
        commands
    });
    let to = ours.try_clone().unwrap();
    // The reader's thread keeps its end open until something comes, so both are closed by hand.
    (Connection { from: Box::new(ours), to: Some(Box::new(Closing(to))) }, played)
}

/// Closes both directions of a socket when it is dropped.
struct Closing(UnixStream);

impl Write for Closing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

fn ok(id: u64) -> String {
    format!("{{\"event\":\"reply\",\"id\":{id},\"ok\":true}}\r\n")
}

fn running(stop: &AtomicBool, options: &Options, connection: Connection) -> (Result<Done, Error>, Vec<u8>) {
    let mut out = Vec::new();
    let done = record(connection, options, stop, &mut out, |_| {});
    (done, out)
}

#[test]
fn what_the_machine_sends_until_its_end_is_in_the_file() {
    let stop = Arc::new(AtomicBool::new(false));
    let signal = Arc::clone(&stop);
    let (connection, played) = machine(move |step, id, line| match step {
        "on" => {
            assert!(line.contains(r#""classes":"exits,turns""#));
            ok(id)
        }
        "save" => {
            signal.store(true, Relaxed);
            [ok(id), trace_event(&chunk(0, 3), false), "{\"event\":\"console\",\"guest\":\"a\"}\n".into()].concat()
        }
        _ => [ok(id), trace_event(&chunk(3, 2), false), trace_event(b"", true)].concat(),
    });
    let options = Options { classes: "exits,turns".into(), ..Options::default() };
    let (done, out) = running(&stop, &options, connection);
    let done = done.unwrap();
    assert_eq!((done.ended, done.off), (Ended::Stopped, Some(true)));
    assert_eq!((done.state.records, done.state.lost, done.state.broken), (5, 0, 0));
    assert_eq!(out, [chunk(0, 3), chunk(3, 2)].concat());
    assert_eq!(played.join().unwrap(), ["on", "save", "off"]);
}

#[test]
fn on_a_port_that_people_share_only_marked_lines_count() {
    let (connection, played) = machine(|step, id, _| match step {
        "save" => ok(id) + &trace_event(&chunk(0, 3), false),
        "off" => ok(id) + &trace_event(b"", true),
        _ => ok(id),
    });
    let options = Options { shared: true, records: Some(3), ..Options::default() };
    let (done, out) = running(&AtomicBool::new(false), &options, connection);
    let done = done.unwrap();
    assert_eq!((done.ended, done.off, done.state.broken), (Ended::Records, Some(true), 0));
    assert_eq!(out, chunk(0, 3));
    assert_eq!(played.join().unwrap(), ["on", "save", "off"]);
}

#[test]
fn ports_are_captured_until_each_of_their_captures_is_ended() {
    let (mut captured, filters) = (Vec::new(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let asked = Arc::clone(&filters);
    let (connection, played) = machine(move |step, id, line| match step {
        "capture" => {
            let command: serde_json::Value = serde_json::from_str(line).unwrap();
            let filter = command["filter"].as_str().unwrap_or_default().to_owned();
            captured.push(filter.clone());
            asked.lock().unwrap().push((command["guest"].as_str().unwrap().to_owned(), filter));
            // The last of them ends the trace.
            let end = if captured.len() == 4 { trace_event(b"", true) } else { String::new() };
            ok(id) + &end
        }
        _ => ok(id),
    });
    let captures = ["a=in,mac=52:54:00:00:00:01,net=1", "b"].map(|text| text.parse().unwrap()).to_vec();
    let options = Options { captures, seconds: Some(0), ..Options::default() };
    let done = running(&AtomicBool::new(false), &options, connection).0.unwrap();
    assert_eq!(done.off, Some(true));
    assert_eq!(played.join().unwrap(), ["capture", "capture", "captures", "capture", "capture"]);
    let wanted = [("a", "in,mac=52:54:00:00:00:01,net=1"), ("b", ""), ("a", "net=1,off"), ("b", "off")];
    assert_eq!(*filters.lock().unwrap(), wanted.map(|(guest, filter)| (guest.to_owned(), filter.to_owned())));
}

#[test]
fn a_capture_does_not_stay_when_another_one_is_refused() {
    let (connection, played) = machine(|_, id, line| {
        if line.contains(r#""guest":"b""#) {
            return format!("{{\"event\":\"reply\",\"id\":{id},\"ok\":false,\"error\":\"no guest `b`\"}}\r\n");
        }
        ok(id)
    });
    let captures = ["a", "b"].map(|text| text.parse().unwrap()).to_vec();
    let options = Options { captures, ..Options::default() };
    let done = running(&AtomicBool::new(false), &options, connection).0;
    assert!(matches!(done, Err(Error::Machine(ref sentence)) if sentence.contains("no guest `b`")), "{done:?}");
    assert_eq!(played.join().unwrap(), ["capture"; 3], "both, and the end of the first");
}

#[test]
fn it_ends_at_the_limit_of_records() {
    let (connection, played) = machine(|step, id, _| match step {
        "save" => [ok(id), trace_event(&chunk(0, 3), false), trace_event(&chunk(3, 3), false)].concat(),
        _ => ok(id),
    });
    let options = Options { records: Some(4), ..Options::default() };
    let done = running(&AtomicBool::new(false), &options, connection).0.unwrap();
    assert_eq!((done.ended, done.off), (Ended::Records, Some(true)));
    assert!(done.state.records >= 4);
    assert_eq!(played.join().unwrap(), ["on", "save", "off"]);
}

#[test]
fn a_command_that_was_damaged_on_the_line_is_sent_again() {
    let mut first = true;
    let (connection, played) = machine(move |step, id, _| {
        if std::mem::replace(&mut first, false) {
            return "{\"event\":\"reply\",\"ok\":false,\"error\":\"not a command\"}\r\n".to_owned();
        }
        let end = if step == "off" { trace_event(b"", true) } else { String::new() };
        ok(id) + &end
    });
    let options = Options { seconds: Some(0), ..Options::default() };
    let done = running(&AtomicBool::new(false), &options, connection).0.unwrap();
    assert_eq!((done.ended, done.off), (Ended::Seconds, Some(true)));
    assert_eq!(played.join().unwrap(), ["on", "on", "save", "off"]);
}

#[test]
fn an_answer_that_comes_after_the_command_was_sent_again_counts() {
    let mut late = None;
    let (connection, played) = machine(move |step, id, _| match (step, late.replace(id)) {
        // The first `on` is answered when the second one comes.
        ("on", None) => String::new(),
        ("on", Some(first)) => ok(first),
        ("off", _) => ok(id) + &trace_event(b"", true),
        _ => ok(id),
    });
    let options = Options { seconds: Some(0), ..Options::default() };
    let done = running(&AtomicBool::new(false), &options, connection).0.unwrap();
    assert_eq!((done.ended, done.off), (Ended::Seconds, Some(true)));
    assert_eq!(played.join().unwrap(), ["on", "on", "save", "off"]);
}

#[test]
fn a_refusal_is_shown_and_nothing_more_is_asked() {
    let (connection, played) = machine(|_, id, _| {
        format!(
            "{{\"event\":\"reply\",\"id\":{id},\"ok\":false,\"error\":\"no class `exit`; did you mean `exits`?\"}}\r\n"
        )
    });
    let (done, _) = running(&AtomicBool::new(false), &Options::default(), connection);
    let Err(Error::Machine(sentence)) = done else { panic!("not refused") };
    assert_eq!(sentence, "the machine refuses: no class `exit`; did you mean `exits`?");
    assert_eq!(played.join().unwrap(), ["on"]);
}

#[test]
fn what_came_before_a_connection_broke_is_kept() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let text =
        [ok(1), ok(2), trace_event(&chunk(0, 2), false), "{\"event\":\"trace\",\"data\":\"%\"}\n".into()].concat();
    theirs.write_all(text.as_bytes()).unwrap();
    // The other end is gone, but its bytes are still there, and nothing can be sent.
    drop(theirs);
    let connection = Connection { from: Box::new(ours), to: None };
    let (done, out) = running(&AtomicBool::new(false), &Options::default(), connection);
    let done = done.unwrap();
    assert_eq!((done.ended, done.off, done.state.broken), (Ended::Source, None, 1));
    assert_eq!(out, chunk(0, 2));
    assert_eq!(done.to_string(), "the source has ended; 1 events of the trace were broken");
}

/// A file on a file system without room.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::from(io::ErrorKind::StorageFull))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_trace_is_switched_off_when_the_file_cannot_be_written() {
    let (connection, played) = machine(|step, id, _| match step {
        "save" => ok(id) + &trace_event(&chunk(0, 3), false),
        _ => ok(id),
    });
    let done = record(connection, &Options::default(), &AtomicBool::new(false), Full, |_| {});
    assert!(matches!(done, Err(Error::Output(error)) if error.kind() == io::ErrorKind::StorageFull));
    assert_eq!(played.join().unwrap(), ["on", "save", "off"]);
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let said = io::Cursor::new(trace_event(&chunk(0, 1), false).into_bytes());
    let connection = Connection { from: Box::new(said), to: None };
    let done = record(connection, &Options::default(), &AtomicBool::new(false), Full, |_| {});
    assert!(matches!(done, Err(Error::Output(error)) if error.kind() == io::ErrorKind::StorageFull));
}
