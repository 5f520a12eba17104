//! UDP requests and responses, one at a time, between two Linux guests. A request is sent only after the one before was
//! answered, so nothing is batched.
//!
//! `udp-rr serve` answers on port 7 for ever. `udp-rr ADDRESS COUNT` sends requests. It reports the result in the line
//! `SC {"do":"udp","transactions":COUNT,"again":N,"us":N}`. `again` counts requests that were repeated.
//!
//! `udp-rr shower ADDRESS COUNT` sends datagrams to a broadcast address as fast as it can, and reports
//! `SC {"do":"shower","sent":COUNT}`.

use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const PORT: u16 = 7;
/// A request without an answer is repeated after this time.
const PATIENCE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["serve"] => serve(),
        ["shower", address, count] => number(count).and_then(|count| shower(address, count)),
        [address, count] => number(count).and_then(|count| ask(address, count)),
        _ => Err(std::io::Error::other("expected: serve, or an address and a count, or shower with both")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("SC {{\"do\":\"udp\",\"error\":\"{error}\"}}");
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> std::io::Result<u64> {
    text.parse().map_err(std::io::Error::other)
}

fn shower(address: &str, count: u64) -> std::io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.set_broadcast(true)?;
    for number in 0..count {
        socket.send_to(&number.to_le_bytes(), (address, PORT + 1))?;
    }
    println!("SC {{\"do\":\"shower\",\"sent\":{count}}}");
    Ok(())
}

fn serve() -> std::io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", PORT))?;
    let mut request = [0; 64];
    loop {
        let (length, from) = socket.recv_from(&mut request)?;
        socket.send_to(&request[..length], from)?;
    }
}

fn ask(address: &str, count: u64) -> std::io::Result<()> {
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    socket.connect((address, PORT))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let begun = Instant::now();
    let (mut number, mut again) = (0_u64, 0_u64);
    while number < count {
        socket.send(&number.to_le_bytes())?;
        if answered(&socket, number) { number += 1 } else { again += 1 }
    }
    let us = begun.elapsed().as_micros();
    println!("SC {{\"do\":\"udp\",\"transactions\":{count},\"again\":{again},\"us\":{us}}}");
    Ok(())
}

/// Waits for the answer to one request. Ignores late answers to repeated requests.
fn answered(socket: &UdpSocket, number: u64) -> bool {
    let mut answer = [0; 64];
    while let Ok(length) = socket.recv(&mut answer) {
        if answer[..length] == number.to_le_bytes() {
            return true;
        }
    }
    false
}
