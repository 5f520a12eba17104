//! Runs the guests' side, `switch-bench`, on one processor.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::peers::HugePages;
use crate::tools;

/// The length of the contest.
pub struct Plan {
    /// Rounds of each measurement.
    pub rounds: usize,
    /// Length of a round in milliseconds.
    pub milliseconds: u64,
    /// Lone frames in a round.
    pub frames: usize,
}

/// The paths, processors and pages of a contest.
pub struct Contest {
    /// Sockets and logs of this run.
    pub folder: PathBuf,
    /// The program `sidecore-vhost`.
    pub vhost: PathBuf,
    /// The program `switch-bench`.
    pub bench: PathBuf,
    /// The guests' processor and the switch's.
    pub cores: [usize; 2],
    /// Huge pages, if they could be reserved.
    pub huge: Option<HugePages>,
    /// The length of the contest.
    pub plan: &'static Plan,
}

impl Drop for Contest {
    fn drop(&mut self) {
        // Sockets and logs of this run; nothing is lost if they stay.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Contest {
    /// Runs the guests' side.
    pub fn drive(&self, arguments: &[String]) -> Result<Value> {
        let mut command = tools::dying_with_us(&self.bench);
        command.args(arguments).args(["--rounds", &self.plan.rounds.to_string()]);
        command.args(["--core", &self.cores[0].to_string(), "--switch-core", &self.cores[1].to_string()]);
        if self.huge.is_some() {
            command.arg("--huge");
        }
        let said = said(&mut command)?;
        serde_json::from_str(&said).with_context(|| format!("switch-bench said {said:?}"))
    }
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        bail!("{} has failed; its words are above", Path::new(command.get_program()).display());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
