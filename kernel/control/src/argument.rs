//! The arguments of commands: how they are typed on COM1, and what they are called in a line of COM2.

use alloc::string::String;

use crate::Text;
use crate::no_memory::{copy, sentence};
use crate::shown::Shortened;
use crate::unknown::unknown;

/// An argument of a command.
#[derive(Debug)]
pub(crate) struct Argument {
    /// Its member in a line of COM2. `None`: it is for COM1 only, and has its default on COM2.
    pub member: Option<&'static str>,
    /// What the help calls it.
    pub shown: &'static str,
    /// Whether a command without it is refused.
    pub needed: bool,
    pub kind: Kind,
}

/// What an argument may be.
#[derive(Debug)]
pub(crate) enum Kind {
    /// The name of a guest.
    Guest,
    /// Any text. Nobody types it in the shell.
    Text,
    /// What goes to a guest. Nobody types it in the shell, and the audit does not keep it.
    Input,
    /// An integer from 0. 0 is the same as nothing.
    Number,
    /// `on` or `off`; true or false in JSON.
    Flag,
    /// This word, or nothing.
    Option(&'static str),
    /// One of these words.
    Choice {
        /// What such a word is.
        what: &'static str,
        words: &'static [&'static str],
    },
}

pub(crate) const GUEST: Argument = Argument { member: Some("guest"), shown: "NAME", needed: true, kind: Kind::Guest };
pub(crate) const PORT: Argument = Argument { member: Some("port"), shown: "PORT", needed: true, kind: Kind::Text };
pub(crate) const TEXT: Argument = Argument { member: Some("text"), shown: "TEXT", needed: true, kind: Kind::Input };
pub(crate) const ON: Argument = Argument { member: Some("on"), shown: "on|off", needed: true, kind: Kind::Flag };
pub(crate) const RAW: Argument =
    Argument { member: None, shown: "[--raw]", needed: false, kind: Kind::Option("--raw") };
pub(crate) const STOP: Argument =
    Argument { member: Some("stop"), shown: "[--stop]", needed: false, kind: Kind::Option("--stop") };
pub(crate) const CLASSES: Argument =
    Argument { member: Some("classes"), shown: "[CLASSES]", needed: false, kind: Kind::Text };
pub(crate) const VALUE: Argument = Argument { member: Some("value"), shown: "VALUE", needed: true, kind: Kind::Text };
pub(crate) const LINE: Argument = Argument { member: Some("line"), shown: "[LINE]", needed: false, kind: Kind::Text };
pub(crate) const WHY: Argument = Argument { member: Some("why"), shown: "[WHY]", needed: false, kind: Kind::Text };

pub(crate) const MODULE: Argument =
    Argument { member: Some("module"), shown: "MODULE", needed: true, kind: Kind::Text };
pub(crate) const BYTES: Argument = Argument { member: Some("bytes"), shown: "BYTES", needed: true, kind: Kind::Number };
pub(crate) const SHA256: Argument =
    Argument { member: Some("sha256"), shown: "SHA256", needed: true, kind: Kind::Text };
pub(crate) const AT: Argument = Argument { member: Some("at"), shown: "AT", needed: true, kind: Kind::Number };
pub(crate) const DATA: Argument = Argument { member: Some("data"), shown: "DATA", needed: true, kind: Kind::Input };
pub(crate) const DRY_RUN: Argument =
    Argument { member: Some("dry"), shown: "[--dry-run]", needed: false, kind: Kind::Option("--dry-run") };
pub(crate) const RESTART: Argument =
    Argument { member: Some("restart"), shown: "[--restart]", needed: false, kind: Kind::Option("--restart") };
pub(crate) const CONFIRM: Argument =
    Argument { member: Some("confirm"), shown: "[SECONDS]", needed: false, kind: Kind::Number };
pub(crate) const UPLINK: Argument =
    Argument { member: Some("uplink"), shown: "UPLINK", needed: true, kind: Kind::Text };
pub(crate) const SECONDS: Argument =
    Argument { member: Some("seconds"), shown: "[SECONDS]", needed: false, kind: Kind::Number };

/// What was given for an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Given<'a> {
    #[default]
    Nothing,
    Text(&'a str),
    Flag(bool),
    Number(u64),
}

/// Most arguments of a command.
pub(crate) const MOST: usize = 4;

/// What was given for the arguments of a command, in their order.
pub(crate) type AllGiven<'a> = [Given<'a>; MOST];

