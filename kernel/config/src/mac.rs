//! The address of a network device for which the file gives none.

pub use control::Mac;

/// Returns the address of network device `index` of the guest called `name`. It is locally administered, and the same at every
/// start. Two names can give the same address (one pair in four billion). That is reported like any other duplicate.
#[must_use]
pub fn derived_mac(name: &str, index: u8) -> Mac {
    // FNV-1a, 32 bits.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let [a, b, c, d] = hash.to_be_bytes();
    Mac([0x02, a, b, c, d, index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_addresses_are_local_unicast_and_differ() {
        let all = [derived_mac("a", 0), derived_mac("a", 1), derived_mac("b", 0)];
        assert!(all.iter().all(|mac| mac.0[0] & 3 == 2));
        assert!(all[0] != all[1] && all[0] != all[2]);
        assert_eq!(derived_mac("a", 0), all[0]);
    }
}
