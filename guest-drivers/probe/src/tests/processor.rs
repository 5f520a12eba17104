//! Tests what an operating system expects of a processor where the hypervisor stands between: frames of exceptions,
//! single steps over instructions that exit, hypercalls, XCR0, the TSC, protection keys.

#![allow(unsafe_code, reason = "what is tested are single instructions")]

use core::arch::asm;

use bare::cpu::{self, cpuid, read_msr, write_msr};
use bare::memory::{self, ARENA, read64, write64};
use bare::trap::Frame;
use bare::{attempt, instruction};

use crate::apic::{self, self_ipi};
use crate::events;
use crate::report::{Outcome, ensure, equal};
use crate::time;

const INVALID_OPCODE: u8 = 6;
const GENERAL_PROTECTION: u8 = 13;
const PAGE_FAULT: u8 = 14;
const RESUME_FLAG: u64 = 1 << 16;
const VECTOR: u8 = 0x52;
const TSC: u32 = 0x10;
const TSC_ADJUST: u32 = 0x3b;

pub fn a_fault_pushes_the_resume_flag_and_a_trap_does_not() -> Outcome {
    const NOT_THERE: u32 = 0x1234_5678;
    equal!(read_msr(NOT_THERE), Err(GENERAL_PROTECTION), "#GP that the hypervisor raises");
    ensure!(attempt::flags() & RESUME_FLAG != 0, "its frame has the flags {:#x}", attempt::flags());
    equal!(instruction!("ud2", 0, ARENA), Err(INVALID_OPCODE), "UD2");
    ensure!(attempt::flags() & RESUME_FLAG != 0, "the frame of #UD has the flags {:#x}", attempt::flags());
    // SAFETY: what is pushed is popped. EAX is named. The handler ends the single step.
    unsafe {
        asm!(
            "mov {rbx}, rbx",
            "pushfq",
            "or qword ptr [rsp], 0x100",
            "popfq",
            "cpuid",
            "mov rbx, {rbx}",
            rbx = out(reg) _,
            inout("eax") 0 => _,
            out("ecx") _,
            out("edx") _,
        );
    }
    equal!(events::vectors(), [events::DEBUG], "taken");
    ensure!(events::flags(0) & RESUME_FLAG == 0, "the frame of a trap has the flags {:#x}", events::flags(0));
    Ok(())
}

/// Records, and keeps the single step on until it was at the end.
fn step_on(vector: u8, frame: &mut Frame) {
    events::record(vector, frame);
    if vector == events::DEBUG && frame.rip != events::noted(0) && events::taken() < 8 {
        frame.rflags |= events::TRAP_FLAG;
    }
}

/// Steps over STI and HLT. Returns the addresses of the HLT and of the instruction behind it.
fn step_over_halt() -> (u64, u64) {
    let (hlt, end): (u64, u64);
    // SAFETY: what is pushed is popped. Interrupts are closed afterwards. The hook ends the steps.
    unsafe {
        asm!(
            "lea {hlt}, [rip + 3f]",
            "lea {end}, [rip + 2f]",
            "mov [{note}], {end}",
            "pushfq",
            "or qword ptr [rsp], 0x100",
            "popfq",
            "sti",
            "3:",
            "hlt",
            "2:",
            "cli",
            hlt = out(reg) hlt,
            end = out(reg) end,
            note = in(reg) events::note_address(0),
        );
    }
    (hlt, end)
}

pub fn single_steps_over_sti_and_hlt_end_the_halt() -> Outcome {
    events::set_hook(step_on);
    apic::watchdog();
    let (hlt, end) = step_over_halt();
    apic::stop_timer();
    equal!(events::vectors(), [events::DEBUG, events::DEBUG], "taken");
    equal!([events::rip(0), events::rip(1)], [hlt, end], "addresses of the steps");
    // With an interrupt that waits: it comes when STI's shadow is over, and the HLT is stepped over afterwards.
    events::clear();
    self_ipi(VECTOR);
    apic::watchdog();
    let (hlt, end) = step_over_halt();
    apic::stop_timer();
    equal!(events::vectors(), [events::DEBUG, VECTOR, events::DEBUG], "taken with an interrupt");
    equal!([events::rip(0), events::rip(1), events::rip(2)], [hlt, hlt, end], "addresses");
    Ok(())
}

