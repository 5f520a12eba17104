//! Front-ends that keep the rules.

use std::fs;

use vhost_front::{Options, features};

use crate::process::{Vhost, frame, introduce, passes, run, text, until};

/// Ring formats to test: the default, and packed rings.
fn forms() -> [Options; 2] {
    let split = Options::default();
    [split, Options { features: split.features | features::RING_PACKED, ..split }]
}

#[test]
fn packed_rings_carry_frames_of_every_length_to_split_ones_and_back() {
    let [split, packed] = forms();
    for (options, others) in [(packed, packed), (packed, split)] {
        let vhost = Vhost::start(2);
        let (mut a, mut b) = (vhost.connect_with("a", &options), vhost.connect_with("b", &others));
        assert_eq!(a.features & features::RING_PACKED, features::RING_PACKED);
        introduce(&mut a, &mut b);
        for len in 14..=1518 {
            passes(&mut a, &mut b, &frame(2, 1, len, len as u32));
            passes(&mut b, &mut a, &frame(1, 2, len, !len as u32));
        }
        let ended = vhost.end();
        for port in [0, 1] {
            for (name, count) in [("rx_packets", 1506), ("tx_packets", 1506), ("faults", 0), ("rx_no_buffer", 0)] {
                assert_eq!(ended.port(port, name), count, "{name} of port {port}");
            }
        }
    }
}

#[test]
fn frames_of_every_length_arrive_as_they_were_and_are_counted() {
    let vhost = Vhost::start(2);
    let (mut a, mut b) = (vhost.connect("a"), vhost.connect("b"));
    assert_eq!(features::names(a.features), ["MRG_RXBUF", "EVENT_IDX", "INDIRECT_DESC", "VERSION_1"]);
    introduce(&mut a, &mut b);
    for len in 14..=1518 {
        passes(&mut a, &mut b, &frame(2, 1, len, len as u32));
        passes(&mut b, &mut a, &frame(1, 2, len, !len as u32));
    }
    let ended = vhost.end();
    assert_eq!(ended.status.code(), Some(0));
    for port in [0, 1] {
        for (name, count) in [("rx_packets", 1506), ("tx_packets", 1506), ("faults", 0), ("rx_no_buffer", 0)] {
            assert_eq!(ended.port(port, name), count, "{name} of port {port}");
        }
    }
    let cycles = &ended.counters["engine"];
    assert!(cycles["busy_turns"].as_u64() > Some(0) && cycles["cycles_per_microsecond"].as_u64() > Some(0), "{cycles}");
}

#[test]
fn what_is_sent_either_arrives_in_order_or_is_counted_as_dropped() {
    forms().iter().for_each(stream);
}

fn stream(options: &Options) {
    const FRAMES: u32 = 200_000;
    let vhost = Vhost::start(2);
    let (mut a, mut b) = (vhost.connect_with("a", options), vhost.connect_with("b", options));
    introduce(&mut a, &mut b);
    let (mut sent, mut arrived, mut next) = (0, 0, 0);
    let mut take = |b: &mut vhost_front::Port, arrived: &mut u32| {
        let (n, kick) = b.rx.poll(u16::MAX, |frame| {
            assert_eq!(frame.len(), 60);
            let number = (frame.word(16) >> 32) as u32;
            assert!(number >= next, "frame {number} after {next}");
            next = number + 1;
        });
        if kick {
            b.kick(0);
        }
        *arrived += u32::from(n);
    };
    while sent < FRAMES {
        let mut f = frame(2, 1, 60, 0);
        f[20..24].copy_from_slice(&sent.to_le_bytes());
        if a.send(&f) {
            sent += 1;
        }
        take(&mut b, &mut arrived);
    }
    until("the last frame to be taken", || {
        a.tx.reclaim();
        take(&mut b, &mut arrived);
        a.tx.taken() == a.tx.offered()
    });
    // The last frame is in the receive queue already, because the switch gave it there before it returned the sender's
    // buffer.
    take(&mut b, &mut arrived);
    let ended = vhost.end();
    assert_eq!(ended.port(0, "tx_packets"), u64::from(FRAMES) + 1);
    assert_eq!(ended.port(1, "rx_packets"), u64::from(arrived) + 1);
    assert_eq!(u64::from(FRAMES), u64::from(arrived) + ended.port(1, "rx_no_buffer"));
}

#[test]
fn a_front_end_that_goes_and_comes_back_is_served_again() {
    let vhost = Vhost::start(3);
    let (mut b, mut c) = (vhost.connect("b"), vhost.connect("c"));
    // The switch learns both addresses, so that it floods nothing later.
    passes(&mut b, &mut c, &frame(3, 2, 60, 0));
    passes(&mut c, &mut b, &frame(2, 3, 60, 0));
    for round in 0..5 {
        let mut a = vhost.connect("a");
        passes(&mut a, &mut b, &frame(2, 1, 100, round));
        passes(&mut b, &mut a, &frame(1, 2, 100, round));
        drop(a);
        vhost.says("a: the front-end has gone");
        passes(&mut b, &mut c, &frame(3, 2, 1000, round));
        passes(&mut c, &mut b, &frame(2, 3, 1000, round));
    }
    let ended = vhost.end();
    assert_eq!(ended.port(0, "faults") + ended.port(1, "faults"), 0);
}

#[test]
fn a_queue_that_is_stopped_goes_on_from_where_it_was() {
    forms().iter().for_each(stop_and_resume);
}

