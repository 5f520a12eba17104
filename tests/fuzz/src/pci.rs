//! Accesses to the guest's PCI bus by ports, ECAM and BARs, of any size, at any offset, with any value, while an engine raises
//! interrupts and resets devices. A model of configuration space and MSI-X, written from PCI Local Bus 3.0 ch. 6 and virtio 1.3
//! ch. 4.1.4, says what each read has to give, which place each address decodes to, which messages each write sends, and which
//! queue it notifies. What a driver negotiates in the common configuration is checked by its limits only.

use std::cell::RefCell;

use machine::lapic::{Delivery, Destination, Message};
use machine::layout;
use machine::pci::Bus;
use machine::reason::Reason;
use machine::virtio_pci::{NotifyBar, VirtioPci};
use virtio::config::{DeviceConfig, VECTORS};
use virtio::phase::Phase;
use virtio::shared::Shared;

use crate::input::Input;
use crate::planted::planted;

/// Most accesses of a run.
const MOST_STEPS: usize = 200;
const DEVICES: usize = 3;
/// Status bits that the standard defines and this transport has (2.1).
const STATUS: u8 = 0xcf;
/// Bits of the command register that a function may have (PCI 6.2.2).
const COMMAND: u16 = 0x0547;

/// What one function has to look like.
struct Model {
    bytes: [u8; 256],
    writable: [u8; 256],
    /// Bytes of the window's data that came from a register which is not modelled.
    unknown: [bool; 256],
    msix: usize,
    window: usize,
    notify: NotifyBar,
    shared: &'static Shared,
    table: [[u32; 4]; VECTORS],
    pending: [bool; VECTORS],
    refused: u64,
}

/// What an access to a function has to do besides.
#[derive(Default)]
struct Effect {
    sent: Vec<Message>,
    /// Queues that are notified, one bit each.
    rung: u64,
}

