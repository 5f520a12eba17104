//! How an engine learns of a queue's requests: by polling in each turn, by the driver's notifications, or by either,
//! depending on the load.
//!
//! ```text
//!              kick                          kick, the rate reached
//!   Armed ──────────────▶ Draining      Armed ─────────────────────▶ Polled
//!     ▲  a visit finds        │           ▲    quiet for long enough    │
//!     └── nothing: arm, ──────┘           └──── arm, read again ────────┘
//!         read again
//! ```
//!
//! An armed queue is not in the visited set and costs a turn nothing. In the other states the driver is asked not to
//! notify. The engine itself never sleeps.

/// How an engine learns of a device's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requests {
    /// It polls each queue in each turn. No request costs an exit.
    #[default]
    Poll,
    /// The driver notifies. Each batch costs an exit. A queue without traffic costs nothing.
    Notify,
    /// A queue is polled while it would cause many notifications.
    Adaptive(Rates),
}

/// How the engine serves a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceMode {
    /// The engine never visits the queue. It holds buffers to fill, not work.
    Unserved,
    /// Its requests are work. The device's [`Requests`] apply.
    AsConfigured,
    /// Its requests are work, but rare. The driver always notifies.
    Notified,
}

/// When an adaptive queue changes its state. Two separate conditions give hysteresis: a queue just below the rate is
/// never polled, and a polled queue must become silent before it is armed. Times are ticks of the engine's clock, such
/// as TSC cycles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Notifications within `window` that make a queue a polled one.
    pub kicks: u32,
    /// Length in ticks of the window in which notifications are counted.
    pub window: u64,
    /// Ticks without a request after which a polled queue is armed again.
    pub quiet: u64,
}

/// A queue's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not in use, or it holds buffers rather than work.
    Unused,
    /// The driver will notify.
    Armed,
    /// Notified. It is visited until it is empty.
    Draining,
    /// Notified, and looked at after notifications only. The caller decides when it is armed.
    Kicked,
    /// Visited in each turn. `busy` is when a visit last found something.
    Polled { busy: u64 },
}

/// The state of one queue, and its rate of notifications.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueTraffic {
    state: State,
    /// Notifications in the current window.
    kicks: u32,
    /// When the current window started.
    window: u64,
}

/// The effect of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KickEffect {
    /// None: the queue is visited anyway, or never.
    Nothing,
    /// Disarm the queue and visit it until it is empty.
    Drain,
    /// Disarm the queue and poll it from now on.
    Poll,
}

impl QueueTraffic {
    /// A queue that is not visited.
    pub(crate) const UNUSED: Self = Self { state: State::Unused, kicks: 0, window: 0 };

    /// A queue that is looked at after its driver's notifications only. It is taken into use without a look at it.
    pub(crate) const KICKS_ONLY: Self = Self { state: State::Armed, kicks: 0, window: 0 };

    /// A queue that is taken into use. Its first visit decides whether it is armed.
    pub(crate) const fn new(requests: Requests, now: u64) -> Self {
        let state = match requests {
            Requests::Poll => State::Polled { busy: now },
            Requests::Notify | Requests::Adaptive(_) => State::Draining,
        };
        Self { state, kicks: 0, window: now }
    }

    /// Handles a notification by the driver.
    pub(crate) fn on_kick(&mut self, requests: Requests, now: u64) -> KickEffect {
        if self.state != State::Armed {
            return KickEffect::Nothing;
        }
        if let Requests::Adaptive(rates) = requests {
            if self.kicks == 0 || now.wrapping_sub(self.window) > rates.window {
                (self.kicks, self.window) = (0, now);
            }
            self.kicks = self.kicks.saturating_add(1);
            if self.kicks >= rates.kicks {
                (self.state, self.kicks) = (State::Polled { busy: now }, 0);
                return KickEffect::Poll;
            }
        }
        self.state = State::Draining;
        KickEffect::Drain
    }

    /// Handles a visit that took `served` requests. Returns true if the caller must arm the queue and read it again. If
    /// it is still empty, the caller calls [`QueueTraffic::armed`].
    pub(crate) fn on_visit(&mut self, requests: Requests, served: u32, now: u64) -> bool {
        match (&mut self.state, requests) {
            (State::Draining, _) => served == 0,
            (State::Kicked, _) => true,
            (State::Polled { busy }, Requests::Adaptive(rates)) => {
                if served != 0 {
                    *busy = now;
                }
                now.wrapping_sub(*busy) >= rates.quiet
            }
            _ => false,
        }
    }

