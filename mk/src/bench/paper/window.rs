//! What guests and their engine did between two readings of the counters.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use control::{Counters, Engine};
use scenarios::counts;
use scenarios::platform::Platform;
use scenarios::session::Session;

/// Time between two readings while a window is open.
const BETWEEN_READINGS: Duration = Duration::from_millis(100);
/// Longest time until a window has what it needs. It only ends a hang.
const LIMIT: Duration = Duration::from_secs(120);

/// The unit of work of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Frames that it sent.
    Sent,
    /// Frames that it received.
    Received,
    /// Requests of its disks that were completed.
    Disk,
}

impl Unit {
    /// The units that a guest has done since its start.
    fn of(self, counters: &Counters, name: &str) -> Result<u64> {
        Ok(match self {
            Self::Sent => counts::net(counters, name)?.tx_packets,
            Self::Received => counts::net(counters, name)?.rx_packets,
            Self::Disk => {
                let disks = &counts::guest(counters, name)?.blocks;
                disks.iter().map(|disk| disk.count("reads") + disk.count("writes")).sum()
            }
        })
    }

    /// The interrupts that a guest got for its units and all others of the same device.
    fn interrupts(self, counters: &Counters, name: &str) -> Result<u64> {
        Ok(match self {
            Self::Sent | Self::Received => counts::net(counters, name)?.interrupts,
            Self::Disk => counts::guest(counters, name)?.blocks.iter().map(|disk| disk.interrupts).sum(),
        })
    }
}

/// A guest of a window.
#[derive(Clone, Debug)]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// What it does.
    pub unit: Unit,
}

/// How long a window is.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// At least so many seconds of the guests' time.
    pub seconds: f64,
    /// At least so many units of each guest.
    pub units: u64,
}

impl Length {
    /// The length on a platform.
    pub fn of(platform: Platform, quick: bool) -> Self {
        let (seconds, units) = match platform {
            Platform::Bochs => (0.4, 100),
            Platform::Kvm | Platform::Qemu | Platform::Nested => (4.0, 200),
        };
        if quick { Self { seconds: seconds / 4.0, units: units / 4 } } else { Self { seconds, units } }
    }
}

/// Two readings of the counters.
pub struct Window([Counters; 2]);

impl Window {
    /// Lets a window pass in which these guests work.
    pub fn pass(session: &mut Session, workers: &[Worker], length: Length) -> Result<Self> {
        let before = session.counters()?;
        let begun = Instant::now();
        loop {
            thread::sleep(BETWEEN_READINGS);
            let window = Self([before.clone(), session.counters()?]);
            let done = workers.iter().map(|worker| window.units(worker)).collect::<Result<Vec<u64>>>()?;
            if window.seconds() >= length.seconds && done.iter().all(|units| *units >= length.units) {
                return Ok(window);
            }
            ensure!(begun.elapsed() < LIMIT, "in {} s the guests have done {done:?}", begun.elapsed().as_secs());
        }
    }

    /// The window from now until `pass` returns, and what it returns. `pass` gets the TSC at the beginning.
    pub fn until<T>(session: &mut Session, pass: impl FnOnce(&mut Session, u64) -> Result<T>) -> Result<(Self, T)> {
        let before = session.counters()?;
        let passed = pass(session, before.tsc)?;
        Ok((Self([before, session.counters()?]), passed))
    }

    /// Its seconds, of the guests' time.
    pub fn seconds(&self) -> f64 {
        let [before, after] = &self.0;
        after.tsc.saturating_sub(before.tsc) as f64 / after.tsc_hz.max(1) as f64
    }

    fn difference(&self, of: impl Fn(&Counters) -> Result<u64>) -> Result<u64> {
        let [before, after] = &self.0;
        Ok(of(after)?.saturating_sub(of(before)?))
    }

    /// The units of a guest.
    pub fn units(&self, Worker { name, unit }: &Worker) -> Result<u64> {
        self.difference(|counters| unit.of(counters, name))
    }

    /// The interrupts that a guest got for its kind of device.
    pub fn interrupts(&self, Worker { name, unit }: &Worker) -> Result<u64> {
        self.difference(|counters| unit.interrupts(counters, name))
    }

    /// The exits of a guest.
    pub fn exits(&self, Worker { name, .. }: &Worker) -> Result<u64> {
        self.difference(|counters| Ok(counts::all_exits(counters, name)))
    }

