//! The network that a machine boots from: a wire to the boot server, and another DHCP server if the scenario asks for one.

use std::process::Command;

use scenarios::setup::Network;

/// Connects a machine to the network that it boots from.
pub fn connect(command: &mut Command, network: &Network) {
    let Network { socket, mac, uuid, other_dhcp } = network;
    let wire = format!("stream,id=wire,server=off,addr.type=unix,addr.path={}", socket.display());
    command.args(["-netdev", &wire]);
    let netdev = if *other_dhcp {
        // Nothing but DHCP is answered.
        let dhcp = "user,id=dhcp,restrict=on,net=192.168.1.0/24,host=192.168.1.1,dhcpstart=192.168.1.100";
        command.args(["-netdev", dhcp]);
        for end in ["wire", "dhcp"] {
            command.args(["-netdev", &format!("hubport,id=hub-{end},hubid=9,netdev={end}")]);
        }
        command.args(["-netdev", "hubport,id=boot,hubid=9"]);
        "boot"
    } else {
        "wire"
    };
    let nic = format!("virtio-net-pci,netdev={netdev},mac={mac},bootindex=0");
    command.args(["-device", &nic, "-uuid", uuid]);
}
