//! `pipe`: JSON lines both ways, for a program at the other end of an ssh connection.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use control::Caller;

use crate::client::Failed;
use crate::lines::read_line;
use crate::words::refusal;

/// Passes lines of standard input to the broker, and lines of the broker to standard output, until either ends. A command that
/// the `caller` has no permission for is refused here.
///
/// # Errors
/// The broker is not there, or the connection broke.
pub fn pipe(socket: &Path, caller: &Caller) -> Result<(), Failed> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"{\"events\":true}\n")?;
    let (mut to, caller) = (stream.try_clone()?, caller.clone());
    thread::spawn(move || {
        let mut input = io::stdin().lock();
        while let Ok(Some(line)) = read_line(&mut input, control::MAX_LINE) {
            // The broker says that a line is too long, as it says what else is wrong with one.
            let line = line.unwrap_or_else(|| "x".repeat(control::MAX_LINE));
            let sent = match refusal(&line, &caller) {
                None => to.write_all(format!("{line}\n").as_bytes()),
                Some(refused) => print(refused.as_bytes()),
            };
            if sent.is_err() {
                break;
            }
        }
        // The answers that are due still come.
        let _ = to.shutdown(Shutdown::Write);
    });
    let mut bytes = [0; 8192];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            len => print(&bytes[..len])?,
        }
    }
}

/// Writes to standard output at once.
fn print(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
