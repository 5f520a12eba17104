//! The periodic work: from reset to running, the watch over a running controller, and its shutdown, in steps that never
//! wait (NVMe Base 2.0, 3.5, 3.6, 3.7, 9.6).
//!
//! ```text
//!   Begin ▶ Quiescing ▶ Disabling ▶ Reclaiming ▶ Enabling ▶ SettingUp ▶ Running ▶ Draining ▶ Deleting
//!              ▲                                                          │            ▶ ShuttingDown ▶ Parting ▶ Stopped
//!              └── reset ◀── CFS, time-out, forged completion ◀───────────┘
//!   registers all ones, too many resets ▶ Cutting ▶ Failed
//! ```

use crate::admin::Kind;
use crate::config::ADMIN_ENTRIES;
use crate::controller::{BusMaster, Controller};
use crate::gate::Order;
use crate::identify::Unusable;
use crate::registers::{
    ACQ, ALL_ONES, AQA, ASQ, CC, CSTS, Cap, Cc, Csts, INTMS, Registers, SHN_NORMAL, SHST_COMPLETE, VS, head_doorbell,
    read_cap, write_wide,
};
use crate::state::{Event, Failure, Reason, State, Step};
use crate::steps::Outcome;

/// Unit of CAP.TO in microseconds.
const TO_UNIT: u64 = 500_000;
/// Time for a shutdown if the controller does not tell one, and the most that is waited, in microseconds.
const SHUTDOWN_TIME: u64 = 10_000_000;
const MAX_SHUTDOWN_TIME: u64 = 60_000_000;
/// Resets that are tried before the controller is given up, if it does not run for [`CALM_TIME`] in between.
const MAX_STRIKES: u32 = 4;
/// Time of operation after which a further reset counts as the first, in microseconds.
const CALM_TIME: u64 = 60_000_000;

impl<R: Registers, B: BusMaster> Controller<R, B> {
    /// Does what is to be done. The owner calls it often: each call takes the controller some steps further, and none
    /// waits. `now`: in microseconds, of a clock that never goes back.
    pub fn service(&mut self, now: u64) {
        loop {
            let next = self.next_state(now);
            if next == self.state {
                return;
            }
            self.state = next;
        }
    }

    /// Shuts the controller down. [`Controller::service`] does it. Afterwards the status is Stopped, or Failed.
    pub fn stop(&mut self, now: u64) {
        self.stopping = true;
        match self.state {
            State::Running => self.state = self.begin_drain(now),
            State::Begin => self.state = State::Parting,
            // A bring-up or a reset that is under way comes to its end first.
            _ => {}
        }
    }

    /// Starts a controller that was stopped or has failed again, also one that has come back to the bus. Does nothing
    /// otherwise.
    pub fn restart(&mut self) {
        if matches!(self.state, State::Stopped | State::Failed(_)) {
            (self.state, self.stopping, self.strikes) = (State::Begin, false, 0);
        }
    }

    /// Reads SMART / health information again. [`Controller::health`] has it some calls of `service` later.
    pub fn refresh_health(&mut self) {
        self.want(Step::Health);
    }

    fn next_state(&mut self, now: u64) -> State {
        match self.state {
            State::Begin => self.begin(),
            State::Quiescing => self.quiescing(now),
            State::Disabling { deadline } => self.disabling(now, deadline),
            State::Reclaiming => self.reclaiming(now),
            State::Enabling { deadline } => self.enabling(now, deadline),
            State::SettingUp => self.setting_up(now),
            State::Running => self.running(now),
            State::Draining { deadline } => self.draining(now, deadline),
            State::Deleting => self.deleting(now),
            State::ShuttingDown { deadline } => self.shutting_down(now, deadline),
            State::Parting => self.cut(State::Stopped),
            State::Cutting(failure) => {
                let next = self.cut(State::Failed(failure));
                if next == State::Failed(failure) {
                    self.tell(Event::Failed(failure));
                }
                next
            }
            State::Stopped | State::Failed(_) => self.state,
        }
    }

    /// Reads CSTS. `None`: the device has left the bus. Reads of nothing give ones, on some platforms zeroes. Then the version
    /// is 0 too, which no controller has.
    fn csts(&self) -> Option<Csts> {
        let csts = self.registers.read(CSTS);
        let gone = csts == ALL_ONES || csts == 0 && matches!(self.registers.read(VS), 0 | ALL_ONES);
        (!gone).then(|| Csts::from_bits(csts))
    }

    /// The device may still be working for its former driver.
    fn begin(&mut self) -> State {
        if self.csts().is_none() {
            return State::Cutting(Failure::Gone);
        }
        if !self.bus_master.set(false) {
            return self.state;
        }
        self.order(Order::Quiesce);
        State::Quiescing
    }

