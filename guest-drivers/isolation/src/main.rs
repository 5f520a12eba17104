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
//! Words on the command line: `only=msr,ports` runs these kinds alone; `shadowed` says that the host keeps a shadow of the
//! IDT, and waits for it; `hold` keeps the CPU for ever at the end, with interrupts off; `lenient-apic` says that the local APIC is the CPU's own, and
//! that it is an emulator's which takes what hardware refuses with #GP: that is left out. `lenient-divide` is the same of the divide
//! configuration register's reserved bits alone.

#![no_std]
#![no_main]

mod attempts;
mod report;
mod virtio;

use bare::boot::Machine;
use bare::console;

use report::Report;

bare::entry!(main);

fn main(machine: &Machine) -> ! {
    console::line(format_args!("isolation: memory ends at {:#x}", machine.memory_end));
    let mut report = Report::new();
    attempts::run(machine, &mut report);
    report.summary();
    if machine.words().any(|word| word == "hold") {
        bare::cpu::spin();
    }
    bare::power_off()
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    console::line(format_args!("isolation: {info}"));
    console::line(format_args!("SC {{\"test\":\"isolation\",\"broken\":\"panic\"}}"));
    bare::power_off()
}
