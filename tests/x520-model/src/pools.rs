//! Pools of queues (VMDq): which of them a frame is for, by its address and VLAN (data sheet 7.1.2.2, 7.10.3, 8.2.3.27).

use crate::model::Model;
use crate::packet::Headers;
use crate::registers::Reg;
use crate::statistics::{Cast, cast};

/// PFVTCTL: there are pools; what no pool wants is dropped; a frame may be for several.
const VT_ENA: u32 = 1;
const DIS_DEF_POOL: u32 = 1 << 29;
const RPL_EN: u32 = 1 << 30;
/// PFVTCTL: the default pool.
const DEF_PL_SHIFT: u32 = 7;
/// PFVML2FLT: a pool takes untagged frames, multicasts of the hash table, unicasts of the hash table, broadcasts, all
/// multicasts.
const AUPE: u32 = 1 << 24;
const ROMPE: u32 = 1 << 25;
const ROPE: u32 = 1 << 26;
const BAM: u32 = 1 << 27;
const MPE: u32 = 1 << 28;
/// PFVLVF: the entry is valid.
const VI_EN: u32 = 1 << 31;
/// MTQC: queues are those of pools.
const MTQC_VT_ENA: u32 = 1 << 1;
/// MTQC: pools have four queues, not two.
const MTQC_KIND_SHIFT: u32 = 2;
const MTQC_OF_FOUR: u32 = 2;
/// Pools at most.
const POOLS: usize = 64;

impl Model {
    /// Whether queues belong to pools.
    pub(crate) fn has_pools(&self) -> bool {
        self.get(Reg::Pfvtctl, 0) & VT_ENA != 0
    }

    /// Whether receive and transmit side are told the same of pools.
    pub(crate) fn agrees_on_pools(&self) -> bool {
        let receive = self.get(Reg::Mrqc, 0) & 0xf >= 8;
        let transmit = self.get(Reg::Mtqc, 0) & MTQC_VT_ENA != 0;
        (receive, transmit) == (self.has_pools(), self.has_pools())
    }

    /// The pools that a frame is for, which has passed the filters.
    pub(crate) fn pools(&self, frame: &[u8], headers: &Headers) -> Vec<usize> {
        let control = self.get(Reg::Pfvtctl, 0);
        // First by address, then by VLAN, then those that are on.
        let wanted = self.pools_of_address(frame) & self.pools_of_vlan(headers);
        let mut pools = wanted & self.enabled_pools();
        if wanted == 0 && control & DIS_DEF_POOL == 0 {
            pools = 1 << (control >> DEF_PL_SHIFT & 0x3f) & self.enabled_pools();
        }
        let most = if control & RPL_EN != 0 { POOLS } else { 1 };
        (0..POOLS).filter(|pool| pools >> pool & 1 == 1).take(most).collect()
    }

    /// Whether a transmit queue may send: its pool has to be on, if there are pools.
    pub(crate) fn may_send(&self, queue: usize) -> bool {
        let of_four = self.get(Reg::Mtqc, 0) >> MTQC_KIND_SHIFT & 3 == MTQC_OF_FOUR;
        let pool = queue / if of_four { 4 } else { 2 };
        !self.has_pools() || self.get(Reg::Pfvfte, pool / 32) >> (pool % 32) & 1 == 1
    }

    fn enabled_pools(&self) -> u64 {
        u64::from(self.get(Reg::Pfvfre, 0)) | u64::from(self.get(Reg::Pfvfre, 1)) << 32
    }

    fn pools_with(&self, bit: u32) -> u64 {
        (0..POOLS).filter(|n| self.get(Reg::Pfvml2flt, *n) & bit != 0).fold(0, |all, n| all | 1 << n)
    }

    fn pools_of_address(&self, frame: &[u8]) -> u64 {
        let Some(to) = frame.first_chunk::<6>() else { return 0 };
        let exact = self.entries_of(to).fold(0, |all, n| {
            all | u64::from(self.get(Reg::Mpsar, 2 * n)) | u64::from(self.get(Reg::Mpsar, 2 * n + 1)) << 32
        });
        exact
            | match cast(frame) {
                Cast::Broadcast => self.pools_with(BAM),
                Cast::Multicast if self.is_in_multicast_table(to) => self.pools_with(ROMPE) | self.pools_with(MPE),
                Cast::Multicast => self.pools_with(MPE),
                Cast::Unicast if self.is_in_unicast_table(to) => self.pools_with(ROPE),
                Cast::Unicast => 0,
            }
    }