    /// Begins a reset.
    fn reset(&mut self, reason: Reason, now: u64) -> State {
        if self.running_since != 0 && now.saturating_sub(self.running_since) >= CALM_TIME {
            self.strikes = 0;
        }
        self.strikes = self.strikes.saturating_add(1);
        if self.strikes > MAX_STRIKES {
            return State::Cutting(Failure::TooManyResets(reason));
        }
        self.resets = self.resets.saturating_add(1);
        self.tell(Event::Reset(reason));
        self.order(Order::Quiesce);
        State::Quiescing
    }

    fn quiescing(&mut self, now: u64) -> State {
        if self.csts().is_none() {
            return State::Cutting(Failure::Gone);
        }
        if !self.are_obeyed() {
            return self.state;
        }
        self.gates.iter().for_each(|(gate, ..)| gate.forget());
        self.cap = read_cap(&self.registers);
        if let Err(failure) = self.check_cap() {
            return State::Cutting(failure);
        }
        let cc = Cc::from_bits(self.registers.read(CC));
        if cc.en() {
            self.registers.write(CC, cc.with_en(false).with_shn(0).into_bits());
        }
        State::Disabling { deadline: self.ready_deadline(now) }
    }

    fn check_cap(&self) -> Result<(), Failure> {
        let cap: Cap = self.cap;
        if cap.css() & 1 == 0 {
            return Err(Failure::Unusable(Unusable::CommandSet(cap.css())));
        }
        if cap.mpsmin() != 0 {
            return Err(Failure::Unusable(Unusable::PageSize(cap.mpsmin().saturating_add(12))));
        }
        if cap.mqes() == 0 {
            return Err(Failure::Unusable(Unusable::QueueEntries(0)));
        }
        let last = head_doorbell(self.config.queues, cap.dstrd()).saturating_add(4);
        if cap.mqes() < self.depth.saturating_sub(1) || last > self.registers.size() {
            return Err(Failure::Changed);
        }
        Ok(())
    }

    fn ready_deadline(&self, now: u64) -> u64 {
        now.saturating_add(u64::from(self.cap.to()).saturating_add(1).saturating_mul(TO_UNIT))
    }

    fn disabling(&mut self, now: u64, deadline: u64) -> State {
        match self.csts() {
            None => State::Cutting(Failure::Gone),
            Some(csts) if !csts.rdy() => {
                for (gate, ..) in &self.gates {
                    gate.set_stride(self.cap.dstrd());
                    gate.give(Order::Reclaim);
                }
                State::Reclaiming
            }
            Some(_) if now < deadline => self.state,
            Some(_) => State::Cutting(Failure::DoesNotStop),
        }
    }

    /// From here on the queues are empty. The controller gets bus mastering only now, because it does no DMA.
    fn reclaiming(&mut self, now: u64) -> State {
        if self.stopping {
            return State::Parting;
        }
        if !self.are_obeyed() {
            return self.state;
        }
        if self.csts().is_none() {
            return State::Cutting(Failure::Gone);
        }
        if !self.bus_master.set(true) {
            return self.state;
        }
        self.admin.reset(self.cap.dstrd());
        (self.step, self.granted) = (None, 0);
        self.jobs.clear();
        let registers = &self.registers;
        registers.write(INTMS, u32::MAX);
        let last = u32::from(ADMIN_ENTRIES - 1);
        registers.write(AQA, last | last << 16);
        write_wide(registers, ASQ, self.admin.ring.submission());
        write_wide(registers, ACQ, self.admin.ring.completion());
        registers.write(CC, Cc::new().with_en(true).with_iosqes(6).with_iocqes(4).into_bits());
        State::Enabling { deadline: self.ready_deadline(now) }
    }

    fn enabling(&mut self, now: u64, deadline: u64) -> State {
        match self.csts() {
            None => State::Cutting(Failure::Gone),
            Some(csts) if csts.cfs() => self.reset(Reason::FatalStatus, now),
            Some(csts) if csts.rdy() && self.stopping => self.begin_shutdown(now),
            Some(csts) if csts.rdy() => {
                self.step = Some(Step::Identify);
                State::SettingUp
            }
            Some(_) if now < deadline => self.state,
            Some(_) => self.reset(Reason::NotReady, now),
        }
    }

    /// Looks at what ends every state in which the controller is enabled. `None`: nothing.
    fn fault(&mut self, now: u64) -> Option<State> {
        let Some(csts) = self.csts() else { return Some(State::Cutting(Failure::Gone)) };
        let reason = if csts.cfs() {
            Reason::FatalStatus
        } else if !csts.rdy() {
            Reason::NotReady
        } else if self.admin.is_late(now) {
            Reason::AdminTimedOut
        } else {
            let trouble = (1..).zip(&self.gates).find_map(|(id, (gate, ..))| Some((id, gate.trouble()?)));
            let (queue, trouble) = trouble?;
            Reason::Queue(queue, trouble)
        };
        Some(self.reset(reason, now))
    }

