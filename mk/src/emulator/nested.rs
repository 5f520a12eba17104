//! Nested KVM on any machine: QEMU with KVM, in a Linux that QEMU's translator runs.
//!
//! The Linux stays from run to run ([`first_level`]). What QEMU says in it, and what its kernel's log has of the run, are in the files
//! `emulator` and `kernel-log` in the folder of the run's logs. If KVM complains in that log, the run has not ended in order. If a
//! machine has to be killed, the file `first-level` has whether it still answered on COM1, and the console and the processors'
//! registers of the Linux. If the Linux does not answer any more, the next run gets a new one.

mod first_level;
mod kernel_log;
mod marked;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use scenarios::machine::Machine;
use scenarios::setup::{Medium, Setup, Uarts, Uplink};

use super::process::{self, Run};
use super::qemu;
use first_level::{Ended, FirstLevel};
use marked::{Marked, mark};

use crate::ui;

/// Time for a killed QEMU to end. It only ends a hang.
const KILLED: Duration = Duration::from_secs(60);
/// Time for an answer on COM1 before that.
const ANSWER: Duration = Duration::from_secs(10);

/// Ends the first-level Linux, if one is there.
pub fn end() {
    FirstLevel::end_idle();
}

/// A running machine, and both directions of its COM2.
type Started = (Nested, Box<dyn Read + Send>, Box<dyn Write + Send>);

/// Starts QEMU in the first-level Linux. Returns both directions of COM2.
pub fn start(run: &Run<'_>) -> Result<Started> {
    if let Some(what) = lacking(run.setup) {
        bail!("a machine in nested KVM has no {what}");
    }
    let mut command = Command::new("qemu");
    qemu::machine(&mut command, run.setup, "kvm", "host");
    let arguments: Vec<String> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    fs::write(run.folder.join("command"), format!("{}\n", arguments.join(" ")))?;

    let mut first = FirstLevel::take()?;
    let (number, [com1, com2]) = first.run(run.disc, &arguments)?;
    let typed = com1.try_clone()?;
    let console = run.folder.join("com1");
    let mut file = File::create(&console).with_context(|| format!("cannot write {}", console.display()))?;
    let mut output = Marked::new(com1, &mark(number, "ends"));
    thread::spawn(move || std::io::copy(&mut output, &mut file));
    let input = com2.try_clone()?;
    let folder = run.folder.to_owned();
    let machine = Nested { first: Some(first), number, folder, typed, said: Vec::new() };
    Ok((machine, Box::new(Marked::new(com2, &mark(number, "ends"))), Box::new(input)))
}

/// Something in a setup that machines there do not have.
fn lacking(setup: &Setup) -> Option<&'static str> {
    let disks =
        !setup.nvme.is_empty() || !setup.virtio_disks.is_empty() || setup.image.is_some() || setup.in_slot.is_some();
    let reports = setup.record_exits || setup.logs_instructions || setup.traces_admin || setup.post_codes;
    let ports = setup.acpi_table.is_some() || setup.uarts != Uarts::Two || setup.no_screen;
    [
        (setup.medium != Medium::Disc, "medium but a CD"),
        (setup.uplink != Uplink::None, "uplink"),
        (setup.iommu.is_some(), "IOMMU"),
        (disks, "disk"),
        (setup.idle_usb, "USB"),
        (setup.graphics.is_some(), "graphics mode"),
        (setup.after_reset.is_some() || setup.reboots, "second start"),
        (setup.store, "firmware's store"),
        (reports, "records by the emulator"),
        (ports, "serial ports but the usual ones"),
        (setup.memory_mib > FirstLevel::room(), "room for that much memory"),
    ]
    .into_iter()
    .find_map(|(wanted, what)| wanted.then_some(what))
}

/// A machine in the first-level Linux.
pub struct Nested {
    /// `None`: the run has ended.
    first: Option<FirstLevel>,
    number: u32,
    folder: PathBuf,
    /// What goes to COM1.
    typed: UnixStream,
    /// What QEMU has said.
    said: Vec<String>,
}

impl Nested {
    /// Types a line end on COM1. Returns whether something comes back. Then the control core works, and a COM2 that says nothing has a
    /// fault of its own.
    fn answers(&mut self) -> bool {
        let console = self.folder.join("com1");
        let length = || fs::metadata(&console).map_or(0, |file| file.len());
        let before = length();
        if self.typed.write_all(b"\r").is_err() {
            return false;
        }
        let until = Instant::now() + ANSWER;
        while length() == before && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
        }
        length() != before
    }

    /// Writes down what is left of a run that has ended, and gives the Linux back. Error: KVM has complained.
    fn finish(&mut self, ended: &Ended) -> Result<()> {
        if let Some(first) = self.first.take() {
            first.give_back();
        }
        let lines = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        fs::write(self.folder.join("emulator"), lines(&ended.said))?;
        fs::write(self.folder.join("kernel-log"), lines(&ended.log))?;
        let log: Vec<&str> = ended.log.iter().map(String::as_str).collect();
        let complaints = kernel_log::complaints(&log);
        if !complaints.is_empty() {
            bail!("the kernel with KVM complains:\n  {}", complaints.join("\n  "));
        }
        Ok(())
    }
}

impl Machine for Nested {
    fn ended(&mut self) -> Result<bool> {
        let Some(first) = &mut self.first else { return Ok(true) };
        match first.ended(self.number, &mut self.said, Duration::ZERO) {
            Ok(Some(ended)) => self.finish(&ended).map(|()| true),
            Ok(None) => Ok(false),
            Err(error) => {
                // The next run gets another one.
                let state = self.first.take().map(|mut first| first.state());
                fs::write(self.folder.join("first-level"), state.unwrap_or_default())?;
                Err(error)
            }
        }
    }

    fn kill(&mut self) {
        let Some(mut first) = self.first.take() else { return };
        let answers = if self.answers() { "answers" } else { "does not answer" };
        let state = format!("the machine {answers} on COM1\n{}", first.state());
        // A file that cannot be written is only missed by who wants to know why.
        let _ = fs::write(self.folder.join("first-level"), state);
        let ended = first.kill().and_then(|()| first.ended(self.number, &mut self.said, KILLED));
        let Ok(Some(ended)) = ended else { return };
        self.first = Some(first);
        if let Err(error) = self.finish(&ended) {
            ui::error(&format!("{error:#}"));
        }
    }

    fn console(&self) -> Result<String> {
        process::console(&self.folder.join("com1"))
    }

    fn file(&self, name: &str) -> Result<Vec<u8>> {
        process::log(&self.folder.join("com1"), name)
    }

    fn type_in(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.typed.write_all(bytes)?)
    }

    fn recorded_entries(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scenarios::setup::Nvme;

    #[test]
    fn what_machines_there_do_not_have_is_refused_by_name() {
        let usual = Setup::new("x", 4, 700);
        assert_eq!(lacking(&usual), None);
        let disk = Setup { nvme: vec![Nvme { serial: "S", mib: 8, block_bytes: 512 }], ..usual.clone() };
        assert_eq!(lacking(&disk), Some("disk"));
        assert_eq!(lacking(&Setup { memory_mib: FirstLevel::room() + 1, ..usual }), Some("room for that much memory"));
    }
}
