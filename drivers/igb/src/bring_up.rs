//! From reset to running, in steps that never wait (82576 data sheet 4.5, 5.2).

use intel_nic::filter::{RAH_VALID, Tables as _};
use intel_nic::nic::Statistics;
use intel_nic::receive::BUFFER_BYTES;
use intel_nic::state::{Failure, State};

use crate::bits::{
    CTRL_EXT_DRV_LOAD, Ctrl, Dctl, EECD_AUTO_READ, EEMNGCTL_CONFIG_DONE, RXCSUM_CHECK, Srrctl,
    Status as StatusRegister, Tctl,
};
use crate::device::{Igb, QUEUE};
use crate::filter_tables::Tables;
use crate::registers::{
    CTRL, CTRL_EXT, EECD, EEMNGCTL, EICR, EIMC, ICR, IMC, MRQC, RAH, RAL, RCTL, RDBAH, RDBAL, RDH, RDLEN, RLPML,
    RXCSUM, RXDCTL, Registers, SRRCTL, STATUS, TCTL, TDBAH, TDBAL, TDH, TDLEN, TDT, TXDCTL, VET,
};
use crate::statistics;

/// Longest time in which DMA ends, in microseconds.
const QUIESCE_TIME: u64 = 100_000;
/// Time after reset without register accesses, in microseconds. The data sheet requires 1 ms.
const RESET_TIME: u64 = 10_000;
const RESET_LIMIT: u64 = 200_000;
/// Most microseconds that the EEPROM and firmware may need after a reset. Without an EEPROM, and with some firmware, neither
/// ever says that it has finished. What counts is the address.
const CONFIG_LIMIT: u64 = 100_000;
const ENABLE_LIMIT: u64 = 100_000;

/// Bytes of FCS and of a VLAN tag, which the longest frame of RLPML includes.
const FCS_AND_TAG: u32 = 8;
/// The Ethernet type of VLAN tags, twice: VET's upper half is for outer tags.
const VLAN: u32 = 0x8100_8100;
/// Attempts, and byte times, at half duplex: those of IEEE 802.3.
const COLLISION_THRESHOLD: u8 = 15;
const COLLISION_DISTANCE: u16 = 64;

impl<R: Registers, T> Igb<R, T> {
    /// Takes steps until one has to wait.
    pub(crate) fn step(&mut self, now: u64) {
        loop {
            let next = match self.state {
                State::Idle => self.quiesce(now),
                State::Quiescing { deadline } => self.quiescing(now, deadline),
                State::ResetRequested { at, again } => self.asked(now, at, again),
                State::Resetting { from, deadline, again } => self.resetting(now, from, deadline, again),
                State::Loading { patience, .. } => self.loading(now, patience),
                State::Enabling { deadline } => self.enabling(now, deadline),
                State::Running | State::Stopped | State::Failed(_) => return,
            };
            if next == self.state {
                return;
            }
            self.state = next;
            if next == State::Running {
                // From now on frames come in.
                self.tables().write_control(&self.filter);
            }
        }
    }

    /// Whether the device has left the bus.
    fn is_gone(&self) -> bool {
        self.bus.read(&STATUS, 0) == u32::MAX
    }

    fn mask_interrupts(&self) {
        self.bus.write(&IMC, 0, u32::MAX);
        self.bus.write(&EIMC, 0, u32::MAX);
    }

    fn quiesce(&mut self, now: u64) -> State {
        if self.is_gone() {
            self.phy.end();
            return State::Failed(Failure::Gone);
        }
        self.phy.leave(&self.bus);
        self.mask_interrupts();
        // Firmware has the link to itself again.
        self.bus.update(&CTRL_EXT, 0, |v| v & !CTRL_EXT_DRV_LOAD);
        self.bus.write(&RCTL, 0, 0);
        self.bus.write(&TCTL, 0, Tctl::new().with_pad(true).into_bits());
        self.bus.update(&CTRL, 0, |v| Ctrl::from_bits(v).with_master_disable(true).into_bits());
        State::Quiescing { deadline: now.saturating_add(QUIESCE_TIME) }
    }

    fn quiescing(&self, now: u64, deadline: u64) -> State {
        if self.is_gone() {
            return State::Failed(Failure::Gone);
        }
        let quiet = !StatusRegister::from_bits(self.bus.read(&STATUS, 0)).master_enabled();
        if !quiet && now < deadline {
            return self.state;
        }
        // DMA that does not end takes two resets.
        self.reset(now, !quiet)
    }

    fn reset(&self, now: u64, again: bool) -> State {
        self.bus.update(&CTRL, 0, |v| Ctrl::from_bits(v).with_rst(true).into_bits());
        // Writes are posted. A read makes sure that the device has received the write.
        let _ = self.bus.read(&STATUS, 0);
        State::ResetRequested { at: now, again }
    }

    /// The reset time begins when the read has returned, so it is counted from the next call.
    fn asked(&self, now: u64, at: u64, again: bool) -> State {
        if now == at {
            return self.state;
        }
        State::Resetting { from: now.saturating_add(RESET_TIME), deadline: now.saturating_add(RESET_LIMIT), again }
    }

