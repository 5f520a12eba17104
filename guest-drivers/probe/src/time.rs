//! Time by the time stamp counter, whose frequency CPUID 0x15 gives (SDM vol. 2A, CPUID).

use bare::cpu;

use crate::events;

/// Frequency of the APIC timer before its divider in Hz: the crystal's.
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

/// Lets time pass, without an exit and with interrupts as they are.
pub fn spin_us(us: u64) {
    let (start, ticks) = (cpu::tsc(), us_in_tsc(us));
    while cpu::tsc().wrapping_sub(start) < ticks {
        core::hint::spin_loop();
    }
}

/// Lets time pass with interrupts open.
pub fn open_us(us: u64) {
    let (start, ticks) = (cpu::tsc(), us_in_tsc(us));
    while cpu::tsc().wrapping_sub(start) < ticks {
        cpu::open_interrupts(10);
    }
}

/// Opens interrupts until so many have been taken, for two seconds at most; whether they came.
pub fn wait_taken(count: usize) -> bool {
    wait(|| events::taken() >= count)
}

/// Opens interrupts until `done`, for two seconds at most.
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
