//! The engines' limits, each with its reason.

use crate::arch::time;
use config::Scheduling;
use engine::{
    requests::{Rates, Requests},
    schedule::{Chosen, Fine, Limits, PerDevice},
};
use entropy::limit::Limit;

/// Requests of a queue in one visit with `scheduling = "per-device"`. The baseline has no other limit.
const PER_DEVICE_REQUESTS: u32 = 64;
/// Most requests taken in one visit. Larger batches do not get cheaper, and make the others wait.
const VISIT_REQUESTS: u32 = 256;
/// Most bytes taken in one visit.
const VISIT_BYTES: u64 = 256 << 10;
/// Nanoseconds of one visit, for the guest with the largest weight. A ring of 256 short frames lasts 9 us at 36 ns a
/// frame. The visit must end before that; otherwise the queue is empty before it has used its share.
const VISIT_NANOSECONDS: u64 = 4000;
/// A queue with fewer waiting requests than this is short. After this many requests of a visit, the engine may
/// interrupt the visit for a short queue. A longer queue is a stream, not a request-response client.
const LEAST_REQUESTS: u32 = 16;
/// Nanoseconds without a new request after which a short queue is served early, even if its last visit was long. A
/// guest that streams offers more in that time.
const STALL_NANOSECONDS: u64 = 500;
/// So many notifications within [`WINDOW_MILLISECONDS`] start the polling of a queue with `requests = "adaptive"`. The
/// number is small: an exit costs the guest 1 to 2 us, and polling a queue costs the engine only some tens of
/// nanoseconds a turn.
const KICKS: u32 = 10;
/// Milliseconds in which these notifications are counted.
const WINDOW_MILLISECONDS: u64 = 20;
/// Milliseconds without a request after which an adaptive queue is armed again. The time is long because the engine has
/// no other use for its core.
const QUIET_MILLISECONDS: u64 = 50;
/// Microseconds above which a turn counts as a long one. In a long turn a guest's timer that the engine watches may
/// fire late. If its deadline has passed by this much, the vCPU's core handles the timer itself
/// (`machine/src/machine/virtualized.rs`).
const LONG_TURN_MICROSECONDS: u64 = 500;
/// Random bytes that a guest may get in a second. With RDSEED, 64 bytes take about 4 us, so a guest can use 0.4 % of the
/// engine's time. Linux needs 32 bytes to start its own generator.
const ENTROPY_BYTES: u64 = 64 << 10;
/// Random bytes that a guest may get at once after a pause.
const ENTROPY_BURST: u64 = 4 << 10;
/// Seconds after which the switch forgets a silent address (IEEE 802.1Q, 8.8.3).
const ADDRESS_AGE_SECONDS: u64 = 300;

fn nanoseconds(n: u64) -> u64 {
    (time::rates().tsc / 1_000_000).saturating_mul(n) / 1000
}

/// The schedule that the configuration names.
pub fn schedule(scheduling: Scheduling) -> Chosen {
    match scheduling {
        Scheduling::Fine => Chosen::Fine(Fine::new(Limits {
            requests: VISIT_REQUESTS,
            bytes: VISIT_BYTES,
            quantum: nanoseconds(VISIT_NANOSECONDS),
            least: LEAST_REQUESTS,
            stall: nanoseconds(STALL_NANOSECONDS),
        })),
        Scheduling::PerDevice => Chosen::PerDevice(PerDevice::new(PER_DEVICE_REQUESTS)),
    }
}

/// Converts the configured way to learn of requests. Times become ticks of this machine's TSC.
pub fn requests(requests: config::Requests) -> Requests {
    let milliseconds = |n| (time::rates().tsc / 1000).saturating_mul(n);
    match requests {
        config::Requests::Poll => Requests::Poll,
        config::Requests::Notify => Requests::Notify,
        config::Requests::Adaptive => Requests::Adaptive(Rates {
            kicks: KICKS,
            window: milliseconds(WINDOW_MILLISECONDS),
            quiet: milliseconds(QUIET_MILLISECONDS),
        }),
    }
}

/// The rate of random bytes of each guest.
pub fn entropy() -> Limit {
    Limit { ticks_per_byte: time::rates().tsc / ENTROPY_BYTES, burst: ENTROPY_BURST }
}

/// Ticks above which a turn counts as a long one.
pub fn long_turn() -> u64 {
    nanoseconds(1000 * LONG_TURN_MICROSECONDS)
}

/// Ticks after which the switch forgets a silent address.
pub fn address_age() -> u64 {
    time::rates().tsc.saturating_mul(ADDRESS_AGE_SECONDS)
}
