//! An emulator's process, its files and its sockets.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use scenarios::machine::Machine;
use scenarios::setup::Setup;
use serde_json::{Value, json};

use super::monitor::Monitor;

/// Name of the disc that a machine boots after a reset, in the folder of its logs.
pub const NEXT_DISC: &str = "next.iso";

/// Removes the folder that an earlier run has left.
pub fn fresh(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// A wire between the emulator and a device: the sockets of its two ends.
pub type Wire = (SocketPath, PathBuf);

/// A run of an emulator, QEMU or Bochs.
pub struct Run<'a> {
    /// The emulated server.
    pub setup: &'a Setup,
    /// The folder of its logs.
    pub folder: &'a Path,
    /// The disc that it boots.
    pub disc: &'a Path,
    /// The sockets of its 82599s' servers.
    pub nics: &'a [&'a Path],
    /// Wires that have one end at the emulator.
    pub wires: &'a [Wire],
}

/// An emulator's process and its files.
pub struct Process {
    /// The process.
    pub child: Child,
    /// The file with the output on COM1.
    pub com1: PathBuf,
    /// The emulator's record of guest entries and the text that marks one.
    pub record: Option<(PathBuf, &'static str)>,
    /// Its sockets, which are removed when it ends.
    pub sockets: Vec<SocketPath>,
    /// QEMU's monitor.
    pub monitor: Option<Monitor>,
    /// What goes to COM1.
    pub typed: Option<Box<dyn Write + Send>>,
}

impl Process {
    /// Starts it. Its own messages go to the file `emulator` in the folder.
    pub fn start(command: &mut Command, run: &Run<'_>, record: Option<(PathBuf, &'static str)>) -> Result<Self> {
        let words = File::create(run.folder.join("emulator"))?;
        command.stdin(Stdio::null()).stdout(words.try_clone()?).stderr(words);
        fs::write(run.folder.join("command"), format!("{command:?}\n"))?;
        let child = command.spawn().context("cannot start the emulator; `cargo mk fetch --again` brings it")?;
        Ok(Self { child, com1: run.folder.join("com1"), record, sockets: Vec::new(), monitor: None, typed: None })
    }

    /// Takes over a connection to COM1: what it says goes to COM1's file, and what is typed goes to it.
    pub fn connect_com1(
        &mut self,
        mut said: impl Read + Send + 'static,
        typed: impl Write + Send + 'static,
    ) -> Result<()> {
        let mut file = File::create(&self.com1).with_context(|| format!("cannot write {}", self.com1.display()))?;
        thread::spawn(move || io::copy(&mut said, &mut file));
        self.typed = Some(Box::new(typed));
        Ok(())
    }
}

/// The text of COM1 in this file, without carriage returns. None was written yet if there is no file.
pub fn console(com1: &Path) -> Result<String> {
    match fs::read(com1) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).replace('\r', "")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", com1.display())),
    }
}

/// The contents of a file in the folder of logs that COM1's file is in.
pub fn log(com1: &Path, name: &str) -> Result<Vec<u8>> {
    let path = com1.with_file_name(name);
    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

impl Machine for Process {
    fn ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn file(&self, name: &str) -> Result<Vec<u8>> {
        log(&self.com1, name)
    }

    fn type_in(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.typed.as_mut().context("nobody types on COM1 of this machine")?.write_all(bytes)?)
    }

    fn monitor(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        self.monitor.as_mut().context("this emulator has no monitor")?.ask(command, arguments)
    }

    fn reset_into_linux(&mut self) -> Result<()> {
        let disc = self.com1.with_file_name(NEXT_DISC);
        let medium = json!({ "device": "ide2-cd0", "filename": disc, "format": "raw" });
        self.monitor("blockdev-change-medium", &medium)?;
        self.monitor("system_reset", &json!({}))?;
        // A machine that has switched itself off, or that stands still, goes on.
        self.monitor("cont", &json!({})).map(drop)
    }

    fn console(&self) -> Result<String> {
        console(&self.com1)
    }

    fn recorded_entries(&self) -> Result<Option<u64>> {
        let Some((path, mark)) = &self.record else { return Ok(None) };
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines = text.split(|byte| *byte == b'\n');
        let mark = mark.as_bytes();
        Ok(Some(lines.filter(|line| line.windows(mark.len()).any(|part| part == mark)).count() as u64))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A path that is short enough for a socket. Dropping it removes the socket.
pub struct SocketPath(pub PathBuf);

impl SocketPath {
    /// A path that nobody else uses.
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(env::temp_dir().join(format!("sidecore-{}-{number}-{name}", id())))
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // Nothing is lost if it stays.
        let _ = fs::remove_file(&self.0);
    }
}
