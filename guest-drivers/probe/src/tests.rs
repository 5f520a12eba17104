//! Runs the tests: a table of them, and the steps before and after each.

mod control_registers;
mod cpuid;
mod device_memory;
mod interrupts;
mod msrs;
mod processor;
mod shadow;
mod timer;
mod virtio;

use bare::boot::Machine;
use bare::console;

use crate::apic::{self, msr};
use crate::events;
use crate::report::{self, Outcome, Test, ensure, equal, say, table};
use crate::time;

const TESTS: &[Test] = table! {
    interrupts {
        the_apic_is_in_x2apic_mode,
        self_ipi_arrives,
        every_way_to_name_oneself_arrives,
        commands_to_nobody_go_nowhere,
        requests_are_taken_by_priority,
        a_higher_class_interrupts_a_handler,
        the_same_class_waits_for_the_end_of_interrupt,
        an_end_of_interrupt_ends_the_highest_in_service,
        an_end_of_interrupt_without_an_interrupt_is_harmless,
        the_task_priority_holds_its_class_back,
        cr8_is_the_upper_half_of_the_task_priority,
        requests_of_one_vector_fall_together,
        a_raised_priority_makes_no_spurious_interrupt_that_stays,
        a_disabled_apic_masks_its_lvt,
    }
    timer {
        one_shot_fires_once,
        periodic_goes_on_until_it_is_stopped,
        tsc_deadline_is_there_where_cpuid_says_so,
        a_masked_timer_counts_and_says_nothing,
        a_count_of_zero_stops_it,
        a_halted_cpu_is_woken,
        it_counts_at_the_frequency_of_cpuid,
        the_divider_divides,
    }
    cpuid {
        the_hypervisor_says_what_it_is,
        frequencies_agree_with_the_clock_page,
        what_is_the_hosts_own_is_not_offered,
        osxsave_follows_cr4,
        the_topology_is_one_core,
        leaves_beyond_the_last_are_empty,
    }
    msrs {
        read_only_registers_refuse_a_write,
        write_only_registers_refuse_a_read,
        unknown_registers_are_absent,
        registers_of_speculation_control_follow_cpuid,
        reserved_bits_are_refused,
        registers_of_the_guests_own_hold_what_is_written,
    }
    processor {
        a_fault_pushes_the_resume_flag_and_a_trap_does_not,
        single_steps_over_sti_and_hlt_end_the_halt,
        hypercalls_are_answered_with_no_such_call,
        xsetbv_needs_osxsave,
        the_tsc_moves_where_the_timer_can_follow,
        the_clock_page_follows_the_tsc,
        counters_and_switches_without_a_cpuid_bit_are_there,
        protection_keys_work_where_cpuid_says_so,
    }
    control_registers {
        hidden_bits_of_cr4_are_refused,
        bits_of_cr4_that_cpuid_offers_hold,
        caches_off_are_shown,
        what_cr0_refuses,
        every_bit_of_cr0_does_as_the_manual_has_it,
        every_bit_of_efer_does_as_the_manual_has_it,
        every_bit_of_xcr0_does_as_the_manual_has_it,
    }
    device_memory {
        every_read_modify_write_does_as_on_memory,
        exchanges_do_as_on_memory,
    }
    shadow {
        sti_and_hlt_are_one_step,
        sti_covers_one_instruction,
        sti_covers_an_instruction_that_exits,
        mov_ss_puts_a_step_off_by_one_instruction,
        a_step_over_an_instruction_that_exits_comes_behind_it,
        popf_has_no_shadow,
        a_halted_cpu_wakes_behind_its_hlt,
    }
    virtio {
        a_completion_wakes_a_halted_cpu,
        completions_while_closed_wait_for_their_turn,
        a_masked_entry_keeps_its_interrupt,
        a_masked_function_keeps_its_interrupts,
        an_interrupt_kept_uses_the_entry_as_it_is_then,
        a_driver_that_wants_no_interrupt_gets_none,
        the_event_index_asks_for_one_interrupt,
        a_queue_without_an_entry_is_silent,
        a_reset_device_forgets_everything,
        a_reset_with_requests_under_way_leaves_nothing,
    }
};

/// For the word `self-check`: a test that fails.
const WRONG: &[Test] = table! { self_check { expects_what_is_not_so, } };

mod self_check {
    use crate::{apic, events, report, time};

    /// Sends one vector and expects another.
    pub fn expects_what_is_not_so() -> report::Outcome {
        apic::self_ipi(0x41);
        time::wait_taken(1);
        report::equal!(events::vectors(), [0x42], "taken");
        Ok(())
    }
}

/// Runs all tests.
pub fn run(machine: &Machine) {
    let wrong = if machine.words().any(|word| word == "self-check") { WRONG } else { &[] };
    let only = machine.option("only=").unwrap_or("");
    let except = machine.option("except=").unwrap_or("").split(',');
    let (mut passed, mut failed) = (0, 0);
    for test in TESTS.iter().chain(wrong).filter(|test| test.name.contains(only)) {
        if except.clone().any(|name| name == test.name) {
            console::line(format_args!("test {} ... left out", test.name));
            continue;
        }
        calm();
        let outcome = (test.run)().and_then(|()| left_clean());
        report::ended(test.name, &outcome);
        if outcome.is_ok() { passed += 1 } else { failed += 1 }
    }
    calm();
    say!("\"do\":\"tests\",\"passed\":{passed},\"failed\":{failed}");
}

/// Restores the state at the start, whatever the test before has changed.
fn calm() {
    apic::init();
    events::init();
    bare::cpu::open_interrupts(100);
    while apic::marked(msr::ISR) != 0 {
        bare::cpu::end_of_interrupt();
    }
    events::init();
}

/// Checks that a test has left no interrupt behind.
fn left_clean() -> Outcome {
    equal!(apic::marked(msr::ISR), 0, "vectors left in service");
    // If the guest owns the APIC, an interrupt of the host may wait. It disappears when interrupts are opened, and the
    // guest does not see it.
    let taken = events::taken();
    ensure!(time::wait(|| apic::marked(msr::IRR) == 0), "a vector stays requested");
    equal!(events::taken(), taken, "interrupts left behind: taken");
    ensure!(!bare::cpu::interrupts_are_open(), "interrupts are left open");
    Ok(())
}
