//! The key of a client: who its owner is, what it may ask, and about which guests.
//!
//! The guests are checked here only. The hypervisor knows what `[management] allow` gives the whole management guest.

use control::{Caller, Command, Counters, Event, Permissions, Sender, Text, View, Way};

/// A key, as its line in the list of keys says.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its owner with the client's address, and its permissions.
    pub caller: Caller,
    /// The guests that it is bound to. `None`: it is for all of them, and for the machine.
    pub guests: Option<Vec<String>>,
}

impl Key {
    /// Makes the key of a client with this address. What it says of itself is cleaned, as the hypervisor does.
    #[must_use]
    pub fn new(who: &str, address: &str, allowed: control::Permissions, guests: Option<Vec<String>>) -> Self {
        Self { caller: Caller::cable(Way::Channel, allowed).with_sender(Sender::new(who, address)), guests }
    }

    /// Who it is, for the hypervisor's audit.
    #[must_use]
    pub fn sender(&self) -> Sender {
        self.caller.sender.clone()
    }

    /// Checks whether its owner may give a command.
    ///
    /// # Errors
    /// The sentence to show: it lacks the permission, or the command is about another guest or the whole machine.
    pub fn check(&self, command: &Command) -> Result<(), Text> {
        if matches!(command, Command::Notice { .. }) {
            return Err("`notice` is what the agent itself reports".into());
        }
        command.check(&self.caller)?;
        let Some(guests) = &self.guests else { return Ok(()) };
        let what = match command.guest() {
            Some(guest) if guests.iter().any(|bound| bound == guest) => return Ok(()),
            Some(guest) => format!("`{}` of guest `{guest}`", command.word()),
            None if is_for_bound(command) => return Ok(()),
            None => format!("`{}`, which is about all guests,", command.summary()),
        };
        Err(format!("{what} is not for this key, which is bound to: {}", guests.join(", ")).into())
    }

    /// Whether its owner gets to see all events.
    #[must_use]
    pub fn sees_all(&self) -> bool {
        self.guests.is_none() && self.caller.allowed.contains(Permissions::CONSOLE | Permissions::VIEW)
    }

    fn has_console(&self) -> bool {
        self.caller.allowed.contains(Permissions::CONSOLE)
    }

    /// What its owner gets to see of an event: everything, or what is about the guests that the key is bound to. What guests write to
    /// their consoles and ports needs the permission `console` besides. `None`: nothing.
    #[must_use]
    pub fn sees(&self, event: Event) -> Option<Event> {
        if matches!(event, Event::Console { .. } | Event::Output { .. } | Event::Port { .. }) && !self.has_console() {
            return None;
        }
        if matches!(event, Event::Audit { .. }) && !self.caller.allowed.contains(Permissions::VIEW) {
            return None;
        }
        let Some(guests) = &self.guests else { return Some(event) };
        let is_bound = |name: &str| guests.iter().any(|bound| bound == name);
        match event {
            Event::Counters(counters) => {
                let own = counters.guests.into_iter().filter(|guest| is_bound(&guest.name)).collect();
                Some(Event::Counters(Counters { guests: own, ..counters }))
            }
            Event::Latency(mut latency) => {
                latency.rows.retain(|row| row.guest.as_deref().is_none_or(is_bound));
                Some(Event::Latency(latency))
            }
            Event::Reply { id, ok, error, guests: listed, version } => {
                let listed = listed.map(|all| all.into_iter().filter(|guest| is_bound(&guest.name)).collect());
                Some(Event::Reply { id, ok, error, guests: listed, version })
            }
            Event::Guest { ref guest, .. }
            | Event::Console { ref guest, .. }
            | Event::Output { ref guest, .. }
            | Event::Port { ref guest, .. } => is_bound(guest).then_some(event),
            Event::Stuck { ref guest, .. } | Event::ConfigError { ref guest, .. } => {
                guest.as_deref().is_some_and(is_bound).then_some(event)
            }
            Event::Dropped { ref guest, .. } => guest.as_deref().is_none_or(is_bound).then_some(event),
            Event::Boot { .. } | Event::Panic { .. } | Event::End { .. } => Some(event),
            // They may be about any guest.
            Event::Report(_)
            | Event::Log { .. }
            | Event::Audit { .. }
            | Event::Config { .. }
            | Event::Modules { .. }
            | Event::Applied { .. }
            | Event::Trace { .. }
            | Event::TraceState(_) => None,
        }
    }
}

