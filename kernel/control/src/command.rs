//! The commands of operators and scripts. A [`Command`] has two notations: words on COM1, JSON on COM2.

use alloc::string::String;

use serde::Serialize;

use crate::json::{Object, Value};
use crate::no_memory::{copy, sentence};
use crate::shown::{Joined, Shortened};
use crate::{Text, nearest};

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The list of commands (COM1 only).
    Help,
    /// The guests and their states.
    List,
    /// Starts a guest that is stopped.
    Start(String),
    /// Presses a guest's power button. Kills the guest after a time limit.
    Stop(String),
    /// Stops a guest at once.
    Kill(String),
    /// Stops a guest and starts it again.
    Restart(String),
    /// Connects COM1 to a guest's console (COM1 only).
    Attach {
        /// The guest.
        guest: String,
        /// Its output is not filtered: it can do to the terminal what it likes.
        raw: bool,
    },
    /// Text to a guest's console (COM2 only).
    Input {
        /// The guest.
        guest: String,
        /// The text, as if typed.
        text: String,
    },
    /// Opens or closes a named port of a guest's console device (COM2 only).
    Port {
        /// The guest.
        guest: String,
        /// The name of the port.
        port: String,
        /// Whether it is to be open.
        open: bool,
    },
    /// Bytes to a named port of a guest's console device (COM2 only).
    PortInput {
        /// The guest.
        guest: String,
        /// The name of the port.
        port: String,
        /// The bytes, one character each, U+0000 to U+00FF.
        text: String,
    },
    /// Shows counters. COM2 always gets all of them.
    Show(View),
    /// Switches the engines' profiles on or off: the requests of a visit, the length of a turn.
    Watch(bool),
    /// The capability report.
    Report,
    /// The version of sidecore.
    Version,
    /// Stops all guests and powers the machine off.
    Shutdown,
    /// Stops all guests and resets the machine.
    Reboot,
}

/// What `show` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// All counters.
    Counters,
    /// Exits by guest, vCPU and reason.
    Exits,
    /// Engine utilisation.
    Engine,
    /// Network ports.
    Ports,
    /// Memory of the hypervisor and of the guests.
    Memory,
}

/// A command that cannot be carried out, with the sentence to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The request's `id`, if it could be read.
    pub id: Option<u64>,
    /// The sentence.
    pub error: Text,
}

/// A line of COM2: a command and the `id` that its reply will carry.
///
/// ```
/// use control::{Command, Request};
/// let request = Request::from_line(r#"{"command":"stop","guest":"a","id":7}"#).unwrap();
/// assert_eq!(request, Request { id: Some(7), command: Command::Stop("a".into()) });
/// assert_eq!(Request::from_line(&request.to_line()), Ok(request));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The sender chooses it.
    pub id: Option<u64>,
    /// The command.
    pub command: Command,
}

const WORDS: [&str; 13] = [
    "help", "list", "start", "stop", "kill", "restart", "attach", "show", "watch", "report", "version", "shutdown",
    "reboot",
];
const COM2_WORDS: [&str; 13] = [
    "list", "start", "stop", "kill", "restart", "input", "port", "counters", "watch", "report", "version", "shutdown",
    "reboot",
];
const VIEWS: [&str; 5] = ["counters", "exits", "engine", "ports", "memory"];

/// The text of `help`.
pub(crate) const HELP: &str = "\
list                 guests and their states
start NAME           start a guest
stop NAME            press its power button; kill it if it does not react
kill NAME            stop it at once
restart NAME         stop it and start it again
attach NAME          type into its console; leave with Ctrl-]
attach --raw NAME    the same; it may do to this terminal what it likes
show [WHAT]          counters: exits, engine, ports, memory; all without WHAT
watch on|off         count what the engines do, for `show engine`; off by default
report               what this machine has, and what is used instead of what it lacks
version              which sidecore this is
shutdown, reboot     stop all guests; switch the machine off, or start it again
";

