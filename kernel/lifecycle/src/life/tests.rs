//! Single cases: commands and observations on the left, actions on the right.

use Input::*;

use super::*;

/// A command or an observation.
#[derive(Clone, Debug)]
pub(super) enum Input {
    Start,
    Stop,
    Kill,
    Restart,
    ShutDown,
    BroughtUp,
    NotBroughtUp,
    Home(Option<StopReason>),
    Detached,
    Tick,
    /// This many milliseconds pass.
    Pass(u64),
}

/// Time limit of `stop` in these tests, in seconds.
pub(super) const STOP_SECONDS: u32 = 30;

/// Gives `life` one input at `now`, and moves `now` on if time passes.
pub(super) fn give(life: &mut Life, now: &mut u64, input: Input) -> Result<(), Refused> {
    match input {
        Start => return life.start(),
        Stop => return life.stop(*now, STOP_SECONDS),
        Kill => return life.kill(),
        Restart => return life.restart(),
        ShutDown => life.shut_down(*now, STOP_SECONDS),
        BroughtUp => life.brought_up(*now),
        NotBroughtUp => life.not_brought_up("no memory".into()),
        Home(reason) => life.vcpus_home(reason.map(|reason| End { reason, detail: None })),
        Detached => life.devices_detached(*now),
        Tick => life.tick(*now),
        Pass(milliseconds) => *now += milliseconds,
    }
    Ok(())
}

fn name(action: &Action) -> String {
    match action {
        Action::Report(report) => report.line("a").to_string().replace("guest a: ", ""),
        Action::BringUp => "bring up".into(),
        Action::PressPowerButton => "button".into(),
        Action::StopVcpus => "stop vCPUs".into(),
        Action::DetachDevices => "detach".into(),
        Action::ReportPending { state, waited } => format!("{} for {waited}", state.name()),
        Action::AnnounceRestart { wait } => format!("again in {wait}"),
    }
}

/// All actions that follow from `inputs`, and refusals between them.
fn actions(always: bool, inputs: &[Input]) -> Vec<String> {
    let (mut life, mut now) = (Life::new(always), 5_000);
    let mut all = Vec::new();
    for input in inputs {
        if let Err(refused) = give(&mut life, &mut now, input.clone()) {
            all.push(refused.explain("a").into());
        }
        assert!(life.actions.len() <= ACTIONS);
        while let Some(action) = life.next_action() {
            all.push(name(&action));
        }
    }
    all
}

/// Checks rows of (`restart = "always"`, inputs, actions). Each guest is started and brought up first.
fn check(rows: &[(bool, &[Input], &[&str])]) {
    for (always, inputs, expected) in rows {
        let all = actions(*always, &[&[Start, BroughtUp], *inputs].concat());
        assert_eq!(all[..3], ["starting", "bring up", "running"]);
        assert_eq!(all[3..], **expected, "always: {always}, {inputs:?}");
    }
}

const OFF: Input = Home(Some(StopReason::PowerOff));
const RESET: Input = Home(Some(StopReason::Reset));
const KILLED: Input = Home(Some(StopReason::Killed));

#[test]
fn a_guest_that_ends_by_itself_stays_down_unless_it_is_to_restart() {
    check(&[
        (false, &[OFF, Detached], &["detach", "stopped: power-off"]),
        (true, &[RESET, Detached], &["detach", "stopped: reset", "starting", "bring up"]),
        (false, &[Home(None), Detached], &["detach", "stopped: failed: its vCPUs ended without a reason"]),
    ]);
}

#[test]
fn restart_may_be_changed_while_it_runs_and_counts_from_the_next_end() {
    for (before, after) in [(false, true), (true, false)] {
        let (mut life, mut now) = (Life::new(before), 5_000);
        for input in [Start, BroughtUp] {
            give(&mut life, &mut now, input).unwrap();
        }
        life.set_always(after);
        while life.next_action().is_some() {}
        for input in [RESET, Detached] {
            give(&mut life, &mut now, input).unwrap();
        }
        let begins = std::iter::from_fn(|| life.next_action()).any(|action| action == Action::BringUp);
        assert_eq!(begins, after);
    }
}

