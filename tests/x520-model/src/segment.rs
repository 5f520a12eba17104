//! Offloads of the transmit side: tags, checksums and segmentation (data sheet 7.2.3.2.3, 7.2.4, 7.2.5, 7.4).

use bitfield_struct::bitfield;

use crate::packet::{self, sum};

/// First word of a context descriptor.
#[bitfield(u64)]
struct Low {
    #[bits(9)]
    iplen: usize,
    #[bits(7)]
    maclen: usize,
    vlan: u16,
    #[bits(32)]
    _ipsec: u32,
}

/// Second word of a context descriptor.
#[bitfield(u64)]
struct High {
    #[bits(9)]
    _esp: u16,
    snap: bool,
    ipv4: bool,
    #[bits(2)]
    l4t: u8,
    #[bits(7)]
    _tucmd: u8,
    #[bits(4)]
    dtyp: u8,
    #[bits(12)]
    _rsv: u16,
    #[bits(4)]
    _idx: u8,
    l4len: u8,
    mss: u16,
}

const UDP: u8 = 0;
const TCP: u8 = 1;
const SCTP: u8 = 2;

/// What a context descriptor says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    low: Low,
    high: High,
}

/// Which TCP flags stay in the first, middle and last segment (DTXTCPFLGL, DTXTCPFLGH).
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlagMasks {
    first: u16,
    middle: u16,
    last: u16,
}

impl FlagMasks {
    pub(crate) fn new(low: u32, high: u32) -> Self {
        Self { first: low as u16 & 0xfff, middle: (low >> 16) as u16 & 0xfff, last: high as u16 & 0xfff }
    }
}

impl Context {
    pub(crate) fn from_words(low: u64, high: u64) -> Self {
        Self { low: Low::from_bits(low), high: High::from_bits(high) }
    }

    pub(crate) fn is_ipv4(&self) -> bool {
        self.high.ipv4()
    }

    pub(crate) fn tag(&self) -> u16 {
        self.low.vlan()
    }

    fn transport_at(&self) -> usize {
        self.low.maclen() + self.low.iplen()
    }

    /// Where the checksum stands in the transport header.
    fn checksum_offset(&self) -> Result<usize, &'static str> {
        match self.high.l4t() {
            UDP => Ok(6),
            TCP => Ok(16),
            SCTP => Ok(8),
            _ => Err("no such L4T"),
        }
    }

    /// Whether the lengths are those of the packet's headers. The IPV4 bit only counts where the IP header is changed.
    fn check(&self, packet: &[u8], changes_ip: bool) -> Result<(), &'static str> {
        let at = self.low.maclen();
        let v4 = match packet.get(at).map(|b| b >> 4) {
            Some(4) if at >= 14 => true,
            Some(6) if at >= 14 => false,
            _ => return Err("MACLEN does not fit the packet"),
        };
        if changes_ip && v4 != self.is_ipv4() {
            return Err("IPV4 does not fit the packet");
        }
        // A packet to be segmented may come with a total length of 0: look at the header's own length alone then.
        let iplen = match packet::parse(packet, packet::VLAN).ip {
            Some(ip) if ip.at == at => ip.len,
            _ if v4 => usize::from(packet[at] & 0xf) * 4,
            _ => self.low.iplen(),
        };
        if iplen == self.low.iplen() { Ok(()) } else { Err("IPLEN does not fit the packet") }
    }
}

fn put(packet: &mut [u8], at: usize, value: u16) -> Result<(), &'static str> {
    packet.get_mut(at..at + 2).ok_or("a field beyond the packet")?.copy_from_slice(&value.to_be_bytes());
    Ok(())
}

fn get(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

/// Puts the checksum of everything from `start` at `offset`; what stood there counts.
pub(crate) fn insert_at(packet: &mut [u8], start: usize, offset: usize) -> Result<(), &'static str> {
    let bytes = packet.get(start..).ok_or("a checksum that starts beyond the packet")?;
    let value = !sum(bytes, 0);
    put(packet, offset, value)
}

/// Puts a tag behind the addresses.
pub(crate) fn insert_tag(packet: &mut Vec<u8>, kind: u16, tag: u16) -> Result<(), &'static str> {
    if packet.len() < 14 {
        return Err("a tag for less than an Ethernet header");
    }
    let bytes: Vec<u8> = kind.to_be_bytes().into_iter().chain(tag.to_be_bytes()).collect();
    packet.splice(12..12, bytes);
    Ok(())
}

