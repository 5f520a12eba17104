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
            let state =
                TraceState { id, classes: vec![], stop: false, saving: is_saving, cores: vec![], captures: vec![] };
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
    Wanted { classes: "exits".into(), stop: false, time }
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
    save(&mut port, &broker, &Wanted::default(), &mut out).unwrap();
    assert_eq!(out, b"abc");
    assert_eq!(*steps.lock().unwrap(), [TraceStep::Show, TraceStep::Save]);
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
    for step in [TraceStep::On, TraceStep::Save] {
        let (broker, mut port, _) = hypervisor(&[], false, Some(step));
        let saved = save(&mut port, &broker, &exits(None), &mut Vec::new());
        assert!(matches!(&saved, Err(NotSaved::Refused(why)) if why == "no"), "{saved:?}");
    }
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
    copy(&mut &b"abc"[..], &broker_at("/nonexistent".into()), None, &ends, &mut out).unwrap();
    assert_eq!(out, b"abc");
}
