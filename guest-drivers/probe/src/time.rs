//! Measures time with the time stamp counter. CPUID 0x15 gives its frequency (SDM vol. 2A, CPUID).

use bare::cpu;

use crate::events;

/// Frequency of the APIC timer before its divider, in Hz. It is the crystal's frequency.
pub fn timer_hz() -> u64 {
    u64::from(cpu::cpuid(0x15).ecx)
}

/// Frequency of the TSC in Hz.
pub fn tsc_hz() -> u64 {
    let leaf = cpu::cpuid(0x15);
    u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax).max(1)
}

/// Microseconds in ticks of the TSC.
pub fn us_in_tsc(us: u64) -> u64 {
    tsc_hz() / 1000 * us / 1000
}

/// Microseconds in ticks of the APIC timer, divided by one.
pub fn us_in_timer(us: u64) -> u64 {
    timer_hz() / 1000 * us / 1000
}

/// Waits without an exit. Does not open or close interrupts.
pub fn spin_us(us: u64) {
    let (start, ticks) = (cpu::tsc(), us_in_tsc(us));
    while cpu::tsc().wrapping_sub(start) < ticks {
        core::hint::spin_loop();
    }
}

/// Waits with interrupts open.
pub fn open_us(us: u64) {
    let (start, ticks) = (cpu::tsc(), us_in_tsc(us));
    while cpu::tsc().wrapping_sub(start) < ticks {
        cpu::open_interrupts(10);
    }
}

/// Opens interrupts until `count` were taken, for two seconds at most. Returns whether they came.
pub fn wait_taken(count: usize) -> bool {
    wait(|| events::taken() >= count)
}

/// Opens interrupts until `done`, for two seconds at most. Returns whether it is.
pub fn wait(mut done: impl FnMut() -> bool) -> bool {
    let (start, ticks) = (cpu::tsc(), us_in_tsc(2_000_000));
    loop {
        cpu::open_interrupts(10);
        if done() {
            return true;
        }
        if cpu::tsc().wrapping_sub(start) > ticks {
            return false;
        }
    }
}
