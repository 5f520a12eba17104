//! A scenario: a check with a name. And its context: what the check works with.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::boot_server::{BootServer, Served};
use crate::disk::Disk;
use crate::figures::Figures;
use crate::launch::{Joined, Judge, Launch};
use crate::linux::{self, Linux};
use crate::nic::Nic;
use crate::platform::Platform;
use crate::session::Session;
use crate::setup::{Content, Setup};
use crate::vhost::{Testpmd, Vhost};

/// One end-to-end test, without its code.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name, for `cargo mk e2e NAME`.
    pub name: &'static str,
    /// One line for `--list`.
    pub about: &'static str,
    /// The platforms on which it can run.
    pub platforms: &'static [Platform],
    /// The platforms on which `--full` makes it longer.
    pub longer: &'static [Platform],
    /// Whether it takes turns on QEMU, because it is too long for every day.
    pub in_turn: bool,
    /// The platforms on which a run of all scenarios has it only with `--full`.
    pub rare: &'static [Platform],
    /// The platforms on which it takes turns with a checked hypervisor as well.
    pub checked: &'static [Platform],
    /// An environment variable that names a file which it needs. Without the variable it is skipped.
    pub needs: Option<&'static str>,
}

impl Scenario {
    /// A scenario that `--full` does not make longer.
    #[must_use]
    pub const fn new(name: &'static str, about: &'static str, platforms: &'static [Platform]) -> Self {
        Self { name, about, platforms, longer: &[], in_turn: false, rare: &[], checked: &[], needs: None }
    }

    /// The same, taking turns on QEMU as well.
    #[must_use]
    pub const fn taking_turns(self) -> Self {
        Self { in_turn: true, ..self }
    }

    /// The same, on these platforms only if it is named, or with `--full`.
    #[must_use]
    pub const fn rarely_on(self, rare: &'static [Platform]) -> Self {
        Self { rare, ..self }
    }

    /// The same, taking turns on these platforms with a hypervisor that is built to check arithmetic and assertions.
    #[must_use]
    pub const fn checked_on(self, checked: &'static [Platform]) -> Self {
        Self { checked, ..self }
    }

    /// The same, skipped unless this environment variable names a file.
    #[must_use]
    pub const fn needing(self, variable: &'static str) -> Self {
        Self { needs: Some(variable), ..self }
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
    /// Whether to run the long version.
    pub full: bool,
    /// The numbers that the scenario reports.
    pub figures: Figures,
}

impl<'a> Context<'a> {
    /// A context without numbers.
    pub fn new(launch: &'a mut dyn Launch, full: bool) -> Self {
        Self { launch, full, figures: Figures::default() }
    }

    /// The platform on which it runs.
    pub fn platform(&self) -> Platform {
        self.launch.platform()
    }

    /// Boots machines of plain Linux, and waits until each obeys.
    pub fn boot_linux(&mut self, name: &str, setups: &[linux::Setup]) -> Result<Vec<Linux>> {
        let mut machines = self.launch.launch_linux(name, setups)?;
        for machine in &mut machines {
            machine.answer("obey", seconds(90))?;
        }
        Ok(machines)
    }

    /// Boots sidecore with an 82599, and a machine of plain Linux at the other end of its wire. Waits until that
    /// machine obeys.
    pub fn boot_joined(&mut self, setup: &Setup, peer: &linux::Setup, capture: bool) -> Result<Joined> {
        let mut joined = self.launch.launch_joined(setup, peer, capture)?;
        joined.peer.answer("obey", seconds(240))?;
        joined.peer.ask("carrier:on:60", seconds(120))?;
        Ok(joined)
    }

    /// Boots sidecore with QEMU's 82576, and a machine of plain Linux at the other end of its wire. Waits until that
    /// machine obeys.
    pub fn boot_with_peer(&mut self, setup: &Setup, peer: &linux::Setup) -> Result<(Session, Linux)> {
        let (session, mut peer) = self.launch.launch_with_peer(setup, peer)?;
        peer.answer("obey", seconds(240))?;
        peer.ask("carrier:on:60", seconds(120))?;
        Ok((session, peer))
    }

