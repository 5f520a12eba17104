//! The command line, and the configuration file: one `[[port]]` for each socket, in the order of the command line.
//!
//! ```toml
//! [[port]]
//! mac = "52:54:00:00:00:01"   # the port's own address; without one, any source address is learned
//! mtu = 1500                  # largest payload of a frame
//! ```

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Parser;
use serde::Deserialize;

/// The largest MTU that can be asked for: a frame and its VLAN tag fit 16 bits.
const MAX_MTU: u16 = 65_000;

/// Switches frames between vhost-user sockets, by the engine that sidecore runs on its I/O cores.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    /// A socket to listen on: one port of the switch. Given twice or more.
    #[arg(long = "socket", required = true)]
    pub sockets: Vec<PathBuf>,
    /// A file with one `[[port]]` for each socket.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// The CPU that the engine is bound to.
    #[arg(long)]
    pub core: Option<usize>,
    /// Prints counters each second.
    #[arg(long)]
    pub stats: bool,
    /// Prints them as JSON lines.
    #[arg(long, requires = "stats")]
    pub json: bool,
}

/// The configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// One for each socket; those beyond the last are as the default.
    #[serde(default, rename = "port")]
    pub ports: Vec<Port>,
}

/// One port.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Port {
    /// The port's own address.
    #[serde(deserialize_with = "mac")]
    pub mac: Option<[u8; 6]>,
    /// Largest payload of a frame in bytes.
    pub mtu: u16,
}

impl Default for Port {
    fn default() -> Self {
        Self { mac: None, mtu: 9000 }
    }
}

fn mac<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<[u8; 6]>, D::Error> {
    let text = String::deserialize(d)?;
    let bytes: Vec<_> =
        text.split(':').map(|b| u8::from_str_radix(b, 16)).collect::<Result<_, _>>().unwrap_or_default();
    match <[u8; 6]>::try_from(bytes) {
        Ok(mac) if mac[0] & 1 == 0 => Ok(Some(mac)),
        _ => Err(serde::de::Error::custom(format!("`{text}` is not a station's address such as 52:54:00:00:00:01"))),
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read or does not say what it should, with line and value.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let config: Self = toml::from_str(text)?;
        for port in &config.ports {
            ensure!((68..=MAX_MTU).contains(&port.mtu), "mtu = {}: expected 68 to {MAX_MTU}", port.mtu);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::Config;

    #[test]
    fn mistakes_name_the_line_and_what_was_expected() {
        let c = Config::parse("[[port]]\nmac = '52:54:00:00:00:01'\n[[port]]\nmtu = 1500").expect("good");
        assert_eq!(c.ports[0].mac, Some([0x52, 0x54, 0, 0, 0, 1]));
        assert_eq!((c.ports[1].mac, c.ports[1].mtu, c.ports[0].mtu), (None, 1500, 9000));
        for (text, said) in [
            ("[[port]]\nmac = '53:54:00:00:00:01'", "line 2"),
            ("[[port]]\nmac = '52:54'", "station's address"),
            ("[[port]]\nmtu = 20", "mtu = 20: expected 68"),
            ("[[prot]]", "unknown field"),
        ] {
            let error = format!("{:#}", Config::parse(text).expect_err(text));
            assert!(error.contains(said), "{error}");
        }
    }
}
