//! The guest's CPUID: the host's answers under the masks of [`policy`], and the guest's own topology, frequencies and
//! hypervisor leaves. It is computed once per guest, because CPUID on the host costs an exit if the host is itself a
//! guest.
//!
//! Follows SDM vol. 2A "CPUID", SDM vol. 3A 9.9 (topology) and vol. 1 13.2 (XSAVE), APM vol. 3 appendix E, and
//! Documentation/virt/kvm/x86/cpuid.rst for the hypervisor's leaves.

extern crate alloc;

use alloc::vec::Vec;

pub mod held_back;
pub mod policy;

use policy::Field;

/// EAX, EBX, ECX and EDX as CPUID returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the registers")]
pub struct Regs {
    pub eax: u32,
    pub ebx: u32,
    pub ecx: u32,
    pub edx: u32,
}

/// The vendor of the CPUID and the MSRs. Hygon counts as AMD, every other vendor as Intel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// "GenuineIntel" and others.
    Intel,
    /// "AuthenticAMD", "HygonGenuine".
    Amd,
}

/// What the guest's CPUID depends on besides the host's.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of vCPUs, at least 1. Each is one core of one package, with its index as APIC ID.
    pub vcpus: u32,
    /// Frequency of the TSC in kHz.
    pub tsc_khz: u64,
    /// Frequency of the local APIC timer in Hz, before division.
    pub timer_hz: u64,
    /// Whether the timer's TSC-deadline mode is offered.
    pub tsc_deadline: bool,
    /// Whether the guest has IA32_TSC_ADJUST.
    pub tsc_adjust: bool,
    /// The back-end lets RDTSCP and RDPID run in the guest.
    pub rdtscp: bool,
    /// The back-end lets INVPCID run in the guest.
    pub invpcid: bool,
}

/// Registers of the vCPU that CPUID's answers depend on.
#[derive(Clone, Copy, Debug)]
pub struct Current {
    /// x2APIC ID.
    pub apic_id: u32,
    /// CR4 as the guest sees it.
    pub cr4: u64,
    /// XCR0.
    pub xcr0: u64,
}

/// A component of the XSAVE area beyond x87 and SSE.
#[derive(Clone, Copy, Debug, Default)]
struct Component {
    size: u32,
    offset: u32,
    aligned: bool,
}

const LEGACY_AND_HEADER: u32 = 512 + 64;
const CR4_OSXSAVE: u64 = 1 << 18;
const CR4_PKE: u64 = 1 << 22;
/// PKU in leaf 7 ECX, and its component in XCR0.
const PKU: u32 = 1 << 3;
const OSPKE: u32 = 1 << 4;
const XCR0_PKRU: u64 = 1 << 9;
const KVM_FEATURE_CLOCKSOURCE2: u32 = 1 << 3;
const KVM_FEATURE_CLOCKSOURCE_STABLE_BIT: u32 = 1 << 24;

/// The CPUID of one guest.
#[derive(Debug)]
pub struct Cpuid {
    leaves: Vec<(u32, u32, Regs)>,
    vendor: Vendor,
    vcpus: u32,
    xcr0: u64,
    compaction: bool,
    components: [Component; 64],
}

/// Returns the frequency in Hz of the guest's local APIC timer (divide by 1). It is the TSC's, halved until it fits 32
/// bits. CPUID 0x15 calls it the crystal clock, and Linux on Intel reads the timer's frequency there.
#[must_use]
pub fn timer_hz(tsc_khz: u64) -> u64 {
    tsc_khz.saturating_mul(1000) >> crystal_shift(tsc_khz)
}

fn crystal_shift(tsc_khz: u64) -> u32 {
    let hz = tsc_khz.saturating_mul(1000);
    32_u32.saturating_sub(hz.leading_zeros())
}

