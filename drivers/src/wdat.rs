//! The watchdog that ACPI's table WDAT describes (Microsoft's "Hardware Watchdog Timers Design Specification", to which
//! ACPI 6.5, table 5.6, refers): reads whether it runs, stops it, arms it and feeds it.
//!
//! The table has a head with the timer's period, and instructions of 24 bytes. All instructions with the same action
//! number, in their order, are the program for that action.
//!
//! ```text
//!  Table::new ─▶ checked instructions of the actions that are used ─▶ stop, arm, feed ─▶ Bus
//! ```
//!
//! The firmware wrote the table, and firmware has mistakes. A table is taken as a whole or not at all: a program of which
//! a part cannot be carried out would leave the watchdog half armed. Actions that sidecore does not use are not looked
//! at. With them firmware keeps its own notes, some of it in the CMOS RAM.

use crate::generic::{self, Register, Space};
use crate::watchdog::Became;
use alloc::vec::Vec;
use core::fmt;

/// Bytes of the head, with that of every ACPI table.
const HEAD: usize = 68;
/// Bytes of an instruction.
const ENTRY: usize = 24;
/// Most instructions that a table may have. Real ones have about 20.
const MOST: usize = 256;
/// Longest period of the timer in milliseconds: an hour.
const LONGEST_PERIOD: u32 = 3_600_000;

/// What programs are for, as far as they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// Feeds the watchdog: it counts from its beginning again.
    Feed = 0x01,
    /// Reads the periods that are left.
    Left = 0x04,
    /// Sets the periods from a feed to the reset.
    SetCount = 0x06,
    /// Reads whether it runs.
    IsRunning = 0x08,
    /// Starts it.
    Start = 0x09,
    /// Stops it.
    Stop = 0x0b,
    /// Reads whether it resets the machine when its time is over.
    Resets = 0x10,
    /// Has it reset the machine when its time is over.
    SetReset = 0x11,
}

impl Action {
    const ALL: [Self; 8] = [
        Self::Feed,
        Self::Left,
        Self::SetCount,
        Self::IsRunning,
        Self::Start,
        Self::Stop,
        Self::Resets,
        Self::SetReset,
    ];
}

impl fmt::Display for Action {
    /// The name that the specification gives it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Feed => "RESET",
            Self::Left => "QUERY_CURRENT_COUNTDOWN_PERIOD",
            Self::SetCount => "SET_COUNTDOWN_PERIOD",
            Self::IsRunning => "QUERY_RUNNING_STATE",
            Self::Start => "SET_RUNNING_STATE",
            Self::Stop => "SET_STOPPED_STATE",
            Self::Resets => "QUERY_REBOOT",
            Self::SetReset => "SET_REBOOT",
        })
    }
}

/// What an instruction does with its register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    /// Whether the field has the instruction's value.
    Compare,
    /// The field.
    Read,
    /// Writes the instruction's value to the field.
    Write,
    /// Writes the program's input to the field.
    WriteInput,
}

/// An instruction that can be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    action: Action,
    instruction: Instruction,
    /// The register's other bits stay as they are.
    preserves: bool,
    register: Register,
    value: u32,
    mask: u32,
}

/// Why a table is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It is cut off: so many bytes are there, and so many instructions are said to be.
    CutOff(usize, u32),
    /// The firmware has switched the watchdog off.
    Off,
    /// It is for a watchdog that is a PCI function: bus, device, function.
    Pci(u8, u8, u8),
    /// The timer's period in milliseconds is none.
    Period(u32),
    /// The least number of periods is greater than the greatest one, or that is 0.
    Counts(u32, u32),
    /// The program for this action has an instruction of this number, which there is not.
    Instruction(Action, u8),
    /// The program for this action has an address that is none: its first bytes, and its last eight.
    Address(Action, [u8; 4], u64),
    /// The mask of an instruction of this program has bits that its register does not have.
    Mask(Action, Register, u32),
    /// A register of this program is something that sidecore has or uses itself.
    Taken(Action, Register),
    /// There is no program for this action.
    Missing(Action),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CutOff(bytes, count) => {
                write!(f, "it has {bytes} bytes, which are too few for its head and {count} instructions")
            }
            Self::Off => f.write_str("the firmware has switched its watchdog off"),
            Self::Pci(bus, device, function) => {
                write!(f, "it is for a watchdog that is the PCI function {bus:02x}:{device:02x}.{function:x}")
            }
            Self::Period(millis) => {
                write!(f, "its period is {millis} ms, where 1 to {LONGEST_PERIOD} are expected")
            }
            Self::Counts(least, most) => write!(f, "its timer counts at least {least} periods, and at most {most}"),
            Self::Instruction(action, number) => {
                write!(f, "its program for {action} has the instruction {number:#x}, which is unknown")
            }
            Self::Address(action, [space, bits, bit, access], address) => write!(
                f,
                "its program for {action} has an address that is none: {address:#x} in space {space}, {bits} bits from bit \
                 {bit} on, access size {access}"
            ),
            Self::Mask(action, register, mask) => write!(
                f,
                "its program for {action} has the mask {mask:#x} from bit {} on, which {register} does not have",
                register.bit
            ),
            Self::Taken(action, register) => {
                write!(f, "its program for {action} names {register}, which is not a watchdog's")
            }
            Self::Missing(action) => write!(f, "it has no program for {action}"),
        }
    }
}

