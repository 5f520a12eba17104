//! How an engine learns of a queue's requests: by looking each turn, by the driver's notifications, or by whichever
//! suits the queue's load.
//!
//! ```text
//!              kick                          kick, the rate reached
//!   Armed ──────────────▶ Draining      Armed ─────────────────────▶ Polled
//!     ▲  a visit finds        │           ▲    quiet for long enough    │
//!     └── nothing: arm, ──────┘           └──── arm, look again ────────┘
//!         look again
//! ```
//!
//! An armed queue is out of the set that is visited: it costs a turn nothing. In the other states the driver is asked
//! not to notify. The engine itself never sleeps, whatever its queues do.

/// How an engine learns of the requests of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requests {
    /// It looks at each queue in each turn. No request costs an exit.
    #[default]
    Poll,
    /// The driver notifies it, which costs an exit for each batch. Queues without traffic cost no look.
    Notify,
    /// A queue is polled while its notifications would be many.
    Adaptive(Rates),
}

/// When an adaptive queue changes over. The two conditions are apart, so that a queue does not change to and fro: one
/// that keeps just below the rate is never polled, and one that is polled has to fall silent. Times are ticks of the
/// clock that the engine's turns are given, such as TSC cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// So many notifications
    pub kicks: u32,
    /// within this time make a queue a polled one;
    pub window: u64,
    /// and so long without a request makes it an armed one again.
    pub quiet: u64,
}

/// Where a queue stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not in use, or holding buffers rather than work.
    Unused,
    /// The driver will notify.
    Armed,
    /// Notified; visited until it is found empty.
    Draining,
    /// Looked at in each turn. When something was last found there.
    Polled { busy: u64 },
}

/// What is known of one queue's traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    state: State,
    /// Notifications in the present window.
    kicks: u32,
    /// When that began.
    window: u64,
}

/// What a notification has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kicked {
    /// Nothing: the queue is visited anyway, or never.
    Nothing,
    /// The queue is to be disarmed and visited until it is empty.
    Drain,
    /// The queue is to be disarmed and polled from now on.
    Poll,
}

impl Watch {
    /// A queue that is not visited.
    pub(crate) const UNUSED: Self = Self { state: State::Unused, kicks: 0, window: 0 };

    /// A queue that is taken into use. Its first visit decides whether it is armed.
    pub(crate) const fn new(requests: Requests, now: u64) -> Self {
        let state = match requests {
            Requests::Poll => State::Polled { busy: now },
            Requests::Notify | Requests::Adaptive(_) => State::Draining,
        };
        Self { state, kicks: 0, window: now }
    }

    /// The driver has notified.
    pub(crate) fn kicked(&mut self, requests: Requests, now: u64) -> Kicked {
        if self.state != State::Armed {
            return Kicked::Nothing;
        }
        if let Requests::Adaptive(rates) = requests {
            if self.kicks == 0 || now.wrapping_sub(self.window) > rates.window {
                (self.kicks, self.window) = (0, now);
            }
            self.kicks += 1;
            if self.kicks >= rates.kicks {
                (self.state, self.kicks) = (State::Polled { busy: now }, 0);
                return Kicked::Poll;
            }
        }
        self.state = State::Draining;
        Kicked::Drain
    }

    /// A visit took `served` requests. True: the queue is to be armed and looked at once more, and
    /// [`Watch::armed`] told if there was nothing.
    pub(crate) fn visited(&mut self, requests: Requests, served: u32, now: u64) -> bool {
        match (&mut self.state, requests) {
            (State::Draining, _) => served == 0,
            (State::Polled { busy }, Requests::Adaptive(rates)) => {
                if served != 0 {
                    *busy = now;
                }
                now.wrapping_sub(*busy) >= rates.quiet
            }
            _ => false,
        }
    }

    /// The queue is armed, and nothing came meanwhile.
    pub(crate) fn armed(&mut self) {
        self.state = State::Armed;
    }
}

