//! The device's state, time, and faults.

use std::collections::VecDeque;

use crate::kind::{Diagnostic, Kind};
use crate::made::OWN;
use crate::memory::Dma;
use crate::offsets::{self as at, CTRL_RST, WORDS};
use crate::phy::Phy;

/// What goes wrong on demand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// All registers read as all ones.
    pub gone: bool,
    /// A reset does not end.
    pub reset_hangs: bool,
    /// DMA does not end when it is asked to.
    pub master_stuck: bool,
    /// Queues do not become enabled.
    pub enable_stuck: bool,
    /// No frame is written to memory any more. They are counted as missed.
    pub receive_stalled: bool,
    /// No descriptor is taken from the transmit ring.
    pub transmit_stalled: bool,
    /// Descriptors are used, and not written back.
    pub no_write_back: bool,
    /// What is written back makes no sense: a length beyond the buffer, frames that do not end.
    pub bad_write_back: bool,
    /// The EEPROM and firmware never say that they have finished.
    pub configuration_hangs: bool,
    /// An access to the PHY never ends.
    pub phy_silent: bool,
    /// An access to the PHY fails.
    pub phy_error: bool,
    /// Bits of SW_FW_SYNC that firmware keeps.
    pub firmware_owns: u32,
}

/// The device.
pub struct Model {
    pub(crate) kind: Kind,
    pub(crate) memory: Box<dyn Dma>,
    pub(crate) registers: Vec<u32>,
    pub(crate) now: u64,
    /// When a reset ends.
    pub(crate) reset_until: Option<u64>,
    /// When the EEPROM has been read.
    pub(crate) loaded_at: u64,
    pub(crate) phy: Phy,
    pub(crate) port: u8,
    pub(crate) cable: bool,
    /// How CTRL_EXT says that the MAC is connected.
    pub(crate) link_mode: u32,
    /// The I350 drops the first write of a word of VFTA.
    pub(crate) vfta_written: [bool; 128],
    /// Contexts of the transmit queue.
    pub(crate) contexts: [[u64; 2]; 2],
    /// Descriptors of the frame that is being read.
    pub(crate) outgoing: Vec<[u64; 2]>,
    /// DMA has failed: that direction does nothing until the next reset.
    pub(crate) transmit_failed: bool,
    pub(crate) receive_failed: bool,
    pub(crate) sent: VecDeque<Vec<u8>>,
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// What is broken.
    pub faults: Faults,
    /// Bytes 36 bits wide: upper halves of GORC and GOTC are registers of their own here.
    pub(crate) octets: [u64; 2],
}

/// Microseconds that a reset, and reading the EEPROM after it, take.
const RESET: u64 = 800;
const LOAD: u64 = 5_000;

impl Model {
    /// A device as firmware leaves it: it masters the bus, and its queues are enabled. `port`: its number.
    #[must_use]
    pub fn new(kind: Kind, port: u8, memory: Box<dyn Dma>) -> Self {
        let mut model = Self {
            kind,
            memory,
            registers: vec![0; WORDS],
            now: 0,
            reset_until: None,
            loaded_at: 0,
            phy: Phy::new(kind),
            port,
            cable: false,
            link_mode: 0,
            vfta_written: [false; 128],
            contexts: [[0; 2]; 2],
            outgoing: Vec::new(),
            transmit_failed: false,
            receive_failed: false,
            sent: VecDeque::new(),
            diagnostics: Vec::new(),
            faults: Faults::default(),
            octets: [0; 2],
        };
        model.reset();
        *model.at(at::SWSM) = 0;
        // Tables are undefined after power-on.
        for word in (0..128).flat_map(|n| [at::MTA + 4 * n, at::UTA + 4 * n]) {
            *model.at(word) = 0xa5a5_a5a5;
        }
        model
    }

    pub(crate) fn at(&mut self, offset: u32) -> &mut u32 {
        &mut self.registers[offset as usize / 4]
    }