#[test]
fn stop_presses_the_button_and_kills_when_the_time_is_up() {
    check(&[
        (true, &[Stop, OFF, Detached], &["button", "stopping", "detach", "stopped: power-off"]),
        // Not a millisecond too early, and only once.
        (true, &[Stop, Pass(29_999), Tick], &["button", "stopping"]),
        (true, &[Stop, Pass(30_000), Tick, Tick, Pass(30_000), Tick], &["button", "stopping", "stop vCPUs"]),
        // A second stop does not extend the time.
        (true, &[Stop, Pass(20_000), Stop, Pass(10_000), Tick], &["button", "stopping", "stop vCPUs"]),
        // A kill clears the limit.
        (
            true,
            &[Stop, Kill, Pass(30_000), Tick, KILLED, Detached],
            &["button", "stopping", "stop vCPUs", "detach", "stopped: killed"],
        ),
    ]);
}

#[test]
fn a_guest_that_the_operator_stopped_does_not_restart() {
    check(&[
        (true, &[Kill, KILLED, Detached], &["stop vCPUs", "detach", "stopped: killed"]),
        // It reset itself at the same moment.
        (true, &[Kill, RESET, Detached], &["stop vCPUs", "detach", "stopped: reset"]),
        (true, &[Stop, RESET, Detached], &["button", "stopping", "detach", "stopped: reset"]),
        // The command comes while its devices are detached.
        (true, &[RESET, Kill, Detached], &["detach", "stopped: reset"]),
        (true, &[RESET, Stop, Detached], &["detach", "stopped: reset"]),
    ]);
}

#[test]
fn restart_starts_it_when_it_is_down() {
    let again = ["stop vCPUs", "detach", "stopped: killed", "starting", "bring up"];
    check(&[
        (false, &[Restart, KILLED, Detached], &again),
        (false, &[Stop, Restart, KILLED, Detached], &[&["button", "stopping"], &again[..]].concat()),
        (false, &[RESET, Restart, Detached], &["detach", "stopped: reset", "starting", "bring up"]),
    ]);
    // One that is down starts at once.
    assert_eq!(actions(false, &[Restart]), ["starting", "bring up"]);
}

#[test]
fn the_last_command_counts() {
    check(&[
        (true, &[Restart, Kill, KILLED, Detached], &["stop vCPUs", "stop vCPUs", "detach", "stopped: killed"]),
        (true, &[Restart, Stop, KILLED, Detached], &["stop vCPUs", "button", "stopping", "detach", "stopped: killed"]),
        (
            true,
            &[Restart, ShutDown, KILLED, Detached],
            &["stop vCPUs", "button", "stopping", "detach", "stopped: killed"],
        ),
    ]);
}

#[test]
fn one_that_cannot_be_brought_up_is_not_tried_again() {
    let stopped = "stopped: not-started: no memory";
    assert_eq!(actions(true, &[Start, NotBroughtUp, Pass(1 << 40), Tick]), ["starting", "bring up", stopped]);
    assert_eq!(actions(true, &[Start, Restart, NotBroughtUp]), ["starting", "bring up", stopped]);
    // A start by hand is allowed.
    assert_eq!(actions(true, &[Start, NotBroughtUp, Start])[3..], ["starting", "bring up"]);
}

