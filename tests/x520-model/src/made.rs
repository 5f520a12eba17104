//! Frames that tests make, for a device with the address in the model's EEPROM.

/// That address.
pub const OWN: [u8; 6] = [0x02, 0x1b, 0x21, 0, 0, 1];

/// A frame of `len` bytes to the device. Frames with different `n` have different contents.
pub fn frame(len: usize, n: u8) -> Vec<u8> {
    let mut f = OWN.to_vec();
    f.extend([2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    f.extend((f.len()..len).map(|i| (i as u8).wrapping_mul(3) ^ n));
    f
}

/// One's complement sum of bytes, not inverted.
pub fn sum(bytes: &[u8]) -> u16 {
    let total: u64 = bytes.chunks(2).map(|c| u64::from(c[0]) << 8 | u64::from(*c.get(1).unwrap_or(&0))).sum();
    // Adding the carries again gives the remainder modulo 65,535, except that only zeroes give 0.
    if total > 0 && total.is_multiple_of(65_535) { 65_535 } else { (total % 65_535) as u16 }
}

/// A TCP or UDP packet to the device, with correct checksums. With `partial`, the transport's checksum is the partial
/// one that a virtio driver leaves there.
pub fn packet(v4: bool, tcp: bool, ports: (u16, u16), payload: &[u8], partial: bool) -> Vec<u8> {
    let mut f = frame(12, 0)[..12].to_vec();
    let (header, number) = if tcp { (20, 6) } else { (8, 17) };
    let len = (header + payload.len()) as u16;
    let addresses: Vec<u8>;
    if v4 {
        let mut ip = vec![0x45, 0];
        ip.extend((len + 20).to_be_bytes());
        ip.extend([0x12, 0x34, 0x40, 0, 64, number, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let check = !sum(&ip);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        addresses = ip[12..20].to_vec();
        f.extend([8, 0]);
        f.extend(ip);
    } else {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        f.extend(len.to_be_bytes());
        f.extend([number, 64]);
        addresses = (0..32).map(|i| i * 5 + 1).collect();
        f.extend(&addresses);
    }
    let at = f.len();
    f.extend(ports.0.to_be_bytes());
    f.extend(ports.1.to_be_bytes());
    if tcp {
        f.extend([0, 0, 0x10, 0, 0, 0, 0, 1, 0x50, 0x18, 0x20, 0, 0, 0, 0, 0]);
    } else {
        f.extend(len.to_be_bytes());
        f.extend([0, 0]);
    }
    f.extend(payload);
    let mut pseudo = addresses;
    pseudo.extend([0, number]);
    pseudo.extend(len.to_be_bytes());
    let place = at + if tcp { 16 } else { 6 };
    let value = if partial {
        sum(&pseudo)
    } else {
        pseudo.extend(&f[at..]);
        !sum(&pseudo)
    };
    f[place..place + 2].copy_from_slice(&value.to_be_bytes());
    f
}
