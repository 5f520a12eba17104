//! Programs that a scenario starts on this machine, and what they leave: processes, files, and the frames that tshark prints.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use control::Counters;

use crate::counts::net;
use crate::scenario::Context;

/// What [`LiveFrames`] prints of a captured frame: the port, the type of an ICMP message, and the fate.
const CAPTURED: [&str; 3] = ["frame.interface_name", "icmp.type", "frame.comment"];

/// Frames that the port of a guest has seen: sent, given to it, and dropped there.
pub fn frames_at(counters: &Counters, guest: &str) -> Result<u64> {
    let net = net(counters, guest)?;
    let dropped = net.drops.iter().filter(|(cause, _)| cause.starts_with("rx_")).map(|(_, n)| n).sum::<u64>();
    Ok(net.tx_packets + net.rx_packets + dropped)
}

/// Checks how many echo requests and replies of a guest's port are among these lines of [`LiveFrames`].
pub fn echoes(context: &mut Context<'_>, lines: &[String], [who, guest]: [&str; 2], least: u64) -> Result<()> {
    for kind in ["8", "0"] {
        let found = lines.iter().filter(|line| **line == format!("{guest} net0\t{kind}\tpassed")).count();
        context.figures.at_least(&format!("{who}: echo messages of type {kind} that tshark printed"), found, least)?;
    }
    Ok(())
}

/// A folder that is removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    /// An empty one of this process. `name`: no other has it.
    pub fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("sidecore-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that is killed at the end.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// tshark at the end of a pipe.
pub struct LiveFrames {
    tshark: Running,
    printed: Arc<AtomicU64>,
    reader: JoinHandle<Vec<String>>,
}

impl LiveFrames {
    /// Starts tshark, which prints a line with the fields of `CAPTURED` for each frame that comes by the pipe.
    pub fn of(context: &mut Context<'_>, pipe: impl Into<Stdio>) -> Result<Self> {
        let mut tshark = context.tshark(&CAPTURED)?;
        let mut tshark = Running(tshark.stdin(pipe).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?);
        let lines = BufReader::new(tshark.0.stdout.take().context("no output of tshark")?).lines();
        let printed = Arc::new(AtomicU64::new(0));
        let counting = printed.clone();
        let reader = thread::spawn(move || {
            let lines = lines.map_while(Result::ok).inspect(|_| _ = counting.fetch_add(1, Relaxed));
            lines.collect()
        });
        Ok(Self { tshark, printed, reader })
    }

    /// Waits until so many frames are printed. Returns how many there are then.
    pub fn wait_for(&self, least: u64, limit: Duration) -> Result<u64> {
        let deadline = Instant::now() + limit;
        loop {
            let printed = self.printed.load(Relaxed);
            if printed >= least {
                return Ok(printed);
            }
            ensure!(Instant::now() < deadline, "tshark prints {printed} frames of {least}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Whether tshark has ended.
    pub fn ended(&mut self) -> Result<bool> {
        Ok(self.tshark.0.try_wait()?.is_some())
    }

    /// All lines. Waits for the end of the pipe.
    pub fn lines(self) -> Result<Vec<String>> {
        self.reader.join().ok().context("the reader of tshark's lines panicked")
    }
}
