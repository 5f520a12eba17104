//! Translates an offload request into a context descriptor (data sheet 7.2.3.2.3, 7.2.4, 7.2.5).
//!
//! All values come from the driver's copy of the frame's header, which the guest cannot change any more. For
//! segmentation the copy is changed: a virtio driver stores a pseudo header sum that includes the length of the whole
//! frame. The 82599 expects a sum without length, an IPv4 total length of 0 and an IPv4 checksum of 0.

use crate::descriptor::{ContextHigh, ContextLow, TYPE_CONTEXT};
use nic::{HEADER_ROOM, Offload, PartialChecksum, Refused};

/// Most bytes of a header that is copied. Ethernet, VLAN, IPv6 and the longest TCP header are 122.
pub const MAX_HEADER: usize = HEADER_ROOM;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const TCP: u8 = 6;
/// Offset of the checksum in TCP's header.
const TCP_CHECKSUM: u16 = 16;
/// Offset of the checksum in UDP's header.
const UDP_CHECKSUM: u16 = 6;
const L4T_UDP: u8 = 0;
const L4T_TCP: u8 = 1;
/// Largest value of the PAYLEN field, which has 18 bits.
const MAX_PAYLEN: u32 = (1 << 18) - 1;
/// Bytes of a VLAN tag. The longest frame may be longer by that.
const TAG_BYTES: u32 = 4;

/// Fields of the descriptors of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub context: Option<Context>,
    pub ixsm: bool,
    pub txsm: bool,
    pub tse: bool,
    pub vle: bool,
    pub paylen: u32,
    /// Changes of the header: offset, and value in network byte order.
    pub patches: [Option<(usize, u16)>; 3],
}

/// Second word of every context.
const CONTEXT: u64 = ContextHigh::new().with_dtyp(TYPE_CONTEXT).with_dext(true).into_bits();

/// A context descriptor, and the name by which the queue recognizes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Different for any two contexts that differ, and never 0. Usually the offload request and the length of the TCP
    /// header.
    pub name: u64,
    /// The descriptor, for slot 0.
    pub words: [u64; 2],
}

impl Context {
    /// First bit of the TCP header's length in a name. An offload request uses bits 0 to 48 only.
    const L4LEN_AT: u32 = 56;
    const UNUSUAL: u64 = 1 << 55;

    fn new(asked: Offload, low: ContextLow, high: ContextHigh) -> Self {
        let (iplen, l4len) = (low.iplen(), u64::from(high.l4len()) << Self::L4LEN_AT);
        let common = low.maclen() == 14 && (iplen == 0 || iplen == if high.ipv4() { 20 } else { 40 });
        // With other headers the request does not identify the context. The first word of the descriptor does, and it
        // has 32 bits.
        let kind = u64::from(high.l4t()) << 33 | u64::from(high.ipv4()) << 32;
        let unusual = Self::UNUSUAL | u64::from(high.mss()) << 36 | kind | low.into_bits();
        let name = l4len | if common { asked.word() } else { unusual };
        Self { name, words: [low.into_bits(), CONTEXT | high.into_bits()] }
    }
}

/// Lengths of a frame's headers.
pub struct Layout {
    v4: bool,
    maclen: usize,
    iplen: usize,
}

fn field(header: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*header.get(at..)?.first_chunk()?))
}

/// Bytes of a header that identify the protocols: up to the first byte of an IP header behind a VLAN tag.
const SIGNATURE_BYTES: usize = 19;

impl Layout {
    #[inline(always)]
    fn of(header: &[u8], start: u16) -> Option<Self> {
        let header: &[u8; SIGNATURE_BYTES] = header.first_chunk()?;
        let (kind, maclen, first) = match u16::from_be_bytes([header[12], header[13]]) {
            VLAN => (u16::from_be_bytes([header[16], header[17]]), 18, header[18]),
            kind => (kind, 14, header[14]),
        };
        let iplen = usize::from(start).checked_sub(maclen)?;
        let v4 = match (kind, first >> 4) {
            (IPV4, 4) if iplen >= 20 && iplen == usize::from(first & 0xf) * 4 => true,
            (IPV6, 6) if (40..512).contains(&iplen) => false,
            _ => return None,
        };
        Some(Self { v4, maclen, iplen })
    }
}

/// Context of frames with the most common headers: no VLAN tag, and IPv4 without options or IPv6 without extension
/// headers. There is one for each place of the checksum.
#[derive(Debug)]
pub struct CommonHeader {
    /// Bytes 12 to 15 of such a header under `mask`: EtherType, and version and length of the IP header.
    signature: u32,
    mask: u32,
    /// Least bytes of a frame: up to the end of the checksum.
    pub min_len: u32,
    context: [u64; 2],
}

