//! Where the CPU enters a guest's kernel: LSTAR and the handler of page faults. A tool that has the kernel's symbols finds from
//! them how far KASLR has moved the kernel. They are the guest's own words; nothing in the hypervisor relies on them.
//!
//! Follows SDM vol. 3A 5.8.8 (SYSCALL) and 6.14.1 (64-bit gates); APM vol. 2 4.8.4.

use memory::GuestMemory;

use crate::{eli::idt, msr::LSTAR, vcpu::Vcpu, walk};

const EFER_LMA: u64 = 1 << 10;
/// Vector of #PF.
const PAGE_FAULT: u16 = 14;
/// Bytes of a gate in 64-bit mode.
const GATE: u16 = 16;

/// Addresses in a guest's kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelAddresses {
    /// IA32_LSTAR: where SYSCALL goes. 0: the kernel has not set it, or the vCPU is not in long mode.
    pub lstar: u64,
    /// Where the gate of #PF in the IDT goes. 0: there is no such gate, or it cannot be read.
    pub page_fault: u64,
}

impl KernelAddresses {
    /// Reads both, in the vCPU's present state. It reads 16 bytes of the guest's memory, by a walk of its tables.
    pub fn read(vcpu: &impl Vcpu, memory: &GuestMemory) -> Self {
        if vcpu.efer() & EFER_LMA == 0 {
            return Self::default();
        }
        let page_fault = page_fault_handler(vcpu, memory).unwrap_or_default();
        Self { lstar: vcpu.msr(LSTAR).unwrap_or_default(), page_fault }
    }
}

fn page_fault_handler(vcpu: &impl Vcpu, memory: &GuestMemory) -> Option<u64> {
    let (base, limit) = vcpu.idt();
    let at = PAGE_FAULT.checked_mul(GATE)?;
    // A gate across two pages is legal, and no kernel has one.
    if !base.is_multiple_of(GATE.into()) || limit < at.checked_add(GATE - 1)? {
        return None;
    }
    let gpa = walk::translate_for_system(vcpu, memory, base.wrapping_add(at.into())).ok()?;
    let mut gate = [0; GATE as usize];
    memory.read(gpa, &mut gate).ok()?;
    idt::handler(gate)
}

#[cfg(test)]
mod tests {
    use memory::guest::testing;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::FakeVcpu;

    const SYSCALL: u64 = 0xffff_ffff_8e00_0080;
    const HANDLER: u64 = 0xffff_ffff_8e00_1280;
    /// An interrupt gate to [`HANDLER`] by the segment 0x10.
    const INTERRUPT_GATE: [u8; 16] = [0x80, 0x12, 0x10, 0, 0, 0x8e, 0x00, 0x8e, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

    /// A guest with this gate for #PF in its IDT, which is at 0x5000.
    fn guest(gate: [u8; 16]) -> (FakeVcpu, GuestMemory) {
        let memory = testing::memory(0, 0x10_0000);
        memory.write(0x5000 + 14 * 16, &gate).unwrap();
        let mut vcpu = FakeVcpu { idt: (0x5000, 0xfff), ..FakeVcpu::long_mode() };
        vcpu.msrs.insert(LSTAR, SYSCALL);
        (vcpu, memory)
    }

    #[test]
    fn both_addresses_of_a_running_kernel_are_read() {
        let (vcpu, memory) = guest(INTERRUPT_GATE);
        let read = KernelAddresses::read(&vcpu, &memory);
        assert_eq!(read, KernelAddresses { lstar: SYSCALL, page_fault: HANDLER });
    }

    #[test]
    fn a_gate_that_the_cpu_would_not_take_is_none() {
        for (at, value) in [(5, 0x0e), (5, 0x8c), (5, 0x85)] {
            let mut gate = INTERRUPT_GATE;
            gate[at] = value;
            let (vcpu, memory) = guest(gate);
            let read = KernelAddresses::read(&vcpu, &memory);
            assert_eq!(read, KernelAddresses { lstar: SYSCALL, page_fault: 0 }, "byte {at} is {value:#x}");
        }
    }

    #[test]
    fn an_idt_that_is_too_short_or_nowhere_has_no_gate() {
        for idt in [(0x5000, 0xee), (0x5008, 0xfff), (0xfec0_0000, 0xfff), (0, 0), (u64::MAX - 15, 0xffff)] {
            let (vcpu, memory) = guest(INTERRUPT_GATE);
            let read = KernelAddresses::read(&FakeVcpu { idt, ..vcpu }, &memory);
            assert_eq!(read.page_fault, 0, "{idt:x?}");
        }
        let (vcpu, memory) = guest(INTERRUPT_GATE);
        let just_long_enough = FakeVcpu { idt: (0x5000, 0xef), ..vcpu };
        assert_eq!(KernelAddresses::read(&just_long_enough, &memory).page_fault, HANDLER);
    }

    #[test]
    fn a_vcpu_that_is_not_in_long_mode_has_no_addresses() {
        let (vcpu, memory) = guest(INTERRUPT_GATE);
        let read = KernelAddresses::read(&FakeVcpu { efer: 0, ..vcpu }, &memory);
        assert_eq!(read, KernelAddresses::default());
    }

    proptest! {
        #[test]
        fn any_tables_and_any_idt_are_read_without_a_panic(
            base: u64, limit: u16, cr3: u64, words in prop::collection::vec((0..0x2_0000_u64, any::<u64>()), 0..64)
        ) {
            let (vcpu, memory) = guest(INTERRUPT_GATE);
            for (at, word) in words {
                memory.write_u64(at * 8, word).unwrap();
            }
            let vcpu = FakeVcpu { cr0: 0x8000_0011, cr4: 0x20, cr3, idt: (base, limit), ..vcpu };
            prop_assert_eq!(KernelAddresses::read(&vcpu, &memory).lstar, SYSCALL);
        }
    }
}
