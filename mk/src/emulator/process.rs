//! An emulator's process, its files and its sockets.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use scenarios::machine::Machine;
use scenarios::setup::Setup;

/// Removes what an earlier run has left.
pub fn fresh(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// A wire between the emulator and a device: either end's socket.
pub type Wire = (SocketPath, PathBuf);

/// What both emulators are told.
pub struct Run<'a> {
    /// What runs in it.
    pub setup: &'a Setup,
    /// Where logs go.
    pub folder: &'a Path,
    /// What it boots.
    pub disc: &'a Path,
    /// Where its 82599s are served.
    pub nics: &'a [&'a Path],
    /// Wires whose one end is the emulator's.
    pub wires: &'a [Wire],
}

/// An emulator's process and its files.
pub struct Process {
    /// The process.
    pub child: Child,
    /// What COM1 says.
    pub com1: PathBuf,
    /// The emulator's record of guest entries and the text that marks one.
    pub record: Option<(PathBuf, &'static str)>,
    /// What others reach it by, for as long as it lives.
    pub sockets: Vec<SocketPath>,
}

impl Process {
    /// Starts it with its own messages in the file `emulator` of the folder.
    pub fn start(command: &mut Command, run: &Run<'_>, record: Option<(PathBuf, &'static str)>) -> Result<Self> {
        let words = File::create(run.folder.join("emulator"))?;
        command.stdin(Stdio::null()).stdout(words.try_clone()?).stderr(words);
        fs::write(run.folder.join("command"), format!("{command:?}\n"))?;
        let child = command.spawn().context("cannot start the emulator; `cargo mk fetch --again` brings it")?;
        Ok(Self { child, com1: run.folder.join("com1"), record, sockets: Vec::new() })
    }
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

    fn console(&self) -> Result<String> {
        match fs::read(&self.com1) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).replace('\r', "")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", self.com1.display())),
        }
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

/// A place for a socket that is short enough for one, removed when dropped.
pub struct SocketPath(pub PathBuf);

impl SocketPath {
    /// A path nobody else uses.
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
