//! The table of PCI's configuration space in memory (PCI Firmware Specification 3.3, 4.1.2).

use alloc::vec::Vec;

use super::HEADER;
use crate::words::{double, quad};

/// Most windows that are returned. A server with 32 sockets has as many segments.
const MOST_WINDOWS: usize = 64;
/// Bytes of a bus, as a power of two.
const BUS_BITS: u32 = 20;

/// A window of ECAM: memory in which the functions of some buses of a segment are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EcamWindow {
    /// Physical address where bus 0 is, or would be.
    pub base: u64,
    /// PCI segment group.
    pub segment: u16,
    /// First bus.
    pub first: u8,
    /// Last bus.
    pub last: u8,
}

impl EcamWindow {
    /// Physical address of the first bus.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.base.wrapping_add((self.first as u64) << BUS_BITS)
    }

    /// Physical address behind the last bus.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.base.wrapping_add((self.last as u64 + 1) << BUS_BITS)
    }
}

/// Returns the windows of an MCFG in its order, at most 64. Left out are those that end before they begin, are beyond the address space,
/// do not begin at a multiple of a bus's bytes, or overlap one before.
#[must_use]
pub fn ecam(mcfg: &[u8]) -> Vec<EcamWindow> {
    const ENTRIES: usize = HEADER + 8;
    let entries = mcfg.get(ENTRIES..).unwrap_or(&[]).as_chunks::<16>().0.iter();
    let mut windows: Vec<EcamWindow> = Vec::new();
    for entry in entries {
        let (Some(base), Some(rest)) = (quad(entry, 0), double(entry, 8)) else { break };
        let [low, high, first, last] = rest.to_le_bytes();
        let window = EcamWindow { base, segment: u16::from_le_bytes([low, high]), first, last };
        let usable = first <= last && base.checked_add(256 << BUS_BITS).is_some() && base.trailing_zeros() >= BUS_BITS;
        let overlaps = |other: &EcamWindow| window.start() < other.end() && other.start() < window.end();
        if usable && windows.len() < MOST_WINDOWS && !windows.iter().any(overlaps) {
            windows.push(window);
        }
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mcfg(windows: &[(u64, u16, u8, u8)]) -> Vec<u8> {
        let entry = |&(base, segment, first, last): &(u64, u16, u8, u8)| {
            [&base.to_le_bytes()[..], &segment.to_le_bytes(), &[first, last], &[0; 4]].concat()
        };
        let windows: Vec<u8> = windows.iter().flat_map(entry).collect();
        [vec![0; 44], windows, vec![7; 15]].concat()
    }

    #[test]
    fn windows_of_published_servers_are_where_their_kernels_say() {
        // Two nodes with two segments and one base, and eight sockets with a segment each (the first four): "MMCONFIG for domain"
        // in logs that their users have published.
        let nodes = ecam(&mcfg(&[(0xf000_0000, 0, 0, 0x3f), (0xf000_0000, 1, 0x40, 0x7f)]));
        let ranges =
            |windows: &[EcamWindow]| windows.iter().map(|w| (w.segment, w.start(), w.end())).collect::<Vec<_>>();
        assert_eq!(ranges(&nodes), [(0, 0xf000_0000, 0xf400_0000), (1, 0xf400_0000, 0xf800_0000)]);
        let sockets = [
            (0x8000_0000, 0, 0, 0xfe),
            (0xfff_0000_0000, 1, 0, 0xfe),
            (0xfff_3000_0000, 2, 0, 0xfe),
            (0xfff_2000_0000, 3, 0, 0xfe),
        ];
        let sockets = ranges(&ecam(&mcfg(&sockets)));
        assert_eq!(sockets.len(), 4);
        assert_eq!(sockets[0], (0, 0x8000_0000, 0x8ff0_0000));
        assert_eq!(sockets[2], (2, 0xfff_3000_0000, 0xfff_3ff0_0000));
    }

    #[test]
    fn windows_that_make_no_sense_are_left_out() {
        let good = (0xe000_0000, 0, 0, 255);
        let bad = [
            (0xe000_0000, 0, 0, 255),
            (0xe800_0000, 1, 0, 9),
            (0xd000_0000, 0, 3, 2),
            (u64::MAX << 20, 0, 0, 0),
            (0x1_0000_1000, 0, 0, 0),
        ];
        for bad in bad {
            assert_eq!(ecam(&mcfg(&[good, bad])).len(), 1, "{bad:x?}");
        }
        assert_eq!(ecam(&mcfg(&[good]))[0], EcamWindow { base: 0xe000_0000, segment: 0, first: 0, last: 255 });
        let many: Vec<_> = (0..100_u16).map(|n| (u64::from(n) << 28, n, 0, 255)).collect();
        assert_eq!(ecam(&mcfg(&many)).len(), MOST_WINDOWS);
        for len in 0..44 + 16 {
            assert_eq!(ecam(&mcfg(&[good])[..len]), []);
        }
    }
}
