//! Tests of the command, its answer and its lines.

use super::*;
use crate::{Command, Event, Request};

#[test]
fn words_and_json_give_the_same_command() {
    let on = Command::Trace { step: TraceStep::On, stop: true, classes: "exits,visits".into() };
    assert_eq!(Command::from_words("trace on --stop exits,visits"), Ok(on.clone()));
    let line = r#"{"command":"trace","step":"on","stop":true,"classes":"exits,visits"}"#;
    assert_eq!(Request::from_line(line).map(|request| request.command), Ok(on));
    let save = Command::Trace { step: TraceStep::Save, stop: false, classes: String::new() };
    assert_eq!(Command::from_words("trace save"), Ok(save.clone()));
    assert_eq!(Request::from_line(r#"{"command":"trace","step":"save"}"#).map(|r| r.command), Ok(save));
    let error = Command::from_words("trace of").unwrap_err();
    assert_eq!(error, "no step of the trace `of`; did you mean `on`?");
}

#[test]
fn who_may_view_sees_the_state_and_records_without_rips_and_switches_nothing() {
    let permission = |line: &str| Command::from_words(line).map(|command| command.permission());
    for line in ["trace show", "trace save-without-rips"] {
        assert_eq!(permission(line), Ok(Permissions::VIEW), "{line}");
    }
    // A key's agent switches on what it names.
    for line in ["trace on", "trace off", "trace on exits", "trace save", "trace save-without-rips exits"] {
        assert_eq!(permission(line), Ok(Permissions::PROFILE), "{line}");
    }
    let viewer = crate::Caller::cable(crate::Way::Com2, Permissions::VIEW);
    let check = |line: &str| Command::from_words(line).and_then(|command| command.check(&viewer));
    assert_eq!(check("trace show"), Ok(()));
    assert!(check("trace save").unwrap_err().contains("needs the permission `profile`"));
}

#[test]
fn classes_are_read_by_name_and_only_those_that_are_written() {
    assert_eq!(classes(""), Ok(DEFAULT_CLASSES));
    assert_eq!(classes("exits,idle-turns"), Ok(Classes::EXITS | Classes::IDLE_TURNS));
    assert_eq!(classes("exit").unwrap_err(), "no class `exit`; did you mean `exits`?");
    let unwritten = (Classes::all() - Classes::WRITTEN).names().next().unwrap();
    assert!(classes(unwritten).is_err(), "{unwritten}");
    assert!(classes("exits,,visits").is_err());
    assert!(classes("exits,captures").unwrap_err().contains("`capture`"));
}

#[test]
fn one_of_so_many_exits_may_have_a_record() {
    let of = |words: &str| wanted(words).map(|wanted| (wanted.classes, wanted.exits_one_of));
    assert_eq!(of(""), Ok((DEFAULT_CLASSES, 1)));
    assert_eq!(of("exits,visits"), Ok((Classes::EXITS | Classes::VISITS, 1)));
    assert_eq!(of("exits,1/16"), Ok((Classes::EXITS | Classes::SAMPLED, 16)));
    assert_eq!(of("1/3"), Ok((DEFAULT_CLASSES | Classes::SAMPLED, 3)));
    // One of one is each of them, and nothing is sampled.
    assert_eq!(of("1/1,exits"), Ok((Classes::EXITS, 1)));
    assert_eq!(of("visits,1/16").unwrap_err(), "`1/16` is of exits: add the class `exits`");
    for wrong in ["exits,1/0", "exits,1/1048577", "exits,1/+2", "exits,1/"] {
        let word = wrong.trim_start_matches("exits,");
        assert_eq!(of(wrong).unwrap_err(), format!("`{word}`: expected a number from 1 to 1048576").as_str());
    }
    assert!(of("exits,1/2,1/3").unwrap_err().contains("one `1/N`"));
    assert!(of("exits,,1/2").unwrap_err().contains("no class ``"));
    assert!(of("sampled").unwrap_err().contains("`1/N`"));
}

#[test]
fn the_lines_of_a_trace_are_events() {
    let read = |line: &str| Event::from_line(line).unwrap();
    assert_eq!(read(&trace_line("AAEC").concat()), Event::Trace { data: "AAEC".into(), end: false });
    assert_eq!(read(TRACE_END), Event::Trace { data: String::new(), end: true });
    for event in [Event::Trace { data: "AAEC".into(), end: false }, Event::Trace { data: String::new(), end: true }] {
        assert_eq!(Event::from_line(&event.to_line().unwrap()), Ok(event));
    }
}

fn shown(state: &TraceState) -> String {
    let mut text = String::new();
    show(state, &mut text).unwrap();
    text
}

#[test]
fn the_line_of_all_classes_fits_a_terminal() {
    let classes = Classes::WRITTEN.names().map(Text::from).collect();
    let text = shown(&TraceState { classes, ..TraceState::default() });
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let words: Vec<_> = text.split_whitespace().collect();
    let sentence = "on: exits, entries, interrupts, turns, idle-turns, visits, frames, disks, life, histograms, drops; when a ring is \
                    full, the oldest records are dropped no core has a ring: `memory` of [trace] is 0K";
    assert_eq!(words.join(" "), sentence);
}

#[test]
fn the_table_fits_a_terminal_with_the_largest_numbers() {
    let core = TracedCore {
        core: 255,
        user: "x".repeat(32),
        capacity: 1 << 22,
        records: 99_999_999_999_999,
        lost: 99_999_999_999_999,
    };
    let state = TraceState {
        cores: vec![core],
        saving: true,
        stop: true,
        id: None,
        classes: vec!["exits".into()],
        exits_one_of: Some(1 << 20),
        captures: vec![],
    };
    let text = shown(&state);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("\n 255  xxxx"), "{text}");
    let event = Event::TraceState(state);
    assert_eq!(Event::from_line(&event.to_line().unwrap()), Ok(event));
}
