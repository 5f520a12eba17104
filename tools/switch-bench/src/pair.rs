//! Two ports of a switch, and the frames between them.

#![allow(unsafe_code, reason = "hands parts of a memory to queues and to the copy loop")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, ensure};
use vhost_front::area::{Area, area_bytes};
use vhost_front::ring::{Receive, RingOptions, Transmit};
use vhost_front::{Memory, Options, Port, features};

use crate::frame::fill;
use switch_bench::clock::{millisecond, now};
use switch_bench::distance::{Distance, Rounds};
use switch_bench::process;

/// A running switch.
#[derive(Clone, Debug)]
pub struct Switch {
    /// What it is called.
    pub name: String,
    process: i32,
    sockets: [PathBuf; 2],
    /// Ports that are set up and not used.
    idle: Vec<PathBuf>,
}

impl Switch {
    /// From NAME,PROCESS,SOCKET,SOCKET[,IDLE SOCKET..].
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(',').collect();
        let [name, process, a, b, idle @ ..] = parts.as_slice() else {
            return Err("expected NAME,PROCESS,SOCKET,SOCKET[,IDLE SOCKET..]".to_owned());
        };
        let process = process.parse().map_err(|_| format!("{process}: expected the number of a process"))?;
        let idle = idle.iter().map(PathBuf::from).collect();
        Ok(Self { name: (*name).to_owned(), process, sockets: [PathBuf::from(a), PathBuf::from(b)], idle })
    }
}

/// A sending and a receiving port of a switch, or of the copy loop.
pub struct Pair {
    /// What it is called.
    pub name: String,
    /// Names of the features that were negotiated at the sending port.
    pub features: Vec<&'static str>,
    process: Option<i32>,
    turn: Option<Arc<AtomicBool>>,
    /// Frames into it.
    pub tx: Transmit,
    /// Frames out of it.
    pub rx: Receive,
    back: Option<Transmit>,
    kept: Vec<Box<dyn Send>>,
}

impl Pair {
    /// Connects to both ports of a switch, and stops the switch.
    pub fn connect(switch: &Switch, options: &Options) -> Result<Self> {
        let connect = |socket: &PathBuf| Port::connect(socket, options).with_context(|| switch.name.clone());
        let [a, b] = &switch.sockets;
        let (a, b) = (connect(a)?, connect(b)?);
        let idle: Vec<Port> = switch.idle.iter().map(connect).collect::<Result<_>>()?;
        let named = features::names(a.features);
        ensure!(a.features == b.features, "{}: the two ports have different features", switch.name);
        let ((tx, _, kept_a), (back, rx, kept_b)) = (a.into_parts(), b.into_parts());
        process::stop(switch.process)?;
        Ok(Self {
            name: switch.name.clone(),
            features: named,
            process: Some(switch.process),
            turn: None,
            tx,
            rx,
            back: Some(back),
            kept: vec![Box::new(kept_a), Box::new(kept_b), Box::new(idle)],
        })
    }

    /// Begins its turn. Afterwards the switch runs and knows both addresses, and the rings are empty. Frames have `len`
    /// bytes.
    pub fn begin(&mut self, len: usize) -> Result<()> {
        if let Some(process) = self.process {
            process::resume(process)?;
        }
        if let Some(turn) = &self.turn {
            turn.store(true, Ordering::Release);
        }
        self.drain()?;
        fill(&mut self.tx, 2, 1, len);
        if let Some(back) = &mut self.back {
            back.reclaim();
            fill(back, 1, 2, 60);
            back.offer(1);
        }
        // The switch may still be setting itself up, so frames are sent until one gets through.
        let deadline = now() + 120_000 * millisecond();
        loop {
            let before = now();
            self.tx.offer(1);
            while now() - before < 20 * millisecond() && !self.rx.ready() {}
            if self.rx.poll(u16::MAX, |_| {}).0 != 0 {
                break;
            }
            self.tx.reclaim();
            ensure!(now() < deadline, "{}: no frame gets through in two minutes", self.name);
        }
        self.drain()
    }

    /// Waits until everything that was offered has come back.
    fn drain(&mut self) -> Result<()> {
        let deadline = now() + 120_000 * millisecond();
        while self.tx.free() < self.tx.size() {
            self.rx.poll(u16::MAX, |_| {});
            self.tx.reclaim();
            ensure!(now() < deadline, "{}: frames do not come back in two minutes", self.name);
        }
        while self.rx.poll(u16::MAX, |_| {}).0 != 0 {}
        Ok(())
    }

