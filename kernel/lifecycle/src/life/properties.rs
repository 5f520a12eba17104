//! Properties of every life, for random commands and observations at random times.

use proptest::{collection::vec, prelude::*};

use super::{
    tests::{Input, STOP_SECONDS, give},
    *,
};

/// The kernel as a life sees it. It answers late, and checks each action against what runs.
#[derive(Debug, Default)]
struct Kernel {
    runs: Runs,
    /// The vCPUs were told to stop.
    told: bool,
    /// Last state reported.
    reported: Option<GuestState>,
    /// How many lives were brought up, and how many had their devices detached.
    brought_up: u64,
    detached: u64,
    bring_ups: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Runs {
    #[default]
    Nothing,
    BringUp,
    Vcpus,
    Detach,
}

impl Kernel {
    /// Takes all actions. Returns them.
    fn take(&mut self, life: &mut Life) -> Vec<Action> {
        let mut all = Vec::new();
        while let Some(action) = life.next_action() {
            match &action {
                Action::BringUp => {
                    assert_eq!(self.runs, Runs::Nothing, "two lives at once");
                    assert_eq!(self.reported, Some(GuestState::Starting));
                    self.runs = Runs::BringUp;
                    self.told = false;
                    self.bring_ups += 1;
                }
                Action::PressPowerButton => assert_eq!(self.runs, Runs::Vcpus),
                Action::StopVcpus => {
                    assert_eq!(self.runs, Runs::Vcpus);
                    self.told = true;
                }
                Action::DetachDevices => {
                    assert_eq!(self.runs, Runs::Vcpus, "wound up without a life");
                    self.runs = Runs::Detach;
                }
                Action::Report(report) => self.report(report),
                Action::ReportPending { state, .. } => {
                    match self.runs {
                        Runs::BringUp => assert_eq!(*state, GuestState::Starting),
                        Runs::Detach => assert_eq!(*state, GuestState::Detaching),
                        Runs::Nothing | Runs::Vcpus => panic!("nothing is pending"),
                    }
                    self.reported = Some(*state);
                }
                Action::AnnounceRestart { wait } => {
                    assert_eq!((self.runs, self.reported), (Runs::Nothing, Some(GuestState::Stopped)));
                    assert!((1_000..=64_000).contains(wait));
                }
            }
            all.push(action);
        }
        all
    }

    fn report(&mut self, report: &Report) {
        use GuestState::{Detaching, Running, Starting, Stopped, Stopping};
        let before = self.reported.unwrap_or(Stopped);
        let legal = match report.state {
            Starting => before == Stopped && self.runs == Runs::Nothing,
            Running => before == Starting && self.runs == Runs::Vcpus,
            Stopping => before == Running && self.runs == Runs::Vcpus,
            Stopped => before != Stopped && self.runs == Runs::Nothing,
            Detaching => false,
        };
        assert!(legal, "{before:?}, {:?}: {report:?}", self.runs);
        assert_eq!(report.end.is_some(), report.state == Stopped, "a reason for every end, and for nothing else");
        self.reported = Some(report.state);
    }

