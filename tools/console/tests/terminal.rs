//! The program in a real terminal: tmux is the terminal, and `tmux capture-pane` says what is on it.

#[allow(dead_code, reason = "what the other tests need")]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::{Folder, Machine, agent, lines};

/// Ends a hang only.
const LIMIT: Duration = Duration::from_secs(60);

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// A tmux server of this test's own, with one window.
struct Terminal {
    server: String,
}

impl Terminal {
    /// Starts the program in a window of that size, in the folder of the tests. `None` if there is no tmux.
    fn start(width: u16, height: u16, arguments: &str) -> Option<Self> {
        Self::start_in(width, height, &std::env::var("PATH").unwrap(), arguments)
    }

    /// The same, with a PATH for the program.
    fn start_in(width: u16, height: u16, path: &str, arguments: &str) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if Command::new("tmux").arg("-V").output().is_err() {
            eprintln!("tmux is not on this machine: the program was not tried in a real terminal");
            return None;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let terminal = Self { server: format!("sidecore-console-{}-{number}", std::process::id()) };
        let program = env!("CARGO_BIN_EXE_sidecore-console");
        let script = format!("echo before; PATH='{path}' {program} {arguments}; echo ended with $?; exec sleep 1000");
        let (width, height) = (width.to_string(), height.to_string());
        let folder = tests();
        let folder = folder.to_str().unwrap();
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", &width, "-y", &height, "-c", folder, &script]);
        // Esc is passed on at once.
        terminal.tmux(&["set-option", "-g", "escape-time", "0"]);
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let output = Command::new("tmux").args(["-u", "-L", &self.server]).args(arguments).output().unwrap();
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What is on the terminal, without spaces at the ends of lines.
    fn screen(&self) -> String {
        let text = self.tmux(&["capture-pane", "-p"]);
        text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    fn keys(&self, keys: &str) {
        self.tmux(&["send-keys", keys]);
    }

    /// Waits until the screen is as wanted. Returns it, and how long it took.
    fn wait(&self, what: &str, wanted: impl Fn(&str) -> bool) -> (String, Duration) {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            if wanted(&screen) {
                return (screen, begun.elapsed());
            }
            assert!(begun.elapsed() < LIMIT, "waited for {what}, but this is on the terminal:\n{screen}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn shows(&self, text: &str) -> (String, Duration) {
        self.wait(text, |screen| screen.contains(text))
    }

    /// Waits until the screen is that of a file in `tests/screens`. With SIDECORE_WRITE_SCREENS=1 it writes the file.
    fn compare(&self, name: &str) {
        let path = tests().join("screens").join(name);
        if std::env::var_os("SIDECORE_WRITE_SCREENS").is_some() {
            thread::sleep(Duration::from_secs(1));
            std::fs::write(&path, self.screen()).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        self.wait(&format!("{name}:\n{expected}"), |screen| screen == expected);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.server, "kill-server"]).output();
    }
}

const RECORDING: &str = "--replay session.txt --speed 0 --until 40.5";

/// Keys, and the files with the screen after each.
const WALK: [(&str, &str); 19] = [
    ("2", "engine"),
    ("Enter", "engine-detail"),
    ("Escape", "engine"),
    ("Tab", "guest"),
    ("Enter", "guest-detail"),
    ("s", "guest-detail-sorted"),
    ("Escape", "guest"),
    ("4", "port"),
    ("5", "disk"),
    ("6", "log"),
    ("Enter", "log-detail"),
    ("Escape", "log"),
    ("/", "log-typing"),
    ("b", "log-typing-b"),
    ("Enter", "log-filtered"),
    ("1", "machine"),
    ("Enter", "report"),
    ("End", "report-end"),
    ("Escape", "machine"),
];

fn walk(width: u16, height: u16) {
    let Some(terminal) = Terminal::start(width, height, RECORDING) else { return };
    terminal.shows("end of the recording");
    let name = |step: &str| format!("terminal-{step}-{width}x{height}.txt");
    terminal.compare(&name("machine"));
    for (key, step) in WALK {
        terminal.keys(key);
        terminal.compare(&name(step));
    }
    terminal.keys("?");
    terminal.compare(&name("help"));
    terminal.keys("?");
    terminal.compare(&name("machine"));
    terminal.keys("q");
    let (screen, _) = terminal.shows("ended with 0");
    // The terminal is as it was.
    assert_eq!(screen.trim_end(), "before\nended with 0");
}

#[test]
fn each_key_shows_what_the_files_say_at_80x24() {
    walk(80, 24);
}

#[test]
fn each_key_shows_what_the_files_say_at_200x50() {
    walk(200, 50);
}

#[test]
fn a_terminal_that_changes_its_size_is_filled_again() {
    let Some(terminal) = Terminal::start(80, 24, RECORDING) else { return };
    terminal.shows("end of the recording");
    terminal.tmux(&["resize-window", "-x", "100", "-y", "30"]);
    terminal.wait("the keys in line 30", |screen| screen.lines().nth(29).is_some_and(|line| line.contains("f freeze")));
    terminal.tmux(&["resize-window", "-x", "20", "-y", "5"]);
    terminal.wait("20 columns", |screen| screen.lines().count() == 5 && screen.lines().all(|line| line.len() <= 20));
    terminal.keys("C-c");
    terminal.shows("ended with 0");
}

#[test]
fn on_a_slow_line_keys_are_answered_while_a_reading_arrives() {
    let (folder, machine) = (Folder::new(), Machine::new(400));
    let path = folder.0.join("com2");
    machine.listen(&path, |_| Duration::from_secs(600));
    let Some(terminal) = Terminal::start(80, 24, &format!("--socket {} --interval 0.2", path.display())) else {
        return;
    };
    terminal.shows("connected, no counters yet");
    // A reading takes several seconds here. Each key is answered long before.
    let reading = Instant::now();
    for (key, shown) in [("2", "[2 engine]"), ("3", "[3 guest]"), ("6", "[6 log]"), ("3", "[3 guest]")] {
        terminal.keys(key);
        terminal.shows(shown);
    }
    let keys = reading.elapsed();
    terminal.shows("a  ");
    terminal.shows("live");
    let all = reading.elapsed();
    assert!(keys < all / 2, "four keys took {keys:?}, and the reading {all:?}");
    // No request was sent again, although the answer took long.
    let asked = machine.requests.lock().unwrap().iter().filter(|line| line.contains("\"counters\"")).count();
    assert!(asked <= 2, "{asked} requests for counters");
}

#[test]
fn a_connection_that_breaks_is_said_the_state_stays_old_and_it_comes_back() {
    let (folder, machine) = (Folder::new(), Machine::new(0));
    let path = folder.0.join("com2");
    // The third connection is the good one. The second one breaks before anything came.
    machine.listen(&path, |n| Duration::from_millis([3000, 0, 600_000][n.min(2)]));
    let Some(terminal) = Terminal::start(80, 24, &format!("--socket {} --view guest", path.display())) else { return };
    terminal.wait("a reading", |screen| screen.contains(" live") && screen.contains("\na  "));
    let (old, _) = terminal.shows("OLD, no connection (the other end closed th~)");
    assert!(old.contains("\na  "), "the last state stays:\n{old}");
    terminal.shows(" live");
    terminal.keys("6");
    let (log, _) = terminal.wait("the log", |screen| screen.matches("connected to socket").count() >= 2);
    assert!(log.contains("no connection: the other end closed the connection"), "{log}");
    terminal.keys("q");
    terminal.shows("ended with 0");
}

/// The program at an agent whose other commands run `script`, with the table of ports.
fn by_ssh(folder: &Folder, script: &str, arguments: &str) -> Option<Terminal> {
    let path = agent(folder, "sidecore-agent pipe", script);
    let arguments = format!("--ssh host --interval 0.2 --view port {arguments}");
    let terminal = Terminal::start_in(200, 50, &path, &arguments)?;
    terminal.shows("52:54:00:00:00:01");
    Some(terminal)
}

/// Requests for the trace and for captures, without their numbers.
fn asked(folder: &Folder) -> Vec<String> {
    let requests = lines(folder, "requests").into_iter();
    let wanted = requests.filter(|line| line.contains("\"trace\"") || line.contains("\"capture\""));
    wanted.map(|line| format!("{{{}", line.split_once(',').unwrap().1)).collect()
}

#[test]
fn by_ssh_c_writes_what_another_ssh_brings_until_the_capture_ends() {
    let folder = Folder::new();
    let script = "printf frames; until_off; printf ' and statistics'";
    let Some(terminal) = by_ssh(&folder, script, &format!("--capture {}/file", folder.0.display())) else { return };
    terminal.keys("c");
    terminal.keys("6");
    terminal.shows("another ssh asks host for `capture a net=0`");
    terminal.shows("it comes; `c` ends it");
    // The trace goes the same way.
    terminal.keys("t");
    terminal.shows("frames are captured; `c` ends that");
    terminal.keys("c");
    terminal.shows("it has ended");
    assert_eq!(lines(&folder, "file"), ["frames and statistics"]);
    assert_eq!(asked(&folder), [r#"{"command":"capture","guest":"a","filter":"net=0,off"}"#]);
    terminal.keys("q");
    terminal.shows("ended with 0");
    assert_eq!(asked(&folder).len(), 1);
}

#[test]
fn by_ssh_a_reader_of_frames_that_goes_away_ends_the_capture() {
    let folder = Folder::new();
    // No more frames come, so nothing is written when the reader has gone.
    let script = "printf frames; exec sleep 1000";
    let Some(terminal) = by_ssh(&folder, script, "--capture '|head -c 6' --capture-of first=in") else { return };
    terminal.keys("c");
    terminal.keys("6");
    terminal.shows("another ssh asks host for `capture first in`");
    terminal.shows("it broke off: the frames cannot be written: broken pipe; `c` begins again");
    terminal.wait("the end of the capture", |_| !asked(&folder).is_empty());
    assert_eq!(asked(&folder), [r#"{"command":"capture","guest":"first","filter":"off"}"#]);
    terminal.keys("q");
    terminal.shows("ended with 0");
}

#[test]
fn by_ssh_a_capture_that_is_refused_is_said_and_ends_nobody_s() {
    let folder = Folder::new();
    let script = "echo 'captured frames are being sent on COM2 already' >&2; exit 1";
    let Some(terminal) = by_ssh(&folder, script, &format!("--capture {}/file", folder.0.display())) else { return };
    terminal.keys("c");
    terminal.keys("6");
    terminal.shows("nothing comes: captured frames are being sent on COM2 already; `c` tries again");
    assert!(asked(&folder).is_empty());
    terminal.keys("q");
    terminal.shows("ended with 0");
}

#[test]
fn by_ssh_a_name_that_a_shell_could_obey_is_not_captured() {
    let folder = Folder::new();
    let arguments = format!("--capture {}/file --capture-of '$(reboot)'", folder.0.display());
    let Some(terminal) = by_ssh(&folder, "exit 9", &arguments) else { return };
    terminal.keys("c");
    terminal.keys("6");
    terminal.shows("`$(reboot)` has characters that a shell at the other end could obey");
    terminal.keys("q");
    terminal.shows("ended with 0");
    assert_eq!(lines(&folder, "asked"), ["sidecore-agent pipe"]);
}

#[test]
fn by_ssh_t_begins_and_ends_the_trace_and_q_ends_it_too() {
    let folder = Folder::new();
    let Some(terminal) = by_ssh(&folder, "cat trace; until_off; rm off; cat rest", "") else { return };
    terminal.keys("3");
    terminal.keys("Down");
    terminal.keys("Enter");
    terminal.keys("t");
    // The terminal draws the screen from its top on: the number may be there before the table of addresses.
    terminal.wait("2 exits and an address", |screen| {
        screen.contains("2 exits of all guests have arrived") && screen.contains("0x1234")
    });
    terminal.keys("t");
    terminal.shows("3 exits of all guests have arrived");
    terminal.keys("6");
    terminal.shows("it has ended");
    // The second one is ended by the end of the program.
    terminal.keys("t");
    terminal.wait("another trace", |screen| screen.matches("it comes; `t` ends it").count() == 2);
    terminal.keys("q");
    terminal.shows("ended with 0");
    let off = r#"{"command":"trace","step":"off","stop":false,"classes":""}"#;
    assert_eq!(asked(&folder), [off, off]);
    assert_eq!(lines(&folder, "asked").iter().filter(|line| *line == "trace save exits,histograms").count(), 2);
}

#[test]
fn without_a_terminal_it_says_what_would_help() {
    let output = Command::new(env!("CARGO_BIN_EXE_sidecore-console")).args(["--replay", "x"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("this is no terminal; --once prints a view as text"));
}
