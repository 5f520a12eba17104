//! `pipe`: JSON lines both ways, for a program at the other end of an ssh connection.

use std::io::{self, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;

use control::{Event, Notice};

use crate::client::{Broker, Failed};
use crate::key::Key;
use crate::lines::{MAX_EVENT, read_line};
use crate::words::{NotPassed, passed};

/// Passes commands of standard input to the broker, and lines of the broker to standard output, until either ends. What the key is
/// not for is refused here, and reported.
///
/// # Errors
/// The broker is not there, or the connection broke.
pub fn pipe(broker: &Broker, key: &Key) -> Result<(), Failed> {
    let mut stream = UnixStream::connect(&broker.socket)?;
    stream.write_all(broker.introduction(true).as_bytes())?;
    let (mut to, from, own) = (stream.try_clone()?, broker.clone(), key.clone());
    thread::spawn(move || {
        let mut input = io::stdin().lock();
        while let Ok(Some(line)) = read_line(&mut input, control::MAX_LINE) {
            // The broker says that a line is too long.
            let line = line.map_or_else(|| Ok("x".repeat(control::MAX_LINE) + "\n"), |line| passed(&line, &own));
            let sent = match line {
                Ok(line) => to.write_all(line.as_bytes()),
                Err(NotPassed { answer, refused }) => {
                    if let Some((line, why)) = refused {
                        from.report(Notice::Refused, &line, &why);
                    }
                    print(answer.as_bytes())
                }
            };
            if sent.is_err() {
                break;
            }
        }
        // The answers that are due still come.
        let _ = to.shutdown(Shutdown::Write);
    });
    if key.sees_all() { pass_all(stream) } else { pass_seen(stream, key) }
}

fn pass_all(mut stream: UnixStream) -> Result<(), Failed> {
    let mut bytes = [0; 8192];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            len => print(&bytes[..len])?,
        }
    }
}

/// Passes what the owner of the key may see. A line that is no event does not pass.
fn pass_seen(stream: UnixStream, key: &Key) -> Result<(), Failed> {
    let mut stream = BufReader::new(stream);
    while let Some(line) = read_line(&mut stream, MAX_EVENT)? {
        let seen = line.and_then(|line| Event::from_line(&line).ok()).and_then(|event| key.sees(event));
        if let Some(line) = seen.and_then(|event| event.to_line().ok()) {
            print(line.as_bytes())?;
        }
    }
    Ok(())
}

/// Writes to standard output at once.
fn print(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
