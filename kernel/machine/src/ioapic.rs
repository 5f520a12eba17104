//! The guest's IOAPIC. It has 24 inputs, and turns each into an interrupt message by its redirection entry.
//!
//! Follows the 82093AA data sheet (3.1 and 3.2), with version 0x20 and the EOI register that came with it. Only the
//! serial console and the power button use it. Callers serialise access to it.

use bitfield_struct::bitfield;

use crate::decode::mask;
use crate::lapic::{Delivery, Destination, Message};
use crate::layout::{IOAPIC_ID, IOAPIC_PINS};

const PINS: usize = IOAPIC_PINS as usize;

/// Offsets within the page.
const IOREGSEL: u64 = 0x00;
const IOWIN: u64 = 0x10;
const EOI: u64 = 0x40;

/// Registers behind the window.
const ID: u8 = 0;
const VERSION: u8 = 1;
const ARBITRATION: u8 = 2;
const FIRST_ENTRY: u8 = 0x10;

/// A redirection table entry (3.2.4).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
struct Entry {
    vector: u8,
    #[bits(3)]
    delivery_mode: u8,
    logical: bool,
    /// Read-only. Messages are delivered at once here, so it always reads as idle.
    delivery_status: bool,
    /// Kept, but without effect. This machine's lines are asserted or not, and have no voltage.
    active_low: bool,
    /// Read-only. A level-triggered interrupt was sent, and its EOI has not come yet.
    remote_irr: bool,
    level: bool,
    mask: bool,
    #[bits(39)]
    __: u64,
    destination: u8,
}

impl Entry {
    const MASKED: Self = Self::new().with_mask(true);
    /// All fields except the two read-only ones and the reserved ones.
    const WRITABLE: u64 = 0xff00_0000_0001_afff;

    /// Returns the message, or `None` for the delivery modes that this machine does not have: SMI, ExtINT, and INIT
    /// from a pin.
    fn message(self) -> Option<Message> {
        let (vector, level) = (self.vector(), self.level());
        let delivery = match self.delivery_mode() {
            0 => Delivery::Fixed { vector, level },
            1 => Delivery::LowestPriority { vector, level },
            4 => Delivery::Nmi,
            _ => return None,
        };
        Some(Message { destination: Destination::of_message(self.destination(), self.logical()), delivery })
    }
}

/// An IOAPIC. Methods that may interrupt call `send` with each message. The message then goes to
/// [`crate::mailbox::send`].
#[derive(Clone, Debug)]
pub struct IoApic {
    select: u8,
    id: u8,
    entries: [Entry; PINS],
    /// Which inputs are asserted, one bit each.
    lines: u32,
}

impl Default for IoApic {
    fn default() -> Self {
        Self::new()
    }
}

impl IoApic {
    /// Makes an IOAPIC in its state after reset. All inputs are masked.
    #[must_use]
    pub const fn new() -> Self {
        Self { select: 0, id: IOAPIC_ID, entries: [Entry::MASKED; PINS], lines: 0 }
    }

    /// Loads `size` bytes at `offset` of the page. Reads zero where there is no register.
    #[must_use]
    pub fn read(&self, offset: u64, size: u8) -> u64 {
        // Registers are 32 bits wide, one every 16 bytes. A narrower or shifted load gets its part.
        let register = match offset & !3 {
            IOREGSEL => u32::from(self.select),
            IOWIN => self.register(),
            _ => 0,
        };
        let value = u64::from(register) >> ((offset & 3) << 3);
        value & mask(size)
    }

    /// Stores `size` bytes at `offset` of the page. The window takes only whole registers.
    pub fn write(&mut self, offset: u64, size: u8, value: u64, mut send: impl FnMut(Message)) {
        match (offset, size) {
            (IOREGSEL, _) => self.select = value as u8,
            (IOWIN, 4..) => self.set_register(value as u32, send),
            (EOI, _) => self.end_of_interrupt(value as u8, &mut send),
            _ => {}
        }
    }

    fn register(&self) -> u32 {
        match self.select {
            ID | ARBITRATION => u32::from(self.id) << 24,
            VERSION => u32::from(IOAPIC_PINS - 1) << 16 | 0x20,
            select => match self.entry(select).map(|(pin, shift)| (self.entries.get(pin), shift)) {
                Some((Some(entry), shift)) => (entry.into_bits() >> shift) as u32,
                _ => 0,
            },
        }
    }

