//! Which frames come in: length, address and VLAN filters (data sheet 7.1.1).

use crate::model::Model;
use crate::packet::Headers;
use crate::registers::Reg;
use crate::statistics::{Cast, cast};

/// FCTRL: keep bad frames, all multicasts, all unicasts, broadcasts.
const SBP: u32 = 1 << 1;
const MPE: u32 = 1 << 8;
const UPE: u32 = 1 << 9;
const BAM: u32 = 1 << 10;
/// MCSTCTRL: the table is used.
const MFE: u32 = 1 << 2;
/// VLNCTRL: the table is used.
const VFE: u32 = 1 << 30;
/// HLREG0: frames longer than 1,518 bytes are let in.
const JUMBO: u32 = 1 << 2;
/// RAH: the entry is valid.
const VALID: u32 = 1 << 31;

/// Bytes of the shortest frame, without FCS.
const SHORTEST: usize = 60;
/// Bytes of the longest frame without JUMBO, without FCS and VLAN tag.
const LONGEST: usize = 1514;

impl Model {
    /// Whether a frame that came from the wire is kept; counted if not.
    pub(crate) fn admits(&mut self, frame: &[u8], good: bool, headers: &Headers) -> bool {
        let keep_bad = self.get(Reg::Fctrl, 0) & SBP != 0;
        self.count(Reg::Tpr, 0);
        self.count_bytes(Reg::Torl, Reg::Torh, 0, frame.len() + 4);
        if !good {
            self.count(Reg::Crcerrs, 0);
            return keep_bad;
        }
        if frame.len() < SHORTEST {
            self.count(Reg::Ruc, 0);
            return keep_bad;
        }
        if frame.len() > self.longest() + if headers.tag.is_some() { 4 } else { 0 } {
            self.count(Reg::Roc, 0);
            return keep_bad;
        }
        self.admits_address(frame) && self.admits_vlan(headers)
    }

    /// Bytes of the longest frame, without FCS and VLAN tag.
    fn longest(&self) -> usize {
        if self.get(Reg::Hlreg0, 0) & JUMBO != 0 {
            (self.get(Reg::Maxfrs, 0) >> 16).saturating_sub(4) as usize
        } else {
            LONGEST
        }
    }

    fn admits_address(&self, frame: &[u8]) -> bool {
        let fctrl = self.get(Reg::Fctrl, 0);
        let Some(to) = frame.first_chunk::<6>() else { return false };
        match cast(frame) {
            Cast::Broadcast => fctrl & BAM != 0,
            Cast::Unicast => fctrl & UPE != 0 || self.is_own(to),
            Cast::Multicast => fctrl & MPE != 0 || self.is_own(to) || self.is_in_multicast_table(to),
        }
    }

    /// The entries that hold an address.
    pub(crate) fn entries_of(&self, to: &[u8; 6]) -> impl Iterator<Item = usize> {
        let low = u32::from_le_bytes([to[0], to[1], to[2], to[3]]);
        let high = u32::from(u16::from_le_bytes([to[4], to[5]]));
        (0..128).filter(move |n| {
            let rah = self.get(Reg::Rah, *n);
            rah & VALID != 0 && rah & 0xffff == high && self.get(Reg::Ral, *n) == low
        })
    }

    fn is_own(&self, to: &[u8; 6]) -> bool {
        self.entries_of(to).next().is_some()
    }

    pub(crate) fn is_in_multicast_table(&self, to: &[u8; 6]) -> bool {
        self.get(Reg::Mcstctrl, 0) & MFE != 0 && self.is_in_table(Reg::Mta, to)
    }

    /// Unicasts have a table of the same kind, for pools.
    pub(crate) fn is_in_unicast_table(&self, to: &[u8; 6]) -> bool {
        self.is_in_table(Reg::Pfuta, to)
    }

    fn is_in_table(&self, table: Reg, to: &[u8; 6]) -> bool {
        // 12 of the address's last 16 bits, as MCSTCTRL.MO chooses.
        let (last, chosen) = (u16::from_le_bytes([to[4], to[5]]), self.get(Reg::Mcstctrl, 0) & 3);
        let bit = usize::from(last >> [4, 3, 2, 0][chosen as usize] & 0xfff);
        self.get(table, bit / 32) >> (bit % 32) & 1 == 1
    }

