//! Tests the local APIC: destinations, priorities, end of interrupt (SDM vol. 3A 11.6 and 11.8).

use bare::cpu::{self, rdmsr, wrmsr};
use bare::trap::{Frame, SPURIOUS};

use crate::apic::{self, in_service, msr, requested, self_ipi};
use crate::events::{self, note, noted};
use crate::report::{Outcome, ensure, equal};
use crate::time;

/// Turns of PAUSE that are enough to take a waiting interrupt.
const SPINS: u32 = 200;

/// The interrupts that were taken, without spurious ones. A CPU takes a spurious interrupt if it finds no request above
/// its priority any more.
fn genuine() -> heapless::Vec<u8, 64> {
    events::vectors().into_iter().filter(|vector| *vector != SPURIOUS).collect()
}

pub fn the_apic_is_in_x2apic_mode() -> Outcome {
    const BOOTSTRAP_ENABLED_X2APIC: u64 = 1 << 8 | 1 << 11 | 1 << 10;
    equal!(rdmsr(msr::BASE) & 0xfff, BOOTSTRAP_ENABLED_X2APIC, "APIC_BASE's flags");
    equal!(rdmsr(msr::ID), u64::from(cpu::cpuid(0xb).edx), "ID");
    let id = rdmsr(msr::ID);
    equal!(rdmsr(msr::LDR), (id & 0xffff_fff0) << 12 | 1 << (id & 0xf), "LDR");
    let version = rdmsr(msr::VERSION);
    ensure!((0x10..=0x1f).contains(&(version & 0xff)), "version {version:#x}");
    Ok(())
}

pub fn self_ipi_arrives() -> Outcome {
    self_ipi(0x41);
    ensure!(time::wait_taken(1), "nothing arrived");
    equal!(events::vectors(), [0x41], "taken");
    Ok(())
}

pub fn every_way_to_name_oneself_arrives() -> Outcome {
    const LOGICAL: u64 = 1 << 11;
    const SELF: u64 = 1 << 18;
    const ALL: u64 = 2 << 18;
    let (id, logical) = (rdmsr(msr::ID), rdmsr(msr::LDR));
    let ways = [id << 32, logical << 32 | LOGICAL, SELF, ALL, 0xffff_ffff << 32];
    for (way, vector) in ways.into_iter().zip(0x41_u8..) {
        wrmsr(msr::ICR, way | u64::from(vector));
        ensure!(time::wait_taken(usize::from(vector - 0x40)), "ICR {way:#x}: nothing arrived");
    }
    equal!(events::vectors(), [0x41, 0x42, 0x43, 0x44, 0x45], "taken");
    Ok(())
}

pub fn commands_to_nobody_go_nowhere() -> Outcome {
    const ALL_BUT_SELF: u64 = 3 << 18;
    for vector in [0x41, 0x4041] {
        // Not 255: as a destination of eight bits it is everybody.
        for id in [1_u64, 2, 7, 0x40, 0xfe, 0x100, 0xffff, 0x7fff_fffe] {
            wrmsr(msr::ICR, id << 32 | vector);
        }
        wrmsr(msr::ICR, ALL_BUT_SELF | vector);
    }
    // INIT, start-up and NMI to IDs that nobody has.
    for command in [0xc500, 0x0610, 0x4400] {
        wrmsr(msr::ICR, 5 << 32 | command);
    }
    cpu::open_interrupts(SPINS);
    equal!(events::taken(), 0, "interrupts");
    self_ipi(0x42);
    ensure!(time::wait_taken(1), "an interrupt after them did not arrive");
    Ok(())
}

pub fn requests_are_taken_by_priority() -> Outcome {
    let vectors = [0x31, 0x62, 0x45, 0xe3, 0x93, 0x95];
    for vector in vectors {
        self_ipi(vector);
    }
    equal!(events::taken(), 0, "taken with IF clear");
    for vector in vectors {
        ensure!(requested(vector), "{vector:#x} is not requested");
        ensure!(!in_service(vector), "{vector:#x} is in service before it is taken");
    }
    // One more may be the host's, where the guest has the APIC.
    let requested = apic::marked(msr::IRR);
    ensure!((6..=7).contains(&requested), "{requested} vectors are requested");
    equal!(apic::marked(msr::TMR), 0, "vectors said to be level-triggered");
    ensure!(time::wait_taken(6), "{} arrived", events::taken());
    equal!(events::vectors(), [0xe3, 0x95, 0x93, 0x62, 0x45, 0x31], "taken");
    Ok(())
}

pub fn a_higher_class_interrupts_a_handler() -> Outcome {
    fn hook(vector: u8, frame: &mut Frame) {
        events::record(vector, frame);
        match vector {
            0x41 => {
                note(0, rdmsr(msr::PPR));
                self_ipi(0x82);
                cpu::open_interrupts(SPINS);
                note(1, events::taken() as u64);
                note(2, rdmsr(msr::PPR));
            }
            _ => {
                note(3, u64::from(in_service(0x41)) << 1 | u64::from(in_service(0x82)));
                note(4, rdmsr(msr::PPR));
            }
        }
    }
    events::set_hook(hook);
    self_ipi(0x41);
    ensure!(time::wait_taken(2), "{} arrived", events::taken());
    equal!(noted(0), 0x40, "PPR in the outer handler");
    equal!(noted(1), 2, "taken when the outer handler closes interrupts again");
    equal!(noted(3), 3, "both in service in the inner handler");
    equal!(noted(4), 0x80, "PPR in the inner handler");
    equal!(noted(2), 0x40, "PPR after it");
    equal!(rdmsr(msr::PPR), 0, "PPR at the end");
    Ok(())
}

