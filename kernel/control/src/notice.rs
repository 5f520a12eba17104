//! What the management guest's agent reports of a key, for the audit.

use crate::argument::{Argument, Kind, words};

/// What a report of the agent says, as an argument.
pub(crate) const NOTICE: Argument = Argument {
    member: Some("what"),
    shown: "login|logout|refused",
    needed: true,
    kind: Kind::Choice { what: "notice", words: &Notice::NAMES },
};

words! {
    /// What the agent reports of a key.
    Notice or Refused {
        /// Its owner has logged in.
        Login = "login";
        /// Its owner has logged out.
        Logout = "logout";
        /// The agent has refused a command.
        Refused = "refused";
    }
}