    pub(crate) fn get(&self, offset: u32) -> u32 {
        self.registers[offset as usize / 4]
    }

    /// The state after a reset. The tables and the semaphores stay.
    pub(crate) fn reset(&mut self) {
        let kept = |offset: u32| {
            (at::MTA..at::MTA + 512).contains(&offset)
                || (at::UTA..at::UTA + 512).contains(&offset)
                || (at::VFTA..at::VFTA + 512).contains(&offset)
                || [at::SWSM, at::SW_FW_SYNC].contains(&offset)
        };
        for (n, word) in self.registers.iter_mut().enumerate() {
            if !kept(n as u32 * 4) {
                *word = 0;
            }
        }
        *self.at(at::CTRL) = 1;
        *self.at(at::CTRL_EXT) = self.link_mode << 22;
        *self.at(at::RXDCTL) = 1 << 25 | 1 << 16;
        *self.at(at::LEDCTL) = 0x0706_8302;
        let [a, b, c, d, e, f] = OWN;
        *self.at(at::RAL) = u32::from_le_bytes([a, b, c, d]);
        *self.at(at::RAL + 4) = u32::from_le_bytes([e, f, 0, 0x80]);
        if self.kind == Kind::I350 {
            *self.at(at::PHPM) = 1 << 5 | 1 << 1;
        }
        self.contexts = [[0; 2]; 2];
        self.outgoing.clear();
        (self.transmit_failed, self.receive_failed) = (false, false);
        self.octets = [0; 2];
        self.loaded_at = self.now + LOAD;
        self.phy.reset_mac();
    }

    /// Lets time pass.
    pub fn advance(&mut self, microseconds: u64) {
        self.now += microseconds;
        if self.reset_until.is_some_and(|end| self.now >= end) && !self.faults.reset_hangs {
            self.reset_until = None;
            self.reset();
        }
        let able = self.link_mode == 0 && (self.kind == Kind::I82576 || self.get(at::PHPM) & 1 << 5 == 0);
        self.phy.advance(self.now, self.cable && able);
    }

    /// Begins a reset.
    pub(crate) fn ask_for_reset(&mut self) {
        self.reset_until = Some(self.now + RESET);
        *self.at(at::CTRL) |= CTRL_RST;
    }

    /// Puts the cable in, or pulls it.
    pub fn set_cable(&mut self, present: bool) {
        self.cable = present;
    }

    /// Connects the MAC by 1000BASE-KX (1), SGMII (2) or SerDes (3) from the next reset on; 0: by copper.
    pub fn set_link_mode(&mut self, mode: u32) {
        self.link_mode = mode;
    }

    /// The link's speed in Mb/s. `None`: there is none.
    #[must_use]
    pub fn link(&self) -> Option<u32> {
        let copper = self.get(at::CTRL) & 1 << 6 != 0 && self.link_mode == 0;
        self.phy.link().filter(|_| copper).map(|speed| match self.kind {
            Kind::I350 if self.get(at::PHPM) & 1 << 1 != 0 => 100,
            _ => speed,
        })
    }

    /// Mistakes of the driver since the last call.
    pub fn take_diagnostics(&mut self) -> Vec<Diagnostic> {
        std::mem::take(&mut self.diagnostics)
    }

    pub(crate) fn complain(&mut self, diagnostic: Diagnostic) {
        if self.diagnostics.len() < 1000 {
            self.diagnostics.push(diagnostic);
        }
    }

    /// What a register holds, without the effects of reading it.
    #[must_use]
    pub fn peek(&self, offset: u32) -> u32 {
        self.get(offset)
    }

    /// A register of the PHY.
    #[must_use]
    pub fn peek_phy(&self, register: u8) -> u16 {
        self.phy.registers[usize::from(register)]
    }

    /// The next frame that was sent.
    pub fn take_sent(&mut self) -> Option<Vec<u8>> {
        self.sent.pop_front()
    }
}