impl Model {
    fn new(bus: &mut Functions, device: usize, notify: NotifyBar, shared: &'static Shared) -> Self {
        let at = |offset: usize| ((device as u64) << 15) + offset as u64;
        let bytes: [u8; 256] = std::array::from_fn(|i| bus.read_ecam(at(i), 1) as u8);
        let mut writable = common_mask();
        writable[0x10..0x14].copy_from_slice(&0xffff_c000_u32.to_le_bytes());
        let bar1 = if notify == NotifyBar::Io { 0xffff_ff00_u32 } else { 0xffff_f000 };
        writable[0x14..0x18].copy_from_slice(&bar1.to_le_bytes());
        // The capabilities, as a driver finds them.
        let (mut msix, mut window, mut next) = (0, 0, usize::from(bytes[0x34]));
        while next != 0 {
            match (bytes[next], bytes[next + 3]) {
                (0x11, _) => msix = next,
                (0x09, 5) => window = next,
                _ => {}
            }
            next = usize::from(bytes[next + 1]);
        }
        assert!(msix != 0 && window != 0, "a capability is missing");
        writable[msix + 3] = 0xc0;
        writable[window + 4] = 0xff;
        writable[window + 8..window + 20].fill(0xff);
        let table = [[0, 0, 0, 1]; VECTORS];
        let (unknown, pending) = ([false; 256], [false; VECTORS]);
        Self { bytes, writable, unknown, msix, window, notify, shared, table, pending, refused: 0 }
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|i| self.bytes[at + i]))
    }

    fn enabled(&self, bit: u8) -> bool {
        self.bytes[4] & bit != 0
    }

    const fn bar1_size(&self) -> u64 {
        match self.notify {
            NotifyBar::Io => 0x100,
            NotifyBar::Memory => 0x1000,
        }
    }

    /// The BAR and the offset that an address in memory decodes to.
    fn memory(&self, gpa: u64) -> Option<(u8, u64)> {
        let (bar0, bar1) = (u64::from(self.word(0x10) & !0xf), u64::from(self.word(0x14) & !0xf));
        if !self.enabled(2) {
            None
        } else if (bar0..bar0 + 0x4000).contains(&gpa) {
            Some((0, gpa - bar0))
        } else if self.notify == NotifyBar::Memory && (bar1..bar1 + 0x1000).contains(&gpa) {
            Some((1, gpa - bar1))
        } else {
            None
        }
    }

    fn port(&self, port: u16) -> Option<(u8, u64)> {
        let bar1 = self.word(0x14) & !3;
        let within = (u64::from(bar1)..u64::from(bar1) + 0x100).contains(&port.into());
        (within && self.notify == NotifyBar::Io && self.enabled(1)).then(|| (1, u64::from(port) - u64::from(bar1)))
    }

    /// The place and the length of the configuration access window.
    fn window(&self) -> Option<(u8, u64, u8)> {
        let (bar, offset, length) =
            (self.bytes[self.window + 4], self.word(self.window + 8), self.word(self.window + 12));
        let size = match bar {
            0 => 0x4000,
            1 => self.bar1_size(),
            _ => return None,
        };
        let good = [1, 2, 4].contains(&length) && offset % length == 0 && u64::from(offset) < size;
        good.then_some((bar, offset.into(), length as u8))
    }

    fn touches_window(&self, register: usize, size: u8) -> bool {
        (0..usize::from(size.min(8))).any(|i| (self.window + 16..self.window + 20).contains(&(register + i)))
    }

    /// What a read of a BAR has to give, as far as it is modelled.
    fn read_bar(&self, bar: u8, offset: u64, size: u8) -> [Option<u8>; 8] {
        std::array::from_fn(|i| {
            let at = offset + i as u64;
            if i >= usize::from(size) || bar == 1 {
                return Some(0);
            }
            match offset {
                0..0x1000 => match at {
                    0x12 => Some(self.shared.queues() as u8),
                    0x13 | 0x38 | 0x39 | 0x3c.. => Some(0),
                    _ => None,
                },
                0x1000 if i == 0 => Some(self.shared.isr()),
                0x1000..0x2000 => Some(0),
                0x2000..0x3000 => {
                    let known = at - 0x2000 < u64::from(self.shared.device().config_len);
                    Some(if known { self.shared.config()[(at - 0x2000) as usize] } else { 0 })
                }
                0x3000..0x3800 => {
                    let entry = self.table.get(((at - 0x3000) / 16) as usize);
                    Some(entry.map_or(0, |words| words[(at % 16 / 4) as usize].to_le_bytes()[(at % 4) as usize]))
                }
                _ => {
                    let first = (at - 0x3800) as usize * 8;
                    let bit = |n| self.pending.get(first + n).is_some_and(|pending| *pending);
                    Some((0..8).fold(0, |byte, n| byte | u8::from(bit(n)) << n))
                }
            }
        })
    }

    fn write_bar(&mut self, bar: u8, offset: u64, size: u8, value: u64, effect: &mut Effect) {
        if bar == 1 {
            let queue = offset / 4;
            // DRIVER_OK is set until a reset is done.
            if offset.is_multiple_of(4) && queue < u64::from(self.shared.queues()) && self.shared.phase() != Phase::Idle
            {
                effect.rung |= 1 << queue;
            }
        } else if (0x3000..0x3800).contains(&offset) {
            if matches!(size, 4 | 8) && offset.is_multiple_of(size.into()) {
                for (i, value) in
                    [value as u32, (value >> 32) as u32].into_iter().take(usize::from(size / 4)).enumerate()
                {
                    let word = ((offset - 0x3000) / 4) as usize + i;
                    if let Some(entry) = self.table.get_mut(word / 4) {
                        entry[word % 4] = if word % 4 == 3 { value & 1 } else { value };
                    }
                }
            }
            self.send_unmasked(effect);
        }
    }

    fn is_masked(&self, entry: usize) -> bool {
        self.bytes[self.msix + 3] & 0xc0 != 0x80 || self.table[entry][3] & 1 != 0
    }

    /// The interrupts' state is saved, and restored as in another process. Each entry's message is judged as by hand.
    fn moves(&self) {
        let (table, control) = (&self.shared.msix, self.bytes[self.msix + 3]);
        let saved = table.save();
        assert_eq!((saved.entries, saved.pending), (self.table, self.pending));
        assert_eq!((saved.enabled, saved.masked), (control & 0x80 != 0, control & 0x40 != 0));
        table.restore(&saved);
        for entry in &self.table {
            let address = u64::from(entry[1]) << 32 | u64::from(entry[0]);
            let decoded = virtio::msix::Message { address, data: entry[2] }.decode();
            if let Err(why) = &decoded {
                crate::is_line(&why.to_string());
            }
            assert_eq!(decoded.ok().map(Message::from), message(entry), "{entry:x?}");
        }
    }

    fn send_unmasked(&mut self, effect: &mut Effect) {
        for entry in 0..VECTORS {
            if self.pending[entry] && !self.is_masked(entry) {
                self.pending[entry] = false;
                match message(&self.table[entry]) {
                    Some(message) => effect.sent.push(message),
                    None => self.refused += 1,
                }
            }
        }
    }

    /// Compares a read of configuration space, and takes over what is not modelled.
    fn read_config(&mut self, register: usize, size: u8, read: impl FnOnce() -> u64) {
        if self.touches_window(register, size)
            && let Some((bar, offset, length)) = self.window()
        {
            let expected = self.read_bar(bar, offset, length);
            for (i, expected) in expected.into_iter().take(length.into()).enumerate() {
                let at = self.window + 16 + i;
                self.unknown[at] = expected.is_none();
                self.bytes[at] = expected.unwrap_or(0);
            }
        }
        let read = read().to_le_bytes();
        for (i, read) in read.into_iter().take(size.into()).enumerate() {
            match self.bytes.get_mut(register + i) {
                Some(byte) if self.unknown[register + i] => {
                    (*byte, self.unknown[register + i]) = (read, false);
                }
                byte => {
                    let expected = byte.map_or(0xff, |byte| *byte);
                    assert_eq!(read, expected, "configuration space at {register:#x} + {i}, {size} bytes");
                }
            }
        }
        assert!(read.iter().skip(size.into()).all(|byte| *byte == 0), "more than was read");
    }

    fn write_config(&mut self, register: usize, size: u8, value: u64, effect: &mut Effect) {
        for (i, value) in value.to_le_bytes().into_iter().take(size.into()).enumerate() {
            if let Some(byte) = self.bytes.get_mut(register + i) {
                let mask = self.writable[register + i];
                *byte = *byte & !mask | value & mask;
                self.unknown[register + i] &= mask == 0;
            }
        }
        if (register..register + usize::from(size.min(8))).any(|at| at == self.msix + 3 || at == self.msix + 2) {
            self.send_unmasked(effect);
        }
        if self.touches_window(register, size)
            && let Some((bar, offset, length)) = self.window()
        {
            let value = u64::from(self.word(self.window + 16)) & (u64::MAX >> (64 - 8 * u32::from(length)));
            self.write_bar(bar, offset, length, value, effect);
        }
    }
}