/// Puts the checksums that are asked for into a packet that is sent as it is. Software has put the pseudo header's sum
/// where the transport's checksum goes, and 0 where IP's goes.
pub(crate) fn insert_checksums(
    packet: &mut [u8],
    context: &Context,
    ip: bool,
    transport: bool,
) -> Result<(), &'static str> {
    if ip || transport {
        context.check(packet, ip)?;
    }
    if ip {
        insert_ip(packet, context)?;
    }
    if transport {
        insert_transport(packet, context, 0)?;
    }
    Ok(())
}

fn insert_ip(packet: &mut [u8], context: &Context) -> Result<(), &'static str> {
    let at = context.low.maclen();
    let header = packet.get(at..context.transport_at()).ok_or("an IP header beyond the packet")?;
    let value = !sum(header, 0);
    put(packet, at + 10, value)
}

fn insert_transport(packet: &mut [u8], context: &Context, length: u16) -> Result<(), &'static str> {
    let (start, offset) = (context.transport_at(), context.checksum_offset()?);
    let bytes = packet.get(start..).ok_or("a transport header beyond the packet")?;
    if context.high.l4t() == SCTP {
        let crc = packet::crc32c(bytes);
        let field = packet.get_mut(start + offset..start + offset + 4).ok_or("a field beyond the packet")?;
        field.copy_from_slice(&crc.to_le_bytes());
        return Ok(());
    }
    let value = !sum(bytes, length);
    // UDP sends 0 as all ones: 0 says that there is no checksum.
    let value = if value == 0 && context.high.l4t() == UDP { 0xffff } else { value };
    put(packet, start + offset, value)
}

