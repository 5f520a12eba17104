//! What the model's own tests start from: rings written by hand, independent of any driver.

use crate::memory::{Block, Memory};
use crate::model::{Config, Model};
use crate::registers::{ENABLE, Reg};

/// A model with its link up, and its memory.
pub fn model() -> (Model, Memory) {
    let memory = Memory::new(1 << 20);
    let mut model = Model::new(Config::default(), Box::new(memory.clone()));
    model.set_cable(true);
    set_up(&mut model, false);
    model.advance(1_000_000);
    (model, memory)
}

/// Writes to CORECTL what the EEPROM has for port 0: for a passive cable, or for optics.
pub fn set_up(model: &mut Model, cable: bool) {
    for word in if cable { [0x1303, 0x2a03] } else { [0x1305, 0x2a05] } {
        model.write(Reg::Corectl.offset(0), word);
    }
}

/// A ring of `n` descriptors.
pub struct Ring {
    pub block: Block,
    memory: Memory,
}

impl Ring {
    pub fn put(&self, index: u32, words: [u64; 2]) {
        let at = self.block.bus + u64::from(index) * 16;
        self.memory.fill(at, &words[0].to_le_bytes());
        self.memory.fill(at + 8, &words[1].to_le_bytes());
    }

    pub fn get(&self, index: u32) -> [u64; 2] {
        let bytes = self.memory.copy(self.block.bus + u64::from(index) * 16, 16);
        [0, 8].map(|i| u64::from_le_bytes(bytes[i..i + 8].try_into().unwrap()))
    }
}

fn ring(memory: &Memory, n: u32) -> Ring {
    Ring { block: memory.granted(n as usize * 16, 128), memory: memory.clone() }
}

/// Sets up and enables receive queue `q` with advanced descriptors and buffers of 2 KiB; the tail is the test's.
pub fn receive_queue(m: &mut Model, memory: &Memory, q: usize, n: u32) -> Ring {
    let ring = ring(memory, n);
    m.write(Reg::Rdbal.offset(q), ring.block.bus as u32);
    m.write(Reg::Rdbah.offset(q), (ring.block.bus >> 32) as u32);
    m.write(Reg::Rdlen.offset(q), n * 16);
    m.write(Reg::Srrctl.offset(q), 1 << 25 | 2);
    m.write(Reg::Rdrxctl.offset(0), 2);
    m.write(Reg::Rxdctl.offset(q), ENABLE);
    assert_eq!(m.read(Reg::Rxdctl.offset(q)), ENABLE);
    m.write(Reg::Rxctrl.offset(0), 1);
    ring
}

/// Sets up and enables transmit queue `q`.
pub fn transmit_queue(m: &mut Model, memory: &Memory, q: usize, n: u32) -> Ring {
    let ring = ring(memory, n);
    m.write(Reg::Dmatxctl.offset(0), 0x8100_0001);
    m.write(Reg::Tdbal.offset(q), ring.block.bus as u32);
    m.write(Reg::Tdbah.offset(q), (ring.block.bus >> 32) as u32);
    m.write(Reg::Tdlen.offset(q), n * 16);
    m.write(Reg::Txdctl.offset(q), ENABLE);
    assert_eq!(m.read(Reg::Txdctl.offset(q)), ENABLE);
    ring
}

/// An advanced data descriptor's second word.
pub fn data(len: usize, payload: usize, command: u64, options: u64) -> u64 {
    len as u64 | 3 << 20 | (command | 0x20) << 24 | options | (payload as u64) << 46
}

/// EOP, IFCS and RS.
pub const LAST: u64 = 0x0b;

/// An Ethernet frame to `to` of 60 bytes.
pub fn frame(to: [u8; 6]) -> Vec<u8> {
    let mut f = to.to_vec();
    f.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    f.resize(60, 0xa5);
    f
}
