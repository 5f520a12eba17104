//! Each core's GDT and TSS: flat segments, and interrupt stacks for events that may come at any instruction
//! (SDM vol. 3A 8.7, 6.14.5).

#![allow(unsafe_code, reason = "loads segment registers")]

use alloc::boxed::Box;
use x86_64::{
    VirtAddr,
    instructions::{
        segmentation::{CS, DS, ES, SS, Segment},
        tables::load_tss,
    },
    structures::{
        gdt::{Descriptor, GlobalDescriptorTable},
        tss::TaskStateSegment,
    },
};

/// Index of the NMI's stack in the interrupt stack table.
pub const NMI_STACK: u16 = 0;
/// Index of the double fault's stack.
pub const DOUBLE_FAULT_STACK: u16 = 1;
/// Index of the machine check's stack.
pub const MACHINE_CHECK_STACK: u16 = 2;

/// Builds and loads this core's tables. `stacks` are the tops of the three interrupt stacks, in the order of the
/// constants above.
pub fn load(stacks: [u64; 3]) {
    let mut tss = Box::new(TaskStateSegment::new());
    // The TSS is packed. So the table is built in a variable and then stored whole.
    let mut tops = tss.interrupt_stack_table;
    for (entry, top) in tops.iter_mut().zip(stacks) {
        *entry = VirtAddr::new(top);
    }
    tss.interrupt_stack_table = tops;
    let mut gdt = Box::new(GlobalDescriptorTable::new());
    let code = gdt.append(Descriptor::kernel_code_segment());
    let data = gdt.append(Descriptor::kernel_data_segment());
    let task = gdt.append(Descriptor::tss_segment(Box::leak(tss)));
    Box::leak(gdt).load();
    // SAFETY: the selectors come from the table that was just loaded and is never freed. It has flat code and data
    // segments like those in use, and this core's own TSS.
    unsafe {
        CS::set_reg(code);
        SS::set_reg(data);
        DS::set_reg(data);
        ES::set_reg(data);
        load_tss(task);
    }
}