impl Command {
    /// Reads a line of COM1.
    ///
    /// # Errors
    /// The sentence to show. It names the unknown word and the nearest command.
    pub fn from_words(line: &str) -> Result<Self, Text> {
        let mut words = line.split_whitespace();
        let Some(word) = words.next() else { return Err("no command; try `help`".into()) };
        let mut argument = words.next();
        let raw = word == "attach" && argument == Some("--raw");
        if raw {
            argument = words.next();
        }
        if let Some(extra) = words.next() {
            return Err(sentence(format_args!("`{extra}` is one word too many after `{word}`")));
        }
        let guest = || match argument {
            Some(name) => Ok(copy(name)?),
            None => Err(sentence(format_args!("`{word}` needs the name of a guest"))),
        };
        let command = match word {
            "start" => return guest().map(Self::Start),
            "stop" => return guest().map(Self::Stop),
            "kill" => return guest().map(Self::Kill),
            "restart" => return guest().map(Self::Restart),
            "attach" => return guest().map(|guest| Self::Attach { guest, raw }),
            "watch" => {
                return match argument {
                    Some("on") => Ok(Self::Watch(true)),
                    Some("off") => Ok(Self::Watch(false)),
                    Some(other) => {
                        Err(sentence(format_args!("`watch` takes `on` or `off`, but got `{}`", Shortened(other))))
                    }
                    None => Err("`watch` needs `on` or `off`".into()),
                };
            }
            "show" => return View::from_name(argument.unwrap_or("counters")).map(Self::Show),
            "help" | "?" => Self::Help,
            "list" => Self::List,
            "report" => Self::Report,
            "version" => Self::Version,
            "shutdown" => Self::Shutdown,
            "reboot" => Self::Reboot,
            _ => return Err(unknown("command", word, &WORDS)),
        };
        match argument {
            Some(extra) => Err(sentence(format_args!("`{word}` takes nothing after it, but got `{extra}`"))),
            None => Ok(command),
        }
    }

    /// The guest that it names.
    #[must_use]
    pub fn guest(&self) -> Option<&str> {
        match self {
            Self::Start(guest)
            | Self::Stop(guest)
            | Self::Kill(guest)
            | Self::Restart(guest)
            | Self::Attach { guest, .. }
            | Self::Input { guest, .. }
            | Self::Port { guest, .. }
            | Self::PortInput { guest, .. } => Some(guest),
            _ => None,
        }
    }
}

impl View {
    fn from_name(name: &str) -> Result<Self, Text> {
        Ok(match name {
            "counters" => Self::Counters,
            "exits" => Self::Exits,
            "engine" => Self::Engine,
            "ports" => Self::Ports,
            "memory" => Self::Memory,
            _ => return Err(unknown("view", name, &VIEWS)),
        })
    }
}

/// A request as it is written.
#[derive(Serialize)]
struct Wire<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    command: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    guest: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on: Option<bool>,
}

/// The members of a request as they were read. A later check finds those that do not belong to the command, so that the answer
/// can name them.
#[derive(Default)]
struct Members<'a> {
    id: Option<u64>,
    command: Option<&'a str>,
    guest: Option<&'a str>,
    port: Option<&'a str>,
    text: Option<&'a str>,
    on: Option<bool>,
}

impl<'a> Members<'a> {
    fn take(&mut self, name: &str, value: Value<'a>) -> Result<(), Text> {
        let repeated = match (name, value) {
            ("id" | "guest" | "port" | "text" | "on", Value::Null) => false,
            ("id", Value::Number(id)) => self.id.replace(id).is_some(),
            ("command", Value::Text(text)) => self.command.replace(text).is_some(),
            ("guest", Value::Text(text)) => self.guest.replace(text).is_some(),
            ("port", Value::Text(text)) => self.port.replace(text).is_some(),
            ("text", Value::Text(text)) => self.text.replace(text).is_some(),
            ("on", Value::Flag(on)) => self.on.replace(on).is_some(),
            ("id", _) => {
                return Err(sentence(format_args!("not a command: `id` is {value}; expected an integer from 0")));
            }
            ("on", _) => return Err(sentence(format_args!("not a command: `on` is {value}; expected true or false"))),
            ("command" | "guest" | "port" | "text", _) => {
                return Err(sentence(format_args!("not a command: `{name}` is {value}; expected a text")));
            }
            _ => return Err(sentence(format_args!("not a command: no command has a member `{}`", Shortened(name)))),
        };
        if repeated {
            return Err(sentence(format_args!("not a command: `{name}` is there twice")));
        }
        Ok(())
    }
}

impl Request {
    /// Reads a line of COM2.
    ///
    /// # Errors
    /// What was wrong, for the reply.
    pub fn from_line(line: &str) -> Result<Self, Refused> {
        // The escapes in texts are replaced in a copy of the line.
        let mut bytes = match copy(line.trim()) {
            Ok(line) => line.into_bytes(),
            Err(error) => return Err(Refused { id: None, error: error.into() }),
        };
        let mut members = Members::default();
        let read = Object::new(&mut bytes).map_err(|bad| sentence(format_args!("not a command: {bad}"))).and_then(
            |mut object| {
                while let Some((name, value)) =
                    object.next().map_err(|bad| sentence(format_args!("not a command: {bad}")))?
                {
                    members.take(name, value)?;
                }
                Ok(())
            },
        );
        let id = members.id;
        match read.and_then(|()| Self::command(&members)) {
            Ok(command) => Ok(Self { id, command }),
            Err(error) => Err(Refused { id, error }),
        }
    }

