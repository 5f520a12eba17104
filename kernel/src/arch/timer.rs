//! This core's timer. Also measures the rates of TSC and timer.
//!
//! The TSC's rate comes from CPUID leaf 15H if the CPU has it (SDM vol. 3B 20.7.3). Otherwise it is measured against
//! the ACPI PM timer. If there is no PM timer, or it stands still, it is measured against PIT channel 2.

#![allow(unsafe_code, reason = "times the TSC against ports")]

use super::apic;
use super::time::{Rates, rates, set_rates, tsc};
use x86_64::instructions::port::Port;

/// TSC ticks to wait for a clock to count 20 ms. After that the clock counts as standing still. It is a second on the
/// fastest CPU.
const PATIENCE: u64 = 6_000_000_000;

/// Measures the rates. `pm_timer` is the port of the ACPI PM timer. Returns `None` if neither that timer nor the PIT
/// counts.
pub fn calibrate(pm_timer: Option<u16>) -> Option<&'static Rates> {
    let cpuid = raw_cpuid::CpuId::new();
    let deadline = findings::processor::has_tsc_deadline(crate::arch::cpuid::words);
    let told = cpuid.get_tsc_info().and_then(|t| t.tsc_frequency()).filter(|&hz| hz != 0);
    // 20 ms of either clock: 71,591 ticks of the PM timer, or 23,864 of the PIT.
    let by_pm = pm_timer.and_then(|port| count(|end| pm_elapsed(port, 71_591, end)));
    let (source, ticks, clock_hz, (tsc, apic)) = match by_pm {
        Some(span) => ("the ACPI PM timer", 71_591, 3_579_545, span),
        None => ("the PIT", 23_864, 1_193_182, count(|end| pit_elapsed(23_864, end))?),
    };
    let a_second = |counted: u64| counted.saturating_mul(clock_hz).checked_div(ticks).unwrap_or_default();
    Some(set_rates(Rates {
        tsc: told.unwrap_or(a_second(tsc)),
        apic: a_second(apic),
        deadline,
        source: if told.is_some() { "CPUID leaf 15H" } else { source },
    }))
}

/// Returns the TSC ticks and the APIC timer ticks that pass during `wait`. `wait` gets the TSC at which it must give
/// up.
fn count(wait: impl FnOnce(u64) -> bool) -> Option<(u64, u64)> {
    apic::start_count(u32::MAX);
    let start = tsc();
    if !wait(start.saturating_add(PATIENCE)) {
        return None;
    }
    let counted = u32::MAX.saturating_sub(apic::current_count());
    Some((tsc().saturating_sub(start), u64::from(counted)))
}

/// Waits for `ticks` of the PM timer. Returns false if the TSC reaches `end` before that.
fn pm_elapsed(port: u16, ticks: u32, end: u64) -> bool {
    let mut timer = Port::<u32>::new(port);
    // SAFETY: the FADT names this port, and reading it has no effect. The timer counts 24 bits at least.
    let now = |t: &mut Port<u32>| unsafe { t.read() } & 0xff_ffff;
    let start = now(&mut timer);
    while now(&mut timer).wrapping_sub(start) & 0xff_ffff < ticks {
        if tsc() > end {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

/// Waits for `ticks` of the PIT. Returns false if the TSC reaches `end` before that.
fn pit_elapsed(ticks: u16, end: u64) -> bool {
    let (mut gate, mut command, mut channel) = (Port::<u8>::new(0x61), Port::<u8>::new(0x43), Port::<u8>::new(0x42));
    // SAFETY: these are PIT channel 2 and its gate. Nothing else uses them. Mode 0 counts down once, and the output is
    // bit 5 of 0x61.
    unsafe {
        let saved = gate.read();
        gate.write(saved & !2 | 1);
        command.write(0xb0);
        channel.write(ticks as u8);
        channel.write((ticks >> 8) as u8);
        while gate.read() & 0x20 == 0 {
            if tsc() > end {
                return false;
            }
            core::hint::spin_loop();
        }
        gate.write(saved);
    }
    true
}

/// Interrupts this core when the TSC reaches `deadline`, or soon after. If the deadline is past, interrupts at once.
// The division takes registers: inlined, it made each exit 10 to 20 instructions longer.
#[inline(never)]
pub fn arm(deadline: u64) {
    let r = rates();
    if r.deadline {
        apic::arm_deadline(deadline.max(1));
    } else {
        // The product of two numbers of 64 bits has at most 128.
        let scaled = u128::from(deadline.saturating_sub(tsc())).wrapping_mul(r.apic.into());
        let ticks = scaled.checked_div(r.tsc.into()).unwrap_or_default();
        apic::arm_one_shot(ticks.saturating_add(1).min(u128::from(u32::MAX)) as u32);
    }
}

/// Stops this core's timer.
pub fn disarm() {
    if rates().deadline { apic::arm_deadline(0) } else { apic::arm_one_shot(0) }
}
