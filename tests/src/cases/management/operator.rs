//! The operator's side of the management guest: logins by OpenSSH's client.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, Event};

use crate::launch::Judge;
use crate::programs::{Folder, Running};
use crate::scenario::{Context, seconds};
use crate::session::Session;
use crate::setup::{Content, Setup};

/// Time for one login with its command. The guests share two processors with the emulator.
pub const LOGIN: Duration = Duration::from_secs(60);
/// Time for one login whose command takes a file, or changes guests.
pub const FILE: Duration = Duration::from_secs(180);

/// The operator's side: keys, and ports of this machine's loopback.
pub struct Operator<'a, 'b> {
    pub context: &'a mut Context<'b>,
    pub folder: Folder,
    pub ssh: u16,
    pub metrics: u16,
    /// Connections that stay open, with the name of their key.
    shared: Vec<(String, Running)>,
}

pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl<'a, 'b> Operator<'a, 'b> {
    /// `metrics`: this machine's port for metrics, or 0.
    pub fn new(context: &'a mut Context<'b>, folder: Folder, metrics: u16) -> Result<Self> {
        Ok(Self { context, folder, ssh: free_port()?, metrics, shared: Vec::new() })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// Makes a key. Returns its public half.
    pub fn new_key(&mut self, name: &str) -> Result<String> {
        let path = self.path(name);
        let mut keygen = self.context.judge(Judge::SshKeygen)?;
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(&path);
        let output = keygen.output().context("cannot start ssh-keygen")?;
        ensure!(output.status.success(), "ssh-keygen: {}", String::from_utf8_lossy(&output.stderr));
        Ok(fs::read_to_string(path.with_extension("pub"))?)
    }

    /// Makes the management guest's host key, and has ssh know it. Returns its private half.
    pub fn new_host_key(&mut self) -> Result<String> {
        let public = self.new_key("host")?;
        fs::write(self.path("known_hosts"), format!("[127.0.0.1]:{} {public}", self.ssh))?;
        Ok(fs::read_to_string(self.path("host"))?)
    }

    /// Has ssh know the host key that the management guest has made for this boot: the key that it shows to the network, whose
    /// fingerprint is the one that COM1 says.
    pub fn learn_host_key(&mut self, session: &mut Session) -> Result<()> {
        let line = session.shown("guest management says: host-key SHA256:", 0, seconds(240))?;
        let (_, said) = line.split_once("host-key ").context("no fingerprint")?;
        let known = self.path("known_hosts");
        let deadline = Instant::now() + session.patient(LOGIN);
        // sshd starts after the broker has reported its key.
        while fs::read_to_string(&known).unwrap_or_default().is_empty() {
            ensure!(Instant::now() < deadline, "ssh-keyscan gets no key");
            let mut keyscan = self.context.judge(Judge::SshKeyscan)?;
            keyscan.args(["-t", "ed25519", "-p", &self.ssh.to_string(), "127.0.0.1"]);
            fs::write(&known, keyscan.output().context("cannot start ssh-keyscan")?.stdout)?;
        }
        let output = self.context.judge(Judge::SshKeygen)?.arg("-lf").arg(&known).output()?;
        let shown = String::from_utf8(output.stdout)?;
        let words: Vec<&str> = shown.split_whitespace().collect();
        ensure!(
            matches!(*words, [_, hash, _, kind] if said.trim_end() == format!("{hash} {kind}")),
            "COM1 says {said:?}, ssh-keygen says of the key that the network shows {shown:?}"
        );
        Ok(())
    }

    /// Makes the command for a login with a key, which gives a command.
    pub fn ssh(&mut self, key: &str, command: &str) -> Result<std::process::Command> {
        self.ssh_with(key, &[], command)
    }

    /// The same with these options of ssh.
    pub fn ssh_with(&mut self, key: &str, options: &[&str], command: &str) -> Result<std::process::Command> {
        let (key, known) = (self.path(key), self.path("known_hosts"));
        let mut ssh = self.context.judge(Judge::Ssh)?;
        ssh.args(["-F", "none", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes"]);
        ssh.args(["-o", "ConnectTimeout=20", "-o", "LogLevel=ERROR"])
            .arg("-o")
            .arg(format!("UserKnownHostsFile={}", known.display()));
        ssh.args(options).arg("-i").arg(key).args(["-p", &self.ssh.to_string(), "operator@127.0.0.1", command]);
        ssh.stderr(Stdio::piped());
        Ok(ssh)
    }

    /// Keeps a connection of this key open until [`unshare`](Self::unshare), by OpenSSH's `ControlMaster`. Each command that this key
    /// then gives is a session of that connection and needs no key exchange, which takes a second or more under an emulator.
    /// Captures and traces, whose reader may have to die, have connections of their own.
    pub fn share(&mut self, key: &str) -> Result<()> {
        let (socket, control) = (self.socket(key), self.control(key));
        let mut ssh = self.ssh_with(key, &["-M", "-N", "-o", &control], "")?;
        let mut master = Running(ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        let deadline = Instant::now() + LOGIN;
        while !socket.exists() {
            let ended = master.0.try_wait()?;
            ensure!(ended.is_none() && Instant::now() < deadline, "no shared connection of {key}: {ended:?}");
            thread::sleep(Duration::from_millis(20));
        }
        self.shared.push((key.to_owned(), master));
        Ok(())
    }

    /// Ends the connections that [`share`](Self::share) has opened.
    pub fn unshare(&mut self) {
        for (key, master) in std::mem::take(&mut self.shared) {
            drop(master);
            let _ = fs::remove_file(self.socket(&key));
        }
    }

    /// The socket of a key's shared connection. ssh takes a path of at most 90 characters.
    fn socket(&self, key: &str) -> PathBuf {
        self.path(&format!("{key}.ssh"))
    }

    /// The value of ssh's option `-o` that names this socket.
    fn control(&self, key: &str) -> String {
        format!("ControlPath={}", self.socket(key).display())
    }

    /// Logs in with a key, gives a command, and an input, which the command reads before it says much.
    pub fn begin_ssh(&mut self, key: &str, command: &str, input: &[u8]) -> Result<Login> {
        self.begin(key, &[], command, input)
    }

    /// The same by the key's shared connection, if there is one. Waits until the command ends.
    fn run(&mut self, key: &str, command: &str, input: &[u8], limit: Duration) -> Result<Output> {
        let control = self.control(key);
        let options: &[&str] = if self.shared.iter().any(|(name, _)| name == key) { &["-o", &control] } else { &[] };
        self.begin(key, options, command, input)?.end(limit)
    }

    /// The same as [`begin_ssh`](Self::begin_ssh) with these options of ssh.
    fn begin(&mut self, key: &str, options: &[&str], command: &str, input: &[u8]) -> Result<Login> {
        let mut ssh = self.ssh_with(key, options, command)?;
        let mut child = ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        child.stdin.take().context("no input")?.write_all(input)?;
        let mut out = child.stdout.take().context("no output")?;
        // It has to be read while the process runs: the counters are longer than a pipe.
        let reader = thread::spawn(move || {
            let mut bytes = Vec::new();
            out.read_to_end(&mut bytes).map(|_| bytes)
        });
        Ok(Login { command: command.to_owned(), running: Running(child), reader })
    }

    /// Logs in with a key and gives lines of JSON. Returns the answers.
    pub fn pipes(&mut self, key: &str, lines: &str) -> Result<String> {
        let output = self.run(key, "sidecore-agent pipe", lines.as_bytes(), LOGIN)?;
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The same, for a command that is carried out. Returns what it says.
    pub fn says(&mut self, key: &str, command: &str) -> Result<String> {
        self.says_of(key, command, b"")
    }

    /// The same, for a command that reads a file.
    pub fn says_of(&mut self, key: &str, command: &str, file: &[u8]) -> Result<String> {
        let output = self.run(key, command, file, FILE)?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{command}: {:?}: {errors}", output.status.code());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The same, for a command that fails with this exit code. Returns what it says on standard error.
    pub fn fails(&mut self, key: &str, command: &str, code: i32) -> Result<String> {
        self.fails_of(key, command, b"", code)
    }

    /// The same, for a command that reads a file.
    pub fn fails_of(&mut self, key: &str, command: &str, file: &[u8], code: i32) -> Result<String> {
        let output = self.run(key, command, file, FILE)?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(code), "{command}: {:?} and not {code}: {errors}", output.status.code());
        Ok(errors)
    }

    /// Waits until a login works.
    pub fn first_login(&mut self, limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit;
        loop {
            match self.says("alice", "version") {
                Ok(said) => return Ok(said),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(500)),
            }
        }
    }
}

/// A login whose command is carried out now.
pub struct Login {
    command: String,
    running: Running,
    reader: JoinHandle<io::Result<Vec<u8>>>,
}

impl Login {
    /// Waits until it ends.
    pub fn end(mut self, limit: Duration) -> Result<Output> {
        let deadline = Instant::now() + limit;
        let status = loop {
            match self.running.0.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    bail!("ssh {} does not end within {} s", self.command, limit.as_secs())
                }
                None => thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut stderr = Vec::new();
        self.running.0.stderr.take().context("no errors")?.read_to_end(&mut stderr)?;
        let stdout = self.reader.join().ok().context("the reader panicked")??;
        Ok(Output { status, stdout, stderr })
    }
}

/// The configuration that was booted.
pub fn written(setup: &Setup) -> Result<&str> {
    let written = setup.modules.iter().find_map(|module| match &module.content {
        Content::Text(text) => Some(text.as_str()),
        _ => None,
    });
    written.context("no configuration")
}

/// Types a line into the management guest's shell.
pub fn begin_in_guest(session: &mut Session, line: &str, mark: u32) -> Result<()> {
    // The echo of the line has the sum, and not its result.
    let text = format!("{line}; echo MARK-$(({mark}+1000))\n");
    session.ask(Command::Input { guest: "management".to_owned(), text }, seconds(20)).map(drop)
}

/// Whether an event says that the line of that mark is done.
fn has_mark(event: &Event, mark: u32) -> bool {
    let Event::Console { guest, line } = event else { return false };
    guest == "management" && line.contains(&format!("MARK-{}", mark + 1000))
}

/// Whether the management guest's shell has done the line of that mark.
pub fn ended_in_guest(session: &mut Session, mark: u32) -> bool {
    session.unread().iter().any(|event| has_mark(event, mark))
}

/// Types a line into the management guest's shell, and waits until it is done.
pub fn in_guest(session: &mut Session, line: &str, mark: u32, limit: Duration) -> Result<()> {
    begin_in_guest(session, line, mark)?;
    session.wait(line, limit, |event| has_mark(event, mark).then_some(()))
}