pub fn hypercalls_are_answered_with_no_such_call() -> Outcome {
    const NO_SUCH_CALL: u64 = -1000_i64 as u64;
    equal!(instruction!("vmcall", 0x7fff_ffff, ARENA), Ok(NO_SUCH_CALL), "VMCALL");
    equal!(instruction!("vmmcall", 0x7fff_ffff, ARENA), Ok(NO_SUCH_CALL), "VMMCALL");
    Ok(())
}

pub fn xsetbv_needs_osxsave() -> Outcome {
    const OSXSAVE: u64 = 1 << 18;
    if cpuid(1).ecx & 1 << 26 == 0 {
        return Ok(());
    }
    let before = cpu::cr4();
    cpu::set_cr4(before & !OSXSAVE);
    let without = instruction!("xsetbv", 1, ARENA);
    cpu::set_cr4(before | OSXSAVE);
    let (bad, good) = (instruction!("xsetbv", 0, ARENA), instruction!("xsetbv", 1, ARENA));
    cpu::set_cr4(before);
    equal!(without, Err(INVALID_OPCODE), "without OSXSAVE");
    equal!((bad, good), (Err(GENERAL_PROTECTION), Ok(1)), "with OSXSAVE, XCR0 of 0 and of 1");
    Ok(())
}

/// Whether this guest may move its TSC.
fn tsc_moves() -> bool {
    cpuid(7).ebx & 1 << 1 != 0
}

pub fn the_tsc_moves_where_the_timer_can_follow() -> Outcome {
    if !tsc_moves() {
        equal!(read_msr(TSC_ADJUST), Err(GENERAL_PROTECTION), "TSC_ADJUST that is not there");
        equal!(write_msr(TSC, 0), Err(GENERAL_PROTECTION), "a write of a TSC that cannot follow");
        return Ok(());
    }
    equal!(read_msr(TSC_ADJUST), Ok(0), "TSC_ADJUST at first");
    let (start, second) = (cpu::tsc(), time::us_in_tsc(1_000_000));
    let set = write_msr(TSC, 5);
    let (tsc, by_msr, adjust) = (cpu::tsc(), read_msr(TSC).unwrap_or(0), read_msr(TSC_ADJUST).unwrap_or(0));
    // Back to where it was, however long that took.
    let back = write_msr(TSC_ADJUST, 0);
    let end = cpu::tsc();
    equal!((set, back), (Ok(()), Ok(())), "WRMSR of both");
    ensure!(
        tsc >= 5 && by_msr >= tsc && tsc - 5 < end - start,
        "the TSC reads {tsc}, then {by_msr}, after a write of 5"
    );
    ensure!(0_u64.wrapping_sub(adjust).wrapping_sub(start) <= end - start, "TSC_ADJUST reads {adjust:#x}");
    ensure!(end > start && end - start < 60 * second, "from {start} to {end}");
    if cpuid(1).ecx & 1 << 24 != 0 {
        // A deadline far away, and then the TSC moves there.
        cpu::wrmsr(apic::msr::LVT_TIMER, apic::TSC_DEADLINE | u64::from(VECTOR));
        cpu::wrmsr(apic::msr::TSC_DEADLINE, cpu::tsc() + 3600 * second);
        cpu::wrmsr(TSC_ADJUST, 3600 * second);
        let fired = time::wait_taken(1);
        cpu::wrmsr(TSC_ADJUST, 0);
        ensure!(fired, "a deadline that the TSC has passed did not fire");
        equal!(events::vectors(), [VECTOR], "taken");
    }
    Ok(())
}

pub fn the_clock_page_follows_the_tsc() -> Outcome {
    const SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;
    if !tsc_moves() {
        return Ok(());
    }
    let nanos = || {
        let since = cpu::tsc().wrapping_sub(read64(ARENA + 8));
        let (multiplier, shift) = (memory::read32(ARENA + 24), memory::read8(ARENA + 28) as i8);
        let ticks = if shift < 0 { since >> shift.unsigned_abs() } else { since << shift };
        ((u128::from(ticks) * u128::from(multiplier)) >> 32) as u64
    };
    memory::clear(ARENA, 32);
    equal!(write_msr(SYSTEM_TIME_NEW, ARENA | 1), Ok(()), "the clock page");
    let before = nanos();
    cpu::wrmsr(TSC, 1 << 40);
    let (moved, version, stable) = (nanos(), memory::read32(ARENA), memory::read8(ARENA + 29));
    cpu::wrmsr(TSC_ADJUST, 0);
    let after = nanos();
    equal!(write_msr(SYSTEM_TIME_NEW, 0), Ok(()), "no clock page");
    ensure!(before <= moved && moved <= after, "the clock goes from {before} to {moved} to {after}");
    ensure!(after - before < 60_000_000_000, "the clock jumps from {before} to {after}");
    ensure!(version > 2 && version % 2 == 0 && stable == 1, "version {version}, flags {stable}");
    Ok(())
}

