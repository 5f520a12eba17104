//! The files of the package, and the archive of them.
//!
//! What the RAM disk of `cargo mk image --management` has too is the same file: the agent, and what `operator` may do by ssh.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

const AGENT: &str = include_str!("../../../tools/agent/linux/sidecore-agent.service");
const METRICS: &str = include_str!("../../../tools/agent/linux/sidecore-metrics.service");
const SYSLOG: &str = include_str!("../../../tools/agent/linux/sidecore-syslog.service");
const UDEV: &str = include_str!("../../../tools/agent/linux/udev.rules");
const SYSUSERS: &str = include_str!("../../../tools/agent/linux/sysusers.conf");
const SSHD_KEYS: &str = include_str!("../../../tools/agent/linux/sshd_keys.conf");
const AUTHORIZED_KEYS: &str = include_str!("../../../tools/agent/linux/authorized-keys");
const KEYS: &str = include_str!("../../../tools/agent/linux/keys");
const COPYRIGHT: &str = include_str!("../../../tools/agent/linux/debian/copyright");
const CHANGELOG: &str = include_str!("../../../tools/agent/linux/debian/changelog");
const README: &str = include_str!("../../../tools/agent/README.md");
const ALERTS: &str = include_str!("../../../tools/agent/prometheus/alerts.yml");
const DASHBOARD: &str = include_str!("../../../tools/agent/prometheus/dashboard.json");

/// What `operator` may do by ssh. The management guest's RAM disk has it too.
pub const SSHD_OPERATOR: &str = include_str!("../../../tools/agent/linux/sshd_operator.conf");

/// A file of an archive.
pub struct File {
    /// Its path, without a slash in front.
    pub path: String,
    /// Its mode bits.
    pub mode: u32,
    /// Its bytes.
    pub content: Vec<u8>,
}

impl File {
    /// A file of that content.
    pub fn new(path: &str, mode: u32, content: &[u8]) -> Self {
        Self { path: path.to_owned(), mode, content: content.to_vec() }
    }
}

/// The files of the package. `program`: the agent. `version`: the package's.
pub fn files(program: &[u8], version: &str) -> Result<Vec<File>> {
    const DOC: &str = "usr/share/doc/sidecore-agent";
    let text = |path: &str, mode, text: &str| File::new(path, mode, text.as_bytes());
    let changelog = CHANGELOG.replace("VERSION", version);
    Ok(vec![
        text("etc/sidecore/keys", 0o644, KEYS),
        text("etc/ssh/sshd_config.d/sidecore.conf", 0o644, &[SSHD_OPERATOR, SSHD_KEYS].concat()),
        File::new("usr/bin/sidecore-agent", 0o755, program),
        text("usr/lib/systemd/system/sidecore-agent.service", 0o644, AGENT),
        text("usr/lib/systemd/system/sidecore-metrics.service", 0o644, METRICS),
        text("usr/lib/systemd/system/sidecore-syslog.service", 0o644, SYSLOG),
        text("usr/lib/sysusers.d/sidecore-agent.conf", 0o644, SYSUSERS),
        text("usr/lib/udev/rules.d/60-sidecore-agent.rules", 0o644, UDEV),
        text("usr/libexec/sidecore-agent/authorized-keys", 0o755, AUTHORIZED_KEYS),
        text(&format!("{DOC}/README.md"), 0o644, README),
        File::new(&format!("{DOC}/changelog.gz"), 0o644, &gzip(changelog.as_bytes())?),
        text(&format!("{DOC}/copyright"), 0o644, COPYRIGHT),
        text(&format!("{DOC}/prometheus/alerts.yml"), 0o644, ALERTS),
        text(&format!("{DOC}/prometheus/dashboard.json"), 0o644, DASHBOARD),
    ])
}

/// An archive (tar) of files and their folders. All are root's and have this date.
pub fn archive(files: &[File], date: u64) -> Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    let folders: BTreeSet<&Path> = files.iter().flat_map(|file| Path::new(&file.path).ancestors().skip(1)).collect();
    for folder in folders {
        append(&mut builder, folder, EntryType::Directory, 0o755, date, &[])?;
    }
    for file in files {
        append(&mut builder, Path::new(&file.path), EntryType::Regular, file.mode, date, &file.content)?;
    }
    Ok(builder.into_inner()?)
}

fn append(
    builder: &mut Builder<Vec<u8>>,
    path: &Path,
    kind: EntryType,
    mode: u32,
    date: u64,
    content: &[u8],
) -> Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(date);
    header.set_uid(0);
    header.set_gid(0);
    header.set_username("root")?;
    header.set_groupname("root")?;
    header.set_size(content.len() as u64);
    // dpkg's names begin with a dot. The folder of all is named `./`.
    let name = match kind {
        EntryType::Directory => format!("./{}/", path.display()).replace("//", "/"),
        _ => format!("./{}", path.display()),
    };
    let field = &mut header.as_gnu_mut().context("a header without a name")?.name;
    field
        .get_mut(..name.len())
        .with_context(|| format!("{name} is too long for a header"))?
        .copy_from_slice(name.as_bytes());
    header.set_cksum();
    builder.append(&header, content).with_context(|| format!("cannot archive {name}"))
}

/// Compresses without a name and a date.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}
