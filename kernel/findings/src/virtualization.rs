//! VT-x or SVM: which of them the processor has, what it has of it, and how guests' I/O can be completed with it.

use ::machine::cpuid::Regs;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use config::Completion;
use control::{ReportEntry, ReportKind};

use crate::{entry, fallback, found, missing};

/// The processor's virtualization.
#[derive(Clone, Copy, Debug)]
pub enum Virtualization {
    /// AMD's and Hygon's.
    Svm(svm::Capabilities),
    /// Intel's.
    Vmx(vmx::Capabilities),
}

impl Virtualization {
    /// Finds what the processor has.
    ///
    /// # Errors
    /// It has none, or SVM lacks something required, or the firmware has switched SVM off. The sentence says what would
    /// help. Whether VT-x has all that is required says [`is_sufficient`](Self::is_sufficient).
    pub fn find(cpuid: impl Fn(u32, u32) -> [u32; 4], rdmsr: impl Fn(u32) -> u64) -> Result<Self, ReportEntry> {
        let registers = |leaf, subleaf| {
            let [eax, ebx, ecx, edx] = cpuid(leaf, subleaf);
            Regs { eax, ebx, ecx, edx }
        };
        let missing_svm = match svm::Capabilities::read(registers, &rdmsr) {
            Ok(capabilities) => return Ok(Self::Svm(capabilities)),
            Err(missing) => missing,
        };
        if registers(1, 0).ecx & 1 << 5 != 0 {
            return Ok(Self::Vmx(vmx::Capabilities::read(registers, rdmsr)));
        }
        Err(match missing_svm {
            svm::Missing::Svm => missing(
                "this CPU offers neither VT-x nor SVM, so no guest can run; on a server switch \"Virtualization \
                 Technology\" or \"SVM\" on in the firmware's setup, in a virtual machine give the CPU nested \
                 virtualization",
            ),
            why => missing(format!("{why}")),
        })
    }

    /// Whether guests can run.
    #[must_use]
    pub fn is_sufficient(&self) -> bool {
        match self {
            Self::Svm(_) => true,
            Self::Vmx(capabilities) => capabilities.sufficient(),
        }
    }

    /// What it has and what it lacks.
    #[must_use]
    pub fn describe(&self) -> Vec<ReportEntry> {
        match self {
            Self::Svm(capabilities) => describe_svm(capabilities),
            Self::Vmx(capabilities) => describe_vmx(capabilities),
        }
    }

    /// Returns why guests' I/O cannot be completed that way with it, or `None` if it can.
    #[must_use]
    pub fn refusal(&self, completion: Completion) -> Option<String> {
        match (completion, self) {
            (Completion::Posted, Self::Vmx(capabilities)) => {
                capabilities.posted_interrupts().err().map(|e| format!("{e}"))
            }
            (Completion::Posted, Self::Svm(_)) => {
                Some("posted interrupts are VT-x's, which this machine does not have".into())
            }
            (Completion::Eli, Self::Vmx(capabilities)) => capabilities.shadow_idt().err().map(|e| format!("{e}")),
            // Every SVM has the intercepts. Every machine has an x2APIC, because sidecore requires it.
            (Completion::Eli, Self::Svm(_)) | (Completion::Auto | Completion::Inject | Completion::Direct, _) => None,
        }
    }

    /// How guests' I/O is completed if the configuration does not say.
    #[must_use]
    pub fn completion(&self) -> ReportEntry {
        entry(ReportKind::Decision, config::best_completion(|completion| self.refusal(completion)).1)
    }
}

fn describe_svm(capabilities: &svm::Capabilities) -> Vec<ReportEntry> {
    let mut said = Vec::from([found(format!("SVM with nested paging and {} ASIDs", capabilities.asids))]);
    said.extend(capabilities.optional().map(|o| match o.present {
        true => found(format!("SVM: {}", o.name)),
        false => fallback(format!("SVM without {}: {}", o.name, o.fallback)),
    }));
    said.push(found("SVM: interrupts by `eli` (#NP and IDTR intercepts)"));
    said
}

fn describe_vmx(capabilities: &vmx::Capabilities) -> Vec<ReportEntry> {
    let mut said: Vec<_> = capabilities
        .findings()
        .iter()
        .map(|f| match (f.found, f.required) {
            (true, _) => found(format!("{f}")),
            (false, true) => missing(format!("{f}")),
            (false, false) => fallback(format!("{f}")),
        })
        .collect();
    if capabilities.sufficient() {
        said.push(match capabilities.shadow_idt() {
            Ok(()) => found("VT-x: interrupts by `eli` (#NP and descriptor-table exits)"),
            Err(e) => fallback(format!("VT-x: no interrupts by `eli`: {e}")),
        });
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    const SVM_DISABLED_AND_LOCKED: u64 = 1 << 4 | 1 << 3;

    /// CPUID of a processor with SVM and nested paging.
    fn amd(leaf: u32, _: u32) -> [u32; 4] {
        match leaf {
            0x8000_0000 => [0x8000_001f, 0, 0, 0],
            0x8000_0001 => [0, 0, 1 << 2, 0],
            0x8000_000a => [1, 16, 0, 1],
            _ => [0; 4],
        }
    }

    #[test]
    fn a_processor_with_neither_is_told_what_helps() {
        let entry = Virtualization::find(|_, _| [0; 4], |msr| panic!("MSR {msr:#x} is read")).unwrap_err();
        assert_eq!(entry.kind, ReportKind::RequiredMissing);
        assert!(entry.text.contains("neither VT-x nor SVM"));
    }

    #[test]
    fn svm_that_the_firmware_has_switched_off_is_no_processor_without_it() {
        let entry = Virtualization::find(amd, |_| SVM_DISABLED_AND_LOCKED).unwrap_err();
        assert!(entry.text.contains("the firmware has disabled SVM"), "{}", entry.text);
        let found = Virtualization::find(amd, |_| 0).expect("SVM");
        assert!(found.is_sufficient());
        assert_eq!(found.describe()[0].text, "SVM with nested paging and 16 ASIDs");
        let completion = found.completion();
        assert_eq!(completion.kind, ReportKind::Decision);
        assert!(completion.text.starts_with("completions are by eli"), "{}", completion.text);
    }

    #[test]
    fn vt_x_that_lacks_something_says_what_and_promises_no_eli() {
        // Leaf 1 has VMX; every MSR is 0, so no control may be set.
        let found = Virtualization::find(|leaf, _| [0, 0, if leaf == 1 { 1 << 5 } else { 0 }, 0], |_| 0);
        let found = found.expect("VT-x");
        assert!(!found.is_sufficient());
        let said = found.describe();
        assert!(said.iter().any(|entry| entry.kind == ReportKind::RequiredMissing));
        assert!(!said.iter().any(|entry| entry.text.contains("`eli`")));
        assert!(found.refusal(Completion::Posted).is_some() && found.refusal(Completion::Inject).is_none());
    }
}
