//! Chooses how the packages of a root file system are configured on this machine.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// A way in which mmdebstrap works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As root, with chroot.
    Root,
    /// In a user namespace with a range of subordinate ids.
    Unshare,
}

impl Mode {
    /// Its name on mmdebstrap's command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Unshare => "unshare",
        }
    }

    /// Why it was chosen, in a few words.
    pub fn why(self) -> &'static str {
        match self {
            Self::Root => "as root",
            Self::Unshare => "in a user namespace",
        }
    }
}

/// What this machine allows.
#[derive(Clone, Copy)]
struct Machine {
    root: bool,
    namespaces: bool,
    subordinate_ids: bool,
    newuidmap: bool,
}

/// The best way on this machine. The error says what is missing, and what to do.
pub fn choose() -> Result<Mode> {
    let uid = rustix::process::geteuid();
    let user = env::var("USER").unwrap_or_default();
    let of_user = |line: &str| line.split(':').next().is_some_and(|name| name == user || name == uid.to_string());
    let listed = |file| fs::read_to_string(file).is_ok_and(|text| text.lines().any(of_user));
    best(Machine {
        root: uid.is_root(),
        namespaces: runs(Command::new("unshare").args(["--user", "--map-root-user", "true"])),
        subordinate_ids: listed("/etc/subuid") && listed("/etc/subgid"),
        newuidmap: present("newuidmap") && present("newgidmap"),
    })
}

fn best(machine: Machine) -> Result<Mode> {
    let Machine { root, namespaces, subordinate_ids, newuidmap } = machine;
    if root {
        return Ok(Mode::Root);
    }
    let missing = match (namespaces, newuidmap, subordinate_ids) {
        (true, true, true) => return Ok(Mode::Unshare),
        (false, ..) => "this kernel does not let users make user namespaces (`unshare --user true` fails)",
        (true, false, _) => "newuidmap is not here: install the package uidmap",
        (true, true, false) => {
            "/etc/subuid and /etc/subgid have no range for you: add one with `usermod --add-subuids`"
        }
    };
    bail!("the image's packages cannot be configured here without root: {missing}. Or run `cargo mk disk` as root")
}

fn runs(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Whether a program is in PATH.
fn present(name: &str) -> bool {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|folder| Path::new(&folder).join(name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Machine = Machine { root: false, namespaces: true, subordinate_ids: true, newuidmap: true };

    #[test]
    fn root_needs_nothing_and_a_user_takes_a_namespace() {
        let none = Machine { root: true, namespaces: false, subordinate_ids: false, newuidmap: false };
        assert_eq!(best(none).unwrap(), Mode::Root);
        assert_eq!(best(ALL).unwrap(), Mode::Unshare);
    }

    #[test]
    fn each_thing_that_is_missing_is_named() {
        for (machine, word) in [
            (Machine { namespaces: false, ..ALL }, "unshare --user"),
            (Machine { newuidmap: false, ..ALL }, "package uidmap"),
            (Machine { subordinate_ids: false, ..ALL }, "/etc/subuid"),
        ] {
            let error = best(machine).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("as root"), "{error}");
        }
    }
}
