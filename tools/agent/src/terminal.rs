//! The operator's terminal: each key comes at once and is not echoed, as long as a [`Raw`] lives. Then it is as it was before, also
//! when a signal asks this program to end meanwhile.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};

/// Signals that ask this program to end. SIGHUP is not among them: the terminal is gone then, and its end is the input's.
const SIGNALS: [i32; 3] = [SIGINT, SIGQUIT, SIGTERM];

/// What makes signals readable.
struct Signals {
    /// It has a byte for each signal that came while a terminal was raw.
    pipe: UnixStream,
    /// No terminal is raw: a signal ends this program at once.
    is_default: Arc<AtomicBool>,
}

/// Made with the first [`Raw`].
static CAUGHT: OnceLock<Signals> = OnceLock::new();

/// A stream that has something when a signal has asked this program to end while a terminal was raw. `None`: none has been raw yet.
#[must_use]
pub fn signals() -> Option<&'static UnixStream> {
    CAUGHT.get().map(|signals| &signals.pipe)
}

impl Signals {
    fn new() -> io::Result<Self> {
        let (pipe, to) = UnixStream::pair()?;
        let is_default = Arc::new(AtomicBool::new(true));
        for signal in SIGNALS {
            signal_hook::flag::register_conditional_default(signal, is_default.clone())?;
            signal_hook::low_level::pipe::register(signal, to.try_clone()?)?;
        }
        Ok(Self { pipe, is_default })
    }

    fn get() -> io::Result<&'static Self> {
        match CAUGHT.get() {
            Some(caught) => Ok(caught),
            None => {
                let new = Self::new()?;
                Ok(CAUGHT.get_or_init(|| new))
            }
        }
    }
}

/// A terminal whose keys come at once.
pub struct Raw {
    terminal: OwnedFd,
    before: Termios,
}

impl Raw {
    /// Makes this terminal raw. A line feed that is written to it is still the beginning of the next line.
    ///
    /// # Errors
    /// It is no terminal.
    pub fn new(terminal: &impl AsFd) -> io::Result<Self> {
        let terminal = terminal.as_fd().try_clone_to_owned()?;
        let before = tcgetattr(&terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        raw.output_modes = before.output_modes;
        let signals = Signals::get()?;
        signals.is_default.store(false, Ordering::SeqCst);
        let raw = tcsetattr(&terminal, OptionalActions::Now, &raw);
        // If that failed, it is put back at once.
        let this = Self { terminal, before };
        raw?;
        Ok(this)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
        if let Some(signals) = CAUGHT.get() {
            signals.is_default.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
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
}