    /// Takes admin completions and sends the next step. `None`: it is still under way; else the state to go to, or the
    /// same one if there is no further step.
    fn take_steps(&mut self, now: u64) -> Option<State> {
        // One lap of the queue at most: the device must not keep the core in here.
        for _ in 0..ADMIN_ENTRIES {
            let (kind, completion) = match self.admin.poll(&self.registers) {
                Ok(None) => break,
                Ok(Some(one)) => one,
                Err(_) => return Some(self.reset(Reason::AdminForged, now)),
            };
            match (kind, self.step) {
                (Kind::Step, Some(step)) => match self.step_done(step, &completion) {
                    Outcome::Next(next) => {
                        self.step = next;
                        if next.is_none() {
                            return Some(self.state);
                        }
                        self.send_step(now);
                    }
                    Outcome::Unusable(failure) => return Some(State::Cutting(failure)),
                    Outcome::Reset(reason) => return Some(self.reset(reason, now)),
                },
                (Kind::Event, _) => self.event_came(&completion),
                // Whether the command was aborted shows by its own completion.
                (Kind::Step | Kind::Abort, _) => {}
            }
        }
        self.send_step(now);
        None
    }

    fn setting_up(&mut self, now: u64) -> State {
        if let Some(state) = self.fault(now) {
            return state;
        }
        match self.take_steps(now) {
            None => self.state,
            Some(State::SettingUp) => {
                self.arm_event();
                self.open_queues();
                if self.strikes != 0 {
                    self.tell(Event::Recovered);
                }
                // 0 means that it never ran.
                self.running_since = now.max(1);
                State::Running
            }
            Some(other) => other,
        }
    }

    fn running(&mut self, now: u64) -> State {
        if let Some(state) = self.fault(now) {
            return state;
        }
        if self.stopping {
            return self.begin_drain(now);
        }
        if self.step.is_none() {
            self.step = self.jobs.pop();
        }
        match self.take_steps(now) {
            Some(other) if other != State::Running => return other,
            _ => {}
        }
        self.abort(now);
        self.state
    }

    fn begin_drain(&self, now: u64) -> State {
        self.order(Order::Drain);
        State::Draining { deadline: now.saturating_add(self.config.drain_time) }
    }

    fn draining(&mut self, now: u64, deadline: u64) -> State {
        if let Some(state) = self.fault(now) {
            // A controller that fails now is reset, and its queues are closed after that.
            return state;
        }
        if let Some(other) = self.take_steps(now)
            && !matches!(other, State::Draining { .. })
        {
            return other;
        }
        self.abort(now);
        if (!self.are_obeyed() && now < deadline) || self.step.is_some() {
            return self.state;
        }
        // Queues that still have commands must not write doorbells of queues that are deleted.
        self.order(Order::Quiesce);
        if self.granted == 0 {
            return self.begin_shutdown(now);
        }
        self.step = Some(Step::DeleteSubmission(0));
        State::Deleting
    }

    fn deleting(&mut self, now: u64) -> State {
        if let Some(state) = self.fault(now) {
            return state;
        }
        match self.take_steps(now) {
            None => self.state,
            Some(State::Deleting) => self.begin_shutdown(now),
            Some(other) => other,
        }
    }

    /// Notifies the controller of the shutdown (3.6.1).
    fn begin_shutdown(&mut self, now: u64) -> State {
        let cc = self.registers.read(CC);
        if cc == ALL_ONES {
            return State::Cutting(Failure::Gone);
        }
        self.registers.write(CC, Cc::from_bits(cc).with_shn(SHN_NORMAL).into_bits());
        let told = self.identity.as_ref().map_or(0, |identity| u64::from(identity.shutdown_time));
        State::ShuttingDown { deadline: now.saturating_add(told.clamp(SHUTDOWN_TIME, MAX_SHUTDOWN_TIME)) }
    }

    fn shutting_down(&self, now: u64, deadline: u64) -> State {
        match self.csts() {
            None => State::Cutting(Failure::Gone),
            Some(csts) if csts.shst() == SHST_COMPLETE || now >= deadline => State::Parting,
            Some(_) => self.state,
        }
    }

    /// Takes bus mastering away, then closes the queues: their memory belongs to guests again.
    fn cut(&mut self, then: State) -> State {
        if !self.bus_master.set(false) {
            return self.state;
        }
        self.order(Order::Close);
        then
    }
}
