//! The actions that a life asks of the kernel, and their text for the operator.

use core::fmt;

use control::{Event, GuestState, Joined, NoMemory, StopReason, Text, copy, sentence};

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
    /// Report its state and what it waits for: the zeroing of its memory, or devices that an engine has neither taken nor
    /// given back.
    ReportPending {
        /// The guest's state.
        state: GuestState,
        /// Milliseconds since it began to wait.
        waited: u64,
    },
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
    pub detail: Option<Text>,
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
    pub fn line(&self, guest: &str) -> impl fmt::Display {
        fmt::from_fn(move |f| {
            let state = self.state.name();
            match &self.end {
                Some(End { reason, detail: Some(detail) }) => {
                    write!(f, "guest {guest}: {state}: {}: {detail}", reason.name())
                }
                Some(End { reason, detail: None }) => write!(f, "guest {guest}: {state}: {}", reason.name()),
                None => write!(f, "guest {guest}: {state}"),
            }
        })
    }

    /// Returns the event for COM2.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn event(self, guest: &str) -> Result<Event, NoMemory> {
        let (reason, detail) = match self.end {
            Some(End { reason, detail }) => (Some(reason), detail),
            None => (None, None),
        };
        let detail = match detail {
            Some(Text::Borrowed(detail)) => Some(copy(detail)?),
            Some(Text::Owned(detail)) => Some(detail),
            None => None,
        };
        Ok(Event::Guest { guest: copy(guest)?, state: self.state, reason, detail })
    }
}

/// Returns the sentence for [`Action::ReportPending`]. `devices` are the names of the devices.
pub fn explain_pending(
    state: GuestState,
    waited: u64,
    devices: impl Iterator<Item: fmt::Display> + Clone,
) -> impl fmt::Display {
    let devices = Joined(devices);
    let seconds = waited / 1000;
    fmt::from_fn(move |f| {
        if state == GuestState::Detaching {
            write!(f, "not given back by their engine within {seconds} s, because requests are in flight: {devices}")
        } else {
            write!(f, "not taken or given back by their engine within {seconds} s: {devices}")
        }
    })
}

/// Why a command was refused. A refused command changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The guest runs already.
    Running,
    /// The guest does not run.
    NotRunning,
    /// The guest does not run any more, but an engine still has requests of its devices.
    Detaching,
    /// sidecore is about to end.
    ShuttingDown,
}

impl Refused {
    /// Returns the sentence for the operator.
    #[must_use]
    pub fn explain(self, guest: &str) -> Text {
        match self {
            Self::Running => sentence(format_args!("guest `{guest}` is running")),
            Self::NotRunning => sentence(format_args!("guest `{guest}` is not running")),
            Self::Detaching => sentence(format_args!(
                "guest `{guest}` has stopped, but its devices still have requests in flight; `restart {guest}` starts it \
                 when these have ended"
            )),
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
        assert_eq!(running.line("a").to_string(), "guest a: running");
        assert_eq!(reset.line("a").to_string(), "guest a: stopped: reset");
        assert_eq!(not_started.line("a").to_string(), "guest a: stopped: not-started: core 2 is busy");
        let event = |state, reason, detail| Event::Guest { guest: "a".into(), state, reason, detail };
        assert_eq!(running.event("a"), Ok(event(GuestState::Running, None, None)));
        assert_eq!(reset.event("a"), Ok(event(GuestState::Stopped, Some(StopReason::Reset), None)));
        let expected = event(GuestState::Stopped, Some(StopReason::NotStarted), Some("core 2 is busy".into()));
        assert_eq!(not_started.event("a"), Ok(expected));
    }

    #[test]
    fn a_report_of_pending_devices_names_them() {
        let names = ["disk d0", "network device 02:00:00:00:00:01"];
        let text = explain_pending(GuestState::Detaching, 1_000, names.iter()).to_string();
        let devices = "disk d0, network device 02:00:00:00:00:01";
        assert_eq!(
            text,
            format!("not given back by their engine within 1 s, because requests are in flight: {devices}")
        );
        let text = explain_pending(GuestState::Starting, 120_000, names.iter()).to_string();
        assert_eq!(text, format!("not taken or given back by their engine within 120 s: {devices}"));
    }

    #[test]
    fn a_refusal_names_the_guest() {
        assert_eq!(Refused::Running.explain("a"), "guest `a` is running");
        assert_eq!(Refused::NotRunning.explain("a"), "guest `a` is not running");
        let detaching = Refused::Detaching.explain("a");
        assert!(
            detaching.starts_with("guest `a` has stopped, but") && detaching.contains("`restart a` starts it when")
        );
        assert_eq!(Refused::ShuttingDown.explain("a"), "sidecore is shutting down; nothing is started any more");
    }
}
