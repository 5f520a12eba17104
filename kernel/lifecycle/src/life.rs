//! The state machine.
//!
//! ```text
//!  Down, Waiting ──start, wait over──▶ BringingUp ──▶ Up ──vCPUs home──▶ WindingUp ─┬─▶ Down
//!                                          │                                        ├─▶ BringingUp  to start again
//!                                          └─could not be brought up──▶ Down        └─▶ Waiting     to start again later
//! ```
//!
//! [`After`] says what follows the end of a life. The operator's last command decides. If there was none, the
//! configuration's `restart` decides.

use alloc::collections::VecDeque;
use core::mem;

use control::{GuestState, StopReason, Text};

use crate::{
    action::{Action, End, Refused, Report},
    backoff::Backoff,
    wait::Wait,
};

/// Milliseconds that the end of sidecore waits for a guest's devices, beyond the time limit for the guest itself. A disk's
/// driver ends a request that is not answered within about a minute.
const LETTING_GO: u64 = 90_000;
/// Most actions that wait: the kernel takes them after each command and observation.
const ACTIONS: usize = 8;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

/// The life of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// `restart = "always"`.
    always: bool,
    phase: Phase,
    after: After,
    /// If sidecore is about to end: when it ends at the latest, in milliseconds. No life begins any more.
    ends_at: Option<u64>,
    /// Why the last life ended.
    reason: Option<StopReason>,
    /// Lives that were brought up.
    starts: u64,
    backoff: Backoff,
    /// Actions that the kernel has not taken yet.
    actions: VecDeque<Action>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing of it runs.
    Down,
    /// It is down, and starts again at this time in milliseconds.
    Waiting { until: u64 },
    /// [`Action::BringUp`] is not answered yet. A command that came meanwhile is carried out after the answer.
    BringingUp { pending: Pending, wait: Wait },
    /// Its vCPUs run. `stopping` says that the power button was pressed. `kill_at` is the end of the time limit of
    /// `stop`, in milliseconds.
    Up { stopping: bool, kill_at: Option<u64> },
    /// [`Action::DetachDevices`] is not answered yet. An engine may still read and write its memory.
    WindingUp { stopping: bool, end: End, wait: Wait },
}

/// A command that waits for the end of bring-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    Nothing,
    Stop { seconds: u32 },
    Kill,
}

/// What follows the end of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// A start with `restart = "always"`, otherwise nothing.
    AsConfigured,
    /// Nothing.
    StayDown,
    /// A start at once.
    StartAgain,
}

impl Life {
    /// Makes the life of a guest that has never run. `always` says that it has `restart = "always"`.
    #[must_use]
    pub fn new(always: bool) -> Self {
        Self {
            always,
            phase: Phase::Down,
            after: After::AsConfigured,
            ends_at: None,
            reason: None,
            starts: 0,
            backoff: Backoff::default(),
            actions: VecDeque::with_capacity(ACTIONS),
        }
    }

    /// Changes `restart`: what follows the next end of a life. A start that it waits for already is not taken back.
    pub const fn set_always(&mut self, always: bool) {
        self.always = always;
    }

    /// Returns the next action, or `None` if there is none now.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the state for the operator.
    #[must_use]
    pub fn state(&self) -> GuestState {
        match self.phase {
            Phase::Down | Phase::Waiting { .. } => GuestState::Stopped,
            Phase::WindingUp { wait, .. } if wait.is_told() => GuestState::Detaching,
            Phase::BringingUp { .. } => GuestState::Starting,
            Phase::Up { stopping: false, .. } | Phase::WindingUp { stopping: false, .. } => GuestState::Running,
            Phase::Up { stopping: true, .. } | Phase::WindingUp { stopping: true, .. } => GuestState::Stopping,
        }
    }

