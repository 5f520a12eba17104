//! The server of `cargo mk run` and `cargo mk image`.

use scenarios::guests::{Guest, server};
use scenarios::setup::Setup;

/// The server that both forms boot.
pub fn setup(interactive: bool) -> Setup {
    let a = Guest::new(1).full().peer(2);
    let b = Guest::new(2).full().peer(1);
    if interactive {
        return server("run", &[a.then("iperf-server").then("shell"), b.then("iperf-server").then("shell")]);
    }
    server("run", &[a.then("iperf-server").then("wait"), b.then("ping:20").then("iperf:5")])
}
