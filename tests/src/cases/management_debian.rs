//! Another Linux in the management guest's place: Debian from a disk, with the package of `sidecore-agent` installed as an
//! administrator does it.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, Event, GuestState};

use super::firmware_disk::log_in;
use super::management::operator::{Operator, free_port};
use super::management::{METRICS_PORT, get};
use crate::boot::{Boot, alone};
use crate::guests::{DEBIAN, Guest, module_name, server, with_entries, with_last_entries};
use crate::platform::QEMU;
use crate::programs::Folder;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;
use crate::setup::{Content, Image, Module, Setup, Uplink};

/// The address that the network's DHCP server gives to its first client. The other guest asks for none.
const ADDRESS: &str = "10.0.0.200";
/// MiB of its memory, and its vCPUs.
const MEMORY_MIB: u32 = 768;
const VCPUS: u32 = 2;
/// Time for Debian to boot, with its firmware.
const BOOT: u64 = 1800;
/// Time for a command on its console: programs of an emulated machine start slowly.
const COMMAND: u64 = 300;

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "Debian from a disk as the management guest: `apt install ./sidecore-agent.deb`, its units under systemd, login by OpenSSH, \
                 metrics, a key without permission, the agent killed; all again after a reboot of the guest; then the package is purged";
    vec![alone(Scenario::new("management-debian", about, QEMU).taking_turns(), debian)]
}

fn setup(ssh: u16, metrics: u16) -> Setup {
    let mut setup = with_entries(
        server("management-debian", &[Guest::new(1).then("obey")]),
        &format!(
            "[management]\nguest = \"{DEBIAN}\"\nallow = [\"view\", \"operate\"]\n\n[[port]]\ndevice = \"first\"\n\n"
        ),
    );
    let contents = [Content::CloudHv, Content::AgentPackage];
    let [firmware, package] = contents.each_ref().map(module_name);
    setup = with_last_entries(
        setup,
        &format!(
            "[[guest]]\nname = \"{DEBIAN}\"\nvcpus = {VCPUS}\nmemory = \"{MEMORY_MIB}M\"\nfirmware = \"{firmware}\"\nrequests = \"adaptive\"\n\n\
             [[guest.block]]\ndisk = \"nvme0\"\n\n[[guest.block]]\ndisk = \"ram\"\nmodule = \"{package}\"\nreadonly = true\n\
             serial = \"agent\"\n\n[[guest.net]]\nmac = \"52:54:00:00:00:09\"\n\n[[guest.entropy]]\n"
        ),
    );
    setup.modules.extend(contents.map(|content| Module::new(module_name(&content), content)));
    setup.image = Some(Image::DebianSsh);
    setup.cpus += VCPUS;
    // 32 MiB are for the disk driver's buffers, 24 for the two modules.
    setup.memory_mib += MEMORY_MIB + 32 + 24;
    setup.uplink = Uplink::Virtio;
    setup.forwards = vec![(ssh, ADDRESS.to_owned(), 22), (metrics, ADDRESS.to_owned(), METRICS_PORT)];
    setup
}

fn debian(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let folder = Folder::new("management-debian")?;
    let mut operator = Operator::new(context, folder, free_port()?)?;
    let (alice, viewer) = (operator.new_key("alice")?, operator.new_key("viewer")?);
    operator.new_key("stranger")?;
    let mut session = operator.context.boot(&setup(operator.ssh, operator.metrics))?;
    log_in(&mut session)?;

    let (said, code) =
        does(&mut session, "tar -xf /dev/disk/by-id/virtio-agent && apt-get -qq install ./sidecore-agent.deb", 1)?;
    ensure!(code == 0, "the package is not installed: {said:?}");
    // A line of the list that is wrong gives no key, and the others count.
    for (mark, line) in (2..).zip([alice.trim(), &format!("view {}", viewer.trim()), "nonsense"]) {
        let (_, code) = does(&mut session, &format!("echo '{line}' >>/etc/sidecore/keys"), mark)?;
        ensure!(code == 0, "{line}");
    }
    let (said, _) = does(&mut session, "cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub", 10)?;
    let host = said.iter().find(|line| line.starts_with("ssh-ed25519 ")).context("no host key")?;
    fs::write(operator.path("known_hosts"), format!("[127.0.0.1]:{} {host}\n", operator.ssh))?;

    units_run(&mut session, 20)?;
    let (said, code) = does(
        &mut session,
        "systemd-analyze verify sidecore-agent.service sidecore-metrics.service sidecore-syslog.service",
        30,
    )?;
    ensure!(code == 0 && said.is_empty(), "systemd-analyze: {said:?}");
    manage(&mut operator, &mut session)?;
    // It starts again, and its clients find it.
    let (_, code) = does(&mut session, "systemctl kill -s KILL sidecore-agent; sleep 5", 31)?;
    ensure!(code == 0, "systemctl kill");
    ensure!(operator.says("alice", "list")?.contains("running"));
    let (said, _) = does(&mut session, "journalctl -qo cat -t sidecore-agent -p warning | sort -u", 32)?;
    ensure!(said.iter().any(|line| line.contains("line ")), "the journal says nothing of the wrong line: {said:?}");

    let (said, _) = does(&mut session, "journalctl -qo cat -t sidecore", 33)?;
    ensure!(said.iter().any(|line| line.contains("stop a")), "the journal has no record of the audit: {said:?}");

    // The units come by themselves when the guest boots.
    session.forget();
    session.tell(DEBIAN, "systemctl reboot")?;
    session.state(DEBIAN, GuestState::Stopped, seconds(COMMAND))?;
    ensure!(operator.first_login(seconds(BOOT))?.starts_with("sidecore "));
    ensure!(get(operator.metrics, "/healthz")?.0.starts_with("HTTP/1.1 200 "));
    log_in(&mut session)?;
    units_run(&mut session, 40)?;

    let (said, code) =
        does(&mut session, "apt-get -qq purge sidecore-agent && ! systemctl is-active sidecore-agent", 50)?;
    ensure!(code == 0, "the package is not removed: {said:?}");
    operator.fails("alice", "list", 255)?;
    let (said, _) = does(&mut session, "ls -d /usr/lib/systemd/system/sidecore* /etc/sidecore* /run/sidecore*", 51)?;
    operator.context.figures.exactly(
        "files of it that are left",
        said.iter().filter(|line| line.starts_with('/')).count(),
        0,
    )?;
    session.shut_down().map(drop)
}

