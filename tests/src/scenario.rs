//! What a scenario is, and the list of them.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::cases;
use crate::figures::Figures;
use crate::linux::{self, Linux};
use crate::machine::{Joined, Launch, Platform, Setup};
use crate::nic::Nic;
use crate::session::Session;
use crate::vhost::{Testpmd, Vhost};

/// One end-to-end test.
pub struct Scenario {
    /// What `cargo mk e2e NAME` calls it.
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// Where it can run.
    pub platforms: &'static [Platform],
    /// Whether it runs on Bochs only with `--full`, because it takes long there.
    pub slow_on_bochs: bool,
    /// The test itself.
    pub run: fn(&mut Context<'_>) -> Result<()>,
}

impl Scenario {
    /// Runs it, with `full` at the length that takes long. One that held nothing to a bound has tested nothing, and fails.
    pub fn execute(&self, launch: &mut dyn Launch, full: bool) -> (Result<()>, Figures) {
        let mut context = Context { launch, full, figures: Figures::default() };
        let result = (self.run)(&mut context).and_then(|()| {
            ensure!(context.figures.bounded() > 0, "{} checked no number", self.name);
            Ok(())
        });
        (result, context.figures)
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

impl Context<'_> {
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

/// QEMU in either form, and Bochs.
pub const EVERYWHERE: &[Platform] = &[Platform::Kvm, Platform::Qemu, Platform::Bochs];
/// QEMU only: what takes too long on Bochs.
pub const QEMU: &[Platform] = &[Platform::Kvm, Platform::Qemu];

/// Every scenario, in the order in which they run: the quick and basic ones first.
pub fn all() -> Vec<Scenario> {
    let mut list = cases::boot::list();
    list.extend(cases::network::list());
    list.extend(cases::offloads::list());
    list.extend(cases::policies::list());
    list.extend(cases::requests::list());
    list.extend(cases::queues::list());
    list.extend(cases::rings::list());
    list.extend(cases::uplink_virtio::list());
    list.extend(cases::uplink::list());
    list.extend(cases::uplink_faults::list());
    list.extend(cases::life::list());
    list.extend(cases::isolation::list());
    list.extend(cases::exits::list());
    list.extend(cases::probe::list());
    list.extend(cases::hostile::list());
    list.extend(cases::completions::list());
    list.extend(cases::eli::list());
    list.extend(cases::ixgbe::list());
    list.extend(cases::vhost::list());
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::collections::BTreeSet;

    struct Nowhere;

    impl Launch for Nowhere {
        fn platform(&self) -> Platform {
            Platform::Qemu
        }
        fn launch(&mut self, _: &Setup) -> Result<Session> {
            bail!("nothing to start")
        }
        fn launch_linux(&mut self, _: &str, _: &[linux::Setup]) -> Result<Vec<Linux>> {
            bail!("nothing to start")
        }
        fn launch_vhost(&mut self, _: &str, _: &[linux::Setup]) -> Result<(Vhost, Vec<Linux<()>>)> {
            bail!("nothing to start")
        }
        fn launch_testpmd(&mut self, _: &str, _: bool) -> Result<(Vhost, Testpmd)> {
            bail!("nothing to start")
        }
        fn launch_with_two(&mut self, _: &Setup) -> Result<(Session, [Nic; 2])> {
            bail!("nothing to start")
        }
        fn launch_joined(&mut self, _: &Setup, _: &linux::Setup, _: bool) -> Result<Joined> {
            bail!("nothing to start")
        }
    }

    #[test]
    fn a_scenario_that_checks_nothing_fails() {
        let empty = Scenario { name: "empty", about: "", platforms: QEMU, slow_on_bochs: false, run: |_| Ok(()) };
        assert!(empty.execute(&mut Nowhere, false).0.is_err());
        let one = Scenario { run: |c| c.figures.at_least("one", 1, 1), ..empty };
        assert!(one.execute(&mut Nowhere, false).0.is_ok());
    }

    #[test]
    fn names_are_unique_and_every_scenario_fails_without_an_emulator() {
        let list = all();
        assert_eq!(list.iter().map(|s| s.name).collect::<BTreeSet<_>>().len(), list.len());
        for scenario in list {
            assert!(scenario.execute(&mut Nowhere, false).0.is_err(), "{}", scenario.name);
        }
    }
}
