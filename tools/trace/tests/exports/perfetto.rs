//! Perfetto's format: what its viewer needs, for any records.
//!
//! `judge.py` checks the same with Perfetto's own schema; see the last test.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use sidecore_trace::export::perfetto;
use sidecore_trace::model::Trace;
use trace::{Kind, Record};

use crate::any::{any_trace, example};
use crate::wire::Message;

fn export(trace: &Trace) -> Vec<u8> {
    let mut out = Vec::new();
    perfetto::write(trace, &mut out).unwrap();
    out
}

/// A track of an export.
#[derive(Debug, Default, PartialEq, Eq)]
struct Track {
    name: String,
    parent: Option<u64>,
    begins: u64,
    instants: u64,
    /// Names of the slices that are open.
    open: Vec<String>,
    last: u64,
    /// Longest chain of open slices.
    depth: usize,
}

/// Decodes an export and checks all that must hold for any trace. Returns the tracks.
fn tracks(bytes: &[u8]) -> BTreeMap<u64, Track> {
    let mut tracks: BTreeMap<u64, Track> = BTreeMap::new();
    for (i, packet) in Message::new(bytes).all(1).into_iter().enumerate() {
        let packet = Message::new(packet);
        assert_eq!(packet.number(10), Some(1), "trusted_packet_sequence_id");
        assert_eq!(packet.number(87), (i == 0).then_some(1), "first_packet_on_sequence");
        assert_eq!(packet.number(13), (i == 0).then_some(1), "sequence_flags: incremental state cleared");
        if let Some(descriptor) = packet.bytes(60) {
            let descriptor = Message::new(descriptor);
            let (uuid, name) = (descriptor.number(1).unwrap(), descriptor.text(2).unwrap().to_owned());
            let parent = descriptor.number(5);
            assert!(
                uuid != 0 && parent.is_none_or(|parent| tracks.contains_key(&parent)),
                "{name}: its parent is before it"
            );
            let new = tracks.insert(uuid, Track { name, parent, ..Track::default() });
            assert_eq!(new, None, "each track once");
        }
        let Some(event) = packet.bytes(11) else { continue };
        let event = Message::new(event);
        let track = tracks.get_mut(&event.number(11).unwrap()).expect("a track that was described before");
        let at = packet.number(8).unwrap();
        assert!(at >= track.last, "time goes back on {}", track.name);
        track.last = at;
        match event.number(9).unwrap() {
            1 => {
                track.begins += 1;
                track.open.push(event.text(23).unwrap().to_owned());
                track.depth = track.depth.max(track.open.len());
            }
            2 => assert!(track.open.pop().is_some(), "an end without a begin on {}", track.name),
            3 => {
                track.instants += 1;
                assert!(event.text(23).is_some());
            }
            other => panic!("type {other}"),
        }
    }
    assert!(tracks.values().all(|track| track.open.is_empty()), "a begin without an end");
    tracks
}

fn named<'a>(tracks: &'a BTreeMap<u64, Track>, name: &str) -> &'a Track {
    let found: Vec<&Track> = tracks.values().filter(|track| track.name == name).collect();
    let [one] = found[..] else { panic!("{} tracks are called {name}", found.len()) };
    one
}

#[test]
fn each_core_vcpu_and_queue_has_its_track_below_its_group() {
    let tracks = tracks(&export(&example()));
    let parent = |name: &str| tracks[&named(&tracks, name).parent.unwrap()].name.clone();
    assert_eq!(parent("core 1 (engine)"), "cores");
    assert_eq!(parent("core 2 (guest)"), "cores");
    assert_eq!(parent("alpha"), "guests");
    assert_eq!(parent("alpha vCPU 0"), "alpha");
    assert_eq!(parent("alpha net0 queue 1, engine on core 1"), "queues");
    assert_eq!(named(&tracks, "alpha vCPU 0").begins, 3, "three exits");
    assert_eq!(named(&tracks, "alpha vCPU 0").instants, 1, "an injection");
    let engine = named(&tracks, "core 1 (engine)");
    assert_eq!((engine.begins, engine.depth), (2, 2), "a visit in a turn");
    assert_eq!(named(&tracks, "core 2 (guest)").instants, 2, "the injection, and the loss");
}

#[test]
fn slices_have_names_annotations_and_the_wall_clock() {
    let bytes = export(&example());
    let packets: Vec<Message<'_>> = Message::new(&bytes).all(1).into_iter().map(Message::new).collect();
    // The clocks: boot time (6) and wall clock (1) at the same moment, in ns.
    let clocks = Message::new(packets[0].bytes(6).unwrap());
    let of = |clock: &[u8]| (Message::new(clock).number(1).unwrap(), Message::new(clock).number(2).unwrap());
    let [(6, boot), (1, wall)] = clocks.all(1).into_iter().map(of).collect::<Vec<_>>()[..] else {
        panic!("two clocks")
    };
    assert_eq!((boot, wall), (500, 1_700_000_000_000_000_500), "1,000 ticks at 2 GHz");
    let event =
        packets.iter().filter_map(|p| p.bytes(11)).map(Message::new).find(|e| e.text(23) == Some("cpuid")).unwrap();
    assert_eq!(event.text(22), Some("exit"), "its category");
    let values: Vec<(&str, Option<u64>)> = event
        .all(4)
        .into_iter()
        .map(|annotation| {
            let annotation = Message::new(annotation);
            (annotation.text(10).unwrap(), annotation.number(7).or(annotation.number(3)))
        })
        .collect();
    assert!(values.contains(&("rip", Some(0xffff_ffff_8100_0110))), "{values:?}");
}

