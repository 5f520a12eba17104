//! What the management guest's agent reports, for the audit: what becomes of keys that log in, and its own host key.

use crate::argument::{Argument, Kind, words};

/// What a report of the agent says, as an argument.
pub(crate) const NOTICE: Argument = Argument {
    member: Some("what"),
    shown: "login|logout|refused|host-key",
    needed: true,
    kind: Kind::Choice { what: "notice", words: &Notice::NAMES },
};

words! {
    /// What the agent reports.
    Notice or Refused {
        /// The owner of a key has logged in.
        Login = "login";
        /// The owner of a key has logged out.
        Logout = "logout";
        /// The agent has refused a command.
        Refused = "refused";
        /// The key by which the guest's sshd proves that it is itself. The console says it.
        HostKey = "host-key";
    }
}