pub fn counters_and_switches_without_a_cpuid_bit_are_there() -> Outcome {
    const MISC_ENABLE: u32 = 0x1a0;
    if cpu::is_intel() {
        let value = cpu::rdmsr(MISC_ENABLE);
        equal!(write_msr(MISC_ENABLE, value ^ 1), Ok(()), "WRMSR of MISC_ENABLE, fast strings");
        equal!(read_msr(MISC_ENABLE), Ok(value ^ 1), "MISC_ENABLE afterwards");
        equal!(write_msr(MISC_ENABLE, value), Ok(()), "MISC_ENABLE as before");
        equal!(write_msr(MISC_ENABLE, value | 1 << 34), Err(GENERAL_PROTECTION), "NX off");
    } else {
        for number in 0xc001_0000..=0xc001_0007 {
            equal!(write_msr(number, 0x53_0076), Ok(()), "WRMSR of a legacy counter");
            equal!(read_msr(number), Ok(0), "RDMSR of a legacy counter");
        }
    }
    Ok(())
}

pub fn protection_keys_work_where_cpuid_says_so() -> Outcome {
    const PKE: u64 = 1 << 22;
    const USER: u64 = 1 << 2;
    const KEY_SHIFT: u32 = 59;
    /// #PF: present, by a protection key.
    const BY_KEY: u64 = 1 | 1 << 5;
    /// Neither read nor write of pages with key 3.
    const NO_ACCESS: u64 = 1 << 6;
    let offered = cpuid(7).ecx & 1 << 3 != 0;
    ensure!(cpuid(7).ecx & 1 << 4 == 0, "OSPKE without CR4.PKE");
    if !offered {
        return Ok(());
    }
    let cr4 = cpu::cr4();
    // SMEP and SMAP would forbid a user page first.
    cpu::set_cr4(cr4 & !(3 << 20) | PKE);
    let said = cpuid(7).ecx & 1 << 4 != 0;
    // A 2 MiB page that nothing else uses, as a user page with key 3.
    let page = ARENA + (4 << 20);
    let pml4 = cpu::cr3() & !0xfff;
    let table = |entry: u64| read64(entry) & 0x000f_ffff_ffff_f000;
    let upper = [pml4, table(pml4)];
    let leaf = table(upper[1]) + (page >> 21) * 8;
    let old = read64(leaf);
    upper.iter().for_each(|&entry| write64(entry, read64(entry) | USER));
    write64(page, 0x1122);
    write64(leaf, old | USER | 3 << KEY_SHIFT);
    cpu::invalidate(page);
    let open = instruction!("mov rax, [rdi]", 0, page);
    let set = instruction!("wrpkru", NO_ACCESS, page);
    let read = instruction!("rdpkru", 0, page);
    let closed = instruction!("mov rax, [rdi]", 0, page);
    let error = attempt::error();
    // An exit must not change it.
    let _ = cpuid(0);
    let kept = instruction!("rdpkru", 0, page);
    let cleared = instruction!("wrpkru", 0, page);
    let again = instruction!("mov rax, [rdi]", 0, page);
    write64(leaf, old);
    upper.iter().for_each(|&entry| write64(entry, read64(entry) & !USER));
    cpu::invalidate(page);
    cpu::set_cr4(cr4);
    ensure!(said, "OSPKE does not follow CR4.PKE");
    equal!((open, again), (Ok(0x1122), Ok(0x1122)), "loads that PKRU permits");
    equal!((set.is_ok(), read, kept), (true, Ok(NO_ACCESS), Ok(NO_ACCESS)), "PKRU");
    equal!((closed, error), (Err(PAGE_FAULT), BY_KEY), "a load that PKRU forbids");
    ensure!(cleared.is_ok(), "WRPKRU: {cleared:?}");
    Ok(())
}