/// What programs reach. The registers are only those of the table.
pub trait Bus {
    /// Reads 1, 2 or 4 bytes.
    fn read(&mut self, register: Register) -> u32;
    /// Writes 1, 2 or 4 bytes.
    fn write(&mut self, register: Register, value: u32);
}

/// Why a watchdog is not armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotArmed {
    /// There is no program for this action.
    Missing(Action),
    /// It takes seconds in this range only.
    Range(u64, u64),
    /// It does not reset the machine when its time is over.
    ResetsNothing,
    /// It does not start.
    Stays,
}

/// The table, with programs that can be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Milliseconds of a period.
    period: u32,
    /// Fewest and most periods.
    counts: (u32, u32),
    entries: Vec<Entry>,
}

impl Table {
    /// Reads a table with its head. `is_taken`: whether a register is something that is not a watchdog's. Legacy devices
    /// of the PC and the ports of PCI's configuration space are not asked about.
    ///
    /// # Errors
    /// It is not used as a whole.
    pub fn new(table: &[u8], is_taken: impl Fn(Register) -> bool) -> Result<Self, Unusable> {
        let double =
            |at: usize| table.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u32::from_le_bytes(*bytes));
        let count = double(64).unwrap_or(0);
        let cut_off = Unusable::CutOff(table.len(), count);
        let (Some(period), Some(most), Some(least), Some(body)) =
            (double(48), double(52), double(56), table.get(HEAD..))
        else {
            return Err(cut_off);
        };
        let whole = body.as_chunks::<ENTRY>().0;
        let entries = usize::try_from(count).ok().filter(|count| *count <= MOST).and_then(|count| whole.get(..count));
        let entries = entries.ok_or(cut_off)?;
        const ENABLED: u8 = 1;
        if table.get(60).is_none_or(|flags| flags & ENABLED == 0) {
            return Err(Unusable::Off);
        }
        if let Some(&[bus, device, function]) = table.get(42..45).filter(|function| *function != [0xff; 3]) {
            return Err(Unusable::Pci(bus, device, function));
        }
        if !(1..=LONGEST_PERIOD).contains(&period) {
            return Err(Unusable::Period(period));
        }
        if least > most || most == 0 {
            return Err(Unusable::Counts(least, most));
        }
        let entries = entries.iter().filter_map(|bytes| entry(bytes, &is_taken)).collect::<Result<_, _>>()?;
        let table = Self { period, counts: (least, most), entries };
        match [Action::IsRunning, Action::Stop, Action::Feed].into_iter().find(|action| !table.has(*action)) {
            Some(missing) => Err(Unusable::Missing(missing)),
            None => Ok(table),
        }
    }

    /// The registers of its programs, and what the programs are for. Some are there several times.
    pub fn registers(&self) -> impl Iterator<Item = (Action, Register)> {
        self.entries.iter().map(|entry| (entry.action, entry.register))
    }

    /// Whether a program of its writes to one of these ports, so that it is for the watchdog with these ports.
    #[must_use]
    pub fn writes_to(&self, ports: core::ops::Range<u16>) -> bool {
        let (start, end) = (u64::from(ports.start), u64::from(ports.end));
        self.entries.iter().any(|entry| {
            let Register { space, address, .. } = entry.register;
            let writes = matches!(entry.instruction, Instruction::Write | Instruction::WriteInput);
            writes && space == Space::Ports && address < end && start < entry.register.end()
        })
    }

    fn has(&self, action: Action) -> bool {
        self.entries.iter().any(|entry| entry.action == action)
    }

    /// Carries out the program for an action with an input. Returns what it has read last; a comparison that holds is 1.
    /// `None`: there is none, or it reads nothing.
    fn run(&self, action: Action, input: u32, bus: &mut impl Bus) -> Option<u32> {
        let mut output = None;
        for entry in self.entries.iter().filter(|entry| entry.action == action) {
            let Entry { register, value, mask, preserves, .. } = *entry;
            // `Table::new` has seen to it that the mask's bits are the register's.
            let in_place = mask.unbounded_shl(register.bit.into());
            let mut write = |value: u32| {
                let kept = if preserves { bus.read(register) & !in_place } else { 0 };
                bus.write(register, (value & mask).unbounded_shl(register.bit.into()) | kept);
            };
            match entry.instruction {
                Instruction::Write => write(value),
                Instruction::WriteInput => write(input),
                Instruction::Read | Instruction::Compare => {
                    let field = bus.read(register).unbounded_shr(register.bit.into()) & mask;
                    let is_comparison = entry.instruction == Instruction::Compare;
                    output = Some(if is_comparison { u32::from(field == value) } else { field });
                }
            }
        }
        output
    }

    fn is_running(&self, bus: &mut impl Bus) -> bool {
        self.run(Action::IsRunning, 0, bus) == Some(1)
    }

    /// Stops the watchdog if it runs.
    pub fn stop(&self, bus: &mut impl Bus) -> Became {
        if !self.is_running(bus) {
            return Became::Off;
        }
        let periods = self.run(Action::Left, 0, bus);
        let left = periods.map(|periods| u64::from(periods).saturating_mul(self.period.into()) / 1000);
        self.run(Action::Stop, 0, bus);
        if self.is_running(bus) { Became::Runs { left } } else { Became::Stopped { left } }
    }

    /// Has the watchdog reset the machine if it is not fed for so many seconds. Rounds up to a whole period.
    ///
    /// # Errors
    /// It cannot be armed, and is stopped as far as that can be done.
    pub fn arm(&self, bus: &mut impl Bus, seconds: u16) -> Result<(), NotArmed> {
        if let Some(missing) = [Action::SetCount, Action::Start].into_iter().find(|action| !self.has(*action)) {
            return Err(NotArmed::Missing(missing));
        }
        let periods = u32::from(seconds).saturating_mul(1000).div_ceil(self.period);
        let (least, most) = self.counts;
        if !(least..=most).contains(&periods) {
            let seconds = |count: u32| u64::from(count).saturating_mul(self.period.into());
            return Err(NotArmed::Range(seconds(least).div_ceil(1000), seconds(most) / 1000));
        }
        self.run(Action::Stop, 0, bus);
        self.run(Action::SetReset, 0, bus);
        if self.run(Action::Resets, 0, bus) == Some(0) {
            return Err(NotArmed::ResetsNothing);
        }
        self.run(Action::SetCount, periods, bus);
        self.feed(bus);
        self.run(Action::Start, 0, bus);
        self.feed(bus);
        if self.is_running(bus) {
            return Ok(());
        }
        self.run(Action::Stop, 0, bus);
        Err(NotArmed::Stays)
    }

    /// Feeds the watchdog.
    pub fn feed(&self, bus: &mut impl Bus) {
        self.run(Action::Feed, 0, bus);
    }
}

