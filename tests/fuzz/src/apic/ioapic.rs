//! An IOAPIC of 24 inputs.

use machine::ioapic::IoApic;
use machine::lapic::{Delivery, Destination, Message};

use crate::input::Input;
use crate::planted::planted;

const MOST_STEPS: usize = 100;
const PINS: usize = 24;
const LEVEL: u64 = 1 << 15;
const REMOTE_IRR: u64 = 1 << 14;
const MASK: u64 = 1 << 16;

struct Model {
    select: u8,
    id: u32,
    entries: [u64; PINS],
    lines: [bool; PINS],
    sent: Vec<Message>,
}

impl Model {
    fn register(&self) -> u32 {
        match self.select {
            0 | 2 => self.id << 24,
            1 => 0x0017_0020,
            0x10..0x40 => (self.entries[usize::from(self.select - 0x10) / 2] >> (32 * (self.select & 1))) as u32,
            _ => 0,
        }
    }

    fn set_register(&mut self, value: u32) {
        if self.select == 0 {
            self.id = value >> 24 & 15;
        }
        let (0x10..0x40, pin) = (self.select, usize::from(self.select.wrapping_sub(0x10)) / 2) else { return };
        let entry = &mut self.entries[pin];
        if self.select & 1 == 1 {
            *entry = *entry & 0xffff_ffff | u64::from(value & 0xff00_0000) << 32;
        } else {
            let kept = if u64::from(value) & LEVEL != 0 { *entry & REMOTE_IRR } else { 0 };
            *entry = *entry & 0xffff_ffff_0000_0000 | u64::from(value & 0x1_afff) | kept;
        }
        if *entry & LEVEL != 0 {
            self.interrupt(pin);
        }
    }

    fn interrupt(&mut self, pin: usize) {
        let entry = self.entries[pin];
        let level = entry & LEVEL != 0;
        if entry & MASK != 0 || level && (entry & REMOTE_IRR != 0 || !self.lines[pin]) {
            return;
        }
        let vector = entry as u8;
        let delivery = match entry >> 8 & 7 {
            0 => Delivery::Fixed { vector, level },
            1 => Delivery::LowestPriority { vector, level },
            4 => Delivery::Nmi,
            _ => return,
        };
        if level && delivery != Delivery::Nmi {
            self.entries[pin] |= REMOTE_IRR;
        }
        let to = (entry >> 56) as u32;
        let destination = match (to, entry & 0x800 != 0) {
            (0xff, _) => Destination::Physical(u32::MAX),
            (_, true) => Destination::Logical(to),
            (_, false) => Destination::Physical(to),
        };
        self.sent.push(Message { destination, delivery });
    }

    fn set_line(&mut self, pin: u8, asserted: bool) {
        let pin = usize::from(pin);
        let Some(line) = self.lines.get_mut(pin) else { return };
        let rose = asserted && !*line;
        *line = asserted;
        if rose {
            self.interrupt(pin);
        }
    }

    fn end(&mut self, vector: u8) {
        for pin in 0..PINS {
            let entry = self.entries[pin];
            if entry & LEVEL != 0 && entry & REMOTE_IRR != 0 && entry as u8 == vector {
                self.entries[pin] &= !REMOTE_IRR;
                self.interrupt(pin);
            }
        }
    }
}

pub fn run(input: &mut Input<'_>) {
    let mut apic = IoApic::new();
    let mut model = Model { select: 0, id: 0, entries: [MASK; PINS], lines: [false; PINS], sent: Vec::new() };
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        let mut sent = Vec::new();
        let mut send = |message| sent.push(message);
        match input.byte() % 8 {
            0 => {
                let (offset, size) = (input.within(0, 0x50), [1, 2, 4, 8][usize::from(input.byte() % 4)]);
                let register = match offset & !3 {
                    0 => u32::from(model.select),
                    0x10 => model.register(),
                    _ => 0,
                };
                let expected = u64::from(register) >> (8 * (offset & 3)) & (u64::MAX >> (64 - 8 * u32::from(size)));
                let found = apic.read(offset, size) ^ u64::from(planted());
                assert_eq!(found, expected, "{size} bytes at {offset:#x}");
            }
            1 | 2 => {
                // Few pins, so that they are met again.
                let select = if input.byte() < 224 { 0x10 + input.byte() % 8 } else { input.byte() };
                model.select = select;
                apic.write(0, 4, select.into(), &mut send);
                let value = if input.flag() { input.wide() as u32 } else { u32::from(input.byte() & 3) << 15 | 0x30 };
                model.set_register(value);
                apic.write(0x10, 4, value.into(), &mut send);
                assert_eq!(apic.read(0x10, 4), u64::from(model.register()), "register {select:#x}");
            }
            3 => {
                let (offset, size, value) =
                    (input.within(0, 0x50), [1, 2, 4, 8][usize::from(input.byte() % 4)], input.wide());
                match (offset, size) {
                    (0, _) => model.select = value as u8,
                    (0x10, 4..) => model.set_register(value as u32),
                    (0x40, _) => model.end(value as u8),
                    _ => {}
                }
                apic.write(offset, size, value, &mut send);
            }
            4 | 5 => {
                let (pin, asserted) = (input.byte() % 26 / if input.flag() { 1 } else { 6 }, input.flag());
                model.set_line(pin, asserted);
                apic.set_line(pin, asserted, &mut send);
            }
            6 => {
                let pin = input.byte() % 5;
                model.set_line(pin, false);
                model.set_line(pin, true);
                apic.pulse(pin, &mut send);
            }
            _ => {
                let vector = if input.flag() { 0x30 } else { input.byte() };
                model.end(vector);
                apic.end_of_interrupt(vector, &mut send);
            }
        }
        assert_eq!(sent, std::mem::take(&mut model.sent));
    }
    for select in 0..=0x40 {
        model.select = select;
        apic.write(0, 4, select.into(), |_| {});
        assert_eq!(apic.read(0x10, 4), u64::from(model.register()), "register {select:#x}");
    }
}
