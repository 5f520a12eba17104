//! The commands of operators and scripts. A [`Command`] has two notations: words on COM1, JSON on COM2.
//!
//! The table below is the only list of the commands. A row has all that there is to say of one: its name and its arguments, the
//! permission that it needs, its word in the shell with the line of `help`, and its word in JSON. The type, both readers, the
//! writer, the help, the hints and the completion come from it. Whoever adds a command adds a row, and the code that carries
//! it out. What else has to know it does not compile before (`README.md`).

use alloc::string::String;
use core::fmt;

use crate::Text;
use crate::argument::{
    AT, AllGiven, Argument, BYTES, CLASSES, CONFIRM, DATA, DRY_RUN, GUEST, Given, Kind, LINE, MODULE, ON, PORT, RAW,
    RESTART, SECONDS, SHA256, STOP, TEXT, UPLINK, VALUE, Value, WHY,
};
use crate::capture::FILTER;
use crate::eoi::VECTOR;
use crate::no_memory::sentence;
use crate::notice::{NOTICE, Notice};
use crate::permissions::{Caller, Permissions};
use crate::setting::{KEY, SettingKey};
use crate::shown::Shortened;
use crate::table::{left, wide};
use crate::trace::{STEP, TraceStep};
use crate::unknown::unknown;
use crate::view::{VIEW, View};

