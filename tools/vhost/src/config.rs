//! The operator's configuration: sockets on the command line, or ports and disks in a TOML file. The hypervisor's own
//! `config` crate reads the rules, so they have the same keys.

mod disk;
mod requests;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ::config::stage::Action;
use ::config::{Identity, Mac, Rules, Stage};
use anyhow::{Context as _, Result, bail, ensure};
use engine::schedule::MAX_WEIGHT;
use net::ports::MAX_PORTS;
use serde::Deserialize;
use virtio::config::MAX_QUEUE_SIZE;

pub use disk::{Cache, Disk};
pub use requests::Requests;

/// Keys at the top of the file, besides `port` and `stage`.
const TOP_KEYS: [&str; 3] = ["scheduling", "requests", "disk"];
/// Keys of a port, besides those of its rules.
const PORT_KEYS: [&str; 7] = ["socket", "name", "requests", "mac", "weight", "mtu", "queue-size"];

/// The configuration.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Config {
    /// The schedule of the queues.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// How the engine learns of requests, for ports that do not say.
    #[serde(default)]
    pub requests: Requests,
    /// The ports of the switch.
    #[serde(default)]
    pub port: Vec<Port>,
    /// The disks.
    #[serde(default)]
    pub disk: Vec<Disk>,
    /// `[[stage]]`.
    #[serde(skip)]
    pub stages: Vec<Stage>,
}

/// `scheduling`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduling {
    /// By time, queue by queue.
    #[default]
    Fine,
    /// The baseline: port after port.
    PerDevice,
}

/// `[[port]]`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Port {
    /// The path to which its front-end connects.
    pub socket: PathBuf,
    /// The name that a mirror uses.
    #[serde(default)]
    pub name: Option<String>,
    /// How the engine learns of its requests.
    #[serde(default)]
    pub requests: Option<Requests>,
    /// Its MAC address. Nobody else may use it.
    #[serde(default, deserialize_with = "mac")]
    pub mac: Option<[u8; 6]>,
    /// The share of the engine's time, 1 to [`MAX_WEIGHT`].
    #[serde(default = "one")]
    pub weight: u16,
    /// The largest payload of a frame in bytes.
    #[serde(default = "mtu")]
    pub mtu: u16,
    /// Descriptors of a queue at most, a power of two.
    #[serde(default = "queue_size")]
    pub queue_size: u16,
    /// Its addresses, and whether its frames must come from them.
    #[serde(skip)]
    pub identity: Identity,
    /// The rules for its frames.
    #[serde(skip)]
    pub rules: Rules,
}

impl Port {
    fn at(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
            name: None,
            requests: None,
            mac: None,
            weight: one(),
            mtu: mtu(),
            queue_size: queue_size(),
            identity: Identity::default(),
            rules: Rules::default(),
        }
    }

    fn check(&self) -> Result<()> {
        let range = |name: &str, value: u16, from: u16, to: u16| {
            ensure!((from..=to).contains(&value), "{name} = {value}: expected {from} to {to}");
            Ok(())
        };
        range("weight", self.weight, 1, MAX_WEIGHT)?;
        range("mtu", self.mtu, 68, 65521)?;
        range("queue-size", self.queue_size, 2, MAX_QUEUE_SIZE)?;
        ensure!(self.queue_size.is_power_of_two(), "queue-size = {}: expected a power of two", self.queue_size);
        if let Some(mac) = self.mac {
            ensure!(mac[0] & 1 == 0 && mac != [0; 6], "mac = {mac:02x?}: expected the address of one station");
        }
        Ok(())
    }
}

const fn one() -> u16 {
    1
}

const fn mtu() -> u16 {
    1500
}

const fn queue_size() -> u16 {
    MAX_QUEUE_SIZE
}

fn mac<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<[u8; 6]>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes: Option<Vec<u8>> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    let mac = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    mac.map(Some).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no address: expected six bytes, 02:..")))
}

impl Config {
    /// Reads the file, if there is one, and adds the sockets and disks of the command line.
    pub fn read(file: Option<&Path>, sockets: &[PathBuf], disks: Vec<Disk>) -> Result<Self> {
        let text = match file {
            Some(path) => fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
            None => String::new(),
        };
        let name = file.map_or_else(String::new, |path| path.display().to_string());
        let mut config = Self::parse(&name, &text).with_context(|| name)?;
        config.port.extend(sockets.iter().map(|socket| Port::at(socket)));
        config.disk.extend(disks);
        config.check()?;
        Ok(config)
    }

    /// The sockets: of the ports, then of the disks.
    pub fn sockets(&self) -> impl Iterator<Item = &Path> {
        let disks = self.disk.iter().map(|disk| disk.socket.as_path());
        self.port.iter().map(|port| port.socket.as_path()).chain(disks)
    }

    fn parse(file: &str, text: &str) -> Result<Self> {
        let read = ::config::parse_rules(file, text, &TOP_KEYS, &PORT_KEYS);
        if !read.mistakes.is_empty() {
            let lines: Vec<String> = read.mistakes.iter().map(ToString::to_string).collect();
            bail!("{}", lines.join("\n"));
        }
        let mut config: Self = toml::from_str(text)?;
        for (port, (identity, rules)) in config.port.iter_mut().zip(read.ports) {
            (port.identity, port.rules) = (identity, rules);
        }
        config.stages = read.stages;
        Ok(config)
    }