#[test]
fn one_that_ends_again_and_again_waits_longer_each_time() {
    let life = [BroughtUp, Pass(100), RESET, Detached];
    let mut inputs = [&[Start], &life[..], &life[..]].concat();
    let waits = |inputs: &[Input]| {
        let all = actions(true, inputs);
        (all[all.len() - 1].clone(), all.iter().filter(|action| *action == "bring up").count())
    };
    // The first end has no wait, so this was the second.
    assert_eq!(waits(&inputs), ("again in 1000".into(), 2));
    inputs.extend([Pass(999), Tick]);
    assert_eq!(waits(&inputs), ("again in 1000".into(), 2));
    inputs.extend([Pass(1), Tick, Tick]);
    assert_eq!(waits(&inputs), ("bring up".into(), 3));
    inputs.extend(life.clone());
    assert_eq!(waits(&inputs), ("again in 2000".into(), 3));
    // A long life alone does not end the waiting.
    inputs.extend([Pass(2000), Tick, Pass(1), BroughtUp, Pass(59_999), RESET, Detached]);
    assert_eq!(waits(&inputs), ("again in 4000".into(), 4));
    // Ten minutes without a fall do.
    inputs.extend([Pass(4000), Tick, BroughtUp, Pass(596_000), RESET, Detached]);
    assert_eq!(waits(&inputs), ("bring up".into(), 6));
}

#[test]
fn one_that_waits_is_stopped_and_takes_commands() {
    let life = [BroughtUp, RESET, Detached];
    let waiting = [&[Start], &life[..], &life[..]].concat();
    let after = |inputs: &[Input]| actions(true, &[&waiting[..], inputs].concat())[8..].to_vec();
    assert_eq!(after(&[]), ["detach", "stopped: reset", "again in 1000"]);
    assert_eq!(after(&[Stop, Pass(1000), Tick])[3..], [""; 0]);
    assert_eq!(after(&[ShutDown, Pass(1000), Tick])[3..], [""; 0]);
    assert_eq!(after(&[Kill, Pass(1000), Tick])[3..], ["guest `a` is not running", "starting", "bring up"]);
    assert_eq!(after(&[Start, Pass(1000), Tick])[3..], ["starting", "bring up"]);
    assert_eq!(after(&[Restart, Pass(1000), Tick])[3..], ["starting", "bring up"]);
}

#[test]
fn a_command_during_bring_up_is_carried_out_after_it() {
    let after = |inputs: &[Input]| actions(true, &[&[Start], inputs].concat())[2..].to_vec();
    assert_eq!(after(&[Kill, BroughtUp]), ["running", "stop vCPUs"]);
    assert_eq!(after(&[Kill, BroughtUp, KILLED, Detached])[2..], ["detach", "stopped: killed"]);
    assert_eq!(after(&[Kill, Stop, BroughtUp]), ["running", "stop vCPUs"]);
    assert_eq!(
        after(&[Restart, BroughtUp, KILLED, Detached])[2..],
        ["detach", "stopped: killed", "starting", "bring up"]
    );
    // The time limit begins with the button.
    let stop = [Stop, Pass(30_000), BroughtUp, Tick, Pass(29_999), Tick];
    assert_eq!(after(&stop), ["running", "button", "stopping"]);
    assert_eq!(after(&[&stop[..], &[Pass(1), Tick]].concat())[3..], ["stop vCPUs"]);
}

#[test]
fn nothing_starts_after_shut_down() {
    let refused = "sidecore is shutting down; nothing is started any more";
    check(&[
        (true, &[ShutDown, OFF, Detached], &["button", "stopping", "detach", "stopped: power-off"]),
        (
            true,
            &[ShutDown, Pass(30_000), Tick, KILLED, Detached, Start, Restart, Tick],
            &["button", "stopping", "stop vCPUs", "detach", "stopped: killed", refused, refused],
        ),
    ]);
    assert_eq!(actions(true, &[ShutDown, Start]), [refused]);
}

#[test]
fn commands_that_make_no_sense_are_refused() {
    let not_running = "guest `a` is not running";
    assert_eq!(actions(false, &[Stop, Kill]), [not_running, not_running]);
    let all = actions(false, &[Start, Start, BroughtUp, Start, OFF]);
    let running = "guest `a` is running";
    assert_eq!(all, ["starting", "bring up", running, "running", running, "detach"]);
}

/// A guest that was killed, and whose disk does not answer for the first seconds.
const HELD: [Input; 6] = [Kill, KILLED, Tick, Pass(999), Tick, Tick];