    /// Boots sidecore with two 82599s.
    pub fn boot_with_two(&mut self, setup: &Setup) -> Result<(Session, [Nic; 2])> {
        self.launch.launch_with_two(setup)
    }

    /// Starts `sidecore-vhost` and machines of plain Linux at its ports. Waits until each machine obeys.
    pub fn boot_vhost(&mut self, name: &str, setups: &[linux::Setup]) -> Result<(Vhost, Vec<Linux<()>>)> {
        let (vhost, mut machines) = self.launch.launch_vhost(name, setups)?;
        for machine in &mut machines {
            machine.answer("obey", seconds(240))?;
        }
        Ok((vhost, machines))
    }

    /// Starts `sidecore-vhost` with disks and a machine of plain Linux that has them. Waits until it obeys.
    pub fn boot_vhost_disks(&mut self, name: &str, setup: &linux::Setup, disks: &[&str]) -> Result<(Vhost, Linux<()>)> {
        let (vhost, mut machine) = self.launch.launch_vhost_disks(name, setup, disks)?;
        machine.answer("obey", seconds(240))?;
        Ok((vhost, machine))
    }

    /// Starts `sidecore-vhost` with DPDK's testpmd at its two ports, on packed or split rings.
    pub fn launch_testpmd(&mut self, name: &str, packed: bool) -> Result<(Vhost, Testpmd)> {
        self.launch.launch_testpmd(name, packed)
    }

    /// Boots the disk image that `cargo mk disk` builds, and logs in.
    pub fn boot_disk(&mut self, name: &str) -> Result<Disk> {
        let mut disk = self.launch.launch_disk(name)?;
        disk.login(seconds(1800))?;
        Ok(disk)
    }

    /// Boots a machine that others boot from by network, and waits until it obeys.
    pub fn boot_server(&mut self, name: &str, served: &Served) -> Result<BootServer> {
        let mut server = self.launch.launch_boot_server(name, served)?;
        server.linux.answer("obey", seconds(120))?;
        Ok(server)
    }

    /// See [`Launch::build_medium`].
    pub fn build_medium(&mut self, setup: &Setup, name: &str, date: &'static str) -> Result<PathBuf> {
        self.launch.build_medium(setup, name, date)
    }

    /// See [`Launch::build_module`].
    pub fn build_module(&mut self, content: &Content, name: &str) -> Result<PathBuf> {
        self.launch.build_module(content, name)
    }

    /// See [`Launch::guest_kernel`].
    pub fn guest_kernel(&mut self) -> Result<PathBuf> {
        self.launch.guest_kernel()
    }

    /// See [`Launch::judge`].
    pub fn judge(&mut self, program: Judge) -> Result<Command> {
        self.launch.judge(program)
    }

    /// See [`Launch::tool`].
    pub fn tool(&mut self, package: &'static str) -> Result<Command> {
        self.launch.tool(package)
    }

    /// tshark that reads pcap-ng from its input, and prints these fields of each frame at once, with tabs between them.
    pub fn tshark(&mut self, fields: &[&str]) -> Result<Command> {
        let mut tshark = self.judge(Judge::Tshark)?;
        tshark.args(["-l", "-r", "-", "-T", "fields"]).args(fields.iter().flat_map(|field| ["-e", field]));
        Ok(tshark)
    }

    /// Returns how often to do something: `on_bochs` in the short version on Bochs, which is slow; otherwise `all`.
    pub fn times(&self, all: u64, on_bochs: u64) -> u64 {
        if self.platform() == Platform::Bochs && !self.full { on_bochs } else { all }
    }

    /// Boots sidecore.
    pub fn boot(&mut self, setup: &Setup) -> Result<Session> {
        self.launch.launch(setup)
    }
}

/// A limit of `n` seconds on QEMU. It is longer on slower platforms: see [`Platform::patience`].
pub const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}
