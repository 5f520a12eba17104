//! Standard input, for whoever reads it: lines of commands, a file for `put`, keys while a guest is attached or `top` is shown. There is
//! one reader of it in the process, so what one of them has not taken is there for the next.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::terminal;

/// Bytes that are read at once.
const PIECE: usize = 4096;

/// An input.
pub struct Input {
    file: File,
    /// What was read and not taken.
    held: Vec<u8>,
    /// Nothing more comes: it has ended, or a signal asked this program to end.
    is_over: bool,
}

/// What there is after waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The input has something, or its end.
    Input,
    /// The other stream has something, or its end.
    Other,
    /// A signal asks this program to end. The input counts as ended.
    Signal,
    /// The time is over.
    Nothing,
}

impl Input {
    /// Makes it of an open file.
    #[must_use]
    pub fn new(from: OwnedFd) -> Self {
        Self { file: from.into(), held: Vec::new(), is_over: false }
    }

    /// This process' standard input. Nobody else may read it.
    ///
    /// # Errors
    /// It is closed.
    pub fn standard() -> io::Result<Self> {
        io::stdin().as_fd().try_clone_to_owned().map(Self::new)
    }

    /// Whether it is a terminal.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.file.is_terminal()
    }

    /// Whether it has ended, and everything is taken.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over && self.held.is_empty()
    }

    /// Takes a line with its end. The last one may have none. `None`: it has ended.
    ///
    /// # Errors
    /// Those of reading.
    pub fn line(&mut self) -> io::Result<Option<String>> {
        loop {
            let end = self.held.iter().position(|&byte| byte == b'\n').map(|end| end + 1);
            if let Some(len) = end.or((self.is_over && !self.held.is_empty()).then_some(self.held.len())) {
                let line: Vec<u8> = self.held.drain(..len).collect();
                return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
            }
            if self.is_over {
                return Ok(None);
            }
            self.fill()?;
        }
    }

    /// Takes a byte. Waits for one if there is none. `None`: it has ended, or a signal asks this program to end.
    ///
    /// # Errors
    /// Those of reading.
    pub fn byte(&mut self) -> io::Result<Option<u8>> {
        while self.held.is_empty() && !self.is_over {
            if self.wait(None, None)? == Ready::Input {
                self.fill()?;
            }
        }
        Ok((!self.held.is_empty()).then(|| self.held.remove(0)))
    }

    /// Takes what there is, at most `most` bytes, and nothing behind the byte `last`. Does not wait after [`Ready::Input`]. Nothing: it
    /// has ended.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read_some(&mut self, most: usize, last: Option<u8>) -> io::Result<Vec<u8>> {
        if self.held.is_empty() && !self.is_over {
            self.fill()?;
        }
        let end = last.and_then(|last| self.held.iter().position(|&byte| byte == last));
        let len = end.map_or(self.held.len(), |end| end + 1).min(most);
        Ok(self.held.drain(..len).collect())
    }

    /// Waits until it has something, or the other stream has, but no longer than `time`.
    ///
    /// # Errors
    /// Those of `poll`.
    pub fn wait(&mut self, other: Option<BorrowedFd<'_>>, time: Option<Duration>) -> io::Result<Ready> {
        if !self.held.is_empty() || self.is_over {
            return Ok(Ready::Input);
        }
        let signals = terminal::signals();
        let own = self.file.as_fd();
        // What is not there is replaced by the input.
        let fds = [own, other.unwrap_or(own), signals.map_or(own, AsFd::as_fd)];
        let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut polled, time.as_ref()) {
            // The signal is in the pipe.
            Err(rustix::io::Errno::INTR) => {}
            result => _ = result?,
        }
        let [has_own, has_other, has_signal] = polled.map(|fd| !fd.revents().is_empty());
        if has_signal && signals.is_some() {
            self.is_over = true;
            return Ok(Ready::Signal);
        }
        Ok(match (has_own, has_other) {
            (true, _) => Ready::Input,
            (false, true) => Ready::Other,
            (false, false) => Ready::Nothing,
        })
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut bytes = [0; PIECE];
        match self.file.read(&mut bytes) {
            Ok(0) => self.is_over = true,
            Ok(len) => self.held.extend_from_slice(bytes.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Linux says so when the other end of a terminal is gone.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => self.is_over = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl AsFd for Input {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let taken = self.read_some(bytes.len(), None)?;
            if let Some(to) = bytes.get_mut(..taken.len()).filter(|to| !to.is_empty() || self.is_over) {
                to.copy_from_slice(&taken);
                return Ok(taken.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn of(bytes: &[u8]) -> Input {
        let (from, mut to) = io::pipe().unwrap();
        to.write_all(bytes).unwrap();
        Input::new(from.into())
    }

    #[test]
    fn what_one_reader_leaves_is_the_next_one_s() {
        let mut input = of(b"attach a\nuptime\nab\xc3");
        assert_eq!(input.line().unwrap().as_deref(), Some("attach a\n"));
        assert_eq!(input.wait(None, None).unwrap(), Ready::Input);
        assert_eq!(input.read_some(3, None).unwrap(), b"upt");
        assert_eq!(input.byte().unwrap(), Some(b'i'));
        assert_eq!(input.line().unwrap().as_deref(), Some("me\n"));
        assert!(!input.is_over());
        let mut rest = Vec::new();
        input.read_to_end(&mut rest).unwrap();
        assert_eq!((rest.as_slice(), input.is_over()), (&b"ab\xc3"[..], true));
        assert_eq!((input.line().unwrap(), input.byte().unwrap()), (None, None));
    }

    #[test]
    fn the_last_line_may_have_no_end() {
        let mut input = of(b"one\ntwo");
        let lines: Vec<_> = std::iter::from_fn(|| input.line().unwrap()).collect();
        assert_eq!(lines, ["one\n", "two"]);
    }

    #[test]
    fn waiting_ends_by_either_stream_or_the_time() {
        let (from, mut to) = io::pipe().unwrap();
        let (other, mut to_other) = io::pipe().unwrap();
        let mut input = Input::new(from.into());
        let soon = Some(Duration::from_millis(1));
        assert_eq!(input.wait(Some(other.as_fd()), soon).unwrap(), Ready::Nothing);
        to_other.write_all(b"x").unwrap();
        assert_eq!(input.wait(Some(other.as_fd()), None).unwrap(), Ready::Other);
        to.write_all(b"x").unwrap();
        assert_eq!(input.wait(Some(other.as_fd()), None).unwrap(), Ready::Input);
    }
}