    /// Whether its vCPUs have been given to their cores, and the cores have not returned yet.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up { .. })
    }

    /// Whether it neither runs nor waits for its next life.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.phase == Phase::Down
    }

    /// Whether an engine may have an answer about its devices: [`Action::BringUp`] or [`Action::DetachDevices`] is not answered.
    #[must_use]
    pub fn awaits_devices(&self) -> bool {
        matches!(self.phase, Phase::BringingUp { .. } | Phase::WindingUp { .. })
    }

    /// Whether sidecore may end: it is down, or the time that a shutdown waits for it is over.
    #[must_use]
    pub fn is_over(&self, now: u64) -> bool {
        self.is_down() || self.ends_at.is_some_and(|at| now >= at)
    }

    /// Why its last life ended.
    #[must_use]
    pub fn reason(&self) -> Option<StopReason> {
        self.reason
    }

    /// How often it was brought up.
    #[must_use]
    pub fn starts(&self) -> u64 {
        self.starts
    }

    // Commands.

    /// Starts it. A guest that waits for its next life starts at once.
    ///
    /// # Errors
    /// It runs already, its devices are not detached yet, or sidecore is about to end.
    pub fn start(&mut self) -> Result<(), Refused> {
        if self.ends_at.is_some() {
            return Err(Refused::ShuttingDown);
        }
        if matches!(self.phase, Phase::WindingUp { .. }) {
            return Err(Refused::Detaching);
        }
        if self.state() != GuestState::Stopped {
            return Err(Refused::Running);
        }
        self.begin();
        Ok(())
    }

    /// Presses its power button, and kills it if it has not stopped after `seconds`. A guest that waits for its next
    /// life stays down. A second `stop` does not extend the time.
    ///
    /// # Errors
    /// It does not run.
    pub fn stop(&mut self, now: u64, seconds: u32) -> Result<(), Refused> {
        match &mut self.phase {
            Phase::Down => return Err(Refused::NotRunning),
            Phase::Waiting { .. } => self.phase = Phase::Down,
            Phase::BringingUp { pending, .. } => {
                if *pending == Pending::Nothing {
                    *pending = Pending::Stop { seconds };
                }
            }
            Phase::Up { stopping, kill_at } => {
                if !*stopping {
                    *stopping = true;
                    *kill_at = Some(now.saturating_add(1000 * u64::from(seconds)));
                    self.actions.push_back(Action::PressPowerButton);
                    self.report(GuestState::Stopping, None);
                }
            }
            Phase::WindingUp { .. } => {}
        }
        self.after = After::StayDown;
        Ok(())
    }

    /// Stops it at once.
    ///
    /// # Errors
    /// It does not run.
    pub fn kill(&mut self) -> Result<(), Refused> {
        if self.state() == GuestState::Stopped {
            return Err(Refused::NotRunning);
        }
        self.after = After::StayDown;
        self.stop_vcpus();
        Ok(())
    }

    /// Stops it at once, and starts it when it is down. If it is stopped already, it starts.
    ///
    /// # Errors
    /// sidecore is about to end.
    pub fn restart(&mut self) -> Result<(), Refused> {
        if self.ends_at.is_some() {
            return Err(Refused::ShuttingDown);
        }
        if self.state() == GuestState::Stopped {
            self.begin();
        } else {
            self.after = After::StartAgain;
            self.stop_vcpus();
        }
        Ok(())
    }

    /// Stops it as [`Life::stop`] does. No life begins any more, because sidecore is about to end. A second call does not
    /// extend the time.
    pub fn shut_down(&mut self, now: u64, seconds: u32) {
        let at = now.saturating_add(1000 * u64::from(seconds)).saturating_add(LETTING_GO);
        self.ends_at.get_or_insert(at);
        // This is refused if the guest is down already.
        let _ = self.stop(now, seconds);
    }

    // Observations.

    /// Answers [`Action::BringUp`]: its vCPUs have been given to their cores.
    pub fn brought_up(&mut self, now: u64) {
        let Phase::BringingUp { pending, .. } = self.phase else { return };
        self.phase = Phase::Up { stopping: false, kill_at: None };
        self.starts += 1;
        self.report(GuestState::Running, None);
        match pending {
            Pending::Nothing => {}
            Pending::Stop { seconds } => {
                // The guest is up, so this is not refused.
                let _ = self.stop(now, seconds);
            }
            Pending::Kill => self.stop_vcpus(),
        }
    }

    /// Answers [`Action::BringUp`]: it could not be brought up, because of `why`. It is not tried again.
    pub fn not_brought_up(&mut self, why: Text) {
        if matches!(self.phase, Phase::BringingUp { .. }) {
            self.end(End { reason: StopReason::NotStarted, detail: Some(why) });
        }
    }

    /// Notes that all its vCPUs are home. `end` is the first reason for which they stopped.
    pub fn vcpus_home(&mut self, end: Option<End>) {
        let Phase::Up { stopping, .. } = self.phase else { return };
        let no_reason = || End { reason: StopReason::Failed, detail: Some("its vCPUs ended without a reason".into()) };
        self.phase = Phase::WindingUp { stopping, end: end.unwrap_or_else(no_reason), wait: Wait::default() };
        self.actions.push_back(Action::DetachDevices);
    }

    /// Answers [`Action::DetachDevices`]: nothing uses its memory any more.
    pub fn devices_detached(&mut self, now: u64) {
        if !matches!(self.phase, Phase::WindingUp { .. }) {
            return;
        }
        if let Phase::WindingUp { end, .. } = mem::replace(&mut self.phase, Phase::Down) {
            self.end(end);
        }
        match self.after {
            After::StartAgain => self.begin(),
            After::AsConfigured if self.always => match self.backoff.ended(now) {
                0 => self.begin(),
                wait => {
                    self.phase = Phase::Waiting { until: now.saturating_add(wait) };
                    self.actions.push_back(Action::AnnounceRestart { wait });
                }
            },
            After::AsConfigured | After::StayDown => {}
        }
    }

    /// Checks the clock. Kills it when the time limit of `stop` has run out. Starts it when its wait is over. Asks for a
    /// report when it has waited long for its devices or its memory.
    pub fn tick(&mut self, now: u64) {
        match &mut self.phase {
            Phase::Waiting { until } if now >= *until => self.begin(),
            Phase::Up { kill_at: Some(at), .. } if now >= *at => self.stop_vcpus(),
            Phase::BringingUp { wait, .. } | Phase::WindingUp { wait, .. } => {
                if let Some(waited) = wait.tick(now) {
                    self.actions.push_back(Action::ReportPending { state: self.state(), waited });
                }
            }
            _ => {}
        }
    }

    /// Begins a life. Nothing of the last one remains.
    fn begin(&mut self) {
        self.phase = Phase::BringingUp { pending: Pending::Nothing, wait: Wait::default() };
        self.after = After::AsConfigured;
        self.report(GuestState::Starting, None);
        self.actions.push_back(Action::BringUp);
    }

    /// Tells the vCPUs to stop, at once or as soon as they run. Clears the time limit of `stop`.
    fn stop_vcpus(&mut self) {
        match &mut self.phase {
            Phase::BringingUp { pending, .. } => *pending = Pending::Kill,
            Phase::Up { kill_at, .. } => {
                *kill_at = None;
                self.actions.push_back(Action::StopVcpus);
            }
            Phase::Down | Phase::Waiting { .. } | Phase::WindingUp { .. } => {}
        }
    }

    fn end(&mut self, end: End) {
        self.phase = Phase::Down;
        self.reason = Some(end.reason);
        self.report(GuestState::Stopped, Some(end));
    }

    fn report(&mut self, state: GuestState, end: Option<End>) {
        self.actions.push_back(Action::Report(Report { state, end }));
    }
}