    /// Notes that a notified queue is looked at after notifications only.
    pub(crate) fn kicked(&mut self) {
        self.state = State::Kicked;
    }

    /// Notes that the queue is armed and was still empty.
    pub(crate) fn armed(&mut self) {
        self.state = State::Armed;
    }
}

#[cfg(test)]
mod tests {
    use super::{KickEffect, QueueTraffic, Rates, Requests};

    const RATES: Rates = Rates { kicks: 4, window: 100, quiet: 250 };
    const ADAPTIVE: Requests = Requests::Adaptive(RATES);

    fn armed(requests: Requests) -> QueueTraffic {
        let mut w = QueueTraffic::new(requests, 0);
        assert!(w.on_visit(requests, 0, 0), "the first visit finds nothing");
        w.armed();
        w
    }

    /// A notification, the visit that it leads to, and one that finds nothing.
    fn kick(w: &mut QueueTraffic, requests: Requests, now: u64) -> KickEffect {
        let kicked = w.on_kick(requests, now);
        if kicked == KickEffect::Drain {
            assert!(!w.on_visit(requests, 1, now));
            assert!(w.on_visit(requests, 0, now));
            w.armed();
        }
        kicked
    }

    #[test]
    fn a_polled_queue_is_never_armed_and_a_notified_one_never_polled() {
        let mut w = QueueTraffic::new(Requests::Poll, 0);
        assert!((0..1000).all(|now| !w.on_visit(Requests::Poll, 0, now * 1_000_000)));
        assert_eq!(
            w.on_kick(Requests::Poll, 5),
            KickEffect::Nothing,
            "a driver that notifies all the same changes nothing"
        );
        let mut w = armed(Requests::Notify);
        assert!((0..1000).all(|now| kick(&mut w, Requests::Notify, now) == KickEffect::Drain));
    }

    #[test]
    fn adaptive_polls_from_the_rate_on_and_not_below() {
        // Three in any window, for ever: the fourth is always later than the window is long.
        let mut w = armed(ADAPTIVE);
        assert!((0..1000).all(|i| kick(&mut w, ADAPTIVE, i * 34) == KickEffect::Drain));
        // Four just within.
        let mut w = armed(ADAPTIVE);
        let led_to: Vec<_> = (0..4).map(|i| kick(&mut w, ADAPTIVE, 1000 + i * 33)).collect();
        assert_eq!(led_to, [KickEffect::Drain, KickEffect::Drain, KickEffect::Drain, KickEffect::Poll]);
    }

    #[test]
    fn adaptive_arms_again_only_after_silence_and_then_starts_from_nothing() {
        let mut w = armed(ADAPTIVE);
        assert!((0..3).all(|_| kick(&mut w, ADAPTIVE, 10) == KickEffect::Drain));
        assert_eq!(kick(&mut w, ADAPTIVE, 10), KickEffect::Poll);
        assert!(!w.on_visit(ADAPTIVE, 0, 259));
        assert!(!w.on_visit(ADAPTIVE, 1, 259), "a request begins the silence anew");
        assert!(!w.on_visit(ADAPTIVE, 0, 508));
        assert!(w.on_visit(ADAPTIVE, 0, 509));
        w.armed();
        let led_to: Vec<_> = (0..4).map(|_| kick(&mut w, ADAPTIVE, 510)).collect();
        assert_eq!(
            led_to,
            [KickEffect::Drain, KickEffect::Drain, KickEffect::Drain, KickEffect::Poll],
            "the whole rate once more"
        );
    }

    #[test]
    fn what_arming_finds_keeps_the_queue_in_the_set() {
        let mut w = armed(Requests::Notify);
        assert_eq!(w.on_kick(Requests::Notify, 1), KickEffect::Drain);
        assert!(w.on_visit(Requests::Notify, 0, 2));
        // Not told that it is armed: the look found something.
        assert_eq!(w.on_kick(Requests::Notify, 3), KickEffect::Nothing);
        assert!(!w.on_visit(Requests::Notify, 1, 3));
        assert!(w.on_visit(Requests::Notify, 0, 4));
    }

    #[test]
    fn a_queue_not_in_use_is_left_alone() {
        let mut w = QueueTraffic::UNUSED;
        assert_eq!(w.on_kick(ADAPTIVE, 1), KickEffect::Nothing);
        assert!(!w.on_visit(Requests::Notify, 0, 1));
    }
}