#[test]
fn what_overlaps_on_one_track_is_cut_and_says_so() {
    let mut trace = example();
    for event in &mut trace.events {
        if event.record.known_kind() == Some(Kind::Visit) {
            event.record.span = 1_000_000;
        }
    }
    let bytes = export(&trace);
    assert_eq!(tracks(&bytes).values().filter(|track| track.depth == 2).count(), 1);
    let cut = Message::new(&bytes)
        .all(1)
        .into_iter()
        .filter_map(|packet| Message::new(packet).bytes(11).map(Message::new))
        .filter(|event| event.all(4).iter().any(|a| Message::new(a).text(10) == Some("cut")))
        .count();
    assert_eq!(cut, 1, "on the core's track; on the queue's it is alone");
}

#[test]
fn an_empty_trace_is_an_empty_picture() {
    let mut trace = example();
    trace.events.clear();
    trace.losses.clear();
    assert!(tracks(&export(&trace)).is_empty());
}

proptest! {
    #[test]
    fn any_records_become_what_the_viewer_needs(trace in any_trace()) {
        let tracks = tracks(&export(&trace));
        // Every record is on the track of its core once: as a slice if it has a span.
        let cores: Vec<&Track> = tracks.values().filter(|track| track.name.starts_with("core ")).collect();
        let slices = trace.events.iter().filter(|event| event.record.span != 0).count() as u64;
        let shown = trace.losses.iter().filter(|loss| loss.before.is_some()).count() as u64;
        prop_assert_eq!(cores.iter().map(|track| track.begins).sum::<u64>(), slices);
        let instants = trace.events.len() as u64 - slices + shown;
        prop_assert_eq!(cores.iter().map(|track| track.instants).sum::<u64>(), instants);
    }

    #[test]
    fn exits_are_on_the_vcpus_tracks_as_often_as_they_are_in_the_trace(trace in any_trace()) {
        let tracks = tracks(&export(&trace));
        let is_shown = |record: &Record| {
            record.known_kind() == Some(Kind::Exit) && record.guest != trace::record::NO_GUEST && record.span != 0
        };
        let exits = trace.events.iter().filter(|event| is_shown(&event.record)).count() as u64;
        let spans = trace.events.iter().filter(|event| {
            let kind = event.record.known_kind();
            event.record.guest != trace::record::NO_GUEST && event.record.span != 0
                && matches!(kind, Some(Kind::Entry | Kind::Injection | Kind::Delivery | Kind::Kick))
        }).count() as u64;
        let vcpus = tracks.values().filter(|track| track.name.contains(" vCPU "));
        prop_assert_eq!(vcpus.map(|track| track.begins).sum::<u64>(), exits + spans);
    }
}

/// Perfetto's own schema decodes an export. `SIDECORE_PERFETTO` names the folder of its Python package, made by
/// `pip install --target FOLDER perfetto protobuf`.
#[test]
#[ignore = "needs Perfetto's Python package: SIDECORE_PERFETTO=FOLDER"]
fn perfettos_own_schema_finds_no_fault() {
    let package = std::env::var("SIDECORE_PERFETTO").expect("SIDECORE_PERFETTO names a folder");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("example");
    let judge = |bytes: &[u8], arguments: &[&str]| {
        std::fs::write(&file, bytes).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exports/judge.py");
        let mut command = Command::new("python3");
        command.arg(script).arg(&file).args(arguments).env("PYTHONPATH", &package).output().unwrap()
    };
    let bytes = export(&example());
    let good = judge(&bytes, &["--slices", "cpuid=2", "--slices", "hlt=1"]);
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
    let fault = |bytes: &[u8], arguments: &[&str]| {
        let bad = judge(bytes, arguments);
        assert!(!bad.status.success());
        String::from_utf8(bad.stderr).unwrap()
    };
    assert!(fault(&bytes, &["--slices", "cpuid=3"]).contains("expected 3"));
    // An instant on a track that nobody has described, and a packet with a field that Perfetto does not have.
    let stray = [0x0a, 8, 0x50, 1, 0x5a, 4, 0x48, 3, 0x58, 99];
    assert!(fault(&[&bytes[..], &stray].concat(), &[]).contains("not described"));
    let unknown = [0x0a, 6, 0x50, 1, 0x80, 0xf1, 0x04, 1];
    assert!(fault(&[&bytes[..], &unknown].concat(), &[]).contains("unknown fields: [10000]"));
}
