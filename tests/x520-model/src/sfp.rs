//! Modules for the SFP+ cage: what their EEPROMs say (SFF-8472, SFF-8431).
//!
//! Each is a kind that people use. The bytes are facts of the standards: identifier, connector, compliance codes, cable
//! technology, encoding, rates, checksums. Vendor and part are names that a test can look for.

/// The module's EEPROM at address 0xa0, and what the module does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    bytes: [u8; 256],
    /// Name for commands and messages.
    pub name: &'static str,
    /// It carries 10 Gb/s.
    pub ten: bool,
    /// It carries 1 Gb/s.
    pub one: bool,
}

/// A row of the table of modules.
struct Row {
    name: &'static str,
    /// Identifier (byte 0): 3 is SFP or SFP+, 0x0d is QSFP+.
    identifier: u8,
    /// Connector (byte 2): 0x07 LC, 0x21 copper pigtail, 0x22 RJ45.
    connector: u8,
    /// 10G compliance (byte 3): 0x10 SR, 0x20 LR, 0x80 ER.
    ten: u8,
    /// 1G compliance (byte 6): 1 SX, 2 LX, 8 T.
    one: u8,
    /// Cable technology (byte 8): 4 passive, 8 active.
    cable: u8,
    /// Encoding (byte 11): 6 is 64B/66B, 1 is 8B/10B.
    encoding: u8,
    /// Nominal rate in units of 100 Mb/s (byte 12).
    rate: u8,
    /// Wavelength in nm, or the cable's compliance in the upper byte: 4 is limiting (bytes 60 and 61).
    wavelength: u16,
    vendor: &'static str,
    oui: [u8; 3],
    part: &'static str,
}

const INTEL: [u8; 3] = [0x00, 0x1b, 0x21];
const OTHER: [u8; 3] = [0x00, 0x90, 0x65];

#[rustfmt::skip]
const MODULES: &[Row] = &[
    Row { name: "sr", identifier: 3, connector: 0x07, ten: 0x10, one: 0, cable: 0, encoding: 6, rate: 103, wavelength: 850, vendor: "Intel Corp", oui: INTEL, part: "MODEL-SR" },
    Row { name: "lr", identifier: 3, connector: 0x07, ten: 0x20, one: 0, cable: 0, encoding: 6, rate: 103, wavelength: 1310, vendor: "Intel Corp", oui: INTEL, part: "MODEL-LR" },
    Row { name: "dual-sr", identifier: 3, connector: 0x07, ten: 0x10, one: 1, cable: 0, encoding: 6, rate: 103, wavelength: 850, vendor: "Intel Corp", oui: INTEL, part: "MODEL-SX-SR" },
    Row { name: "foreign-sr", identifier: 3, connector: 0x07, ten: 0x10, one: 0, cable: 0, encoding: 6, rate: 103, wavelength: 850, vendor: "SOMEBODY", oui: OTHER, part: "SB-SR-85" },
    Row { name: "er", identifier: 3, connector: 0x07, ten: 0x80, one: 0, cable: 0, encoding: 6, rate: 103, wavelength: 1550, vendor: "Intel Corp", oui: INTEL, part: "MODEL-ER" },
    Row { name: "passive", identifier: 3, connector: 0x21, ten: 0, one: 0, cable: 4, encoding: 0, rate: 103, wavelength: 0x0100, vendor: "CABLES", oui: OTHER, part: "DAC-3M" },
    Row { name: "active", identifier: 3, connector: 0x21, ten: 0, one: 0, cable: 8, encoding: 0, rate: 103, wavelength: 0x0400, vendor: "CABLES", oui: OTHER, part: "ACU-7M" },
    Row { name: "active-linear", identifier: 3, connector: 0x21, ten: 0, one: 0, cable: 8, encoding: 0, rate: 103, wavelength: 0x0100, vendor: "CABLES", oui: OTHER, part: "ACL-7M" },
    Row { name: "sx", identifier: 3, connector: 0x07, ten: 0, one: 1, cable: 0, encoding: 1, rate: 13, wavelength: 850, vendor: "SOMEBODY", oui: OTHER, part: "SB-SX" },
    Row { name: "lx", identifier: 3, connector: 0x07, ten: 0, one: 2, cable: 0, encoding: 1, rate: 13, wavelength: 1310, vendor: "SOMEBODY", oui: OTHER, part: "SB-LX" },
    Row { name: "t", identifier: 3, connector: 0x22, ten: 0, one: 8, cable: 0, encoding: 1, rate: 13, wavelength: 0, vendor: "SOMEBODY", oui: OTHER, part: "SB-T" },
    // 10GBASE-T modules set no code that an 82599 knows.
    Row { name: "ten-t", identifier: 3, connector: 0x22, ten: 0, one: 0, cable: 0, encoding: 6, rate: 103, wavelength: 0, vendor: "SOMEBODY", oui: OTHER, part: "SB-10T" },
    Row { name: "qsfp", identifier: 0x0d, connector: 0x0c, ten: 0, one: 0, cable: 0, encoding: 5, rate: 103, wavelength: 850, vendor: "SOMEBODY", oui: OTHER, part: "SB-Q" },
];

impl Module {
    /// The module of that name: `sr`, `lr`, `dual-sr` (SR at 10 Gb/s and SX at 1 Gb/s), `foreign-sr`, `er`, `passive`,
    /// `active`, `active-linear`, `sx`, `lx`, `t`, `ten-t`, `qsfp`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        MODULES.iter().find(|row| row.name == name).map(Row::module)
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        MODULES.iter().map(Row::module)
    }

    /// The same with another byte at `at`, and with the checksums as they were: they no longer fit.
    #[must_use]
    pub fn with_byte(mut self, at: u8, value: u8) -> Self {
        self.bytes[usize::from(at)] = value;
        self
    }

    /// The EEPROM's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn byte(&self, at: u8) -> u8 {
        self.bytes[usize::from(at)]
    }

    /// Its cable is a part of it.
    pub(crate) fn is_cable(&self) -> bool {
        self.bytes[8] & 0x0c != 0
    }

    /// The rate select input chooses between its two rates.
    pub(crate) fn has_rates(&self) -> bool {
        self.ten && self.one
    }
}

impl Row {
    fn module(&self) -> Module {
        let mut c = [0; 256];
        c[..4].copy_from_slice(&[self.identifier, 4, self.connector, self.ten]);
        c[6] = self.one;
        c[8] = self.cable;
        c[11] = self.encoding;
        c[12] = self.rate;
        if self.connector == 7 {
            // Metres over fibre, in units of 10.
            c[16..20].copy_from_slice(&[8, 3, 0, 30]);
        }
        text(&mut c[20..36], self.vendor);
        c[37..40].copy_from_slice(&self.oui);
        text(&mut c[40..56], self.part);
        text(&mut c[56..60], "1");
        c[60..62].copy_from_slice(&self.wavelength.to_be_bytes());
        // Loss of signal, transmitter fault and transmitter disable are wired.
        c[65] = 0x1a;
        text(&mut c[68..84], "0");
        text(&mut c[84..92], "260101");
        let sum = |part: &[u8]| part.iter().fold(0u8, |a, b| a.wrapping_add(*b));
        c[63] = sum(&c[..63]);
        c[95] = sum(&c[64..95]);
        let one = self.one != 0;
        Module { bytes: c, name: self.name, ten: self.ten != 0 || self.rate > 100, one }
    }
}

/// Text that blanks fill up.
fn text(into: &mut [u8], text: &str) {
    into.fill(b' ');
    into[..text.len()].copy_from_slice(text.as_bytes());
}