/// Reads an instruction. `None`: its action is not used.
fn entry(bytes: &[u8; ENTRY], is_taken: impl Fn(Register) -> bool) -> Option<Result<Entry, Unusable>> {
    const PRESERVE: u8 = 0x80;
    let [action, instruction, _, _, rest @ ..] = *bytes;
    let action = Action::ALL.into_iter().find(|known| *known as u8 == action)?;
    let (address, numbers) = rest.split_first_chunk::<{ generic::BYTES }>()?;
    let (&value, mask) = numbers.split_first_chunk()?;
    let (value, mask) = (u32::from_le_bytes(value), u32::from_le_bytes(*mask.first_chunk()?));
    let preserves = instruction & PRESERVE != 0;
    let instruction = match instruction & !PRESERVE {
        0 => Instruction::Compare,
        1 => Instruction::Read,
        2 => Instruction::Write,
        3 => Instruction::WriteInput,
        other => return Some(Err(Unusable::Instruction(action, other))),
    };
    let can_be = |register: &Register| {
        register.bytes <= 4
            && (register.space == Space::Ports || register.address.is_multiple_of(register.bytes.into()))
    };
    let Some(register) = Register::new(address).filter(can_be) else {
        let [space, bits, bit, access, place @ ..] = *address;
        return Some(Err(Unusable::Address(action, [space, bits, bit, access], u64::from_le_bytes(place))));
    };
    let bits = u32::from(register.bytes).saturating_mul(8);
    if u64::from(mask).unbounded_shl(register.bit.into()) >> bits != 0 {
        return Some(Err(Unusable::Mask(action, register, mask)));
    }
    if is_legacy(register) || is_taken(register) {
        return Some(Err(Unusable::Taken(action, register)));
    }
    Some(Ok(Entry { action, instruction, preserves, register, value, mask }))
}

