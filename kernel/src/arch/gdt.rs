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
        gdt::{Descriptor, GlobalDescriptorTable, SegmentSelector},
        tss::TaskStateSegment,
    },
};

/// Index of the NMI's stack in the interrupt stack table.
pub const NMI_STACK: u16 = 0;
/// Index of the double fault's stack.
pub const DOUBLE_FAULT_STACK: u16 = 1;
/// Index of the machine check's stack.
pub const MACHINE_CHECK_STACK: u16 = 2;

/// A core's GDT, with the selectors of its entries. Its TSS is on the heap too.
pub struct Segments {
    table: GlobalDescriptorTable,
    code: SegmentSelector,
    data: SegmentSelector,
    task: SegmentSelector,
}

impl Segments {
    /// Makes a core's tables. `stacks` are the tops of the three interrupt stacks, in the order of the constants above.
    pub fn new(stacks: [u64; 3]) -> Self {
        let mut tss = Box::new(TaskStateSegment::new());
        // The TSS is packed. So the table is built in a variable and then stored whole.
        let mut tops = tss.interrupt_stack_table;
        for (entry, top) in tops.iter_mut().zip(stacks) {
            *entry = VirtAddr::new(top);
        }
        tss.interrupt_stack_table = tops;
        let mut table = GlobalDescriptorTable::new();
        let code = table.append(Descriptor::kernel_code_segment());
        let data = table.append(Descriptor::kernel_data_segment());
        let task = table.append(Descriptor::tss_segment(Box::leak(tss)));
        Self { table, code, data, task }
    }

    /// Loads them on this core. Only one core may do that: its TSS is busy then.
    pub fn load(&'static self) {
        self.table.load();
        // SAFETY: the selectors come from the table that was just loaded and is never freed. It has flat code and data
        // segments like those in use, and this core's own TSS.
        unsafe {
            CS::set_reg(self.code);
            SS::set_reg(self.data);
            DS::set_reg(self.data);
            ES::set_reg(self.data);
            load_tss(self.task);
        }
    }
}
