//! A person at a terminal, for tests, and tests of terminals.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::LocalModes;

use super::*;
use crate::input::{Input, Ready};

/// A terminal with somebody before it: what is typed, and what has been shown.
pub(crate) struct Person {
    keys: File,
    shown: std::sync::mpsc::Receiver<Vec<u8>>,
    /// What was shown and not asked for yet.
    all: Vec<u8>,
}

/// Makes a terminal. Returns the program's end of it too.
pub(crate) fn person() -> (Person, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let keys = openpt(flags).unwrap();
    grantpt(&keys).unwrap();
    unlockpt(&keys).unwrap();
    let program = ioctl_tiocgptpeer(&keys, flags).unwrap();
    let keys = File::from(keys);
    let (mut from, (tell, shown)) = (keys.try_clone().unwrap(), std::sync::mpsc::channel());
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            if tell.send(bytes[..len].to_vec()).is_err() {
                return;
            }
        }
    });
    (Person { keys, shown, all: Vec::new() }, program)
}

impl Person {
    pub(crate) fn types(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
    }

    /// Waits until this was shown.
    pub(crate) fn sees(&mut self, text: &str) {
        self.reads(text);
    }

    /// Waits until this was shown. Returns what has come since the last that was.
    pub(crate) fn reads(&mut self, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let found = self.all.windows(text.len()).position(|part| part == text.as_bytes());
            if let Some(at) = found {
                let shown: Vec<u8> = self.all.drain(..at + text.len()).collect();
                return String::from_utf8_lossy(&shown).into_owned();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(more) = self.shown.recv_timeout(left) else {
                panic!("no {text:?} in {:?}", String::from_utf8_lossy(&self.all))
            };
            self.all.extend(more);
        }
    }
}

pub(crate) fn is_raw(terminal: &impl AsFd) -> bool {
    let modes = tcgetattr(terminal).unwrap().local_modes;
    let cooked = LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
    assert!(!modes.intersects(cooked) || modes.contains(cooked), "{modes:?}");
    !modes.intersects(cooked)
}

#[test]
fn a_terminal_is_as_before_when_it_is_no_longer_raw() {
    let (mut person, program) = person();
    let mut input = Input::new(program.try_clone().unwrap());
    assert!(!is_raw(&program));
    let raw = Raw::new(&input).unwrap();
    assert!(is_raw(&program));
    // A key comes at once, and neither Ctrl-C nor Ctrl-D is anything else.
    for key in [b'x', 3, 4, b'\r', 0x1d] {
        person.types(&[key]);
        assert_eq!(input.byte().unwrap(), Some(key));
    }
    File::from(program.try_clone().unwrap()).write_all(b"a\nb").unwrap();
    person.sees("a\r\nb");
    drop(raw);
    assert!(!is_raw(&program));
    let (pipe, _to) = std::io::pipe().unwrap();
    assert!(Raw::new(&pipe).is_err(), "no terminal");
}

#[test]
fn a_terminal_that_is_gone_is_the_end_of_the_input() {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let person = openpt(flags).unwrap();
    unlockpt(&person).unwrap();
    let mut input = Input::new(ioctl_tiocgptpeer(&person, flags).unwrap());
    let _raw = Raw::new(&input).unwrap();
    drop(person);
    assert_eq!(input.byte().unwrap(), None);
    assert!(input.is_over());
}

/// A process of its own gets the signal: the other tests of this one shall not.
#[test]
fn a_signal_is_the_end_of_the_input_while_a_terminal_is_raw() {
    const MARK: &str = "SIDECORE_AGENT_TEST_OF_SIGNALS";
    let name = "terminal::tests::a_signal_is_the_end_of_the_input_while_a_terminal_is_raw";
    if std::env::var_os(MARK).is_none() {
        for (is_raw, ends_by) in [("yes", None), ("no", Some(SIGTERM))] {
            let mut test = std::process::Command::new(std::env::current_exe().unwrap());
            let status = test.args([name, "--exact", "--nocapture"]).env(MARK, is_raw).status().unwrap();
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            assert_eq!((signal, status.success()), (ends_by, ends_by.is_none()));
        }
        return;
    }
    let (_person, program) = person();
    let mut input = Input::new(program.try_clone().unwrap());
    let raw = Raw::new(&input).unwrap();
    if std::env::var(MARK).unwrap() == "no" {
        drop(raw);
        signal_hook::low_level::raise(SIGTERM).unwrap();
        unreachable!("the signal ends it");
    }
    signal_hook::low_level::raise(SIGTERM).unwrap();
    assert_eq!(input.wait(None, None).unwrap(), Ready::Signal);
    assert!(input.is_over() && input.byte().unwrap().is_none());
    drop(raw);
    assert!(!is_raw(&program));
}