    /// A tagged frame is for the pools of its VLAN's entries; without one, for none.
    fn pools_of_vlan(&self, headers: &Headers) -> u64 {
        let Some(tag) = headers.tag else { return self.pools_with(AUPE) };
        (0..64)
            .filter(|n| {
                let entry = self.get(Reg::Pfvlvf, *n);
                entry & VI_EN != 0 && entry & 0xfff == u32::from(tag & 0xfff)
            })
            .fold(0, |all, n| {
                all | u64::from(self.get(Reg::Pfvlvfb, 2 * n)) | u64::from(self.get(Reg::Pfvlvfb, 2 * n + 1)) << 32
            })
    }
}

#[cfg(test)]
mod tests {
    use super::{AUPE, BAM, DIS_DEF_POOL, MPE, ROMPE, ROPE, RPL_EN, VI_EN, VT_ENA};
    use crate::diagnostic::Diagnostic;
    use crate::model::Model;
    use crate::packet::parse;
    use crate::registers::Reg;
    use crate::testing::{LAST, data, frame, model, receive_queue, transmit_queue};

    /// With pools on, and pool 3 the default one.
    fn with_pools(control: u32) -> Model {
        let (mut m, _) = model();
        m.write(Reg::Pfvtctl.offset(0), VT_ENA | 3 << 7 | control);
        m.write(Reg::Mrqc.offset(0), 8);
        (0..2).for_each(|n| m.write(Reg::Pfvfre.offset(n), u32::MAX));
        (0..64).for_each(|n| m.write(Reg::Pfvml2flt.offset(n), AUPE));
        m
    }

    fn of(m: &Model, f: &[u8]) -> Vec<usize> {
        m.pools(f, &parse(f, 0x8100))
    }

    fn entry(m: &mut Model, n: usize, to: [u8; 6], pools: u64) {
        m.write(Reg::Ral.offset(n), u32::from_le_bytes([to[0], to[1], to[2], to[3]]));
        m.write(Reg::Rah.offset(n), u32::from_le_bytes([to[4], to[5], 0, 0x80]));
        m.write(Reg::Mpsar.offset(2 * n), pools as u32);
        m.write(Reg::Mpsar.offset(2 * n + 1), (pools >> 32) as u32);
    }

    #[test]
    fn an_exact_address_names_its_pools_and_the_rest_is_the_default_ones() {
        let mut m = with_pools(RPL_EN);
        entry(&mut m, 7, [2, 0, 0, 0, 0, 7], 1 << 40);
        entry(&mut m, 9, [2, 0, 0, 0, 0, 9], 1 << 1 | 1 << 63);
        assert_eq!(of(&m, &frame([2, 0, 0, 0, 0, 7])), [40]);
        assert_eq!(of(&m, &frame([2, 0, 0, 0, 0, 9])), [1, 63]);
        assert_eq!(of(&m, &frame([2, 0, 0, 0, 0, 8])), [3]);
        m.write(Reg::Pfvtctl.offset(0), VT_ENA | 3 << 7);
        assert_eq!(of(&m, &frame([2, 0, 0, 0, 0, 9])), [1], "without replication it is for one");
        m.write(Reg::Pfvtctl.offset(0), VT_ENA | DIS_DEF_POOL);
        assert_eq!(of(&m, &frame([2, 0, 0, 0, 0, 8])), [0; 0]);
        m.write(Reg::Pfvfre.offset(1), 0);
        assert_eq!(of(&m, &frame([2, 0, 0, 0, 0, 7])), [0; 0], "a pool that is off gets nothing");
    }

    #[test]
    fn many_casts_go_to_the_pools_that_want_them() {
        let mut m = with_pools(RPL_EN);
        let group = [1, 0, 0x5e, 0, 0x34, 0x12];
        for (pool, bit) in [(4, BAM), (5, ROMPE), (6, MPE), (7, ROPE)] {
            m.write(Reg::Pfvml2flt.offset(pool), AUPE | bit);
        }
        assert_eq!(of(&m, &frame([0xff; 6])), [4]);
        assert_eq!(of(&m, &frame(group)), [6]);
        m.write(Reg::Mcstctrl.offset(0), 4);
        m.write(Reg::Mta.offset(0x123 / 32), 1 << (0x123 % 32));
        assert_eq!(of(&m, &frame(group)), [5, 6]);
        let other = [2, 0, 0, 0, 0x34, 0x12];
        assert_eq!(of(&m, &frame(other)), [3]);
        m.write(Reg::Pfuta.offset(0x123 / 32), 1 << (0x123 % 32));
        assert_eq!(of(&m, &frame(other)), [7]);
        m.write(Reg::Pfvml2flt.offset(7), ROPE);
        assert_eq!(of(&m, &frame(other)), [3], "the pool does not take untagged frames");
    }

