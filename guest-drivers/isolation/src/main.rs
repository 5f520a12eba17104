//! A guest that tries everything that a guest must not do. An attempt is refused if the machine answers as hardware
//! without that feature would answer.
//!
//! It starts like a kernel, by the 64-bit Linux boot protocol. It uses one vCPU, and writes to COM1:
//!
//! ```text
//! SC {"test":"isolation","kind":"msr","attempts":49000,"refused":49000}
//! SC {"test":"isolation","attempts":250000,"refused":250000,"kinds":{"msr":{"attempts":49000,"refused":49000}}}
//! ```
//!
//! An attempt that was not refused is reported in a line with the member `allowed`, up to eight of a kind. A line with
//! the member `broken` says that the test itself did not work. An example is an interrupt that the guest may have, but
//! that did not arrive. Then a clean count proves nothing. At the end the guest powers itself off.
//!
//! Words on the command line:
//!
//! - `only=msr,ports`: runs only these kinds.
//! - `shadowed`: the host keeps a shadow of the IDT. The guest waits for it.
//! - `hold`: keeps the CPU for ever at the end, with interrupts off.
//! - `lenient-apic`: the guest owns the local APIC, and it is an emulator's. Leaves out what hardware refuses with #GP
//!   but this APIC accepts.
//! - `lenient-divide`: leaves out only the reserved bits of the divide configuration register.

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
