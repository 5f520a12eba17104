//! The device: its registers, its parts, its memory and its clock (data sheet 8.2).

use std::collections::{HashMap, VecDeque};

use crate::diagnostic::{Diagnostic, Direction};
use crate::faults::Faults;
use crate::made::OWN;
use crate::memory::Dma;
use crate::registers::{Reg, TABLE};
use crate::sfp::Module;
use crate::state::{EepromRead, Flow, Link, Receive, Reset, Throttle, Transmit};
use crate::two_wire::Driven;
use crate::two_wire::TwoWire;

/// The configuration of the device.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The MAC address in the EEPROM.
    pub mac: [u8; 6],
    /// Microseconds until the link is up, after the cable is put in or the link is restarted.
    pub link_time: u64,
    /// Whether the EEPROM's checksum is right.
    pub eeprom_valid: bool,
    /// Bytes that may wait for [`Model::take_sent`]. With more, the transmit side stands still. A test that does not
    /// look at the wire wants no limit.
    pub transmit_buffer: usize,
    /// Which of the two ports it is: 0 or 1.
    pub port: u8,
    /// The EEPROM allows 10G optics of any vendor, not only of Intel.
    pub any_module: bool,
    /// What is in the cage after power-on.
    pub module: Option<Module>,
    /// AUTOC as the EEPROM of a card for a backplane has it. Such a card has no cage. `None`: a card with a cage.
    pub backplane: Option<u32>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mac: OWN,
            link_time: 500_000,
            eeprom_valid: true,
            transmit_buffer: usize::MAX,
            port: 0,
            any_module: false,
            module: Module::named("sr"),
            backplane: None,
        }
    }
}

/// The device.
pub struct Model {
    pub(crate) config: Config,
    pub(crate) words: Vec<u32>,
    /// Row and index of each word of the BAR.
    pub(crate) map: Vec<Option<(Reg, u16)>>,
    /// Microseconds since power-on.
    pub(crate) now: u64,
    pub(crate) dma: Box<dyn Dma + Send>,
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// The faults of the device.
    pub faults: Faults,
    pub(crate) reset: Reset,
    pub(crate) eeprom: Vec<u16>,
    pub(crate) eeprom_read: EepromRead,
    pub(crate) link: Link,
    pub(crate) receive: Receive,
    pub(crate) transmit: Transmit,
    /// What the queues have sent and the wire has not taken, and its bytes.
    pub(crate) sent: VecDeque<Vec<u8>>,
    pub(crate) sent_bytes: usize,
    /// PAUSE frames, which go before all others.
    pub(crate) control: VecDeque<Vec<u8>>,
    pub(crate) flow: Flow,
    /// What is in the cage, its side of the two wires, and the driver's.
    pub(crate) module: Option<Module>,
    pub(crate) two_wire: TwoWire,
    pub(crate) driven: Driven,
    /// What was written to CORECTL since the module was put in.
    pub(crate) sequence: Vec<u16>,
    /// Causes for which a message was sent since they were set.
    pub(crate) signalled: u32,
    pub(crate) throttle: Throttle,
    /// Byte counters whose lower half was read, as they stood then.
    pub(crate) latched: HashMap<(Reg, usize), u64>,
    /// DMA transactions that were done since power-on: descriptors and data.
    pub(crate) transactions: u64,
    /// Register reads and writes since power-on.
    pub(crate) accesses: (u64, u64),
}

impl Model {
    /// A register as it is kept.
    pub(crate) fn get(&self, reg: Reg, n: usize) -> u32 {
        self.words[reg.offset(n) as usize / 4]
    }

    pub(crate) fn set(&mut self, reg: Reg, n: usize, value: u32) {
        self.words[reg.offset(n) as usize / 4] = value;
    }

    pub(crate) fn pair(&self, low: Reg, high: Reg, n: usize) -> u64 {
        u64::from(self.get(low, n)) | u64::from(self.get(high, n)) << 32
    }

    pub(crate) fn report(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    /// Puts every register at its value after reset.
    pub(crate) fn set_defaults(&mut self) {
        for row in TABLE {
            let count: u32 = row.banks.iter().map(|b| b.count).sum();
            for n in 0..count as usize {
                self.set(row.reg, n, row.reset);
            }
        }
    }

    /// Reads memory for a queue. False: it was not granted.
    pub(crate) fn dma_read(&mut self, who: Direction, address: u64, into: &mut [u8]) -> bool {
        self.transactions += 1;
        let ok = self.dma.read(address, into);
        if !ok {
            self.report(Diagnostic::NotGranted { who, address, len: into.len(), write: false });
        }
        ok
    }

    /// Writes memory for a queue. False: it was not granted.
    pub(crate) fn dma_write(&mut self, who: Direction, address: u64, from: &[u8]) -> bool {
        self.transactions += 1;
        let ok = self.dma.write(address, from);
        if !ok {
            self.report(Diagnostic::NotGranted { who, address, len: from.len(), write: true });
        }
        ok
    }

    /// A descriptor's two words.
    pub(crate) fn read_descriptor(&mut self, who: Direction, address: u64) -> Option<[u64; 2]> {
        let mut bytes = [0; 16];
        self.dma_read(who, address, &mut bytes).then(|| {
            let word = u128::from_le_bytes(bytes);
            [word as u64, (word >> 64) as u64]
        })
    }
}
