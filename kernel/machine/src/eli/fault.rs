//! Tells the host's #NP from the guest's. The host's comes from an interrupt at a gate that the shadow marks absent.
//!
//! SDM vol. 3A 6.13 (error code), 6.15 (#NP, and table 6-5 on double faults), vol. 3C 28.2.4 (IDT-vectoring
//! information); APM vol. 2 8.2.12, 8.2.9, 15.7.2 (EXITINTINFO).

use super::host_vectors::HostVectors;
use crate::vcpu::Interrupted;

/// The cause of a #NP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An interrupt with a vector of the host's. The host takes and ends it.
    Host(u8),
    /// The guest used a vector of the host's in an INT n. It runs the INT n again once it has its table back.
    Claimed(u8),
    /// The guest's own #NP. The guest gets it.
    Guest,
    /// The guest's own #NP during the delivery of an exception. Together they are a double fault.
    DoubleFault,
    /// The guest's own #NP during the delivery of a double fault.
    TripleFault,
}

/// Whether a fault's error code names the IDT (bit 1) and this vector (from bit 3 on). Bit 0 (EXT) is ignored, because
/// not every CPU sets it.
fn names(error: u32, vector: u8) -> bool {
    error & 2 != 0 && error >> 3 == u32::from(vector)
}

/// Returns the cause of a #NP. `error` is its error code. `interrupted` is the event whose delivery it interrupted.
/// `host` are the vectors for which the vCPU's IDT is shadowed, or `None` if it is not.
#[must_use]
pub fn judge(error: u32, interrupted: Option<Interrupted>, host: Option<HostVectors>) -> Verdict {
    let is_host = |v: u8| names(error, v) && host.is_some_and(|h| h.contains(v));
    match interrupted {
        Some(Interrupted::External(v)) if is_host(v) => Verdict::Host(v),
        Some(Interrupted::Software(v)) if is_host(v) => Verdict::Claimed(v),
        Some(Interrupted::Exception(8)) => Verdict::TripleFault,
        // #DE, #TS, #NP, #SS, #GP and #PF are contributory, and so is #NP.
        Some(Interrupted::Exception(0 | 10..=14)) => Verdict::DoubleFault,
        _ => Verdict::Guest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Option<HostVectors> = Some(HostVectors { kick: 0xf5, probe: 0xf0 });

    fn idt(vector: u8) -> u32 {
        u32::from(vector) * 8 + 2
    }

    #[test]
    fn an_interrupt_on_a_gate_of_the_host_s_is_the_host_s_with_ext_or_without() {
        for v in [0xf5, 0xf0] {
            assert_eq!(judge(idt(v), Some(Interrupted::External(v)), HOST), Verdict::Host(v));
            assert_eq!(judge(idt(v) + 1, Some(Interrupted::External(v)), HOST), Verdict::Host(v));
        }
    }

    #[test]
    fn what_is_the_guest_s_own_is_left_to_it() {
        // A segment that is not present.
        assert_eq!(judge(0x28, None, HOST), Verdict::Guest);
        // A selector whose error code looks like a vector of the host's, and a gate that the guest marked absent
        // itself.
        assert_eq!(judge(0xf5 * 8, Some(Interrupted::External(0xf5)), HOST), Verdict::Guest, "a code segment, no gate");
        assert_eq!(judge(idt(0x41), Some(Interrupted::External(0x41)), HOST), Verdict::Guest);
        assert_eq!(judge(idt(0xf5), Some(Interrupted::External(0xf5)), None), Verdict::Guest, "no shadow");
        assert_eq!(judge(idt(2), Some(Interrupted::Nmi), HOST), Verdict::Guest);
        assert_eq!(judge(idt(3), Some(Interrupted::Software(3)), HOST), Verdict::Guest);
        assert_eq!(judge(idt(1), Some(Interrupted::Exception(1)), HOST), Verdict::Guest, "#DB is benign");
    }

    #[test]
    fn an_int_n_on_a_vector_of_the_host_s_claims_it() {
        assert_eq!(judge(idt(0xf5), Some(Interrupted::Software(0xf5)), HOST), Verdict::Claimed(0xf5));
        assert_eq!(judge(idt(0x80), Some(Interrupted::Software(0x80)), HOST), Verdict::Guest);
    }

    #[test]
    fn faults_on_top_of_faults_end_as_on_hardware() {
        for v in [0, 10, 11, 12, 13, 14] {
            assert_eq!(judge(idt(v), Some(Interrupted::Exception(v)), HOST), Verdict::DoubleFault, "vector {v}");
        }
        for v in [1, 3, 4, 5, 6, 7, 16, 17, 18, 19] {
            assert_eq!(judge(idt(v), Some(Interrupted::Exception(v)), HOST), Verdict::Guest, "vector {v}");
        }
        assert_eq!(judge(idt(8), Some(Interrupted::Exception(8)), HOST), Verdict::TripleFault);
    }
}