impl Cpuid {
    /// Makes the CPUID of a guest. `host` executes CPUID on the host.
    pub fn new(host: impl Fn(u32, u32) -> Regs, options: &Options) -> Self {
        let first = host(0, 0);
        let vendor = match (first.ebx, first.edx, first.ecx) {
            (0x6874_7541, 0x6974_6e65, 0x444d_4163) | (0x6f67_7948, 0x6e65_476e, 0x656e_6975) => Vendor::Amd,
            _ => Vendor::Intel,
        };
        let last_extended = match host(0x8000_0000, 0).eax {
            max @ 0x8000_0000..=0x8000_ffff => max.min(policy::LAST_EXTENDED),
            _ => 0x8000_0000,
        };
        let mut this = Self {
            leaves: Vec::with_capacity(64),
            vendor,
            vcpus: options.vcpus.max(1),
            xcr0: 0,
            compaction: false,
            components: [Component::default(); 64],
        };
        for rule in policy::LEAVES {
            let last = if rule.leaf < 0x8000_0000 { first.eax } else { last_extended };
            if rule.leaf <= last {
                let h = host(rule.leaf, rule.subleaf);
                let [eax, ebx, ecx, edx] = rule.regs;
                let regs = Regs {
                    eax: field(eax, h.eax),
                    ebx: field(ebx, h.ebx),
                    ecx: field(ecx, h.ecx),
                    edx: field(edx, h.edx),
                };
                this.put(rule.leaf, rule.subleaf, regs);
            }
        }
        this.put(0, 0, Regs { eax: policy::LAST_BASIC, ..first });
        this.put(0x8000_0000, 0, Regs { eax: last_extended, ..host(0x8000_0000, 0) });
        this.features(&host, first.eax, options);
        this.topology(&host, first.eax);
        this.xsave(&host, first.eax);
        // A system switches PKRU between its tasks with XSAVE.
        if this.xcr0 & XCR0_PKRU == 0 && this.get(7, 0).is_some() {
            this.change(7, 0, |r| r.ecx &= !PKU);
        }
        this.own_leaves(options);
        this
    }

    /// Returns what CPUID answers for `leaf` and `subleaf` on a vCPU in state `current`. An unknown leaf is all zero.
    #[must_use]
    pub fn answer(&self, leaf: u32, subleaf: u32, current: &Current) -> Regs {
        // A leaf without sub-leaves answers the same for every ECX.
        let key = if matches!(leaf, 4 | 7 | 0xb | 0xd) { subleaf } else { 0 };
        let mut r = self.get(leaf, key).unwrap_or_default();
        match (leaf, subleaf) {
            (1, _) => {
                r.ebx |= current.apic_id.min(255) << 24;
                let xsave = r.ecx & 1 << 26 != 0;
                r.ecx |= u32::from(xsave && current.cr4 & CR4_OSXSAVE != 0) << 27;
            }
            (0xb, _) => {
                r.ecx |= subleaf & 0xff;
                r.edx = current.apic_id;
            }
            (7, 0) if r.ecx & PKU != 0 && current.cr4 & CR4_PKE != 0 => r.ecx |= OSPKE,
            (0xd, 0) if self.xcr0 != 0 => r.ebx = self.standard_size(current.xcr0),
            (0xd, 1) if self.xcr0 != 0 && self.compaction => r.ebx = self.compacted_size(current.xcr0),
            _ => {}
        }
        r
    }

    /// Returns the vendor.
    #[must_use]
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// Returns CPUID.1:EAX. A processor has it in EDX after INIT.
    #[must_use]
    pub fn signature(&self) -> u32 {
        self.get(1, 0).unwrap_or_default().eax
    }

    /// Returns the bits of IA32_SPEC_CTRL that the guest may set. 0: it does not have the register.
    #[must_use]
    pub fn spec_ctrl(&self) -> u64 {
        let (seven, eight) = (self.get(7, 0).unwrap_or_default(), self.get(0x8000_0008, 0).unwrap_or_default());
        let either = |intel: Option<u32>, amd: u32| {
            intel.is_some_and(|bit| seven.edx >> bit & 1 != 0) || eight.ebx >> amd & 1 != 0
        };
        // IBRS, STIBP, SSBD, PSFD.
        [(0, Some(26), 14), (1, Some(27), 15), (2, Some(31), 24), (7, None, 28)]
            .into_iter()
            .filter(|&(_, intel, amd)| either(intel, amd))
            .fold(0, |bits, (bit, ..)| bits | 1 << bit)
    }

    /// Whether the guest has IA32_PRED_CMD.
    #[must_use]
    pub fn pred_cmd(&self) -> bool {
        self.get(7, 0).is_some_and(|r| r.edx >> 26 & 1 != 0)
            || self.get(0x8000_0008, 0).is_some_and(|r| r.ebx >> 12 & 1 != 0)
    }

    /// Whether the guest has IA32_ARCH_CAPABILITIES.
    #[must_use]
    pub fn arch_capabilities(&self) -> bool {
        self.get(7, 0).is_some_and(|r| r.edx >> 29 & 1 != 0)
    }