    /// Ends its turn.
    pub fn end(&mut self) -> Result<()> {
        self.drain()?;
        if let Some(turn) = &self.turn {
            turn.store(false, Ordering::Release);
        }
        self.process.map_or(Ok(()), process::stop)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if let Some(process) = self.process {
            // The process that started the switch ends it. A stopped switch could not end.
            let _ = process::resume(process);
        }
        self.kept.clear();
    }
}

/// The copy loop on a core of its own.
pub struct Floor {
    run: Arc<AtomicBool>,
    turn: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    areas: [Area; 2],
    _memory: Memory,
}

impl Floor {
    /// Starts the copy loop. It waits for its turn.
    pub fn start(core: usize, options: &Options) -> Result<Self> {
        let half = area_bytes(options.size).next_multiple_of(4096);
        let memory = Memory::new((2 * half).next_multiple_of(2 << 20), options.pages)?;
        // SAFETY: two separate parts of the memory. The memory lives as long as the thread, and the pair that gets the
        // parts is dropped before.
        let areas = [0, half].map(|offset| unsafe { Area::new(memory.start().wrapping_add(offset), 0, options.size) });
        let (run, turn) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let (go_on, my_turn) = (Arc::clone(&run), Arc::clone(&turn));
        let [tx, rx] = areas;
        let thread = thread::spawn(move || {
            if let Err(error) = process::pin(core) {
                eprintln!("switch-bench: the copy loop: {error:#}");
            }
            crate::floor::copy_loop(tx, rx, &go_on, &my_turn);
        });
        Ok(Self { run, turn, thread: Some(thread), areas, _memory: memory })
    }

    /// The pair that uses the copy loop. There is only one.
    pub fn pair(&self) -> Pair {
        let [tx, rx] = self.areas;
        Pair {
            name: "floor".to_owned(),
            features: Vec::new(),
            process: None,
            turn: Some(Arc::clone(&self.turn)),
            tx: Transmit::new(tx, RingOptions { event_idx: true, packed: false }),
            rx: Receive::new(rx, RingOptions { event_idx: true, packed: false }),
            back: None,
            kept: Vec::new(),
        }
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        self.run.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}

/// Runs rounds in which the pairs have their turns one after another. Returns what was measured of each pair in each
/// round.
pub fn in_turn<T>(
    pairs: &mut [Pair],
    distance: &Distance,
    rounds: usize,
    len: usize,
    mut measure: impl FnMut(&mut Pair) -> Result<T>,
) -> Result<Rounds<Vec<T>>> {
    distance.rounds(rounds, |look| {
        look();
        let each = pairs.iter_mut().map(|pair| {
            pair.begin(len)?;
            let measured = measure(pair)?;
            pair.end()?;
            look();
            Ok(measured)
        });
        each.collect()
    })
}

/// Makes a pair for each switch, and one for the copy loop.
pub fn all(switches: &[Switch], floor: &Floor, options: &Options) -> Result<Vec<Pair>> {
    let mut pairs: Vec<Pair> = switches.iter().map(|switch| Pair::connect(switch, options)).collect::<Result<_>>()?;
    pairs.push(floor.pair());
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::SERIAL;

    #[test]
    fn frames_go_through_the_copy_loop_as_they_are() {
        let options = Options::default();
        let floor = Floor::start(0, &options).unwrap();
        let mut pair = floor.pair();
        pair.begin(60).unwrap();
        for n in 0..1000u64 {
            pair.tx.reclaim();
            pair.tx.write_word(0, SERIAL, n);
            pair.tx.offer(1);
            while !pair.rx.ready() {
                thread::yield_now();
            }
            let mut arrived = None;
            pair.rx.poll(1, |frame| arrived = Some((frame.len(), frame.word(0), frame.word(SERIAL))));
            assert_eq!(arrived, Some((60, 0x0002_0200_0000_0002, n)));
        }
        pair.end().unwrap();
    }

    #[test]
    fn a_switch_is_named_with_its_process_and_sockets() {
        let switch = Switch::parse("ours,12,/a,/b").unwrap();
        assert_eq!((switch.name.as_str(), switch.process, switch.idle.len()), ("ours", 12, 0));
        assert_eq!(Switch::parse("ours,12,/a,/b,/c,/d").unwrap().idle, [PathBuf::from("/c"), PathBuf::from("/d")]);
        assert!(Switch::parse("ours,x,/a,/b").is_err() && Switch::parse("ours,1,/a").is_err());
    }
}
