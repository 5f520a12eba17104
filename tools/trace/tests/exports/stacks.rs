//! Folded stacks, flame graphs and JSON lines.

use proptest::prelude::*;
use quick_xml::events::Event as Xml;
use serde_json::Value;
use sidecore_trace::export::folded::{self, Weight};
use sidecore_trace::export::{json, svg};
use sidecore_trace::model::{Event, Trace};
use trace::Kind;

use crate::any::{any_trace, example};

fn text(trace: &Trace, weight: Weight, symbol: impl Fn(&Event) -> Option<String>) -> String {
    let mut out = Vec::new();
    folded::write(&folded::stacks(trace, weight, symbol), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn lines(trace: &Trace) -> Vec<Value> {
    let mut out = Vec::new();
    json::write(trace, |_| None, &mut out).unwrap();
    String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn picture(trace: &Trace) -> Option<String> {
    let mut out = Vec::new();
    let stacks = folded::stacks(trace, Weight::Samples, |_| Some("do <idle> & wait".to_owned()));
    svg::write(&stacks, Weight::Samples, &mut out).ok()?;
    Some(String::from_utf8(out).unwrap())
}

#[test]
fn stacks_are_exits_by_guest_and_reason() {
    assert_eq!(text(&example(), Weight::Samples, |_| None), "alpha;cpuid 2\nalpha;hlt 1\n");
    assert_eq!(text(&example(), Weight::Time, |_| None), "alpha;cpuid 3000\nalpha;hlt 3000\n", "ns at 2 GHz");
    let symbol = |event: &Event| Some(format!("f{}", event.record.code));
    assert_eq!(text(&example(), Weight::Samples, symbol), "alpha;cpuid;f0 2\nalpha;hlt;f1 1\n");
}

#[test]
fn a_line_of_json_has_the_record_as_it_was_written() {
    let lines = lines(&example());
    assert_eq!(lines.len(), 8);
    assert_eq!(lines[0], serde_json::json!({"lost": 1, "core": 2, "number": 5}));
    let expected = serde_json::json!({
        "core": 2, "number": 0, "tsc": 1_000, "ns": 500, "kind": "exit", "guest": "alpha", "unit": 0, "code": 0,
        "meaning": "cpuid", "span": 2_000, "a": 0xffff_ffff_8100_0110_u64, "b": 0x4000_0001,
    });
    assert_eq!(lines[1], expected);
    let visit = &lines[3];
    assert_eq!((&visit["kind"], &visit["slot"], &visit["amount"]), (&"visit".into(), &3.into(), &4.into()));
}

#[test]
fn a_flame_graph_is_sound_xml_whatever_the_names_are() {
    let mut trace = example();
    trace.events.iter_mut().for_each(|event| event.record.guest = 1);
    let svg = picture(&trace).unwrap();
    let mut reader = quick_xml::Reader::from_str(&svg);
    let mut titles = Vec::new();
    let mut in_title = false;
    loop {
        match reader.read_event().expect("sound XML") {
            Xml::Eof => break,
            Xml::Start(tag) => in_title = tag.name().as_ref() == b"title",
            Xml::Text(text) if in_title => titles.push(String::from_utf8(text.to_vec()).unwrap()),
            Xml::End(_) => in_title = false,
            _ => {}
        }
    }
    assert!(svg.contains("b_&lt;&amp;&quot;_c"), "the guest's name");
    assert!(!svg.contains("do <idle>"), "a function's name is no tag");
    assert!(!titles.is_empty());
}

#[test]
fn there_is_no_picture_of_nothing() {
    let mut trace = example();
    trace.events.retain(|event| event.record.known_kind() != Some(Kind::Exit));
    assert_eq!(picture(&trace), None);
}

proptest! {
    #[test]
    fn stacks_count_every_exit_once(trace in any_trace()) {
        let exits = trace.events.iter().filter(|event| event.record.known_kind() == Some(Kind::Exit)).count() as u64;
        let mut sum = 0;
        for line in text(&trace, Weight::Samples, |_| Some("a b;c".to_owned())).lines() {
            let (stack, value) = line.split_once(' ').unwrap();
            prop_assert_eq!(stack.split(';').count(), 3);
            sum += value.parse::<u64>().unwrap();
        }
        prop_assert_eq!(sum, exits);
        text(&trace, Weight::Time, |_| None);
        prop_assert_eq!(picture(&trace).is_some(), exits > 0);
    }

    #[test]
    fn every_record_and_loss_is_a_line_of_json(trace in any_trace()) {
        let lines = lines(&trace);
        prop_assert_eq!(lines.len(), trace.events.len() + trace.losses.len());
        for (line, event) in lines[trace.losses.len()..].iter().zip(&trace.events) {
            prop_assert_eq!(line["tsc"].as_u64(), Some(event.record.tsc));
            prop_assert_eq!(line["a"].as_u64(), Some(event.record.a));
            prop_assert_eq!(line["b"].as_u64(), Some(event.record.b));
        }
    }
}
