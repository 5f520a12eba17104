//! A vCPU's registers, and the states in which it starts.

use bitfield_struct::bitfield;

/// General-purpose registers, in the order of their encoding in an instruction (ModRM + REX).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the registers")]
pub struct Gprs {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rbx: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
}

impl Gprs {
    /// Returns the register with encoding `number` (0 to 15, as in the struct).
    #[must_use]
    pub fn get(&self, number: u8) -> u64 {
        let all = self.all();
        let [.., last] = all;
        all.get(usize::from(number & 15)).copied().unwrap_or(last)
    }

    /// Sets the register with encoding `number`, all 64 bits.
    pub fn set(&mut self, number: u8, value: u64) {
        let r = match number & 15 {
            0 => &mut self.rax,
            1 => &mut self.rcx,
            2 => &mut self.rdx,
            3 => &mut self.rbx,
            4 => &mut self.rsp,
            5 => &mut self.rbp,
            6 => &mut self.rsi,
            7 => &mut self.rdi,
            8 => &mut self.r8,
            9 => &mut self.r9,
            10 => &mut self.r10,
            11 => &mut self.r11,
            12 => &mut self.r12,
            13 => &mut self.r13,
            14 => &mut self.r14,
            _ => &mut self.r15,
        };
        *r = value;
    }

    fn all(&self) -> [u64; 16] {
        [
            self.rax, self.rcx, self.rdx, self.rbx, self.rsp, self.rbp, self.rsi, self.rdi, self.r8, self.r9, self.r10,
            self.r11, self.r12, self.r13, self.r14, self.r15,
        ]
    }

    /// EDX:EAX, as RDMSR and WRMSR use them.
    #[must_use]
    pub fn edx_eax(&self) -> u64 {
        self.rdx << 32 | self.rax & 0xffff_ffff
    }

    /// Puts a value into EDX:EAX, the upper halves zeroed.
    pub fn set_edx_eax(&mut self, value: u64) {
        self.rax = value & 0xffff_ffff;
        self.rdx = value >> 32;
    }
}

/// Segment attributes in the layout of a descriptor's bits 40 to 55 (SDM vol. 3A 3.4.5). The VMCB drops bits 8 to 11.
/// The VMCS keeps this layout and adds "unusable" in bit 16.
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct SegmentAttributes {
    /// Type field.
    #[bits(4)]
    pub kind: u8,
    /// S: code or data (not system).
    pub code_or_data: bool,
    /// DPL.
    #[bits(2)]
    pub dpl: u8,
    /// P.
    pub present: bool,
    #[bits(4)]
    __: u8,
    /// AVL.
    pub available: bool,
    /// L: 64-bit code.
    pub long: bool,
    /// D/B: 32-bit default.
    pub default_32: bool,
    /// G: limit counts 4 KiB units.
    pub granularity: bool,
}

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Selector.
    pub selector: u16,
    /// Attributes. A segment that is not present is unusable.
    pub attributes: SegmentAttributes,
    /// Limit in bytes (already scaled by G).
    pub limit: u32,
    /// Base, linear.
    pub base: u64,
}

/// Which segment register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the registers")]
pub enum SegmentName {
    Es,
    Cs,
    Ss,
    Ds,
    Fs,
    Gs,
    Ldtr,
    Tr,
}

/// The registers of a vCPU when it is made or started again.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are the registers")]
pub struct StartState {
    pub gprs: Gprs,
    pub rip: u64,
    pub rflags: u64,
    pub cr0: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
    pub cs: Segment,
    /// ES, SS, DS, FS and GS alike.
    pub data: Segment,
    pub tr: Segment,
    pub ldtr: Segment,
    pub gdt: (u64, u16),
    pub idt: (u64, u16),
}

impl StartState {
    /// Returns the state for the 64-bit entry of the Linux boot protocol (Documentation/arch/x86/boot.rst). Paging is
    /// on with `cr3`. The flat segments 0x10 and 0x18 come from the table at `gdt`. Interrupts are off. RSI points to
    /// the boot parameters.
    #[must_use]
    pub fn linux_64(entry: u64, boot_params: u64, cr3: u64, gdt: (u64, u16)) -> Self {
        let flat = |selector, attributes| Segment { selector, attributes, limit: 0xffff_ffff, base: 0 };
        let access = |kind, long: bool, code_or_data| {
            SegmentAttributes::new()
                .with_kind(kind)
                .with_code_or_data(code_or_data)
                .with_present(true)
                .with_long(long)
                .with_default_32(!long && code_or_data)
                .with_granularity(true)
        };
        Self {
            gprs: Gprs { rsi: boot_params, ..Gprs::default() },
            rip: entry,
            rflags: 2,
            cr0: 0x8005_0033, // PG, AM, WP, NE, ET, MP, PE
            cr3,
            cr4: 0x20,   // PAE
            efer: 0x500, // LMA, LME
            cs: flat(0x10, access(0xb, true, true)),
            data: flat(0x18, access(0x3, false, true)),
            tr: Segment {
                selector: 0x20,
                attributes: access(0xb, false, false).with_granularity(false),
                limit: 0x67,
                base: 0,
            },
            ldtr: Segment::default(),
            gdt,
            idt: (0, 0),
        }
    }

    /// Returns the state for the PVH entry (Xen, docs/misc/pvh.pandoc). The CPU is in 32-bit protected mode with flat
    /// segments, and paging is off. Interrupts are off. EBX points to `start_info`. The descriptor tables are empty, so
    /// the guest loads its own before it loads a segment register.
    #[must_use]
    pub fn pvh(entry: u32, start_info: u32) -> Self {
        let linux = Self::linux_64(entry.into(), 0, 0, (0, 0));
        let code = linux.cs.attributes.with_long(false).with_default_32(true);
        Self {
            gprs: Gprs { rbx: start_info.into(), ..Gprs::default() },
            cr0: 0x11, // ET, PE
            cr4: 0,
            efer: 0,
            cs: Segment { attributes: code, ..linux.cs },
            ..linux
        }
    }

    /// Returns the state after a start-up IPI with `vector` (SDM vol. 3A 10.4.4): real mode at vector * 4 KiB.
    /// `signature` is CPUID.1:EAX, which INIT leaves in EDX.
    #[must_use]
    pub fn startup_ipi(vector: u8, signature: u32) -> Self {
        let real = |selector: u16, kind| Segment {
            selector,
            attributes: SegmentAttributes::new().with_kind(kind).with_code_or_data(true).with_present(true),
            limit: 0xffff,
            base: u64::from(selector) << 4,
        };
        let system = |kind| Segment {
            selector: 0,
            attributes: SegmentAttributes::new().with_kind(kind).with_present(true),
            limit: 0xffff,
            base: 0,
        };
        Self {
            gprs: Gprs { rdx: u64::from(signature), ..Gprs::default() },
            rip: 0,
            rflags: 2,
            cr0: 0x10, // ET; INIT leaves CD and NW as they are, and the guest's are clear
            cr3: 0,
            cr4: 0,
            efer: 0,
            cs: real(u16::from(vector) << 8, 0xb),
            data: real(0, 0x3),
            tr: system(0xb),
            ldtr: system(0x2),
            gdt: (0, 0xffff),
            idt: (0, 0xffff),
        }
    }
}
