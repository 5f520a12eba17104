//! Handles SET_VRING_ENABLE from a front-end that has not sent its features yet. QEMU sends it while it creates its
//! guest's device.
//!
//! The specification requires only that PROTOCOL_FEATURES was negotiated. The `vhost` crate requires it in a
//! SET_FEATURES first, and would end the connection. So this module looks for that one message before the crate reads
//! it.

#![allow(unsafe_code, reason = "the standard library cannot look at what a socket holds")]

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;

const SET_VRING_ENABLE: u32 = 18;
/// Request, flags, size.
const HEADER: usize = 12;
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// The message: a queue, whether it is to be enabled, and whether an answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enable {
    /// The queue.
    pub queue: u32,
    /// The value to enable: 0 or 1.
    pub enable: u32,
    needs_reply: bool,
}

/// Waits for a message. Takes and returns it if it is SET_VRING_ENABLE.
pub fn take(mut stream: &UnixStream) -> io::Result<Option<Enable>> {
    let mut header = [0u8; HEADER];
    let (start, flags) = (header.as_mut_ptr().cast(), libc::MSG_PEEK | libc::MSG_WAITALL);
    // SAFETY: a live array of as many bytes.
    let n = unsafe { libc::recv(stream.as_raw_fd(), start, HEADER, flags) };
    if usize::try_from(n).map_err(|_| io::Error::last_os_error())? < HEADER {
        return Ok(None);
    }
    let word = |bytes: &[u8], n: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&bytes[4 * n..4 * n + 4]);
        u32::from_ne_bytes(word)
    };
    let (request, flags, size) = (word(&header, 0), word(&header, 1), word(&header, 2));
    if request != SET_VRING_ENABLE || flags & (3 | REPLY) != VERSION || size != 8 {
        return Ok(None);
    }
    let mut message = [0; HEADER + 8];
    stream.read_exact(&mut message)?;
    Ok(Some(Enable { queue: word(&message, 3), enable: word(&message, 4), needs_reply: flags & NEED_REPLY != 0 }))
}

impl Enable {
    /// Sends a reply, if one was requested and `acknowledges` was negotiated.
    pub fn answer(&self, mut stream: &UnixStream, acknowledges: bool, good: bool) -> io::Result<()> {
        if !self.needs_reply || !acknowledges {
            return Ok(());
        }
        let words = [SET_VRING_ENABLE, VERSION | REPLY, 8, u32::from(!good), 0];
        stream.write_all(&words.map(u32::to_ne_bytes).concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(words: &[u32]) -> (UnixStream, UnixStream) {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(&words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>()).unwrap();
        (ours, theirs)
    }

    #[test]
    fn the_message_is_taken_and_answered_and_others_are_left_where_they_are() {
        let (mut ours, theirs) = message(&[SET_VRING_ENABLE, VERSION | NEED_REPLY, 8, 1, 1]);
        let enable = take(&theirs).unwrap().unwrap();
        assert_eq!((enable.queue, enable.enable), (1, 1));
        enable.answer(&theirs, true, true).unwrap();
        let mut answer = [0; 20];
        ours.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], [18, 0, 0, 0, 5, 0, 0, 0]);

        for words in [[2, VERSION, 8, 0, 0], [SET_VRING_ENABLE, VERSION, 4, 0, 0], [SET_VRING_ENABLE, 2, 8, 0, 0]] {
            let (_ours, mut theirs) = message(&words);
            assert_eq!(take(&theirs).unwrap(), None);
            let mut whole = [0; 20];
            theirs.read_exact(&mut whole).unwrap();
            assert_eq!(whole[..4], words[0].to_ne_bytes());
        }
        let (ours, theirs) = message(&[SET_VRING_ENABLE]);
        drop(ours);
        assert_eq!(take(&theirs).unwrap(), None, "a message that does not come is the crate's to refuse");
    }
}