    fn set_register(&mut self, value: u32, mut send: impl FnMut(Message)) {
        if self.select == ID {
            self.id = (value >> 24) as u8 & 0xf;
        }
        let Some((pin, shift)) = self.entry(self.select) else { return };
        let half = 0xffff_ffff << shift & Entry::WRITABLE;
        let Some(entry) = self.entries.get_mut(pin) else { return };
        let mut new = Entry::from_bits(entry.into_bits() & !half | u64::from(value) << shift & half);
        if !new.level() {
            // Software also clears a stuck Remote IRR this way.
            new.set_remote_irr(false);
        }
        *entry = new;
        if new.level() {
            self.service(pin, &mut send);
        }
    }

    /// Returns the pin whose entry the select register names, and the half of the entry as a shift: 0 or 32.
    fn entry(&self, select: u8) -> Option<(usize, u32)> {
        let index = select.checked_sub(FIRST_ENTRY)?;
        let pin = usize::from(index / 2);
        (pin < PINS).then_some((pin, u32::from(index & 1) * 32))
    }

    /// Sends the interrupt of a pin. Does nothing if the pin is masked. Does nothing for a level-triggered pin that is
    /// not asserted or whose last interrupt has not ended.
    fn service(&mut self, pin: usize, send: &mut impl FnMut(Message)) {
        let Some(entry) = self.entries.get_mut(pin) else { return };
        if entry.mask() || entry.level() && (entry.remote_irr() || self.lines >> pin & 1 == 0) {
            return;
        }
        if let Some(message) = entry.message() {
            // An NMI is always edge-triggered, even if the entry says otherwise, because it has no EOI.
            entry.set_remote_irr(entry.level() && message.delivery != Delivery::Nmi);
            send(message);
        }
    }

    /// Asserts or releases an input. A rising edge on a masked edge-triggered pin is lost, as on the real IOAPIC.
    pub fn set_line(&mut self, gsi: u8, asserted: bool, mut send: impl FnMut(Message)) {
        let pin = usize::from(gsi);
        if pin >= PINS {
            return;
        }
        let rose = asserted && self.lines >> pin & 1 == 0;
        self.lines = self.lines & !(1 << pin) | u32::from(asserted) << pin;
        // A line that stays asserted interrupts again at the EOI, not here. An NMI on a level-triggered pin needs the
        // edge too.
        if rose {
            self.service(pin, &mut send);
        }
    }

    /// Makes an edge on an input: releases it if it is asserted, and asserts it.
    pub fn pulse(&mut self, gsi: u8, mut send: impl FnMut(Message)) {
        self.set_line(gsi, false, &mut send);
        self.set_line(gsi, true, &mut send);
    }

