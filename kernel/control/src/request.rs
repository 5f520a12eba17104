//! Requests: commands as lines of COM2, one JSON object each. What a command's members are comes from the table in `command.rs`.

use alloc::string::String;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::Text;
use crate::argument::{AllGiven, Argument, Given, Kind};
use crate::command::{Command, ROWS, Row};
use crate::json::{Object, Value};
use crate::no_memory::{copy, sentence};
use crate::sender::Sender;
use crate::shown::Shortened;
use crate::unknown::unknown;

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
/// assert_eq!(request, Request::new(Some(7), Command::Stop("a".into())));
/// assert_eq!(Request::from_line(&request.to_line()), Ok(request));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The sender chooses it.
    pub id: Option<u64>,
    /// Who has sent it, as the management guest's agent says. Empty on COM2.
    pub sender: Sender,
    /// The command.
    pub command: Command,
}

/// Most members of a request that are not `id`, `command`, `who` or `address`. There are not so many names.
const MEMBERS: usize = 24;

/// The members of a request as they were read. A later check finds those that do not belong to the command, so that the answer
/// can name them.
#[derive(Default)]
struct Members<'a> {
    id: Option<u64>,
    command: Option<&'a str>,
    who: Option<&'a str>,
    address: Option<&'a str>,
    others: heapless::Vec<(&'static str, Given<'a>), MEMBERS>,
}

impl<'a> Members<'a> {
    fn take(&mut self, name: &str, value: Value<'a>) -> Result<(), Text> {
        let expected = |what: &str| Err(sentence(format_args!("not a command: `{name}` is {value}; expected {what}")));
        let argument = arguments().find(|(member, _)| *member == name);
        let repeated = match (name, argument, value) {
            ("id" | "who" | "address", _, Value::Null) | (_, Some(_), Value::Null) => false,
            ("id", _, Value::Number(id)) => self.id.replace(id).is_some(),
            ("id", ..) => return expected("an integer from 0"),
            ("command", _, Value::Text(word)) => self.command.replace(word).is_some(),
            ("who", _, Value::Text(who)) => self.who.replace(who).is_some(),
            ("address", _, Value::Text(address)) => self.address.replace(address).is_some(),
            ("command" | "who" | "address", ..) => return expected("a text"),
            (_, Some((member, argument)), value) => {
                let given = match (&argument.kind, value) {
                    (Kind::Flag | Kind::Option(_), Value::Flag(flag)) => Given::Flag(flag),
                    (Kind::Flag | Kind::Option(_), _) => return expected("true or false"),
                    (Kind::Number, Value::Number(number)) => Given::Number(number),
                    (Kind::Number, _) => return expected("an integer from 0"),
                    (_, Value::Text(text)) => argument.text(text)?,
                    _ => return expected("a text"),
                };
                let repeated = self.others.iter().any(|(known, _)| *known == member);
                repeated || self.others.push((member, given)).is_err()
            }
            _ => return Err(sentence(format_args!("not a command: no command has a member `{}`", Shortened(name)))),
        };
        if repeated {
            return Err(sentence(format_args!("not a command: `{name}` is there twice")));
        }
        Ok(())
    }

    /// The command that they make.
    fn command(&self) -> Result<Command, Text> {
        let Some(word) = self.command else { return Err("not a command: expected a member `command`".into()) };
        let mut rows = ROWS.iter().filter(|row| row.json == Some(word));
        // Two commands may have the same word. Then the members say which one it is.
        let fits = |row: &&Row| self.others.iter().all(|(member, _)| row.has(member));
        let Some(row) = rows.clone().find(fits).or_else(|| rows.next()) else {
            return Err(unknown("command", word, words()));
        };
        let word = row.json.unwrap_or_default();
        if let Some((member, given)) = self.others.iter().find(|(member, _)| !row.has(member)) {
            let value = match *given {
                Given::Text(text) => Value::Text(text),
                Given::Flag(flag) => Value::Flag(flag),
                Given::Number(number) => Value::Number(number),
                Given::Nothing => Value::Null,
            };
            return Err(sentence(format_args!("`{word}` takes no `{member}`, but got {value}")));
        }
        let mut all = AllGiven::default();
        for (argument, place) in row.arguments.iter().zip(&mut all) {
            let Some(member) = argument.member else { continue };
            match self.others.iter().find(|(known, _)| *known == member) {
                Some((_, given)) => *place = *given,
                None if argument.needed => {
                    return Err(sentence(format_args!("`{word}` needs a member `{member}`")));
                }
                None => {}
            }
        }
        (row.make)(&all)
    }
}

impl Row {
    /// Whether the command has a member of that name.
    fn has(&self, member: &str) -> bool {
        self.arguments.iter().any(|argument| argument.member == Some(member))
    }
}

