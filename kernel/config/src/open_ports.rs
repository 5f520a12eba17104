//! Ports of guests that may send from addresses which are not configured. The report names them at every boot.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::config::Config;

/// Returns a sentence for each network device without anti-spoofing.
#[must_use]
pub fn open_ports(config: &Config) -> Vec<String> {
    let nets = config.guests.iter().flat_map(|guest| guest.nets().enumerate().map(move |net| (guest, net)));
    let open = nets.filter(|(_, (_, net))| !net.identity.anti_spoofing);
    open.map(|(guest, (number, net))| {
        format!(
            "guest {}: network device {number} ({}) has anti_spoofing = false: it may send from any MAC address that no \
             other port, gateway or NIC has, and from any IP address",
            guest.name, net.mac
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::open_ports;
    use crate::parse;

    #[test]
    fn each_port_without_anti_spoofing_is_named() {
        let guest = |name| format!("[[guest]]\nname = '{name}'\nmemory = '64M'\nkernel = 'k'\n");
        let net = "[[guest.net]]\n";
        let open = "[[guest.net]]\nmac = '02:00:00:00:00:07'\nanti_spoofing = false\n";
        let text = [guest("a"), net.into(), guest("b"), net.into(), open.into()].concat();
        let parsed = parse("f", text);
        assert_eq!(parsed.mistakes, []);
        let said = open_ports(&parsed.config);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(
            said[0].starts_with("guest b: network device 1 (02:00:00:00:00:07) has anti_spoofing = false"),
            "{said:?}"
        );
    }
}
