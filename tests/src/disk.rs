//! A machine that boots a disk image, and the conversation on its serial console. It runs no sidecore.

use std::io::{Read, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::machine::Machine;

/// Root's password on the image.
const PASSWORD: &str = "root";

/// The parts of a running machine, which `mk` has started.
pub struct Parts {
    /// The emulator.
    pub machine: Box<dyn Machine>,
    /// What the machine writes to its console.
    pub output: Box<dyn Read + Send>,
    /// What the machine reads from its console.
    pub input: Box<dyn Write + Send>,
    /// Lets foreign tools check the disk after the machine has ended: its partition table and its file systems.
    pub judge: Box<dyn FnOnce() -> Result<()>>,
}

/// A running machine. Dropping it ends the emulator.
pub struct Disk {
    machine: Box<dyn Machine>,
    input: Box<dyn Write + Send>,
    judge: Option<Box<dyn FnOnce() -> Result<()>>>,
    output: Receiver<Vec<u8>>,
    /// Output that nobody has waited for yet.
    unread: String,
    commands: u32,
}

impl Disk {
    /// Takes over a machine.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let Parts { machine, mut output, input, judge } = parts;
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { machine, input, judge: Some(judge), output: receiver, unread: String::new(), commands: 0 }
    }

    /// Waits for the login prompt, logs in as root and starts a plain shell.
    pub fn login(&mut self, limit: Duration) -> Result<()> {
        self.wait("login: ", limit)?;
        self.send("root")?;
        self.wait("Password: ", limit)?;
        self.send(PASSWORD)?;
        self.wait("# ", limit)?;
        // A shell without line editing writes nothing of its own between the output of commands but the prompt. Its
        // first prompt is waited for, because input is lost while one shell replaces the other.
        self.send("exec env PS1=$(printf '%s-%s' shell ready) sh")?;
        self.wait("shell-ready", limit)?;
        let (output, status) = self.run("stty -echo; PS1=; echo $((6 * 7))", limit)?;
        ensure!(output.trim() == "42" && status == 0, "the shell does not work: {output:?}");
        Ok(())
    }

    /// Runs a command. Returns its output and its exit code.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<(String, u64)> {
        self.commands += 1;
        let number = self.commands;
        // The marks are put together by the machine, so that an echo of the command is not taken for them.
        self.send(&format!("printf '%s-%d:' BEGIN {number}; {command}; printf '%s-%d:%d;' END {number} $?"))?;
        self.wait(&format!("BEGIN-{number}:"), limit)?;
        let output = self.wait(&format!("END-{number}:"), limit)?;
        let status = self.wait(";", limit)?;
        Ok((output, status.parse().with_context(|| format!("{status:?} is no exit code"))?))
    }

    /// Runs a command that writes a number. Returns the number.
    pub fn number(&mut self, command: &str, limit: Duration) -> Result<u64> {
        let (output, _) = self.run(command, limit)?;
        output.trim().parse().with_context(|| format!("{command} says {output:?}, which is no number"))
    }

    /// Powers the machine off, waits until it has ended, and lets foreign tools check its disk.
    pub fn power_off(mut self, limit: Duration) -> Result<()> {
        self.send("systemctl poweroff")?;
        let deadline = Instant::now() + limit;
        while !self.machine.ended()? {
            if Instant::now() > deadline {
                bail!("the machine is not off after {} s\n{}", limit.as_secs(), self.last_words());
            }
            thread::sleep(Duration::from_millis(100));
        }
        let judge = self.judge.take().context("the disk was checked already")?;
        judge()
    }

    fn send(&mut self, line: &str) -> Result<()> {
        self.input.write_all(format!("{line}\r").as_bytes()).context("cannot write to the console")
    }

    /// Waits for a text. Returns what came before it.
    fn wait(&mut self, text: &str, limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(at) = self.unread.find(text) {
                let rest = self.unread.split_off(at + text.len());
                let mut before = std::mem::replace(&mut self.unread, rest);
                before.truncate(at);
                return Ok(before.replace('\r', ""));
            }
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.unread += &String::from_utf8_lossy(&bytes),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("waited {} s for {text:?} on the console\n{}", limit.as_secs(), self.last_words())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the emulator ended while waiting for {text:?}\n{}", self.last_words())
                }
            }
        }
    }

    fn last_words(&self) -> String {
        let console = self.machine.console().unwrap_or_default();
        let lines: Vec<&str> = console.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.machine.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    struct Off;

    impl Machine for Off {
        fn ended(&mut self) -> Result<bool> {
            Ok(true)
        }
        fn kill(&mut self) {}
        fn console(&self) -> Result<String> {
            Ok("last words".to_owned())
        }
        fn recorded_entries(&self) -> Result<Option<u64>> {
            Ok(None)
        }
    }

    fn machine(says: &[u8]) -> (Disk, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(says).unwrap();
        let (output, input) = (Box::new(ours.try_clone().unwrap()), Box::new(ours));
        (Disk::new(Parts { machine: Box::new(Off), output, input, judge: Box::new(|| bail!("damaged")) }), theirs)
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn an_echo_is_not_taken_for_the_output() {
        let echo = "printf '%s-%d:' BEGIN 1; false; printf '%s-%d:%d;' END 1 $?\r\n";
        let (mut disk, _theirs) = machine(format!("{echo}BEGIN-1:a\r\nb\r\nEND-1:1;").as_bytes());
        assert_eq!(disk.run("false", LIMIT).unwrap(), ("a\nb\n".to_owned(), 1));
    }

    #[test]
    fn a_machine_that_ends_early_is_an_error_with_its_last_words() {
        let (mut disk, theirs) = machine(b"login");
        drop(theirs);
        assert!(disk.login(LIMIT).unwrap_err().to_string().contains("last words"));
    }

    #[test]
    fn a_damaged_disk_fails_the_end() {
        let (disk, _theirs) = machine(b"");
        assert_eq!(disk.power_off(LIMIT).unwrap_err().to_string(), "damaged");
    }
}
