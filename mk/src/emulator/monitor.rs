//! QEMU's monitor: commands and answers as JSON, one a line (QMP).

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

/// Time for an answer. It only ends a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// A connection to the monitor.
pub struct Monitor {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Monitor {
    /// Takes over a connection. QEMU takes no commands before `qmp_capabilities`.
    pub fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(LIMIT))?;
        let mut monitor = Self { lines: BufReader::new(stream.try_clone()?), stream };
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Sends a command and returns its answer. Events that come first are dropped.
    pub fn ask(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream, "{line}").with_context(|| format!("cannot send {command} to QEMU's monitor"))?;
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).with_context(|| format!("no answer to {command}"))?;
            if read == 0 {
                bail!("QEMU ended instead of answering {command}");
            }
            let answer: Value = serde_json::from_str(&line).with_context(|| format!("QEMU's monitor says {line:?}"))?;
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
            if let Some(error) = answer.get("error") {
                bail!("QEMU refuses {command} {arguments}: {error}");
            }
        }
    }
}
