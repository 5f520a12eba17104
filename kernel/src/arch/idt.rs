//! The interrupt descriptor table, shared by all cores. What happens on each vector is in `interrupts.rs`.

#![allow(unsafe_code, reason = "the table points to assembly")]

use spin::Once;
use x86_64::{
    VirtAddr,
    structures::idt::{Entry, HandlerFunc, InterruptDescriptorTable},
};

core::arch::global_asm!(include_str!("interrupts.s"));

unsafe extern "C" {
    static interrupt_entries: u8;
}

static TABLE: Once<InterruptDescriptorTable> = Once::new();
/// Loads the table on this core. The first call builds it.
pub fn load() {
    let table = TABLE.call_once(|| {
        let mut t = InterruptDescriptorTable::new();
        let entry = |vector: usize| {
            VirtAddr::new((&raw const interrupt_entries as u64).saturating_add((vector as u64).saturating_mul(16)))
        };
        // SAFETY: each address is the entry code for its vector. The code handles the error code as the vector needs.
        unsafe {
            t.divide_error.set_handler_addr(entry(0));
            t.debug.set_handler_addr(entry(1));
            t.non_maskable_interrupt.set_handler_addr(entry(2)).set_stack_index(super::gdt::NMI_STACK);
            t.breakpoint.set_handler_addr(entry(3));
            t.overflow.set_handler_addr(entry(4));
            t.bound_range_exceeded.set_handler_addr(entry(5));
            t.invalid_opcode.set_handler_addr(entry(6));
            t.device_not_available.set_handler_addr(entry(7));
            t.double_fault.set_handler_addr(entry(8)).set_stack_index(super::gdt::DOUBLE_FAULT_STACK);
            t.invalid_tss.set_handler_addr(entry(10));
            t.segment_not_present.set_handler_addr(entry(11));
            t.stack_segment_fault.set_handler_addr(entry(12));
            t.general_protection_fault.set_handler_addr(entry(13));
            t.page_fault.set_handler_addr(entry(14));
            t.x87_floating_point.set_handler_addr(entry(16));
            t.alignment_check.set_handler_addr(entry(17));
            t.machine_check.set_handler_addr(entry(18)).set_stack_index(super::gdt::MACHINE_CHECK_STACK);
            t.simd_floating_point.set_handler_addr(entry(19));
            t.virtualization.set_handler_addr(entry(20));
            t.cp_protection_exception.set_handler_addr(entry(21));
            t.vmm_communication_exception.set_handler_addr(entry(29));
            t.security_exception.set_handler_addr(entry(30));
            for v in 32..256usize {
                let e: &mut Entry<HandlerFunc> = &mut t[v as u8];
                e.set_handler_addr(entry(v));
            }
        }
        t
    });
    table.load();
}
