//! USB controllers that firmware works for: taken over from it, so that it sends no more system management interrupts for them (EHCI 1.0,
//! 2.1.7, 2.1.8 and 5.1; xHCI 1.2, 4.22.1 and 7.1; OHCI 1.0a, 5.1.1.3.3 and 7.1; ICH9 data sheet 316972, 16.1: LEGSUP of UHCI).
//!
//! Firmware lets USB keyboards look like PS/2 ones, by code in system management mode. Each of its interrupts stops all cores, the
//! engines' too. EHCI and xHCI have a list of extended capabilities, one of them with two words:
//!
//! | word | |
//! |---|---|
//! | USBLEGSUP | two semaphores. The firmware clears its own some time after the operating system has set its own |
//! | USBLEGCTLSTS | which events send an SMI |
//!
//! EHCI has its list in configuration space, xHCI in memory. Of the older controllers OHCI has a bit in its control register that
//! sends its interrupts to the firmware, which clears it when it is asked. UHCI has a word in configuration space, and nobody to ask.
//! No controller is used by sidecore.

/// Longest time for firmware to let a controller go, in microseconds. The specifications name none; Linux waits as long.
pub const PATIENCE: u64 = 1_000_000;

/// The registers of a controller, and the time. Offsets are in bytes, and multiples of 4. What is not there reads as all ones.
pub trait Registers {
    /// Reads a register in memory, from the first base address register on.
    fn read(&mut self, offset: u32) -> u32;
    /// Writes it.
    fn write(&mut self, offset: u32, value: u32);
    /// Reads a register in configuration space.
    fn read_config(&mut self, offset: u16) -> u32;
    /// Writes it.
    fn write_config(&mut self, offset: u16, value: u32);
    /// Microseconds since a fixed moment. It grows while it is asked again and again.
    fn micros(&mut self) -> u64;
}

/// A kind of controller that firmware can work for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// USB 1.1, Intel's and VIA's. All that matters here is in configuration space.
    Uhci,
    /// USB 1.1, of others.
    Ohci,
    /// USB 2.
    Ehci,
    /// USB 3.
    Xhci,
}

impl Kind {
    /// Returns the kind with this class code, of 24 bits: class, subclass, programming interface.
    #[must_use]
    pub const fn of(class: u32) -> Option<Self> {
        match class {
            0x0c_0300 => Some(Self::Uhci),
            0x0c_0310 => Some(Self::Ohci),
            0x0c_0320 => Some(Self::Ehci),
            0x0c_0330 => Some(Self::Xhci),
            _ => None,
        }
    }
}

/// What became of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakenOver {
    /// Firmware had not worked for it: it had no semaphore and no event that sends an SMI, or the controller has no such words.
    Free,
    /// It is ours now, and sends no SMI.
    Given,
    /// Firmware has kept its semaphore. It was taken away, and no event sends an SMI any more.
    Taken,
    /// As [`TakenOver::Taken`], but the words read as before.
    Kept,
    /// No controller answers there.
    NoAnswer,
}

/// EHCI's HCCPARAMS. Bits 15 to 8: offset of the first extended capability, at least 0x40, or 0.
const EHCI_PARAMETERS: u32 = 8;
/// xHCI's HCCPARAMS1. Bits 31 to 16: offset of the first extended capability in words of 4 bytes, or 0.
const XHCI_PARAMETERS: u32 = 0x10;
/// Capability ID of the two words, in bits 7 to 0 of the first.
const LEGACY: u32 = 1;
/// Where the list in configuration space begins at the earliest.
const FIRST_IN_CONFIG: u16 = 0x40;
/// Most capabilities that are looked at: those of EHCI fill configuration space, those of xHCI are a few.
const MOST: u32 = 64;
/// Offsets of the two words in the capability.
const USBLEGSUP: u8 = 0;
const USBLEGCTLSTS: u8 = 4;
/// USBLEGSUP: the firmware's semaphore, and the operating system's.
const FIRMWARE: u32 = 1 << 16;
const SYSTEM: u32 = 1 << 24;
/// USBLEGCTLSTS: events that send an SMI, and states that are cleared by writing 1. The other bits are states that follow those of the
/// controller, or are reserved.
const EHCI_EVENTS: u32 = 0xe03f;
const XHCI_EVENTS: u32 = 0xe011;
const STATES: u32 = 0xe000_0000;