#[cfg(test)]
mod tests {
    use super::{Kicked, Rates, Requests, Watch};

    const RATES: Rates = Rates { kicks: 4, window: 100, quiet: 250 };
    const ADAPTIVE: Requests = Requests::Adaptive(RATES);

    fn armed(requests: Requests) -> Watch {
        let mut w = Watch::new(requests, 0);
        assert!(w.visited(requests, 0, 0), "the first visit finds nothing");
        w.armed();
        w
    }

    /// A notification, the visit that it leads to, and one that finds nothing.
    fn kick(w: &mut Watch, requests: Requests, now: u64) -> Kicked {
        let kicked = w.kicked(requests, now);
        if kicked == Kicked::Drain {
            assert!(!w.visited(requests, 1, now));
            assert!(w.visited(requests, 0, now));
            w.armed();
        }
        kicked
    }

    #[test]
    fn a_polled_queue_is_never_armed_and_a_notified_one_never_polled() {
        let mut w = Watch::new(Requests::Poll, 0);
        assert!((0..1000).all(|now| !w.visited(Requests::Poll, 0, now * 1_000_000)));
        assert_eq!(w.kicked(Requests::Poll, 5), Kicked::Nothing, "a driver that notifies all the same changes nothing");
        let mut w = armed(Requests::Notify);
        assert!((0..1000).all(|now| kick(&mut w, Requests::Notify, now) == Kicked::Drain));
    }

    #[test]
    fn adaptive_polls_from_the_rate_on_and_not_below() {
        // Three in any window, for ever: the fourth is always later than the window is long.
        let mut w = armed(ADAPTIVE);
        assert!((0..1000).all(|i| kick(&mut w, ADAPTIVE, i * 34) == Kicked::Drain));
        // Four just within.
        let mut w = armed(ADAPTIVE);
        let led_to: Vec<_> = (0..4).map(|i| kick(&mut w, ADAPTIVE, 1000 + i * 33)).collect();
        assert_eq!(led_to, [Kicked::Drain, Kicked::Drain, Kicked::Drain, Kicked::Poll]);
    }

    #[test]
    fn adaptive_arms_again_only_after_silence_and_then_starts_from_nothing() {
        let mut w = armed(ADAPTIVE);
        assert!((0..3).all(|_| kick(&mut w, ADAPTIVE, 10) == Kicked::Drain));
        assert_eq!(kick(&mut w, ADAPTIVE, 10), Kicked::Poll);
        assert!(!w.visited(ADAPTIVE, 0, 259));
        assert!(!w.visited(ADAPTIVE, 1, 259), "a request begins the silence anew");
        assert!(!w.visited(ADAPTIVE, 0, 508));
        assert!(w.visited(ADAPTIVE, 0, 509));
        w.armed();
        let led_to: Vec<_> = (0..4).map(|_| kick(&mut w, ADAPTIVE, 510)).collect();
        assert_eq!(led_to, [Kicked::Drain, Kicked::Drain, Kicked::Drain, Kicked::Poll], "the whole rate once more");
    }

    #[test]
    fn what_arming_finds_keeps_the_queue_in_the_set() {
        let mut w = armed(Requests::Notify);
        assert_eq!(w.kicked(Requests::Notify, 1), Kicked::Drain);
        assert!(w.visited(Requests::Notify, 0, 2));
        // Not told that it is armed: the look found something.
        assert_eq!(w.kicked(Requests::Notify, 3), Kicked::Nothing);
        assert!(!w.visited(Requests::Notify, 1, 3));
        assert!(w.visited(Requests::Notify, 0, 4));
    }

    #[test]
    fn a_queue_not_in_use_is_left_alone() {
        let mut w = Watch::UNUSED;
        assert_eq!(w.kicked(ADAPTIVE, 1), Kicked::Nothing);
        assert!(!w.visited(Requests::Notify, 0, 1));
    }
}
