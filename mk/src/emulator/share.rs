//! Shares a machine's COM2 with programs of the operator, such as `sidecore-console`. A program that connects to the socket gets all
//! bytes from then on, and sends lines. Nobody waits for a program that does not read: it is disconnected.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Longest line that a program may send, in bytes. sidecore takes no longer one.
const LINE: u64 = control::MAX_LINE as u64;
/// Time after which a program that does not read is disconnected.
const PATIENCE: Duration = Duration::from_millis(200);

/// What goes to COM2: one line at a time, from several senders.
#[derive(Clone)]
struct Commands(Arc<Mutex<Box<dyn Write + Send>>>);

impl Write for Commands {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        output.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

/// What comes from COM2, with a copy to each program.
struct Output {
    input: Box<dyn Read + Send>,
    programs: Arc<Mutex<Vec<UnixStream>>>,
}

impl Read for Output {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let length = self.input.read(bytes)?;
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.retain_mut(|program| {
            let reads = program.write_all(&bytes[..length]).is_ok();
            if !reads {
                // The thread that reads its lines has the socket too.
                let _ = program.shutdown(Shutdown::Both);
            }
            reads
        });
        Ok(length)
    }
}

/// The two directions of a COM2.
pub type Com2 = (Box<dyn Read + Send>, Box<dyn Write + Send>);

/// Listens at `path`, and shares the two directions of COM2 with whoever connects. Returns the two directions for the session.
pub fn share(path: &Path, (input, output): Com2) -> Result<Com2> {
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen on {}", path.display()))?;
    let programs = Arc::new(Mutex::new(Vec::new()));
    let commands = Commands(Arc::new(Mutex::new(output)));
    let (connected, sent) = (programs.clone(), commands.clone());
    thread::spawn(move || {
        for program in listener.incoming().map_while(Result::ok) {
            // A program that has gone again is of no interest.
            let _ = join(program, &connected, &sent);
        }
    });
    Ok((Box::new(Output { input, programs }), Box::new(commands)))
}

fn join(program: UnixStream, programs: &Mutex<Vec<UnixStream>>, commands: &Commands) -> io::Result<()> {
    program.set_write_timeout(Some(PATIENCE))?;
    let (lines, commands) = (program.try_clone()?, commands.clone());
    programs.lock().unwrap_or_else(PoisonError::into_inner).push(program);
    thread::spawn(move || forward(lines, commands));
    Ok(())
}

/// Forwards whole lines, so that two programs' commands do not mix. What is too long for a line is passed on in parts.
fn forward(lines: UnixStream, mut commands: Commands) -> io::Result<()> {
    let mut lines = BufReader::new(lines);
    loop {
        let mut line = Vec::new();
        if lines.by_ref().take(LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        commands.write_all(&line)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::SocketPath;

    #[test]
    fn programs_get_what_the_session_gets_and_send_lines() {
        let (machine, session) = UnixStream::pair().unwrap();
        let path = SocketPath::new("share");
        let (mut input, mut output) =
            share(&path.0, (Box::new(session.try_clone().unwrap()), Box::new(session))).unwrap();
        let mut machine_lines = BufReader::new(machine.try_clone().unwrap());
        let mut machine = machine;
        let mut read_line = || {
            let mut line = String::new();
            machine_lines.read_line(&mut line).unwrap();
            line
        };

        let mut programs = [(); 2].map(|()| UnixStream::connect(&path.0).unwrap());
        // A line that has arrived proves that the program is connected.
        for program in &mut programs {
            program.write_all(b"{\"command\":\"list\"}\n").unwrap();
            assert_eq!(read_line(), "{\"command\":\"list\"}\n");
        }
        output.write_all(b"{\"command\":\"version\"}\n").unwrap();
        assert_eq!(read_line(), "{\"command\":\"version\"}\n");

        machine.write_all(b"{\"event\":\"end\",\"reason\":\"x\"}\n").unwrap();
        let mut bytes = [0; 100];
        let length = input.read(&mut bytes).unwrap();
        for program in &mut programs {
            let mut copy = vec![0; length];
            program.read_exact(&mut copy).unwrap();
            assert_eq!(copy, bytes[..length]);
        }
    }

    #[test]
    fn a_program_that_does_not_read_is_disconnected_and_the_others_go_on() {
        let (mut machine, session) = UnixStream::pair().unwrap();
        let path = SocketPath::new("share");
        let (mut input, _output) = share(&path.0, (Box::new(session.try_clone().unwrap()), Box::new(session))).unwrap();
        let mut deaf = UnixStream::connect(&path.0).unwrap();
        deaf.write_all(b"\n").unwrap();
        assert_eq!(BufReader::new(machine.try_clone().unwrap()).read_line(&mut String::new()).unwrap(), 1);

        let total = 4_usize << 20;
        let writer = thread::spawn(move || machine.write_all(&vec![b'x'; total]));
        let mut read = 0;
        let mut bytes = vec![0; 1 << 16];
        while read < total {
            read += input.read(&mut bytes).unwrap();
        }
        writer.join().unwrap().unwrap();
        let mut got = 0;
        while let Ok(length @ 1..) = deaf.read(&mut bytes) {
            got += length;
        }
        assert!(got < total, "{got} of {total}");
    }
}