impl CommonHeader {
    /// Matches no frame.
    pub const NONE: &'static Self = &Self { signature: 1, mask: 0, min_len: u32::MAX, context: [0; 2] };

    const fn new(v4: bool, start: u16, offset: u16, l4t: u8) -> Self {
        let (signature, mask) = if v4 { (0x45_0008, 0xff_ffff) } else { (0x60_dd86, 0xf0_ffff) };
        let low = ContextLow::new().with_maclen(14).with_iplen(start.saturating_sub(14)).into_bits();
        let high = CONTEXT | ContextHigh::new().with_ipv4(v4).with_l4t(l4t).into_bits();
        Self { signature, mask, min_len: PartialChecksum { start, offset }.end(), context: [low, high] }
    }

    /// The common header for this request. `None`: the request is for more than a checksum and a VLAN tag, or its
    /// checksum is at another place.
    #[inline(always)]
    pub fn of(asked: Offload) -> Option<&'static Self> {
        static TCP4: CommonHeader = CommonHeader::new(true, 34, TCP_CHECKSUM, L4T_TCP);
        static UDP4: CommonHeader = CommonHeader::new(true, 34, UDP_CHECKSUM, L4T_UDP);
        static TCP6: CommonHeader = CommonHeader::new(false, 54, TCP_CHECKSUM, L4T_TCP);
        static UDP6: CommonHeader = CommonHeader::new(false, 54, UDP_CHECKSUM, L4T_UDP);
        const fn checksum(start: u16, offset: u16) -> u32 {
            match Offload::of_checksum(PartialChecksum { start, offset }) {
                Some(asked) => asked.word() as u32,
                None => panic!("within a header"),
            }
        }
        const AT_TCP4: u32 = checksum(34, TCP_CHECKSUM);
        const AT_UDP4: u32 = checksum(34, UDP_CHECKSUM);
        const AT_TCP6: u32 = checksum(54, TCP_CHECKSUM);
        const AT_UDP6: u32 = checksum(54, UDP_CHECKSUM);
        // The upper half is the VLAN tag.
        match asked.word() as u32 {
            AT_TCP4 => Some(&TCP4),
            AT_UDP4 => Some(&UDP4),
            AT_TCP6 => Some(&TCP6),
            AT_UDP6 => Some(&UDP6),
            _ => None,
        }
    }

    /// Whether a frame's header is this common header.
    #[inline(always)]
    pub fn matches(&self, header: &[u8; MAX_HEADER]) -> bool {
        u32::from_le_bytes([header[12], header[13], header[14], header[15]]) & self.mask == self.signature
    }

    /// The context of a frame with this common header. It equals the result of `checksum_context`, in a tenth of the
    /// time.
    #[inline(always)]
    pub fn context(&self, asked: Offload) -> Context {
        const TAG: u64 = ContextLow::new().with_vlan(!0).into_bits();
        let [low, high] = self.context;
        Context { name: asked.word(), words: [low | asked.word() >> 16 & TAG, high] }
    }
}

/// Returns the context of a frame that asks for a checksum, and the lengths of its headers. `None`: the header does not
/// fit the request.
#[inline(always)]
pub fn checksum_context(
    header: &[u8],
    checksum: PartialChecksum,
    vlan: Option<u16>,
) -> Option<(ContextLow, ContextHigh, Layout)> {
    let layout = Layout::of(header, checksum.start)?;
    let l4t = match checksum.offset {
        TCP_CHECKSUM => L4T_TCP,
        UDP_CHECKSUM => L4T_UDP,
        _ => return None,
    };
    let low = ContextLow::new().with_vlan(vlan.unwrap_or(0)).into_bits();
    let low = ContextLow::from_bits(low | (layout.maclen as u64) << 9 | layout.iplen as u64);
    Some((low, ContextHigh::new().with_ipv4(layout.v4).with_l4t(l4t), layout))
}

/// Plans a frame of `total` bytes that begins with `header`, on a device whose longest frame has `max_frame` bytes
/// without VLAN tag.
pub fn plan(header: &[u8], total: u32, offload: Offload, max_frame: u32) -> Result<Plan, Refused> {
    let max_frame = if field(header, 12) == Some(VLAN) { max_frame.saturating_add(TAG_BYTES) } else { max_frame };
    if offload.mss().is_none() && total > max_frame {
        return Err(Refused::Length);
    }
    let mut plan = Plan { paylen: total, vle: offload.vlan().is_some(), ..Plan::default() };
    if offload.is_none() {
        return Ok(plan);
    }
    let (mut low, mut high) =
        (ContextLow::new().with_maclen(14).with_vlan(offload.vlan().unwrap_or(0)), ContextHigh::new());
    if let Some(checksum) = offload.checksum() {
        let layout;
        (low, high, layout) = checksum_context(header, checksum, offload.vlan()).ok_or(Refused::Offload)?;
        if checksum.end() > total {
            return Err(Refused::Offload);
        }
        plan.txsm = true;
        if let Some(mss) = offload.mss() {
            let l4len = segmentation(&mut plan, header, &layout, checksum).ok_or(Refused::Offload)?;
            let headers = u32::from(checksum.start).saturating_add(l4len.into());
            plan.paylen = total.checked_sub(headers).filter(|p| (1..=MAX_PAYLEN).contains(p)).ok_or(Refused::Length)?;
            if headers.saturating_add(mss.into()) > max_frame {
                return Err(Refused::Length);
            }
            high = high.with_l4len(l4len).with_mss(mss);
        }
    } else if offload.mss().is_some() {
        return Err(Refused::Offload);
    }
    plan.context = Some(Context::new(offload, low, high));
    Ok(plan)
}

