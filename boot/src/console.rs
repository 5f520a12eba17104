//! Chooses the serial ports: that of people's console, and that of programs (JSON lines).
//!
//! ```text
//!  console= on the command line ──▶ else ACPI's SPCR, if it names a 16550 at I/O ports ──▶ else COM1
//!  json= on the command line    ──▶ else COM2, or COM1 if COM2 is people's
//! ```
//!
//! If `json=` names the port that people have, both share it (`control::SharedOutput`).
//!
//! A word that makes no sense counts as not there. It allocates nothing, because it runs before there is memory.

use crate::acpi::Spcr;
use crate::uart::is_rate;
pub use crate::uart::{USUAL_RATE, Uart};

/// Ports of COM1 to COM4.
const COM: [u16; 4] = [0x3f8, 0x2f8, 0x3e8, 0x2e8];
/// The port of COM1.
pub const COM1: u16 = COM[0];
/// The port of COM2.
pub const COM2: u16 = COM[1];

/// Why people's console is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line says so.
    CommandLine,
    /// ACPI's SPCR says so.
    Spcr,
    /// Nothing says anything else.
    Usual,
    /// ACPI's SPCR names something that cannot be used.
    Unusable(Spcr),
}

/// The serial ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consoles {
    /// People's. `None`: there shall be none.
    pub people: Option<Uart>,
    /// Why there.
    pub source: Source,
    /// Programs'. `None`: there shall be none.
    pub programs: Option<Uart>,
    /// Programs may share people's port, because the command line names this one for them. Its rate is people's then.
    pub may_share: bool,
}

impl Consoles {
    /// Where nothing is known of the machine.
    pub const USUAL: Self = Self {
        people: Some(Uart::usual(COM1)),
        source: Source::Usual,
        programs: Some(Uart::usual(COM2)),
        may_share: false,
    };

    /// Whether programs share the port that people have got.
    #[must_use]
    pub fn share(&self, people: u16) -> bool {
        self.may_share && self.programs.is_some_and(|uart| uart.port == people)
    }
}

/// Reads the value of `console=` or `json=`: `com1` to `com4` or a port such as `0x3f8`, then perhaps `,RATE`; or `none`, which is
/// `Some(None)`. `None`: it makes no sense.
#[must_use]
pub fn parse(value: &str) -> Option<Option<Uart>> {
    if value == "none" {
        return Some(None);
    }
    let (place, rate) = match value.split_once(',') {
        Some((place, rate)) => (place, rate.parse().ok().filter(|&rate| is_rate(rate))?),
        None => (value, USUAL_RATE),
    };
    let port = match place.strip_prefix("0x") {
        // Eight ports, and none that a PC's chipset has for itself.
        Some(digits) => u16::from_str_radix(digits, 16).ok().filter(|port| (0x100..=0xfff8).contains(port))?,
        None => {
            let number: usize = place.strip_prefix("com")?.parse().ok()?;
            *COM.get(number.checked_sub(1)?)?
        }
    };
    Some(Some(Uart { port, rate: Some(rate) }))
}

/// The value of the last word `KEY=` that makes sense.
fn word(command_line: &str, key: &str) -> Option<Option<Uart>> {
    command_line.split_whitespace().filter_map(|word| parse(word.strip_prefix(key)?)).next_back()
}

/// Chooses the ports by the kernel's command line and what ACPI's SPCR says.
#[must_use]
pub fn choose(command_line: &str, spcr: Option<Spcr>) -> Consoles {
    let usual = Some(Uart::usual(COM1));
    let (people, source) = match (word(command_line, "console="), spcr) {
        (Some(people), _) => (people, Source::CommandLine),
        (None, Some(Spcr::Uart(uart))) => (Some(uart), Source::Spcr),
        (None, None | Some(Spcr::Off)) => (usual, Source::Usual),
        (None, Some(other)) => (usual, Source::Unusable(other)),
    };
    let taken = |port| people.is_some_and(|uart| uart.port == port);
    let (programs, may_share) = match word(command_line, "json=") {
        Some(programs) => (programs, true),
        None => (Some(Uart::usual(if taken(COM2) { COM1 } else { COM2 })), false),
    };
    Consoles { people, source, programs, may_share }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn uart(port: u16, rate: u32) -> Uart {
        Uart { port, rate: Some(rate) }
    }

    #[test]
    fn a_port_is_a_name_or_a_number_with_a_rate() {
        for (value, expected) in [
            ("com1", uart(0x3f8, 115_200)),
            ("com4", uart(0x2e8, 115_200)),
            ("com2,57600", uart(0x2f8, 57_600)),
            ("0x3220,9600", uart(0x3220, 9_600)),
            ("0xfff8", uart(0xfff8, 115_200)),
        ] {
            assert_eq!(parse(value), Some(Some(expected)), "{value}");
        }
        assert_eq!(parse("none"), Some(None));
        for wrong in [
            "",
            "com",
            "com0",
            "com5",
            "com1,",
            "com1,0",
            "com1,115201",
            "com1,1200",
            "3f8",
            "0x",
            "0x80",
            "0xfff9",
            "0x10000",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_command_line_comes_before_the_firmware_and_that_before_com1() {
        let said = Uart { port: 0x2f8, rate: None };
        let people = |line, spcr| {
            let consoles = choose(line, spcr);
            (consoles.people, consoles.source)
        };
        let com1 = Some(uart(COM1, 115_200));
        assert_eq!(people("emulator", None), (com1, Source::Usual));
        assert_eq!(people("", Some(Spcr::Uart(said))), (Some(said), Source::Spcr));
        assert_eq!(people("", Some(Spcr::Off)), (com1, Source::Usual));
        let unusable = Spcr::InMemory(0xfe00_0000);
        assert_eq!(people("", Some(unusable)), (com1, Source::Unusable(unusable)));
        assert_eq!(people("console=com1 x", Some(Spcr::Uart(said))), (com1, Source::CommandLine));
        assert_eq!(people("console=none", Some(unusable)), (None, Source::CommandLine));
        assert_eq!(people("console=com9", Some(Spcr::Uart(said))), (Some(said), Source::Spcr));
        assert_eq!(people("console=com2 console=com3", None), (Some(uart(0x3e8, 115_200)), Source::CommandLine));
    }

    #[test]
    fn programs_get_the_other_port() {
        let programs = |line| choose(line, None).programs.map(|uart| uart.port);
        assert_eq!(programs(""), Some(COM2));
        assert_eq!(programs("console=com2"), Some(COM1));
        assert_eq!(programs("console=none"), Some(COM2));
        assert_eq!(programs("json=com3,9600"), Some(0x3e8));
        assert_eq!(programs("json=none"), None);
        assert_eq!(programs("json=com1 console=com2"), Some(COM1));
        assert_eq!(Consoles::USUAL, choose("", None));
    }

    #[test]
    fn people_and_programs_share_a_port_only_if_the_command_line_names_it_for_programs() {
        let share = |line, spcr, people| choose(line, spcr).share(people);
        assert!(share("json=com1", None, COM1));
        assert!(share("console=com2 json=com2,9600", None, COM2));
        assert!(share("json=com2", Some(Spcr::Uart(Uart { port: COM2, rate: None })), COM2));
        assert!(!share("json=com3", None, COM1));
        assert!(!share("json=none", None, COM1));
        // No UART answers at people's port, and they get COM1.
        assert!(share("console=com3 json=com1", None, COM1));
        assert!(!share("console=com2", None, COM1), "nobody has named COM1 for programs");
    }
}
