//! What a scenario is: a check with a name, and what it works with.

use std::time::Duration;

use anyhow::Result;

use crate::figures::Figures;
use crate::launch::{Joined, Launch};
use crate::linux::{self, Linux};
use crate::nic::Nic;
use crate::platform::Platform;
use crate::session::Session;
use crate::setup::Setup;
use crate::vhost::{Testpmd, Vhost};

/// One end-to-end test, without the code that carries it out.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What `cargo mk e2e NAME` calls it.
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// Where it can run.
    pub platforms: &'static [Platform],
    /// Where `--full` makes it longer.
    pub longer: &'static [Platform],
    /// Whether it takes turns on QEMU, because it is too long for every day.
    pub in_turn: bool,
}

impl Scenario {
    /// A scenario that is as long with `--full` as without.
    #[must_use]
    pub const fn new(name: &'static str, about: &'static str, platforms: &'static [Platform]) -> Self {
        Self { name, about, platforms, longer: &[], in_turn: false }
    }

    /// The same, taking turns on QEMU as well.
    #[must_use]
    pub const fn taking_turns(self) -> Self {
        Self { in_turn: true, ..self }
    }

    /// The same, with `--full` making it longer on these platforms.
    #[must_use]
    pub const fn longer_on(self, longer: &'static [Platform]) -> Self {
        Self { longer, ..self }
    }
}

/// What a scenario works with.
pub struct Context<'a> {
    launch: &'a mut dyn Launch,
    /// Whether to take the time for all of it.
    pub full: bool,
    /// Where it reports its numbers.
    pub figures: Figures,
}

impl<'a> Context<'a> {
    /// Without a number yet.
    pub fn new(launch: &'a mut dyn Launch, full: bool) -> Self {
        Self { launch, full, figures: Figures::default() }
    }

    /// Where it runs.
    pub fn platform(&self) -> Platform {
        self.launch.platform()
    }

    /// Boots machines of plain Linux, each of which then obeys.
    pub fn boot_linux(&mut self, name: &str, setups: &[linux::Setup]) -> Result<Vec<Linux>> {
        let mut machines = self.launch.launch_linux(name, setups)?;
        for machine in &mut machines {
            machine.answer("obey", seconds(90))?;
        }
        Ok(machines)
    }

    /// Boots sidecore with an 82599, and a machine of plain Linux at the other end of its wire, which then obeys.
    pub fn boot_joined(&mut self, setup: &Setup, peer: &linux::Setup, capture: bool) -> Result<Joined> {
        let mut joined = self.launch.launch_joined(setup, peer, capture)?;
        joined.peer.answer("obey", seconds(240))?;
        joined.peer.ask("carrier:on:60", seconds(120))?;
        Ok(joined)
    }

    /// Boots sidecore with two 82599s.
    pub fn boot_with_two(&mut self, setup: &Setup) -> Result<(Session, [Nic; 2])> {
        self.launch.launch_with_two(setup)
    }

    /// Starts `sidecore-vhost` and machines of plain Linux at its ports, each of which then obeys.
    pub fn boot_vhost(&mut self, name: &str, setups: &[linux::Setup]) -> Result<(Vhost, Vec<Linux<()>>)> {
        let (vhost, mut machines) = self.launch.launch_vhost(name, setups)?;
        for machine in &mut machines {
            machine.answer("obey", seconds(240))?;
        }
        Ok((vhost, machines))
    }

    /// Starts `sidecore-vhost` with DPDK's testpmd at its two ports, on packed rings or split ones.
    pub fn launch_testpmd(&mut self, name: &str, packed: bool) -> Result<(Vhost, Testpmd)> {
        self.launch.launch_testpmd(name, packed)
    }

    /// How often something is done: as often as on QEMU, or less often where Bochs would need too long for that.
    pub fn times(&self, all: u64, on_bochs: u64) -> u64 {
        if self.platform() == Platform::Bochs && !self.full { on_bochs } else { all }
    }

    /// Boots sidecore.
    pub fn boot(&mut self, setup: &Setup) -> Result<Session> {
        self.launch.launch(setup)
    }
}

/// So many seconds on QEMU.
pub const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