/// Whether a command that names no guest is for a key that is bound to guests. Of its answer the owner sees what [`Key::sees`] leaves.
/// Each command and each view is named here, so that a new one is judged before this compiles again.
const fn is_for_bound(command: &Command) -> bool {
    match command {
        Command::Help | Command::List | Command::Top | Command::Latency | Command::Version => true,
        Command::Show(view) => match view {
            View::Counters | View::Exits | View::Engine | View::Ports | View::Memory | View::Latency => true,
            // They are about all guests.
            View::Audit | View::Config | View::Modules | View::Apply => false,
        },
        // They name a guest, or an uplink.
        Command::Start(_)
        | Command::Stop(_)
        | Command::Kill(_)
        | Command::Restart(_)
        | Command::Set { .. }
        | Command::Attach { .. }
        | Command::Input { .. }
        | Command::Follow { .. }
        | Command::PortInput { .. }
        | Command::Port { .. }
        | Command::TraceEoi { .. }
        | Command::Capture { .. }
        | Command::Identify { .. } => false,
        // They are about all guests, or the machine.
        Command::Audit
        | Command::Notice { .. }
        | Command::Config
        | Command::Put { .. }
        | Command::PutData { .. }
        | Command::PutEnd(_)
        | Command::Forget(_)
        | Command::Modules
        | Command::Apply { .. }
        | Command::Confirm
        | Command::Applied
        | Command::Watch(_)
        | Command::Trace { .. }
        | Command::Captures
        | Command::Report
        | Command::Shutdown
        | Command::Reboot => false,
    }
}

#[cfg(test)]
mod tests {
    use control::{Durations, Guest, GuestSummary, Latency, Level, TraceStep};

    use super::*;

    fn bound() -> Key {
        Key::new("anna", "10.0.0.5", Permissions::all(), Some(vec!["a".into(), "c".into()]))
    }

    #[test]
    fn a_bound_key_is_for_its_guests_only() {
        let key = bound();
        for guest in ["a", "c"] {
            assert_eq!(key.check(&Command::Attach { raw: false, guest: guest.into() }), Ok(()));
        }
        let of_others: [fn(String) -> Command; 10] = [
            Command::Start,
            Command::Stop,
            Command::Kill,
            Command::Restart,
            |guest| Command::Attach { raw: false, guest },
            |guest| Command::Set { guest, key: control::SettingKey::Weight, value: "2".into() },
            |guest| Command::Input { guest, text: String::new() },
            |guest| Command::Follow { guest, on: true },
            |guest| Command::Port { guest, port: "p".into(), open: true },
            |guest| Command::PortInput { guest, port: "p".into(), text: String::new() },
        ];
        for command in of_others {
            assert_eq!(key.check(&command("a".into())), Ok(()));
            let why = key.check(&command("b".into())).unwrap_err();
            assert!(why.contains("of guest `b` is not for this key, which is bound to: a, c"), "{why}");
        }
        let trace = |step| Command::Trace { step, stop: false, classes: String::new() };
        for command in [
            Command::Shutdown,
            Command::Reboot,
            Command::Audit,
            Command::Config,
            Command::Report,
            Command::Watch(true),
            Command::Captures,
            Command::Identify { uplink: "a".into(), seconds: 1 },
            trace(TraceStep::Save),
            trace(TraceStep::Show),
            Command::Show(View::Audit),
            Command::Show(View::Config),
            Command::Show(View::Modules),
            Command::Modules,
            Command::Applied,
            Command::Confirm,
            Command::Forget("m".into()),
            Command::Put { module: "m".into(), bytes: 1, sha256: String::new() },
            Command::Apply { dry: true, restart: false, module: "m".into(), confirm: 0 },
        ] {
            assert!(key.check(&command).unwrap_err().contains("which is about all guests"), "{command:?}");
        }
        for command in [Command::List, Command::Version, Command::Help, Command::Top, Command::Show(View::Exits)] {
            assert_eq!(key.check(&command), Ok(()));
        }
        let free = Key::new("", "", Permissions::all(), None);
        assert_eq!(free.check(&Command::Stop("b".into())), Ok(()));
        assert_eq!(free.check(&Command::Shutdown), Ok(()));
    }

