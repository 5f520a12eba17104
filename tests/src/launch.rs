//! The interface by which scenarios start emulated servers. `mk` implements it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::boot_server::{BootServer, Served};
use crate::disk::Disk;
use crate::linux::{self, Linux};
use crate::nic::Nic;
use crate::platform::Platform;
use crate::session::Session;
use crate::setup::{Content, Setup};
use crate::vhost::{Testpmd, Vhost};

/// Starts emulated servers.
pub trait Launch {
    /// The emulator.
    fn platform(&self) -> Platform;

    /// Builds the disc, starts the emulator and connects to COM2.
    fn launch(&mut self, setup: &Setup) -> Result<Session>;

    /// Starts one or two machines of plain Linux, each with an 82599. A wire joins two machines. `name` is the folder
    /// of their logs.
    fn launch_linux(&mut self, name: &str, setups: &[linux::Setup]) -> Result<Vec<Linux>>;

    /// Starts a server with an 82599, a machine of plain Linux with another 82599, and a wire between them. `capture`:
    /// records the frames on the wire.
    fn launch_joined(&mut self, setup: &Setup, peer: &linux::Setup, capture: bool) -> Result<Joined>;

    /// Starts a server with an [`Uplink::Igb`](crate::setup::Uplink::Igb), and a machine of plain Linux with an 82599 at the
    /// other end of its wire. The frames on the wire are recorded.
    fn launch_with_peer(&mut self, setup: &Setup, peer: &linux::Setup) -> Result<(Session, Linux)>;

    /// Starts a server with two 82599s.
    fn launch_with_two(&mut self, setup: &Setup) -> Result<(Session, [Nic; 2])>;

    /// Starts `sidecore-vhost` and a machine of plain Linux at each of its ports. `name` is the folder of their logs.
    fn launch_vhost(&mut self, name: &str, guests: &[linux::Setup]) -> Result<(Vhost, Vec<Linux<()>>)>;

    /// Starts `sidecore-vhost` with a disk for each of `disks`, which are its lines in the configuration, and a machine
    /// of plain Linux that has all of them. `name` is the folder of their logs.
    fn launch_vhost_disks(&mut self, name: &str, guest: &linux::Setup, disks: &[&str]) -> Result<(Vhost, Linux<()>)>;

    /// Starts `sidecore-vhost` with two ports, and DPDK's testpmd with a virtio-user port at each of them. `packed`: on
    /// packed rings. `name` is the folder of their logs.
    fn launch_testpmd(&mut self, name: &str, packed: bool) -> Result<(Vhost, Testpmd)>;

    /// A command that starts a program which nobody here wrote, without arguments. It is fetched if it is missing.
    fn judge(&mut self, program: Judge) -> Result<Command>;

    /// A command that starts one of the operator's programs in `tools/`, without arguments. It is built first.
    fn tool(&mut self, package: &'static str) -> Result<Command>;

    /// The kernel that Linux guests boot, a bzImage. It is fetched if it is missing.
    fn guest_kernel(&mut self) -> Result<PathBuf>;

    /// Starts a machine with UEFI firmware from a copy of the disk image that `cargo mk disk` builds. `name` is the
    /// folder of its logs.
    fn launch_disk(&mut self, name: &str) -> Result<Disk>;

    /// Starts a machine that others boot from by network. `name` is the folder of its logs.
    fn launch_boot_server(&mut self, name: &str, served: &Served) -> Result<BootServer>;

    /// Builds a boot module with this content. `name` is a folder of its own, which is empty before. Returns its path.
    fn build_module(&mut self, content: &Content, name: &str) -> Result<PathBuf>;

    /// Builds the medium of a setup, and starts nothing. Tools that others wrote check a stick. `name` is the folder that it is
    /// in. `date`: the date that the programs see which build it (`2031-05-06 07:08:09`). Returns its path.
    fn build_medium(&mut self, setup: &Setup, name: &str, date: &'static str) -> Result<PathBuf>;
}

/// Programs of others that judge what the hypervisor and its tools do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// OpenSSH's client.
    Ssh,
    /// OpenSSH's program that makes keys.
    SshKeygen,
    /// OpenSSH's program that asks a host for its keys.
    SshKeyscan,
    /// Wireshark's program for the command line.
    Tshark,
    /// Prometheus.
    Prometheus,
    /// Prometheus' program that checks metrics: `check metrics`, from its standard input.
    Promtool,
    /// A strict reader of OpenMetrics: from its standard input. Prints the number of series.
    OpenMetrics,
    /// The audit of an ssh server: `-p PORT HOST`. Its exit code is 2 for warnings, 3 for failures.
    SshAudit,
    /// A script that decodes a file by Perfetto's published schema: `FILE [--slices NAME=COUNT]...`
    /// (tools/trace/tests/exports/judge.py).
    Perfetto,
}

/// A server, and the machine at the other end of its wire.
pub struct Joined {
    /// The server.
    pub session: Session,
    /// Its device.
    pub nic: Nic,
    /// The other machine.
    pub peer: Linux,
}

/// A launcher for unit tests, which cannot start anything.
#[cfg(test)]
pub mod nowhere {
    use super::*;
    use anyhow::bail;

    /// The launcher.
    pub struct Nowhere;

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
        fn launch_vhost_disks(&mut self, _: &str, _: &linux::Setup, _: &[&str]) -> Result<(Vhost, Linux<()>)> {
            bail!("nothing to start")
        }
        fn launch_testpmd(&mut self, _: &str, _: bool) -> Result<(Vhost, Testpmd)> {
            bail!("nothing to start")
        }
        fn judge(&mut self, _: Judge) -> Result<Command> {
            bail!("nothing to start")
        }
        fn tool(&mut self, _: &'static str) -> Result<Command> {
            bail!("nothing to start")
        }
        fn guest_kernel(&mut self) -> Result<PathBuf> {
            bail!("nothing to boot")
        }
        fn launch_disk(&mut self, _: &str) -> Result<Disk> {
            bail!("nothing to start")
        }
        fn launch_boot_server(&mut self, _: &str, _: &Served) -> Result<BootServer> {
            bail!("nothing to start")
        }
        fn build_medium(&mut self, _: &Setup, _: &str, _: &'static str) -> Result<PathBuf> {
            bail!("nothing to build")
        }
        fn build_module(&mut self, _: &Content, _: &str) -> Result<PathBuf> {
            bail!("nothing to build")
        }
        fn launch_with_peer(&mut self, _: &Setup, _: &linux::Setup) -> Result<(Session, Linux)> {
            bail!("nothing to start")
        }
        fn launch_with_two(&mut self, _: &Setup) -> Result<(Session, [Nic; 2])> {
            bail!("nothing to start")
        }
        fn launch_joined(&mut self, _: &Setup, _: &linux::Setup, _: bool) -> Result<Joined> {
            bail!("nothing to start")
        }
    }
}
