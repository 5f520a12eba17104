//! Time: the TSC, its rate, and the time of day.

#![allow(unsafe_code, reason = "reads the TSC")]

use spin::Once;
use x86_64::registers::model_specific::Msr;

/// Rates measured at boot.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// TSC ticks per second.
    pub tsc: u64,
    /// APIC timer ticks per second.
    pub apic: u64,
    /// Whether the local APIC has TSC-deadline mode.
    pub deadline: bool,
    /// How the TSC's rate was found, for the report.
    pub source: &'static str,
}

static RATES: Once<Rates> = Once::new();

/// Reads the time-stamp counter.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: RDTSC is not restricted in ring 0.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Reads the time-stamp counter, after everything that comes before it.
pub fn ordered_tsc() -> u64 {
    // SAFETY: LFENCE is not restricted in ring 0. It waits for all earlier instructions (SDM vol. 2B, RDTSC).
    unsafe { core::arch::x86_64::_mm_lfence() };
    tsc()
}

/// IA32_TSC_ADJUST (SDM vol. 3B 18.17.3).
const TSC_ADJUST: Msr = Msr::new(0x3b);

/// Adds to this core's TSC, modulo 2^64. The CPU has IA32_TSC_ADJUST.
pub fn add_to_tsc(ticks: u64) {
    let mut register = TSC_ADJUST;
    // SAFETY: the register is there, and adds to the TSC what is added to it. Nobody on this core has read the TSC for a purpose yet.
    unsafe { register.write(register.read().wrapping_add(ticks)) };
}

/// Stores the rates. Only the first call has an effect.
pub fn set_rates(rates: Rates) -> &'static Rates {
    RATES.call_once(|| rates)
}

/// Returns the rates, if [`set_rates`] has run.
pub fn known_rates() -> Option<&'static Rates> {
    RATES.get()
}

/// Returns the rates. [`set_rates`] must have run.
pub fn rates() -> &'static Rates {
    RATES.get().expect("timer::calibrate runs before anything asks for a rate")
}

/// Returns the TSC ticks of `n` microseconds.
pub fn micros(n: u64) -> u64 {
    (rates().tsc / 1_000_000).saturating_mul(n)
}

/// Returns the microseconds since the TSC began.
pub fn now_micros() -> u64 {
    tsc().checked_div(micros(1)).unwrap_or_default()
}

/// Returns the milliseconds since the TSC began. They never decrease.
pub fn now_millis() -> u64 {
    tsc().checked_div(rates().tsc / 1000).unwrap_or_default()
}

/// Waits for `n` microseconds by the TSC.
pub fn delay_micros(n: u64) {
    let end = tsc().saturating_add(micros(n));
    while tsc() < end {
        core::hint::spin_loop();
    }
}

static BOOT: Once<(u64, u64)> = Once::new();

/// Reads the time of day once. [`wall_clock`] adds the TSC ticks since then.
pub fn read_wall_clock() -> Option<u64> {
    let seconds = super::rtc::seconds_since_1970();
    BOOT.call_once(|| (tsc(), seconds.unwrap_or(0)));
    seconds
}

/// Returns the TSC at which the time of day was read, and that time in seconds since 1970; 0 if there is no clock.
pub fn boot() -> (u64, u64) {
    BOOT.get().copied().unwrap_or_default()
}

/// Returns the time of day in nanoseconds since 1970, UTC.
pub fn wall_clock() -> u64 {
    let (then, seconds) = BOOT.get().copied().unwrap_or((tsc(), 0));
    let elapsed = u128::from(tsc().saturating_sub(then))
        .saturating_mul(1_000_000_000)
        .checked_div(rates().tsc.into())
        .unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(elapsed as u64)
}
