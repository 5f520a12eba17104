//! The copper PHY (82576 data sheet 3.5, 8.25; IEEE 802.3, clause 22): it is told what to offer, and to negotiate. The MAC
//! then has link and speed in STATUS.
//!
//! Nothing waits: a step is one access to a register of the PHY, which takes the device some microseconds.

use core::fmt;

use intel_nic::nic::Port;
use intel_nic::semaphore::{LIMIT, Resource};

use crate::bits::{Mdic, PHPM_SLOW_OR_OFF, link_mode};
use crate::id::Kind;
use crate::registers::{Bus, CTRL_EXT, MDIC, PHPM, Registers, SW_FW_SYNC, SWSM};

/// Most microseconds for an access to a register of the PHY.
const ACCESS_LIMIT: u64 = 20_000;
/// Microseconds until a PHY that did not answer is tried again.
const PAUSE: u64 = 2_000_000;
/// The internal PHY's address.
const ADDRESS: u8 = 1;
const WRITE: u8 = 1;
const READ: u8 = 2;

/// Registers of the PHY, and the bits that are changed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    register: u8,
    clear: u16,
    set: u16,
}

/// PHY identifier, upper half. It is read to see whether there is a PHY.
const IDENTIFIER: u8 = 2;
/// Page of the registers from 16 on, in the 82576's PHY.
const PAGE: Change = Change { register: 31, clear: 0xffff, set: 25 };
/// Power management of the 82576's PHY: bit 1 is a lower speed in state D0.
const POWER: Change = Change { register: 25, clear: 1 << 1, set: 0 };
/// Offered: all of 10 and 100 Mb/s, and no PAUSE (bits 10 and 11).
const OFFER: Change = Change { register: 4, clear: 0xfe0, set: 0x1e0 };
/// Offered: 1 Gb/s, full duplex.
const OFFER_GIGABIT: Change = Change { register: 9, clear: 0x300, set: 0x200 };
/// No reset, loopback, power-down or isolation. Auto-negotiation is on (bit 12) and begins anew (bit 9).
const NEGOTIATE: Change = Change { register: 0, clear: 0xcc00, set: 0x1200 };

const OF_82576: &[Change] = &[PAGE, POWER, OFFER, OFFER_GIGABIT, NEGOTIATE];
/// Its power management is in PHPM.
const OF_I350: &[Change] = &[OFFER, OFFER_GIGABIT, NEGOTIATE];

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing before the device is up.
    Off,
    /// Waits for the semaphore.
    Take { deadline: u64 },
    /// The identifier is being read.
    Identify { deadline: u64 },
    /// The register of this change is being read.
    Read { change: usize, deadline: u64 },
    /// It is being written.
    Write { change: usize, deadline: u64 },
    /// The PHY negotiates.
    Done,
    /// It did not answer. It is tried again then.
    Silent { until: u64 },
    /// The link does not go by copper. What CTRL_EXT says.
    Foreign(u32),
}

/// The PHY, and what there is to say of it.
#[derive(Debug)]
pub struct Phy {
    kind: Kind,
    port: u8,
    step: Step,
    /// The semaphore was taken from firmware.
    forced: bool,
    /// The driver has the semaphore.
    held: bool,
    changes: u32,
}

