//! A local APIC in x2APIC mode.

use machine::lapic::{Accepts as _, Clock, Delivery, Destination, Effect, LocalApic, Message, Settings};

use crate::input::Input;
use crate::planted::planted;

const MOST_STEPS: usize = 60;
const ID: u32 = 0x13;
/// Ticks of the TSC for one of the timer before its divider.
const RATIO: u64 = 3;
const BASE: u64 = 0xfee0_0d00;

const MASK: u32 = 1 << 16;
const SEND_ILLEGAL: u32 = 1 << 5;
const RECEIVE_ILLEGAL: u32 = 1 << 6;

struct Model {
    tsc_deadline_mode: bool,
    tpr: u32,
    svr: u32,
    irr: [bool; 256],
    isr: [bool; 256],
    tmr: [bool; 256],
    esr: u32,
    errors: u32,
    icr: u64,
    lvt: [u32; 6],
    initial: u32,
    divide: u32,
    /// Ticks of the TSC until the count is 0. `None`: it does not run.
    left: Option<u64>,
    /// IA32_TSC_DEADLINE, and the host's TSC at which it comes.
    deadline: Option<(u64, u64)>,
    clock: Clock,
}

fn highest(vectors: &[bool; 256]) -> Option<u32> {
    vectors.iter().rposition(|set| *set).map(|vector| vector as u32)
}

impl Model {
    fn new(tsc_deadline_mode: bool, clock: Clock) -> Self {
        Self {
            tsc_deadline_mode,
            tpr: 0,
            svr: 0xff,
            irr: [false; 256],
            isr: [false; 256],
            tmr: [false; 256],
            esr: 0,
            errors: 0,
            icr: 0,
            lvt: [MASK; 6],
            initial: 0,
            divide: 0,
            left: None,
            deadline: None,
            clock,
        }
    }

    fn enabled(&self) -> bool {
        self.svr & 0x100 != 0
    }

    /// Timer mode: 0 one-shot, 1 periodic, 2 TSC-deadline.
    fn mode(&self) -> u32 {
        self.lvt[0] >> 17 & 3
    }

    /// Ticks of the TSC for one of the count.
    fn unit(&self) -> u64 {
        let divisor = match self.divide {
            0b0000 => 2,
            0b0001 => 4,
            0b0010 => 8,
            0b0011 => 16,
            0b1000 => 32,
            0b1001 => 64,
            0b1010 => 128,
            _ => 1,
        };
        RATIO * divisor
    }

    fn count(&self) -> u32 {
        self.left.map_or(0, |left| left.div_ceil(self.unit()) as u32)
    }

    fn accept(&mut self, vector: u8, level: bool) -> bool {
        if !self.enabled() {
            return false;
        }
        if vector < 16 {
            self.error(RECEIVE_ILLEGAL);
            return false;
        }
        self.irr[usize::from(vector)] = true;
        self.tmr[usize::from(vector)] = level;
        true
    }

    /// 11.5.3. The error interrupt's own illegal vector is an error without another interrupt.
    fn error(&mut self, bit: u32) {
        self.errors |= bit;
        let entry = self.lvt[5];
        if entry & MASK == 0 {
            if entry & 0xf0 == 0 {
                self.errors |= RECEIVE_ILLEGAL;
            } else {
                self.accept(entry as u8, false);
            }
        }
    }

    fn ppr(&self) -> u32 {
        let class = highest(&self.isr).unwrap_or(0) & 0xf0;
        if self.tpr & 0xf0 >= class { self.tpr } else { class }
    }

    fn next(&self) -> Option<u8> {
        highest(&self.irr).filter(|vector| vector & 0xf0 > self.ppr() & 0xf0).map(|vector| vector as u8)
    }

    /// The timer's interrupt, if it is due.
    fn expire(&mut self, passed: u64) {
        let fired = if self.mode() == 2 {
            let fired = self.deadline.is_some_and(|(_, host)| self.clock.tsc >= host);
            if fired {
                self.deadline = None;
            }
            fired
        } else if let Some(left) = self.left {
            if passed < left {
                self.left = Some(left - passed);
                false
            } else {
                let period = u64::from(self.initial) * self.unit();
                self.left = (self.mode() == 1).then(|| period - (passed - left) % period);
                true
            }
        } else {
            false
        };
        if fired && self.lvt[0] & MASK == 0 {
            self.accept(self.lvt[0] as u8, false);
        }
    }

    fn deadline(&self) -> Option<u64> {
        if self.lvt[0] & MASK != 0 {
            None
        } else if self.mode() == 2 {
            self.deadline.map(|(_, host)| host)
        } else {
            self.left.map(|left| self.clock.tsc + left)
        }
    }

