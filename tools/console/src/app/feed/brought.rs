//! What another ssh brings, and why it ended.

use std::time::Duration;

use control::Command;

use crate::link::{End, Errand};

/// What another ssh brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Trace,
    Frames,
}

impl What {
    /// The entry's word in the log, and the key that begins and ends it.
    pub(super) const fn words(self) -> (&'static str, char) {
        match self {
            Self::Trace => ("trace", 't'),
            Self::Frames => ("capture", 'c'),
        }
    }

    /// The permission that it needs.
    const fn permission(self) -> &'static str {
        match self {
            Self::Trace => "profile",
            Self::Frames => "capture",
        }
    }
}

/// An ssh that brings something.
pub(super) struct Brought {
    pub(super) what: What,
    pub(super) errand: Errand,
    pub(super) host: String,
    /// What ssh runs there.
    pub(super) line: String,
    /// The command that ends it in the machine.
    pub(super) off: Command,
    /// Something of it has come, so it is this program's.
    pub(super) came: bool,
    /// When its end was asked for.
    pub(super) ending: Option<Duration>,
}

impl Brought {
    /// Says why it ended, and what helps.
    pub(super) fn why(&self, end: &End) -> String {
        let Self { what, host, line, came, .. } = self;
        let key = what.words().1;
        let begun = if *came { "it broke off" } else { "nothing comes" };
        let (why, help) = match end {
            End::NoSsh(why) => (why.clone(), "the program ssh must be in PATH".to_owned()),
            End::Target(why) => (format!("the frames cannot be written: {why}"), format!("`{key}` begins again")),
            End::Ssh { code, said } => {
                let ended = || match code {
                    Some(code) => format!("ssh ended with {code}, without a word"),
                    None => "a signal ended ssh".to_owned(),
                };
                let help = match code {
                    // Of the agent: `tools/agent` has its exit codes.
                    Some(0 | 1) => format!("`{key}` tries again"),
                    Some(2 | 126 | 127) => format!("is `{line}` a command at {host}? It needs sidecore-agent"),
                    Some(3) => format!("the agent at {host} does not reach the hypervisor; `{key}` tries again"),
                    Some(4) => {
                        let permission = what.permission();
                        format!("the key needs the permission `{permission}`, and so does `allow` of [management]")
                    }
                    _ => format!("try `ssh {host} {line} >FILE`; `{key}` tries again"),
                };
                (said.clone().unwrap_or_else(ended), help)
            }
        };
        format!("{begun}: {why}; {help}")
    }
}
