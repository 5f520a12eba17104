//! The SFP+ module in the cage: its side of the bus (SFF-8472; the I2C specification).
//!
//! The driver bit-bangs; the module answers as an EEPROM of 256 bytes at address 0xa0: a start condition, the address, a
//! byte that sets where to read, a repeated start and bytes one after another until one is not acknowledged.

/// Address on the bus, with the bit for reading.
const ADDRESS: u8 = 0xa0;
const READ: u8 = 1;

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

/// The module's side of the bus.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sfp {
    clock: bool,
    data: bool,
    phase: Phase,
    /// Clock cycles of the byte under way; the ninth is its acknowledgement.
    bits: u8,
    shift: u8,
    offset: u8,
    /// The module lets go of the data wire.
    pub(crate) released: bool,
    /// The last byte that went was acknowledged.
    wanted: bool,
}

impl Default for Sfp {
    fn default() -> Self {
        Self { clock: true, data: true, phase: Phase::Idle, bits: 0, shift: 0, offset: 0, released: true, wanted: true }
    }
}

/// What the module says of itself: 10GBASE-SR, LC, by Intel.
fn contents() -> [u8; 256] {
    let mut c = [0; 256];
    c[..16].copy_from_slice(&[0x03, 0x04, 0x07, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x06, 103, 0, 0, 0]);
    c[16..20].copy_from_slice(&[8, 3, 0, 30]);
    c[20..36].copy_from_slice(b"Intel Corp      ");
    c[37..40].copy_from_slice(&[0x00, 0x1b, 0x21]);
    c[40..56].copy_from_slice(b"MODEL-SR        ");
    c[56..60].copy_from_slice(b"1   ");
    c[60..62].copy_from_slice(&850u16.to_be_bytes());
    c[65] = 0x1a;
    c[68..84].copy_from_slice(b"0               ");
    c[84..92].copy_from_slice(b"260101  ");
    let sum = |part: &[u8]| part.iter().fold(0u8, |a, b| a.wrapping_add(*b));
    c[63] = sum(&c[..63]);
    c[95] = sum(&c[64..95]);
    c
}

impl Sfp {
    /// The wires as the driver drives them now.
    pub(crate) fn drive(&mut self, clock: bool, data: bool) {
        let (was_clock, was_data) = (self.clock, self.data);
        (self.clock, self.data) = (clock, data);
        match (was_clock, clock) {
            // Data that changes while the clock is high is a start or a stop.
            (true, true) if was_data && !data => self.begin(Phase::Address),
            (true, true) if !was_data && data => self.begin(Phase::Idle),
            (false, true) => self.rise(data),
            (true, false) => self.fall(),
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
    fn fall(&mut self) {
        match (self.phase, self.bits) {
            (Phase::Idle, _) => {}
            // Its eight bits have come: acknowledged if it is for us.
            (Phase::Read, 8) => self.released = true,
            (Phase::Address, 8) if self.shift & !READ != ADDRESS => self.begin(Phase::Idle),
            (_, 8) => self.released = false,
            (phase, 9) => {
                self.bits = 0;
                self.released = true;
                self.next(phase);
            }
            (Phase::Read, bits) => self.released = self.byte() << bits & 0x80 != 0,
            _ => {}
        }
    }

    /// A byte and its acknowledgement are over.
    fn next(&mut self, phase: Phase) {
        match phase {
            Phase::Address if self.shift & READ != 0 => self.send(),
            Phase::Address => self.phase = Phase::Offset,
            Phase::Offset => (self.offset, self.phase) = (self.shift, Phase::Write),
            Phase::Write => self.offset = self.offset.wrapping_add(1),
            Phase::Read => {
                self.offset = self.offset.wrapping_add(1);
                if self.wanted { self.send() } else { self.begin(Phase::Idle) }
            }
            Phase::Idle => {}
        }
    }

    fn send(&mut self) {
        self.phase = Phase::Read;
        self.released = self.byte() & 0x80 != 0;
    }

    fn byte(&self) -> u8 {
        contents()[usize::from(self.offset)]
    }
}
