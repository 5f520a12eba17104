//! What starts emulated servers. `mk` provides it.

use anyhow::Result;

use crate::linux::{self, Linux};
use crate::nic::Nic;
use crate::platform::Platform;
use crate::session::Session;
use crate::setup::Setup;
use crate::vhost::{Testpmd, Vhost};

/// Starts emulated servers.
pub trait Launch {
    /// Which emulator it is.
    fn platform(&self) -> Platform;

    /// Builds the disc, starts the emulator and connects to COM2.
    fn launch(&mut self, setup: &Setup) -> Result<Session>;

    /// Starts one or two machines of plain Linux, each with an 82599; a wire joins two. `name` names the folder of their
    /// logs.
    fn launch_linux(&mut self, name: &str, setups: &[linux::Setup]) -> Result<Vec<Linux>>;

    /// Starts a server with an 82599 and a machine of plain Linux with another, a wire between them. `capture`: what passes
    /// on it is recorded.
    fn launch_joined(&mut self, setup: &Setup, peer: &linux::Setup, capture: bool) -> Result<Joined>;

    /// Starts a server with two 82599s.
    fn launch_with_two(&mut self, setup: &Setup) -> Result<(Session, [Nic; 2])>;

    /// Starts `sidecore-vhost` and a machine of plain Linux at each of its ports. `name` names the folder of their logs.
    fn launch_vhost(&mut self, name: &str, guests: &[linux::Setup]) -> Result<(Vhost, Vec<Linux<()>>)>;

    /// Starts `sidecore-vhost` and DPDK's testpmd with a virtio-user port at each of its two, on packed rings or split ones.
    /// `name` names the folder of their logs.
    fn launch_testpmd(&mut self, name: &str, packed: bool) -> Result<(Vhost, Testpmd)>;
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

/// For unit tests: nothing can be started.
#[cfg(test)]
pub mod nowhere {
    use super::*;
    use anyhow::bail;

    /// Starts nothing.
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
}