    fn command(members: &Members<'_>) -> Result<Command, Text> {
        let &Members { command: Some(word), guest, port, text, on, .. } = members else {
            return Err("not a command: expected a member `command`".into());
        };
        let known = COM2_WORDS.iter().copied().find(|known| *known == word);
        let Some(known) = known else { return Err(unknown("command", word, &COM2_WORDS)) };
        let lacks = |member: &str| sentence(format_args!("`{known}` needs a member `{member}`"));
        let takes_no =
            |member: &str, value: Value<'_>| sentence(format_args!("`{known}` takes no `{member}`, but got {value}"));
        let needs_guest = matches!(known, "start" | "stop" | "kill" | "restart" | "input" | "port");
        match guest {
            Some(guest) if !needs_guest => return Err(takes_no("guest", Value::Text(guest))),
            None if needs_guest => return Err(lacks("guest")),
            _ => {}
        }
        match (known, port) {
            ("port", None) => return Err(lacks("port")),
            ("input" | "port", _) | (_, None) => {}
            (_, Some(port)) => return Err(takes_no("port", Value::Text(port))),
        }
        match (known, text) {
            ("input", None) => return Err(lacks("text")),
            ("input", _) | (_, None) => {}
            (_, Some(text)) => return Err(takes_no("text", Value::Text(text))),
        }
        match (known, on) {
            ("watch" | "port", None) => return Err(lacks("on")),
            ("watch" | "port", _) | (_, None) => {}
            (_, Some(on)) => return Err(takes_no("on", Value::Flag(on))),
        }
        let guest = || copy(guest.unwrap_or_default());
        let text = || copy(text.unwrap_or_default());
        let on = on.unwrap_or_default();
        Ok(match (known, port) {
            ("start", _) => Command::Start(guest()?),
            ("stop", _) => Command::Stop(guest()?),
            ("kill", _) => Command::Kill(guest()?),
            ("restart", _) => Command::Restart(guest()?),
            ("input", Some(port)) => Command::PortInput { guest: guest()?, port: copy(port)?, text: text()? },
            ("input", None) => Command::Input { guest: guest()?, text: text()? },
            ("port", port) => Command::Port { guest: guest()?, port: copy(port.unwrap_or_default())?, open: on },
            ("list", _) => Command::List,
            ("counters", _) => Command::Show(View::Counters),
            ("watch", _) => Command::Watch(on),
            ("report", _) => Command::Report,
            ("version", _) => Command::Version,
            ("shutdown", _) => Command::Shutdown,
            _ => Command::Reboot,
        })
    }

    /// Returns the line, with its end. COM2 has no `help` and no `attach`. They become COM1's words, and the receiver
    /// refuses them.
    #[must_use]
    pub fn to_line(&self) -> String {
        let word = match &self.command {
            Command::Help => "help",
            Command::List => "list",
            Command::Start(_) => "start",
            Command::Stop(_) => "stop",
            Command::Kill(_) => "kill",
            Command::Restart(_) => "restart",
            Command::Attach { .. } => "attach",
            Command::Input { .. } | Command::PortInput { .. } => "input",
            Command::Port { .. } => "port",
            Command::Show(_) => "counters",
            Command::Watch(_) => "watch",
            Command::Report => "report",
            Command::Version => "version",
            Command::Shutdown => "shutdown",
            Command::Reboot => "reboot",
        };
        let text = match &self.command {
            Command::Input { text, .. } | Command::PortInput { text, .. } => Some(text.as_str()),
            _ => None,
        };
        let on = match self.command {
            Command::Watch(on) | Command::Port { open: on, .. } => Some(on),
            _ => None,
        };
        let port = match &self.command {
            Command::Port { port, .. } | Command::PortInput { port, .. } => Some(port.as_str()),
            _ => None,
        };
        let wire = Wire { id: self.id, command: word, guest: self.command.guest(), port, text, on };
        // Strings and integers always serialise.
        let mut line = serde_json::to_string(&wire).unwrap_or_default();
        line.push('\n');
        line
    }
}