/// Cuts a packet of one header and `paylen` bytes behind it into segments of MSS bytes. The pseudo header's sum that
/// software has put into the packet is without length.
pub(crate) fn segments(
    packet: &[u8],
    context: &Context,
    paylen: usize,
    flags: &FlagMasks,
) -> Result<Vec<Vec<u8>>, &'static str> {
    context.check(packet, true)?;
    let transport = context.transport_at();
    let header_len = transport + usize::from(context.high.l4len());
    let mss = usize::from(context.high.mss());
    let tcp = context.high.l4t() == TCP;
    if mss == 0 || usize::from(context.high.l4len()) < if tcp { 20 } else { 8 } {
        return Err("segmentation needs MSS and L4LEN");
    }
    if packet.len() != header_len + paylen || paylen == 0 {
        return Err("PAYLEN is not the payload's length");
    }
    let (header, payload) = packet.split_at(header_len);
    let count = paylen.div_ceil(mss);
    let mut frames = Vec::with_capacity(count);
    for (i, piece) in payload.chunks(mss).enumerate() {
        let mut frame = header.to_vec();
        frame.extend(piece);
        let at = context.low.maclen();
        let after_ip = usize::from(context.high.l4len()) + piece.len();
        if context.is_ipv4() {
            put(&mut frame, at + 2, (context.low.iplen() + after_ip) as u16)?;
            let id = get(header, at + 4).wrapping_add(i as u16);
            put(&mut frame, at + 4, id)?;
            insert_ip(&mut frame, context)?;
        } else {
            put(&mut frame, at + 4, (context.low.iplen() - 40 + after_ip) as u16)?;
        }
        if tcp {
            let seq = u32::from_be_bytes([0, 1, 2, 3].map(|b| header[transport + 4 + b]));
            let seq = seq.wrapping_add((i * mss) as u32);
            frame[transport + 4..transport + 8].copy_from_slice(&seq.to_be_bytes());
            let mask = match i {
                _ if count == 1 => flags.first | flags.last,
                0 => flags.first,
                _ if i + 1 == count => flags.last,
                _ => flags.middle,
            };
            let field = get(header, transport + 12);
            put(&mut frame, transport + 12, field & 0xf000 | field & mask)?;
        } else {
            put(&mut frame, transport + 4, after_ip as u16)?;
        }
        insert_transport(&mut frame, context, after_ip as u16)?;
        frames.push(frame);
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::{Context, FlagMasks, insert_checksums, segments};
    use crate::packet::{ip_checksum_good, parse, pseudo_header, transport_checksum_good};

    /// A TCP segment as software hands it over, with the pseudo header's sum for `len` bytes (0: without length).
    fn tcp(v4: bool, payload: usize, len: usize) -> Vec<u8> {
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if v4 {
            f.extend([0x08, 0x00, 0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        } else {
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6, 64]);
            f.extend((0..32).map(|i| i * 7));
        }
        let start = f.len();
        f.extend([0x10, 0, 0x20, 0, 0, 0, 0xff, 0xf0, 0, 0, 0, 0, 0x50, 0x99, 0x10, 0, 0, 0, 0, 0]);
        f.extend((0..payload).map(|i| i as u8));
        let total = f.len() - 14;
        if v4 {
            f[16..18].copy_from_slice(&(total as u16).to_be_bytes());
        } else {
            f[18..20].copy_from_slice(&((total - 40) as u16).to_be_bytes());
        }
        let ip = parse(&f, 0x8100).ip.unwrap();
        let sum = pseudo_header(&f, &ip, 6, len);
        f[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
        f
    }

    fn context(v4: bool, mss: u64) -> Context {
        let iplen = if v4 { 20 } else { 40 };
        Context::from_words(iplen | 14 << 9, u64::from(v4) << 10 | 1 << 11 | 2 << 20 | 1 << 29 | 20 << 40 | mss << 48)
    }

    fn good(frame: &[u8]) -> bool {
        let h = parse(frame, 0x8100);
        let (ip, t) = (h.ip.unwrap(), h.transport.unwrap());
        (!ip.v4 || ip_checksum_good(frame, &ip)) && transport_checksum_good(frame, &ip, &t)
    }

    #[test]
    fn inserted_checksums_are_right() {
        for v4 in [true, false] {
            let mut f = tcp(v4, 33, 53);
            insert_checksums(&mut f, &context(v4, 0), v4, true).unwrap();
            assert!(good(&f));
        }
    }

    #[test]
    fn a_large_send_becomes_segments_that_stand_alone() {
        let masks = FlagMasks::new(0x0f76_0ff6, 0xf7f);
        for v4 in [true, false] {
            let f = tcp(v4, 2500, 0);
            let out = segments(&f, &context(v4, 1000), 2500, &masks).unwrap();
            let at = if v4 { 34 } else { 54 };
            assert_eq!(out.iter().map(|f| f.len() - at - 20).collect::<Vec<_>>(), [1000, 1000, 500]);
            assert!(out.iter().all(|f| good(f)));
            let payload: Vec<u8> = out.iter().flat_map(|f| f[at + 20..].to_vec()).collect();
            assert_eq!(payload, f[at + 20..]);
            // FIN and PSH in the last alone, CWR in the first alone, ACK in all; sequence numbers wrap.
            assert_eq!(out.iter().map(|f| f[at + 13]).collect::<Vec<_>>(), [0x90, 0x10, 0x19]);
            assert_eq!(&out[1][at + 4..at + 8], &[0, 1, 0x03, 0xd8]);
            if v4 {
                assert_eq!(out.iter().map(|f| [f[18], f[19]]).collect::<Vec<_>>(), [[0xff, 0xff], [0, 0], [0, 1]]);
            }
        }
    }

    #[test]
    fn the_version_does_not_matter_to_a_transport_checksum_alone() {
        let mut f = tcp(true, 33, 53);
        f[24..26].fill(0);
        let mut without = f.clone();
        insert_checksums(&mut without, &context(false, 0), false, true).unwrap_err();
        let bare = Context::from_words(20 | 14 << 9, 1 << 11 | 2 << 20 | 1 << 29);
        insert_checksums(&mut f.clone(), &bare, true, true).unwrap_err();
        insert_checksums(&mut f, &bare, false, true).unwrap();
        let h = parse(&f, 0x8100);
        assert!(transport_checksum_good(&f, &h.ip.unwrap(), &h.transport.unwrap()));
    }

    #[test]
    fn contexts_that_do_not_fit_are_refused() {
        let masks = FlagMasks::new(0, 0);
        let f = tcp(true, 100, 0);
        assert!(segments(&f, &context(true, 0), 100, &masks).is_err());
        assert!(segments(&f, &context(true, 50), 99, &masks).is_err());
        assert!(segments(&f, &context(false, 50), 100, &masks).is_err());
        let mut g = tcp(true, 100, 120);
        g[14] = 0x46;
        assert!(insert_checksums(&mut g, &context(true, 0), true, true).is_err());
    }
}
