//! Receive side scaling: the Toeplitz hash and which fields go into it (data sheet 7.1.2.8).

use crate::model::Model;
use crate::packet::{Headers, Protocol};
use crate::registers::Reg;

/// MRQC.MRQE: RSS alone; RSS within each of 32 pools, and of 64.
const RSS_ONLY: u32 = 1;
const RSS_IN_32_POOLS: u32 = 0xa;
const RSS_IN_64_POOLS: u32 = 0xb;
/// PSRTYPE: how many bits of the table's entry choose among a pool's queues.
const RQPL_SHIFT: u32 = 29;

const TCP_IPV4: u32 = 1 << 16;
const IPV4: u32 = 1 << 17;
const IPV6: u32 = 1 << 20;
const TCP_IPV6: u32 = 1 << 21;
const UDP_IPV4: u32 = 1 << 22;
const UDP_IPV6: u32 = 1 << 23;

/// A frame's hash and the type that a descriptor reports for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hash {
    /// The hash; 0 if there is none.
    pub value: u32,
    /// Type of hash as in the advanced receive descriptor (7.1.6.2); 0: none.
    pub kind: u8,
}

/// Hash of `input` under `key`: for each bit that is set, the 32 bits of key that start there.
#[must_use]
pub fn toeplitz(key: &[u8; 40], input: &[u8]) -> u32 {
    let bit = |i: usize| u32::from(key[i / 8] >> (7 - i % 8) & 1);
    let mut window = u32::from_be_bytes([key[0], key[1], key[2], key[3]]);
    let mut hash = 0;
    for (i, byte) in input.iter().enumerate() {
        for j in 0..8 {
            if byte & 0x80 >> j != 0 {
                hash ^= window;
            }
            window = window << 1 | bit((i * 8 + j + 32) % 320);
        }
    }
    hash
}

impl Model {
    /// Hash of a frame, and the queues that it goes to: one, if there are no pools.
    pub(crate) fn steer(&self, frame: &[u8], headers: &Headers) -> (Hash, Vec<usize>) {
        let mrqc = self.get(Reg::Mrqc, 0);
        let mode = mrqc & 0xf;
        let (mut hash, mut entry) = (Hash::default(), 0);
        if matches!(mode, RSS_ONLY | RSS_IN_32_POOLS | RSS_IN_64_POOLS) {
            hash = self.hash(frame, headers, mrqc);
        }
        if hash.kind != 0 {
            let index = hash.value as usize & 0x7f;
            entry = (self.get(Reg::Reta, index / 4) >> (index % 4 * 8) & 0xf) as usize;
        }
        if !self.has_pools() {
            return (hash, vec![entry]);
        }
        let queues = if mode == RSS_IN_32_POOLS { 4 } else { 2 };
        let within = |pool: usize| {
            let bits = self.get(Reg::Psrtype, pool) >> RQPL_SHIFT;
            pool * queues + (entry & ((1 << bits) - 1) & (queues - 1))
        };
        // What would lie beyond the queues is for pools that there are not.
        (hash, self.pools(frame, headers).into_iter().map(within).filter(|queue| *queue < 128).collect())
    }

    fn hash(&self, frame: &[u8], headers: &Headers, mrqc: u32) -> Hash {
        let Some(ip) = headers.ip else { return Hash::default() };
        let ports = headers.transport.map(|t| &frame[t.at..t.at + 4]);
        let protocol = headers.transport.map(|t| t.protocol);
        let enabled = |bit: u32| mrqc & bit != 0;
        let (kind, ports) = match (ip.v4, protocol) {
            (true, Some(Protocol::Tcp)) if enabled(TCP_IPV4) => (1, ports),
            (true, Some(Protocol::Udp)) if enabled(UDP_IPV4) => (7, ports),
            (true, _) if enabled(IPV4) => (2, None),
            (false, Some(Protocol::Tcp)) if enabled(TCP_IPV6) => (3, ports),
            (false, Some(Protocol::Udp)) if enabled(UDP_IPV6) => (8, ports),
            (false, _) if enabled(IPV6) => (5, None),
            _ => return Hash::default(),
        };
        let mut input = frame[if ip.v4 { ip.at + 12..ip.at + 20 } else { ip.at + 8..ip.at + 40 }].to_vec();
        input.extend(ports.unwrap_or_default());
        let mut key = [0; 40];
        for (i, bytes) in key.chunks_mut(4).enumerate() {
            bytes.copy_from_slice(&self.get(Reg::Rssrk, i).to_le_bytes());
        }
        Hash { value: toeplitz(&key, &input), kind }
    }
}

#[cfg(test)]
mod tests {
    use super::{Hash, toeplitz};
    use crate::packet::parse;
    use crate::registers::Reg;
    use crate::testing::{frame, model};

    /// The key and the examples of Microsoft's RSS specification, which the data sheet repeats.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn the_hash_is_the_published_one() {
        // 66.9.149.187:2794 to 161.142.100.80:1766.
        let mut input = vec![66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&KEY, &input), 0x323e_8fc2);
        input.extend([0x0a, 0xea, 0x06, 0xe6]);
        assert_eq!(toeplitz(&KEY, &input), 0x51cc_c178);
    }

    #[test]
    fn the_table_says_which_queue_a_hash_goes_to_and_no_hash_goes_to_the_first() {
        let (mut m, _) = model();
        for (i, word) in KEY.as_chunks::<4>().0.iter().enumerate() {
            m.write(Reg::Rssrk.offset(i), u32::from_le_bytes(*word));
        }
        // The published example's hash, 0x323e_8fc2, chooses entry 0x42.
        m.write(Reg::Reta.offset(0x42 / 4), 0x000b_0000);
        let mut f = frame([0x02, 0x1b, 0x21, 0, 0, 1]);
        f[12..26].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 99, 0, 0]);
        f[26..34].copy_from_slice(&[66, 9, 149, 187, 161, 142, 100, 80]);
        let headers = parse(&f, 0x8100);
        assert_eq!(m.steer(&f, &headers), (Hash::default(), vec![0]), "off");
        m.write(Reg::Mrqc.offset(0), 1 | super::IPV4);
        assert_eq!(m.steer(&f, &headers), (Hash { value: 0x323e_8fc2, kind: 2 }, vec![11]));
        let other = frame([0x02, 0x1b, 0x21, 0, 0, 1]);
        assert_eq!(m.steer(&other, &parse(&other, 0x8100)), (Hash::default(), vec![0]));
    }

    #[test]
    fn the_hash_of_ipv6_is_the_published_one() {
        // 3ffe:2501:200:1fff::7 to 3ffe:2501:200:3::1, ports 2794 to 1766.
        let mut input = vec![0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x1f, 0xff, 0, 0, 0, 0, 0, 0, 0, 7];
        input.extend([0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x00, 0x03, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(toeplitz(&KEY, &input), 0x2cc1_8cd5);
        input.extend([0x0a, 0xea, 0x06, 0xe6]);
        assert_eq!(toeplitz(&KEY, &input), 0x4020_7d3d);
    }
}