fn stop_and_resume(options: &Options) {
    let vhost = Vhost::start(2);
    // Few descriptors, so that the ring wraps several times.
    let options = &Options { size: 8, ..*options };
    let (mut a, mut b) = (vhost.connect_with("a", options), vhost.connect_with("b", options));
    introduce(&mut a, &mut b);
    for round in 1..20 {
        let base = a.stop(1).unwrap();
        assert_eq!(base, a.tx.base(), "everything that was offered had been sent");
        let f = frame(2, 1, 77, round);
        assert!(a.send(&f));
        assert!(b.rx.receive().is_none(), "a stopped queue is not served");
        a.resume(1, base).unwrap();
        let mut arrived = None;
        until("the frame", || {
            arrived = b.rx.receive();
            arrived.is_some()
        });
        assert_eq!(arrived, Some(f));
        passes(&mut b, &mut a, &frame(1, 2, 78, round));
    }
    assert_eq!(vhost.end().port(0, "faults"), 0);
}

#[test]
fn an_interrupt_comes_if_it_is_wanted_and_not_otherwise() {
    let with = forms().map(|options| options.features);
    for features in [with, with.map(|all| all & !features::EVENT_IDX)].concat() {
        let vhost = Vhost::start(2);
        let options = Options { features, ..Options::default() };
        let (mut a, mut b) = (vhost.connect_with("a", &options), vhost.connect_with("b", &options));
        introduce(&mut a, &mut b);
        // Takes the signal that each new eventfd gets as a precaution.
        let _ = b.interrupts(0);
        for tag in 0..100 {
            passes(&mut a, &mut b, &frame(2, 1, 60, tag));
        }
        // The engine checks whether an interrupt is wanted after it has published a frame, and takes the next frame
        // after that. So once this frame is back, it has finished its checks for the received frames.
        passes(&mut b, &mut a, &frame(1, 2, 60, 0));
        assert_eq!(b.interrupts(0), 0);
        for tag in 0..100 {
            b.rx.want_interrupts(true);
            assert!(a.send(&frame(2, 1, 60, tag)));
            until("an interrupt", || b.interrupts(0) != 0);
            assert!(b.rx.receive().is_some(), "an interrupt before its frame");
            b.rx.want_interrupts(false);
        }
        let ended = vhost.end();
        assert_eq!(ended.port(1, "interrupts"), 100);
    }
}

#[test]
fn notified_and_adaptive_queues_are_served_and_not_polled() {
    for requests in ["notify", "adaptive"] {
        let vhost = Vhost::start_with(2, &format!("requests = \"{requests}\""));
        let (mut a, mut b) = (vhost.connect("a"), vhost.connect("b"));
        introduce(&mut a, &mut b);
        for tag in 0..1000 {
            passes(&mut a, &mut b, &frame(2, 1, 200, tag));
        }
        let ended = vhost.end();
        assert_eq!(ended.port(1, "rx_packets"), 1001);
        assert!(ended.port(0, "arms") > 0, "{requests}: no queue was left to its driver's notifications");
    }
}

#[test]
fn rules_in_the_file_are_asked_and_counted() {
    let stages = "[[stage]]\nname = 'known'\naction = 'allow'\nether_type = 0x88b5\n\
                  [[stage]]\nname = 'rest'\naction = 'deny'\n";
    let vhost = Vhost::start_as(2, stages, "vlan = 7\ntx = ['known', 'rest']");
    let (mut a, mut b) = (vhost.connect("a"), vhost.connect("b"));
    introduce(&mut a, &mut b);
    let mut unknown = frame(2, 1, 60, 1);
    unknown[13] = 0xb6;
    assert!(a.send(&unknown));
    for tag in 0..100 {
        passes(&mut a, &mut b, &frame(2, 1, 60, tag));
    }
    let ended = vhost.end();
    let counted = |stage: usize, name: &str| ended.counters["ports"][0]["stages"][stage][name].as_u64();
    assert_eq!((counted(0, "frames"), counted(1, "dropped")), (Some(101), Some(1)));
    assert_eq!((ended.port(0, "tx_denied"), ended.port(1, "rx_packets")), (1, 101));
}

#[test]
fn mistakes_on_the_command_line_are_told_by_exit_code_2_and_help_by_0() {
    assert_eq!(run(&["--help"]).0, Some(0));
    for (arguments, what) in [
        (&[][..], "there is no port"),
        (&["--socket"], "--socket"),
        (&["--socket", "x", "--nonsense"], "--nonsense"),
        (&["--config", "/nonexistent"], "cannot read /nonexistent"),
        (&["--socket", "x", "--socket", "x"], "given twice"),
    ] {
        let (code, words) = run(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {words}");
        assert!(words.contains(what), "{arguments:?}: {words}");
    }
}

#[test]
fn a_socket_that_is_served_is_left_alone_and_a_stale_one_replaced() {
    let vhost = Vhost::start(1);
    let socket = vhost.socket("a");
    let (code, words) = run(&["--socket", text(&socket)]);
    assert_eq!(code, Some(3), "{words}");
    assert!(words.contains("is served by another process"), "{words}");
    let (code, words) = run(&["--socket", "/nonexistent/a"]);
    assert_eq!(code, Some(3), "{words}");
    assert!(vhost.end().status.success());

    let folder = std::env::temp_dir().join(format!("sidecore-vhost-stale-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    drop(std::os::unix::net::UnixListener::bind(folder.join("a")).unwrap());
    let vhost = Vhost::start_with(1, &format!("[[port]]\nsocket = \"{}\"", text(&folder.join("a"))));
    assert!(vhost_front::Port::connect(&folder.join("a"), &Options::default()).is_ok());
    drop(vhost);
    fs::remove_dir_all(folder).unwrap();
}
