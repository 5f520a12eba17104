//! From a reset device to a running one (data sheet 4.6.3, 4.6.7, 4.6.8). `intel_nic::life` has the steps before.

use core::num::NonZero;

use intel_nic::filter::Tables as _;
use intel_nic::life::{self, Life, Steps};
use intel_nic::receive::BUFFER_BYTES;
use intel_nic::state::{Failure, State};
use intel_nic::transmit::TransmitQueue;

use crate::bits::{
    CTRL_EXT_NS_DIS, DCA_RXCTRL_BIT_12, Dmatxctl, EEC_AUTO_READ, EEMNGCTL_CONFIG_DONE, Hlreg0, RTTDCS_ARBDIS,
    RXCTRL_RXEN, Rdrxctl, Rxdctl, Srrctl, Status as StatusRegister, Txdctl,
};
use crate::config::Steering;
use crate::device::{Of82599, X520};
use crate::registers::{
    Bus, CTRL_EXT, DCA_RXCTRL, DMATXCTL, DTXMXSZRQ, EEC, EEMNGCTL, EICR, EIMC, EIMC_EX, HLREG0, MAXFRS, MTQC, RDBAH,
    RDBAL, RDH, RDLEN, RDRXCTL, RTTDCS, RXCTRL, RXDCTL, RXPBSIZE, Registers, SRRCTL, STATUS, TDBAH, TDBAL, TDH, TDLEN,
    TDT, TXDCTL, TXPBSIZE, TXPBTHRESH,
};
use crate::{pools, rss, statistics};

/// Bytes of FCS, which the longest frame of MAXFRS includes.
const FCS: u32 = 4;
/// Longest frame without JUMBOEN, in bytes.
const STANDARD_FRAME: u32 = 1514;
const VLAN: u16 = 0x8100;
/// Size of the receive packet buffer in KiB, at bit 10 of RXPBSIZE.
const RECEIVE_BUFFER: u32 = 512 << 10;
/// Size of the transmit packet buffer in KiB, at bit 10 of TXPBSIZE.
const TRANSMIT_BUFFER: u32 = 160 << 10;
const TRANSMIT_THRESHOLD: u32 = 0xa0;
/// Most bytes of outstanding transmit requests: the largest value of DTXMXSZRQ.
const MAX_REQUESTS: u32 = 0xfff;

impl<R: Registers, T> Steps for X520<R, T> {
    type Family = Of82599;
    type Registers = R;
    const PATIENCE: u64 = 200_000;
    const LOAD_LIMIT: u64 = 1_000_000;

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
            self.link_setup.leave(&self.bus);
        } else {
            self.link_setup.end();
        }
    }

    /// Whether the cage was looked into, and everything was done for the module in it. The link may be down.
    fn link_is_settled(&self) -> bool {
        self.link_setup.is_settled()
    }

    fn mask_interrupts(&self) {
        self.bus.write(&EIMC, 0, 0x7fff_ffff);
        self.bus.write(&EIMC_EX, 0, u32::MAX);
        self.bus.write(&EIMC_EX, 1, u32::MAX);
    }

    fn clear_interrupts(&self) {
        let _ = self.bus.read(&EICR, 0);
    }

    fn load(&mut self, now: u64, patience: u64, deadline: u64) -> State {
        let port = StatusRegister::from_bits(self.bus.read(&STATUS, 0)).lan_id() & 1;
        let ready =
            self.bus.read(&EEC, 0) & EEC_AUTO_READ != 0 && Rdrxctl::from_bits(self.bus.read(&RDRXCTL, 0)).done();
        if !ready {
            return if now < deadline { self.life.state } else { State::Failed(Failure::NotReady) };
        }
        let finished = self.bus.read(&EEMNGCTL, 0) & EEMNGCTL_CONFIG_DONE << port != 0;
        if !finished && now < patience {
            return self.life.state;
        }
        let (address, is_valid) = life::own_address(self);
        self.address = address;
        if !is_valid {
            return State::Failed(Failure::NoAddress);
        }
        life::take_from_firmware(self);
        self.lights.forget();
        self.link_setup.begin(&self.bus, now, port, !finished);
        // Clears what was counted before.
        statistics::read(&self.bus, &mut crate::nic::Statistics::default(), &mut 0);
        let step =
            if self.config.steering == Steering::Addresses { pools::QUEUES_OF_POOL } else { NonZero::<u16>::MIN };
        statistics::program(&self.bus, step);
        self.statistics_at = now.saturating_add(statistics::PERIOD);
        self.set_up_receive();
        self.set_up_transmit();
        life::enabling(now)
    }

    /// Moves the receive tails once all queues are enabled. The tails must not move before.
    fn enable(&mut self, now: u64, deadline: u64) -> State {
        let bus = &self.bus;
        let receive = self.receive.iter().all(|q| Rxdctl::from_bits(bus.read(&RXDCTL, q.number())).enable());
        let transmit = (0..self.config.transmit_queues).all(|n| Txdctl::from_bits(bus.read(&TXDCTL, n)).enable());
        if !(receive && transmit) {
            return if now < deadline { self.life.state } else { State::Failed(Failure::Queue) };
        }
        for queue in &mut self.receive {
            queue.advance_tail(bus);
        }
        bus.write(&RXCTRL, 0, RXCTRL_RXEN);
        self.progress.iter_mut().for_each(|progress| progress.begin(now));
        State::Running
    }

    fn take_back(&mut self) {
        self.transmit.iter_mut().for_each(TransmitQueue::take_back);
    }

    fn open_or_close(&mut self) {
        for queue in &mut self.transmit {
            queue.open_or_close(&self.life);
        }
    }

    fn count_recovery(&mut self) {
        self.statistics.recoveries = self.statistics.recoveries.saturating_add(1);
        self.skipped.fill(None);
    }
}