/// The value of an argument in a command.
pub(crate) trait Value: Sized {
    /// Makes the value.
    ///
    /// # Errors
    /// No such word, or no memory.
    fn read(given: Given<'_>) -> Result<Self, Text>;

    /// What would be given for this value.
    fn given(&self) -> Given<'_>;
}

impl Value for String {
    fn read(given: Given<'_>) -> Result<Self, Text> {
        Ok(copy(if let Given::Text(text) = given { text } else { "" })?)
    }

    fn given(&self) -> Given<'_> {
        Given::Text(self)
    }
}

impl Value for u64 {
    fn read(given: Given<'_>) -> Result<Self, Text> {
        Ok(if let Given::Number(number) = given { number } else { 0 })
    }

    fn given(&self) -> Given<'_> {
        Given::Number(*self)
    }
}

impl Value for bool {
    fn read(given: Given<'_>) -> Result<Self, Text> {
        Ok(given == Given::Flag(true))
    }

    fn given(&self) -> Given<'_> {
        Given::Flag(*self)
    }
}

/// Makes a type whose values are words of [`Kind::Choice`]: its values, their words, both directions between them, and the value
/// after `or` for an argument that is not given.
macro_rules! words {
    ($(#[$about:meta])* $name:ident or $default:ident { $($(#[$about_value:meta])* $value:ident = $word:literal;)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$about_value])* $value,)+
        }

        impl $name {
            /// The words as they are typed, in the order of `ALL`.
            pub const NAMES: [&'static str; [$($word),+].len()] = [$($word),+];

            /// All values.
            pub const ALL: [Self; Self::NAMES.len()] = [$(Self::$value),+];

            /// As it is typed.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $word),+
                }
            }
        }

        impl $crate::argument::Value for $name {
            fn read(given: $crate::argument::Given<'_>) -> Result<Self, $crate::Text> {
                // Other words are refused before.
                let is_it = |value: &Self| given == $crate::argument::Given::Text(value.name());
                Ok(Self::ALL.into_iter().find(is_it).unwrap_or(Self::$default))
            }

            fn given(&self) -> $crate::argument::Given<'_> {
                $crate::argument::Given::Text(self.name())
            }
        }
    };
}
pub(crate) use words;

impl Argument {
    /// Whether it is typed without a word that names it.
    pub const fn is_positional(&self) -> bool {
        !matches!(self.kind, Kind::Option(_))
    }

    /// Whether a typed word is this option.
    pub fn is_option(&self, word: &str) -> bool {
        matches!(self.kind, Kind::Option(option) if option == word)
    }

    /// Takes a typed word for this argument of the command `command`.
    ///
    /// # Errors
    /// The sentence to show.
    pub fn typed<'a>(&self, command: &str, word: &'a str) -> Result<Given<'a>, Text> {
        match (&self.kind, word) {
            (Kind::Flag, "on") => Ok(Given::Flag(true)),
            (Kind::Flag, "off") => Ok(Given::Flag(false)),
            (Kind::Flag, _) => {
                let other = Shortened(word);
                Err(sentence(format_args!("`{command}` takes `on` or `off`, but got `{other}`")))
            }
            (Kind::Option(_), _) => Ok(Given::Flag(true)),
            (Kind::Number, _) => {
                // A sign is not one of the digits.
                let number = word.parse().ok().filter(|_| word.bytes().all(|byte| byte.is_ascii_digit()));
                number.map(Given::Number).ok_or_else(|| {
                    let other = Shortened(word);
                    sentence(format_args!("`{command}` takes a number for {}, but got `{other}`", self.shown))
                })
            }
            (Kind::Guest | Kind::Text | Kind::Input | Kind::Choice { .. }, _) => self.text(word),
        }
    }

    /// Takes a text for this argument.
    ///
    /// # Errors
    /// It is none of the words that there are.
    pub fn text<'a>(&self, text: &'a str) -> Result<Given<'a>, Text> {
        match self.kind {
            Kind::Choice { what, words } if !words.contains(&text) => Err(unknown(what, text, words.iter().copied())),
            _ => Ok(Given::Text(text)),
        }
    }

    /// What the shell says of the command `command` without it.
    pub fn missing(&self, command: &str) -> Text {
        match self.kind {
            Kind::Guest => sentence(format_args!("`{command}` needs the name of a guest")),
            Kind::Flag => sentence(format_args!("`{command}` needs `on` or `off`")),
            _ => sentence(format_args!("`{command}` needs {}", self.shown)),
        }
    }
}