    /// Whether XSETBV may set XCR0 to `value` (SDM vol. 1 13.3). x87 must be set. AVX needs SSE. AVX-512 needs all its
    /// three parts and AVX. CPUID must offer all that is set.
    #[must_use]
    pub fn xcr0_allowed(&self, value: u64) -> bool {
        let avx_without_sse = value & 0b110 == 0b100;
        let avx512 = value & 0xe0;
        value & 1 != 0
            && value & !self.xcr0 == 0
            && !avx_without_sse
            && (avx512 == 0 || avx512 == 0xe0 && value & 0b100 != 0)
    }

    fn put(&mut self, leaf: u32, subleaf: u32, regs: Regs) {
        self.leaves.retain(|&(l, s, _)| (l, s) != (leaf, subleaf));
        self.leaves.push((leaf, subleaf, regs));
    }

    fn get(&self, leaf: u32, subleaf: u32) -> Option<Regs> {
        self.leaves.iter().find(|&&(l, s, _)| (l, s) == (leaf, subleaf)).map(|&(_, _, r)| r)
    }

    fn change(&mut self, leaf: u32, subleaf: u32, change: impl FnOnce(&mut Regs)) {
        let mut regs = self.get(leaf, subleaf).unwrap_or_default();
        change(&mut regs);
        self.put(leaf, subleaf, regs);
    }

    /// Sets the bits that every guest has, or that follow from the options.
    fn features(&mut self, host: &impl Fn(u32, u32) -> Regs, last: u32, options: &Options) {
        let many = self.vcpus > 1;
        let logical = self.vcpus.next_power_of_two().min(255);
        self.change(1, 0, |r| {
            r.ecx |= 1 << 21 | 1 << 31; // x2APIC, hypervisor
            r.ecx |= u32::from(options.tsc_deadline) << 24;
            r.ebx |= logical << 16;
            r.edx |= 1 << 9 | u32::from(many) << 28; // APIC; HTT: more than one logical processor
        });
        // ARAT: the timer never stops.
        self.put(6, 0, Regs { eax: 1 << 2, ..Regs::default() });
        let one = self.get(7, 1).is_some_and(|r| r != Regs::default()) && last >= 7 && host(7, 0).eax >= 1;
        if !one {
            self.leaves.retain(|&(leaf, subleaf, _)| (leaf, subleaf) != (7, 1));
        }
        self.change(7, 0, |r| {
            r.eax = u32::from(one);
            r.ebx |= u32::from(options.tsc_adjust && last >= 7) << 1;
            if !options.invpcid {
                r.ebx &= !(1 << 10);
            }
            if !options.rdtscp {
                r.ecx &= !(1 << 22);
            }
        });
        let amd = self.vendor == Vendor::Amd;
        if self.get(0x8000_0001, 0).is_some() {
            self.change(0x8000_0001, 0, |r| {
                if !options.rdtscp {
                    r.edx &= !(1 << 27);
                }
                r.ecx |= u32::from(amd && many) << 1; // CMP_LEGACY
            });
        }
        let cores = self.vcpus;
        if self.get(0x8000_0008, 0).is_some() {
            self.change(0x8000_0008, 0, |r| {
                r.eax |= 48 << 8; // linear address bits: four levels
                if amd {
                    r.ecx = cores.saturating_sub(1) & 0xff | shift_for(cores) << 12;
                }
            });
        }
    }

    /// Sets leaves 4 and 0xB: one package of single-threaded cores. On AMD, TOPOEXT is masked, so 0x8000_001D and
    /// 0x8000_001E are too.
    fn topology(&mut self, host: &impl Fn(u32, u32) -> Regs, last: u32) {
        let core_ids = self.vcpus.next_power_of_two().saturating_sub(1).min(63);
        if self.vendor == Vendor::Intel && last >= 4 {
            for subleaf in 0..8 {
                let mut r = host(4, subleaf);
                if r.eax & 0x1f == 0 {
                    break;
                }
                // All cores share the last level. Each core has its own lower levels.
                let shared = if r.eax >> 5 & 7 >= 3 { self.vcpus.next_power_of_two().saturating_sub(1) } else { 0 };
                r.eax = r.eax & 0x3fff | (shared & 0xfff) << 14 | core_ids << 26;
                self.put(4, subleaf, r);
            }
        }
        // `answer` fills in EDX (the ID) and the level number in ECX.
        self.put(0xb, 0, Regs { eax: 0, ebx: 1, ecx: 1 << 8, edx: 0 });
        self.put(0xb, 1, Regs { eax: shift_for(self.vcpus), ebx: self.vcpus & 0xffff, ecx: 2 << 8, edx: 0 });
    }

