//! The contestants: processes that switch between two vhost-user sockets, each bound to CPU 1.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// A bare copying loop in this process.
    Floor,
    /// `sidecore-vhost`.
    Ours,
    /// `dpdk-testpmd` with net_vhost ports in mac forwarding.
    Testpmd,
}

impl Contestant {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Ours => "ours",
            Self::Testpmd => "testpmd",
        }
    }

    /// Whether it can be tried here.
    pub fn present(self) -> bool {
        match self {
            Self::Floor => true,
            Self::Ours => ours().is_ok_and(|p| p.exists()),
            Self::Testpmd => Path::new("/usr/bin/dpdk-testpmd").exists(),
        }
    }

    /// Starts it on two sockets. None: nothing to start.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(self, sockets: &[PathBuf; 2], config: &Path) -> anyhow::Result<Option<Running>> {
        for socket in sockets {
            let _ = std::fs::remove_file(socket);
        }
        let mut command = match self {
            Self::Floor => return Ok(None),
            Self::Ours => {
                let mut c = Command::new(ours()?);
                c.arg("--socket").arg(&sockets[0]).arg("--socket").arg(&sockets[1]);
                c.args(["--core", "1", "--stats", "--json", "--config"]).arg(config);
                c
            }
            Self::Testpmd => {
                let mut c = Command::new("/usr/bin/dpdk-testpmd");
                c.args(["--lcores", "0@0,1@1", "--no-pci", "--in-memory", "--file-prefix", "sidecore-bench", "-m", "256"]);
                for (i, socket) in sockets.iter().enumerate() {
                    c.arg(format!("--vdev=net_vhost{i},iface={},queues=1", socket.display()));
                }
                c.args(["--", "--forward-mode=mac", "--nb-cores=1", "--auto-start", "--total-num-mbufs=16384"]);
                c
            }
        };
        command.stdin(Stdio::piped()).stderr(std::env::var_os("SIDECORE_BENCH_STDERR").map_or_else(Stdio::null, |_| Stdio::inherit())).stdout(Stdio::piped());
        let child = command.spawn().with_context(|| self.name())?;
        Ok(Some(Running(child)))
    }
}

/// A process that ends with this value.
pub struct Running(Child);

impl Running {
    /// Ends it, and gives what it has printed.
    ///
    /// # Errors
    /// It cannot be ended.
    pub fn end(mut self) -> anyhow::Result<String> {
        self.0.kill()?;
        let mut said = String::new();
        if let Some(mut out) = self.0.stdout.take() {
            std::io::Read::read_to_string(&mut out, &mut said)?;
        }
        self.0.wait()?;
        Ok(said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ours() -> anyhow::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name("sidecore-vhost"))
}