/// The members of all commands, each as often as a command has it.
fn arguments() -> impl Iterator<Item = (&'static str, &'static Argument)> {
    ROWS.iter().flat_map(|row| row.arguments).filter_map(|argument| argument.member.map(|member| (member, argument)))
}

/// The words of COM2.
fn words() -> impl Iterator<Item = &'static str> + Clone {
    let mut last = None;
    // Commands with the same word are neighbours.
    ROWS.iter().filter_map(|row| row.json).filter(move |word| last.replace(*word) != Some(*word))
}

impl Request {
    /// Makes a request of which nobody says who has sent it.
    #[must_use]
    pub fn new(id: Option<u64>, command: Command) -> Self {
        Self { id, sender: Sender::default(), command }
    }

    /// Reads a line of COM2 or of the control channel.
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
        let sender = Sender::new(members.who.unwrap_or_default(), members.address.unwrap_or_default());
        match read.and_then(|()| members.command()) {
            Ok(command) => Ok(Self { id, sender, command }),
            Err(error) => Err(Refused { id, error }),
        }
    }

    /// Returns the line, with its end. COM2 has no `help` and no `attach`. They become COM1's words, and the receiver
    /// refuses them.
    #[must_use]
    pub fn to_line(&self) -> String {
        // Strings and integers always serialise.
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}

