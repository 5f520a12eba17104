//! Writes frames as pcap-ng while they come from a machine, for a program that reads at the other end of a pipe.
//!
//! What comes is a trace as the machine sends it, in pieces of any length. A frame is written, and the output flushed, when its
//! block is whole. A port's interface stands before its first frame. Frames of one engine are in the order in which it saw them.
//!
//! The machine may be hostile: at most a block of it is kept, and [`MOST_PORTS`] ports are told apart.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use pcap_file::pcapng::PcapNgWriteError;
use pcap_file::pcapng::PcapNgWriter;
use trace::stream::{self, Block, Captures, Step};

use crate::block;
use crate::clock::Clock;
use crate::names::{Names, missing};
use crate::only::Only;

/// Most ports that are told apart. Frames of further ones count as lost.
pub const MOST_PORTS: usize = 1024;

/// What is known of a port.
#[derive(Default)]
struct Port {
    /// Number of the interface.
    interface: u32,
    /// Number of its next frame.
    next: u64,
    /// Frames that its filter took.
    taken: u64,
    /// Those of them that are missing.
    missing: u64,
}

/// Writes frames while they come. It is a [`Write`] that takes the bytes of a trace.
pub struct Live<W: Write> {
    writer: PcapNgWriter<BufWriter<W>>,
    /// Bytes of a block that has not come whole.
    begun: Vec<u8>,
    names: Names,
    /// The port whose frames are written. `None`: those of all ports.
    only: Option<Only>,
    clock: Clock,
    /// By core and slot.
    ports: BTreeMap<(u32, u16), Port>,
    /// Number of each core's next captured frame.
    next: BTreeMap<u32, u64>,
    /// TSC of the last frame.
    last: u64,
    frames: u64,
    lost: u64,
}

fn failed(error: PcapNgWriteError) -> io::Error {
    match error {
        PcapNgWriteError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

impl<W: Write> Live<W> {
    /// Begins a file. `application`: who writes it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(out: W, application: &'static str) -> io::Result<Self> {
        let writer =
            PcapNgWriter::with_section_header(BufWriter::new(out), block::section(application)).map_err(failed)?;
        let mut live = Self {
            writer,
            begun: Vec::new(),
            names: Names::default(),
            only: None,
            clock: Clock::new(0, None),
            ports: BTreeMap::new(),
            next: BTreeMap::new(),
            last: 0,
            frames: 0,
            lost: 0,
        };
        // Whoever reads a pipe sees at once that this is a file.
        live.writer.get_mut().flush()?;
        Ok(live)
    }

    /// Leaves out the frames of all other ports. What comes before the names of its port is left out too.
    #[must_use]
    pub fn only(mut self, only: Only) -> Self {
        self.only = Some(only);
        self
    }

    /// Frames that were written.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Captured frames that are missing, of all ports.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Takes the next bytes of the trace.
    ///
    /// # Errors
    /// Those of the output.
    pub fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.begun.extend_from_slice(bytes);
        let begun = std::mem::take(&mut self.begun);
        let mut rest = begun.as_slice();
        let mut written = Ok(());
        while !rest.is_empty() && written.is_ok() {
            let used = match stream::step(rest) {
                Step::Block(found, used) => {
                    match found {
                        Block::Header(header) => self.clock = self.names.take(&header),
                        Block::Captures(captures) => written = self.captures(&captures),
                        Block::Chunk(_) | Block::Kernel(_) | Block::Scope(_) | Block::Unknown { .. } => {}
                    }
                    used
                }
                Step::Damaged(used) => used,
                Step::Incomplete => break,
            };
            rest = rest.get(used..).unwrap_or_default();
        }
        self.begun = rest.to_vec();
        written
    }

    fn captures(&mut self, captures: &Captures<'_>) -> io::Result<()> {
        let lost = missing(self.next.get(&captures.core), captures.first, captures.lost);
        self.lost = self.lost.saturating_add(lost);
        let count = captures.count() as u64;
        if self.next.len() < MOST_PORTS || self.next.contains_key(&captures.core) {
            self.next.insert(captures.core, captures.first.saturating_add(count));
        }
        for frame in captures.frames() {
            if self.only.as_ref().is_some_and(|only| !only.is(&self.names, captures.core, frame.slot)) {
                continue;
            }
            let key = (captures.core, frame.slot);
            if !self.ports.contains_key(&key) {
                if self.ports.len() >= MOST_PORTS {
                    self.lost = self.lost.saturating_add(1);
                    continue;
                }
                let one_of = if frame.one_of > 1 { format!(", one of {} frames", frame.one_of) } else { String::new() };
                let interface = block::interface(&self.names, captures.core, frame.slot, &one_of);
                self.writer.write_pcapng_block(interface).map_err(failed)?;
                // There are fewer than MOST_PORTS.
                let interface = self.ports.len() as u32;
                self.ports.insert(key, Port { interface, ..Port::default() });
            }
            let Some(port) = self.ports.get_mut(&key) else { continue };
            let missing = block::missing_before(frame.number, port.next);
            port.next = frame.number.saturating_add(1);
            port.taken = port.taken.saturating_add(missing).saturating_add(1);
            port.missing = port.missing.saturating_add(missing);
            let written = block::frame(&self.names, &self.clock, port.interface, &frame, missing);
            self.writer.write_pcapng_block(written).map_err(failed)?;
            self.frames = self.frames.saturating_add(1);
            self.last = self.last.max(frame.tsc);
        }
        self.writer.get_mut().flush()
    }

    /// Writes how many frames of each port there were and are missing. Call it once, at the end.
    ///
    /// # Errors
    /// Those of the output.
    pub fn end(&mut self) -> io::Result<()> {
        let at = block::time(&self.clock, self.last);
        for port in self.ports.values() {
            let statistics = block::statistics(port.interface, at, port.taken, port.missing);
            self.writer.write_pcapng_block(statistics).map_err(failed)?;
        }
        self.writer.get_mut().flush()
    }
}

impl<W: Write> Write for Live<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.take(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.get_mut().flush()
    }
}

#[cfg(test)]
mod tests;
