//! The actions that a life asks of the kernel, and their text for the operator.

use alloc::{format, string::String};

use control::{Event, GuestState, StopReason};

/// An action that the kernel must carry out for a guest. Actions are carried out in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Report that the guest's state has changed.
    Report(Report),
    /// Fill its memory, build its machine, attach its devices and give its vCPUs to their cores. The answer is
    /// [`Life::brought_up`](crate::Life::brought_up) or [`Life::not_brought_up`](crate::Life::not_brought_up). In the
    /// second case nothing remains: no device is attached and no core has a vCPU.
    BringUp,
    /// Press its power button.
    PressPowerButton,
    /// Tell its vCPUs to stop. The answer is [`Life::vcpus_home`](crate::Life::vcpus_home).
    StopVcpus,
    /// Detach its devices. The answer is [`Life::devices_detached`](crate::Life::devices_detached), when no engine uses
    /// the guest's memory any more.
    DetachDevices,
    /// Log that the guest starts again in `wait` milliseconds.
    AnnounceRestart {
        /// Milliseconds until then.
        wait: u64,
    },
}

/// Why a life ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The reason.
    pub reason: StopReason,
    /// Details of the reason, for a person.
    pub detail: Option<String>,
}

/// A change of a guest's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The new state.
    pub state: GuestState,
    /// Why the guest is stopped. `None` in every other state.
    pub end: Option<End>,
}

impl Report {
    /// Returns the line for the log.
    #[must_use]
    pub fn line(&self, guest: &str) -> String {
        let state = self.state.name();
        match &self.end {
            Some(End { reason, detail: Some(detail) }) => {
                format!("guest {guest}: {state}: {}: {detail}", reason.name())
            }
            Some(End { reason, detail: None }) => format!("guest {guest}: {state}: {}", reason.name()),
            None => format!("guest {guest}: {state}"),
        }
    }

    /// Returns the event for COM2.
    #[must_use]
    pub fn event(self, guest: &str) -> Event {
        let (reason, detail) = match self.end {
            Some(End { reason, detail }) => (Some(reason), detail),
            None => (None, None),
        };
        Event::Guest { guest: guest.into(), state: self.state, reason, detail }
    }
}

/// Why a command was refused. A refused command changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The guest runs already.
    Running,
    /// The guest does not run.
    NotRunning,
    /// sidecore is about to end.
    ShuttingDown,
}

impl Refused {
    /// Returns the sentence for the operator.
    #[must_use]
    pub fn explain(self, guest: &str) -> String {
        match self {
            Self::Running => format!("guest `{guest}` is running"),
            Self::NotRunning => format!("guest `{guest}` is not running"),
            Self::ShuttingDown => "sidecore is shutting down; nothing is started any more".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_a_line_for_people_and_an_event_for_scripts() {
        let running = Report { state: GuestState::Running, end: None };
        let end = End { reason: StopReason::Reset, detail: None };
        let reset = Report { state: GuestState::Stopped, end: Some(end) };
        let end = End { reason: StopReason::NotStarted, detail: Some("core 2 is busy".into()) };
        let not_started = Report { state: GuestState::Stopped, end: Some(end) };
        assert_eq!(running.line("a"), "guest a: running");
        assert_eq!(reset.line("a"), "guest a: stopped: reset");
        assert_eq!(not_started.line("a"), "guest a: stopped: not-started: core 2 is busy");
        let event = |state, reason, detail| Event::Guest { guest: "a".into(), state, reason, detail };
        assert_eq!(running.event("a"), event(GuestState::Running, None, None));
        assert_eq!(reset.event("a"), event(GuestState::Stopped, Some(StopReason::Reset), None));
        let expected = event(GuestState::Stopped, Some(StopReason::NotStarted), Some("core 2 is busy".into()));
        assert_eq!(not_started.event("a"), expected);
    }

    #[test]
    fn a_refusal_names_the_guest() {
        assert_eq!(Refused::Running.explain("a"), "guest `a` is running");
        assert_eq!(Refused::NotRunning.explain("a"), "guest `a` is not running");
        assert_eq!(Refused::ShuttingDown.explain("a"), "sidecore is shutting down; nothing is started any more");
    }
}