    fn arm(&mut self, guest: u64) {
        if self.mode() == 2 {
            let now = self.clock.tsc + self.clock.offset;
            let host = if guest <= now { self.clock.tsc } else { self.clock.tsc.saturating_add(guest - now) };
            self.deadline = (guest != 0).then_some((guest, host));
        }
    }

    fn read(&self, number: u32) -> Option<u64> {
        let bits = |vectors: &[bool; 256]| {
            let first = (number & 7) as usize * 32;
            (0..32).fold(0, |bits, n| bits | u64::from(vectors[first + n]) << n)
        };
        Some(match number {
            0x1b => BASE,
            0x6e0 if self.tsc_deadline_mode => self.deadline.map_or(0, |(guest, _)| guest),
            0x802 => ID.into(),
            0x803 => 0x0005_0015,
            0x808 => self.tpr.into(),
            0x80a => self.ppr().into(),
            0x80d => (u64::from(ID) >> 4) << 16 | 1 << (ID & 15),
            0x80f => self.svr.into(),
            0x810..=0x817 => bits(&self.isr),
            0x818..=0x81f => bits(&self.tmr),
            0x820..=0x827 => bits(&self.irr),
            0x828 => self.esr.into(),
            0x830 => self.icr,
            0x832..=0x837 => self.lvt[(number - 0x832) as usize].into(),
            0x838 => self.initial.into(),
            0x839 => self.count().into(),
            0x83e => self.divide.into(),
            _ => return None,
        })
    }

    /// `None`: #GP.
    fn write(&mut self, number: u32, value: u64) -> Option<Effect> {
        match number {
            0x1b => return (value == BASE).then_some(Effect::None),
            0x6e0 if self.tsc_deadline_mode => self.arm(value),
            0x830 => return self.command(value),
            _ if value >> 32 != 0 => return None,
            0x808 if value < 0x100 => self.tpr = value as u32,
            0x80b if value == 0 => {
                let Some(vector) = highest(&self.isr) else { return Some(Effect::None) };
                self.isr[vector as usize] = false;
                let level = self.tmr[vector as usize];
                return Some(if level { Effect::EndOfInterrupt(vector as u8) } else { Effect::None });
            }
            0x80f if value & !0x3ff == 0 => {
                self.svr = value as u32;
                if !self.enabled() {
                    self.lvt.iter_mut().for_each(|entry| *entry |= MASK);
                }
            }
            0x828 if value == 0 => self.esr = std::mem::take(&mut self.errors),
            0x832..=0x837 => self.set_entry((number - 0x832) as usize, value as u32)?,
            0x838 => {
                if self.mode() != 2 {
                    self.initial = value as u32;
                    self.left = (value != 0).then(|| value * self.unit());
                }
            }
            0x83e if value & !0xb == 0 => {
                let count = self.count();
                self.divide = value as u32;
                self.left = self.left.map(|_| u64::from(count) * self.unit());
            }
            0x83f if value < 16 => self.error(SEND_ILLEGAL),
            0x83f if value < 0x100 => drop(self.accept(value as u8, false)),
            _ => return None,
        }
        Some(Effect::None)
    }

    /// 11.5.1, figure 11-8. Delivery status and remote IRR are read-only; what is written there counts for nothing.
    fn set_entry(&mut self, index: usize, value: u32) -> Option<()> {
        let fields = match index {
            0 => 0x7_00ff,
            1 | 2 => 0x1_07ff,
            3 | 4 => 0x1_a7ff,
            _ => 0x1_00ff,
        };
        if value & !(fields | 0x5000) != 0 {
            return None;
        }
        if index == 0 {
            let mode = value >> 17 & 3;
            if mode == 3 || mode == 2 && !self.tsc_deadline_mode {
                return None;
            }
            // A change to or from TSC-deadline mode stops the timer (11.5.4.1).
            if (mode == 2) != (self.mode() == 2) {
                (self.left, self.deadline) = (None, None);
            }
        }
        self.lvt[index] = value & fields | if self.enabled() { 0 } else { MASK };
        Some(())
    }

    /// 11.6.1, 11.12.9, table 11-3.
    fn command(&mut self, icr: u64) -> Option<Effect> {
        if icr & 0xfff3_2000 != 0 {
            return None;
        }
        self.icr = icr & !0x1000;
        let (vector, mode, shorthand) = (icr as u8, icr >> 8 & 7, icr >> 18 & 3);
        if mode < 2 && vector < 16 {
            self.error(SEND_ILLEGAL);
            return Some(Effect::None);
        }
        let delivery = match mode {
            0 => Delivery::Fixed { vector, level: false },
            1 => Delivery::LowestPriority { vector, level: false },
            4 => Delivery::Nmi,
            // A level de-assert does nothing.
            5 if icr >> 14 & 3 == 2 => return Some(Effect::None),
            5 => Delivery::Init,
            6 => Delivery::Startup(vector),
            _ => return Some(Effect::None),
        };
        let to = (icr >> 32) as u32;
        let destination = match (shorthand, mode) {
            (0, _) if icr & 0x800 != 0 => Destination::Logical(to),
            (0, _) => Destination::Physical(to),
            (1, 0) => {
                self.accept(vector, false);
                return Some(Effect::None);
            }
            (2, 0 | 1) => Destination::Physical(u32::MAX),
            (1 | 2, _) => return Some(Effect::None),
            _ => Destination::AllBut(ID),
        };
        Some(Effect::Ipi(Message { destination, delivery }))
    }
}

