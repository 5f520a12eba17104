//! Runs `sidecore-vhost` as a process. Only one runs at a time, because each keeps a processor busy.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use vhost_front::{Options, Port};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// Longest wait of a test. The machine may be busy with something else for that long.
const LIMIT: Duration = Duration::from_secs(120);

/// The running program.
pub struct Vhost {
    child: Child,
    folder: PathBuf,
    said: Receiver<String>,
    _only: MutexGuard<'static, ()>,
}

/// Its exit status and counters after its end.
pub struct Ended {
    pub status: ExitStatus,
    pub counters: Value,
}

impl Ended {
    /// A counter of a disk.
    pub fn disk(&self, disk: usize, name: &str) -> u64 {
        self.counters["disks"][disk][name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.counters))
    }

    /// A counter of a port.
    pub fn port(&self, port: usize, name: &str) -> u64 {
        self.counters["ports"][port][name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", self.counters))
    }
}

/// Runs the program to its end.
pub fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sidecore-vhost")).args(arguments).output().expect("it starts");
    let words = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&words).into_owned())
}

/// Repeats the question until the answer is yes.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "waited for {what}");
        thread::yield_now();
    }
}

/// Starts the program. Returns it, and what it says line by line.
fn spawn(config: &Path) -> (Child, Receiver<String>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sidecore-vhost"))
        .arg("--json")
        .arg("--config")
        .arg(config)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (sender, said) = mpsc::channel();
    let words = BufReader::new(child.stderr.take().expect("its words"));
    thread::spawn(move || words.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    (child, said)
}

impl Vhost {
    /// Starts it with sockets named a, b and so on.
    pub fn start(ports: usize) -> Self {
        Self::start_with(ports, "")
    }

    /// The same, with this text before the ports in its configuration.
    pub fn start_with(ports: usize, config: &str) -> Self {
        Self::start_as(ports, config, "")
    }

    /// The same, with these keys in each port.
    pub fn start_as(ports: usize, config: &str, keys: &str) -> Self {
        let keys: Vec<&str> = vec![keys; ports];
        Self::start_all(config, "port", &keys)
    }

    /// Starts it with a disk for each of `keys`, at sockets named a, b and so on.
    pub fn start_disks(config: &str, keys: &[&str]) -> Self {
        Self::start_all(config, "disk", keys)
    }

    fn start_all(config: &str, kind: &str, keys: &[&str]) -> Self {
        let only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("sidecore-vhost-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for the sockets");
        let one = |(name, keys)| format!("[[{kind}]]\nsocket = \"{}/{name}\"\n{keys}\n", folder.display());
        let text: String = ('a'..).zip(keys).map(one).collect();
        fs::write(folder.join("config"), format!("{config}\n{text}")).expect("a configuration");
        let (child, said) = spawn(&folder.join("config"));
        let vhost = Self { child, folder, said, _only: only };
        vhost.says("copies with");
        vhost
    }

    /// Kills it in the middle of whatever it does, and starts it again with the same configuration.
    pub fn kill_and_start(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("its end");
        (self.child, self.said) = spawn(&self.folder.join("config"));
        self.says("copies with");
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn connect(&self, name: &str) -> Port {
        self.connect_with(name, &Options::default())
    }

    pub fn connect_with(&self, name: &str, options: &Options) -> Port {
        Port::connect(&self.socket(name), options).expect("a port")
    }

    /// Waits until it says something with `text` in it.
    pub fn says(&self, text: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        let mut before = Vec::new();
        loop {
            match self.said.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(text) => return line,
                Ok(line) => before.push(line),
                Err(_) => panic!("it has not said {text:?}, but {before:?}"),
            }
        }
    }

    /// Ends it by a signal.
    pub fn end(mut self) -> Ended {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().is_ok_and(|status| status.success()));
        let mut text = String::new();
        self.child.stdout.take().expect("its output").read_to_string(&mut text).expect("text");
        let status = self.child.wait().expect("its end");
        assert!(!self.socket("a").exists(), "its socket is left behind");
        let last = text.lines().last().unwrap_or_default();
        Ended { status, counters: serde_json::from_str(last).unwrap_or_else(|_| panic!("no counters: {text:?}")) }
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A frame of `len` bytes, with contents computed from `tag`.
pub fn frame(to: u8, from: u8, len: usize, tag: u32) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    let mut state = tag.wrapping_mul(0x9e37_79b9) | 1;
    frame.resize_with(len, || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    frame
}

/// Sends a frame from one port to the other, and expects it there.
pub fn passes(from: &mut Port, to: &mut Port, frame: &[u8]) {
    until("room to send", || from.send(frame));
    let mut arrived = None;
    until("a frame", || {
        arrived = to.rx.receive();
        arrived.is_some()
    });
    assert!(arrived.as_deref() == Some(frame), "a frame of {} bytes has changed", frame.len());
}

/// Makes the switch learn the addresses of two ports: the first has number 1, the second number 2.
pub fn introduce(a: &mut Port, b: &mut Port) {
    passes(a, b, &frame(2, 1, 60, 0));
    passes(b, a, &frame(1, 2, 60, 0));
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