    #[test]
    fn a_tagged_frame_is_for_the_pools_of_its_vlan_that_its_address_names() {
        let mut m = with_pools(RPL_EN);
        entry(&mut m, 7, [2, 0, 0, 0, 0, 7], 1 << 8 | 1 << 9);
        let mut f = frame([2, 0, 0, 0, 0, 7]);
        f[12..16].copy_from_slice(&[0x81, 0, 0xe0, 5]);
        assert_eq!(of(&m, &f), [3], "no entry for the VLAN");
        m.write(Reg::Pfvlvf.offset(63), VI_EN | 5);
        m.write(Reg::Pfvlvfb.offset(126), 1 << 9 | 1 << 10);
        assert_eq!(of(&m, &f), [9]);
    }

    #[test]
    fn queues_of_a_pool_are_chosen_by_the_mode_and_the_hash() {
        let mut m = with_pools(RPL_EN);
        entry(&mut m, 7, [2, 0, 0, 0, 0, 7], 1 << 8);
        (0..32).for_each(|n| m.write(Reg::Reta.offset(n), 0x0f0f_0f0f));
        let mut f = frame([2, 0, 0, 0, 0, 7]);
        f[12..15].copy_from_slice(&[8, 0, 0x45]);
        f[16..18].copy_from_slice(&[0, 46]);
        let queue = |m: &mut Model, mrqc: u32, bits: u32| {
            m.write(Reg::Mrqc.offset(0), mrqc);
            m.write(Reg::Psrtype.offset(8), bits << 29);
            let (_, queues) = m.steer(&f, &parse(&f, 0x8100));
            queues[0]
        };
        const IPV4: u32 = 1 << 17;
        assert_eq!((queue(&mut m, 8, 0), queue(&mut m, 8 | IPV4, 2)), (16, 16));
        assert_eq!((queue(&mut m, 0xb | IPV4, 1), queue(&mut m, 0xb | IPV4, 0)), (17, 16));
        assert_eq!((queue(&mut m, 0xa | IPV4, 2), queue(&mut m, 0xa | IPV4, 1)), (35, 33));
    }

    #[test]
    fn frames_reach_queues_of_the_upper_half_and_are_copied_for_each_pool() {
        let (mut m, memory) = model();
        let rings = [20, 126].map(|queue| {
            let ring = receive_queue(&mut m, &memory, queue, 8);
            ring.put(0, [memory.granted(2048, 128).bus, 0]);
            m.write(Reg::Rdt.offset(queue), 1);
            ring
        });
        m.write(Reg::Pfvtctl.offset(0), VT_ENA | RPL_EN);
        m.write(Reg::Mrqc.offset(0), 8);
        m.write(Reg::Rttdcs.offset(0), 1 << 6);
        m.write(Reg::Mtqc.offset(0), 2);
        m.write(Reg::Fctrl.offset(0), 1 << 10);
        (0..2).for_each(|n| m.write(Reg::Pfvfre.offset(n), u32::MAX));
        for pool in [10, 63] {
            m.write(Reg::Pfvml2flt.offset(pool), AUPE | BAM);
        }
        m.deliver(&frame([0xff; 6]));
        m.run();
        assert!(rings.iter().all(|ring| ring.get(0)[1] == 60 << 32 | 3));
        assert_eq!((m.read(Reg::Gprc.offset(0)), m.take_diagnostics()), (1, vec![]));
    }

    #[test]
    fn a_pool_that_is_off_does_not_send() {
        let (mut m, memory) = model();
        m.write(Reg::Pfvtctl.offset(0), VT_ENA);
        m.write(Reg::Mtqc.offset(0), 1 << 2 | 2);
        let ring = transmit_queue(&mut m, &memory, 70, 8);
        let buffer = memory.granted(60, 1);
        ring.put(0, [buffer.bus, data(60, 60, LAST, 0)]);
        m.write(Reg::Tdt.offset(70), 1);
        m.run();
        assert_eq!(m.take_sent(), None);
        m.write(Reg::Pfvfte.offset(1), 1 << (70 / 2 - 32));
        m.run();
        assert!(m.take_sent().is_some());
    }

    #[test]
    fn pools_on_one_side_only_are_told() {
        let mut m = with_pools(0);
        m.write(Reg::Rdrxctl.offset(0), 2);
        m.write(Reg::Rxctrl.offset(0), 1);
        assert_eq!(m.take_diagnostics(), [Diagnostic::PoolsDiffer]);
        m.write(Reg::Mtqc.offset(0), 2);
        m.take_diagnostics();
        m.write(Reg::Rxctrl.offset(0), 1);
        assert_eq!(m.take_diagnostics(), []);
    }
}
