//! A guest's interrupt descriptor table in 64-bit mode, and its shadow (SDM vol. 3A 6.10, 6.14.1; APM vol. 2 4.8.4).

use core::fmt;

use memory::GuestMemory;

use crate::{
    vcpu::Vcpu,
    walk::{self, PageFault},
};

use super::host_vectors::HostVectors;

const EFER_LMA: u64 = 1 << 10;
const PAGE: u64 = 4096;
/// All 256 gates of 16 bytes.
const FULL_LIMIT: u16 = 0xfff;
/// P, in byte 5 of a gate.
const PRESENT: u8 = 1 << 7;
/// S and the type, in byte 5 of a gate. They tell an interrupt gate or a trap gate.
const KIND: u8 = 0x1f;
const INTERRUPT_GATE: u8 = 0xe;
const TRAP_GATE: u8 = 0xf;

/// Why an IDT cannot be shadowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// The vCPU is not in long mode.
    NotLongMode,
    /// The table does not fill one page: its base is not aligned or its limit too small.
    NotOnePage {
        /// IDTR base, linear.
        base: u64,
        /// IDTR limit.
        limit: u16,
    },
    /// The guest's own tables do not map it.
    NotMapped(PageFault),
    /// Its guest-physical address is not memory.
    NotMemory(u64),
    /// Another vCPU's table is shadowed, and it is a different one.
    Another,
    /// There are too few gates that the guest does not use.
    NoVectors,
}

impl Unfit {
    /// Returns a bit for each kind.
    pub(super) fn bit(self) -> u32 {
        1 << match self {
            Self::NotLongMode => 0,
            Self::NotOnePage { .. } => 1,
            Self::NotMapped(_) => 2,
            Self::NotMemory(_) => 3,
            Self::Another => 4,
            Self::NoVectors => 5,
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLongMode => f.write_str("it is not in long mode"),
            Self::NotOnePage { base, limit } => {
                write!(f, "its IDT is not one aligned page (base {base:#x}, limit {limit:#x})")
            }
            Self::NotMapped(fault) => write!(f, "its IDT at {:#x} is not mapped", fault.address),
            Self::NotMemory(gpa) => write!(f, "its IDT at guest address {gpa:#x} is not in its memory"),
            Self::Another => f.write_str("another of its vCPUs has another IDT"),
            Self::NoVectors => f.write_str("it leaves no vectors for the host"),
        }
    }
}

/// Returns the guest-physical address of the page with the vCPU's IDT.
///
/// # Errors
/// The vCPU has no IDT that can be shadowed.
pub fn page(vcpu: &impl Vcpu, memory: &GuestMemory) -> Result<u64, Unfit> {
    let (base, limit) = vcpu.idt();
    if vcpu.efer() & EFER_LMA == 0 {
        return Err(Unfit::NotLongMode);
    }
    if base % PAGE != 0 || limit < FULL_LIMIT {
        return Err(Unfit::NotOnePage { base, limit });
    }
    let gpa = walk::translate_for_system(vcpu, memory, base).map_err(Unfit::NotMapped)?;
    match memory.translate(gpa, PAGE) {
        Ok(_) if gpa % PAGE == 0 => Ok(gpa),
        _ => Err(Unfit::NotMemory(gpa)),
    }
}

/// Returns where a gate goes. `None`: it is not present, or neither an interrupt gate nor a trap gate.
#[must_use]
pub fn handler(gate: [u8; 16]) -> Option<u64> {
    let [offset_0, offset_1, _, _, _, kind, offset_2, offset_3, offset_4, offset_5, offset_6, offset_7, ..] = gate;
    let goes = kind & PRESENT != 0 && matches!(kind & KIND, INTERRUPT_GATE | TRAP_GATE);
    let offset = [offset_0, offset_1, offset_2, offset_3, offset_4, offset_5, offset_6, offset_7];
    goes.then_some(u64::from_le_bytes(offset))
}

/// A copy of an IDT.
pub struct Image(pub [u8; 4096]);

impl Image {
    /// Copies the page at `gpa`. Returns `None` if it is not the guest's memory.
    #[must_use]
    pub fn read(memory: &GuestMemory, gpa: u64) -> Option<Self> {
        let mut this = Self([0; 4096]);
        memory.read(gpa, &mut this.0).ok().map(|()| this)
    }

