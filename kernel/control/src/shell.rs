//! The operator's terminal on COM1. It is a shell, or a guest's console while attached.

use alloc::string::String;
use core::fmt::{self, Write};

use crate::complete::complete;
use crate::{Command, Editor, command};

/// The key that leaves a guest's console: Ctrl-], as in telnet.
pub const LEAVE_KEY: u8 = 0x1d;

/// The prompt. In reverse video, which [`TerminalFilter`](crate::TerminalFilter) takes from guests' output. So a guest cannot fake it.
pub const PROMPT: &str = "\x1b[0;7msidecore>\x1b[0m ";

/// The action for a byte from the terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing to do.
    None,
    /// Carry this command out, write its output, then call [`Shell::prompt`]. The shell itself answers `help` and
    /// mistakes.
    Run(Command),
    /// Call [`Shell::complete`] with the names of the guests.
    Complete,
    /// The byte belongs to the console of the guest that has the terminal.
    ToGuest(u8),
    /// The operator left a guest's console.
    Left,
}

/// A terminal's state.
#[derive(Debug, Default)]
pub struct Shell {
    editor: Editor,
    attached: Option<String>,
}

impl Shell {
    /// Makes a terminal in the shell, with nothing typed.
    #[must_use]
    pub const fn new() -> Self {
        Self { editor: Editor::new(), attached: None }
    }

    /// Returns the guest whose console has the terminal.
    #[must_use]
    pub fn attached(&self) -> Option<&str> {
        self.attached.as_deref()
    }