impl Serialize for Request {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (row, given) = self.command.row();
        let mut map = serializer.serialize_map(None)?;
        if let Some(id) = self.id {
            map.serialize_entry("id", &id)?;
        }
        for (member, said) in [("who", &*self.sender.who), ("address", &*self.sender.address)] {
            if !said.is_empty() {
                map.serialize_entry(member, said)?;
            }
        }
        map.serialize_entry("command", row.json.unwrap_or_else(|| self.command.word()))?;
        for (argument, given) in row.arguments.iter().zip(given) {
            match (argument.member, given) {
                (Some(member), Given::Text(text)) => map.serialize_entry(member, text)?,
                (Some(member), Given::Flag(flag)) => map.serialize_entry(member, &flag)?,
                (Some(member), Given::Number(number)) => map.serialize_entry(member, &number)?,
                _ => {}
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Permissions;

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
            ("forget k", r#"{"command":"forget","module":"k"}"#),
            ("apply --dry-run f", r#"{"command":"apply","module":"f","dry":true}"#),
            ("apply f 60 --restart", r#"{"command":"apply","module":"f","restart":true,"confirm":60}"#),
            ("confirm", r#"{"command":"confirm"}"#),
            ("identify lan", r#"{"command":"identify","uplink":"lan"}"#),
            ("identify lan 30", r#"{"command":"identify","uplink":"lan","seconds":30}"#),
        ] {
            assert_eq!(Command::from_words(words).unwrap(), Request::from_line(json).unwrap().command, "{words}");
        }
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
        assert!(
            json_error(r#"{"command":"put","module":"k","bytes":"7","sha256":""}"#).contains("expected an integer")
        );
        assert!(json_error(r#"{"command":"put","module":"k","bytes":-7,"sha256":""}"#).contains("`-`"));
        assert!(json_error(r#"{"command":"stop","guest":"a","at":7}"#).contains("takes no `at`, but got 7"));
        assert_eq!(
            Request::from_line(r#"{"command":"strat","id":9}"#),
            Err(Refused { id: Some(9), error: unknown("command", "strat", words()) })
        );
        assert_eq!(
            Request::from_line(r#"{"command":"stop","id":9}"#),
            Err(Refused { id: Some(9), error: "`stop` needs a member `guest`".into() })
        );
    }

    #[test]
    fn the_lines_are_those_that_programs_know() {
        let line = |command| Request::new(Some(7), command).to_line();
        assert_eq!(line(Command::List), "{\"id\":7,\"command\":\"list\"}\n");
        assert_eq!(line(Command::Show(crate::View::Exits)), "{\"id\":7,\"command\":\"counters\"}\n");
        assert_eq!(
            line(Command::Port { guest: "a".into(), port: "p".into(), open: false }),
            "{\"id\":7,\"command\":\"port\",\"guest\":\"a\",\"port\":\"p\",\"on\":false}\n"
        );
        assert_eq!(
            line(Command::PortInput { guest: "a".into(), port: "p".into(), text: "\n".into() }),
            "{\"id\":7,\"command\":\"input\",\"guest\":\"a\",\"port\":\"p\",\"text\":\"\\n\"}\n"
        );
        assert_eq!(
            Request::new(None, Command::Attach { raw: true, guest: "a".into() }).to_line(),
            "{\"command\":\"attach\",\"guest\":\"a\"}\n"
        );
    }

    #[test]
    fn a_request_has_its_sender_and_a_sender_is_no_argument() {
        let read = |line: &str| Request::from_line(line);
        let sent = read(r#"{"command":"stop","guest":"a","who":"anna","address":"10.0.0.5"}"#).unwrap();
        assert_eq!((&*sent.sender.who, &*sent.sender.address), ("anna", "10.0.0.5"));
        assert_eq!(sent.command, Command::Stop("a".into()));
        assert!(read(r#"{"command":"list","who":null,"address":""}"#).unwrap().sender.is_empty());
        assert!(json_error(r#"{"command":"list","who":7}"#).contains("`who` is 7; expected a text"));
        assert!(json_error(r#"{"command":"list","who":"a","who":"b"}"#).contains("`who` is there twice"));
        let login = read(r#"{"command":"notice","what":"login"}"#).unwrap().command;
        assert_eq!(login, Command::Notice { what: crate::Notice::Login, line: String::new(), why: String::new() });
        assert!(json_error(r#"{"command":"notice","what":"logn"}"#).contains("did you mean `login`"));
        assert_eq!(login.check(&crate::Caller::cable(crate::Way::Com2, crate::Permissions::NONE)), Ok(()));
    }

    #[test]
    fn the_words_are_there_once_and_their_members_fit() {
        let words: Vec<_> = words().collect();
        let mut once = words.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(words.len(), once.len(), "{words:?}");
        let mut members: Vec<_> = arguments().map(|(member, _)| member).collect();
        members.sort_unstable();
        members.dedup();
        assert!(members.len() <= MEMBERS, "{members:?}");
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
            let _ = Request::from_line(&line);
        }

        #[test]
        fn requests_come_back_as_they_went(id in any::<Option<u64>>(), guest in "[ -~]{0,20}", text in "\\PC*") {
            let port = guest.clone();
            for command in [
                Command::Start(guest.clone()),
                Command::Input { guest: guest.clone(), text: text.clone() },
                Command::Port { guest: guest.clone(), port: port.clone(), open: true },
                Command::Follow { guest: guest.clone(), on: false },
                Command::PortInput { guest: guest.clone(), port, text: text.clone() },
                Command::Notice { what: crate::Notice::Refused, line: text.clone(), why: text.clone() },
                Command::Set { guest: guest.clone(), key: crate::SettingKey::Restart, value: text.clone() },
                Command::List,
                Command::Put { module: guest.clone(), bytes: id.unwrap_or(7), sha256: text.clone() },
                Command::PutData { module: guest.clone(), at: id.unwrap_or(7), data: text.clone() },
                Command::Apply { dry: true, restart: false, module: guest.clone(), confirm: id.unwrap_or(0) },
            ] {
                let sender = Sender::new(&guest, "10.0.0.5");
                let request = Request { id, sender, command };
                prop_assert_eq!(Request::from_line(&request.to_line()), Ok(request));
            }
        }
    }

    #[test]
    fn words_and_json_give_the_same_command_of_captures() {
        let capture = Command::Capture { guest: "a".into(), filter: "in,1/10".into() };
        assert_eq!(Command::from_words("capture a in,1/10"), Ok(capture.clone()));
        let line = r#"{"command":"capture","guest":"a","filter":"in,1/10"}"#;
        assert_eq!(Request::from_line(line).map(|request| request.command), Ok(capture.clone()));
        assert_eq!((capture.permission(), capture.guest()), (Permissions::CAPTURE, Some("a")));
        assert_eq!(capture.summary().to_string(), "capture a in,1/10");
        let captures = Request::from_line(r#"{"command":"captures"}"#).unwrap().command;
        assert_eq!((captures.permission(), captures.guest()), (Permissions::CAPTURE, None));
        assert!(Command::from_words("capture").is_err());
    }

    #[test]
    fn the_command_of_ends_of_interrupts_is_two_words_or_one_and_needs_the_permission_profile() {
        let command = Command::TraceEoi { guest: "a".into(), vector: "0x31".into() };
        assert_eq!(Command::from_words("trace eoi a 0x31"), Ok(command.clone()));
        assert_eq!(Command::from_words("trace-eoi a 0x31"), Ok(command.clone()));
        let json = Request::from_line(r#"{"command":"trace-eoi","guest":"a","value":"0x31"}"#);
        assert_eq!(json.map(|request| request.command), Ok(command.clone()));
        assert_eq!((command.permission(), command.guest()), (Permissions::PROFILE, Some("a")));
        assert!(Command::from_words("trace eoi a").is_err());
        assert!(Command::from_words("trace eoi").unwrap_err().contains("trace-eoi"));
    }
}