fn unknown(what: &str, word: &str, known: &[&str]) -> Text {
    let shown = Shortened(word);
    match nearest(word, known.iter().copied()) {
        Some(meant) => sentence(format_args!("no {what} `{shown}`; did you mean `{meant}`?")),
        None => sentence(format_args!("no {what} `{shown}`; there are: {}", Joined(known.iter()))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn json_error(line: &str) -> Text {
        Request::from_line(line).unwrap_err().error
    }

    #[test]
    fn words_and_json_give_the_same_command() {
        for (words, json) in [
            ("list", r#"{"command":"list"}"#),
            ("start a", r#"{"command":"start","guest":"a"}"#),
            (" stop  a ", r#"{"command":"stop","guest":"a"}"#),
            ("kill a", r#"{"command":"kill","guest":"a"}"#),
            ("restart a", r#"{"command":"restart","guest":"a"}"#),
            ("show", r#"{"command":"counters"}"#),
            ("watch on", r#"{"command":"watch","on":true}"#),
            ("watch off", r#"{"command":"watch","on":false}"#),
            ("report", r#"{"command":"report"}"#),
            ("version", r#"{"command":"version"}"#),
            ("shutdown", r#"{"command":"shutdown"}"#),
            ("reboot", r#"{"command":"reboot"}"#),
        ] {
            assert_eq!(Command::from_words(words).unwrap(), Request::from_line(json).unwrap().command, "{words}");
        }
    }

    #[test]
    fn every_word_of_the_lists_is_understood() {
        for word in WORDS {
            let understood =
                ["", " memory", " on"].iter().any(|more| Command::from_words(&format!("{word}{more}")).is_ok());
            assert!(understood, "{word}");
            assert!(HELP.contains(word) || word == "help", "{word} is not in the help");
        }
        for view in VIEWS {
            assert!(matches!(Command::from_words(&format!("show {view}")), Ok(Command::Show(_))));
        }
    }

    #[test]
    fn mistakes_on_the_shell_name_the_word_and_the_nearest_command() {
        let error = |line| Command::from_words(line).unwrap_err();
        assert_eq!(error("lst"), "no command `lst`; did you mean `list`?");
        assert_eq!(error("show exit"), "no view `exit`; did you mean `exits`?");
        assert_eq!(error("start"), "`start` needs the name of a guest");
        assert_eq!(error("list a"), "`list` takes nothing after it, but got `a`");
        assert_eq!(error("stop a b"), "`b` is one word too many after `stop`");
        assert!(error("frobnicate").contains("there are: help, list"));
    }

    #[test]
    fn mistakes_on_com2_name_the_value_and_keep_the_id() {
        assert!(json_error("{").contains("the end of the line"));
        assert!(json_error(r#"{"command":3}"#).contains("`command` is 3; expected a text"));
        assert!(json_error(r#"{"command":"list","command":"list"}"#).contains("`command` is there twice"));
        assert!(json_error(r#"{"id":1}"#).contains("expected a member `command`"));
        assert!(json_error(r#"{"command":"list","gest":"a"}"#).contains("`gest`"));
        assert!(json_error(r#"{"command":"list","id":-1}"#).contains("`-`"));
        assert!(json_error(r#"{"command":"input","guest":"a"}"#).contains("`text`"));
        assert!(json_error(r#"{"command":"port","guest":"a","on":true}"#).contains("`port`"));
        assert!(json_error(r#"{"command":"port","guest":"a","port":"p"}"#).contains("`on`"));
        assert!(json_error(r#"{"command":"stop","guest":"a","port":"p"}"#).contains("takes no `port`, but got \"p\""));
        assert_eq!(
            Request::from_line(r#"{"command":"strat","id":9}"#),
            Err(Refused { id: Some(9), error: unknown("command", "strat", &COM2_WORDS) })
        );
        assert_eq!(
            Request::from_line(r#"{"command":"stop","id":9}"#),
            Err(Refused { id: Some(9), error: "`stop` needs a member `guest`".into() })
        );
    }

    #[test]
    fn deep_nesting_is_refused_not_followed() {
        let line = "[".repeat(4000);
        assert!(Request::from_line(&line).is_err());
        let line = format!("{{\"command\":{}", "{\"a\":".repeat(800));
        assert!(Request::from_line(&line).is_err());
    }

    proptest! {
        #[test]
        fn no_line_panics(line in "\\PC*") {
            let _ = Command::from_words(&line);
            let _ = Request::from_line(&line);
        }

        #[test]
        fn requests_come_back_as_they_went(id in any::<Option<u64>>(), guest in "[ -~]{0,20}", text in "\\PC*") {
            let port = guest.clone();
            for command in [
                Command::Start(guest.clone()),
                Command::Input { guest: guest.clone(), text: text.clone() },
                Command::Port { guest: guest.clone(), port: port.clone(), open: true },
                Command::PortInput { guest: guest.clone(), port, text },
                Command::List,
            ] {
                let request = Request { id, command };
                prop_assert_eq!(Request::from_line(&request.to_line()), Ok(request));
            }
        }
    }
}
