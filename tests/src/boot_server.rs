//! A machine that others boot from by network: plain Linux with Debian's dnsmasq (DHCP, proxy DHCP, TFTP) and nginx (HTTP).
//! Its folder is made as `cargo mk image --pxe` makes it. Its dnsmasq.conf is the one of the guide (`boot/README.md`).

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::linux::{self, Linux};
use crate::setup::Setup;

/// The longest time for an answer of the machine.
const LIMIT: Duration = Duration::from_secs(60);
const GUIDE: &str = include_str!("../../boot/README.md");

/// What the machine serves: a folder for booting by network, and in it a CD's image `sidecore.iso` and a program `sidecore-http.efi`.
pub struct Served {
    /// The boot modules of all three. Its `sidecore.toml` is for machines that have no configuration of their own.
    pub setup: Setup,
    /// The configurations of single machines in the folder, by UUID or MAC address, perhaps with `.previous` behind.
    pub machines: Vec<(String, String)>,
}

/// A dnsmasq.conf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conf {
    /// The guide's where dnsmasq is the DHCP server.
    Dhcp,
    /// The guide's beside another DHCP server.
    Proxy,
    /// That of [`Self::Dhcp`] with the program for UEFI in the place of the CD's image, as the guide says.
    Program,
}

impl Conf {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Dhcp, Self::Proxy, Self::Program];

    /// Its name: that of its file without `.conf`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dhcp => "dhcp",
            Self::Proxy => "proxy",
            Self::Program => "program",
        }
    }

    /// Its text.
    ///
    /// # Errors
    /// The guide has no such text, or not in one place.
    pub fn text(self) -> Result<String> {
        match self {
            Self::Dhcp => guide("dhcp-range=192.168.1.100,192.168.1.199"),
            Self::Proxy => guide("dhcp-range=192.168.1.0,proxy"),
            Self::Program => Ok(Self::Dhcp.text()?.replace("/sidecore.iso\n", "/sidecore-http.efi\n")),
        }
    }
}

/// The block of text in the guide that has this line.
fn guide(line: &str) -> Result<String> {
    let mut blocks = GUIDE.split("```text\n").skip(1).filter_map(|rest| rest.split_once("```"));
    let mut found = blocks.by_ref().filter(|(block, _)| block.lines().any(|l| l == line));
    let (block, _) = found.next().with_context(|| format!("the guide has no block of text with {line}"))?;
    ensure!(found.next().is_none(), "the guide has two blocks of text with {line}");
    Ok(block.to_owned())
}

/// The machine's address, as the guide has it.
pub const ADDRESS: &str = "192.168.1.2";

/// The machine itself.
pub const MACHINE: linux::Setup = linux::Setup {
    name: "server",
    number: 1,
    cpus: 1,
    // All files are in memory, at first twice.
    memory_mib: 768,
    reboots: false,
    options: "sc.ip=192.168.1.2/24",
    backplane: false,
};

/// The files of GRUB in the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaders {
    /// They ask the server that DHCP names.
    ServerByDhcp,
    /// They ask [`ADDRESS`] (`cargo mk image --pxe --server`).
    ServerNamed,
}

impl Loaders {
    /// Name of the folder with them.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ServerByDhcp => "by-dhcp",
            Self::ServerNamed => "named",
        }
    }
}

/// What the machine has sent.
#[derive(Debug)]
pub struct Sent {
    /// How many times dnsmasq has given an address.
    pub addresses: u64,
    /// The paths of files that were sent whole by TFTP.
    pub tftp: Vec<String>,
    /// The paths of files that were sent by HTTP.
    pub http: Vec<String>,
}

/// The machine. It serves one other machine at a time, which connects to its socket.
pub struct BootServer {
    /// The machine.
    pub linux: Linux<()>,
    /// Its socket.
    pub socket: PathBuf,
}

impl BootServer {
    /// Serves by this configuration from now on. The counts of [`Self::sent`] begin anew.
    ///
    /// # Errors
    /// dnsmasq does not start.
    pub fn serve(&mut self, conf: Conf, loaders: Loaders) -> Result<()> {
        self.linux.ask(&format!("dnsmasq:{}:{}", conf.name(), loaders.name()), LIMIT).map(drop)
    }

    /// What was sent since [`Self::serve`].
    ///
    /// # Errors
    /// The machine does not answer.
    pub fn sent(&mut self) -> Result<Sent> {
        let answer = self.linux.ask("sent", LIMIT)?;
        let list = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(|path| Some(path.as_str()?.to_owned())).collect()
        };
        let addresses = answer["addresses"].as_u64().with_context(|| format!("no count in {answer}"))?;
        Ok(Sent { addresses, tftp: list(&answer["tftp"]), http: list(&answer["http"]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_each_configuration_once() {
        for conf in Conf::ALL {
            let text = conf.text().unwrap();
            assert!(text.contains("tftp-root=/srv/sidecore\n"), "{text}");
            assert_eq!(text.contains(",proxy"), conf == Conf::Proxy, "{text}");
            assert_eq!(text.contains("sidecore.iso"), conf == Conf::Dhcp, "{text}");
            assert_eq!(text.contains("sidecore-http.efi"), conf == Conf::Program, "{text}");
        }
        assert_eq!(MACHINE.options, format!("sc.ip={ADDRESS}/24"));
        assert!(guide("no such line").is_err());
        assert!(guide("enable-tftp").unwrap_err().to_string().contains("two blocks"));
    }
}