/// Plans segmentation. Returns the length of the TCP header. `None`: the header does not fit the request.
fn segmentation(plan: &mut Plan, header: &[u8], layout: &Layout, checksum: PartialChecksum) -> Option<u8> {
    let (ip, tcp) = (layout.maclen, usize::from(checksum.start));
    let ip_header = header.get(ip..)?;
    let tcp_header: &[u8; 20] = header.get(tcp..)?.first_chunk()?;
    let (protocol, addresses) = if layout.v4 {
        let ip_header: &[u8; 20] = ip_header.first_chunk()?;
        (ip_header[9], &ip_header[12..])
    } else if layout.iplen == 40 {
        let ip_header: &[u8; 40] = ip_header.first_chunk()?;
        (ip_header[6], &ip_header[8..])
    } else {
        return None;
    };
    // The upper half of the byte counts words of 4 bytes.
    let l4len = (tcp_header[12] & 0xf0) >> 2;
    if protocol != TCP || checksum.offset != TCP_CHECKSUM || l4len < 20 {
        return None;
    }
    plan.tse = true;
    plan.ixsm = layout.v4;
    plan.patches[0] = Some((tcp.saturating_add(TCP_CHECKSUM.into()), sum(addresses)));
    if layout.v4 {
        plan.patches[1] = Some((ip.saturating_add(2), 0));
        plan.patches[2] = Some((ip.saturating_add(10), 0));
    }
    Some(l4len)
}

/// One's complement sum of addresses and TCP's number.
fn sum(addresses: &[u8]) -> u16 {
    let words = addresses.as_chunks::<2>().0.iter().map(|c| u32::from(u16::from_be_bytes(*c)));
    let mut total = words.sum::<u32>().saturating_add(TCP.into());
    while total > 0xffff {
        total = (total & 0xffff).wrapping_add(total >> 16);
    }
    total as u16
}

#[cfg(test)]
mod tests {
    use super::{CommonHeader, Context, ContextHigh, ContextLow, Plan, checksum_context, plan};
    use nic::{Offload, PartialChecksum, Refused};
    use std::collections::HashMap;

