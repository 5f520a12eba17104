//! `put` and `apply`: gives the hypervisor a file in pieces, and waits until a change is carried out.

use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use control::{ApplyState, Command, Event, READ_TOO_SOON, Sha256};
use sha2::Digest as _;

use crate::client::{Client, Failed};

/// Bytes of a piece. In base64 it is 3,600 characters, which fit in a command with the rest.
const PIECE: usize = 2700;
/// Largest file in bytes. It is in this guest's memory until the hypervisor has it.
const MAX_FILE: u64 = 128 << 20;
/// The module that `apply` puts its file in. The next one replaces it.
pub const APPLIED: &str = "apply.toml";
/// Time between two questions how far a change is.
const LOOK: Duration = Duration::from_millis(300);
/// How often a file is offered again that came too soon after another one, and the time between.
const TURNS: u32 = 20;
const TURN: Duration = Duration::from_millis(50);

/// Reads a whole file.
///
/// # Errors
/// It cannot be read, is empty, or is too large. The sentence to show.
pub fn read(input: &mut impl Read) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read: io::Result<usize> = Read::take(input, MAX_FILE + 1).read_to_end(&mut bytes);
    read.map_err(|error| format!("the file cannot be read: {error}"))?;
    match bytes.len() as u64 {
        0 => Err("the file is empty".to_owned()),
        1..=MAX_FILE => Ok(bytes),
        _ => Err(format!("the file is larger than {MAX_FILE} bytes")),
    }
}

/// The SHA-256 of a file.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Sha256 {
    Sha256(sha2::Sha256::digest(bytes).into())
}

/// Gives the hypervisor a module. It is there when this returns, and its SHA-256 is the one that was computed here: the hypervisor
/// has compared them.
///
/// # Errors
/// It was refused, or there is no answer. Nothing of it is there then.
pub fn put(client: &mut Client, module: &str, bytes: &[u8]) -> Result<(), Failed> {
    let sha256 = sha256(bytes).to_string();
    client.ask(Command::Put { module: module.to_owned(), bytes: bytes.len() as u64, sha256 })?;
    for (number, piece) in bytes.chunks(PIECE).enumerate() {
        let at = (number * PIECE) as u64;
        client.ask(Command::PutData { module: module.to_owned(), at, data: STANDARD.encode(piece) })?;
    }
    client.ask(Command::PutEnd(module.to_owned())).map(drop)
}

/// Has a module applied. While other files were read just before, it asks again, for as long as that may last if nobody else asks
/// without end.
///
/// # Errors
/// It is refused, or there is no answer.
pub fn apply(client: &mut Client, command: &Command) -> Result<Event, Failed> {
    let mut left = TURNS;
    loop {
        match client.ask(command.clone()) {
            Err(Failed::Refused(why)) if why == READ_TOO_SOON && left > 0 => thread::sleep(TURN),
            other => return other.map(|(answer, _)| answer),
        }
        left -= 1;
    }
}

/// Waits until a change is carried out. Returns what the hypervisor says of it then.
///
/// # Errors
/// There is no answer.
pub fn wait(client: &mut Client) -> Result<Event, Failed> {
    loop {
        match client.ask(Command::Applied)?.0 {
            Event::Applied { state: ApplyState::Running, .. } => thread::sleep(LOOK),
            other => return Ok(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use control::{MAX_LINE, Request};

    use super::*;

    #[test]
    fn the_largest_piece_fits_in_a_command_of_a_client() {
        let data = STANDARD.encode([0xff; PIECE]);
        let command = Command::PutData { module: "m".repeat(32), at: u64::MAX, data };
        assert!(Request::new(Some(u64::MAX), command).to_line().len() < MAX_LINE - 144);
    }

    #[test]
    fn a_file_is_neither_empty_nor_too_large() {
        assert!(read(&mut io::empty()).unwrap_err().contains("empty"));
        assert_eq!(read(&mut &b"abc"[..]).as_deref(), Ok(&b"abc"[..]));
        assert!(read(&mut io::repeat(0)).unwrap_err().contains("larger than 134217728 bytes"));
    }

    #[test]
    fn the_hash_is_that_of_sha256sum() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc").to_string(), abc);
    }
}
