//! Permissions: what a way in may ask for. Each command needs one of them.

use core::fmt;

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

use crate::Text;
use crate::sender::Sender;
use crate::shown::{Joined, beginning};
use crate::unknown::unknown;

bitflags! {
    /// A set of permissions. None of them includes another one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Permissions: u8 {
        /// `view`: read counters, states and reports.
        const VIEW = 1;
        /// `profile`: have engines and vCPUs count more than they always do, and read it.
        const PROFILE = 1 << 1;
        /// `console`: read and write a guest's console, and the ports of its console device.
        const CONSOLE = 1 << 2;
        /// `capture`: read what guests send and receive.
        const CAPTURE = 1 << 3;
        /// `operate`: start and stop guests and the machine.
        const OPERATE = 1 << 4;
    }
}

impl Permissions {
    /// No permission, for commands that everybody may give.
    pub const NONE: Self = Self::empty();

    /// The permissions by name, as in the configuration.
    pub const NAMED: [(&'static str, Self); 5] = [
        ("view", Self::VIEW),
        ("profile", Self::PROFILE),
        ("console", Self::CONSOLE),
        ("capture", Self::CAPTURE),
        ("operate", Self::OPERATE),
    ];

    /// Reads the name of a permission.
    ///
    /// # Errors
    /// There is no such permission; the text names the nearest one, or all.
    pub fn read(name: &str) -> Result<Self, Text> {
        Self::called(name).ok_or_else(|| unknown("permission", name, Self::NAMED.iter().map(|(known, _)| *known)))
    }

    /// The permission called `name`.
    #[must_use]
    pub fn called(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(known, _)| *known == name).map(|&(_, permission)| permission)
    }
}

impl Default for Permissions {
    /// All of them.
    fn default() -> Self {
        Self::all()
    }
}

impl fmt::Display for Permissions {
    /// The names with commas between them, or `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMED.iter().filter(|(_, permission)| self.contains(*permission)).map(|(name, _)| name);
        if self.is_empty() { f.write_str("none") } else { write!(f, "{}", Joined(names)) }
    }
}

/// The way by which a command comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// The shell on COM1.
    Com1,
    /// The JSON lines of COM2.
    Com2,
    /// The port of the management guest.
    Channel,
}

impl Way {
    /// As in sentences.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Com1 => "COM1",
            Self::Com2 => "COM2",
            Self::Channel => "channel",
        }
    }
}

/// Who asks for something, and what may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The way in.
    pub way: Way,
    /// The owner of the key and the client's address, as the management guest's agent says. Empty for a cable.
    pub sender: Sender,
    /// What may be asked.
    pub allowed: Permissions,
}

impl Caller {
    /// Makes the caller at the other end of a cable.
    #[must_use]
    pub const fn cable(way: Way, allowed: Permissions) -> Self {
        Self { way, sender: Sender::nobody(), allowed }
    }

    /// Makes a caller with a name. What is longer than [`MAX_WHO`](crate::MAX_WHO) is cut off. Control characters are left out.
    #[must_use]
    pub fn named(way: Way, who: &str, allowed: Permissions) -> Self {
        Self { way, sender: Sender { who: beginning(who), ..Sender::nobody() }, allowed }
    }

    /// The caller of a request by this way in: it has the same permissions, whatever the sender says of itself.
    #[must_use]
    pub fn with_sender(&self, sender: Sender) -> Self {
        Self { way: self.way, sender, allowed: self.allowed }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.way.name())?;
        if self.sender.who.is_empty() { Ok(()) } else { write!(f, " ({})", self.sender.who) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_permission_has_one_name() {
        let all = Permissions::NAMED.iter().fold(Permissions::empty(), |all, (_, one)| all | *one);
        assert_eq!(all, Permissions::all());
        for (name, permission) in Permissions::NAMED {
            assert_eq!(Permissions::called(name), Some(permission));
            assert_eq!(permission.to_string(), name);
            assert_eq!(permission.bits().count_ones(), 1);
        }
        assert_eq!(Permissions::called("root"), None);
        assert_eq!(Permissions::all().to_string(), "view, profile, console, capture, operate");
        assert_eq!(Permissions::empty().to_string(), "none");
    }

    #[test]
    fn a_caller_s_name_is_cut_and_has_no_control_characters() {
        let caller = Caller::named(Way::Channel, "\x1b[7mé\n", Permissions::VIEW);
        assert_eq!(caller.to_string(), "channel ([7mé)");
        let long = Caller::named(Way::Channel, &"é".repeat(40), Permissions::VIEW);
        assert_eq!(long.sender.who, "é".repeat(16).as_str());
        assert_eq!(Caller::cable(Way::Com1, Permissions::all()).to_string(), "COM1");
    }
}
