//! The two wires to the SFP+ module: a read of its EEPROM, one change of the wires at a call (data sheet 8.2.3.1.5,
//! SFF-8431 4, SFF-8472 4).
//!
//! The device has no I2C controller: software drives clock and data by I2CCTL. [`Transfer::poll`] makes one change and
//! returns. It never waits. The owner calls it again, as often as it likes: the next change is made when its time has
//! come. An owner that calls once a millisecond reads 16 bytes in 0.4 s, one that does nothing else in 8 ms.

use crate::bits::I2cctl;
use crate::registers::{Bus, I2CCTL, Registers};

/// Address of the module's EEPROM on the bus. Bit 0 asks for a read.
const ADDRESS: u8 = 0xa0;
const READ: u8 = 1;
/// Least microseconds from one change to the next. The bus wants 4.7 us (100 kHz). The rest is the time that the
/// accesses themselves may take.
const HALF: u64 = 10;
/// Most microseconds that the module may hold the clock down. SFF-8431 allows 500 us.
const STRETCH: u64 = 20_000;
/// Bytes of one transfer.
pub(crate) const CHUNK: usize = 16;
/// Clocks that make a module let go of the data wire (I2C specification 3.1.16).
const CLEARING: u8 = 9;
/// Changes of the wires for a byte and its acknowledgement: 9 times down and up.
const BYTE: u8 = 18;
/// Changes for the eight bits alone.
const BITS: u8 = 16;

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nobody acknowledged the address.
    NoAnswer,
    /// A later byte was not acknowledged.
    Refused,
    /// The clock or the data wire stays down.
    Stuck,
}

/// A change of the wires.
#[derive(Clone, Copy)]
enum Change {
    /// The clock goes down, then data is set.
    Down { data: bool },
    /// The clock is let go.
    Up,
    /// Data changes while the clock is up: a start condition (down) or a stop condition (up).
    Data(bool),
}

/// The part of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Looks whether the wires are free.
    Free,
    /// Nine clocks, because the module holds the data wire.
    Clear,
    /// A start condition. `again`: the second one, before the bytes to read.
    Start { again: bool },
    /// The address, for writing.
    Address,
    /// The offset of the first byte.
    Offset,
    /// The address, for reading.
    AddressRead,
    /// Bytes from the module.
    Bytes,
    /// A stop condition.
    Stop,
    /// Nothing is left to do.
    Over,
}

/// A read of [`CHUNK`] bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    offset: u8,
    part: Part,
    /// Changes made in this part.
    changes: u8,
    /// The bits of the byte so far.
    shift: u8,
    bytes: [u8; CHUNK],
    /// Bytes that have arrived.
    count: usize,
    fault: Option<Fault>,
    clock: bool,
    data: bool,
    /// When the next change may be made.
    at: u64,
    /// Until when the module may hold the clock down.
    stretch: u64,
    /// It has held the clock down since the last change.
    stretched: bool,
}

impl Transfer {
    /// Begins to read at an offset of the module's EEPROM.
    pub(crate) fn new(offset: u8, now: u64) -> Self {
        Self {
            offset,
            part: Part::Free,
            changes: 0,
            shift: 0,
            bytes: [0; CHUNK],
            count: 0,
            fault: None,
            clock: true,
            data: true,
            at: now,
            stretch: now.saturating_add(STRETCH),
            stretched: false,
        }
    }

    /// Makes the next change of the wires, if it is time. Returns the bytes or the fault once the transfer is over.
    pub(crate) fn poll<R: Registers>(&mut self, bus: &Bus<R>, now: u64) -> Option<Result<[u8; CHUNK], Fault>> {
        if now < self.at {
            return None;
        }
        let mut level = self.data;
        if self.clock {
            let wires = I2cctl::from_bits(bus.read(&I2CCTL, 0));
            if !wires.clock_in() {
                self.stretched = true;
                if now < self.stretch {
                    return None;
                }
                self.release(bus);
                return Some(Err(Fault::Stuck));
            }
            // The time that the clock has to be up begins now.
            if core::mem::take(&mut self.stretched) {
                self.at = now.saturating_add(HALF);
                return None;
            }
            level = wires.data_in();
        }
        let Some(change) = self.next(level) else {
            self.release(bus);
            return Some(self.fault.map_or(Ok(self.bytes), Err));
        };
        self.changes = self.changes.saturating_add(1);
        match change {
            Change::Down { data } => {
                self.clock = false;
                self.write(bus);
                self.data = data;
            }
            Change::Up => {
                self.clock = true;
                self.stretch = now.saturating_add(STRETCH);
            }
            Change::Data(data) => self.data = data,
        }
        self.write(bus);
        self.at = now.saturating_add(HALF);
        None
    }

