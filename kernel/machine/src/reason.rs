//! The reasons of exits: a stable name for each, and a histogram per vCPU with the number of exits and their cycles.
//!
//! The names are an interface: they appear in reports and on COM2, and are never renamed.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// The reason of an exit, as the histogram counts it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason { $($(#[$doc])* $variant,)+ }

        impl Reason {
            /// Every reason, in the order of the histogram.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name in reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

reasons! {
    /// CPUID.
    Cpuid = "cpuid",
    /// HLT.
    Halt = "hlt",
    /// End of interrupt: a write to x2APIC register 0x80B.
    MsrApicEoi = "msr-apic-eoi",
    /// An interrupt command: a write to x2APIC register 0x830 or 0x83F.
    MsrApicIcr = "msr-apic-icr",
    /// The local timer: initial count, divide configuration or IA32_TSC_DEADLINE.
    MsrApicTimer = "msr-apic-timer",
    /// Any other register of the local APIC.
    MsrApicOther = "msr-apic-other",
    /// Any other MSR.
    MsrOther = "msr-other",
    /// The serial console.
    IoUart = "io-uart",
    /// Notification of a virtio device, by a port.
    IoVirtioNotify = "io-virtio-notify",
    /// Configuration space through 0xCF8 and 0xCFC.
    IoPciConfig = "io-pci-config",
    /// Any other port.
    IoOther = "io-other",
    /// A register of a PCI function in memory.
    MmioPci = "mmio-pci",
    /// Notification of a virtio device, by a store to memory.
    MmioVirtioNotify = "mmio-virtio-notify",
    /// Configuration space through ECAM.
    MmioPciConfig = "mmio-pci-config",
    /// The IOAPIC.
    MmioIoapic = "mmio-ioapic",
    /// A guest-physical address with nothing behind it.
    NestedFault = "nested-fault",
    /// The guest's first fetch from a page, on a CPU where only pages of 4 KiB are executable.
    PageSplit = "page-split",
    /// A physical interrupt for the host, for example of its timer.
    ExternalInterrupt = "external-interrupt",
    /// An NMI: another core has work for this vCPU.
    Nmi = "nmi",
    /// An NMI with nothing in the mailbox itself, for a vCPU whose local APIC the CPU virtualizes. A sender wanted to
    /// wake the vCPU from a HLT that had exited, but the vCPU had already woken. The interrupt itself was posted and
    /// costs no exit.
    LateWake = "late-wake",
    /// The guest can now take an interrupt that waits for it.
    InterruptWindow = "interrupt-window",
    /// MOV to or from CR8.
    Cr8 = "cr8",
    /// An access to CR0, or a write of CR4, that the processor alone may not decide.
    ControlRegister = "control-register",
    /// The guest's timer was due.
    Deadline = "deadline",
    /// The end of a level-triggered interrupt, in a local APIC that the CPU virtualizes.
    VirtualEoi = "virtual-eoi",
    /// Any other access to a local APIC that the CPU virtualizes, if the CPU left it to the host.
    ApicWrite = "apic-write",
    /// XSETBV.
    Xsetbv = "xsetbv",
    /// An instruction did not end in time.
    InstructionTimeout = "instruction-timeout",
    /// VMCALL or VMMCALL.
    Hypercall = "hypercall",
    /// INVD or WBINVD.
    CacheFlush = "cache-flush",
    /// An instruction that this machine does not have.
    Forbidden = "forbidden-instruction",
    /// A split or bus lock.
    SplitLock = "split-lock",
    /// An exception that the host intercepts.
    Exception = "exception",
    /// An interrupt with a vector of the host's, on a gate that the shadow IDT marks absent.
    ShadowInterrupt = "shadow-interrupt",
    /// A write to the page of the IDT while it is shadowed.
    ShadowWrite = "shadow-write",
    /// LIDT, or another instruction on a descriptor-table register, while the IDT is shadowed.
    DescriptorTable = "descriptor-table",
    /// Triple fault.
    TripleFault = "triple-fault",
    /// An exit that this hypervisor does not provide for.
    Unexpected = "unexpected",
}

/// Exits of one vCPU by reason: counts and cycles. Only the vCPU's own core writes it. Any core may read it.
#[derive(Debug)]
pub struct Histogram {
    rows: [[AtomicU64; 2]; Reason::ALL.len()],
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// All zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { rows: [const { [const { AtomicU64::new(0) }; 2] }; Reason::ALL.len()] }
    }

    /// Counts an exit that took `cycles` of the TSC from exit to entry. Only the vCPU's own core may call it. With one
    /// writer, a load and a store are enough, and no exit pays for a locked instruction.
    #[inline]
    pub fn record(&self, reason: Reason, cycles: u64) {
        let Some([count, sum]) = self.rows.get(reason as usize) else { return };
        count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
        sum.store(sum.load(Relaxed).wrapping_add(cycles), Relaxed);
    }

    /// Returns the number of exits for `reason`, and their cycles. One of the two may already include an exit that the
    /// other does not.
    #[must_use]
    pub fn get(&self, reason: Reason) -> (u64, u64) {
        self.rows.get(reason as usize).map_or((0, 0), |[count, sum]| (count.load(Relaxed), sum.load(Relaxed)))
    }

    /// Resets all to zero for a guest's next life. Call it only while its vCPU does not run.
    pub fn clear(&self) {
        for cell in self.rows.iter().flatten() {
            cell.store(0, Relaxed);
        }
    }

    /// Returns every reason that has occurred, with its count and cycles.
    pub fn iter(&self) -> impl Iterator<Item = (Reason, u64, u64)> + '_ {
        Reason::ALL.iter().map(|&r| (r, self.get(r).0, self.get(r).1)).filter(|&(_, count, _)| count != 0)
    }

    /// Returns the number of exits for all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count, _)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_counts_for_its_own_reason_only() {
        let h = Histogram::new();
        h.record(Reason::Cpuid, 100);
        h.record(Reason::Cpuid, 50);
        h.record(Reason::Unexpected, 7);
        assert_eq!(h.iter().collect::<Vec<_>>(), [(Reason::Cpuid, 2, 150), (Reason::Unexpected, 1, 7)]);
        assert_eq!(h.total(), 3);
    }

    #[test]
    fn names_are_distinct_and_fit_for_json_keys() {
        for (i, a) in Reason::ALL.iter().enumerate() {
            assert_eq!(*a as usize, i, "the histogram is indexed by discriminant");
            assert!(a.name().bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-'));
            assert!(Reason::ALL[..i].iter().all(|b| b.name() != a.name()));
        }
    }
}