/// UHCI's LEGSUP, 16 bits: events that send an SMI, and states that are cleared by writing 1. The other bits are states that follow
/// those of the controller, and USBPIRQDEN, which lets it interrupt us.
const LEGSUP: u16 = 0xc0;
const UHCI_EVENTS: u32 = 0x00bf;
const UHCI_STATES: u32 = 0x8f00;

/// OHCI's registers.
const HC_CONTROL: u32 = 0x04;
const HC_COMMAND_STATUS: u32 = 0x08;
const HC_INTERRUPT_ENABLE: u32 = 0x10;
const HC_INTERRUPT_DISABLE: u32 = 0x14;
/// HcControl: InterruptRouting, by which all interrupts are SMIs; RemoteWakeupConnected. The other bits are how the controller works; all
/// 0, it is reset.
const INTERRUPT_ROUTING: u32 = 1 << 8;
const REMOTE_WAKEUP_CONNECTED: u32 = 1 << 9;
/// HcCommandStatus: OwnershipChangeRequest.
const OWNERSHIP_CHANGE_REQUEST: u32 = 1 << 3;
/// HcInterruptEnable: OwnershipChange, by which the firmware learns of the request.
const OWNERSHIP_CHANGE: u32 = 1 << 30;
/// HcInterruptDisable: all events.
const ALL_INTERRUPTS: u32 = 0xc000_007f;

/// The two words of a controller: where they are, and which events they have.
#[derive(Clone, Copy)]
enum Legacy {
    Config(u16),
    Memory(u32),
}

impl Legacy {
    fn read(self, offset: u8, registers: &mut impl Registers) -> u32 {
        match self {
            Self::Config(at) => registers.read_config(at.saturating_add(offset.into())),
            Self::Memory(at) => registers.read(at.saturating_add(offset.into())),
        }
    }

    fn write(self, offset: u8, value: u32, registers: &mut impl Registers) {
        match self {
            Self::Config(at) => registers.write_config(at.saturating_add(offset.into()), value),
            Self::Memory(at) => registers.write(at.saturating_add(offset.into()), value),
        }
    }

    const fn events(self) -> u32 {
        match self {
            Self::Config(_) => EHCI_EVENTS,
            Self::Memory(_) => XHCI_EVENTS,
        }
    }

    /// Whether the firmware neither has the controller nor gets an SMI from it.
    fn is_free(self, registers: &mut impl Registers) -> bool {
        self.read(USBLEGSUP, registers) & FIRMWARE == 0 && self.read(USBLEGCTLSTS, registers) & self.events() == 0
    }
}

/// Takes a controller over from the firmware. Call it while the controller answers in memory, and before it loses bus mastering: firmware
/// stops it in order. Waits for [`PATIENCE`] at most.
pub fn take_over(kind: Kind, registers: &mut impl Registers) -> TakenOver {
    let list = match kind {
        Kind::Uhci => return take_uhci(registers),
        Kind::Ohci => return take_ohci(registers),
        Kind::Ehci => List::Config,
        Kind::Xhci => List::Memory,
    };
    let Some(legacy) = find(list, registers) else { return TakenOver::NoAnswer };
    let Some(legacy) = legacy else { return TakenOver::Free };
    if legacy.is_free(registers) {
        return TakenOver::Free;
    }
    let owned = legacy.read(USBLEGSUP, registers);
    let mut given = owned & FIRMWARE == 0;
    if !given {
        legacy.write(USBLEGSUP, owned | SYSTEM, registers);
        given = wait(registers, |registers| legacy.read(USBLEGSUP, registers) & FIRMWARE == 0);
    }
    if !given {
        let owned = legacy.read(USBLEGSUP, registers);
        legacy.write(USBLEGSUP, owned & !FIRMWARE | SYSTEM, registers);
    }
    let events = legacy.read(USBLEGCTLSTS, registers);
    legacy.write(USBLEGCTLSTS, events & !legacy.events() | STATES, registers);
    match (legacy.is_free(registers), given) {
        (false, _) => TakenOver::Kept,
        (true, false) => TakenOver::Taken,
        (true, true) => TakenOver::Given,
    }
}