/// What every function lets the guest write.
fn common_mask() -> [u8; 256] {
    let mut writable = [0; 256];
    writable[4..6].copy_from_slice(&COMMAND.to_le_bytes());
    (writable[0xc], writable[0xd], writable[0x3c]) = (0xff, 0xff, 0xff);
    writable
}

/// The interrupt that an entry asks for, or `None` if no device may send it (SDM vol. 3A 11.11).
fn message(entry: &[u32; 4]) -> Option<Message> {
    let [low, high, data, _] = *entry;
    let vector = data as u8;
    let allowed = high == 0
        && low & 0xfff0_0ff0 == 0xfee0_0000
        && data & 0x600 == 0
        && data & 0x8000 == 0
        && (0x20..0xff).contains(&vector);
    let lowest = data & 0x100 != 0 || low & 8 != 0;
    let destination = match (low >> 12 & 0xff, low & 4 != 0) {
        (0xff, _) => Destination::ALL,
        (to, true) => Destination::Logical(to),
        (to, false) => Destination::Physical(to),
    };
    let delivery = if lowest {
        Delivery::LowestPriority { vector, level: false }
    } else {
        Delivery::Fixed { vector, level: false }
    };
    allowed.then_some(Message { destination, delivery })
}

fn ones(size: u8) -> u64 {
    (0..size.min(8)).fold(0, |value, _| value << 8 | 0xff)
}

/// The bus under test.
type Functions = Bus<VirtioPci<'static>>;

struct World {
    bus: Functions,
    models: Vec<Model>,
    bridge: [u8; 256],
    address: u32,
    /// What the functions look like after a reset, by device.
    first: Vec<[u8; 256]>,
}

/// What the guest accesses.
enum To {
    Port(u16),
    Ecam(u64),
    Memory(u64),
}

