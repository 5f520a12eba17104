//! This core's timer. Also measures the rates of TSC and timer.
//!
//! The TSC's rate comes from CPUID leaf 15H if the CPU has it (SDM vol. 3B 20.7.3). Otherwise it is measured against
//! the ACPI PM timer. If there is no PM timer, or it stands still, it is measured against PIT channel 2. What is measured
//! allows for system management interrupts ([`clock::rate`]).

#![allow(unsafe_code, reason = "times the TSC against ports")]

use super::apic;
use super::time::{Rates, rates, set_rates, tsc};
use alloc::{format, string::String};
use clock::rate::{PIT, PM_TIMER, READINGS, Rate, Reading, Reference, rate};
use x86_64::instructions::port::Port;

/// TSC ticks to wait for a clock to count 8 ms. After that the clock counts as standing still. It is a third of a second on the
/// fastest CPU.
const PATIENCE: u64 = 2_000_000_000;
/// How often both are read for one reading.
const TRIES: usize = 6;
/// Part of the measured rate by which what CPUID says may differ: a hundredth.
const DIFFERENCE: u64 = 100;

/// Measures the rates. `pm_timer` is the port of the ACPI PM timer. Also returns what is strange about them. Returns `None` if
/// neither that timer nor the PIT counts.
pub fn calibrate(pm_timer: Option<u16>) -> Option<(&'static Rates, Option<String>)> {
    let cpuid = raw_cpuid::CpuId::new();
    let deadline = findings::processor::has_tsc_deadline(crate::arch::cpuid::words);
    let told = cpuid.get_tsc_info().and_then(|t| t.tsc_frequency()).filter(|&hz| hz != 0);
    let by_pm_timer = pm_timer.and_then(|port| {
        let mut port = Port::<u32>::new(port);
        // SAFETY: the FADT names this port, and reading it has no effect.
        measure(PM_TIMER, || unsafe { port.read() })
    });
    let (source, (measured, apic)) = match by_pm_timer {
        Some(rates) => ("the ACPI PM timer", rates),
        None => ("the PIT", by_pit()?),
    };
    let mhz = |hz: u64| hz / 1_000_000;
    let (least, most) = measured.range;
    let doubt = match told {
        Some(hz) if hz.abs_diff(measured.hz) > measured.hz / DIFFERENCE => Some(format!(
            "CPUID says that the TSC has {} MHz, and {source} that it has {}: the latter is used",
            mhz(hz),
            mhz(measured.hz)
        )),
        None if !measured.is_certain() => Some(format!(
            "the TSC's rate is not certain: by {source} between {} and {} MHz. Was the core kept from running all the time?",
            mhz(least),
            mhz(most)
        )),
        _ => None,
    };
    let (tsc, source) = match told {
        Some(hz) if doubt.is_none() => (hz, "CPUID leaf 15H"),
        _ => (measured.hz, source),
    };
    Some((set_rates(Rates { tsc, apic: apic.hz, deadline, source }), doubt))
}

/// Measures the rates of the TSC and of this core's timer against a clock, which `read` reads. Returns `None` if it stands still.
fn measure(clock: Reference, mut read: impl FnMut() -> u32) -> Option<(Rate, Rate)> {
    // 8 ms.
    let step = (clock.hz / 125) as u32;
    apic::start_count(u32::MAX);
    let mut readings = [Reading::default(); READINGS];
    // The clock at which the next reading is due.
    let mut next = 0;
    for (n, reading) in readings.iter_mut().enumerate() {
        let end = tsc().saturating_add(PATIENCE);
        // A difference of more than half of what the clock counts is a time that is still to come.
        while n != 0 && (read().wrapping_sub(next) & clock.mask) >= clock.mask / 2 {
            if tsc() > end {
                return None;
            }
            core::hint::spin_loop();
        }
        *reading = Reading::shortest(TRIES, || {
            let before = tsc();
            let ticks = read() & clock.mask;
            let between = tsc();
            let apic = u64::from(u32::MAX.saturating_sub(apic::current_count()));
            let took = tsc().saturating_sub(before);
            // The clock was read at about this TSC.
            let tsc = before.wrapping_add(between.saturating_sub(before) / 2);
            Reading { tsc, apic, clock: ticks, took }
        });
        next = reading.clock.wrapping_add(step);
    }
    let tsc = rate(clock, &readings, |reading| reading.tsc)?;
    Some((tsc, rate(clock, &readings, |reading| reading.apic)?))
}

/// Measures the rates against channel 2 of the PIT.
fn by_pit() -> Option<(Rate, Rate)> {
    let (mut gate, mut command, mut channel) = (Port::<u8>::new(0x61), Port::<u8>::new(0x43), Port::<u8>::new(0x42));
    // SAFETY: these are PIT channel 2 and its gate. Nothing else uses them. In mode 2 it counts down from 65536 again and again,
    // while the gate is open. The speaker stays off.
    unsafe {
        let saved = gate.read();
        gate.write(saved & !2 | 1);
        command.write(0xb4);
        channel.write(0_u8);
        channel.write(0_u8);
        let rates = measure(PIT, || {
            // Latches the count, which is then read in two parts.
            command.write(0x80);
            let count = u16::from_le_bytes([channel.read(), channel.read()]);
            u32::from(!count)
        });
        gate.write(saved);
        rates
    }
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
