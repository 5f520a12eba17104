//! MAC addresses (IEEE 802-2014, 8.2.2: bit 0 of the first octet is the group bit, bit 1 the local bit).

use core::fmt;

/// A MAC address. It is a unicast one, except for the destination address of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Reads six pairs of hexadecimal digits with colons between them.
    ///
    /// # Errors
    /// What is expected instead.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        match Self::parse_any(text)? {
            Self([first, ..]) if first & 1 != 0 => {
                Err("expected a unicast address: this one is for a group (bit 0 of its first pair is set)")
            }
            Self([0, 0, 0, 0, 0, 0]) => Err("expected an address other than all zeroes"),
            mac => Ok(mac),
        }
    }

    /// Reads a destination address. It may be a group's.
    ///
    /// # Errors
    /// What is expected instead.
    pub fn parse_any(text: &str) -> Result<Self, &'static str> {
        let mut octets = [0; 6];
        let mut pairs = text.split(':');
        for octet in &mut octets {
            let pair =
                pairs.next().filter(|pair| pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit()));
            *octet = pair
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
                .ok_or("expected six pairs of hexadecimal digits, like \"02:00:00:00:00:01\"")?;
        }
        if pairs.next().is_some() { Err("expected a MAC address of six pairs, not more") } else { Ok(Self(octets)) }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_as_it_is_shown() {
        let mac = Mac::parse("52:54:00:Ab:cd:0f").unwrap();
        assert_eq!(mac, Mac([0x52, 0x54, 0, 0xab, 0xcd, 0x0f]));
        assert_eq!(Mac::parse(&mac.to_string()), Ok(mac));
    }

    #[test]
    fn groups_zeroes_and_bad_digits_are_refused() {
        for text in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "02-00-00-00-00-01", "2:0:0:0:0:1", "+2:00:00:00:00:01"]
        {
            assert!(Mac::parse(text).is_err(), "{text}");
        }
        assert!(Mac::parse("ff:ff:ff:ff:ff:ff").unwrap_err().contains("unicast"));
        assert!(Mac::parse("01:00:5e:00:00:01").unwrap_err().contains("unicast"));
        assert!(Mac::parse("00:00:00:00:00:00").unwrap_err().contains("zeroes"));
    }
}