    #[test]
    fn a_key_has_no_more_than_its_permissions_and_reports_nothing() {
        let key = Key::new("eve", "", Permissions::VIEW, Some(vec!["a".into()]));
        assert!(key.check(&Command::Kill("a".into())).unwrap_err().contains("needs the permission `operate`"));
        let login = Command::Notice { what: control::Notice::Login, line: String::new(), why: String::new() };
        for key in [key, Key::new("", "", Permissions::all(), None)] {
            assert!(key.check(&login).unwrap_err().contains("what the agent itself reports"));
        }
    }

    #[test]
    fn a_bound_key_sees_its_guests_only() {
        let key = bound();
        let guest = |name: &str| Guest { name: name.into(), ..Guest::default() };
        let all = Event::Counters(Counters { guests: ["a", "b", "c"].map(guest).into(), ..Counters::default() });
        let Some(Event::Counters(seen)) = key.sees(all.clone()) else { panic!() };
        assert_eq!(seen.guests.iter().map(|guest| guest.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        let listed = |name: &str| GuestSummary {
            name: name.into(),
            state: control::GuestState::Running,
            cores: Vec::new(),
            memory: 0,
            regions: Vec::new(),
            reason: None,
        };
        let list = Event::Reply {
            id: Some(1),
            ok: true,
            error: None,
            guests: Some(vec![listed("b"), listed("a")]),
            version: None,
        };
        let Some(Event::Reply { guests: Some(seen), id: Some(1), .. }) = key.sees(list) else { panic!() };
        assert_eq!(seen.iter().map(|guest| guest.name.as_str()).collect::<Vec<_>>(), ["a"]);
        let row = |guest: Option<&str>| Durations { guest: guest.map(String::from), ..Durations::default() };
        let latency = |rows: &[Option<&str>]| {
            Event::Latency(Latency { rows: rows.iter().map(|guest| row(*guest)).collect(), ..Latency::default() })
        };
        assert_eq!(key.sees(latency(&[Some("a"), Some("b"), None])), Some(latency(&[Some("a"), None])));
        let line = |guest: &str| Event::Console { guest: guest.into(), line: "secret".into() };
        assert!(key.sees(line("a")).is_some() && key.sees(line("b")).is_none());
        let log = Event::Log { level: Level::Info, text: "guest b starts".into() };
        assert!(key.sees(log.clone()).is_none());
        let free = Key::new("", "", Permissions::all(), None);
        assert_eq!((free.sees(all.clone()), free.sees(log.clone())), (Some(all), Some(log)));
    }

    #[test]
    fn what_guests_write_needs_the_permission_console() {
        let written = || {
            let (guest, text) = ("a".to_owned(), "secret".to_owned());
            [
                Event::Console { guest: guest.clone(), line: text.clone() },
                Event::Port { guest, port: "trace".into(), text },
            ]
        };
        let others = Permissions::all().difference(Permissions::CONSOLE);
        for guests in [None, Some(vec!["a".to_owned()])] {
            for (allowed, is_seen) in [(others, false), (Permissions::CONSOLE, true), (Permissions::all(), true)] {
                let key = Key::new("anna", "", allowed, guests.clone());
                for event in written() {
                    assert_eq!(key.sees(event).is_some(), is_seen, "{allowed}, bound to {guests:?}");
                }
                let sees_more = allowed.contains(Permissions::VIEW);
                assert_eq!(key.sees_all(), is_seen && sees_more && guests.is_none());
            }
        }
        let audit = || Event::Audit { id: None, records: Vec::new() };
        assert!(Key::new("anna", "", Permissions::CONSOLE, None).sees(audit()).is_none(), "it needs `view`");
        assert!(Key::new("anna", "", others, None).sees(audit()).is_some());
        // Without it the rest is still seen.
        let log = Event::Log { level: Level::Info, text: "a line".into() };
        assert!(Key::new("anna", "", others, None).sees(log).is_some());
    }
}