/// Whether a register is at the ports of the PC's old devices (interrupt controllers, timers, keyboard, CMOS RAM, DMA, and
/// 0xb2, which sends an SMI), or at those of PCI's configuration space and of the reset.
fn is_legacy(register: Register) -> bool {
    let is_in = |start: u64, end: u64| register.address < end && start < register.end();
    register.space == Space::Ports && (is_in(0, 0x100) || is_in(0xcf8, 0xd00))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ports of the model's watchdog: control (bit 0 runs, bit 1 resets), count, feed.
    const CONTROL: u64 = 0x460;
    const COUNT: u64 = 0x464;
    const FEED: u64 = 0x468;

    const COMPARE: u8 = 0;
    const READ: u8 = 1;
    const WRITE: u8 = 2;
    const WRITE_INPUT: u8 = 3;
    const PRESERVE: u8 = 0x80;

    /// An instruction: action, instruction, register of 32 bits at a port, bit, value, mask.
    fn line(action: u8, instruction: u8, port: u64, bit: u8, value: u32, mask: u32) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&[action, instruction, 0, 0, 1, 32, bit, 3]);
        bytes[8..16].copy_from_slice(&port.to_le_bytes());
        bytes[16..20].copy_from_slice(&value.to_le_bytes());
        bytes[20..].copy_from_slice(&mask.to_le_bytes());
        bytes
    }

    fn lines() -> Vec<[u8; ENTRY]> {
        vec![
            line(0x01, WRITE, FEED, 0, 1, 1),
            line(0x04, READ, COUNT, 16, 0, 0x3ff),
            line(0x06, WRITE_INPUT | PRESERVE, COUNT, 0, 0, 0x3ff),
            line(0x08, COMPARE, CONTROL, 0, 1, 1),
            line(0x09, WRITE | PRESERVE, CONTROL, 0, 1, 1),
            line(0x0b, WRITE | PRESERVE, CONTROL, 0, 0, 1),
            line(0x10, COMPARE, CONTROL, 1, 1, 1),
            line(0x11, WRITE | PRESERVE, CONTROL, 1, 1, 1),
            // Its own notes, in the CMOS RAM.
            line(0x20, COMPARE, 0x72, 0, 1, 1),
        ]
    }

    /// Period 600 ms, 2 to 1023 periods.
    fn table(lines: &[[u8; ENTRY]]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        bytes[..4].copy_from_slice(b"WDAT");
        bytes[36..48].copy_from_slice(&[32, 0, 0, 0, 0xff, 0, 0xff, 0xff, 0xff, 0, 0, 0]);
        for (at, value) in [(48, 600), (52, 0x3ff), (56, 2), (64, lines.len() as u32)] {
            bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        }
        bytes[60] = 0x81;
        bytes.extend(lines.concat());
        bytes
    }

    fn read(lines: &[[u8; ENTRY]]) -> Result<Table, Unusable> {
        Table::new(&table(lines), |_| false)
    }

    /// A watchdog, with the time in periods.
    #[derive(Clone)]
    struct Model {
        control: u32,
        count: u32,
        left: u32,
        /// It cannot be stopped, or started.
        stubborn: bool,
        /// A strap keeps it from resetting the machine.
        strapped: bool,
        reset: bool,
        fed: u32,
    }

    impl Model {
        fn new(control: u32, left: u32) -> Self {
            Self { control, count: 9 << 26, left, stubborn: false, strapped: false, reset: false, fed: 0 }
        }

        fn pass(&mut self, periods: u32) {
            if self.control & 1 != 0 {
                self.left = self.left.saturating_sub(periods);
                self.reset |= self.left == 0 && self.control & 2 != 0;
            }
        }
    }

    impl Bus for Model {
        fn read(&mut self, Register { space, address, bytes, .. }: Register) -> u32 {
            assert_eq!((space, bytes), (Space::Ports, 4));
            match address {
                CONTROL => self.control,
                COUNT => self.count & 0xfc00_ffff | self.left << 16,
                _ => panic!("a read of {address:#x}"),
            }
        }

        fn write(&mut self, Register { address, .. }: Register, value: u32) {
            match address {
                CONTROL if self.stubborn => {}
                CONTROL => self.control = if self.strapped { value & !2 } else { value },
                COUNT => self.count = value,
                FEED => {
                    assert_eq!(value, 1);
                    self.fed += 1;
                    self.left = self.count & 0x3ff;
                }
                _ => panic!("a write of {address:#x}"),
            }
        }
    }

    #[test]
    fn one_that_runs_is_stopped_and_its_other_bits_stay() {
        let table = read(&lines()).unwrap();
        let mut model = Model::new(0xff03, 50);
        assert_eq!(table.stop(&mut model), Became::Stopped { left: Some(30) });
        assert_eq!((model.control, model.fed), (0xff02, 0));
        assert_eq!(table.stop(&mut model), Became::Off);
        let mut lines = lines();
        lines.remove(1);
        assert_eq!(read(&lines).unwrap().stop(&mut Model::new(3, 50)), Became::Stopped { left: None });
    }

    #[test]
    fn one_that_cannot_be_stopped_lives_on_while_it_is_fed() {
        let table = read(&lines()).unwrap();
        let mut model = Model { stubborn: true, ..Model::new(3, 50) };
        model.count = 50;
        assert_eq!(table.stop(&mut model), Became::Runs { left: Some(30) });
        for _ in 0..10 {
            model.pass(49);
            table.feed(&mut model);
        }
        assert!(!model.reset);
        model.pass(50);
        assert!(model.reset, "the model does reset");
    }

    #[test]
    fn an_armed_one_resets_after_its_seconds_and_not_before() {
        let table = read(&lines()).unwrap();
        for seconds in [2_u16, 20, 21, 60, 613] {
            for control in [0, 1, 3] {
                let mut model = Model::new(control | 0xf0, 5);
                assert_eq!(table.arm(&mut model, seconds), Ok(()), "{seconds}");
                assert_eq!((model.control, model.count >> 26), (0xf3, 9), "all else stays");
                let periods = u32::from(seconds) * 10 / 6;
                model.pass(periods - 1);
                table.feed(&mut model);
                model.pass(periods - 1);
                assert!(!model.reset, "{seconds}");
                model.pass(2);
                assert!(model.reset, "{seconds}");
            }
        }
    }

    #[test]
    fn one_that_cannot_reset_the_machine_is_not_armed() {
        let whole = lines();
        let table = read(&whole).unwrap();
        let mut strapped = Model { strapped: true, ..Model::new(0, 5) };
        assert_eq!(table.arm(&mut strapped, 20), Err(NotArmed::ResetsNothing));
        assert_eq!(strapped.control & 1, 0);
        assert_eq!(table.arm(&mut Model { stubborn: true, ..Model::new(2, 5) }, 20), Err(NotArmed::Stays));
        for seconds in [0, 614] {
            assert_eq!(table.arm(&mut Model::new(0, 5), seconds), Err(NotArmed::Range(2, 613)), "{seconds}");
        }
        for (index, missing) in [(2, Action::SetCount), (4, Action::Start)] {
            let mut lines = whole.clone();
            lines.remove(index);
            let mut model = Model::new(0, 5);
            assert_eq!(read(&lines).unwrap().arm(&mut model, 20), Err(NotArmed::Missing(missing)));
            assert_eq!((model.control, model.fed), (0, 0), "nothing is done");
        }
    }

    #[test]
    fn tables_that_are_cut_off_or_without_what_is_needed_are_not_used() {
        let whole = table(&lines());
        for len in 0..whole.len() {
            assert!(
                matches!(Table::new(&whole[..len], |_| false), Err(Unusable::CutOff(bytes, _)) if bytes == len),
                "{len}"
            );
        }
        for (index, missing) in [(0, Action::Feed), (3, Action::IsRunning), (5, Action::Stop)] {
            let mut lines = lines();
            lines.remove(index);
            assert_eq!(read(&lines), Err(Unusable::Missing(missing)));
        }
        let many = vec![lines()[0]; MOST + 1];
        assert!(matches!(read(&many), Err(Unusable::CutOff(_, 257))));
        let with = |at: usize, bytes: &[u8]| {
            let mut table = whole.clone();
            table[at..at + bytes.len()].copy_from_slice(bytes);
            Table::new(&table, |_| false)
        };
        assert_eq!(with(60, &[0x80]), Err(Unusable::Off));
        assert_eq!(with(42, &[0, 0x1f, 2]), Err(Unusable::Pci(0, 0x1f, 2)));
        assert_eq!(with(48, &[0; 4]), Err(Unusable::Period(0)));
        assert_eq!(with(48, &[0xff; 4]), Err(Unusable::Period(u32::MAX)));
        assert_eq!(with(56, &[0, 4]), Err(Unusable::Counts(0x400, 0x3ff)));
        assert_eq!(with(52, &[0; 8]), Err(Unusable::Counts(0, 0)));
        assert_eq!(with(64, &[0xff; 4]), Err(Unusable::CutOff(whole.len(), u32::MAX)));
    }

    #[test]
    fn programs_that_cannot_be_carried_out_are_told_with_value_and_place() {
        let with = |index: usize, at: usize, bytes: &[u8]| {
            let mut lines = lines();
            lines[index][at..at + bytes.len()].copy_from_slice(bytes);
            read(&lines).map_err(|why| why.to_string())
        };
        for (index, at, bytes, words) in [
            (0, 1, &[4][..], "for RESET has the instruction 0x4"),
            (0, 4, &[2], "an address that is none: 0x468 in space 2, 32 bits from bit 0 on, access size 3"),
            (2, 7, &[4], "for SET_COUNTDOWN_PERIOD has an address that is none"),
            (3, 8, &[0; 8], "for QUERY_RUNNING_STATE has an address that is none: 0x0"),
            (3, 10, &[1], "0x10460"),
            (3, 4, &[0, 32, 0, 3, 0x61], "0x461 in space 0"),
            (4, 6, &[32], "for SET_RUNNING_STATE has an address that is none"),
            (4, 20, &[0xff; 4], ""),
            (6, 20, &[0xff; 4], "the mask 0xffffffff from bit 1 on, which port 0x460, 4 bytes does not have"),
            (5, 8, &[0x70, 0], "for SET_STOPPED_STATE names port 0x70, 4 bytes, which is not a watchdog's"),
            (5, 8, &[0xfe, 0], "names port 0xfe"),
            (5, 8, &[0xf9, 0xc], "names port 0xcf9"),
            (5, 8, &[0xf5, 0xc], "names port 0xcf5"),
        ] {
            match with(index, at, bytes) {
                Ok(_) => assert_eq!(words, "", "{index} {at}"),
                Err(said) => assert!(!words.is_empty() && said.contains(words), "{said}"),
            }
        }
    }

    #[test]
    fn registers_that_are_taken_are_refused_where_they_are_used_only() {
        let whole = table(&lines());
        let refused = |port: u64| Table::new(&whole, |register| register.address == port).err();
        assert!(matches!(refused(FEED), Some(Unusable::Taken(Action::Feed, Register { address: FEED, .. }))));
        assert_eq!(refused(0x72), None, "an action that is not used");
    }

    #[test]
    fn whose_watchdog_it_is_follows_from_what_it_writes() {
        let table = read(&lines()).unwrap();
        for (ports, is) in [(0x460..0x480, true), (0x46b..0x480, true), (0x46c..0x480, false), (0x400..0x460, false)] {
            assert_eq!(table.writes_to(ports.clone()), is, "{ports:x?}");
        }
        assert_eq!(table.registers().count(), 8);
    }
}
