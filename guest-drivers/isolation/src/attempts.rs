//! The attempts, one file for each kind. A file says what hardware answers, and counts whether the machine answers so.

mod idt;
mod instructions;
mod interrupts;
mod memory;
mod messages;
mod msrs;
mod pci;
mod ports;
mod rings;

use crate::report::Report;
use crate::virtio::Net;
use bare::boot::Machine;

/// A kind's name, and the function that tries it.
type Kind<'a> = (&'static str, &'a dyn Fn(&mut Report));

/// Tries everything. What could end the guest comes last.
pub fn run(machine: &Machine, report: &mut Report) {
    let nets = Net::find();
    let lenient = machine.words().any(|word| word == "lenient-apic");
    let lenient_divide = lenient || machine.words().any(|word| word == "lenient-divide");
    let all: [Kind<'_>; 14] = [
        ("memory-above-top", &|report| memory::above_top(machine, report)),
        ("memory-below-1m", &|report| memory::below_1m(machine, report)),
        ("host-image", &|report| memory::host_image(report)),
        ("apic-page", &interrupts::apic_page),
        ("ioapic", &interrupts::ioapic),
        ("msr", &|report| msrs::sweep(lenient, report)),
        ("msr-value", &|report| msrs::values(lenient, lenient_divide, report)),
        ("instruction", &|report| instructions::all(lenient, report)),
        ("pci-config", &pci::all),
        ("descriptor", &|report| rings::all(&nets, machine, report)),
        ("msix", &|report| messages::all(&nets, report)),
        ("icr", &interrupts::icr),
        ("idt", &|report| idt::all(machine, report)),
        ("port", &|report| ports::sweep(&nets, report)),
    ];
    let only = machine.option("only=");
    for (kind, attempt) in all {
        // `idt` runs only if it is named, because it takes long if each interrupt exits.
        let usual = kind != "idt";
        if only.map_or(usual, |kinds| kinds.split(',').any(|wanted| wanted == kind)) {
            report.begin(kind);
            attempt(report);
            report.end();
        }
    }
}
