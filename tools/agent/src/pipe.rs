//! `pipe`: JSON lines both ways, for a program at the other end of an ssh connection.

use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use control::{Event, Notice};

use crate::client::{Broker, Failed};
use crate::key::Key;
use crate::lines::{MAX_EVENT, read_line};
use crate::words::{NotPassed, passed};

/// Passes commands of the input to the broker, and lines of the broker that the key may see to the output, until either ends. What the key
/// is not for is refused here, and reported.
///
/// # Errors
/// The broker is not there, or the connection broke.
pub fn pipe(
    broker: &Broker,
    key: &Key,
    mut input: impl BufRead + Send + 'static,
    out: impl Write + Send + 'static,
) -> Result<(), Failed> {
    let out = Out(Arc::new(Mutex::new(out)));
    let mut stream = UnixStream::connect(&broker.socket)?;
    stream.write_all(broker.introduction(true).as_bytes())?;
    let (mut to, from, own, refusals) = (stream.try_clone()?, broker.clone(), key.clone(), out.clone());
    thread::spawn(move || {
        while let Ok(Some(line)) = read_line(&mut input, control::MAX_LINE) {
            // The broker says that a line is too long.
            let line = line.map_or_else(|| Ok("x".repeat(control::MAX_LINE) + "\n"), |line| passed(&line, &own));
            let sent = match line {
                Ok(line) => to.write_all(line.as_bytes()),
                Err(NotPassed { answer, refused }) => {
                    if let Some((line, why)) = refused {
                        from.report(Notice::Refused, &line, &why);
                    }
                    refusals.print(answer.as_bytes())
                }
            };
            if sent.is_err() {
                break;
            }
        }
        // The answers that are due still come.
        let _ = to.shutdown(Shutdown::Write);
    });
    if key.sees_all() { pass_all(stream, &out) } else { pass_seen(stream, key, &out) }
}

fn pass_all(mut stream: UnixStream, out: &Out<impl Write>) -> Result<(), Failed> {
    let mut bytes = [0; 8192];
    loop {
        match stream.read(&mut bytes)? {
            0 => return Ok(()),
            len => out.print(&bytes[..len])?,
        }
    }
}

/// Passes what the owner of the key may see. A line that is no event does not pass.
fn pass_seen(stream: UnixStream, key: &Key, out: &Out<impl Write>) -> Result<(), Failed> {
    let mut stream = BufReader::new(stream);
    while let Some(line) = read_line(&mut stream, MAX_EVENT)? {
        let seen = line.and_then(|line| Event::from_line(&line).ok()).and_then(|event| key.sees(event));
        if let Some(line) = seen.and_then(|event| event.to_line().ok()) {
            out.print(line.as_bytes())?;
        }
    }
    Ok(())
}

/// The output. Answers of two threads come there.
struct Out<W>(Arc<Mutex<W>>);

impl<W> Clone for Out<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W: Write> Out<W> {
    /// Writes at once.
    fn print(&self, bytes: &[u8]) -> io::Result<()> {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(bytes)?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use control::{Command, Permissions};

    use super::*;
    use crate::broker::tests::machine;

    /// What the owner of a key sees of a machine whose guests `a` and `b` print something before it answers `list`.
    fn seen(allowed: Permissions, guests: Option<&[&str]>) -> Vec<Event> {
        let socket = machine(|request| {
            let console = |guest: &str| Event::Console { guest: guest.into(), line: "secret".into() };
            let port = Event::Port { guest: "a".into(), port: "p".into(), text: "secret".into() };
            let dropped = Event::Dropped { guest: None, messages: 1, bytes: 2 };
            let events = match request.command {
                Command::List => vec![console("a"), console("b"), port, dropped],
                _ => Vec::new(),
            };
            events.into_iter().chain([Event::done(request.id)]).map(|event| event.to_line().unwrap()).collect()
        });
        let key = Key::new("anna", "", allowed, guests.map(|all| all.iter().map(|name| (*name).to_owned()).collect()));
        let broker = Broker { socket, sender: key.sender() };
        let input = Cursor::new(&b"{\"command\":\"list\",\"id\":1}\n{\"command\":\"audit\",\"id\":2}\n"[..]);
        let (from, to) = io::pipe().unwrap();
        pipe(&broker, &key, input, to).unwrap();
        // The other thread has its end of the pipe until it is done.
        BufReader::new(from).lines().map(|line| Event::from_line(&line.unwrap()).unwrap()).collect()
    }

    #[test]
    fn a_program_gets_what_the_key_may_see() {
        let words = |events: Vec<Event>| {
            let word = |event: &Event| match event {
                Event::Console { guest, .. } => format!("console {guest}"),
                Event::Port { guest, .. } => format!("port {guest}"),
                Event::Dropped { .. } => "dropped".to_owned(),
                Event::Reply { id, ok, .. } => format!("{id:?} {ok}"),
                other => panic!("{other:?}"),
            };
            let mut words: Vec<_> = events.iter().map(word).collect();
            // What is refused here may come before what the hypervisor answers.
            words.sort();
            words
        };
        let all = Permissions::all();
        let done = ["Some(1) true", "Some(2) true"];
        assert_eq!(words(seen(all, None)), [&done[..], &["console a", "console b", "dropped", "port a"]].concat());
        let others = all.difference(Permissions::CONSOLE);
        assert_eq!(words(seen(others, None)), [&done[..], &["dropped"]].concat());
        let bound = ["Some(1) true", "Some(2) false"];
        let guests = Some(&["a"][..]);
        assert_eq!(words(seen(all, guests)), [&bound[..], &["console a", "dropped", "port a"]].concat());
        assert_eq!(words(seen(others, guests)), [&bound[..], &["dropped"]].concat());
    }
}