pub fn the_same_class_waits_for_the_end_of_interrupt() -> Outcome {
    fn hook(vector: u8, frame: &mut Frame) {
        events::record(vector, frame);
        if vector == 0x41 {
            self_ipi(0x4e);
            self_ipi(0x31);
            cpu::open_interrupts(SPINS);
            note(0, genuine().len() as u64);
            note(1, u64::from(requested(0x4e)) << 1 | u64::from(requested(0x31)));
        }
    }
    events::set_hook(hook);
    self_ipi(0x41);
    ensure!(time::wait(|| genuine().len() == 3), "taken: {:x?}", events::vectors());
    equal!(noted(0), 1, "taken within the handler");
    equal!(noted(1), 3, "requested within the handler");
    equal!(genuine(), [0x41, 0x4e, 0x31], "taken");
    Ok(())
}

pub fn an_end_of_interrupt_ends_the_highest_in_service() -> Outcome {
    fn hook(vector: u8, frame: &mut Frame) {
        events::record(vector, frame);
        if vector == 0x41 {
            self_ipi(0x82);
            cpu::open_interrupts(SPINS);
        } else {
            cpu::end_of_interrupt();
            note(0, u64::from(in_service(0x41)) << 1 | u64::from(in_service(0x82)));
            // The EOI after this hook ends the outer one, that after the outer hook nothing.
        }
    }
    events::set_hook(hook);
    self_ipi(0x41);
    ensure!(time::wait_taken(2), "{} arrived", events::taken());
    equal!(noted(0), 2, "in service after the inner EOI");
    Ok(())
}

pub fn an_end_of_interrupt_without_an_interrupt_is_harmless() -> Outcome {
    self_ipi(0x41);
    cpu::end_of_interrupt();
    ensure!(requested(0x41), "it took a request away");
    ensure!(time::wait_taken(1), "nothing arrived");
    cpu::end_of_interrupt();
    equal!(events::vectors(), [0x41], "taken");
    Ok(())
}

pub fn the_task_priority_holds_its_class_back() -> Outcome {
    wrmsr(msr::TPR, 0x50);
    equal!(rdmsr(msr::PPR), 0x50, "PPR");
    for vector in [0x4f, 0x5f, 0x60] {
        self_ipi(vector);
    }
    ensure!(time::wait_taken(1), "nothing above the priority arrived");
    cpu::open_interrupts(SPINS);
    equal!(events::vectors(), [0x60], "taken above the priority");
    wrmsr(msr::TPR, 0x40);
    ensure!(time::wait_taken(2), "nothing arrived at the lower priority");
    cpu::open_interrupts(SPINS);
    equal!(events::vectors(), [0x60, 0x5f], "taken at the lower priority");
    wrmsr(msr::TPR, 0);
    ensure!(time::wait_taken(3), "nothing arrived at priority 0");
    equal!(events::vectors(), [0x60, 0x5f, 0x4f], "taken in the end");
    Ok(())
}

pub fn cr8_is_the_upper_half_of_the_task_priority() -> Outcome {
    cpu::set_cr8(9);
    equal!(rdmsr(msr::TPR), 0x90, "TPR");
    wrmsr(msr::TPR, 0x4f);
    equal!(cpu::cr8(), 4, "CR8");
    self_ipi(0x49);
    cpu::open_interrupts(SPINS);
    equal!(events::taken(), 0, "taken below the priority");
    cpu::set_cr8(3);
    ensure!(time::wait_taken(1), "nothing arrived");
    cpu::set_cr8(0);
    Ok(())
}

pub fn requests_of_one_vector_fall_together() -> Outcome {
    for _ in 0..5 {
        self_ipi(0x41);
    }
    ensure!(time::wait_taken(1), "nothing arrived");
    cpu::open_interrupts(SPINS);
    equal!(events::taken(), 1, "taken");
    Ok(())
}

pub fn a_raised_priority_makes_no_spurious_interrupt_that_stays() -> Outcome {
    const SOFTWARE_ENABLED: u64 = 1 << 8;
    equal!(rdmsr(msr::SVR), SOFTWARE_ENABLED | u64::from(SPURIOUS), "SVR");
    self_ipi(0x41);
    wrmsr(msr::TPR, 0x80);
    cpu::open_interrupts(SPINS);
    // A spurious interrupt is the hardware's right here; it is not in service, and the request must outlive it.
    equal!(genuine().len(), 0, "taken below the priority");
    ensure!(!in_service(SPURIOUS), "the spurious vector is in service");
    ensure!(requested(0x41), "the request is lost");
    wrmsr(msr::TPR, 0);
    ensure!(time::wait(|| genuine().len() == 1), "nothing arrived");
    Ok(())
}

pub fn a_disabled_apic_masks_its_lvt() -> Outcome {
    const ENTRY: u64 = 0x45;
    wrmsr(msr::LVT_ERROR, ENTRY);
    equal!(rdmsr(msr::LVT_ERROR), ENTRY, "the error entry");
    wrmsr(msr::SVR, SPURIOUS.into());
    equal!(rdmsr(msr::LVT_ERROR), apic::MASKED | ENTRY, "the error entry while disabled");
    wrmsr(msr::LVT_ERROR, ENTRY);
    equal!(rdmsr(msr::LVT_ERROR), apic::MASKED | ENTRY, "an attempt to unmask it");
    apic::init();
    equal!(rdmsr(msr::LVT_ERROR), apic::MASKED | ENTRY, "the error entry when enabled again");
    equal!(rdmsr(msr::LVT_LINT0) & apic::MASKED, apic::MASKED, "LINT0's mask");
    Ok(())
}