    fn xsave(&mut self, host: &impl Fn(u32, u32) -> Regs, last: u32) {
        let has_xsave = self.get(1, 0).is_some_and(|r| r.ecx & 1 << 26 != 0);
        if !has_xsave || last < 0xd {
            return;
        }
        let main = host(0xd, 0);
        self.xcr0 = (u64::from(main.eax) | u64::from(main.edx) << 32) & policy::XCR0 | 0b11;
        let features = host(0xd, 1).eax & policy::XSAVE_FEATURES;
        self.compaction = features & 0b10 != 0;
        for (i, component) in self.components.iter_mut().enumerate().skip(2) {
            if self.xcr0 >> i & 1 != 0 {
                let h = host(0xd, i as u32);
                *component = Component { size: h.eax, offset: h.ebx, aligned: h.ecx & 2 != 0 };
            }
        }
        let xcr0 = self.xcr0;
        let components = self.components;
        for (i, c) in components.iter().enumerate().skip(2).filter(|&(i, _)| xcr0 >> i & 1 != 0) {
            self.put(0xd, i as u32, Regs { eax: c.size, ebx: c.offset, ecx: u32::from(c.aligned) << 1, edx: 0 });
        }
        let largest = self.standard_size(self.xcr0);
        // `answer` fills in EBX of both: the size for the present XCR0.
        self.put(0xd, 0, Regs { eax: self.xcr0 as u32, ebx: 0, ecx: largest, edx: (self.xcr0 >> 32) as u32 });
        self.put(0xd, 1, Regs { eax: features, ..Regs::default() });
    }

    /// Sets the frequencies and the hypervisor's leaves.
    fn own_leaves(&mut self, options: &Options) {
        let mhz = (options.tsc_khz / 1000).min(0xffff) as u32;
        // The TSC's frequency is ECX * EBX / EAX.
        let (denominator, numerator) = if options.timer_hz == timer_hz(options.tsc_khz) {
            (1, 1 << crystal_shift(options.tsc_khz))
        } else {
            ((options.timer_hz / 1000).max(1) as u32, options.tsc_khz as u32)
        };
        self.put(0x15, 0, Regs { eax: denominator, ebx: numerator, ecx: options.timer_hz as u32, edx: 0 });
        self.put(0x16, 0, Regs { eax: mhz, ebx: mhz, ecx: 100, edx: 0 });
        // Without interrupt remapping, Linux keeps x2APIC mode only under a hypervisor that it knows. So this names
        // KVM. The feature bits tell Linux which parts of KVM's interface exist.
        let [ebx, ecx, edx] = [*b"KVMK", *b"VMKV", *b"M\0\0\0"].map(u32::from_le_bytes);
        self.put(0x4000_0000, 0, Regs { eax: 0x4000_0001, ebx, ecx, edx });
        let features = KVM_FEATURE_CLOCKSOURCE2 | KVM_FEATURE_CLOCKSOURCE_STABLE_BIT;
        self.put(0x4000_0001, 0, Regs { eax: features, ..Regs::default() });
    }

    /// Size of the XSAVE area in standard form for the components in `xcr0`.
    fn standard_size(&self, xcr0: u64) -> u32 {
        self.enabled(xcr0).map(|c| c.offset.saturating_add(c.size)).fold(LEGACY_AND_HEADER, u32::max)
    }

    /// Size of the XSAVE area in compacted form for the components in `xcr0`.
    fn compacted_size(&self, xcr0: u64) -> u32 {
        self.enabled(xcr0).fold(LEGACY_AND_HEADER, |end, c| {
            let start = if c.aligned { end.next_multiple_of(64) } else { end };
            start.saturating_add(c.size)
        })
    }

    fn enabled(&self, xcr0: u64) -> impl Iterator<Item = &Component> {
        let present = xcr0 & self.xcr0;
        self.components.iter().enumerate().skip(2).filter(move |(i, _)| present >> i & 1 != 0).map(|(_, c)| c)
    }
}

fn field(field: Field, host: u32) -> u32 {
    match field {
        Field::Zero => 0,
        Field::Host => host,
        Field::Mask(mask) => host & mask,
    }
}

/// Returns how many bits of an APIC ID tell `count` cores apart.
fn shift_for(count: u32) -> u32 {
    count.max(1).next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests;
