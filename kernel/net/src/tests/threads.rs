//! Sender, engine and receiver each on a thread of its own, as they will be on cores of their own.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{ALL, PLAIN};
use crate::backend::Net;
use crate::features::Features;
use crate::port::Port;
use crate::testing::Guest;
use crate::uplink::NoNic;
use engine::control::{Attachment, Command, Control, Reply};
use engine::deliver::Deliver;
use engine::engine::{Engine, run};
use engine::observe::Unobserved;
use engine::requests::{Rates, Requests};
use engine::schedule::{Chosen, Fine, Limits, PerDevice};
use virtio::msix::Interrupt;

const FRAMES: u32 = if cfg!(miri) { 60 } else { 4_000 };
const IN_FLIGHT: u32 = 50;

/// The receiver's interrupt line.
struct Line(AtomicBool);

impl Deliver for Line {
    fn deliver(&self, device: usize, _interrupt: Interrupt) -> bool {
        if device == 1 {
            self.0.store(true, Ordering::SeqCst);
        }
        true
    }
}

#[test]
fn no_frame_no_interrupt_and_no_kick_is_lost_between_cores() {
    // Few ticks (nanoseconds here), so that an adaptive queue goes to and fro all the time.
    let adaptive = Requests::Adaptive(Rates { kicks: 3, window: 1_000_000, quiet: 20_000 });
    for requests in [Requests::Poll, Requests::Notify, adaptive] {
        for features in [ALL, PLAIN] {
            let limits = Limits { requests: 64, bytes: 1 << 20, quantum: 10_000, least: 8, stall: 1_000 };
            converse(requests, features, Chosen::Fine(Fine::new(limits)));
            converse(requests, features, Chosen::PerDevice(PerDevice::new(64)));
        }
    }
}

fn converse(requests: Requests, features: Features, schedule: Chosen) {
    let control: &Control<Port> = Box::leak(Box::default());
    let line: &Line = Box::leak(Box::new(Line(AtomicBool::new(false))));
    let mut engine = Box::new(Engine::new(control, Net::<NoNic>::new(1, 1 << 40), schedule, line));
    let (mut a, mut b) = (Guest::new(1, features, 256, 1500), Guest::new(2, features, 256, 1500));
    for (port, guest) in [&a, &b].into_iter().enumerate() {
        control.submit(Command::Attach(Attachment { requests, ..guest.attachment(port) })).unwrap();
        engine.turn(0);
        assert_eq!(control.reply(), Some(Reply::Attached));
    }
    b.post(128, &[2048]);
    let received = AtomicU32::new(0);
    let start = Instant::now();
    let late = || start.elapsed() > Duration::from_secs(60);
    std::thread::scope(|s| {
        s.spawn(|| run(&mut engine, &|| start.elapsed().as_nanos() as u64, &Unobserved));
        s.spawn(|| {
            let template = a.frame([2, 0, 0, 0, 0, 2], 100, 0);
            for n in 0..FRAMES {
                while n - received.load(Ordering::Acquire) >= IN_FLIGHT {
                    assert!(!late(), "the receiver got {} of {n}", received.load(Ordering::Acquire));
                    std::thread::yield_now();
                }
                let mut frame = template.clone();
                frame[14..18].copy_from_slice(&n.to_le_bytes());
                assert!(a.send(&frame, &[]));
                if a.tx.kick_prepare() {
                    a.shared.kick(1);
                }
            }
        });
        let mut n = 0;
        while n < FRAMES {
            // As Linux does: poll until there is no more, ask for an interrupt, look again, sleep until it comes.
            b.rx.disable_interrupts();
            while let Some(frame) = b.receive() {
                assert_eq!(frame[14..18], n.to_le_bytes(), "in order, none lost");
                n += 1;
                b.post(1, &[2048]);
                received.store(n, Ordering::Release);
            }
            line.0.store(false, Ordering::SeqCst);
            b.rx.enable_interrupts();
            std::sync::atomic::fence(Ordering::SeqCst);
            let more = b.rx.has_used();
            while n < FRAMES && !more && !line.0.load(Ordering::SeqCst) {
                std::thread::yield_now();
                assert!(!late(), "no interrupt after frame {n}");
            }
        }
        control.stop();
    });
    assert_eq!(b.counters().frames.rx_packets.get(), u64::from(FRAMES));
    let (kicks, arms) = (a.shared.counters().kicks.get(), a.shared.counters().arms.get());
    match requests {
        Requests::Poll => assert_eq!((kicks, arms), (0, 0)),
        _ => assert!(kicks != 0 && arms != 0, "{kicks} kicks, armed {arms} times"),
    }
    assert_eq!(a.shared.counters().faults.get() + b.shared.counters().faults.get(), 0);
}