/// The services of the package, and sshd, are active.
fn units_run(session: &mut Session, mark: u32) -> Result<()> {
    let (said, code) = does(session, "systemctl is-active sidecore-agent sidecore-metrics sidecore-syslog ssh", mark)?;
    ensure!(code == 0 && said == ["active"; 4], "{code}: {said:?}");
    let (said, _) = does(session, "stat -Lc '%a %U %G' /dev/virtio-ports/org.sidecore.* /run/sidecore", mark + 1)?;
    let wanted = ["600 sidecore-agent sidecore", "640 sidecore-agent sidecore", "750 sidecore-agent sidecore"];
    ensure!(said == wanted, "the ports and the broker's folder: {said:?}");
    Ok(())
}

/// What an operator does from elsewhere.
fn manage(operator: &mut Operator<'_, '_>, session: &mut Session) -> Result<()> {
    let version = operator.first_login(seconds(120))?;
    ensure!(version.starts_with("sidecore "), "{version}");
    let list = operator.says("alice", "list")?;
    for guest in ["a", DEBIAN] {
        ensure!(list.lines().any(|line| line.starts_with(guest) && line.contains("running")), "{list}");
    }
    let json = operator.says("alice", "counters --json")?;
    let counters = match Event::from_line(&json) {
        Ok(Event::Counters(counters)) => counters,
        _ => bail!("no counters: {json}"),
    };
    operator.context.figures.exactly("guests in the counters", counters.guests.len(), 2)?;
    ensure!(operator.fails("viewer", "stop a", 4)?.contains("needs the permission `operate`"));
    operator.fails("stranger", "list", 255)?;
    // The forced command is the only program.
    operator.fails("alice", "id", 2)?;
    operator.says("alice", "stop a")?;
    session.state("a", GuestState::Stopped, seconds(120))?;
    operator.says("alice", "start a")?;
    session.result("a", "obey", seconds(240))?;
    let audit = session.audit()?;
    let stop = audit.iter().any(|record| record.who == "alice" && record.command.trim_end() == "stop a");
    ensure!(stop, "the audit does not know who stopped a: {audit:?}");

    let (head, body) = get(operator.metrics, "/metrics")?;
    ensure!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    let running =
        body.lines().filter(|line| line.starts_with("sidecore_guest_running{") && line.ends_with(" 1")).count();
    operator.context.figures.exactly("guests that run, in the metrics", running, 2)
}

/// Types a command for the shell on the console. Returns the lines that it says, and its exit code. `mark`: no other command has it.
fn does(session: &mut Session, command: &str, mark: u32) -> Result<(Vec<String>, i32)> {
    // What is echoed of the line has the sums, and not their results.
    let text = format!("echo BEGIN-$(({mark}+1000)); {command}; echo END-$(({mark}+1000))=$?=\n");
    session.ask(Command::Input { guest: DEBIAN.to_owned(), text }, seconds(20))?;
    let (begin, end) = (format!("BEGIN-{}", mark + 1000), format!("END-{}=", mark + 1000));
    let (mut said, mut begun) = (Vec::new(), false);
    loop {
        let next = session.wait(command, seconds(COMMAND), |event| match event {
            Event::Console { guest, line } if guest == DEBIAN => Some(line.clone()),
            _ => None,
        })?;
        let next = next.trim_end();
        if let Some(code) = next.split_once(&end).and_then(|(_, rest)| rest.split_once('=')) {
            return Ok((said, code.0.parse()?));
        }
        // The kernel's messages come in between.
        if begun && !next.is_empty() && !next.starts_with('[') {
            said.push(next.to_owned());
        }
        begun |= next.contains(&begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::management::operator::written;

    #[test]
    fn the_configuration_is_understood() {
        let setup = setup(1, 2);
        let parsed = config::parse("f", written(&setup).unwrap());
        assert_eq!(parsed.mistakes, []);
        assert_eq!(parsed.config.guests.len(), 2);
    }
}
