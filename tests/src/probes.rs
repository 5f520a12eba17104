//! Guests that are probes (guest-drivers/probe), and how one is led through what it does.

use anyhow::Result;
use control::{Command, Counters};
use serde_json::Value;

use crate::guests::module_name;
use crate::machine::{Content, Module, Setup, Uplink};
use crate::scenario::seconds;
use crate::session::Session;

/// Memory of a probe in MiB: the least that a guest can have.
const MEMORY_MIB: u32 = 64;

/// A probe. Its name is p1 for number 1, and so on.
#[derive(Clone, Debug)]
pub struct Probe {
    number: usize,
    completion: String,
    requests: String,
    cmdline: String,
}

impl Probe {
    /// Probe number `number` (from 1), which does this (the words of guest-drivers/probe).
    pub fn new(number: usize, completion: &str, actions: &str) -> Self {
        Self {
            number,
            completion: completion.to_owned(),
            requests: "poll".to_owned(),
            cmdline: format!("do={actions}"),
        }
    }

    /// With its requests noticed that way.
    #[must_use]
    pub fn requests(self, requests: &str) -> Self {
        Self { requests: requests.to_owned(), ..self }
    }

    /// With this on its command line as well.
    #[must_use]
    pub fn word(mut self, word: &str) -> Self {
        self.cmdline.push(' ');
        self.cmdline.push_str(word);
        self
    }

    /// With that probe as the one it talks to.
    #[must_use]
    pub fn peer(self, number: usize) -> Self {
        self.word(&format!("peer={}", mac(number)))
    }

    /// Its name in sidecore.toml.
    pub fn name(&self) -> String {
        format!("p{}", self.number)
    }

    fn to_toml(&self) -> String {
        format!(
            "[[guest]]\nname = \"{}\"\nmemory = \"{MEMORY_MIB}M\"\nkernel = \"{}\"\ncmdline = \"{}\"\n\
             completion = \"{}\"\nrequests = \"{}\"\n\n[[guest.net]]\nmac = \"{}\"\n\n",
            self.name(),
            module_name(&Content::Probe),
            self.cmdline,
            self.completion,
            self.requests,
            mac(self.number),
        )
    }
}

fn mac(number: usize) -> String {
    format!("52:54:00:00:01:{number:02x}")
}

/// A server just large enough for these probes.
pub fn server(name: &str, probes: &[Probe]) -> Setup {
    let config: String = probes.iter().map(Probe::to_toml).collect();
    let count = u32::try_from(probes.len()).expect("a server has few guests");
    Setup {
        name: name.to_owned(),
        cpus: count + 2,
        memory_mib: count * MEMORY_MIB + 160,
        modules: vec![
            Module::new("sidecore.toml", Content::Text(config)),
            Module::new(module_name(&Content::Probe), Content::Probe),
        ],
        options: "emulator",
        virtualization: true,
        uplink: Uplink::None,
        record_exits: false,
    }
}

/// Waits until a guest is `ready`, that is, does nothing but wait; the counters then.
pub fn ready(session: &mut Session, name: &str) -> Result<Counters> {
    session.result(name, "ready", seconds(240))?;
    session.counters()
}

/// Lets a guest go on that is ready.
pub fn go(session: &mut Session, name: &str) -> Result<()> {
    let input = Command::Input { guest: name.to_owned(), text: "go\n".to_owned() };
    session.ask(input, seconds(20)).map(|_| ())
}

/// Leads a probe through its next action: what it says of it, and the counters before and after, its beginning and its
/// end not counted.
pub fn act(session: &mut Session, name: &str, action: &str) -> Result<(Value, [Counters; 2])> {
    let before = ready(session, name)?;
    go(session, name)?;
    let said = session.result(name, action, seconds(300))?;
    let after = ready(session, name)?;
    go(session, name)?;
    Ok((said, [before, after]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_described_as_the_configuration_wants_it() {
        let toml = Probe::new(1, "direct", "singles:5").peer(2).to_toml();
        assert!(toml.contains("cmdline = \"do=singles:5 peer=52:54:00:00:01:02\""), "{toml}");
        assert!(toml.contains("completion = \"direct\""), "{toml}");
        assert!(toml.contains("requests = \"poll\""), "{toml}");
        assert!(Probe::new(1, "direct", "tests").requests("notify").to_toml().contains("requests = \"notify\""));
    }
}