    /// Returns the input if it can come now. An observation can come only if there is something to observe.
    fn observe(&mut self, input: Input) -> Option<Input> {
        match (&input, self.runs) {
            (Input::BroughtUp, Runs::BringUp) => {
                self.runs = Runs::Vcpus;
                self.brought_up += 1;
            }
            (Input::NotBroughtUp, Runs::BringUp) => self.runs = Runs::Nothing,
            (Input::Home(_), Runs::Vcpus) => {}
            (Input::Detached, Runs::Detach) => {
                self.runs = Runs::Nothing;
                self.detached += 1;
            }
            (Input::BroughtUp | Input::NotBroughtUp | Input::Home(_) | Input::Detached, _) => return None,
            _ => {}
        }
        Some(input)
    }
}

fn reason() -> impl Strategy<Value = Option<StopReason>> {
    use StopReason::{Failed, Killed, PowerOff, Reset, TripleFault};
    prop::option::of(prop::sample::select(vec![PowerOff, Reset, TripleFault, Killed, Failed]))
}

fn observation() -> impl Strategy<Value = Input> {
    prop_oneof![
        3 => Just(Input::BroughtUp),
        1 => Just(Input::NotBroughtUp),
        3 => reason().prop_map(Input::Home),
        3 => Just(Input::Detached),
        3 => Just(Input::Tick),
        2 => (0_u64..100).prop_map(Input::Pass),
        1 => (0_u64..100_000).prop_map(Input::Pass),
    ]
}

fn command() -> impl Strategy<Value = Input> {
    prop::sample::select(vec![Input::Start, Input::Stop, Input::Kill, Input::Restart])
}

fn any() -> impl Strategy<Value = Input> {
    prop_oneof![12 => observation(), 6 => command(), 1 => Just(Input::ShutDown)]
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    vec(any(), 0..60)
}

/// Returns a life and its kernel after `inputs`.
fn lived(always: bool, inputs: Vec<Input>) -> (Life, Kernel, u64) {
    let (mut life, mut kernel, mut now) = (Life::new(always), Kernel::default(), 0);
    for input in inputs {
        let Some(input) = kernel.observe(input) else { continue };
        let _ = give(&mut life, &mut now, input);
        kernel.take(&mut life);
    }
    (life, kernel, now)
}

/// Answers everything, and lets the clock run for `seconds`. The guest does not react to its power button.
fn settle(life: &mut Life, kernel: &mut Kernel, now: &mut u64, seconds: u64) {
    for _ in 0..seconds {
        let home = Input::Home(Some(StopReason::Killed));
        for input in [Input::BroughtUp, Input::Tick, home, Input::Detached, Input::Pass(1000)] {
            if matches!(input, Input::Home(_)) && !kernel.told {
                continue;
            }
            if let Some(input) = kernel.observe(input) {
                let _ = give(life, now, input);
                kernel.take(life);
            }
        }
    }
}

proptest! {
    // A test build makes long sequences of inputs slowly.
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// The kernel's assertions: there are never two lives, and every action fits what runs.
    #[test]
    fn a_life_that_was_brought_up_is_wound_up_once_before_the_next(always: bool, inputs in inputs()) {
        let (life, kernel, _) = lived(always, inputs);
        let up = matches!(kernel.runs, Runs::Vcpus | Runs::Detach);
        prop_assert_eq!(kernel.brought_up - kernel.detached, u64::from(up));
        prop_assert_eq!(life.starts(), kernel.brought_up);
        let nothing = kernel.runs == Runs::Nothing;
        prop_assert_eq!(life.state() == GuestState::Stopped, nothing);
        prop_assert_eq!(kernel.reported.unwrap_or(GuestState::Stopped), life.state());
        prop_assert_eq!(life.is_up(), kernel.runs == Runs::Vcpus);
        prop_assert_eq!(life.awaits_devices(), matches!(kernel.runs, Runs::BringUp | Runs::Detach));
    }

    /// The engine never answers. The end of sidecore does not wait for it for ever, and not a millisecond longer than said.
    #[test]
    fn a_shutdown_ends_in_a_bounded_time_whatever_does_not_come(always: bool, before in inputs(), after in inputs()) {
        let (mut life, mut kernel, mut now) = lived(always, before);
        if life.ends_at.is_none() {
            let end = now + 1000 * u64::from(STOP_SECONDS) + LETTING_GO;
            let _ = give(&mut life, &mut now, Input::ShutDown);
            kernel.take(&mut life);
            for input in after {
                let Some(input) = kernel.observe(input) else { continue };
                let _ = give(&mut life, &mut now, input);
                kernel.take(&mut life);
                prop_assert_eq!(life.is_over(now), life.is_down() || now >= end);
            }
            prop_assert!(life.is_over(end));
        }
    }

    #[test]
    fn after_shut_down_nothing_starts_and_everything_comes_down(
        always: bool, before in inputs(), after in inputs(),
    ) {
        let (mut life, mut kernel, mut now) = lived(always, before);
        let _ = give(&mut life, &mut now, Input::ShutDown);
        kernel.take(&mut life);
        let bring_ups = kernel.bring_ups;
        for input in after {
            let Some(input) = kernel.observe(input) else { continue };
            let _ = give(&mut life, &mut now, input);
            kernel.take(&mut life);
        }
        settle(&mut life, &mut kernel, &mut now, u64::from(STOP_SECONDS) + 3);
        prop_assert!(life.is_down());
        prop_assert_eq!(kernel.runs, Runs::Nothing);
        prop_assert_eq!(kernel.bring_ups, bring_ups);
    }

    /// This holds for all later observations, and for every reason for which its vCPUs return.
    #[test]
    fn a_guest_that_was_stopped_or_killed_does_not_start_without_a_command(
        always: bool,
        before in inputs(),
        last in prop::sample::select(vec![Input::Stop, Input::Kill]),
        after in vec(observation(), 0..40),
    ) {
        let (mut life, mut kernel, mut now) = lived(always, before);
        if give(&mut life, &mut now, last).is_ok() {
            kernel.take(&mut life);
            let bring_ups = kernel.bring_ups;
            for input in after {
                let Some(input) = kernel.observe(input) else { continue };
                let _ = give(&mut life, &mut now, input);
                kernel.take(&mut life);
            }
            prop_assert_eq!(kernel.bring_ups, bring_ups);
        }
    }

    #[test]
    fn a_guest_that_is_not_to_restart_never_starts_by_itself(before in inputs(), after in vec(observation(), 0..60)) {
        let (mut life, mut kernel, mut now) = lived(false, before);
        // The operator's `restart` may be under way.
        let asked = u64::from(life.after == After::StartAgain);
        let bring_ups = kernel.bring_ups;
        for input in after {
            let Some(input) = kernel.observe(input) else { continue };
            let _ = give(&mut life, &mut now, input);
            kernel.take(&mut life);
        }
        prop_assert!(kernel.bring_ups <= bring_ups + asked);
    }

    #[test]
    fn restart_brings_up_a_new_life(always: bool, before in inputs()) {
        let (mut life, mut kernel, mut now) = lived(always, before);
        let bring_ups = kernel.bring_ups;
        if give(&mut life, &mut now, Input::Restart).is_ok() {
            kernel.take(&mut life);
            for input in [Input::BroughtUp, Input::Home(Some(StopReason::Killed)), Input::Detached] {
                let input = if kernel.bring_ups == bring_ups { kernel.observe(input) } else { None };
                if let Some(input) = input {
                    let _ = give(&mut life, &mut now, input);
                    kernel.take(&mut life);
                }
            }
            prop_assert_eq!(kernel.bring_ups, bring_ups + 1);
        }
    }

    /// The wait begins at the announcement. It is exact to the millisecond, and never shorter.
    #[test]
    fn the_wait_that_was_announced_is_kept(before in inputs(), steps in vec(0_u64..5000, 0..40)) {
        let (mut life, mut kernel, mut now) = lived(true, before);
        if let Phase::Waiting { until } = life.phase {
            for step in steps {
                now += step;
                let _ = give(&mut life, &mut now, Input::Tick);
                let started = kernel.take(&mut life).contains(&Action::BringUp);
                prop_assert_eq!(started, now >= until);
                if started {
                    break;
                }
            }
        }
    }

    #[test]
    fn the_time_limit_kills_once_and_not_too_early(always: bool, before in inputs(), steps in vec(0_u64..5000, 0..40)) {
        let (mut life, mut kernel, mut now) = lived(always, before);
        let running = life.phase == Phase::Up { stopping: false, kill_at: None };
        if running && give(&mut life, &mut now, Input::Stop).is_ok() {
            let begin = now;
            let mut kills = 0;
            kernel.take(&mut life);
            for step in steps {
                now += step;
                let _ = give(&mut life, &mut now, Input::Tick);
                kills += kernel.take(&mut life).iter().filter(|action| **action == Action::StopVcpus).count();
                prop_assert_eq!(kills, usize::from(now - begin >= 1000 * u64::from(STOP_SECONDS)));
            }
        }
    }

    #[test]
    fn what_is_refused_changes_nothing(always: bool, before in inputs(), command in command()) {
        let (mut life, _, mut now) = lived(always, before);
        let unchanged = life.clone();
        if give(&mut life, &mut now, command).is_err() {
            prop_assert_eq!(life, unchanged);
        }
    }

    /// An answer to an action that was not asked for changes nothing.
    #[test]
    fn a_stray_observation_changes_nothing(always: bool, before in inputs(), stray in observation()) {
        let (mut life, mut kernel, mut now) = lived(always, before);
        let unchanged = life.clone();
        if kernel.observe(stray.clone()).is_none() {
            let _ = give(&mut life, &mut now, stray);
            prop_assert_eq!(life, unchanged);
        }
    }
}
