//! A guest that tries everything a guest must not do, and says of each attempt whether it was answered as hardware
//! without the thing would answer.
//!
//! It starts by the 64-bit Linux boot protocol like a kernel, owns one vCPU, and talks on COM1:
//!
//! ```text
//! SC {"test":"isolation","kind":"msr","attempts":49000,"refused":49000}
//! SC {"test":"isolation","attempts":250000,"refused":250000,"kinds":{"msr":{"attempts":49000,"refused":49000}}}
//! ```
//!
//! An attempt that was not refused is shown, up to eight of a kind, as a line with the member `allowed`. A line with
//! the member `broken` says that the test itself could not do what it had to, for instance that an interrupt that is
//! the guest's right did not arrive; then a clean count proves nothing. At the end it powers itself off.
//!
//! Words on the command line: `only=msr,ports` runs these kinds alone.

#![no_std]
#![no_main]

mod attempts;
mod boot;
mod console;
mod cpu;
mod memory;
mod pci;
mod report;
mod trap;
mod virtio;

use report::Report;

/// SLEEP_CONTROL_REG of the FADT; SLP_TYP 5 in bits 4:2 and SLP_EN in bit 5 (ACPI 6.5, 4.8.3.7).
const SLEEP_CONTROL: u16 = 0x600;
const SOFT_OFF: u8 = 5 << 2 | 1 << 5;

/// Called by the entry code with the boot parameters' address.
extern "C" fn main(parameters: u64) -> ! {
    trap::init();
    memory::init();
    let machine = boot::Machine::read(parameters);
    console::line(format_args!("isolation: memory ends at {:#x}", machine.memory_end));
    let mut report = Report::new();
    attempts::run(&machine, &mut report);
    report.summary();
    power_off()
}

fn power_off() -> ! {
    cpu::out8(SLEEP_CONTROL, SOFT_OFF);
    loop {
        cpu::halt();
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    console::line(format_args!("isolation: {info}"));
    console::line(format_args!("SC {{\"test\":\"isolation\",\"broken\":\"panic\"}}"));
    power_off()
}