impl<R: Registers, T> X520<R, T> {
    /// Sets up the receive side by 4.6.7, up to the queues' enable bits.
    fn set_up_receive(&mut self) {
        let (bus, config) = (&self.bus, &self.config);
        bus.update(&CTRL_EXT, 0, |v| v | CTRL_EXT_NS_DIS);
        self.tables().program(&self.filter);
        for n in 0..8 {
            bus.write(&RXPBSIZE, n, if n == 0 { RECEIVE_BUFFER } else { 0 });
        }
        let jumbo = config.max_frame > STANDARD_FRAME;
        bus.update(&HLREG0, 0, |v| {
            Hlreg0::from_bits(v)
                .with_tx_crc(true)
                .with_rx_crc_strip(true)
                .with_tx_pad(true)
                .with_jumbo(jumbo)
                .into_bits()
        });
        bus.write(&MAXFRS, 0, config.max_frame.saturating_add(FCS) << 16);
        bus.update(&RDRXCTL, 0, |v| {
            Rdrxctl::from_bits(v).with_crc_strip(true).with_rsc_first_size(0).with_must_be_set(3).into_bits()
        });
        match config.steering {
            Steering::Flows => rss::program(bus, config.receive_queues, &config.rss_key),
            Steering::Addresses => pools::program(bus),
        }
        let drop = config.receive_queues > 1;
        for queue in &mut self.receive {
            let n = queue.number();
            queue.restart();
            bus.write_base(&RDBAL, &RDBAH, n, queue.ring().memory());
            bus.write(&RDLEN, n, queue.ring().memory().len() as u32);
            bus.write(&RDH, n, 0);
            let control = Srrctl::from_bits(bus.read(&SRRCTL, n))
                .with_buffer_size((BUFFER_BYTES / 1024) as u8)
                .with_descriptor_type(1)
                .with_drop_en(drop);
            bus.write(&SRRCTL, n, control.into_bits());
            bus.update(&DCA_RXCTRL, n, |v| v & !DCA_RXCTRL_BIT_12);
            bus.write(&RXDCTL, n, Rxdctl::new().with_enable(true).with_vme(config.strip_vlan).into_bits());
        }
    }

    /// Sets up the transmit side by 4.6.8, up to the queues' enable bits.
    fn set_up_transmit(&mut self) {
        let (bus, config) = (&self.bus, &self.config);
        bus.update(&RTTDCS, 0, |v| v | RTTDCS_ARBDIS);
        match config.steering {
            Steering::Flows => bus.write(&MTQC, 0, 0),
            Steering::Addresses => pools::program_transmit(bus),
        }
        bus.write(&DTXMXSZRQ, 0, MAX_REQUESTS);
        for n in 0..8 {
            bus.write(&TXPBSIZE, n, if n == 0 { TRANSMIT_BUFFER } else { 0 });
            bus.write(&TXPBTHRESH, n, if n == 0 { TRANSMIT_THRESHOLD } else { 0 });
        }
        bus.update(&RTTDCS, 0, |v| v & !RTTDCS_ARBDIS);
        bus.write(&DMATXCTL, 0, Dmatxctl::new().with_enable(true).with_vlan_type(VLAN).into_bits());
        debug_assert_eq!(usize::from(config.transmit_queues), self.transmit.len());
        for (n, queue) in (0..).zip(&self.transmit) {
            bus.write_base(&TDBAL, &TDBAH, n, queue.ring().memory());
            bus.write(&TDLEN, n, queue.ring().memory().len() as u32);
            bus.write(&TDH, n, 0);
            bus.write(&TDT, n, 0);
            let control = Txdctl::new().with_pthresh(36).with_hthresh(8).with_wthresh(0).with_enable(true);
            bus.write(&TXDCTL, n, control.into_bits());
        }
    }
}
