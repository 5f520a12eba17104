//! A private apt with its state and cache in one folder. It uses Debian's archive, on a Debian or Ubuntu host.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::tools::quietly;
use crate::ui::{self, Progress};

/// Suites of the packages. QEMU comes from the backports, everything else from trixie.
pub const SUITES: [&str; 2] = ["trixie", "trixie-backports"];

/// Suite of the firmware, which no stable suite has.
pub const FIRMWARE_SUITE: &str = "sid";

const MIRROR: &str = "http://deb.debian.org/debian";
const KEYRING: &str = "usr/share/keyrings/debian-archive-keyring.gpg";
const PREFERENCES: &str = "Package: qemu-* seabios\nPin: release n=trixie-backports\nPin-Priority: 990\n";

/// The private apt.
pub struct Apt {
    folder: PathBuf,
}

impl Apt {
    /// Writes its configuration into `folder`, for the packages of [`SUITES`].
    pub fn prepare(folder: &Path) -> Result<Self> {
        Self::prepare_for(folder, &SUITES)
    }

    /// Writes its configuration into `folder`, for the packages of these suites.
    pub fn prepare_for(folder: &Path, suites: &[&str]) -> Result<Self> {
        for program in ["apt-get", "apt-cache", "dpkg"] {
            if Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
                bail!("{program} is not here: the packages are fetched by apt, so use Debian or Ubuntu");
            }
        }
        let apt = Self { folder: folder.to_owned() };
        for path in
            ["etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d", "state/lists/partial", "archives/partial"]
        {
            fs::create_dir_all(folder.join(path))
                .with_context(|| format!("cannot create {path} in target/deps/apt"))?;
        }
        let sources: Vec<String> = suites.iter().map(|suite| apt.source(suite)).collect::<Result<_>>()?;
        fs::write(folder.join("etc/sources.list"), sources.concat())?;
        fs::write(folder.join("etc/preferences"), PREFERENCES)?;
        fs::write(folder.join("state/status"), "")?;
        fs::write(folder.join("apt.conf"), apt.configuration())?;
        Ok(apt)
    }

    /// The line of `sources.list` for a suite.
    pub fn source(&self, suite: &str) -> Result<String> {
        let keyring = self.keyring()?;
        let mirror = env::var("DEBIAN_MIRROR").unwrap_or_else(|_| MIRROR.to_owned());
        Ok(format!("deb [arch=amd64 signed-by={}] {mirror} {suite} main\n", keyring.display()))
    }

    fn configuration(&self) -> String {
        let here = self.folder.display();
        let network: String = host_network().iter().flat_map(|line| [line, "\n"]).collect();
        format!(
            "{network}Dir::State \"{here}/state\";\nDir::State::status \"{here}/state/status\";\nDir::Cache \"{here}\";\n\
             Dir::Cache::archives \"{here}/archives\";\nDir::Etc \"{here}/etc\";\nDir::Log \"{here}/log\";\n\
             APT::Architecture \"amd64\";\nAPT::Architectures \"amd64\";\nAPT::Sandbox::User \"root\";\n\
             APT::Install-Recommends \"false\";\nAcquire::Languages \"none\";\nAcquire::Retries \"3\";\n",
        )
    }

    /// The file with Debian's keys. It is the host's or, on Ubuntu, from Ubuntu's package of them, which apt has
    /// checked.
    fn keyring(&self) -> Result<PathBuf> {
        let host = Path::new("/").join(KEYRING);
        if host.is_file() {
            return Ok(host);
        }
        let folder = self.folder.join("keyring");
        if folder.join(KEYRING).is_file() {
            return Ok(folder.join(KEYRING));
        }
        fs::create_dir_all(&folder)?;
        let mut download = Command::new("apt-get");
        download.args(["download", "debian-archive-keyring"]).current_dir(&folder).env_remove("APT_CONFIG");
        quietly(&mut download, "apt-get download debian-archive-keyring").context(
            "Debian's keys are needed to check what is fetched; run `apt-get update` as root, or install the package \
             debian-archive-keyring, and try again",
        )?;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "deb") {
                quietly(Command::new("dpkg").arg("-x").arg(&path).arg(&folder), "dpkg -x")?;
            }
        }
        Ok(folder.join(KEYRING))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf")).env("LC_ALL", "C.UTF-8");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Brings the package lists up to date.
    pub fn update(&self) -> Result<()> {
        ui::step("fetch", "package lists");
        quietly(self.command("apt-get").args(["-q", "update", "-o", "APT::Update::Error-Mode=any"]), "apt-get update")
            .context(
                "the package lists could not be fetched; is the network there? (DEBIAN_MIRROR names another mirror)",
            )
            .map(drop)
    }

    /// Brings the package lists up to date. A mirror that is no longer updated has a Release file that has expired. Then this
    /// check alone is relaxed, and a line says so. The signature is checked all the same.
    pub fn update_even_if_expired(&self) -> Result<()> {
        let Err(error) = self.update() else { return Ok(()) };
        if !format!("{error:#}").contains("is expired") {
            return Err(error);
        }
        ui::step("fetch", "the mirror's Release file has expired; its signature is checked, its age is not");
        let sources = self.folder.join("etc/sources.list");
        let text = fs::read_to_string(&sources)?;
        fs::write(&sources, text.replace("arch=amd64 ", "arch=amd64 check-valid-until=no "))?;
        self.update()
    }

    /// The first dependency of `package` whose name begins with `prefix`.
    pub fn dependency(&self, package: &str, prefix: &str) -> Result<String> {
        let said = quietly(self.command("apt-cache").args(["depends", package]), "apt-cache depends")?;
        said.lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with(prefix))
            .map(str::to_owned)
            .with_context(|| format!("{package} depends on nothing called {prefix}*"))
    }

    /// Downloads packages and all their dependencies.
    pub fn download(&self, packages: &[&str]) -> Result<Vec<PathBuf>> {
        let install = ["-q", "-y", "install", "--no-install-recommends"];
        let plan = quietly(
            self.command("apt-get")
                .args(install)
                .arg("--print-uris")
                .args(packages)
                .arg("-o")
                .arg("Dir::Cache::archives=/nonexistent"),
            "apt-get",
        )?;
        let files = planned(&plan);
        if files.is_empty() {
            bail!("apt has nothing to fetch for {}:\n{plan}", packages.join(" "));
        }
        let mut child = self
            .command("apt-get")
            .args(install)
            .arg("--download-only")
            .args(packages)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start apt-get")?;
        let mut progress = Progress::new("fetch");
        let mut got = 0;
        if let Some(output) = child.stdout.take() {
            for line in BufReader::new(output).lines() {
                got += usize::from(line?.starts_with("Get:"));
                progress.at(|| format!("downloading, {got} of {} packages", files.len()));
            }
        }
        if !child.wait()?.success() {
            bail!("apt-get could not download the packages (its words are above); try again when the network is there");
        }
        let archives = self.folder.join("archives");
        Ok(files.into_iter().map(|file| archives.join(file)).collect())
    }

    /// Downloads one package without its dependencies.
    pub fn download_one(&self, package: &str) -> Result<PathBuf> {
        ui::step("fetch", package);
        let archives = self.folder.join("archives");
        let mut command = self.command("apt-get");
        command.args(["-q", "download", package]).current_dir(&archives);
        quietly(&mut command, &format!("apt-get download {package}"))?;
        let start = format!("{package}_");
        let mut found: Vec<PathBuf> = fs::read_dir(&archives)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start)))
            .collect();
        found.sort();
        found.pop().with_context(|| format!("{package} was not downloaded"))
    }

    /// Removes files that are not needed after the packages are unpacked.
    pub fn tidy(&self) -> Result<()> {
        for folder in ["archives", "state"] {
            fs::remove_dir_all(self.folder.join(folder))?;
        }
        Ok(())
    }
}

/// The network settings (proxies) of the host's configuration. Nothing else of it is used.
pub fn host_network() -> Vec<String> {
    let host = Command::new("apt-config").arg("dump").output();
    let host = host.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    host.lines().filter(|line| line.starts_with("Acquire::http")).map(str::to_owned).collect()
}

/// The file names in the answer to `--print-uris`: `'URI' FILE SIZE CHECKSUM`.
fn planned(answer: &str) -> Vec<String> {
    answer
        .lines()
        .filter(|line| line.starts_with('\''))
        .filter_map(|line| line.split_whitespace().nth(1))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_is_read_and_prose_around_it_is_not() {
        let answer = "Reading package lists...\nThe following NEW packages will be installed:\n  a b\n\
                      'http://x/a_1.deb' a_1%3a2_amd64.deb 100 MD5Sum:00\n'http://x/b.deb' b_1_all.deb 5 \n";
        assert_eq!(planned(answer), ["a_1%3a2_amd64.deb", "b_1_all.deb"]);
    }
}
