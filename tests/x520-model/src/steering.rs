//! Which queues a frame goes to (data sheet 7.1.2).

use crate::model::Model;
use crate::packet::{Headers, Protocol};
use crate::registers::Reg;
use crate::rss::{Hash, toeplitz};

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
    use crate::packet::parse;
    use crate::registers::Reg;
    use crate::rss::{EXAMPLE_KEY, Hash};
    use crate::testing::{frame, model};

    #[test]
    fn the_table_says_which_queue_a_hash_goes_to_and_no_hash_goes_to_the_first() {
        let (mut m, _) = model();
        for (i, word) in EXAMPLE_KEY.as_chunks::<4>().0.iter().enumerate() {
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
}