pub fn run(input: &mut Input<'_>) {
    let tsc_deadline = input.byte() < 192;
    let mut clock = Clock { tsc: 1_000_000, offset: input.within(0, 1_000_000) };
    let settings =
        Settings { id: ID, bootstrap: true, timer_hz: 1_000_000_000, tsc_hz: RATIO * 1_000_000_000, tsc_deadline };
    let mut apic = LocalApic::new(settings);
    let mut model = Model::new(tsc_deadline, clock);
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        step(input, &mut apic, &mut model, &mut clock);
        for number in (0x800..0x840).chain([0x1b, 0x6e0]) {
            let mut found = apic.read(number, clock).ok();
            if planted() && number == 0x820 {
                found = Some(1);
            }
            assert_eq!(found, model.read(number), "register {number:#x}");
        }
        assert_eq!(apic.next_interrupt(), model.next());
        assert_eq!(apic.deadline(), model.deadline());
        assert_eq!(apic.cr8(), u64::from(model.tpr >> 4));
    }
}

fn step(input: &mut Input<'_>, apic: &mut LocalApic, model: &mut Model, clock: &mut Clock) {
    match input.byte() % 16 {
        0..8 => {
            const NUMBERS: [u32; 20] = [
                0x808, 0x80b, 0x80f, 0x80f, 0x828, 0x830, 0x830, 0x832, 0x832, 0x833, 0x834, 0x835, 0x836, 0x837,
                0x838, 0x838, 0x83e, 0x83f, 0x6e0, 0x1b,
            ];
            let number = match input.byte() {
                any @ 240.. => 0x800 + u32::from(any & 15) * 16 + u32::from(input.byte() & 15),
                known => NUMBERS[usize::from(known) % NUMBERS.len()],
            };
            let value = match (input.byte() % 8, number) {
                (0, _) => input.wide(),
                (1, _) => 0,
                (_, 0x832) => input.within(0, 0x100) | u64::from(input.byte() & 7) << 16,
                (_, 0x833..=0x837) => input.within(0, 0x100) | u64::from(input.byte() & 1) << 16,
                (_, 0x80f) => 0x100 | input.within(0, 0x400),
                (_, 0x838) => input.wide() as u32 as u64 >> (input.byte() % 32),
                (_, 0x83e) => u64::from(input.byte() & 0xb),
                (_, 0x830) => input.wide() & !0xfff3_2000,
                (_, 0x6e0) => clock.tsc + clock.offset + input.within(0, 10_000) - 100,
                (_, 0x1b) => BASE,
                _ => input.byte().into(),
            };
            let expected = model.write(number, value);
            assert_eq!(apic.write(number, value, *clock).ok(), expected, "{value:#x} to {number:#x}");
        }
        8..11 => {
            let (vector, level) = (input.byte(), input.flag());
            let expected = model.accept(vector, level);
            assert_eq!(apic.accept(vector, level), expected);
        }
        11 | 12 => {
            if let Some(vector) = model.next() {
                model.irr[usize::from(vector)] = false;
                model.isr[usize::from(vector)] = true;
            }
            if let Some(vector) = apic.next_interrupt() {
                apic.acknowledge(vector);
            }
        }
        13 => {
            let value = u64::from(input.byte() % 20);
            assert_eq!(apic.set_cr8(value).is_ok(), value < 16);
            if value < 16 {
                model.tpr = (value as u32) << 4;
            }
        }
        14 if input.byte().is_multiple_of(8) => {
            // The guest's TSC moves against the host's.
            clock.offset = input.within(0, 1_000_000);
            model.clock = *clock;
            apic.tsc_moved(*clock);
            let armed = model.deadline.map_or(0, |(guest, _)| guest);
            model.arm(armed);
        }
        14 if input.byte().is_multiple_of(8) => {
            apic.init();
            *model = Model::new(model.tsc_deadline_mode, *clock);
        }
        _ => {
            let passed = input.wide() >> 32 >> (input.byte() % 32);
            clock.tsc += passed;
            model.clock = *clock;
            model.expire(passed);
        }
    }
    apic.expire(*clock);
    model.expire(0);
}