#[test]
fn a_guest_whose_devices_are_held_is_reported_and_comes_down_when_they_are_given_back() {
    let quiet = ["stop vCPUs", "detach"];
    let reported = [&quiet[..], &["detaching for 1000"]].concat();
    check(&[
        (true, &HELD, &quiet),
        (true, &[&HELD[..], &[Pass(1), Tick, Tick]].concat(), &reported),
        (true, &[&HELD[..], &[Pass(1), Tick, Detached]].concat(), &[&reported[..], &["stopped: killed"]].concat()),
        (
            true,
            &[&HELD[..], &[Pass(1), Tick, Pass(119_000), Tick, Pass(1 << 40), Tick]].concat(),
            &[&reported[..], &["detaching for 120000"]].concat(),
        ),
    ]);
}

#[test]
fn commands_to_a_guest_whose_devices_are_held_are_answered_at_once() {
    let refused = Refused::Detaching.explain("a");
    let after = |inputs: &[Input]| {
        let all = actions(true, &[&[Start, BroughtUp], &HELD[..], &[Pass(1), Tick], inputs].concat());
        all[6..].to_vec()
    };
    assert_eq!(after(&[Start]), [refused]);
    // These are answered, and nothing has to be done for them.
    assert_eq!(after(&[Stop, Kill, Pass(1 << 40)]), [""; 0]);
    assert_eq!(after(&[Kill, Detached]), ["stopped: killed"]);
    // The restart comes after the devices, and not before.
    assert_eq!(after(&[Restart, Pass(60_000), Tick]), [""; 0]);
    assert_eq!(after(&[Restart, Detached]), ["stopped: killed", "starting", "bring up"]);
    assert_eq!(after(&[Restart, Kill, Detached]), ["stopped: killed"]);
    assert_eq!(after(&[ShutDown, Restart]), ["sidecore is shutting down; nothing is started any more"]);
}

#[test]
fn an_engine_that_does_not_take_a_device_is_reported_and_the_guest_can_be_killed() {
    let inputs = [Start, Tick, Pass(1_000), Tick, Kill, Pass(119_000), Tick];
    assert_eq!(actions(false, &inputs), ["starting", "bring up", "starting for 1000", "starting for 120000"]);
    let all = actions(false, &[&inputs[..], &[BroughtUp, KILLED, Detached]].concat());
    assert_eq!(all[4..], ["running", "stop vCPUs", "detach", "stopped: killed"]);
}

#[test]
fn a_shutdown_waits_for_held_devices_for_a_time_and_no_longer() {
    let (mut life, mut now) = (Life::new(false), 0);
    for input in [Start, BroughtUp, ShutDown, Pass(30_000), Tick, KILLED, Pass(89_999)] {
        give(&mut life, &mut now, input).unwrap();
    }
    assert_eq!((life.is_over(now), life.is_over(now + 1)), (false, true));
    // A second one does not extend the time.
    give(&mut life, &mut now, ShutDown).unwrap();
    assert!(life.is_over(now + 1));
    give(&mut life, &mut now, Detached).unwrap();
    assert!(life.is_over(now), "it is down");
}

#[test]
fn the_operator_sees_the_state_the_last_reason_and_the_starts() {
    let (mut life, mut now) = (Life::new(false), 0);
    let mut seen = vec![(life.state(), life.reason(), life.starts())];
    for input in [Start, BroughtUp, Stop, OFF, Detached, Start, NotBroughtUp] {
        give(&mut life, &mut now, input).unwrap();
        seen.push((life.state(), life.reason(), life.starts()));
    }
    let (off, not_started) = (Some(StopReason::PowerOff), Some(StopReason::NotStarted));
    assert_eq!(
        seen,
        [
            (GuestState::Stopped, None, 0),
            (GuestState::Starting, None, 0),
            (GuestState::Running, None, 1),
            (GuestState::Stopping, None, 1),
            (GuestState::Stopping, None, 1),
            (GuestState::Stopped, off, 1),
            (GuestState::Starting, off, 1),
            (GuestState::Stopped, not_started, 1),
        ]
    );
}