impl Phy {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, port: 0, step: Step::Off, forced: false, held: false, changes: 1 }
    }

    fn changes_of_kind(&self) -> &'static [Change] {
        match self.kind {
            Kind::I82576 => OF_82576,
            Kind::I350 => OF_I350,
        }
    }

    /// The semaphore of the port's PHY.
    fn semaphore(&self) -> Resource {
        let bit = match self.port & 3 {
            0 => 1,
            1 => 2,
            2 => 5,
            _ => 6,
        };
        Resource { swsm: SWSM, sw_fw_sync: SW_FW_SYNC, software: 1 << bit, firmware: 1 << 16 << bit }
    }

    /// Whether there is nothing left to do now. The link may be down.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.step, Step::Done | Step::Silent { .. } | Step::Foreign(_))
    }

    /// Begins after a reset. `port`: the device's number of this port.
    pub(crate) fn begin<R: Registers>(&mut self, bus: &Bus<R>, now: u64, port: u8) {
        (self.port, self.held, self.forced) = (port, false, false);
        let mode = link_mode(bus.read(&CTRL_EXT, 0));
        if mode != 0 {
            return self.go(Step::Foreign(mode));
        }
        if self.kind == Kind::I350 {
            bus.update(&PHPM, 0, |v| v & !PHPM_SLOW_OR_OFF);
        }
        self.go(Step::Take { deadline: now.saturating_add(LIMIT) });
    }

    /// The device is reset next: the semaphore goes back.
    pub(crate) fn leave<R: Registers>(&mut self, bus: &Bus<R>) {
        self.release(bus);
        self.end();
    }

    /// The device is gone.
    pub(crate) fn end(&mut self) {
        self.held = false;
        self.go(Step::Off);
    }

    fn release<R: Registers>(&mut self, bus: &Bus<R>) {
        if self.held {
            self.held = false;
            self.semaphore().release(bus);
        }
    }

    fn go(&mut self, step: Step) {
        // The text says the same during all accesses.
        let kind = |step: &Step| match step {
            Step::Off => 0,
            Step::Take { .. } | Step::Identify { .. } | Step::Read { .. } | Step::Write { .. } => 1,
            Step::Done => 2,
            Step::Silent { .. } => 3,
            Step::Foreign(mode) => mode.saturating_add(4),
        };
        if kind(&step) != kind(&self.step) {
            self.changes = self.changes.wrapping_add(2);
        }
        self.step = step;
    }

    fn access<R: Registers>(&self, bus: &Bus<R>, operation: u8, register: u8, data: u16) {
        let access = Mdic::new().with_operation(operation).with_register(register).with_phy(ADDRESS).with_data(data);
        bus.write(&MDIC, 0, access.into_bits());
    }

    /// Takes the next step if the last one is done.
    pub(crate) fn poll<R: Registers>(&mut self, bus: &Bus<R>, now: u64) {
        let next = now.saturating_add(ACCESS_LIMIT);
        match self.step {
            Step::Off | Step::Done | Step::Foreign(_) => {}
            Step::Silent { until } => {
                if now >= until {
                    self.go(Step::Take { deadline: now.saturating_add(LIMIT) });
                }
            }
            Step::Take { deadline } => {
                let semaphore = self.semaphore();
                if !semaphore.take(bus) {
                    if now < deadline {
                        return;
                    }
                    semaphore.force(bus);
                    self.forced = true;
                }
                self.held = true;
                self.access(bus, READ, IDENTIFIER, 0);
                self.go(Step::Identify { deadline: next });
            }
            Step::Identify { deadline } => match self.result(bus, now, deadline) {
                None => {}
                Some(Some(id)) if id != 0 && id != u16::MAX => self.change(bus, 0, next),
                Some(_) => self.fail(bus, now),
            },
            Step::Read { change, deadline } => {
                let (Some(result), Some(&now_is)) =
                    (self.result(bus, now, deadline), self.changes_of_kind().get(change))
                else {
                    return;
                };
                match result {
                    None => self.fail(bus, now),
                    Some(value) => {
                        self.access(bus, WRITE, now_is.register, value & !now_is.clear | now_is.set);
                        self.go(Step::Write { change, deadline: next });
                    }
                }
            }
            Step::Write { change, deadline } => match self.result(bus, now, deadline) {
                None => {}
                Some(None) => self.fail(bus, now),
                Some(Some(_)) => self.change(bus, change.saturating_add(1), next),
            },
        }
    }

    /// Begins a change, or ends if there is none left.
    fn change<R: Registers>(&mut self, bus: &Bus<R>, change: usize, deadline: u64) {
        match self.changes_of_kind().get(change) {
            // All bits are written, so there is nothing to read.
            Some(Change { register, clear: u16::MAX, set }) => {
                self.access(bus, WRITE, *register, *set);
                self.go(Step::Write { change, deadline });
            }
            Some(Change { register, .. }) => {
                self.access(bus, READ, *register, 0);
                self.go(Step::Read { change, deadline });
            }
            None => {
                self.release(bus);
                self.go(Step::Done);
            }
        }
    }

    /// The result of an access. `None`: it is not done yet. `Some(None)`: it has failed.
    fn result<R: Registers>(&self, bus: &Bus<R>, now: u64, deadline: u64) -> Option<Option<u16>> {
        let access = Mdic::from_bits(bus.read(&MDIC, 0));
        match access.ready() {
            true => Some((!access.error()).then_some(access.data())),
            false if now < deadline => None,
            false => Some(None),
        }
    }

    fn fail<R: Registers>(&mut self, bus: &Bus<R>, now: u64) {
        self.release(bus);
        self.go(Step::Silent { until: now.saturating_add(PAUSE) });
    }
}

impl fmt::Display for Phy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Step::Off => f.write_str("the NIC is being reset"),
            Step::Take { .. } | Step::Identify { .. } | Step::Read { .. } | Step::Write { .. } => {
                f.write_str("copper port, its PHY is being set up")
            }
            Step::Done => f.write_str("copper port, auto-negotiation of 10, 100 and 1000 Mb/s"),
            Step::Silent { .. } => {
                f.write_str("the PHY of the copper port does not answer; it is asked again every 2 s")
            }
            Step::Foreign(mode) => {
                let how = match mode {
                    1 => "1000BASE-KX",
                    2 => "SGMII",
                    _ => "SerDes",
                };
                write!(f, "the link of this port goes by {how}, and the driver sets up copper links only")
            }
        }?;
        if self.forced {
            f.write_str("; firmware did not give the PHY up, and it was taken from it")?;
        }
        Ok(())
    }
}

impl Port for Phy {
    fn changes(&self) -> u32 {
        self.changes
    }

    fn is_obstructed(&self) -> bool {
        matches!(self.step, Step::Silent { .. } | Step::Foreign(_))
    }
}