/// A row of the table.
pub(crate) struct Row {
    /// The word in the shell, and the line of `help`. `None`: COM1 does not have it.
    pub shell: Option<(&'static str, &'static str)>,
    /// The word in JSON. `None`: COM2 does not have it.
    pub json: Option<&'static str>,
    /// What it needs, whatever its arguments are: [`Command::permission`] knows those that need less.
    pub permission: Permissions,
    pub arguments: &'static [Argument],
    /// Makes the command of what was given for its arguments.
    pub make: fn(&AllGiven<'_>) -> Result<Command, Text>,
}

/// `Some` of what there is, `None` of nothing.
macro_rules! option {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// Makes [`Command`] and its table. A row is:
///
/// ```text
/// Name(argument: TYPE = ARGUMENT) => PERMISSION, shell("word", "help"), json("word");
/// ```
///
/// The arguments may be in braces, each with its description. `shell` or `json` may be missing.
macro_rules! commands {
    ($(
        $(#[$about:meta])*
        $name:ident
            $(($($plain:ident: $plain_type:ty = $plain_argument:ident),+))?
            $({$($(#[$about_field:meta])* $field:ident: $field_type:ty = $field_argument:ident),+ $(,)?})?
            => $permission:ident $(, shell($word:literal, $help:literal))? $(, json($json:literal))?;
    )+) => {
        /// A command.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Command {
            $($(#[$about])* $name $(($($plain_type),+))? $({$($(#[$about_field])* $field: $field_type),+})?,)+
        }

        /// The commands without their arguments. The number of each is that of its row.
        enum Number {
            $($name),+
        }

        /// All rows.
        pub(crate) static ROWS: [Row; [$(stringify!($name)),+].len()] = [$(Row {
            shell: option!($(($word, $help))?),
            json: option!($($json)?),
            permission: Permissions::$permission,
            arguments: &[$($($plain_argument),+)? $($($field_argument),+)?],
            make: |given| {
                let mut _given = given.iter().copied();
                let mut _next = || _given.next().unwrap_or_default();
                $($(let $plain = Value::read(_next())?;)+)?
                $($(let $field = Value::read(_next())?;)+)?
                Ok(Command::$name $(($($plain),+))? $({$($field),+})?)
            },
        }),+];

        impl Command {
            /// Returns its row, and what would be given for its arguments.
            pub(crate) fn row(&self) -> (&'static Row, AllGiven<'_>) {
                match self {
                    $(Self::$name $(($($plain),+))? $({$($field),+})? => {
                        #[expect(clippy::indexing_slicing, reason = "the index is checked when this is compiled")]
                        let row = const { &ROWS[Number::$name as usize] };
                        let given: &[Given<'_>] = &[$($($plain.given()),+)? $($($field.given()),+)?];
                        let mut all = AllGiven::default();
                        all.iter_mut().zip(given).for_each(|(place, given)| *place = *given);
                        (row, all)
                    })+
                }
            }
        }
    };
}

commands! {
    /// The list of commands (COM1 only).
    Help => VIEW, shell("help", "this list");
    /// The guests and their states.
    List => VIEW, shell("list", "guests and their states"), json("list");
    /// Starts a guest that is stopped.
    Start(guest: String = GUEST) => OPERATE, shell("start", "start a guest"), json("start");
    /// Presses a guest's power button. Kills the guest after a time limit.
    Stop(guest: String = GUEST) => OPERATE,
        shell("stop", "press its power button; kill it if it does not react"), json("stop");
    /// Stops a guest at once.
    Kill(guest: String = GUEST) => OPERATE, shell("kill", "stop it at once"), json("kill");
    /// Stops a guest and starts it again.
    Restart(guest: String = GUEST) => OPERATE, shell("restart", "stop it and start it again"), json("restart");
    /// Changes a value of a guest's configuration while it runs.
    Set {
        /// The guest.
        guest: String = GUEST,
        /// The key.
        key: SettingKey = KEY,
        /// The value, without quotes.
        value: String = VALUE,
    } => OPERATE, shell("set", "change its `weight` or `restart`, until reboot"), json("set");
    /// Connects COM1 to a guest's console (COM1 only).
    Attach {
        /// Its output is not filtered: it can do to the terminal what it likes.
        raw: bool = RAW,
        /// The guest.
        guest: String = GUEST,
    } => CONSOLE, shell("attach", "type into its console; Ctrl-] leaves; --raw: not filtered");
    /// Has a guest's output sent as it comes, or no more: also unfinished lines (COM2 only).
    Follow {
        /// The guest.
        guest: String = GUEST,
        /// Whether it is to be sent.
        on: bool = ON,
    } => CONSOLE, json("follow");
    /// Text to a guest's console (COM2 only).
    Input {
        /// The guest.
        guest: String = GUEST,
        /// The text, as if typed.
        text: String = TEXT,
    } => CONSOLE, json("input");
    /// Bytes to a named port of a guest's console device (COM2 only).
    PortInput {
        /// The guest.
        guest: String = GUEST,
        /// The name of the port.
        port: String = PORT,
        /// The bytes, one character each, U+0000 to U+00FF.
        text: String = TEXT,
    } => CONSOLE, json("input");
    /// Opens or closes a named port of a guest's console device (COM2 only).
    Port {
        /// The guest.
        guest: String = GUEST,
        /// The name of the port.
        port: String = PORT,
        /// Whether it is to be open.
        open: bool = ON,
    } => CONSOLE, json("port");
    /// Shows counters. COM2 always gets all of them.
    Show(view: View = VIEW) => VIEW,
        shell("show", "counters (all), exits, engine, ports, memory, audit,\nconfig, latency, modules, apply"), json("counters");
    /// A live picture of the machine (COM1 only).
    Top => VIEW, shell("top", "a live picture of engines, guests, ports, disks; q leaves");
    /// The audit (COM2 only; the shell has `show audit`).
    Audit => VIEW, json("audit");
    /// What the management guest's agent has to say of a key, for the audit and the console (the control channel only).
    Notice {
        /// What has happened.
        what: Notice = NOTICE,
        /// For `refused`: the command. For `host-key`: the fingerprint.
        line: String = LINE,
        /// For `refused`: why.
        why: String = WHY,
    } => NONE, json("notice");
    /// The configuration that runs (COM2 only; the shell has `show config`).
    Config => VIEW, json("config");
    /// How long exits, turns and visits took (COM2 only; the shell has `show latency`).
    Latency => VIEW, json("latency");
    /// Begins to take a module (COM2 only).
    Put {
        /// Its name.
        module: String = MODULE,
        /// Its size.
        bytes: u64 = BYTES,
        /// Its SHA-256 in 64 hexadecimal digits.
        sha256: String = SHA256,
    } => OPERATE, json("put");
    /// A piece of the module (COM2 only).
    PutData {
        /// Its name.
        module: String = MODULE,
        /// The bytes before this piece.
        at: u64 = AT,
        /// The piece in base64 (RFC 4648, with padding).
        data: String = DATA,
    } => OPERATE, json("put-data");
    /// The module is complete (COM2 only).
    PutEnd(module: String = MODULE) => OPERATE, json("put-end");
    /// Forgets a module that was put.
    Forget(module: String = MODULE) => OPERATE, shell("forget", "give the memory of a module that was put free"), json("forget");
    /// The modules (COM2 only; the shell has `show modules`).
    Modules => VIEW, json("modules");
    /// Changes guests to what a file says.
    Apply {
        /// Only shows what it would change.
        dry: bool = DRY_RUN,
        /// Guests may be restarted.
        restart: bool = RESTART,
        /// The module that is the file.
        module: String = MODULE,
        /// Seconds after which everything goes back, without `confirm`. 0: it stays.
        confirm: u64 = CONFIRM,
    } => OPERATE,
        shell("apply", "change guests as a file says; back after SECONDS\nwithout `confirm`"), json("apply");
    /// What was applied stays.
    Confirm => OPERATE, shell("confirm", "what was applied stays, until reboot"), json("confirm");
    /// What was applied last, and how far it is (COM2 only; the shell has `show apply`).
    Applied => VIEW, json("applied");
    /// Switches the engines' profiles on or off: the requests of a visit, the length of a turn.
    Watch(on: bool = ON) => PROFILE,
        shell("watch", "count what the engines do, for `show engine`"), json("watch");
    /// The trace of the cores.
    Trace {
        /// What is done with it.
        step: TraceStep = STEP,
        /// For `on`: a core drops new records when its ring is full, instead of the oldest.
        stop: bool = STOP,
        /// For `on`: names of classes with commas between them, `1/N`, or nothing: see [`crate::trace::wanted`].
        classes: String = CLASSES,
    } => PROFILE, shell(
        "trace",
        "records of what cores do; CLASSES: names with commas\nbetween them, and 1/N for a record of one of N exits"
    ), json("trace");
    /// Has each end of one of a guest's interrupts exit, so that the trace has it. In the shell also `trace eoi`.
    TraceEoi {
        /// The guest.
        guest: String = GUEST,
        /// The vector, or `off`: see [`crate::eoi::vector`].
        vector: String = VECTOR,
    } => PROFILE, shell(
        "trace-eoi", "have each end of this interrupt exit, or off: each costs an\nexit then; only with `completion = \"posted\"`"
    ), json("trace-eoi");
    /// Captures the first bytes of frames at a guest's port or at an uplink.
    Capture {
        /// The guest or the uplink.
        guest: String = GUEST,
        /// Which device and which frames: see [`crate::capture`]. Empty: all frames of its first network device, or of the uplink.
        filter: String = FILTER,
    } => CAPTURE, shell(
        "capture",
        "keep the first bytes of frames at a guest or an uplink, for\n`captures`; FILTER: in, out, mac=M, ethertype=E, vlan=V,\n\
         1/N, bytes=N, net=N with commas between them, or off"
    ), json("capture");
    /// Sends the captured frames on COM2 or to the management guest, until nothing is captured any more and everything is sent
    /// (COM2 only).
    Captures => CAPTURE, json("captures");
    /// Blinks the light of an uplink's port.
    Identify {
        /// The `name` of its `[[port]]`.
        uplink: String = UPLINK,
        /// For how long. 0: 10 seconds.
        seconds: u64 = SECONDS,
    } => OPERATE, shell("identify", "blink the light of an uplink's port, 10 seconds"), json("identify");
    /// The capability report.
    Report => VIEW, shell("report", "what this machine has, and what stands in for what not"), json("report");
    /// The version of sidecore.
    Version => VIEW, shell("version", "which sidecore this is"), json("version");
    /// Stops all guests and powers the machine off.
    Shutdown => OPERATE, shell("shutdown", "stop all guests, switch the machine off"), json("shutdown");
    /// Stops all guests and resets the machine.
    Reboot => OPERATE, shell("reboot", "stop all guests, start the machine again"), json("reboot");
}

impl Command {
    /// Reads a line of COM1.
    ///
    /// # Errors
    /// The sentence to show. It names the unknown word and the nearest command.
    pub fn from_words(line: &str) -> Result<Self, Text> {
        let mut words = line.split_whitespace();
        let Some(word) = words.next() else { return Err("no command; try `help`".into()) };
        let word = match word {
            "?" => "help",
            "trace" if words.clone().next() == Some("eoi") => {
                words.next();
                "trace-eoi"
            }
            word => word,
        };
        let Some((row, word)) = Row::of_word(word) else { return Err(unknown("command", word, Row::words())) };
        let mut given = AllGiven::default();
        let mut positions = row.arguments.iter().zip(0_usize..).filter(|(argument, _)| argument.is_positional());
        for typed in words {
            let option = row.arguments.iter().zip(0..).find(|(argument, _)| argument.is_option(typed));
            let Some((argument, at)) = option.or_else(|| positions.next()) else {
                let extra = Shortened(typed);
                return Err(if row.arguments.is_empty() {
                    sentence(format_args!("`{word}` takes nothing after it, but got `{extra}`"))
                } else {
                    sentence(format_args!("`{extra}` is one word too many after `{word}`"))
                });
            };
            if let Some(place) = given.get_mut(at) {
                *place = argument.typed(word, typed)?;
            }
        }
        let missing =
            row.arguments.iter().zip(&given).find(|(argument, given)| argument.needed && **given == Given::Nothing);
        match missing {
            Some((argument, _)) => Err(argument.missing(word)),
            None => (row.make)(&given),
        }
    }

    /// The guest that it names.
    #[must_use]
    pub fn guest(&self) -> Option<&str> {
        let (row, given) = self.row();
        row.arguments.iter().zip(given).find_map(|(argument, given)| match (&argument.kind, given) {
            (Kind::Guest, Given::Text(guest)) => Some(guest),
            _ => None,
        })
    }

    /// The permission that it needs.
    #[must_use]
    pub fn permission(&self) -> Permissions {
        match self {
            Self::Trace { step, classes, .. } => step.permission(classes),
            _ => self.row().0.permission,
        }
    }

    /// Its word in the shell, or in JSON if the shell does not have it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        let row = self.row().0;
        row.shell.map(|(word, _)| word).or(row.json).unwrap_or_default()
    }

    /// Writes it as it would be typed, without what goes to a guest's console.
    pub fn summary(&self) -> impl fmt::Display {
        fmt::from_fn(move |f| {
            let (row, given) = self.row();
            f.write_str(self.word())?;
            row.arguments.iter().zip(given).try_for_each(|(argument, given)| match (&argument.kind, given) {
                (Kind::Input, _) | (_, Given::Nothing) => Ok(()),
                (Kind::Option(option), Given::Flag(true)) => write!(f, " {option}"),
                (Kind::Option(_), _) => Ok(()),
                (_, Given::Flag(on)) => f.write_str(if on { " on" } else { " off" }),
                (_, Given::Text(text)) => write!(f, " {text}"),
                (_, Given::Number(0)) => Ok(()),
                (_, Given::Number(number)) => write!(f, " {number}"),
            })
        })
    }

    /// Whether something in it goes to a guest.
    pub(crate) fn has_input(&self) -> bool {
        self.row().0.arguments.iter().any(|argument| matches!(argument.kind, Kind::Input))
    }

    /// Checks whether a caller may ask for it.
    ///
    /// # Errors
    /// The sentence for the caller. It names the command and the permission.
    pub fn check(&self, caller: &Caller) -> Result<(), Text> {
        let needed = self.permission();
        if caller.allowed.contains(needed) {
            return Ok(());
        }
        let (word, allowed) = (self.word(), caller.allowed);
        Err(sentence(format_args!(
            "`{word}` needs the permission `{needed}`, which {caller} does not have; it has: {allowed}"
        )))
    }
}

impl Command {
    /// The first words of all commands of the shell.
    pub fn shell_words() -> impl Iterator<Item = &'static str> {
        Row::words()
    }

    /// The values of `command` of all requests of COM2. Some are there more than once.
    pub fn request_words() -> impl Iterator<Item = &'static str> {
        ROWS.iter().filter_map(|row| row.json)
    }
}

impl Row {
    /// The row of a word of the shell, and that word.
    pub fn of_word(word: &str) -> Option<(&'static Self, &'static str)> {
        ROWS.iter().find_map(|row| row.shell.filter(|(known, _)| *known == word).map(|(known, _)| (row, known)))
    }

    /// The words of the shell.
    pub fn words() -> impl Iterator<Item = &'static str> + Clone {
        ROWS.iter().filter_map(|row| row.shell.map(|(word, _)| word))
    }
}

/// Characters of a command with its arguments in `help`, and the blanks after it.
const FORM: usize = 21;

/// Writes the text of `help`. Lines end in CR and LF.
///
/// # Errors
/// Those of `out`.
pub fn help(out: &mut dyn fmt::Write) -> fmt::Result {
    for row in &ROWS {
        let Some((word, about)) = row.shell else { continue };
        let form = fmt::from_fn(|f| {
            f.write_str(word)?;
            row.arguments.iter().try_for_each(|argument| write!(f, " {}", argument.shown))
        });
        left(FORM, &form, out)?;
        // The text of a form that fills its column begins on the next line.
        for (number, line) in about.split('\n').enumerate() {
            if number > 0 || wide(&form) >= FORM {
                write!(out, "\r\n{:FORM$}", "")?;
            }
            out.write_str(line)?;
        }
        out.write_str("\r\n")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Way;
    use crate::argument::MOST;

    #[test]
    fn every_word_of_the_table_is_understood_and_is_in_the_help() {
        let mut help_text = String::new();
        help(&mut help_text).unwrap();
        for word in Row::words() {
            let understood = ["", " memory", " on", " a weight 3", " a 49"]
                .iter()
                .any(|more| Command::from_words(&format!("{word}{more}")).is_ok());
            assert!(understood, "{word}");
            assert!(help_text.lines().any(|line| line.split(' ').next() == Some(word)), "{word} is not in the help");
        }
        for view in View::ALL {
            assert_eq!(Command::from_words(&format!("show {}", view.name())), Ok(Command::Show(view)));
            assert!(help_text.contains(view.name()), "{} is not in the help", view.name());
        }
        assert!(help_text.lines().all(|line| line.len() <= 80), "{help_text}");
        assert!(help_text.contains("[CLASSES]\r\n                     records of"), "{help_text}");
        assert!(help_text.contains("\nattach [--raw] NAME  type into its console"), "{help_text}");
    }

    #[test]
    fn the_rows_of_the_table_are_sound() {
        for row in &ROWS {
            assert!(row.arguments.len() <= MOST);
            assert!(row.shell.is_some() || row.json.is_some());
            assert!(row.permission.bits().count_ones() <= 1);
            // What is made of nothing but what the arguments need is of the same row.
            let mut given = AllGiven::default();
            for (argument, place) in row.arguments.iter().zip(&mut given) {
                *place = match argument.kind {
                    Kind::Flag | Kind::Option(_) => Given::Flag(true),
                    Kind::Choice { words, .. } => Given::Text(words[0]),
                    Kind::Guest | Kind::Text | Kind::Input => Given::Text("a"),
                    Kind::Number => Given::Number(7),
                };
            }
            let command = (row.make)(&given).unwrap();
            let (own, back) = command.row();
            assert!(std::ptr::eq(own, row), "{command:?}");
            assert_eq!(back, given);
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
        assert_eq!(error("watch"), "`watch` needs `on` or `off`");
        assert_eq!(error("watch maybe"), "`watch` takes `on` or `off`, but got `maybe`");
        assert_eq!(error("set a wait 3"), "no key that can be set `wait`; there are: weight, restart");
        assert_eq!(error("set a weight"), "`set` needs VALUE");
        assert_eq!(error("attach --raw"), "`attach` needs the name of a guest");
        assert!(error("frobnicate").contains("there are: help, list"));
    }

    #[test]
    fn an_option_may_stand_before_and_behind_the_name() {
        let attach = Ok(Command::Attach { guest: "a".into(), raw: true });
        assert_eq!(Command::from_words("attach --raw a"), attach);
        assert_eq!(Command::from_words("attach a --raw"), attach);
    }

    #[test]
    fn a_caller_gets_what_it_has_the_permission_for() {
        let viewer = Caller::cable(Way::Com2, Permissions::VIEW | Permissions::CONSOLE);
        let stop = Command::Stop("a".into());
        assert_eq!(Command::List.check(&viewer), Ok(()));
        assert_eq!(Command::Input { guest: "a".into(), text: "x".into() }.check(&viewer), Ok(()));
        assert_eq!(
            stop.check(&viewer).unwrap_err(),
            "`stop` needs the permission `operate`, which COM2 does not have; it has: view, console"
        );
        assert!(Command::Watch(true).check(&viewer).unwrap_err().contains("`profile`"));
        assert_eq!(stop.check(&Caller::named(Way::Channel, "key", Permissions::OPERATE)), Ok(()));
        let nobody = Caller::named(Way::Channel, "key", Permissions::empty());
        assert!(
            Command::Version.check(&nobody).unwrap_err().contains("which channel (key) does not have; it has: none")
        );
    }

    #[test]
    fn the_guest_of_a_command_is_the_one_it_names() {
        assert_eq!(Command::Stop("a".into()).guest(), Some("a"));
        assert_eq!(Command::Attach { guest: "b".into(), raw: true }.guest(), Some("b"));
        assert_eq!(Command::Port { guest: "c".into(), port: "p".into(), open: true }.guest(), Some("c"));
        assert_eq!(Command::List.guest(), None);
    }

    proptest! {
        #[test]
        fn no_line_panics(line in "\\PC*") {
            let _ = Command::from_words(&line);
        }
    }
}
