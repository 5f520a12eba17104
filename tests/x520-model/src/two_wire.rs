//! The module's side of the two wires (SFF-8472; the I2C specification).
//!
//! The driver bit-bangs; the module answers as an EEPROM of 256 bytes at address 0xa0: a start condition, the address, a
//! byte that sets where to read, a repeated start and bytes one after another until one is not acknowledged.

use crate::sfp::Module;

/// Address on the bus, with the bit for reading.
const ADDRESS: u8 = 0xa0;
const READ: u8 = 1;
/// Clocks after which a module that holds the data wire lets go of it.
const CLEARS: u8 = 9;

/// I2CCTL: the clock as it is on the wire, as the driver pulls it; data likewise.
pub(crate) const CLOCK_IN: u32 = 1;
pub(crate) const CLOCK_OUT: u32 = 1 << 1;
pub(crate) const DATA_IN: u32 = 1 << 2;
pub(crate) const DATA_OUT: u32 = 1 << 3;

/// The wires as the driver drives them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Driven {
    pub(crate) value: u32,
    /// When the clock last changed on the wire.
    pub(crate) changed: u64,
    /// The module holds the clock down until then.
    pub(crate) held: u64,
}

impl Driven {
    /// As after a reset at `now`: nobody pulls.
    pub(crate) fn released(now: u64) -> Self {
        Self { value: CLOCK_OUT | DATA_OUT, changed: now, held: 0 }
    }
}

/// What happens on the bus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nothing, or something for others.
    #[default]
    Idle,
    /// The address comes.
    Address,
    /// Where to read or write comes.
    Offset,
    /// Bytes come; they are not kept, as the module cannot be written.
    Write,
    /// Bytes go.
    Read,
}

/// What goes wrong on the bus.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trouble {
    /// Nobody answers.
    pub silent: bool,
    /// Each so many bytes one is not acknowledged, or arrives with a bit changed. 0: never.
    pub bad_byte: u32,
}

/// The module's side of the bus.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TwoWire {
    clock: bool,
    data: bool,
    phase: Phase,
    /// Clock cycles of the byte under way; the ninth is its acknowledgement.
    bits: u8,
    shift: u8,
    offset: u8,
    /// The module lets go of the data wire.
    released: bool,
    /// The last byte that went was acknowledged.
    wanted: bool,
    /// Clocks for which the module still holds the data wire down, whatever comes.
    stuck: u8,
    /// Bytes so far.
    bytes: u32,
    /// A byte has ended with this change of the wires.
    pub(crate) byte_ended: bool,
}

impl Default for TwoWire {
    fn default() -> Self {
        Self {
            clock: true,
            data: true,
            phase: Phase::Idle,
            bits: 0,
            shift: 0,
            offset: 0,
            released: true,
            wanted: true,
            stuck: 0,
            bytes: 0,
            byte_ended: false,
        }
    }
}

impl TwoWire {
    /// Whether the module lets the data wire go up.
    pub(crate) fn lets_go(&self) -> bool {
        self.released && self.stuck == 0
    }

    /// The module holds the data wire down until nine clocks have passed: a transfer was broken off in a byte.
    pub(crate) fn stick(&mut self) {
        self.stuck = CLEARS;
    }

    /// The wires as they are now: the clock, and the data as the driver drives it. `module`: what is in the cage.
    pub(crate) fn drive(&mut self, clock: bool, data: bool, module: Option<&Module>, trouble: Trouble) {
        let (was_clock, was_data) = (self.clock, self.data);
        (self.clock, self.data) = (clock, data);
        self.byte_ended = false;
        let Some(module) = module.filter(|_| !trouble.silent) else { return self.begin(Phase::Idle) };
        if self.stuck > 0 {
            self.stuck -= u8::from(was_clock && !clock);
            return self.begin(Phase::Idle);
        }
        match (was_clock, clock) {
            // Data that changes while the clock is high is a start or a stop.
            (true, true) if was_data && !data => self.begin(Phase::Address),
            (true, true) if !was_data && data => self.begin(Phase::Idle),
            (false, true) => self.rise(data),
            (true, false) => self.fall(module, trouble),
            _ => {}
        }
    }

    fn begin(&mut self, phase: Phase) {
        (self.phase, self.bits, self.released) = (phase, 0, true);
    }

    /// The wire is read, by whose turn it is.
    fn rise(&mut self, data: bool) {
        if self.phase == Phase::Idle {
            return;
        }
        if self.bits < 8 && self.phase != Phase::Read {
            self.shift = self.shift << 1 | u8::from(data);
        } else if self.bits == 8 && self.phase == Phase::Read {
            self.wanted = !data;
        }
        self.bits += 1;
    }

    /// The wire may change.
    fn fall(&mut self, module: &Module, trouble: Trouble) {
        let bad = trouble.bad_byte != 0 && self.bytes % trouble.bad_byte == trouble.bad_byte - 1;
        match (self.phase, self.bits) {
            (Phase::Idle, _) => {}
            (Phase::Read, 8) => self.released = true,
            (Phase::Address, 8) if self.shift & !READ != ADDRESS => self.begin(Phase::Idle),
            (_, 8) if bad => {
                self.bytes += 1;
                self.begin(Phase::Idle);
            }
            // Its eight bits have come: acknowledged.
            (_, 8) => self.released = false,
            (phase, 9) => {
                self.bits = 0;
                self.bytes += 1;
                self.released = true;
                self.byte_ended = true;
                self.next(phase, module, trouble);
            }
            (Phase::Read, bits) => self.released = self.byte(module, trouble) << bits & 0x80 != 0,
            _ => {}
        }
    }

    /// A byte and its acknowledgement are over.
    fn next(&mut self, phase: Phase, module: &Module, trouble: Trouble) {
        match phase {
            Phase::Address if self.shift & READ != 0 => self.send(module, trouble),
            Phase::Address => self.phase = Phase::Offset,
            Phase::Offset => (self.offset, self.phase) = (self.shift, Phase::Write),
            Phase::Write => self.offset = self.offset.wrapping_add(1),
            Phase::Read => {
                self.offset = self.offset.wrapping_add(1);
                if self.wanted { self.send(module, trouble) } else { self.begin(Phase::Idle) }
            }
            Phase::Idle => {}
        }
    }

    fn send(&mut self, module: &Module, trouble: Trouble) {
        self.phase = Phase::Read;
        self.released = self.byte(module, trouble) & 0x80 != 0;
    }

    fn byte(&self, module: &Module, trouble: Trouble) -> u8 {
        let bad = trouble.bad_byte != 0 && self.bytes % trouble.bad_byte == trouble.bad_byte - 1;
        module.byte(self.offset) ^ if bad { 1 << (self.bytes & 7) } else { 0 }
    }
}
