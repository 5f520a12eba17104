//! Receive side scaling: the Toeplitz hash and its input fields (data sheet 7.1.2.8).

/// A frame's hash and the type that a descriptor reports for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hash {
    /// The hash; 0 if there is none.
    pub value: u32,
    /// Type of hash as in the advanced receive descriptor (7.1.6.2); 0: none.
    pub kind: u8,
}

/// The hash of `input` under `key`: the XOR, over all bits of `input` that are set, of the 32 bits of `key` from that
/// position on.
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

#[cfg(test)]
/// The key of the examples in Microsoft's RSS specification, which the data sheet repeats.
pub(crate) const EXAMPLE_KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

#[cfg(test)]
mod tests {
    use super::{EXAMPLE_KEY, toeplitz};

    #[test]
    fn the_hash_is_the_published_one() {
        // 66.9.149.187:2794 to 161.142.100.80:1766.
        let mut input = vec![66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&EXAMPLE_KEY, &input), 0x323e_8fc2);
        input.extend([0x0a, 0xea, 0x06, 0xe6]);
        assert_eq!(toeplitz(&EXAMPLE_KEY, &input), 0x51cc_c178);
    }

    #[test]
    fn the_hash_of_ipv6_is_the_published_one() {
        // 3ffe:2501:200:1fff::7 to 3ffe:2501:200:3::1, ports 2794 to 1766.
        let mut input = vec![0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x1f, 0xff, 0, 0, 0, 0, 0, 0, 0, 7];
        input.extend([0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x00, 0x03, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(toeplitz(&EXAMPLE_KEY, &input), 0x2cc1_8cd5);
        input.extend([0x0a, 0xea, 0x06, 0xe6]);
        assert_eq!(toeplitz(&EXAMPLE_KEY, &input), 0x4020_7d3d);
    }
}
