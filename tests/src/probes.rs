//! Guests that are probes (guest-drivers/probe), and how a scenario leads a probe through its actions.

use anyhow::{Result, bail, ensure};
use control::{Command, Counters, GuestState};
use serde_json::Value;

use crate::guests::{module_name, with_last_entries};
use crate::platform::Platform;
use crate::scenario::{Context, seconds};
use crate::session::Session;
use crate::setup::{Content, Module, Setup};

/// Most readings of the counters until each engine has made two turns.
const READINGS: u32 = 1_000;

/// Memory of a probe in MiB. A guest cannot have less.
const MEMORY_MIB: u32 = 64;

/// A probe. Its name is p1 for number 1, and so on.
#[derive(Clone, Debug)]
pub struct Probe {
    number: usize,
    completion: String,
    requests: String,
    cmdline: String,
    waits: bool,
    restarts: bool,
    vcpus: u32,
    disks: String,
    disks_mib: u32,
}

impl Probe {
    /// Probe number `number` (from 1), with these actions (in the words of guest-drivers/probe).
    pub fn new(number: usize, completion: &str, actions: &str) -> Self {
        Self {
            number,
            completion: completion.to_owned(),
            requests: "poll".to_owned(),
            cmdline: format!("do={actions}"),
            waits: false,
            restarts: false,
            vcpus: 1,
            disks: String::new(),
            disks_mib: 0,
        }
    }

    /// Sets its `requests`: how the engine learns of its requests.
    #[must_use]
    pub fn requests(self, requests: &str) -> Self {
        Self { requests: requests.to_owned(), ..self }
    }

    /// Has it started by a command, not with the server.
    #[must_use]
    pub fn started_later(self) -> Self {
        Self { waits: true, ..self }
    }

    /// Has it started again whenever it ends.
    #[must_use]
    pub fn restarted(self) -> Self {
        Self { restarts: true, ..self }
    }

    /// Sets the number of vCPUs.
    #[must_use]
    pub fn vcpus(self, vcpus: u32) -> Self {
        Self { vcpus, ..self }
    }

    /// Gives it a RAM disk of so many MiB, with these lines in its `[[guest.block]]`.
    #[must_use]
    pub fn disk(mut self, mib: u32, lines: &str) -> Self {
        self.disks += &format!("[[guest.block]]\ndisk = \"ram\"\nsize = \"{mib}M\"\n{lines}\n");
        self.disks_mib += mib;
        self
    }

    /// Adds a word to its command line.
    #[must_use]
    pub fn word(mut self, word: &str) -> Self {
        self.cmdline.push(' ');
        self.cmdline.push_str(word);
        self
    }

    /// Sets its peer: the probe that it talks to.
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
            "[[guest]]\nname = \"{}\"\nvcpus = {}\n{}memory = \"{MEMORY_MIB}M\"\nkernel = \"{}\"\ncmdline = \"{}\"\n\
             completion = \"{}\"\nrequests = \"{}\"\nautostart = {}\n\n[[guest.net]]\nmac = \"{}\"\n\n{}",
            self.name(),
            self.vcpus,
            if self.restarts { "restart = \"always\"\n" } else { "" },
            module_name(&Content::Probe),
            self.cmdline,
            self.completion,
            self.requests,
            !self.waits,
            mac(self.number),
            self.disks,
        )
    }
}

fn mac(number: usize) -> String {
    format!("52:54:00:00:01:{number:02x}")
}

/// A server just large enough for these probes.
pub fn server(name: &str, probes: &[Probe]) -> Setup {
    let modules = vec![Module::new("sidecore.toml", Content::Text(String::new()))];
    with_probes(Setup { modules, ..Setup::new(name, 2, 160) }, probes)
}

/// The same server with these probes.
#[must_use]
pub fn with_probes(mut setup: Setup, probes: &[Probe]) -> Setup {
    setup = with_last_entries(setup, &probes.iter().map(Probe::to_toml).collect::<String>());
    setup.modules.push(Module::new(module_name(&Content::Probe), Content::Probe));
    setup.cpus += probes.iter().map(|probe| probe.vcpus).sum::<u32>();
    setup.memory_mib += probes.iter().map(|probe| MEMORY_MIB + probe.disks_mib).sum::<u32>();
    setup
}

/// Runs groups of probes one after another, so that only one group runs at a time. On Bochs each group has a machine of
/// its own, because Bochs is slow with many processors. `act` gets the number of the group. Probes that still run after
/// `act` are killed.
pub fn in_turn(
    context: &mut Context<'_>,
    name: &str,
    groups: &[Vec<Probe>],
    mut act: impl FnMut(&mut Context<'_>, &mut Session, usize) -> Result<()>,
) -> Result<()> {
    let together = if context.platform() == Platform::Bochs { 1 } else { groups.len() };
    for (first, machine) in (0..).step_by(together).zip(groups.chunks(together)) {
        let probes: Vec<Probe> = machine.iter().flatten().cloned().map(Probe::started_later).collect();
        let name = if together == 1 { format!("{name}-{}", first + 1) } else { name.to_owned() };
        let mut session = context.boot(&server(&name, &probes))?;
        for (group, probes) in (first..).zip(machine) {
            for probe in probes {
                session.ask(Command::Start(probe.name()), seconds(20))?;
            }
            act(context, &mut session, group)?;
            for guest in session.guests()? {
                if guest.state == GuestState::Running {
                    // It may have ended by itself in the meantime.
                    if let Err(error) = session.ask(Command::Kill(guest.name.clone()), seconds(30)) {
                        ensure!(format!("{error:#}").contains("is not running"), error);
                    }
                    session.state(&guest.name, GuestState::Stopped, seconds(60))?;
                }
            }
        }
        session.shut_down()?;
    }
    Ok(())
}

/// Waits until a guest is `ready`: it does nothing but wait. Returns the counters at that time. An engine counts an
/// interrupt after it has sent it, and the emulator may stop the engine's core between the two. So each engine ends a turn
/// and makes another before the counters are taken.
pub fn ready(session: &mut Session, name: &str) -> Result<Counters> {
    session.result(name, "ready", seconds(240))?;
    let first = turns(&session.counters()?);
    for _ in 0..READINGS {
        let counters = session.counters()?;
        if turns(&counters).iter().zip(&first).all(|(now, then)| *now >= then + 2) {
            return Ok(counters);
        }
    }
    bail!("an engine makes no turns")
}

/// The turns of each engine.
fn turns(counters: &Counters) -> Vec<u64> {
    counters.engines.iter().map(|engine| engine.busy_turns + engine.idle_turns).collect()
}

/// Lets a guest that is `ready` go on.
pub fn go(session: &mut Session, name: &str) -> Result<()> {
    let input = Command::Input { guest: name.to_owned(), text: "go\n".to_owned() };
    session.ask(input, seconds(20)).map(|_| ())
}

/// Leads a probe through its next action. Returns the probe's result, and the counters before and after. Both are read
/// while the probe waits, so that its start and its end are not counted.
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
