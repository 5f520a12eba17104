//! Tests the interrupt shadow. After STI and MOV SS no interrupt is taken for one instruction, whether that instruction
//! exits or not (SDM vol. 3A 6.8.3, vol. 2B STI, MOV).
//!
//! Each piece of code marks the earliest address at which it may be interrupted. The handler's return address must be
//! that address, because a waiting interrupt is taken at the first boundary that allows it.

#![allow(unsafe_code, reason = "what is tested are single instructions")]

use core::arch::asm;

use bare::cpu;

use crate::apic::{self, self_ipi};
use crate::events;
use crate::report::{Outcome, ensure, equal};
use crate::time;

const VECTOR: u8 = 0x51;

/// Runs instructions while an interrupt waits. Interrupts are closed at first, and closed again two instructions after
/// the last. EAX and ECX are 0. EDX is the console's status port. Returns the address of label 2.
macro_rules! run {
    ($($text:literal),+) => {{
        let label: u64;
        // SAFETY: the registers that the instructions change are named. After them the stack is as before.
        unsafe {
            asm!(
                "lea {label}, [rip + 2f]",
                $($text,)+
                "nop",
                "nop",
                "cli",
                label = out(reg) label,
                inout("rax") 0_u64 => _,
                inout("rcx") 0_u64 => _,
                inout("rdx") 0x3fd_u64 => _,
                out("r10") _,
                out("r11") _,
            );
        }
        label
    }};
}

/// As `run!`, but the instructions may also change RBX, as CPUID does.
macro_rules! run_cpuid {
    ($($text:literal),+) => { run!("mov r10, rbx", $($text),+, "mov rbx, r10") };
}

/// Checks that exactly one interrupt was taken, `VECTOR`, at the address `label`.
fn taken_at(label: u64) -> Outcome {
    let (vectors, rip) = (events::vectors(), events::rip(0));
    equal!(vectors, [VECTOR], "taken");
    ensure!(rip == label, "taken {} bytes from where it had to be", rip.wrapping_sub(label) as i64);
    Ok(())
}

pub fn sti_and_hlt_are_one_step() -> Outcome {
    for _ in 0..20 {
        events::clear();
        self_ipi(VECTOR);
        apic::watchdog();
        let label = run!("sti", "hlt", "2:");
        apic::stop_timer();
        taken_at(label)?;
    }
    Ok(())
}

pub fn sti_covers_one_instruction() -> Outcome {
    self_ipi(VECTOR);
    taken_at(run!("sti", "nop", "2:"))
}

pub fn sti_covers_an_instruction_that_exits() -> Outcome {
    self_ipi(VECTOR);
    taken_at(run_cpuid!("sti", "cpuid", "2:", "nop"))?;
    events::clear();
    self_ipi(VECTOR);
    taken_at(run!("sti", "in al, dx", "2:"))
}

/// Checks that exactly one single step was reported, at the address `label`.
fn stepped_at(label: u64) -> Outcome {
    let (vectors, rip) = (events::vectors(), events::rip(0));
    equal!(vectors, [events::DEBUG], "taken");
    ensure!(rip == label, "the step came {} bytes from where it had to", rip.wrapping_sub(label) as i64);
    Ok(())
}

pub fn mov_ss_puts_a_step_off_by_one_instruction() -> Outcome {
    stepped_at(run!("mov r10, ss", "pushfq", "or qword ptr [rsp], 0x100", "popfq", "mov ss, r10", "nop", "2:"))
}

pub fn a_step_over_an_instruction_that_exits_comes_behind_it() -> Outcome {
    stepped_at(run!("pushfq", "or qword ptr [rsp], 0x100", "popfq", "in al, dx", "2:"))?;
    events::clear();
    stepped_at(run_cpuid!("pushfq", "or qword ptr [rsp], 0x100", "popfq", "cpuid", "2:", "nop"))
}

pub fn popf_has_no_shadow() -> Outcome {
    self_ipi(VECTOR);
    taken_at(run!("pushfq", "or qword ptr [rsp], 0x200", "popfq", "2:", "nop"))
}

pub fn a_halted_cpu_wakes_behind_its_hlt() -> Outcome {
    // Nothing waits when it halts: the timer ends it. On a busy development machine the timer may be faster than the few
    // instructions to the HLT; it comes again, and the round does not count.
    for _ in 0..50 {
        events::clear();
        apic::start_timer(apic::PERIODIC, VECTOR, time::us_in_timer(3000));
        let label = run!("sti", "nop", "hlt", "2:");
        apic::stop_timer();
        cpu::open_interrupts(100);
        if events::rip(0) == label {
            return Ok(());
        }
    }
    ensure!(false, "it never woke where it had to");
    Ok(())
}