impl World {
    fn new(devices: &[&'static Shared; DEVICES]) -> Self {
        let mut bus = Bus::new();
        let kinds = [NotifyBar::Io, NotifyBar::Memory, NotifyBar::Io];
        for (shared, notify) in devices.iter().zip(kinds) {
            shared.restart();
            let _ = (shared.take_rung(), shared.take_starting());
            let shared: &'static Shared = shared;
            bus.add(|number| VirtioPci::with_notify(shared, number, notify)).expect("there is room");
        }
        assert_eq!(bus.functions(), DEVICES);
        let models: Vec<_> =
            (1..).zip(devices).zip(kinds).map(|((n, s), kind)| Model::new(&mut bus, n, kind, s)).collect();
        let bridge = std::array::from_fn(|i| bus.read_ecam(i as u64, 1) as u8);
        let first = models.iter().map(|model| model.bytes).collect();
        Self { bus, models, bridge, address: 0, first }
    }

    /// The guest is reset: all is as it was at first.
    fn reset(&mut self) {
        for model in &self.models {
            model.shared.restart();
            let _ = (model.shared.take_rung(), model.shared.take_starting());
        }
        self.bus.reset();
        self.address = 0;
        for (n, (model, first)) in (1..).zip(self.models.iter_mut().zip(&self.first)) {
            *model = Model::new(&mut self.bus, n, model.notify, model.shared);
            assert_eq!(model.bytes, *first, "device {n} after a reset");
        }
        self.bridge = std::array::from_fn(|i| self.bus.read_ecam(i as u64, 1) as u8);
    }

    /// An access that is likely to reach something.
    fn place(&self, input: &mut Input<'_>) -> To {
        let device = usize::from(input.byte()) % DEVICES;
        let model = &self.models[device];
        match input.byte() % 8 {
            0 => To::Port(0xcf8 + input.within(0, 8) as u16),
            1 => To::Port(input.wide() as u16),
            2 => To::Port((model.word(0x14) & !3) as u16 + input.within(0, 0x40) as u16),
            3 => To::Ecam(input.within(0, 0x11_0000)),
            4 => {
                let places = [0x04, 0x10, 0x14, model.msix + 2, model.window + 4, model.window + 8, model.window + 12];
                let at = places.get(usize::from(input.byte() % 16)).copied().unwrap_or(model.window + 16);
                To::Ecam(((device as u64 + 1) << 15) + at as u64 + input.within(0, 4) / 3)
            }
            5 => To::Memory(u64::from(model.word(0x14) & !0xf) + input.within(0, 0x1010)),
            6 => {
                let part = input.within(0, 4) * 0x1000 + [0, 0x800][usize::from(input.byte() % 8 / 7)];
                To::Memory(u64::from(model.word(0x10) & !0xf) + part + input.within(0, 0xb0))
            }
            _ => To::Memory(input.wide() >> input.within(0, 64)),
        }
    }

    /// The function and the register of CONFIG_DATA.
    fn data(&self, port: u16) -> Option<(usize, usize)> {
        let enabled = self.address >> 31 != 0 && self.address & 0xff_0000 == 0;
        enabled
            .then(|| ((self.address >> 8 & 0xff) as usize, (self.address & 0xfc) as usize + usize::from(port - 0xcfc)))
    }

    fn read_config(&mut self, function: usize, register: usize, size: u8, read: impl FnOnce(&mut Functions) -> u64) {
        let Self { bus, models, bridge, .. } = self;
        let model = models.get_mut((function / 8).wrapping_sub(1)).filter(|_| function.is_multiple_of(8));
        match model {
            Some(model) => model.read_config(register, size, || read(bus)),
            None => {
                let byte = |i| if function == 0 { bridge.get(register + i).copied().unwrap_or(0xff) } else { 0xff };
                let expected = (0..usize::from(size.min(8))).rev().fold(0, |v, i| v << 8 | u64::from(byte(i)));
                assert_eq!(read(bus), expected, "function {function:#x}, register {register:#x}");
            }
        }
    }

    fn write_config(&mut self, function: usize, register: usize, size: u8, value: u64) -> Effect {
        let mut effect = Effect::default();
        let mask = common_mask();
        if function == 0 {
            for (i, value) in value.to_le_bytes().into_iter().take(size.into()).enumerate() {
                if let Some(byte) = self.bridge.get_mut(register + i) {
                    *byte = *byte & !mask[register + i] | value & mask[register + i];
                }
            }
        } else if let Some(model) =
            self.models.get_mut((function / 8).wrapping_sub(1)).filter(|_| function.is_multiple_of(8))
        {
            model.write_config(register, size, value, &mut effect);
        }
        effect
    }

    fn compare_bar(&self, (device, (bar, offset)): (usize, (u8, u64)), size: u8, expected: [Option<u8>; 8], read: u64) {
        for (i, (read, expected)) in read.to_le_bytes().into_iter().zip(expected).enumerate() {
            assert!(
                expected.is_none_or(|byte| byte == read),
                "device {device} BAR {bar} {offset:#x} + {i}, {size} bytes"
            );
            if bar == 0 && offset + i as u64 == 0x14 && expected.is_none() {
                assert_eq!(read & !STATUS, 0, "status bits that do not exist");
                assert!(read & 4 == 0 || read & 8 != 0, "DRIVER_OK without FEATURES_OK");
            }
        }
    }

    fn in_memory(&self, gpa: u64) -> Option<(usize, (u8, u64))> {
        self.models.iter().enumerate().find_map(|(device, model)| Some((device, model.memory(gpa)?)))
    }

    fn at_port(&self, port: u16) -> Option<(usize, (u8, u64))> {
        self.models.iter().enumerate().find_map(|(device, model)| Some((device, model.port(port)?)))
    }

    fn read(&mut self, to: &To, size: u8) {
        match *to {
            To::Ecam(offset) if offset >= layout::ECAM_SIZE => assert_eq!(self.bus.read_ecam(offset, size), ones(size)),
            To::Ecam(offset) => {
                self.read_config((offset >> 12) as usize, (offset & 0xfff) as usize, size, |bus| {
                    bus.read_ecam(offset, size)
                });
            }
            To::Memory(gpa) => {
                let found = self.in_memory(gpa);
                let expected = found.map(|(device, (bar, offset))| self.models[device].read_bar(bar, offset, size));
                let mut read = self.bus.read_memory(gpa, size);
                if planted() {
                    read = read.map(|value| value ^ 1 << 40);
                }
                assert_eq!(read.is_some(), found.is_some(), "who answers at {gpa:#x}");
                if let (Some(found), Some(expected), Some(read)) = (found, expected, read) {
                    self.compare_bar(found, size, expected, read);
                }
            }
            To::Port(port) if port == 0xcf8 && size == 4 => assert_eq!(self.bus.read_port(port, 4), Some(self.address)),
            To::Port(port @ 0xcfc..0xd00) => match self.data(port) {
                Some((function, register)) => {
                    self.read_config(function, register, size, |bus| bus.read_port(port, size).unwrap_or(0).into());
                }
                None => assert_eq!(self.bus.read_port(port, size).map(u64::from), Some(ones(size))),
            },
            // A notification word reads as zero.
            To::Port(port) => assert_eq!(self.bus.read_port(port, size), self.at_port(port).map(|_| 0)),
        }
    }

    fn write(&mut self, to: &To, size: u8, value: u64) {
        let mut sent = Vec::new();
        let send = |message| sent.push(message);
        let mut effect = Effect::default();
        match *to {
            To::Ecam(offset) => {
                if offset < layout::ECAM_SIZE {
                    effect = self.write_config((offset >> 12) as usize, (offset & 0xfff) as usize, size, value);
                }
                self.bus.write_ecam(offset, size, value, send);
            }
            To::Memory(gpa) => {
                let found = self.in_memory(gpa);
                if let Some((device, (bar, offset))) = found {
                    self.models[device].write_bar(bar, offset, size, value, &mut effect);
                }
                assert_eq!(self.bus.write_memory(gpa, size, value, send), found.is_some(), "who answers at {gpa:#x}");
            }
            To::Port(port) => {
                let value = value as u32;
                let answers = match port {
                    0xcf8 if size == 4 => {
                        self.address = value & 0x80ff_fffc;
                        true
                    }
                    0xcfc..0xd00 => {
                        if let Some((function, register)) = self.data(port) {
                            effect = self.write_config(function, register, size, value.into());
                        }
                        true
                    }
                    _ => {
                        let found = self.at_port(port);
                        if let Some((device, (bar, offset))) = found {
                            self.models[device].write_bar(bar, offset, size, value.into(), &mut effect);
                        }
                        found.is_some()
                    }
                };
                assert_eq!(self.bus.write_port(port, size, value, send), answers, "who answers at {port:#x}");
            }
        }
        assert_eq!(sent, effect.sent, "a message goes where the table says");
        let rung = self.models.iter().fold(0, |all, model| all | model.shared.take_rung() & !virtio::kick::ATTENTION);
        assert_eq!(rung, effect.rung, "queues that were notified");
        assert_eq!(self.bus.refused(), self.models.iter().map(|model| model.refused).sum::<u64>());
    }

    /// What an engine does.
    fn engine(&mut self, input: &mut Input<'_>) {
        let number = input.byte();
        if number == 0xff {
            return self.reset();
        }
        let model = &mut self.models[usize::from(number) % DEVICES];
        let shared = model.shared;
        if number >= 0xf0 {
            model.moves();
        }
        match input.byte() % 8 {
            0..4 => {
                let entry = input.byte() % (VECTORS as u8 + 2);
                let raised = shared.msix.raise(entry.into()).map(|m| (m.address, m.data));
                let expected = model.table.get(usize::from(entry)).filter(|_| model.bytes[model.msix + 3] & 0x80 != 0);
                let masked = expected.is_some() && model.is_masked(entry.into());
                if masked {
                    model.pending[usize::from(entry)] = true;
                }
                let expected = expected.filter(|_| !masked);
                assert_eq!(raised, expected.map(|e| (u64::from(e[1]) << 32 | u64::from(e[0]), e[2])));
            }
            4 => shared.set_isr(input.byte() & 3),
            5 => shared.set_needs_reset(),
            6 => {
                (0..shared.queues())
                    .filter(|index| shared.stopping() >> index & 1 != 0)
                    .for_each(|i| shared.queue_stopped(i));
            }
            _ => match shared.phase() {
                Phase::Activating => drop(shared.step(Phase::Activating, Phase::Running)),
                Phase::Resetting => shared.acknowledge_reset(),
                Phase::Idle | Phase::Running => {}
            },
        }
    }

    fn check_reasons(&self, to: &To) {
        let reason = |(device, (bar, _)): (usize, (u8, u64))| match (bar, self.models[device].notify) {
            (0, _) => Reason::MmioPci,
            (_, NotifyBar::Io) => Reason::IoVirtioNotify,
            (_, NotifyBar::Memory) => Reason::MmioVirtioNotify,
        };
        match *to {
            To::Memory(gpa) => assert_eq!(self.bus.memory_reason(gpa), self.in_memory(gpa).map(reason)),
            To::Port(port) => assert_eq!(self.bus.port_reason(port), self.at_port(port).map(reason)),
            To::Ecam(_) => {}
        }
    }
}

thread_local! {
    // Tests' devices are never given back, so there is one set of them.
    static DEVICES_OF_THREAD: RefCell<Option<[&'static Shared; DEVICES]>> = const { RefCell::new(None) };
}

fn devices() -> [&'static Shared; DEVICES] {
    DEVICES_OF_THREAD.with_borrow_mut(|devices| {
        *devices.get_or_insert_with(|| {
            let kinds = [
                virtio::testing::device(),
                DeviceConfig { device_type: 2, driver_writes: 1 << 6 | 0xf, ..virtio::testing::device() },
                DeviceConfig { device_type: 4, config_len: 0, queues: 1, ..virtio::testing::device() },
            ];
            kinds.map(|kind| -> &'static Shared { Box::leak(Box::new(Shared::new(kind))) })
        })
    })
}

/// The target.
///
/// # Panics
/// The bus or a function is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&devices());
    // Most drivers switch decoding on first.
    if input.flag() {
        (1..=DEVICES as u64).for_each(|device| world.write(&To::Ecam(device << 15 | 4), 2, 7));
    }
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        let kind = input.byte();
        if kind < 48 {
            world.engine(&mut input);
            continue;
        }
        let to = world.place(&mut input);
        let size = match (&to, input.byte()) {
            (To::Port(_), size) => [1, 2, 4][usize::from(size % 3)],
            (_, size @ 0..240) => [1, 2, 4, 8][usize::from(size % 4)],
            (_, size) => size,
        };
        world.check_reasons(&to);
        if kind & 1 == 0 {
            world.read(&to, size);
        } else {
            let value = match input.byte() % 4 {
                0 => input.wide(),
                1 => input.byte().into(),
                // A message that may be sent, or nearly.
                2 => 0xfee0_0000 | input.within(0, 0x10_0000) | u64::from(input.byte()) << 32,
                _ => u64::from(input.byte()) << (8 * (input.byte() % 8)),
            };
            world.write(&to, size, value);
        }
    }
    for device in 0..=DEVICES as u64 {
        (0..64).for_each(|register| world.read(&To::Ecam((device << 15) + register * 4), 4));
    }
}

crate::planted::tests!(the_bus_does_what_the_model_says, 256, 0..1500);
