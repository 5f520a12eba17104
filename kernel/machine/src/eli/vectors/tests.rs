//! Tests the choice of vectors alone.

use super::{host_vectors::HostVectors, idt::Image, vectors::*};

#[test]
fn the_host_s_vectors_are_never_those_that_the_guest_has_used() {
    let used = Used::default();
    let mut taken = Vec::new();
    while let Some(host) = choose(&used, None) {
        assert_ne!(host.kick, host.probe);
        for v in [host.kick, host.probe] {
            assert!((FIRST..=0xfe).contains(&v), "{v:#x} is an exception's or the host's spurious vector");
            assert!(host.contains(v) && !taken.contains(&v));
            taken.push(v);
            used.add(v);
        }
    }
    assert_eq!(taken.len(), usize::from(0xfe - FIRST + 1) / 2 * 2, "all can be used up");
    assert_eq!(taken[0], 0xf5);
}

#[test]
fn a_gate_that_would_not_fault_by_np_is_left_alone() {
    let mut bytes = [0; 4096];
    for vector in [0x41_usize, 0x80] {
        bytes[vector * 16 + 5] = 0x8e;
    }
    bytes[0xf5 * 16 + 5] = 0x85; // a task gate: #GP in 64-bit mode
    let image = Image(bytes);
    assert_eq!(choose(&Used::default(), Some(&image)), Some(HostVectors { kick: 0x80, probe: 0x41 }));
    let used = Used::default();
    used.add(0x41);
    assert_eq!(choose(&used, Some(&image)), None);
}

#[test]
fn no_vectors_are_told_from_any() {
    assert_eq!(HostVectors::from_bits(HostVectors::to_bits(None)), None);
    let host = HostVectors { kick: 0xf5, probe: 0x20 };
    assert_eq!(HostVectors::from_bits(HostVectors::to_bits(Some(host))), Some(host));
}
