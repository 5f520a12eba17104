//! Tests of saving a trace, against a hypervisor that answers as it is told.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use control::TraceState;
use control::trace::TRACE_END;

use super::*;
use crate::broker::tests::machine;

type Steps = Arc<Mutex<Vec<TraceStep>>>;

/// The broker at a socket, for somebody who does not say who it is.
fn broker_at(socket: std::path::PathBuf) -> Broker {
    Broker { socket, sender: control::Sender::default() }
}

/// A hypervisor with a port: the broker, the guest's end of the port, and the steps that it was asked for. `at`: at
/// which step it sends what bytes, and whether the trace ends with them. `refuses`: what it refuses.
fn hypervisor(
    at: &'static [(TraceStep, &'static [u8], bool)],
    is_saving: bool,
    refuses: Option<TraceStep>,
) -> (Broker, UnixStream, Steps) {
    let (guest, host) = UnixStream::pair().unwrap();
    guest.set_nonblocking(true).unwrap();
    (&host).write_all(b"left by another").unwrap();
    let steps = Steps::default();
    let noted = steps.clone();
    let socket = machine(move |request| {
        let Command::Trace { step, classes, .. } = &request.command else { panic!("{request:?}") };
        noted.lock().unwrap().push(*step);
        assert_eq!(classes, if *step == TraceStep::On { "exits" } else { "" });
        let id = request.id;
        if refuses == Some(*step) {
            return vec![Event::refused(id, "no".into()).to_line().unwrap()];
        }
        if *step == TraceStep::Show {
            let state = TraceState { id, saving: is_saving, ..TraceState::default() };
            return vec![Event::TraceState(state).to_line().unwrap()];
        }
        let mut lines = vec![Event::done(id).to_line().unwrap()];
        for (_, bytes, ends) in at.iter().filter(|(at, ..)| at == step) {
            (&host).write_all(bytes).unwrap();
            lines.extend(ends.then(|| TRACE_END.to_owned()));
        }
        lines
    });
    (broker_at(socket), guest, steps)
}

fn exits(time: Option<Duration>) -> Wanted {
    Wanted { classes: "exits".into(), stop: false, time, rips: true }
}

/// What is on, with or without RIPs.
fn what_is_on(rips: bool, time: Option<Duration>) -> Wanted {
    Wanted { classes: String::new(), stop: false, time, rips }
}

#[test]
fn it_is_what_comes_between_save_and_the_end_and_the_time_switches_it_off() {
    use TraceStep::{Off, On, Save, Show};
    let (broker, mut port, steps) = hypervisor(&[(Save, b"abc", false), (Off, b"def", true)], false, None);
    let mut out = Vec::new();
    save(&mut port, &broker, &exits(Some(Duration::from_millis(100))), &mut out).unwrap();
    assert_eq!(out, b"abcdef");
    assert_eq!(*steps.lock().unwrap(), [Show, On, Save, Off]);
}

#[test]
fn it_ends_when_somebody_else_has_switched_the_trace_off() {
    let (broker, mut port, steps) = hypervisor(&[(TraceStep::Save, b"abc", true)], false, None);
    let mut out = Vec::new();
    save(&mut port, &broker, &what_is_on(true, None), &mut out).unwrap();
    assert_eq!(out, b"abc");
    assert_eq!(*steps.lock().unwrap(), [TraceStep::Show, TraceStep::Save]);
}

#[test]
fn a_trace_without_rips_ends_without_switching_anything() {
    use TraceStep::{SaveWithoutRips, Show};
    let (broker, mut port, steps) = hypervisor(&[(SaveWithoutRips, b"abc", false)], false, None);
    let mut out = Vec::new();
    save(&mut port, &broker, &what_is_on(false, Some(Duration::from_millis(100))), &mut out).unwrap();
    assert_eq!(out, b"abc");
    assert_eq!(*steps.lock().unwrap(), [Show, SaveWithoutRips]);
    // Nor when its reader goes away.
    let (broker, mut port, steps) = hypervisor(&[(SaveWithoutRips, b"abc", false)], false, None);
    let saved = save(&mut port, &broker, &what_is_on(false, None), &mut Broken);
    assert!(matches!(saved, Err(NotSaved::Output(_))), "{saved:?}");
    assert_eq!(*steps.lock().unwrap(), [Show, SaveWithoutRips]);
}

#[test]
fn whoever_is_being_served_is_not_disturbed() {
    let (broker, mut port, steps) = hypervisor(&[], true, None);
    let saved = save(&mut port, &broker, &exits(None), &mut Vec::new());
    assert!(matches!(&saved, Err(NotSaved::Refused(why)) if why.contains("already")), "{saved:?}");
    assert_eq!(*steps.lock().unwrap(), [TraceStep::Show]);
    // The kernel's answer to a second open.
    assert!(matches!(not_opened(io::Error::from_raw_os_error(libc::EBUSY)), NotSaved::Refused(_)));
    assert!(matches!(open(Path::new("/nonexistent")), Err(NotSaved::Failed(_))));
}

