use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::*;
use crate::tools::quietly;

const PROGRAM: &[u8] = b"\x7fELF and the rest of the program";
const DATE: u64 = 1_767_225_600;

/// Makes the Debian package in a folder of its own. Returns the folder and the file.
fn made(name: &str) -> (PathBuf, PathBuf) {
    let folder = std::env::temp_dir().join(format!("sidecore-agent-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("a.deb");
    fs::write(&file, package(Format::Deb, PROGRAM, DATE).unwrap()).unwrap();
    (folder, file)
}

/// What dpkg-deb says of the package.
fn dpkg_deb(name: &str, arguments: &[&str]) -> String {
    let (folder, file) = made(name);
    let (verb, rest) = arguments.split_first().unwrap();
    let said = quietly(Command::new("dpkg-deb").arg(verb).arg(&file).args(rest).env("TZ", "UTC"), "dpkg-deb");
    fs::remove_dir_all(folder).unwrap();
    said.unwrap()
}

#[test]
fn the_name_says_the_format() {
    assert_eq!(Format::of(Path::new("/x/a.deb")).unwrap(), Format::Deb);
    assert_eq!(Format::of(Path::new("a.tar.gz")).unwrap(), Format::Tar);
    assert!(Format::of(Path::new("a.rpm")).is_err_and(|why| why.to_string().contains("\"a.rpm\" says no format")));
}

#[test]
fn the_same_sources_give_the_same_bytes() {
    for format in [Format::Deb, Format::Tar] {
        assert_eq!(package(format, PROGRAM, DATE).unwrap(), package(format, PROGRAM, DATE).unwrap());
        assert_ne!(package(format, PROGRAM, DATE).unwrap(), package(format, b"another", DATE).unwrap());
    }
}

#[test]
fn dpkg_deb_reads_what_the_package_is() {
    let said = dpkg_deb("field", &["--field"]);
    for line in ["Package: sidecore-agent", "Architecture: amd64", &format!("Version: {VERSION}")] {
        assert!(said.lines().any(|found| found == line), "{said}");
    }
    assert!(!said.contains("KIB"), "{said}");
}

#[test]
fn dpkg_deb_finds_the_files_as_roots() {
    let said = dpkg_deb("contents", &["--contents"]);
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    let of = |path: &str| lines.iter().find(|fields| fields.last() == Some(&path)).map(|fields| fields[..4].join(" "));
    assert_eq!(of("./"), Some("drwxr-xr-x root/root 0 2026-01-01".to_owned()), "{said}");
    let program = format!("-rwxr-xr-x root/root {} 2026-01-01", PROGRAM.len());
    assert_eq!(of("./usr/bin/sidecore-agent"), Some(program), "{said}");
    assert!(of("./usr/libexec/sidecore-agent/authorized-keys").is_some_and(|it| it.starts_with("-rwxr-xr-x")));
    assert!(lines.iter().all(|fields| fields[1] == "root/root"), "{said}");
    // Each file that an administrator changes stays at an upgrade.
    let settings: Vec<&str> = lines
        .iter()
        .filter_map(|fields| fields.last()?.strip_prefix('.'))
        .filter(|path| path.starts_with("/etc/"))
        .collect();
    let settings: Vec<&str> = settings.into_iter().filter(|path| !path.ends_with('/')).collect();
    let kept = dpkg_deb("conffiles", &["--ctrl-tarfile"]);
    assert!(!settings.is_empty() && settings.iter().all(|path| kept.contains(path)), "{settings:?}: {kept}");
}

#[test]
fn the_shell_understands_each_script() {
    let files = tree::files(PROGRAM, VERSION).unwrap();
    let of_tree =
        files.iter().filter(|file| file.content.starts_with(b"#!/bin/sh")).map(|file| file.content.as_slice());
    let scripts = SCRIPTS.iter().filter(|(_, mode, _)| *mode == 0o755).map(|(_, _, text)| text.as_bytes());
    let mut count = 0;
    for script in of_tree.chain(scripts) {
        let mut shell = Command::new("sh").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
        shell.stdin.take().unwrap().write_all(script).unwrap();
        assert!(shell.wait().unwrap().success(), "{}", String::from_utf8_lossy(script));
        count += 1;
    }
    assert_eq!(count, 4);
}

#[test]
fn metrics_are_served_where_the_management_guest_serves_them() {
    let init = include_str!("../../../tools/agent/guest/init");
    let of_guest = init.lines().find_map(|line| line.split_once(" metrics=").map(|(_, address)| address)).unwrap();
    let of_guest = of_guest.split_whitespace().next().unwrap();
    let files = tree::files(PROGRAM, VERSION).unwrap();
    let unit = files.iter().find(|file| file.path.ends_with("sidecore-metrics.service")).unwrap();
    let unit = String::from_utf8_lossy(&unit.content);
    assert!(unit.lines().any(|line| line == format!("Environment=LISTEN={of_guest}")), "{of_guest}: {unit}");
}

#[test]
fn sshd_has_the_same_lines_for_operator() {
    let files = tree::files(PROGRAM, VERSION).unwrap();
    let settings = files.iter().find(|file| file.path.ends_with("sshd_config.d/sidecore.conf")).unwrap();
    let text = String::from_utf8_lossy(&settings.content);
    // All of it is about operator: the rest of the machine's sshd stays as it is.
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next(), Some("Match User operator"));
    assert!(lines.all(|line| line.starts_with("    ")), "{text}");
}
