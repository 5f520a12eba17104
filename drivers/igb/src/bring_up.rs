//! From a reset device to a running one (82576 data sheet 4.5). `intel_nic::life` has the steps before.

use intel_nic::filter::Tables as _;
use intel_nic::life::{self, Life, Steps};
use intel_nic::nic::Statistics;
use intel_nic::receive::BUFFER_BYTES;
use intel_nic::state::{Failure, State};

use crate::bits::{
    Ctrl, Dctl, EECD_AUTO_READ, EEMNGCTL_CONFIG_DONE, RXCSUM_CHECK, Srrctl, Status as StatusRegister, Tctl,
};
use crate::device::{Gigabit, Igb, QUEUE};
use crate::filter_tables::Tables;
use crate::registers::{
    Bus, CTRL, EECD, EEMNGCTL, EICR, EIMC, ICR, IMC, MRQC, RCTL, RDBAH, RDBAL, RDH, RDLEN, RLPML, RXCSUM, RXDCTL,
    Registers, SRRCTL, STATUS, TCTL, TDBAH, TDBAL, TDH, TDLEN, TDT, TXDCTL, VET,
};
use crate::statistics;

/// Bytes of FCS and of a VLAN tag, which the longest frame of RLPML includes.
const FCS_AND_TAG: u32 = 8;
/// The Ethernet type of VLAN tags, twice: VET's upper half is for outer tags.
const VLAN: u32 = 0x8100_8100;
/// Attempts, and byte times, at half duplex: those of IEEE 802.3.
const COLLISION_THRESHOLD: u8 = 15;
const COLLISION_DISTANCE: u16 = 64;

impl<R: Registers, T> Steps for Igb<R, T> {
    type Family = Gigabit;
    type Registers = R;
    /// Without an EEPROM, and with some firmware, neither ever says that it has finished. What counts is the address.
    const PATIENCE: u64 = 100_000;
    const LOAD_LIMIT: u64 = Self::PATIENCE;

    fn bus(&self) -> &Bus<R> {
        &self.bus
    }

    fn life(&self) -> &Life {
        &self.life
    }

    fn life_mut(&mut self) -> &mut Life {
        &mut self.life
    }

    fn leave_link(&mut self, answers: bool) {
        if answers {
            self.phy.leave(&self.bus);
        } else {
            self.phy.end();
        }
    }

    fn link_is_settled(&self) -> bool {
        self.phy.is_settled()
    }

    fn mask_interrupts(&self) {
        self.bus.write(&IMC, 0, u32::MAX);
        self.bus.write(&EIMC, 0, u32::MAX);
    }

    fn clear_interrupts(&self) {
        let _ = (self.bus.read(&ICR, 0), self.bus.read(&EICR, 0));
    }

    fn end_traffic(&self) {
        self.bus.write(&RCTL, 0, 0);
        self.bus.write(&TCTL, 0, Tctl::new().with_pad(true).into_bits());
    }

    fn load(&mut self, now: u64, patience: u64, _deadline: u64) -> State {
        let port = StatusRegister::from_bits(self.bus.read(&STATUS, 0)).lan_id();
        let loaded = self.bus.read(&EECD, 0) & EECD_AUTO_READ != 0
            && self.bus.read(&EEMNGCTL, 0) & EEMNGCTL_CONFIG_DONE << port != 0;
        if !loaded && now < patience {
            return self.life.state;
        }
        let (address, is_valid) = life::own_address(self);
        if life::is_gone(self) {
            return State::Failed(Failure::Gone);
        }
        self.address = address;
        if !is_valid {
            return State::Failed(Failure::NoAddress);
        }
        life::take_from_firmware(self);
        self.lights.forget();
        self.set_up_mac();
        self.phy.begin(&self.bus, now, port);
        // Clears what was counted before.
        statistics::read(&self.bus, &mut Statistics::default(), &mut 0);
        self.statistics_at = now.saturating_add(statistics::PERIOD);
        self.set_up_receive();
        self.set_up_transmit();
        life::enabling(now)
    }

    /// Moves the receive tail once the queues are enabled. It must not move before. Then frames come in.
    fn enable(&mut self, now: u64, deadline: u64) -> State {
        let bus = &self.bus;
        let enabled = |control: u32| Dctl::from_bits(control).enable() && control != u32::MAX;
        if !enabled(bus.read(&RXDCTL, QUEUE)) || !enabled(bus.read(&TXDCTL, QUEUE)) {
            return if now < deadline { self.life.state } else { State::Failed(Failure::Queue) };
        }
        self.receive.advance_tail(bus);
        self.progress.begin(now);
        Tables { bus, kind: self.kind, enabled: true }.write_control(&self.filter);
        State::Running
    }

    fn take_back(&mut self) {
        self.transmit.take_back();
    }

    fn open_or_close(&mut self) {
        self.transmit.open_or_close(&self.life);
    }

    fn count_recovery(&mut self) {
        self.statistics.recoveries = self.statistics.recoveries.saturating_add(1);
        self.skipped = None;
    }
}

impl<R: Registers, T> Igb<R, T> {
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
}