#[test]
fn a_refusal_is_told() {
    use TraceStep::{Off, On, Save, Show};
    for (step, seen) in [(On, &[Show, On][..]), (Save, &[Show, On, Save, Off])] {
        let (broker, mut port, steps) = hypervisor(&[], false, Some(step));
        let saved = save(&mut port, &broker, &exits(None), &mut Vec::new());
        assert!(matches!(&saved, Err(NotSaved::Refused(why)) if why == "no"), "{saved:?}");
        assert_eq!(*steps.lock().unwrap(), seen, "what was switched on for it is switched off");
    }
    // What others have on stays on.
    let (broker, mut port, steps) = hypervisor(&[], false, Some(Save));
    assert!(save(&mut port, &broker, &what_is_on(true, None), &mut Vec::new()).is_err());
    assert_eq!(*steps.lock().unwrap(), [Show, Save]);
}

/// Bytes that were written and not flushed yet, as standard output keeps them.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().clear();
        Ok(())
    }
}

/// A port that is never read while the output keeps something.
struct Watched(UnixStream, Kept);

impl Read for Watched {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        assert_eq!(*self.1.0.lock().unwrap(), b"", "what has come is kept while nothing comes");
        self.0.read(bytes)
    }
}

#[test]
fn a_short_trace_goes_out_when_it_comes() {
    use TraceStep::{Off, Save};
    let (broker, port, _) = hypervisor(&[(Save, b"abc", false), (Off, b"d", true)], false, None);
    let mut out = Kept::default();
    save(&mut Watched(port, out.clone()), &broker, &exits(Some(Duration::from_millis(100))), &mut out).unwrap();
    assert_eq!(*out.0.lock().unwrap(), b"");
}

/// An output that is closed.
struct Broken;

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_client_that_goes_away_switches_the_trace_off() {
    use TraceStep::{Off, On, Save, Show};
    let (broker, mut port, steps) = hypervisor(&[(Save, b"abc", false)], false, None);
    let saved = save(&mut port, &broker, &exits(None), &mut Broken);
    assert!(matches!(saved, Err(NotSaved::Output(_))), "{saved:?}");
    assert_eq!(*steps.lock().unwrap(), [Show, On, Save, Off]);
}

#[test]
fn a_port_that_stays_closed_is_an_end_without_the_event() {
    let (_no_event, ends) = channel();
    let mut out = Vec::new();
    let broker = broker_at("/nonexistent".into());
    let copying = Copying { broker: &broker, off: Some(command(TraceStep::Off)), time: None, quiet: None };
    copying.run(&mut &b"abc"[..], &ends, |bytes| out.write_all(bytes).map(|()| true)).unwrap();
    assert_eq!(out, b"abc");
}

/// What the hypervisor sends of a machine with the guests `a` and `b`: the names, and a frame of each of these ports. `a` has the
/// slots 2 (`net0`) and 3 (`net1`), `b` has slot 4 (`net0`), and there is an uplink `wire`. The frame's bytes are its slot.
fn sent(slots: &[u16]) -> Vec<u8> {
    use ::trace::stream::{CapturesWriter, Clock, HeaderWriter, NOTHING, Table};
    let mut buffer = [0; 4096];
    let mut header = HeaderWriter::new(&mut buffer, Clock { tsc_khz: 1_000_000, wall: 1, tsc: 0 }).unwrap();
    for (table, number, belongs_to, name) in [
        (Table::Core, 1, 0, "engine"),
        (Table::Guest, 0, NOTHING, "a"),
        (Table::Guest, 1, NOTHING, "b"),
        (Table::Device, 2, 0, "net0"),
        (Table::Device, 3, 0, "net1"),
        (Table::Device, 4, 1, "net0"),
        (Table::Device, WIRE.into(), NOTHING, "uplink wire"),
    ] {
        header.name(table, number, belongs_to, name).unwrap();
    }
    let mut bytes = header.finish().to_vec();
    let mut captures = CapturesWriter::new(&mut buffer, 1, 0, 0).unwrap();
    for slot in slots {
        let frame = ::trace::Captured::new(5, *slot, ::trace::capture::Way::In, 60).with_bytes(&[*slot as u8; 60]);
        captures.push(&frame).unwrap();
    }
    bytes.extend_from_slice(captures.finish());
    bytes
}

/// The slot of the uplink.
const WIRE: u16 = ::trace::frames::FIRST_UPLINK;

/// A hypervisor that captures: the broker, the guest's end of the port, and the commands that it was asked for. It sends frames of
/// the ports with these slots at `captures`, and the end when the capture is switched off. `refuses`: it has no reader's place for
/// `captures`.
fn capturing(slots: &[u16], refuses: bool) -> (Broker, UnixStream, Arc<Mutex<Vec<String>>>) {
    let slots = slots.to_vec();
    let (guest, host) = UnixStream::pair().unwrap();
    guest.set_nonblocking(true).unwrap();
    let noted = Arc::<Mutex<Vec<String>>>::default();
    let commands = noted.clone();
    let socket = machine(move |request| {
        commands.lock().unwrap().push(request.command.summary().to_string());
        match &request.command {
            Command::Captures if refuses => vec![Event::refused(request.id, "busy".into()).to_line().unwrap()],
            Command::Captures => {
                (&host).write_all(&sent(&slots)).unwrap();
                vec![Event::done(request.id).to_line().unwrap()]
            }
            Command::Capture { filter, .. } if filter::is_off(filter) => {
                vec![Event::done(request.id).to_line().unwrap(), TRACE_END.to_owned()]
            }
            _ => vec![Event::done(request.id).to_line().unwrap()],
        }
    });
    (broker_at(socket), guest, noted)
}