    fn tcp4(vlan: bool) -> ([u8; 64], u16) {
        let mut h = [0; 64];
        let at = if vlan { 18 } else { 14 };
        h[12..14].copy_from_slice(&if vlan { [0x81, 0] } else { [8, 0] });
        h[at - 2..at].copy_from_slice(&[8, 0]);
        h[at] = 0x45;
        h[at + 9] = 6;
        h[at + 12..at + 20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        h[at + 32] = 0x80;
        (h, at as u16 + 20)
    }

    fn tcp(start: u16, mss: Option<u16>) -> Offload {
        Offload::of_checksum(PartialChecksum { start, offset: 16 }).unwrap().with_mss(mss.unwrap_or(0))
    }

    #[test]
    fn a_frame_that_asks_for_nothing_needs_no_context() {
        assert_eq!(plan(&[], 60, Offload::NOTHING, 1514), Ok(Plan { paylen: 60, ..Plan::default() }));
        assert_eq!(plan(&[], 1515, Offload::NOTHING, 1514), Err(Refused::Length));
    }

    #[test]
    fn the_quick_way_to_a_context_agrees_with_the_other() {
        let mut quick = 0;
        for (kind, first) in
            [([8, 0], 0x45), ([8, 0], 0x46), ([0x86, 0xdd], 0x6f), ([0x86, 0xdd], 0x45), ([8, 6], 0x45)]
        {
            let mut h = [0xff; 128];
            h[12..14].copy_from_slice(&kind);
            h[14] = first;
            for (start, offset) in [(34, 16), (34, 6), (38, 16), (54, 16), (54, 6), (54, 7), (58, 6), (35, 16)] {
                for vlan in [None, Some(0), Some(0xffff)] {
                    let checksum = PartialChecksum { start, offset };
                    let plain = Offload::of_checksum(checksum).unwrap();
                    let asked = vlan.map_or(plain, |tag| plain.with_vlan(tag));
                    assert!(CommonHeader::of(asked.with_mss(1)).is_none());
                    if let Some(common) = CommonHeader::of(asked).filter(|common| common.matches(&h)) {
                        quick += 1;
                        assert_eq!(common.min_len, checksum.end());
                        let context = checksum_context(&h, checksum, vlan);
                        assert_eq!(
                            Some(common.context(asked)),
                            context.map(|(low, high, _)| Context::new(asked, low, high))
                        );
                    }
                }
            }
        }
        assert_eq!(quick, 12, "IPv4 and IPv6, TCP and UDP, with three tags or none");
    }

    #[test]
    fn a_name_is_that_of_one_context_only() {
        let mut known = HashMap::new();
        for (kind, first) in [(0x0800, 0x45), (0x0800, 0x46), (0x0800, 0x4a), (0x86dd, 0x60)] {
            for (tagged, l4len) in [(false, 20), (false, 32), (true, 20), (true, 32)] {
                let (mut h, ip) = ([0; 128], if tagged { 18 } else { 14 });
                h[12..14].copy_from_slice(&0x8100_u16.to_be_bytes());
                h[ip - 2..ip].copy_from_slice(&u16::to_be_bytes(kind));
                (h[ip], h[ip + 6], h[ip + 9]) = (first, 6, 6);
                for (start, offset) in (34..=66).flat_map(|start| [(start, 16), (start, 6)]) {
                    h[usize::from(start) + 12] = l4len << 2;
                    let plain = Offload::of_checksum(PartialChecksum { start, offset }).unwrap();
                    for asked in [plain, plain.with_vlan(0), plain.with_vlan(0xffff), plain.with_vlan(1 << 9 | 20)] {
                        for asked in [asked, asked.with_mss(1), asked.with_mss(1400)] {
                            let Ok(Plan { context: Some(context), .. }) = plan(&h, 3000, asked, 3000) else { continue };
                            assert_ne!(context.name, 0);
                            assert_eq!(*known.entry(context.name).or_insert(context.words), context.words);
                        }
                    }
                    h[usize::from(start) + 12] = 0;
                }
            }
        }
        assert!(known.len() > 100, "{}", known.len());
    }

    #[test]
    fn a_checksum_names_its_headers_also_behind_a_tag() {
        for vlan in [false, true] {
            let (h, start) = tcp4(vlan);
            let p = plan(&h, 64, tcp(start, None), 1514).unwrap();
            let [low, high] = p.context.unwrap().words;
            let (low, high) = (ContextLow::from_bits(low), ContextHigh::from_bits(high));
            assert_eq!((u16::from(low.maclen()), low.iplen()), (start - 20, 20));
            assert_eq!((high.ipv4(), high.l4t(), high.mss(), p.ixsm, p.txsm), (true, 1, 0, false, true));
        }
    }

    #[test]
    fn segmentation_takes_the_length_out_of_the_pseudo_header() {
        let (h, start) = tcp4(false);
        let p = plan(&h, 3066, tcp(start, Some(1448)), 1514).unwrap();
        let high = ContextHigh::from_bits(p.context.unwrap().words[1]);
        assert_eq!((high.l4len(), high.mss(), p.paylen, p.ixsm, p.tse), (32, 1448, 3000, true, true));
        assert_eq!(p.patches, [Some((50, 0x1409)), Some((16, 0)), Some((24, 0))]);
        assert_eq!(plan(&h, 3066, tcp(start, Some(1449)), 1514), Err(Refused::Length));
        assert_eq!(plan(&h, 66, tcp(start, Some(1448)), 1514), Err(Refused::Length), "nothing to segment");
    }

    #[test]
    fn what_the_header_does_not_bear_out_is_refused() {
        let (h, start) = tcp4(false);
        for s in [0, 13, 14, 33, 35, 54, 0xff] {
            assert_eq!(plan(&h, 64, tcp(s, None), 1514), Err(Refused::Offload), "start {s}");
        }
        assert_eq!(plan(&h[..53], 3066, tcp(start, Some(1448)), 1514), Err(Refused::Offload), "header too short");
        assert_eq!(plan(&h, 51, tcp(start, None), 1514), Err(Refused::Offload), "checksum beyond the frame");
        let mut udp = h;
        udp[23] = 17;
        assert_eq!(plan(&udp, 3066, tcp(start, Some(1448)), 1514), Err(Refused::Offload));
        let odd = Offload::of_checksum(PartialChecksum { start, offset: 2 }).unwrap();
        assert_eq!(plan(&h, 64, odd, 1514), Err(Refused::Offload));
        assert_eq!(plan(&h, 64, Offload::NOTHING.with_mss(100), 1514), Err(Refused::Offload));
    }
}