    fn resetting(&mut self, now: u64, from: u64, deadline: u64, again: bool) -> State {
        if now < from {
            return self.state;
        }
        let control = self.bus.read(&CTRL, 0);
        if control == u32::MAX {
            return State::Failed(Failure::Gone);
        }
        if Ctrl::from_bits(control).rst() {
            return if now < deadline { self.state } else { State::Failed(Failure::Reset) };
        }
        if again {
            return self.reset(now, false);
        }
        // All DMA has ended, so rings and buffers are the driver's again.
        self.take_back();
        self.mask_interrupts();
        let _ = (self.bus.read(&ICR, 0), self.bus.read(&EICR, 0));
        if self.stopping {
            return State::Stopped;
        }
        let patience = now.saturating_add(CONFIG_LIMIT);
        State::Loading { patience, deadline: patience }
    }

    fn loading(&mut self, now: u64, patience: u64) -> State {
        let port = StatusRegister::from_bits(self.bus.read(&STATUS, 0)).lan_id();
        let loaded = self.bus.read(&EECD, 0) & EECD_AUTO_READ != 0
            && self.bus.read(&EEMNGCTL, 0) & EEMNGCTL_CONFIG_DONE << port != 0;
        if !loaded && now < patience {
            return self.state;
        }
        let (low, high) = (self.bus.read(&RAL, 0).to_le_bytes(), self.bus.read(&RAH, 0));
        if self.is_gone() {
            return State::Failed(Failure::Gone);
        }
        let [e, f, ..] = high.to_le_bytes();
        self.address = [low[0], low[1], low[2], low[3], e, f];
        if high & RAH_VALID == 0 || self.address[0] & 1 != 0 || self.address == [0; 6] {
            return State::Failed(Failure::NoAddress);
        }
        self.bus.update(&CTRL_EXT, 0, |v| v | CTRL_EXT_DRV_LOAD);
        self.lights.forget();
        self.set_up_mac();
        self.phy.begin(&self.bus, now, port);
        // Clears what was counted before.
        statistics::read(&self.bus, &mut Statistics::default(), &mut 0);
        self.statistics_at = now.saturating_add(statistics::PERIOD);
        self.set_up_receive();
        self.set_up_transmit();
        State::Enabling { deadline: now.saturating_add(ENABLE_LIMIT) }
    }

    /// The MAC takes speed and duplex from the PHY. PAUSE is off. Tags are removed and inserted.
    fn set_up_mac(&self) {
        self.bus.write(&VET, 0, VLAN);
        self.bus.update(&CTRL, 0, |v| {
            Ctrl::from_bits(v)
                .with_set_link_up(true)
                .with_force_speed(false)
                .with_force_duplex(false)
                .with_receive_flow_control(false)
                .with_transmit_flow_control(false)
                .with_vme(true)
                .into_bits()
        });
    }

    /// Sets up the receive side, up to the queue's enable bit.
    fn set_up_receive(&mut self) {
        let bus = &self.bus;
        Tables { bus, kind: self.kind, enabled: false }.program(&self.filter);
        bus.write(&RLPML, 0, self.config.max_frame.saturating_add(FCS_AND_TAG));
        bus.write(&MRQC, 0, 0);
        bus.write(&RXCSUM, 0, RXCSUM_CHECK);
        self.receive.restart();
        let memory = self.receive.ring().memory();
        bus.write_base(&RDBAL, &RDBAH, QUEUE, memory);
        bus.write(&RDLEN, QUEUE, memory.len() as u32);
        bus.write(&RDH, QUEUE, 0);
        let control = Srrctl::new().with_buffer_size((BUFFER_BYTES / 1024) as u8).with_descriptor_type(1);
        bus.write(&SRRCTL, QUEUE, control.into_bits());
        let control = Dctl::new().with_pthresh(8).with_hthresh(8).with_wthresh(1).with_enable(true);
        bus.write(&RXDCTL, QUEUE, control.into_bits());
    }

    /// Sets up the transmit side, up to the queue's enable bit.
    fn set_up_transmit(&mut self) {
        let bus = &self.bus;
        let memory = self.transmit.ring().memory();
        bus.write_base(&TDBAL, &TDBAH, QUEUE, memory);
        bus.write(&TDLEN, QUEUE, memory.len() as u32);
        bus.write(&TDH, QUEUE, 0);
        bus.write(&TDT, QUEUE, 0);
        // A write-back as soon as one is asked for: a threshold would keep it until an interrupt.
        let control = Dctl::new().with_pthresh(8).with_hthresh(1).with_wthresh(0).with_enable(true);
        bus.write(&TXDCTL, QUEUE, control.into_bits());
        bus.update(&TCTL, 0, |v| {
            Tctl::from_bits(v)
                .with_pad(true)
                .with_retransmit(true)
                .with_collision_threshold(COLLISION_THRESHOLD)
                .with_collision_distance(COLLISION_DISTANCE)
                .with_enable(true)
                .into_bits()
        });
    }

    /// Moves the receive tail once the queues are enabled. It must not move before.
    fn enabling(&mut self, now: u64, deadline: u64) -> State {
        let bus = &self.bus;
        let enabled = |control: u32| Dctl::from_bits(control).enable() && control != u32::MAX;
        if !enabled(bus.read(&RXDCTL, QUEUE)) || !enabled(bus.read(&TXDCTL, QUEUE)) {
            return if now < deadline { self.state } else { State::Failed(Failure::Queue) };
        }
        self.receive.advance_tail(bus);
        self.moved_at = now;
        State::Running
    }
}