fn frames(time: u64) -> Captured {
    wanted("a", "in,net=1", time)
}

fn wanted(name: &str, filter: &str, time: u64) -> Captured {
    Captured { name: name.into(), filter: filter.into(), time: Some(Duration::from_millis(time)), is_guest: false }
}

/// The first byte of each frame in a file of pcap-ng: its slot.
fn slots_in(file: &[u8]) -> Vec<u8> {
    let (mut slots, mut rest) = (Vec::new(), file);
    while let Some(head) = rest.first_chunk::<8>() {
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        // An Enhanced Packet Block has 28 bytes before the frame.
        slots.extend((word(0) == 6).then(|| rest[28]));
        rest = &rest[word(4) as usize..];
    }
    slots
}

#[test]
fn a_capture_has_the_frames_of_its_own_port_and_no_others() {
    let slots = [4, 2, 3, WIRE, 77, 4];
    for (name, filter, own) in [("a", "", 2), ("a", "in,net=1", 3), ("b", "", 4), ("wire", "", WIRE as u8)] {
        let (broker, mut port, _) = capturing(&slots, false);
        let mut out = Vec::new();
        capture(&mut port, &broker, &wanted(name, filter, 100), &mut out).unwrap();
        let seen = slots_in(&out);
        assert!(!seen.is_empty() && seen.iter().all(|slot| *slot == own), "capture {name} {filter}: {seen:?}");
    }
    // A key that is bound to a guest has no uplink of that guest's name.
    let (broker, mut port, _) = capturing(&slots, false);
    let mut out = Vec::new();
    capture(&mut port, &broker, &Captured { is_guest: true, ..wanted("wire", "", 100) }, &mut out).unwrap();
    assert!(slots_in(&out).is_empty());
}

#[test]
fn a_capture_ends_though_frames_of_other_ports_go_on() {
    // Nobody tells the end: another port is still captured, and its frames come without a pause.
    let (_no_event, ends) = channel();
    let broker = broker_at(machine(|request| vec![Event::done(request.id).to_line().unwrap()]));
    let (time, quiet) = (Some(Duration::ZERO), Some(Duration::from_millis(200)));
    let copying = Copying { broker: &broker, off: Some(wanted("a", "", 0).off()), time, quiet };
    struct Endless;
    impl Read for Endless {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            bytes.fill(0);
            Ok(1)
        }
    }
    copying.run(&mut Endless, &ends, |_| Ok(false)).unwrap();
}

#[test]
fn a_filter_that_is_none_is_refused_before_anything_is_captured() {
    let (broker, mut port, commands) = capturing(&[3], false);
    let captured = capture(&mut port, &broker, &wanted("a", "inn", 100), &mut Vec::new());
    assert!(matches!(&captured, Err(NotSaved::Refused(why)) if why.contains("did you mean `in`")), "{captured:?}");
    assert!(commands.lock().unwrap().is_empty());
}

#[test]
fn captured_frames_are_a_file_of_pcapng_and_the_time_ends_the_capture() {
    let (broker, mut port, commands) = capturing(&[3], false);
    let mut out = Vec::new();
    capture(&mut port, &broker, &frames(100), &mut out).unwrap();
    assert_eq!(*commands.lock().unwrap(), ["capture a in,net=1", "captures", "capture a net=1,off"]);
    // The section, the interface, the frame, the statistics: their types.
    let (mut types, mut rest) = (Vec::new(), &out[..]);
    while let Some(head) = rest.first_chunk::<8>() {
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        types.push(word(0));
        rest = &rest[word(4) as usize..];
    }
    assert_eq!(types, [0x0a0d_0d0a, 1, 6, 5]);
}

#[test]
fn a_capture_that_cannot_be_read_or_written_does_not_stay() {
    let (broker, mut port, commands) = capturing(&[3], true);
    let captured = capture(&mut port, &broker, &frames(100), &mut Vec::new());
    assert!(matches!(&captured, Err(NotSaved::Refused(why)) if why == "busy"), "{captured:?}");
    assert_eq!(*commands.lock().unwrap(), ["capture a in,net=1", "captures", "capture a net=1,off"]);
    let (broker, mut port, commands) = capturing(&[3], false);
    let captured = capture(&mut port, &broker, &frames(60_000), &mut Broken);
    assert!(matches!(captured, Err(NotSaved::Output(_))), "{captured:?}");
    assert_eq!(commands.lock().unwrap().last().unwrap(), "capture a net=1,off");
}