    /// Whether the CPU checks the P bit of this vector's gate. It checks the type first, and faults by #GP if that is
    /// not a gate's.
    #[must_use]
    pub fn is_gate(&self, vector: u8) -> bool {
        let gate = self.0.as_chunks::<16>().0.get(usize::from(vector));
        gate.is_some_and(|gate| matches!(gate[5] & KIND, INTERRUPT_GATE | TRAP_GATE))
    }

    /// Clears P in the host's gates and changes nothing else. An interrupt there becomes #NP.
    pub fn shadow(&mut self, host: HostVectors) {
        for vector in [host.kick, host.probe] {
            if let Some(gate) = self.0.as_chunks_mut::<16>().0.get_mut(usize::from(vector)) {
                gate[5] &= !PRESENT;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use memory::guest::testing;

    use super::*;
    use crate::testing::FakeVcpu;

    fn fit(base: u64, limit: u16) -> Result<u64, Unfit> {
        let memory = testing::memory(0, 0x10_0000);
        page(&FakeVcpu { idt: (base, limit), ..FakeVcpu::long_mode() }, &memory)
    }

    #[test]
    fn one_aligned_page_of_its_memory_is_what_an_idt_has_to_be() {
        assert_eq!(fit(0x5000, 0xfff), Ok(0x5000));
        assert_eq!(fit(0x5000, 0xffff), Ok(0x5000), "there are no gates beyond the 256th");
        assert_eq!(fit(0x5000, 0xffe), Err(Unfit::NotOnePage { base: 0x5000, limit: 0xffe }));
        assert_eq!(fit(0x5ff0, 0xfff), Err(Unfit::NotOnePage { base: 0x5ff0, limit: 0xfff }), "across two pages");
        assert_eq!(fit(0, 0), Err(Unfit::NotOnePage { base: 0, limit: 0 }), "none yet");
        assert_eq!(fit(0xfec0_0000, 0xfff), Err(Unfit::NotMemory(0xfec0_0000)));
        assert_eq!(fit(0x10_0000, 0xfff), Err(Unfit::NotMemory(0x10_0000)), "the first page beyond");
        let legacy = FakeVcpu { idt: (0x5000, 0xfff), efer: 0, ..FakeVcpu::long_mode() };
        assert_eq!(page(&legacy, &testing::memory(0, 0x10_0000)), Err(Unfit::NotLongMode));
    }

    #[test]
    fn an_idt_that_the_guest_s_tables_do_not_map_is_none() {
        let memory = testing::memory(0, 0x10_0000);
        let vcpu =
            FakeVcpu { idt: (0xffff_fe00_0000_0000, 0xfff), cr0: 0x8000_0011, cr3: 0x8000, ..FakeVcpu::long_mode() };
        assert!(matches!(page(&vcpu, &memory), Err(Unfit::NotMapped(_))));
        // Mapped for the kernel only, and looked for while the guest is in user mode: delivery is a system access.
        for (table, index, value) in
            [(0x8000, 0x1fc_u64, 0x9003_u64), (0x9000, 0, 0xa003), (0xa000, 0, 0xb003), (0xb000, 0, 0x7001)]
        {
            memory.write_u64(table + index * 8, value).unwrap();
        }
        let user = FakeVcpu { cpl: 3, ..vcpu };
        assert_eq!(page(&user, &memory), Ok(0x7000));
    }

    #[test]
    fn the_shadow_differs_in_the_p_bits_of_the_host_s_gates_alone() {
        let mut bytes = [0; 4096];
        for (i, b) in bytes.iter_mut().enumerate() {
            *b = if i % 16 == 5 { 0x8e } else { i as u8 };
        }
        let mut image = Image(bytes);
        image.shadow(HostVectors { kick: 0xf5, probe: 0x30 });
        let differ: Vec<_> = (0..4096).filter(|&i| image.0[i] != bytes[i]).collect();
        assert_eq!(differ, [0x305, 0xf55]);
        assert_eq!(image.0[0xf55], 0x0e, "the type is kept");
    }
}