/// Asks again and again whether the firmware has let go, for [`PATIENCE`] at most.
fn wait<R: Registers>(registers: &mut R, mut has_let_go: impl FnMut(&mut R) -> bool) -> bool {
    let begun = registers.micros();
    let mut given = false;
    while !given && registers.micros().saturating_sub(begun) < PATIENCE {
        given = has_let_go(registers);
    }
    given
}

/// Switches off all events of a UHCI controller that send an SMI. Nobody has to let go of it.
fn take_uhci(registers: &mut impl Registers) -> TakenOver {
    let word = registers.read_config(LEGSUP);
    if word == u32::MAX {
        return TakenOver::NoAnswer;
    }
    if word & UHCI_EVENTS == 0 {
        return TakenOver::Free;
    }
    registers.write_config(LEGSUP, word & 0xffff_0000 | UHCI_STATES);
    if registers.read_config(LEGSUP) & UHCI_EVENTS == 0 { TakenOver::Given } else { TakenOver::Kept }
}

/// Takes an OHCI controller over. One that the firmware does not let go of is reset.
fn take_ohci(registers: &mut impl Registers) -> TakenOver {
    let control = registers.read(HC_CONTROL);
    if control == u32::MAX {
        return TakenOver::NoAnswer;
    }
    if control & INTERRUPT_ROUTING == 0 {
        return TakenOver::Free;
    }
    registers.write(HC_INTERRUPT_ENABLE, OWNERSHIP_CHANGE);
    registers.write(HC_COMMAND_STATUS, OWNERSHIP_CHANGE_REQUEST);
    let is_ours = |registers: &mut _| Registers::read(registers, HC_CONTROL) & INTERRUPT_ROUTING == 0;
    let given = wait(registers, is_ours);
    if !given {
        registers.write(HC_CONTROL, control & REMOTE_WAKEUP_CONNECTED);
    }
    registers.write(HC_INTERRUPT_DISABLE, ALL_INTERRUPTS);
    match (registers.read(HC_CONTROL) & INTERRUPT_ROUTING == 0, given) {
        (false, _) => TakenOver::Kept,
        (true, false) => TakenOver::Taken,
        (true, true) => TakenOver::Given,
    }
}

/// Where a controller has its list of extended capabilities.
#[derive(Clone, Copy)]
enum List {
    Config,
    Memory,
}

/// Finds the two words. `None`: no controller answers. `Some(None)`: it has none.
fn find(list: List, registers: &mut impl Registers) -> Option<Option<Legacy>> {
    let parameters = match list {
        List::Config => registers.read(EHCI_PARAMETERS),
        List::Memory => registers.read(XHCI_PARAMETERS),
    };
    if parameters == u32::MAX {
        return None;
    }
    let mut place = match list {
        List::Config => in_config((parameters >> 8) as u8),
        List::Memory => in_memory(0, parameters >> 16),
    };
    for _ in 0..MOST {
        let Some(legacy) = place else { break };
        let word = legacy.read(USBLEGSUP, registers);
        match word & 0xff {
            LEGACY => return Some(Some(legacy)),
            // What is not there reads as all ones, and 0 is reserved.
            0 | 0xff => break,
            _ => {}
        }
        let next = word >> 8 & 0xff;
        place = match legacy {
            Legacy::Config(_) => in_config(next as u8),
            Legacy::Memory(at) => in_memory(at, next),
        };
    }
    Some(None)
}

fn in_config(at: u8) -> Option<Legacy> {
    let at = u16::from(at & !3);
    (at >= FIRST_IN_CONFIG).then_some(Legacy::Config(at))
}