    /// Frames that were dropped at all ports.
    pub fn dropped(&self) -> Result<u64> {
        self.difference(|counters| Ok(counts::net_of_all(counters).all_dropped()))
    }

    fn engine(&self, of: impl Fn(&Engine) -> u64) -> Result<u64> {
        self.difference(|counters| Ok(of(counters.engines.first().context("there is no engine")?)))
    }

    /// Turns of the engine that found work.
    pub fn busy_turns(&self) -> Result<u64> {
        self.engine(|engine| engine.busy_turns)
    }

    /// The part of the engine's time that was busy, in percent.
    pub fn busy_percent(&self) -> Result<f64> {
        let (busy, idle) = (self.engine(|engine| engine.busy_cycles)?, self.engine(|engine| engine.idle_cycles)?);
        ensure!(busy + idle > 0, "the engine made no turn");
        Ok(round(busy as f64 * 100.0 / (busy + idle) as f64))
    }
}

/// A ratio, to four significant digits. 0 if it is of nothing.
pub fn ratio(count: f64, of: f64) -> f64 {
    if of > 0.0 { round(count / of) } else { 0.0 }
}

/// A number to four significant digits.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    let rounded = (value * scale).round() / scale;
    // A scale below 1 leaves the tail of a binary fraction.
    if scale < 1.0 { rounded.round() } else { rounded }
}

/// Windows for tests.
#[cfg(test)]
pub mod fixture {
    use super::Window;
    use control::{Block, Count, Counters, Engine, Guest, GuestState, Port};

    /// A window of 2 s in which guests sent so many frames: p1, p2 and so on. Each frame is an interrupt for two, and a drop for
    /// ten. Each guest has received 50 frames and made 20 writes. The engine made 100 turns with work, in a quarter of its time.
    pub fn window(sent: &[u64]) -> Window {
        let guests = |part: u64| (1..).zip(sent).map(|(n, sent)| guest(n, part, 100 + sent * part)).collect();
        let at = |part: u64| {
            let busy = 1000 * (1 + part);
            let engine =
                Engine { busy_turns: busy / 10, busy_cycles: busy, idle_cycles: 3 * busy, ..Engine::default() };
            let (tsc, tsc_hz) = (500 + 2000 * part, 1000);
            Counters { guests: guests(part), engines: vec![engine], tsc, tsc_hz, ..Counters::default() }
        };
        Window([at(0), at(1)])
    }

    fn guest(number: u64, part: u64, sent: u64) -> Guest {
        let count = |kind: &'static str, count| Count { kind: kind.into(), count };
        let (interrupts, drops) = (sent / 2, vec![count("x", sent / 10)]);
        let port = Port { tx_packets: sent, rx_packets: 7 + 50 * part, interrupts, drops, ..Port::default() };
        let counts = vec![count("reads", 5), count("writes", 1 + 20 * part)];
        let disk = Block { counts, interrupts: 3, ..Block::default() };
        Guest {
            name: format!("p{number}"),
            state: GuestState::Running,
            starts: 1,
            ports: vec![port],
            blocks: vec![disk],
            ..Guest::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_what_was_done_in_it() {
        let window = fixture::window(&[300]);
        let units = |unit| window.units(&Worker { name: "p1".into(), unit }).unwrap();
        assert_eq!([units(Unit::Sent), units(Unit::Received), units(Unit::Disk)], [300, 50, 20]);
        let worker = Worker { name: "p1".into(), unit: Unit::Sent };
        assert_eq!((window.interrupts(&worker).unwrap(), window.dropped().unwrap()), (150, 30));
        assert_eq!((window.seconds(), window.busy_turns().unwrap(), window.busy_percent().unwrap()), (2.0, 100, 25.0));
        assert!(window.units(&Worker { name: "p2".into(), unit: Unit::Sent }).is_err());
    }

    #[test]
    fn an_engine_that_makes_no_turn_has_no_busy_part() {
        let Window([before, _]) = fixture::window(&[1]);
        assert!(Window([before.clone(), before]).busy_percent().is_err());
    }

    #[test]
    fn ratios_have_four_digits() {
        assert_eq!([ratio(1.0, 3.0), ratio(20000.0, 3.0), ratio(123_456.0, 1.0)], [0.3333, 6667.0, 123_500.0]);
        assert_eq!([ratio(1.0, 0.0), ratio(0.0, 5.0), ratio(0.000_123_456, 1.0)], [0.0, 0.0, 0.000_123_5]);
    }
}
