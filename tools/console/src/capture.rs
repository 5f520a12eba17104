//! Captured frames to a file, a named pipe or a program such as Wireshark, as pcap-ng while they come.
//!
//! A thread opens the target and writes, because a pipe may wait for its reader. What it is too slow for is dropped here. The numbers
//! of frames then have a gap, so the file says how many are missing.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};

use control::Command;
use sidecore_pcapng::filter;
use sidecore_pcapng::live::Live;

use crate::target::Target;

/// Pieces of the trace that wait for the thread: at most 1 MiB.
const PIECES: usize = 256;
/// Who writes the file.
const APPLICATION: &str = concat!("sidecore-console ", env!("CARGO_PKG_VERSION"));

/// A capture that goes on.
#[derive(Clone, Debug)]
pub struct Capture {
    /// The guest or the uplink.
    pub name: String,
    /// The filter in the machine's words.
    pub filter: String,
    pieces: SyncSender<Vec<u8>>,
}

impl Capture {
    /// Begins to write to `target`: a path, or `|` and a command of the system's shell. Returns the thread too.
    #[must_use]
    pub fn start(target: &str, name: String, filter: String) -> (Self, JoinHandle<io::Result<()>>) {
        let (pieces, taken) = sync_channel(PIECES);
        let target = target.to_owned();
        (Self { name, filter, pieces }, thread::spawn(move || write(&target, &taken)))
    }

    /// The command that begins it.
    #[must_use]
    pub fn on(&self) -> Command {
        Command::Capture { guest: self.name.clone(), filter: self.filter.clone() }
    }

    /// The command that ends it.
    #[must_use]
    pub fn off(&self) -> Command {
        Command::Capture { guest: self.name.clone(), filter: filter::off(&self.filter) }
    }

    /// Takes the next bytes of the trace. Returns false if nobody writes them any more.
    #[must_use]
    pub fn take(&self, bytes: Vec<u8>) -> bool {
        !matches!(self.pieces.try_send(bytes), Err(TrySendError::Disconnected(_)))
    }
}

fn write(target: &str, pieces: &Receiver<Vec<u8>>) -> io::Result<()> {
    match Target::open(target)? {
        Target::File(file) => copy(file, pieces),
        Target::Program(mut child, input) => {
            let copied = copy(input, pieces);
            child.wait()?;
            copied
        }
    }
}

fn copy(out: impl Write, pieces: &Receiver<Vec<u8>>) -> io::Result<()> {
    let mut live = Live::new(out, APPLICATION)?;
    pieces.iter().try_for_each(|piece| live.take(&piece))?;
    live.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Vec<u8> {
        let mut buffer = [0; 512];
        let frame = trace::Captured::new(5, 3, trace::capture::Way::In, 60).with_bytes(&[7; 60]);
        let mut writer = trace::stream::CapturesWriter::new(&mut buffer, 1, 0, 0).unwrap();
        writer.push(&frame).unwrap();
        writer.finish().to_vec()
    }

    #[test]
    fn a_program_gets_the_frames_and_the_end() {
        let path = std::env::temp_dir().join(format!("sidecore-console-{}.pcapng", std::process::id()));
        let (capture, writing) = Capture::start(&format!("|cat >{}", path.display()), "a".into(), "in,net=1".into());
        assert_eq!(capture.on().summary().to_string(), "capture a in,net=1");
        assert_eq!(capture.off().summary().to_string(), "capture a net=1,off");
        assert!(capture.take(block()));
        drop(capture);
        writing.join().unwrap().unwrap();
        let written = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // Types of the blocks: section, interface, frame, statistics.
        let (mut types, mut rest) = (Vec::new(), &written[..]);
        while let Some(head) = rest.first_chunk::<8>() {
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            types.push(word(0));
            rest = &rest[word(4) as usize..];
        }
        assert_eq!(types, [0x0a0d_0d0a, 1, 6, 5]);
    }

    #[test]
    fn a_target_that_cannot_be_written_ends_it() {
        let (capture, writing) = Capture::start("/nonexistent/a.pcapng", "a".into(), String::new());
        writing.join().unwrap().unwrap_err();
        assert!(!capture.take(block()));
    }
}
