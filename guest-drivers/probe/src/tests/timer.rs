//! Tests the local APIC's timer (SDM vol. 3A 11.5.4).

use bare::cpu::{self, rdmsr, wrmsr};

use crate::apic::{self, MASKED, ONE_SHOT, PERIODIC, TSC_DEADLINE, msr, start_timer};
use crate::events;
use crate::report::{Outcome, ensure, equal};
use crate::time::{self, open_us, spin_us, us_in_timer};

const VECTOR: u8 = 0xd1;
const GENERAL_PROTECTION: u8 = 13;
/// A wait in microseconds. A vCPU executes its next instruction within it, even on a busy development machine.
const LONG: u64 = 80_000;

pub fn one_shot_fires_once() -> Outcome {
    start_timer(ONE_SHOT, VECTOR, us_in_timer(2000));
    equal!(rdmsr(msr::INITIAL_COUNT), us_in_timer(2000), "initial count");
    ensure!(time::wait_taken(1), "it did not fire");
    equal!(rdmsr(msr::CURRENT_COUNT), 0, "count after it fired");
    open_us(6000);
    equal!(events::vectors(), [VECTOR], "taken");
    Ok(())
}

pub fn periodic_goes_on_until_it_is_stopped() -> Outcome {
    start_timer(PERIODIC, VECTOR, us_in_timer(2000));
    ensure!(time::wait_taken(5), "it fired {} times", events::taken());
    ensure!(rdmsr(msr::CURRENT_COUNT) != 0, "it stands still");
    apic::stop_timer();
    cpu::open_interrupts(200);
    let before = events::taken();
    open_us(6000);
    equal!(events::taken(), before, "taken after it was stopped");
    Ok(())
}

pub fn tsc_deadline_is_there_where_cpuid_says_so() -> Outcome {
    let entry = MASKED | TSC_DEADLINE | u64::from(VECTOR);
    if cpu::cpuid(1).ecx & 1 << 24 == 0 {
        equal!(cpu::write_msr(msr::LVT_TIMER, entry), Err(GENERAL_PROTECTION), "the mode that is not there");
        return Ok(());
    }
    wrmsr(msr::LVT_TIMER, TSC_DEADLINE | u64::from(VECTOR));
    let at = cpu::tsc() + time::us_in_tsc(2000);
    wrmsr(msr::TSC_DEADLINE, at);
    equal!(rdmsr(msr::TSC_DEADLINE), at, "the deadline");
    ensure!(time::wait_taken(1), "it did not fire");
    ensure!(cpu::tsc() >= at, "it fired early");
    equal!(rdmsr(msr::TSC_DEADLINE), 0, "the deadline after it fired");
    open_us(6000);
    equal!(events::taken(), 1, "taken");
    wrmsr(msr::TSC_DEADLINE, 1);
    ensure!(time::wait_taken(2), "a deadline that has passed did not fire");
    wrmsr(msr::TSC_DEADLINE, cpu::tsc() + time::us_in_tsc(LONG));
    wrmsr(msr::TSC_DEADLINE, 0);
    open_us(LONG + LONG / 4);
    equal!(events::taken(), 2, "taken after it was disarmed");
    Ok(())
}

pub fn a_masked_timer_counts_and_says_nothing() -> Outcome {
    start_timer(MASKED | ONE_SHOT, VECTOR, us_in_timer(LONG));
    ensure!(rdmsr(msr::CURRENT_COUNT) != 0, "it does not count");
    open_us(LONG + LONG / 4);
    equal!(rdmsr(msr::CURRENT_COUNT), 0, "count when it is over");
    equal!(events::taken(), 0, "taken");
    // What ran out while masked is not made up for.
    wrmsr(msr::LVT_TIMER, ONE_SHOT | u64::from(VECTOR));
    cpu::open_interrupts(200);
    equal!(events::taken(), 0, "taken after the unmask");
    Ok(())
}

pub fn a_count_of_zero_stops_it() -> Outcome {
    start_timer(ONE_SHOT, VECTOR, us_in_timer(LONG));
    spin_us(100);
    wrmsr(msr::INITIAL_COUNT, 0);
    equal!(rdmsr(msr::CURRENT_COUNT), 0, "count");
    open_us(LONG + LONG / 4);
    equal!(events::taken(), 0, "taken");
    Ok(())
}

pub fn a_halted_cpu_is_woken() -> Outcome {
    for round in 1..=10 {
        start_timer(ONE_SHOT, VECTOR, us_in_timer(200));
        cpu::wait_for_interrupt();
        equal!(events::taken(), round, "taken after the HLT");
    }
    Ok(())
}

/// Reads the TSC and the count at nearly the same moment. It tries several times, because another process on the
/// development machine may run in between.
fn sample() -> (u64, u64) {
    let close = time::us_in_tsc(50);
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..100 {
        let before = cpu::tsc();
        let count = rdmsr(msr::CURRENT_COUNT);
        let after = cpu::tsc();
        best = best.min((after - before, before + (after - before) / 2, count));
        if best.0 < close {
            break;
        }
    }
    (best.1, best.2)
}

/// Returns how many ticks the timer makes in a while, and how many it would make by CPUID 0x15 without a divider.
fn measure() -> (u64, u64) {
    wrmsr(msr::LVT_TIMER, MASKED | ONE_SHOT | u64::from(VECTOR));
    wrmsr(msr::INITIAL_COUNT, u32::MAX.into());
    let (begin, first) = sample();
    spin_us(20_000);
    let (end, last) = sample();
    (
        first.saturating_sub(last),
        u64::try_from(u128::from(end - begin) * u128::from(time::timer_hz()) / u128::from(time::tsc_hz())).unwrap_or(0),
    )
}

pub fn it_counts_at_the_frequency_of_cpuid() -> Outcome {
    let (counted, expected) = measure();
    ensure!(counted.abs_diff(expected) <= expected / 20, "{counted} ticks, expected {expected}");
    Ok(())
}

pub fn the_divider_divides() -> Outcome {
    const BY_16: u64 = 0b0011;
    wrmsr(msr::DIVIDE, BY_16);
    equal!(rdmsr(msr::DIVIDE), BY_16, "divide configuration");
    let (counted, expected) = measure();
    let expected = expected / 16;
    ensure!(counted.abs_diff(expected) <= expected / 20, "{counted} ticks, expected {expected}");
    Ok(())
}