    /// The port that a mirror names.
    pub fn named(&self, name: &str) -> Option<usize> {
        self.port.iter().position(|port| port.name.as_deref() == Some(name))
    }

    fn check(&self) -> Result<()> {
        let all = self.port.len() + self.disk.len();
        if all == 0 {
            bail!("there is no port and no disk: give --socket PATH or --disk PATH:SIZE, or --config FILE");
        }
        ensure!(all <= MAX_PORTS, "{all} ports and disks: expected at most {MAX_PORTS}");
        for port in &self.port {
            port.check().with_context(|| format!("port {}", port.socket.display()))?;
        }
        self.disk.iter().try_for_each(Disk::check_named)?;
        let mut seen = BTreeSet::new();
        for socket in self.sockets() {
            ensure!(seen.insert(socket), "socket {} is given twice", socket.display());
        }
        let of = |port: &Port| port.identity.fixed.iter().copied().chain(port.mac.map(Mac)).collect::<Vec<_>>();
        let macs: Vec<[u8; 6]> = self.port.iter().flat_map(of).map(|mac| mac.0).collect();
        let unique: BTreeSet<_> = macs.iter().collect();
        ensure!(unique.len() == macs.len(), "two ports have the same mac");
        let names: Vec<_> = self.port.iter().filter_map(|port| port.name.as_ref()).collect();
        ensure!(names.iter().collect::<BTreeSet<_>>().len() == names.len(), "two ports have the same name");
        for stage in &self.stages {
            if let Action::Mirror { guest, net } = &stage.action {
                let known = *net == 0 && self.named(guest).is_some();
                ensure!(known, "stage {}: no port has the name {guest}, so nobody gets the copies", stage.name);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let error = Config::parse("f", text).and_then(|config| config.check()).expect_err(text);
        format!("{error:#}")
    }

    #[test]
    fn a_file_is_read_and_what_it_leaves_out_has_a_default() {
        let text = "requests = \"adaptive\"\n[[port]]\nsocket = \"/run/a\"\nmac = \"02:00:00:00:00:01\"\nweight = 4\n\
                    [[port]]\nsocket = \"/run/b\"\nrequests = \"notify\"\n";
        let config = Config::parse("f", text).unwrap();
        config.check().unwrap();
        assert!(matches!(config.requests, Requests::Adaptive));
        assert!(config.port[0].requests.is_none() && matches!(config.port[1].requests, Some(Requests::Notify)));
        assert_eq!(config.port[0].mac, Some([2, 0, 0, 0, 0, 1]));
        assert_eq!((config.port[0].weight, config.port[1].weight, config.port[1].mtu), (4, 1, 1500));
    }

    #[test]
    fn rules_have_the_keys_that_guests_have() {
        let text = "[[stage]]\nname = \"web\"\naction = \"allow\"\nprotocol = \"tcp\"\ndestination_port = 80\n\
                    [[stage]]\nname = \"copy\"\naction = \"mirror\"\nto = \"watcher\"\n\
                    [[port]]\nsocket = \"a\"\nmac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.1\"]\nvlan = 7\n\
                    tx = [\"web\", \"copy\"]\n[[port]]\nsocket = \"b\"\nname = \"watcher\"\nanti_spoofing = false\n";
        let config = Config::parse("f", text).unwrap();
        config.check().unwrap();
        let [a, b] = &config.port[..] else { panic!("two ports") };
        assert_eq!((&a.rules.vlan, &a.rules.tx[..]), (&::config::Vlan::Access(7), &[0, 1][..]));
        assert_eq!(
            (a.identity.anti_spoofing, b.identity.anti_spoofing, config.named("watcher")),
            (true, false, Some(1))
        );
        assert!(error("[[port]]\nsocket = \"a\"\nvlan = 4095\n").contains("f:3:8: 4095"));
        assert!(error("[[port]]\nsocket = \"a\"\ntx = [\"web\"]\n").contains("no [[stage]] `web`"));
        let nobody = text.replace("name = \"watcher\"\n", "");
        assert!(error(&nobody).contains("no port has the name watcher"));
    }

    #[test]
    fn a_mistake_is_named_with_its_value() {
        assert!(error("").contains("there is no port and no disk"));
        assert!(error("[[port]]\nsocket = \"a\"\nweight = 17\n").contains("weight = 17: expected 1 to 16"));
        assert!(error("[[port]]\nsocket = \"a\"\nqueue-size = 100\n").contains("queue-size = 100"));
        assert!(error("[[port]]\nsocket = \"a\"\nmac = \"02:00\"\n").contains("\"02:00\" is no address"));
        assert!(error("[[port]]\nsocket = \"a\"\nmac = \"03:00:00:00:00:00\"\n").contains("one station"));
        assert!(error("[[port]]\nsocket = \"a\"\nwight = 1\n").contains("wight"));
        assert!(error("[[port]]\nsocket = \"a\"\n[[port]]\nsocket = \"a\"\n").contains("given twice"));
        assert!(error("[[port]]\nsocket = \"a\"\n[[disk]]\nsocket = \"a\"\nsize = \"1M\"\n").contains("given twice"));
    }
}
