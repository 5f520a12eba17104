//! Builds the root file system: an archive with Debian's packages, installed and configured by mmdebstrap.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _, pipe};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use super::mode;
use super::seed::{self, Seed};
use crate::ui::Progress;
use crate::{fetch, paths, tools, ui};

/// Packages of every image, beside those that mmdebstrap's variant `apt` has: the essential ones, and apt.
const PACKAGES: &[&str] = &[
    "dbus",
    "dosfstools",
    "e2fsprogs",
    "fdisk",
    "initramfs-tools",
    "iproute2",
    "iputils-ping",
    "kmod",
    "less",
    "linux-image-cloud-amd64",
    "login",
    "procps",
    "systemd-resolved",
    "systemd-sysv",
    "udev",
    "zstd",
];
/// Version of the way in which an image is built. A change makes every image be built again.
const LAYOUT: u32 = 1;
/// Lines of mmdebstrap's output that an error shows.
const LAST_LINES: usize = 15;

/// What goes into a root file system.
pub struct Spec {
    /// Packages besides the usual ones.
    pub packages: Vec<String>,
    /// The date of files, in seconds since 1970.
    pub date: u64,
    /// The hash of all that.
    pub seed: Seed,
}

impl Spec {
    /// The usual packages and these.
    pub fn new(packages: &[String]) -> Result<Self> {
        let (date, mut extra, mut seed) = (seed::date()?, packages.to_vec(), Seed::new());
        extra.sort();
        extra.dedup();
        for name in &extra {
            // Commas and spaces separate packages. A minus in front or behind, or a slash, means something to apt.
            let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
            if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(good) || name.ends_with('-')
            {
                bail!("{name:?} is no name of a package");
            }
        }
        seed.add(format!("layout {LAYOUT}, date {date}"));
        seed.add(fetch::archive()?.source.split_once(']').map_or("", |(_, archive)| archive));
        PACKAGES.iter().copied().chain(extra.iter().map(String::as_str)).for_each(|name| seed.add(name));
        for file in files(&sources())? {
            seed.add(file.strip_prefix(sources()).unwrap_or(&file).to_string_lossy().as_bytes());
            seed.add(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
        }
        Ok(Self { packages: extra, date, seed })
    }

    /// The identifier of the root file system.
    pub fn root_uuid(&self) -> String {
        self.seed.guid("root file system").to_string()
    }

    /// The number of the ESP's file system.
    pub fn esp_serial(&self) -> u32 {
        self.seed.number("ESP")
    }
}

/// The folder with the image's own files.
pub fn sources() -> PathBuf {
    paths::root().join("mk/disk")
}

/// All files below a folder, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    found.sort();
    Ok(found)
}

/// Builds the archive `place`. `work`: a folder for what is needed meanwhile, and for the log.
pub fn build(spec: &Spec, work: &Path, place: &Path) -> Result<()> {
    let mode = mode::choose()?;
    let packages: Vec<&str> = PACKAGES.iter().copied().chain(spec.packages.iter().map(String::as_str)).collect();
    ui::step("disk", &format!("packages of the root file system, by mmdebstrap {}", mode.why()));
    let overlay = work.join("overlay");
    overlay_files(spec, &overlay)?;
    let archive = fetch::archive()?;
    let unfinished = work.join("root.tar");
    let mut command = tools::disk_script("usr/bin/mmdebstrap")?;
    command.env(seed::DATE, spec.date.to_string()).env("LC_ALL", "C.UTF-8").env_remove("APT_CONFIG");
    command.args(["--verbose", "--variant=apt", "--architectures=amd64", "--format=tar"]);
    command.arg(format!("--mode={}", mode.word())).arg(format!("--include={}", packages.join(",")));
    command.arg("--aptopt=APT::Install-Recommends \"false\"");
    command.args(archive.network.iter().map(|line| format!("--aptopt={line}")));
    command.arg(format!("--customize-hook={} \"$1\" {}", quoted(&sources().join("customize")), quoted(&overlay)));
    command.arg("trixie").arg(&unfinished).arg(archive.source.trim());

    let (output, input) = pipe()?;
    let mut log = File::create(work.join("root.log"))?;
    command.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input);
    let mut child = command.spawn().context("cannot start mmdebstrap")?;
    // The pipe ends when nobody can write to it any more.
    drop(command);
    let (mut progress, mut lines) = (Progress::new("disk"), Vec::new());
    let [mut downloaded, mut unpacked, mut configured] = [0; 3];
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        writeln!(log, "{line}")?;
        for (count, start) in
            [(&mut downloaded, "Get:"), (&mut unpacked, "Unpacking "), (&mut configured, "Setting up ")]
        {
            *count += usize::from(line.starts_with(start));
        }
        progress.at(|| format!("packages: {downloaded} downloaded, {unpacked} unpacked, {configured} configured"));
        lines.push(line);
    }
    if !child.wait()?.success() {
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n");
        bail!(
            "mmdebstrap failed:\n{last}\nall it said is in {}. If a download failed, try again when the network is there \
             (DEBIAN_MIRROR names another mirror)",
            work.join("root.log").display()
        );
    }
    fs::rename(&unfinished, place).with_context(|| format!("cannot make {}", place.display()))
}

/// Makes the folder with the image's own files.
fn overlay_files(spec: &Spec, overlay: &Path) -> Result<()> {
    if overlay.exists() {
        fs::remove_dir_all(overlay)?;
    }
    let root = sources().join("root");
    let serial = spec.esp_serial();
    for file in files(&root)? {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let text = text.replace("ROOT_UUID", &spec.root_uuid());
        let text = text.replace("ESP_UUID", &format!("{:04X}-{:04X}", serial >> 16, serial & 0xffff));
        let place = overlay.join(file.strip_prefix(&root)?);
        fs::create_dir_all(place.parent().unwrap_or(overlay))?;
        fs::write(place, text)?;
    }
    Ok(())
}

/// A path as a word of the shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_of_the_shell() {
        assert_eq!(quoted(Path::new("/a b/it's")), "'/a b/it'\\''s'");
    }
}
