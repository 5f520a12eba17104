//! Where captured frames are written: a file, a named pipe, or a program such as Wireshark.

use std::fs::{File, OpenOptions};
use std::io;
use std::process::{Child, ChildStdin, Command, Stdio};

/// What a capture is written to.
pub enum Target {
    /// A file, or a named pipe.
    File(File),
    /// A program, and its standard input.
    Program(Child, ChildStdin),
}

impl Target {
    /// Opens it. `target`: a path, or `|` and a command of the system's shell.
    ///
    /// # Errors
    /// The file cannot be written, or there is no shell.
    pub fn open(target: &str) -> io::Result<Self> {
        let Some(command) = target.strip_prefix('|') else {
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(target)?;
            return Ok(Self::File(file));
        };
        let mut program = Command::new("/bin/sh");
        // The terminal is the views'.
        let program = program.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = program.spawn()?;
        let input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self::Program(child, input))
    }
}