    fn admits_vlan(&self, headers: &Headers) -> bool {
        let Some(tag) = headers.tag else { return true };
        let id = usize::from(tag & 0xfff);
        self.get(Reg::Vlnctrl, 0) & VFE == 0 || self.get(Reg::Vfta, id / 32) >> (id % 32) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Model;
    use crate::packet::parse;
    use crate::registers::Reg;
    use crate::testing::{frame, model};

    fn admits(m: &mut Model, f: &[u8]) -> bool {
        m.admits(f, true, &parse(f, 0x8100))
    }

    #[test]
    fn unicast_comes_in_to_its_own_addresses_only_or_promiscuously() {
        let (mut m, _) = model();
        assert!(admits(&mut m, &frame([0x02, 0x1b, 0x21, 0, 0, 1])));
        let other = frame([0x02, 0x1b, 0x21, 0, 0, 2]);
        assert!(!admits(&mut m, &other));
        m.write(Reg::Ral.offset(7), 0x0021_1b02);
        m.write(Reg::Rah.offset(7), 0x0000_0200);
        assert!(!admits(&mut m, &other), "the entry is not valid");
        m.write(Reg::Rah.offset(7), 0x8000_0200);
        assert!(admits(&mut m, &other));
        m.write(Reg::Rah.offset(7), 0);
        m.write(Reg::Fctrl.offset(0), 1 << 9);
        assert!(admits(&mut m, &other));
    }

    #[test]
    fn multicast_comes_in_by_its_hash_and_broadcast_by_its_bit() {
        let (mut m, _) = model();
        let group = frame([0x01, 0x00, 0x5e, 0x00, 0x34, 0x12]);
        assert!(!admits(&mut m, &group));
        for (mo, bit) in [(0, 0x123), (1, 0x246), (2, 0x48d), (3, 0x234)] {
            m.write(Reg::Mcstctrl.offset(0), mo);
            m.write(Reg::Mta.offset(bit / 32), 1 << (bit % 32));
            assert!(!admits(&mut m, &group), "the table is off");
            m.write(Reg::Mcstctrl.offset(0), 4 | mo);
            assert!(admits(&mut m, &group), "MO {mo}");
            m.write(Reg::Mta.offset(bit / 32), 0);
        }
        let all = frame([0xff; 6]);
        assert!(!admits(&mut m, &all));
        m.write(Reg::Fctrl.offset(0), 1 << 10);
        assert!(admits(&mut m, &all) && !admits(&mut m, &group));
        m.write(Reg::Fctrl.offset(0), 1 << 8);
        assert!(admits(&mut m, &group));
    }

    #[test]
    fn tagged_frames_need_their_bit_once_the_vlan_filter_is_on() {
        let (mut m, _) = model();
        let mut f = frame([0x02, 0x1b, 0x21, 0, 0, 1]);
        f[12..16].copy_from_slice(&[0x81, 0x00, 0x60, 0x45]);
        assert!(admits(&mut m, &f));
        m.write(Reg::Vlnctrl.offset(0), 1 << 30 | 0x8100);
        assert!(!admits(&mut m, &f));
        m.write(Reg::Vfta.offset(2), 1 << 5);
        assert!(admits(&mut m, &f));
        assert!(admits(&mut m, &frame([0x02, 0x1b, 0x21, 0, 0, 1])), "untagged");
    }

    #[test]
    fn short_long_and_damaged_frames_are_counted_and_dropped() {
        let (mut m, _) = model();
        m.write(Reg::Fctrl.offset(0), 1 << 9);
        let f = vec![0; 9014];
        assert!(!admits(&mut m, &f[..59]) && !admits(&mut m, &f[..1515]) && admits(&mut m, &f[..1514]));
        m.write(Reg::Hlreg0.offset(0), 0x407);
        m.write(Reg::Maxfrs.offset(0), 9018 << 16);
        assert!(admits(&mut m, &f));
        assert!(!m.admits(&f, false, &parse(&f, 0x8100)));
        assert_eq!([Reg::Ruc, Reg::Roc, Reg::Crcerrs, Reg::Tpr].map(|r| m.read(r.offset(0))), [1, 1, 1, 5]);
        m.write(Reg::Fctrl.offset(0), 2);
        assert!(m.admits(&f, false, &parse(&f, 0x8100)), "kept on wish");
    }
}