    /// Gives the terminal to a guest's console. The caller has checked that the guest exists.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn attach(&mut self, guest: String, out: &mut dyn Write) -> fmt::Result {
        write!(out, "attached to {guest}; Ctrl-] leaves\r\n")?;
        self.attached = Some(guest);
        Ok(())
    }

    /// Takes the terminal back from a guest's console, for instance because the guest is gone.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn detach(&mut self, out: &mut dyn Write) -> fmt::Result {
        match self.attached.take() {
            Some(_) => self.prompt(out),
            None => Ok(()),
        }
    }

    /// Shows the prompt and what has been typed. Call it after other output too. Does nothing while attached.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn prompt(&self, out: &mut dyn Write) -> fmt::Result {
        match self.attached {
            Some(_) => Ok(()),
            None => write!(out, "\r{PROMPT}{}", self.editor.text()),
        }
    }

    /// Completes the word that is being typed: a command, a guest's name, or another word that the command takes. If it can be
    /// several, they are listed.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn complete<'a>(&mut self, guests: impl Iterator<Item = &'a str> + Clone, out: &mut dyn Write) -> fmt::Result {
        if complete(&mut self.editor, guests, out)? { self.prompt(out) } else { Ok(()) }
    }

    /// Takes a byte from the terminal and writes echo and mistakes to `out`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn feed(&mut self, byte: u8, out: &mut dyn Write) -> Result<Action, fmt::Error> {
        if let Some(guest) = self.attached.take_if(|_| byte == LEAVE_KEY) {
            write!(out, "\x1b[0m\r\nleft {guest}\r\n")?;
            self.prompt(out)?;
            return Ok(Action::Left);
        }
        if self.attached.is_some() {
            return Ok(Action::ToGuest(byte));
        }
        if byte == b'\t' && self.editor.is_between_keys() {
            return Ok(Action::Complete);
        }
        let Some(line) = self.editor.feed(byte, out)? else { return Ok(Action::None) };
        if line.trim().is_empty() {
            self.prompt(out)?;
            return Ok(Action::None);
        }
        match Command::from_words(&line) {
            Ok(Command::Help) => command::help(out)?,
            Ok(command) => return Ok(Action::Run(command)),
            Err(error) => write!(out, "{error}\r\n")?,
        }
        self.prompt(out)?;
        Ok(Action::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_in(shell: &mut Shell, bytes: &[u8]) -> (Vec<Action>, String) {
        let mut out = String::new();
        let actions = bytes.iter().map(|&byte| shell.feed(byte, &mut out).unwrap());
        (actions.filter(|action| *action != Action::None).collect(), out)
    }

    #[test]
    fn a_command_is_given_to_the_caller_and_a_mistake_is_answered() {
        let mut shell = Shell::new();
        assert_eq!(type_in(&mut shell, b"start a\r").0, [Action::Run(Command::Start("a".into()))]);
        let (actions, out) = type_in(&mut shell, b"strt a\r");
        assert_eq!(actions, []);
        assert_eq!(out, format!("strt a\r\nno command `strt`; did you mean `start`?\r\n\r{PROMPT}"));
        assert!(type_in(&mut shell, b"help\r").1.contains("attach [--raw] NAME"));
    }

    #[test]
    fn while_attached_every_byte_but_one_is_the_guest_s() {
        let mut shell = Shell::new();
        let mut out = String::new();
        shell.attach("a".into(), &mut out).unwrap();
        let (actions, echo) = type_in(&mut shell, b"x\x03\r");
        assert_eq!(actions, [Action::ToGuest(b'x'), Action::ToGuest(3), Action::ToGuest(b'\r')]);
        assert_eq!(echo, "", "the guest does the echo");
        assert_eq!(type_in(&mut shell, &[LEAVE_KEY]).0, [Action::Left]);
        assert_eq!(shell.attached(), None);
        assert_eq!(type_in(&mut shell, b"list\r").0, [Action::Run(Command::List)]);
    }

    #[test]
    fn a_guest_cannot_write_the_prompt() {
        let mut out = Vec::new();
        crate::TerminalFilter::new().feed(PROMPT.as_bytes(), &mut out).unwrap();
        assert_ne!(out, PROMPT.as_bytes());
        assert_eq!(String::from_utf8(out).unwrap(), "\x1b[0msidecore>\x1b[0m ");
    }

    #[test]
    fn attach_takes_a_raw_terminal_as_a_choice() {
        let mut shell = Shell::new();
        let attach = |raw| Action::Run(Command::Attach { guest: "a".into(), raw });
        assert_eq!(type_in(&mut shell, b"attach a\rattach --raw a\r").0, [attach(false), attach(true)]);
        assert!(type_in(&mut shell, b"attach --raw\r").1.contains("needs the name of a guest"));
    }

    #[test]
    fn the_prompt_comes_back_with_what_was_typed() {
        let mut shell = Shell::new();
        type_in(&mut shell, b"sho");
        let mut out = String::new();
        shell.prompt(&mut out).unwrap();
        assert_eq!(out, format!("\r{PROMPT}sho"));
    }

    /// Types keys. TAB is answered with these guests. Returns what the screen shows.
    fn screen(keys: &str) -> String {
        let (mut shell, mut out) = (Shell::new(), String::new());
        shell.prompt(&mut out).unwrap();
        for byte in keys.bytes() {
            if shell.feed(byte, &mut out).unwrap() == Action::Complete {
                shell.complete(["alpha", "alpine", "beta"].into_iter(), &mut out).unwrap();
            }
        }
        crate::screen_of::screen_of(&out)
    }

    #[test]
    fn tab_completes_what_can_be_only_one_word() {
        assert_eq!(screen("he\t|"), "sidecore> help |");
        assert_eq!(screen("show ex\t|"), "sidecore> show exits |");
        assert_eq!(screen("watch of\t|"), "sidecore> watch off |");
        assert_eq!(screen("start b\t|"), "sidecore> start beta |");
        assert_eq!(screen("attach -\tb\t|"), "sidecore> attach --raw beta |");
        assert_eq!(screen("attach b\t--\t|"), "sidecore> attach beta --raw |");
    }

    #[test]
    fn tab_grows_a_word_and_lists_what_it_can_be() {
        assert_eq!(screen("stop a\t|"), "sidecore> stop alp|");
        assert_eq!(screen("stop a\t\th\t|"), "sidecore> stop alp\nalpha alpine\nsidecore> stop alpha |");
        assert!(screen("re\t").starts_with("sidecore> re\nrestart report reboot\nsidecore> re"));
        let all = screen("\t");
        assert!(all.contains("help list start stop") && all.ends_with("\nsidecore> "), "{all}");
    }

    #[test]
    fn tab_does_nothing_where_nothing_fits() {
        for keys in ["x\t|", "nonsense a\t|", "list \t|", "start alpha b\t|", "show exits \t|"] {
            assert_eq!(screen(keys), format!("sidecore> {}", keys.replace('\t', "")));
        }
        // A byte of an escape sequence is no key.
        let mut shell = Shell::new();
        assert_eq!(type_in(&mut shell, b"\x1b\t").0, []);
    }

    #[test]
    fn tab_is_the_guest_s_while_attached() {
        let mut shell = Shell::new();
        shell.attach("a".into(), &mut String::new()).unwrap();
        assert_eq!(type_in(&mut shell, b"\t").0, [Action::ToGuest(b'\t')]);
    }
}