    /// Lets both wires go.
    pub(crate) fn release<R: Registers>(&mut self, bus: &Bus<R>) {
        (self.clock, self.data) = (true, true);
        self.write(bus);
    }

    fn write<R: Registers>(&mut self, bus: &Bus<R>) {
        bus.write(&I2CCTL, 0, I2cctl::new().with_clock_out(self.clock).with_data_out(self.data).into_bits());
        // Writes are posted. The read brings this one to the device, so that the time until the next counts. If the
        // module holds the clock down, the clock's time begins later.
        let wires = I2cctl::from_bits(bus.read(&I2CCTL, 0));
        self.stretched = self.clock && !wires.clock_in();
    }

    fn begin(&mut self, part: Part) {
        (self.part, self.changes) = (part, 0);
    }

    fn fail(&mut self, fault: Fault) {
        self.fault = Some(fault);
        self.begin(Part::Stop);
    }

    /// The next change. `level`: the data wire at the end of the last time that the clock was up. `None`: the end.
    fn next(&mut self, level: bool) -> Option<Change> {
        loop {
            // Even changes put the clock down, odd ones let it go.
            let up = self.changes & 1 == 1;
            match (self.part, self.changes) {
                (Part::Free, _) => self.begin(if level { Part::Start { again: false } } else { Part::Clear }),
                (Part::Clear, BYTE) if !level => self.fail(Fault::Stuck),
                (Part::Clear, BYTE) => self.begin(Part::Start { again: false }),
                (Part::Clear, _) => return Some(if up { Change::Up } else { Change::Down { data: true } }),
                (Part::Start { .. }, 0) => return Some(Change::Down { data: true }),
                (Part::Start { .. }, 1) => return Some(Change::Up),
                (Part::Start { .. }, 2) => return Some(Change::Data(false)),
                (Part::Start { again: true }, _) => self.begin(Part::AddressRead),
                (Part::Start { again: false }, _) => self.begin(Part::Address),
                (Part::Address, BYTE) if level => self.fail(Fault::NoAnswer),
                (Part::Offset | Part::AddressRead, BYTE) if level => self.fail(Fault::Refused),
                (Part::Address, BYTE) => self.begin(Part::Offset),
                (Part::Offset, BYTE) => self.begin(Part::Start { again: true }),
                (Part::AddressRead, BYTE) => self.begin(Part::Bytes),
                (Part::Address, n) => return Some(Self::bit(ADDRESS, n)),
                (Part::Offset, n) => return Some(Self::bit(self.offset, n)),
                (Part::AddressRead, n) => return Some(Self::bit(ADDRESS | READ, n)),
                (Part::Bytes, BYTE) => {
                    if let Some(byte) = self.bytes.get_mut(self.count) {
                        *byte = self.shift;
                    }
                    self.count = self.count.saturating_add(1);
                    self.begin(if self.count < CHUNK { Part::Bytes } else { Part::Stop });
                }
                (Part::Bytes, n) => {
                    if !up && (1..=BITS).contains(&n) {
                        self.shift = self.shift << 1 | u8::from(level);
                    }
                    // All bytes but the last are acknowledged: data stays down.
                    let last = self.count.saturating_add(1) >= CHUNK;
                    return Some(if up { Change::Up } else { Change::Down { data: n < BITS || last } });
                }
                (Part::Stop, 0) => return Some(Change::Down { data: false }),
                (Part::Stop, 1) => return Some(Change::Up),
                (Part::Stop, 2) => return Some(Change::Data(true)),
                (Part::Stop, _) => self.begin(Part::Over),
                (Part::Over, _) => return None,
            }
        }
    }

    /// The `n`th change for a byte to the module. Data is let go for the acknowledgement.
    fn bit(byte: u8, n: u8) -> Change {
        if n & 1 == 1 {
            return Change::Up;
        }
        Change::Down { data: n >= BITS || byte & (0x80 >> (n >> 1)) != 0 }
    }
}

const _: () = assert!(BYTE == 2 * CLEARING);
