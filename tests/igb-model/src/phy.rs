//! The copper PHY (IEEE 802.3, clause 22).

use crate::kind::Kind;

/// Microseconds that an access takes, and that auto-negotiation takes.
const ACCESS: u64 = 30;
const NEGOTIATION: u64 = 700_000;

const POWER_DOWN: u16 = 1 << 11;
const NEGOTIATE: u16 = 1 << 12;
const RESTART: u16 = 1 << 9;

pub(crate) struct Phy {
    kind: Kind,
    pub(crate) registers: [u16; 32],
    /// When an access that is under way ends.
    pub(crate) busy_until: Option<u64>,
    /// When the negotiation that is under way ends.
    negotiated_at: Option<u64>,
    restart: bool,
    up: bool,
}

impl Phy {
    /// As firmware leaves it: powered down.
    pub(crate) fn new(kind: Kind) -> Self {
        let mut registers = [0; 32];
        registers[0] = POWER_DOWN | NEGOTIATE | 0x140;
        registers[2] = 0x02a8;
        registers[3] = 0x0391;
        // Everything is offered, with PAUSE.
        registers[4] = 0xde1;
        registers[9] = 0x300;
        // A lower speed in D0.
        registers[25] = 1 << 1 | 1;
        Self { kind, registers, busy_until: None, negotiated_at: None, restart: false, up: false }
    }

    /// A reset of the MAC leaves the PHY's registers.
    pub(crate) fn reset_mac(&mut self) {
        self.busy_until = None;
    }

    pub(crate) fn advance(&mut self, now: u64, cable: bool) {
        if !cable || self.registers[0] & POWER_DOWN != 0 || self.registers[0] & NEGOTIATE == 0 {
            (self.up, self.negotiated_at) = (false, None);
            self.restart = cable && self.restart;
            return;
        }
        if std::mem::take(&mut self.restart) {
            (self.up, self.negotiated_at) = (false, Some(now + NEGOTIATION));
        }
        match self.negotiated_at {
            Some(end) if now >= end => (self.up, self.negotiated_at) = (true, None),
            None if !self.up => self.negotiated_at = Some(now + NEGOTIATION),
            _ => {}
        }
    }

    /// The speed of the link in Mb/s.
    pub(crate) fn link(&self) -> Option<u32> {
        let slow = self.kind == Kind::I82576 && self.registers[25] & 1 << 1 != 0;
        let gigabit = self.registers[9] & 1 << 9 != 0;
        self.up.then_some(if slow || !gigabit { 100 } else { 1000 })
    }

    /// Begins an access. Returns false if one is under way.
    pub(crate) fn begin(&mut self, now: u64) -> bool {
        let free = self.busy_until.is_none();
        self.busy_until = Some(now + ACCESS);
        free
    }

    /// Reads. `None`: it has no such register.
    pub(crate) fn read(&self, register: u8) -> Option<u16> {
        // The registers from 16 on are in pages, which the 82576's PHY chooses by register 31.
        let paged = register > 15 && register != 31;
        (!paged || self.kind == Kind::I82576 && self.registers[31] == u16::from(register))
            .then(|| self.registers[usize::from(register)])
    }

    /// Writes. Returns false if it has no such register.
    pub(crate) fn write(&mut self, register: u8, value: u16) -> bool {
        if [1, 2, 3].contains(&register) || register != 31 && self.read(register).is_none() {
            return false;
        }
        self.registers[usize::from(register)] = value;
        if register == 0 {
            self.restart = value & RESTART != 0;
            self.registers[0] &= !RESTART;
        }
        true
    }
}