    /// Handles the end of a level-triggered interrupt with this vector on a CPU. Inputs that are still asserted
    /// interrupt again.
    pub fn end_of_interrupt(&mut self, vector: u8, mut send: impl FnMut(Message)) {
        for pin in 0..PINS {
            let Some(entry) = self.entries.get_mut(pin) else { return };
            if entry.level() && entry.remote_irr() && entry.vector() == vector {
                entry.set_remote_irr(false);
                self.service(pin, &mut send);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(a: &mut IoApic, select: u8, value: u32) -> Vec<Message> {
        let mut sent = Vec::new();
        a.write(IOREGSEL, 4, u64::from(select), |_| unreachable!());
        a.write(IOWIN, 4, u64::from(value), |m| sent.push(m));
        sent
    }

    fn read(a: &mut IoApic, select: u8) -> u32 {
        a.write(IOREGSEL, 4, u64::from(select), |_| unreachable!());
        a.read(IOWIN, 4) as u32
    }

    fn line(a: &mut IoApic, gsi: u8, asserted: bool) -> Vec<Message> {
        let mut sent = Vec::new();
        a.set_line(gsi, asserted, |m| sent.push(m));
        sent
    }

    fn eoi(a: &mut IoApic, vector: u8) -> Vec<Message> {
        let mut sent = Vec::new();
        a.end_of_interrupt(vector, |m| sent.push(m));
        sent
    }

    fn fixed(destination: u32, vector: u8, level: bool) -> Message {
        Message { destination: Destination::Physical(destination), delivery: Delivery::Fixed { vector, level } }
    }

    const LEVEL: u32 = 1 << 15;
    const MASK: u32 = 1 << 16;

    #[test]
    fn identifies_itself_with_24_pins_all_masked() {
        let mut a = IoApic::new();
        assert_eq!(read(&mut a, VERSION), 0x0017_0020);
        for pin in 0..24 {
            assert_eq!((read(&mut a, 0x10 + 2 * pin), read(&mut a, 0x11 + 2 * pin)), (MASK, 0));
        }
        write(&mut a, ID, 0x0500_0000);
        assert_eq!(read(&mut a, ID), 0x0500_0000);
        assert_eq!(read(&mut a, ARBITRATION), 0x0500_0000);
        assert_eq!((read(&mut a, 0x40), read(&mut a, 0xff)), (0, 0));
    }

    #[test]
    fn an_edge_is_sent_once_and_lost_while_masked() {
        let mut a = IoApic::new();
        write(&mut a, 0x19, 0x0300_0000);
        assert_eq!(line(&mut a, 4, true), []);
        assert_eq!(write(&mut a, 0x18, 0x31), [], "masked when it rose");
        assert_eq!(line(&mut a, 4, true), [], "no edge");
        assert_eq!(line(&mut a, 4, false), []);
        assert_eq!(line(&mut a, 4, true), [fixed(3, 0x31, false)]);
        let mut sent = Vec::new();
        a.pulse(4, |m| sent.push(m));
        assert_eq!(sent, [fixed(3, 0x31, false)]);
    }

    #[test]
    fn a_level_is_sent_again_after_each_eoi_until_released() {
        let mut a = IoApic::new();
        assert_eq!(line(&mut a, 9, true), []);
        assert_eq!(write(&mut a, 0x22, 0x45 | LEVEL), [fixed(0, 0x45, true)], "asserted when unmasked");
        assert_eq!(read(&mut a, 0x22), 0x45 | LEVEL | 1 << 14, "remote IRR");
        assert_eq!(write(&mut a, 0x22, 0x45 | LEVEL), [], "not before its EOI");
        assert_eq!(eoi(&mut a, 0x46), []);
        assert_eq!(eoi(&mut a, 0x45), [fixed(0, 0x45, true)]);
        assert_eq!(line(&mut a, 9, false), []);
        assert_eq!(eoi(&mut a, 0x45), []);
        assert_eq!(read(&mut a, 0x22), 0x45 | LEVEL);
        assert_eq!(line(&mut a, 9, true), [fixed(0, 0x45, true)]);
        write(&mut a, 0x22, 0x45 | LEVEL | MASK);
        assert_eq!(eoi(&mut a, 0x45), [], "masked");
        assert_eq!(write(&mut a, 0x22, 0x45 | LEVEL), [fixed(0, 0x45, true)]);
    }

    #[test]
    fn the_eoi_register_ends_and_edge_mode_clears_a_stuck_remote_irr() {
        let mut a = IoApic::new();
        write(&mut a, 0x22, 0x45 | LEVEL);
        line(&mut a, 9, true);
        let mut sent = Vec::new();
        a.write(EOI, 4, 0x45, |m| sent.push(m));
        assert_eq!(sent, [fixed(0, 0x45, true)]);
        write(&mut a, 0x22, 0x45 | MASK);
        assert_eq!(read(&mut a, 0x22), 0x45 | MASK);
    }

    #[test]
    fn delivery_modes_and_destinations_are_carried_over() {
        let mut a = IoApic::new();
        for (low, destination, message) in [
            (0x0931, 0x03, Some((Destination::Logical(3), Delivery::LowestPriority { vector: 0x31, level: false }))),
            (0x0031, 0xff, Some((Destination::ALL, Delivery::Fixed { vector: 0x31, level: false }))),
            (0x0400, 0x01, Some((Destination::Physical(1), Delivery::Nmi))),
            (0x0231, 0x01, None),
            (0x0531, 0x01, None),
            (0x0731, 0x01, None),
        ] {
            write(&mut a, 0x13, destination << 24);
            write(&mut a, 0x12, low);
            let mut sent = Vec::new();
            a.pulse(1, |m| sent.push((m.destination, m.delivery)));
            assert_eq!(sent, message.into_iter().collect::<Vec<_>>());
        }
    }

    proptest! {
        /// Whatever is accessed, nothing panics, and no interrupt is sent for a pin beyond the last.
        #[test]
        fn hostile_accesses_are_harmless(
            accesses in proptest::collection::vec((any::<u64>(), 0u8..=9, any::<u64>(), any::<u8>()), 1..200)
        ) {
            let mut a = IoApic::new();
            for (offset, size, value, select) in accesses {
                let mut sent = 0;
                a.write(0, 1, u64::from(select % 0x48), |_| {});
                for offset in [offset, offset % 0x50] {
                    a.write(offset, size, value, |_| sent += 1);
                    let read = a.read(offset, size);
                    prop_assert!(size == 0 || size >= 8 || read >> (u32::from(size) * 8) == 0);
                }
                a.set_line(select, value & 1 != 0, |_| sent += 1);
                a.end_of_interrupt(value as u8, |_| sent += 1);
                prop_assert!(sent <= 2 + 1 + 24 + 24);
            }
        }
    }
}
