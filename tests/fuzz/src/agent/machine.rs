//! A login's shell, an attached console and the writer of the log, with a broker that sends any lines and closes the connection.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use sidecore_agent::client::Broker;
use sidecore_agent::input::Input as Typed;
use sidecore_agent::key::Key;
use sidecore_agent::shell::{Exit, Shell};
use sidecore_agent::syslog;

use super::said::Pool;
use crate::input::Input;
use crate::planted::planted;

/// Lines that are typed.
const LINES: [&str; 24] = [
    "list",
    "list --json",
    "counters",
    "show exits",
    "show engine",
    "show ports",
    "show memory",
    "counters --json",
    "version",
    "report",
    "report --json",
    "show audit",
    "show config",
    "show latency",
    "show modules",
    "show apply",
    "put web",
    "attach mine",
    "attach mine",
    "attach mine",
    "attach theirs",
    "kill mine",
    "trace show",
    "help",
];
/// Largest datagram of the log (RFC 3164 4.1).
const MOST: usize = 1024;

/// A broker that sends each client the same bytes, and the log of a guest.
struct Machine {
    socket: PathBuf,
    says: Arc<Mutex<Vec<u8>>>,
    log: UnixDatagram,
    log_path: PathBuf,
}

static MACHINES: Pool<Machine> = Pool::new();

/// A place for a socket of this process.
pub fn place(name: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let place = std::env::temp_dir().join(format!("sidecore-fuzz-{name}-{}-{number}", std::process::id()));
    let _ = std::fs::remove_file(&place);
    place
}

impl Machine {
    fn new() -> Self {
        let (socket, says, log_path) = (place("machine"), Arc::new(Mutex::new(Vec::new())), place("log"));
        let listener = UnixListener::bind(&socket).expect("a place for a socket");
        let said: Arc<Mutex<Vec<u8>>> = says.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let mut client = client.expect("a client");
                let bytes = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let _ = client.write_all(&bytes);
                let _ = client.shutdown(Shutdown::Write);
                // Until it has gone.
                let _ = client.read_to_end(&mut Vec::new());
            }
        });
        let log = UnixDatagram::bind(&log_path).expect("a place for a socket");
        log.set_nonblocking(true).expect("a socket");
        Self { socket, says, log, log_path }
    }

    /// Says what comes to the next clients. Returns the broker for a key.
    fn says(&self, lines: &[String], key: &Key) -> Broker {
        *self.says.lock().unwrap_or_else(PoisonError::into_inner) = lines.concat().into_bytes();
        Broker { socket: self.socket.clone(), sender: key.sender() }
    }
}

/// Lines of sidecore, most of them events and answers.
fn lines(input: &mut Input<'_>, answers: bool) -> Vec<String> {
    (0..1 + input.byte() % 6)
        .map(|_| {
            let id = (answers && input.byte() < 160).then(|| u64::from(1 + input.byte() % 2));
            super::said::event_line(input, id) + if input.byte() < 8 { "\r\n" } else { "\n" }
        })
        .collect()
}

/// A command of a login.
pub fn shell(input: &mut Input<'_>) {
    MACHINES.with(Machine::new, |machine| shell_on(machine, input));
}

fn shell_on(machine: &Machine, input: &mut Input<'_>) {
    let (key, line) = (super::said::key(input), LINES[usize::from(input.byte()) % LINES.len()]);
    let mut lines = lines(input, true);
    if line.starts_with("attach") && input.byte() < 192 {
        let text = serde_json::to_string(&String::from_utf8_lossy(&crate::console_tool::sent(input))).expect("JSON");
        lines.insert(0, format!("{{\"event\":\"output\",\"id\":1,\"guest\":\"mine\",\"at\":7,\"text\":{text}}}\n"));
    }
    if !line.starts_with("attach") {
        // Only `follow` is answered by output. The shell relies on that (`debug_assert`).
        lines.retain(|line| !line.starts_with("{\"event\":\"output\",\"id\""));
    }
    let (from, mut to) = std::io::pipe().expect("a pipe");
    let keys: Vec<u8> = (0..input.byte() % 100).map(|_| input.byte()).collect();
    to.write_all(&keys).expect("there is room");
    drop(to);
    let broker = machine.says(&lines, &key);
    let shell = Shell { broker: &broker, trace_port: Path::new("/nonexistent"), key: &key };
    let (mut out, mut errors) = (Vec::new(), Vec::new());
    let mut exit = shell.run(line, false, &mut Typed::new(from.into()), &mut out, &mut errors);
    if planted() {
        exit = Exit::Usage;
    }
    let is_empty_file = line.starts_with("put") && keys.is_empty();
    assert!(exit != Exit::Usage || is_empty_file && key.check(&words(line)).is_ok(), "it is a command");
    assert_eq!(
        exit == Exit::Forbidden,
        errors_say_forbidden(&key, line, &errors),
        "{line}: {:?}",
        String::from_utf8_lossy(&errors)
    );
    assert!(exit == Exit::Done || !errors.is_empty(), "a failure is told");
    if line.starts_with("attach") {
        crate::commands::is_filtered(&out);
    } else if line.ends_with("--json") {
        let out = String::from_utf8(out).expect("JSON is text");
        for line in out.lines() {
            let _: serde_json::Value = serde_json::from_str(line).expect("each line is JSON");
        }
    }
}

fn words(line: &str) -> control::Command {
    sidecore_agent::words::read(line).expect("a command").command
}

/// Whether the key is not for the line, or for the answer to it.
fn errors_say_forbidden(key: &Key, line: &str, errors: &[u8]) -> bool {
    key.check(&words(line)).is_err() || errors.starts_with(b"this key does not see the answer")
}

/// What comes to the log of the guest.
pub fn log(input: &mut Input<'_>) {
    MACHINES.with(Machine::new, |machine| log_on(machine, input));
}

fn log_on(machine: &Machine, input: &mut Input<'_>) {
    let key = Key::new("", "", control::Permissions::all(), None);
    let broker = machine.says(&lines(input, false), &key);
    assert!(syslog::run(&broker, &machine.log_path).is_err(), "it ends with the connection");
    let mut bytes = [0; 2 * MOST];
    while let Ok(len) = machine.log.recv(&mut bytes) {
        let line = &bytes[..len];
        let text = std::str::from_utf8(line).expect("ASCII");
        let (number, rest) = text.strip_prefix('<').and_then(|rest| rest.split_once('>')).expect("a priority");
        let priority: u8 = number.parse().expect("a number");
        assert!(matches!(priority / 8, 3 | 10) && rest.starts_with("sidecore: "), "{text:?}");
        assert!(
            len <= if planted() { 40 } else { MOST } && line.iter().all(|byte| (b' '..=b'~').contains(byte)),
            "{text:?}"
        );
    }
}
