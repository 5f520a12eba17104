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
        Self::make(terminal, false)
    }

    /// The same, and what is written to it is not changed either.
    ///
    /// # Errors
    /// It is no terminal.
    pub fn whole(terminal: &impl AsFd) -> io::Result<Self> {
        Self::make(terminal, true)
    }

    fn make(terminal: &impl AsFd, is_whole: bool) -> io::Result<Self> {
        let terminal = terminal.as_fd().try_clone_to_owned()?;
        let before = tcgetattr(&terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        if !is_whole {
            raw.output_modes = before.output_modes;
        }
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
pub(crate) mod tests;
