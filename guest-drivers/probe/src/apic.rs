//! The local APIC in x2APIC mode (SDM vol. 3A ch. 11; 10 in editions before 2022).

use bare::cpu::{rdmsr, wrmsr};
use bare::trap::SPURIOUS;

/// Numbers of its MSRs.
pub mod msr {
    pub const BASE: u32 = 0x1b;
    pub const TSC_DEADLINE: u32 = 0x6e0;
    pub const ID: u32 = 0x802;
    pub const VERSION: u32 = 0x803;
    pub const TPR: u32 = 0x808;
    pub const PPR: u32 = 0x80a;
    pub const LDR: u32 = 0x80d;
    pub const SVR: u32 = 0x80f;
    pub const ISR: u32 = 0x810;
    pub const TMR: u32 = 0x818;
    pub const IRR: u32 = 0x820;
    pub const ICR: u32 = 0x830;
    pub const LVT_TIMER: u32 = 0x832;
    pub const LVT_LINT0: u32 = 0x835;
    pub const LVT_ERROR: u32 = 0x837;
    pub const INITIAL_COUNT: u32 = 0x838;
    pub const CURRENT_COUNT: u32 = 0x839;
    pub const DIVIDE: u32 = 0x83e;
    pub const SELF_IPI: u32 = 0x83f;
}

/// SVR: the APIC is enabled.
const ENABLED: u64 = 1 << 8;
/// LVT: the entry is masked.
pub const MASKED: u64 = 1 << 16;
/// Timer mode, in its LVT entry: one shot.
pub const ONE_SHOT: u64 = 0 << 17;
/// Timer mode: periodic.
pub const PERIODIC: u64 = 1 << 17;
/// Timer mode: at a value of the TSC.
pub const TSC_DEADLINE: u64 = 2 << 17;
/// Divide configuration: by one.
const BY_ONE: u64 = 0b1011;

/// Vector of [`watchdog`].
pub const WATCHDOG: u8 = 0xe1;

/// Enables the APIC, with its timer off and all priorities accepted.
pub fn init() {
    wrmsr(msr::SVR, ENABLED | u64::from(SPURIOUS));
    wrmsr(msr::TPR, 0);
    stop_timer();
    wrmsr(msr::DIVIDE, BY_ONE);
}

/// x2APIC ID.
pub fn id() -> u64 {
    rdmsr(msr::ID)
}

/// Sends an interrupt to this CPU.
pub fn self_ipi(vector: u8) {
    wrmsr(msr::SELF_IPI, vector.into());
}

fn bit(register: u32, vector: u8) -> bool {
    rdmsr(register + u32::from(vector / 32)) & 1 << (vector % 32) != 0
}

/// Whether a vector is requested.
pub fn requested(vector: u8) -> bool {
    bit(msr::IRR, vector)
}

/// Whether a vector is in service.
pub fn in_service(vector: u8) -> bool {
    bit(msr::ISR, vector)
}

/// The number of vectors that are set in `register`: ISR (in service), IRR (requested) or TMR (level-triggered).
pub fn marked(register: u32) -> u32 {
    (0..8).map(|index| (rdmsr(register + index) as u32).count_ones()).sum()
}

/// Masks the timer and stops its count.
pub fn stop_timer() {
    // The timer is masked, and in one-shot mode, because the count has an effect in that mode.
    wrmsr(msr::LVT_TIMER, MASKED | ONE_SHOT | u64::from(WATCHDOG));
    wrmsr(msr::INITIAL_COUNT, 0);
}

/// Starts the timer.
pub fn start_timer(mode: u64, vector: u8, count: u64) {
    wrmsr(msr::LVT_TIMER, mode | u64::from(vector));
    wrmsr(msr::INITIAL_COUNT, count);
}

/// Requests an interrupt in 0.9 seconds, so that a HLT ends even if nothing else ends it. The timer has 32 bits and
/// counts below 2^32 Hz, so it cannot do much more.
pub fn watchdog() {
    start_timer(ONE_SHOT, WATCHDOG, crate::time::us_in_timer(900_000));
}