/// `words`: from `before` on, in words of 4 bytes. 0 ends the list.
fn in_memory(before: u32, words: u32) -> Option<Legacy> {
    (words != 0).then(|| Legacy::Memory(before.saturating_add(words.saturating_mul(4))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the firmware behaves.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Firmware {
        /// It lets go after so many reads of the first word.
        LetsGo(u32),
        /// It keeps its semaphore until it is taken away.
        Hangs,
        /// Its words cannot be written.
        Locked,
    }

    /// A controller: 4 KiB of registers in memory, and its configuration space.
    struct Model {
        memory: Vec<u32>,
        config: Vec<u32>,
        legacy: usize,
        kind: Kind,
        firmware: Firmware,
        reads: u32,
        micros: u64,
        /// What was written to each of the two words, in order.
        writes: Vec<(u8, u32)>,
    }

    impl Model {
        /// The words are the second capability, at byte 0x460 of the memory or 0x68 of configuration space.
        fn new(kind: Kind, support: u32, control: u32, firmware: Firmware) -> Self {
            let (mut memory, mut config) = (vec![0; 1024], vec![0; 64]);
            let legacy = match kind {
                Kind::Ehci => {
                    memory[2] = 0x6000;
                    config[0x60 / 4] = 0x6802;
                    0x68 / 4
                }
                _ => {
                    memory[4] = 0x0100_0000;
                    memory[0x400 / 4] = 0x1802;
                    0x460 / 4
                }
            };
            let words = if kind == Kind::Ehci { &mut config } else { &mut memory };
            (words[legacy], words[legacy + 1]) = (support, control);
            Self { memory, config, legacy, kind, firmware, reads: 0, micros: 0, writes: Vec::new() }
        }

        fn words(&mut self) -> &mut [u32] {
            let all = if self.kind == Kind::Ehci { &mut self.config } else { &mut self.memory };
            &mut all[self.legacy..self.legacy + 2]
        }

        fn on_read(&mut self, kind: Kind, index: usize) {
            if kind != self.kind || index != self.legacy {
                return;
            }
            self.reads += 1;
            let (reads, firmware) = (self.reads, self.firmware);
            let words = self.words();
            if words[0] & SYSTEM != 0 && matches!(firmware, Firmware::LetsGo(after) if reads > after) {
                words[0] &= !FIRMWARE;
            }
        }

        fn on_write(&mut self, kind: Kind, index: usize, value: u32) {
            assert!(kind == self.kind && (self.legacy..self.legacy + 2).contains(&index), "{index:#x} is not ours");
            let word = (index - self.legacy) as u8;
            self.writes.push((word, value));
            if self.firmware != Firmware::Locked {
                let states = if word == 1 { value & STATES } else { 0 };
                self.words()[usize::from(word)] = value & !states;
            }
        }
    }

    impl Registers for Model {
        fn read(&mut self, offset: u32) -> u32 {
            self.on_read(Kind::Xhci, offset as usize / 4);
            self.memory.get(offset as usize / 4).copied().unwrap_or(u32::MAX)
        }

        fn write(&mut self, offset: u32, value: u32) {
            self.on_write(Kind::Xhci, offset as usize / 4, value);
        }

        fn read_config(&mut self, offset: u16) -> u32 {
            self.on_read(Kind::Ehci, usize::from(offset) / 4);
            self.config.get(usize::from(offset) / 4).copied().unwrap_or(u32::MAX)
        }

        fn write_config(&mut self, offset: u16, value: u32) {
            self.on_write(Kind::Ehci, usize::from(offset) / 4, value);
        }

        fn micros(&mut self) -> u64 {
            self.micros += 1000;
            self.micros
        }
    }

    const BOTH: [(Kind, u32); 2] = [(Kind::Ehci, EHCI_EVENTS), (Kind::Xhci, XHCI_EVENTS)];

    #[test]
    fn firmware_is_asked_before_its_interrupts_are_switched_off() {
        for (kind, events) in BOTH {
            let mut model = Model::new(kind, 0x1_0001, STATES | events | 0x100, Firmware::LetsGo(20));
            assert_eq!(take_over(kind, &mut model), TakenOver::Given, "{kind:?}");
            assert_eq!(model.writes, [(0, 0x101_0001), (1, STATES | 0x100)]);
            assert_eq!(model.words(), [0x100_0001, 0x100]);
        }
    }

    #[test]
    fn firmware_that_does_not_answer_loses_the_controller_after_a_second() {
        for (kind, _) in BOTH {
            let mut model = Model::new(kind, 0x1_0001, 1, Firmware::Hangs);
            assert_eq!(take_over(kind, &mut model), TakenOver::Taken, "{kind:?}");
            assert_eq!(model.words(), [0x100_0001, 0]);
            assert!((PATIENCE..2 * PATIENCE).contains(&model.micros), "{}", model.micros);
        }
    }

    #[test]
    fn words_that_cannot_be_written_are_told() {
        for (kind, events) in BOTH {
            let mut model = Model::new(kind, 0x1_0001, events, Firmware::Locked);
            assert_eq!(take_over(kind, &mut model), TakenOver::Kept, "{kind:?}");
        }
    }

    #[test]
    fn interrupts_without_a_semaphore_are_switched_off_at_once() {
        for (kind, _) in BOTH {
            let mut model = Model::new(kind, 1, 1 << 13, Firmware::Hangs);
            assert_eq!(take_over(kind, &mut model), TakenOver::Given, "{kind:?}");
            assert_eq!((model.micros, model.writes.as_slice()), (0, [(1, STATES)].as_slice()));
        }
    }

    #[test]
    fn a_controller_that_firmware_has_left_alone_is_not_written_to() {
        for (kind, _) in BOTH {
            for support in [1, 0x100_0001] {
                let mut model = Model::new(kind, support, 0x100, Firmware::Hangs);
                assert_eq!(take_over(kind, &mut model), TakenOver::Free, "{kind:?}");
                assert_eq!((model.micros, model.writes.len()), (0, 0));
            }
        }
    }

    #[test]
    fn lists_that_lead_nowhere_or_back_end() {
        for (kind, _) in BOTH {
            let no_list = |model: &mut Model| (model.memory[2], model.memory[4]) = (0, 0);
            let below = |model: &mut Model| (model.memory[2], model.memory[4]) = (0x3c00, 0xffff_0000);
            let back = |model: &mut Model| (model.config[0x60 / 4], model.memory[0x400 / 4]) = (0x6002, 0xff02);
            let zero = |model: &mut Model| (model.config[0x60 / 4], model.memory[0x400 / 4]) = (0, 0);
            for change in [no_list, below, back, zero] as [fn(&mut Model); 4] {
                let mut model = Model::new(kind, 0x1_0001, 1, Firmware::LetsGo(0));
                change(&mut model);
                assert_eq!(take_over(kind, &mut model), TakenOver::Free);
                assert_eq!(model.writes.len(), 0);
            }
        }
    }

    #[test]
    fn nothing_there_is_told() {
        for (kind, _) in BOTH {
            let mut model = Model::new(kind, u32::MAX, u32::MAX, Firmware::Hangs);
            model.memory.fill(u32::MAX);
            model.config.fill(u32::MAX);
            assert_eq!(take_over(kind, &mut model), TakenOver::NoAnswer);
            assert_eq!(model.writes.len(), 0);
        }
    }

    #[test]
    fn the_kind_follows_from_the_class() {
        // UHCI, OHCI, EHCI, xHCI, a USB device.
        let kinds = [0x0c_0300, 0x0c_0310, 0x0c_0320, 0x0c_0330, 0x0c_03fe].map(Kind::of);
        assert_eq!(kinds, [Some(Kind::Uhci), Some(Kind::Ohci), Some(Kind::Ehci), Some(Kind::Xhci), None]);
    }

    /// A UHCI controller: LEGSUP and the 16 bits behind it. Its states are cleared by writing 1; bits 6, 12 and 14 cannot be written.
    struct Uhci {
        word: u32,
        locked: bool,
        writes: usize,
    }

    impl Registers for Uhci {
        fn read(&mut self, _: u32) -> u32 {
            panic!("it has no registers in memory")
        }

        fn write(&mut self, _: u32, _: u32) {
            panic!("it has no registers in memory")
        }

        fn read_config(&mut self, offset: u16) -> u32 {
            assert_eq!(offset, LEGSUP);
            self.word
        }

        fn write_config(&mut self, offset: u16, value: u32) {
            assert_eq!(offset, LEGSUP);
            self.writes += 1;
            if !self.locked {
                let fixed = UHCI_STATES | 0x5040;
                self.word = value & !fixed | self.word & fixed & !(value & UHCI_STATES);
            }
        }

        fn micros(&mut self) -> u64 {
            panic!("there is nothing to wait for")
        }
    }

    #[test]
    fn no_event_of_a_uhci_controller_sends_an_smi_afterwards() {
        let after = |word, locked| {
            let mut model = Uhci { word, locked, writes: 0 };
            (take_over(Kind::Uhci, &mut model), model.word, model.writes)
        };
        assert_eq!(after(0x1234_bfbf, false), (TakenOver::Given, 0x1234_1000, 1));
        assert_eq!(after(0x0010, false), (TakenOver::Given, 0, 1));
        assert_eq!(after(0x0010, true), (TakenOver::Kept, 0x0010, 1));
        for free in [0x2000, 0, 0xffff_7f40] {
            assert_eq!(after(free, true), (TakenOver::Free, free, 0));
        }
        assert_eq!(after(u32::MAX, true), (TakenOver::NoAnswer, u32::MAX, 0));
    }

    /// An OHCI controller whose firmware learns of a request by its interrupt only.
    struct Ohci {
        control: u32,
        enabled: u32,
        asked: bool,
        firmware: Firmware,
        reads: u32,
        micros: u64,
        writes: usize,
    }

    impl Registers for Ohci {
        fn read(&mut self, offset: u32) -> u32 {
            assert_eq!(offset, HC_CONTROL);
            self.reads += 1;
            if self.asked && matches!(self.firmware, Firmware::LetsGo(after) if self.reads > after) {
                self.control &= !INTERRUPT_ROUTING;
            }
            self.control
        }

        fn write(&mut self, offset: u32, value: u32) {
            self.writes += 1;
            match offset {
                HC_CONTROL if self.firmware == Firmware::Locked => {}
                HC_CONTROL => self.control = value,
                HC_COMMAND_STATUS => {
                    assert_eq!(value, OWNERSHIP_CHANGE_REQUEST);
                    self.asked = self.enabled & OWNERSHIP_CHANGE != 0;
                }
                HC_INTERRUPT_ENABLE => self.enabled |= value,
                HC_INTERRUPT_DISABLE => self.enabled &= !value,
                _ => panic!("a write of {offset:#x}"),
            }
        }

        fn read_config(&mut self, _: u16) -> u32 {
            panic!("it has nothing in configuration space")
        }

        fn write_config(&mut self, _: u16, _: u32) {
            panic!("it has nothing in configuration space")
        }

        fn micros(&mut self) -> u64 {
            self.micros += 1000;
            self.micros
        }
    }

    #[test]
    fn an_ohci_controller_is_asked_for_and_reset_if_nobody_answers() {
        let after = |control, firmware| {
            let mut model =
                Ohci { control, enabled: 0x8000_0002, asked: false, firmware, reads: 0, micros: 0, writes: 0 };
            let became = take_over(Kind::Ohci, &mut model);
            (became, model.control, model.enabled, model.writes)
        };
        let working = 0x683 | INTERRUPT_ROUTING;
        assert_eq!(after(working, Firmware::LetsGo(20)), (TakenOver::Given, 0x683, 0, 3));
        assert_eq!(after(working, Firmware::Hangs), (TakenOver::Taken, REMOTE_WAKEUP_CONNECTED, 0, 4));
        assert_eq!(after(working, Firmware::Locked), (TakenOver::Kept, working, 0, 4));
        assert_eq!(after(0x683, Firmware::Hangs), (TakenOver::Free, 0x683, 0x8000_0002, 0));
        assert_eq!(after(u32::MAX, Firmware::Hangs), (TakenOver::NoAnswer, u32::MAX, 0x8000_0002, 0));
    }
}
