//! The last output of a guest's console, and how much of it those have got who follow it.
//!
//! `follow` has the output of a guest sent as it comes, by the way in by which it was asked for: a prompt, an echo, a progress bar are
//! there before their line ends. Each event says at which byte of the output it begins. So a follower of a way that others follow
//! too sees nothing twice, and knows how many bytes are missing.
//!
//! ```text
//!   guest's output ─▶ the last 4 KiB ─┬─▶ the answer to `follow`: all of it
//!                                     └─▶ up to 512 bytes a tick for each way that follows
//! ```
//!
//! Nothing waits for a follower. What it is too slow for is overwritten.

use alloc::collections::VecDeque;
use alloc::string::String;

use crate::event::Event;
use crate::no_memory::{NoMemory, copy};
use crate::permissions::Way;

/// Bytes of output that are kept.
pub const RECENT: usize = 4 << 10;
/// Most bytes of output in the events of a tick for one way.
const PIECE: u64 = 512;

/// The last output of a guest's console.
#[derive(Debug)]
pub struct Recent {
    bytes: VecDeque<u8>,
    /// Bytes of output since sidecore's start.
    total: u64,
    /// By way in: the byte from which on it gets output. `None`: nobody follows there.
    next: [Option<u64>; 3],
}

impl Default for Recent {
    fn default() -> Self {
        Self::new()
    }
}

impl Recent {
    /// No output yet. It allocates now, so that a guest's output never allocates.
    #[must_use]
    pub fn new() -> Self {
        Self { bytes: VecDeque::with_capacity(RECENT), total: 0, next: [None; 3] }
    }

    /// Adds a byte of output. The oldest one may be dropped for it.
    pub fn put(&mut self, byte: u8) {
        if self.bytes.len() == RECENT {
            self.bytes.pop_front();
        }
        self.bytes.push_back(byte);
        self.total = self.total.saturating_add(1);
    }

    /// What is kept, in two parts.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let (a, b) = self.bytes.as_slices();
        [a, b].into_iter()
    }

    /// From now on output is sent by this way in, or no more. A way that gets it already goes on where it is.
    pub fn follow(&mut self, way: Way, on: bool) {
        let total = self.total;
        if let Some(next) = self.next.get_mut(way as usize) {
            *next = on.then(|| next.unwrap_or(total));
        }
    }

    /// The answer to `follow`: what is kept. What comes later begins behind it.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn answer(&self, guest: &str, id: Option<u64>) -> Result<Event, NoMemory> {
        self.event(guest, id, self.first(), self.total)
    }

    /// The first byte that is kept.
    fn first(&self) -> u64 {
        self.total.saturating_sub(self.bytes.len() as u64)
    }

    fn event(&self, guest: &str, id: Option<u64>, from: u64, to: u64) -> Result<Event, NoMemory> {
        // Both are within what is kept.
        let skip = from.saturating_sub(self.first()) as usize;
        let bytes = self.bytes.iter().skip(skip).take(to.saturating_sub(from) as usize);
        let mut text = String::new();
        let len = bytes.clone().map(|&byte| char::from(byte).len_utf8()).sum();
        text.try_reserve_exact(len).map_err(|_| NoMemory)?;
        text.extend(bytes.map(|&byte| char::from(byte)));
        Ok(Event::Output { id, guest: copy(guest)?, at: from, text })
    }

    /// Sends output of `guest` to who follows by `way`, one event at most. Call it once a tick. `send` gets its line, and returns whether
    /// there was room for it. If there was not, or there is no memory, a later tick tries again.
    pub fn send(&mut self, guest: &str, way: Way, send: impl FnOnce(&str) -> bool) {
        let Some(next) = self.next.get(way as usize).copied().flatten() else { return };
        let from = next.max(self.first());
        let to = from.saturating_add(PIECE).min(self.total);
        if from >= to {
            return;
        }
        if let Ok(line) = self.event(guest, None, from, to).and_then(|event| event.to_line())
            && send(&line)
            && let Some(next) = self.next.get_mut(way as usize)
        {
            *next = Some(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Somebody who follows, as the agent does.
    struct Follower {
        position: u64,
        got: Vec<u8>,
        missing: u64,
    }

    impl Follower {
        fn begin(recent: &mut Recent) -> Self {
            recent.follow(Way::Channel, true);
            let Ok(Event::Output { id: Some(7), at, text, .. }) = recent.answer("a", Some(7)) else { panic!() };
            Self { position: at + text.chars().count() as u64, got: bytes(&text), missing: 0 }
        }

        fn take(&mut self, line: &str) {
            let Ok(Event::Output { id: None, guest, at, text }) = Event::from_line(line) else { panic!("{line}") };
            assert_eq!(guest, "a");
            let all = bytes(&text);
            self.missing += at.saturating_sub(self.position);
            let skip = (self.position.saturating_sub(at) as usize).min(all.len());
            self.got.extend(&all[skip..]);
            self.position = self.position.max(at + all.len() as u64);
        }
    }

    fn bytes(text: &str) -> Vec<u8> {
        text.chars().map(|character| u8::try_from(character).unwrap()).collect()
    }

    fn put(recent: &mut Recent, text: &[u8]) {
        text.iter().for_each(|&byte| recent.put(byte));
    }

    /// A tick. Returns the lines that were sent.
    fn tick(recent: &mut Recent, way: Way) -> Vec<String> {
        let mut lines = Vec::new();
        recent.send("a", way, |line| {
            lines.push(line.to_owned());
            true
        });
        lines
    }

    #[test]
    fn an_unfinished_line_is_sent_as_it_comes_to_who_asked_for_it() {
        let mut recent = Recent::new();
        put(&mut recent, b"boot\r\nlog");
        assert_eq!(tick(&mut recent, Way::Channel), [""; 0], "nobody follows");
        let mut follower = Follower::begin(&mut recent);
        assert_eq!(follower.got, b"boot\r\nlog");
        put(&mut recent, b"in: ");
        assert_eq!(tick(&mut recent, Way::Com2), [""; 0], "somebody follows by another way");
        tick(&mut recent, Way::Channel).iter().for_each(|line| follower.take(line));
        assert_eq!(follower.got, b"boot\r\nlogin: ");
        assert_eq!(tick(&mut recent, Way::Channel), [""; 0], "nothing is sent twice");
        recent.follow(Way::Channel, false);
        put(&mut recent, b"x");
        assert_eq!(tick(&mut recent, Way::Channel), [""; 0]);
    }

    #[test]
    fn a_second_follower_of_the_same_way_disturbs_no_one_and_sees_nothing_twice() {
        let mut recent = Recent::new();
        let mut first = Follower::begin(&mut recent);
        put(&mut recent, b"one");
        // What waits for the first one is in the answer to the second.
        let mut second = Follower::begin(&mut recent);
        put(&mut recent, b"two");
        for line in tick(&mut recent, Way::Channel) {
            first.take(&line);
            second.take(&line);
        }
        assert_eq!((&*first.got, &*second.got), (&b"onetwo"[..], &b"onetwo"[..]));
    }

    #[test]
    fn a_line_has_no_more_than_a_piece_and_room_for_it_is_known() {
        let mut recent = Recent::new();
        recent.follow(Way::Com2, true);
        put(&mut recent, &[0x1b; RECENT + 1]);
        let mut lines = 0;
        while let [line] = &tick(&mut recent, Way::Com2)[..] {
            assert!(line.len() <= PIECE as usize * 6 + 100, "{}", line.len());
            lines += 1;
        }
        assert_eq!(lines, RECENT as u64 / PIECE);
    }

    proptest! {
        /// Whatever comes and whenever there is room: what is not missing comes once and in order.
        #[test]
        fn what_comes_is_what_was_written_less_what_is_missing(
            pieces in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..900), any::<bool>()), 0..30),
            begins in 0_usize..30,
        ) {
            let (mut recent, mut written, mut follower) = (Recent::new(), 0, None);
            for (number, (piece, has_room)) in pieces.iter().enumerate() {
                put(&mut recent, piece);
                written += piece.len();
                if number == begins {
                    follower = Some(Follower::begin(&mut recent));
                }
                if let Some(follower) = &mut follower && *has_room {
                    tick(&mut recent, Way::Channel).iter().for_each(|line| follower.take(line));
                }
            }
            if let Some(mut follower) = follower {
                while let [line] = &tick(&mut recent, Way::Channel)[..] {
                    follower.take(line);
                }
                let all: Vec<u8> = pieces.iter().flat_map(|(piece, _)| piece.clone()).collect();
                prop_assert_eq!(follower.position, written as u64);
                prop_assert!(follower.missing > 0 || all.ends_with(&follower.got));
                prop_assert!(all.ends_with(&follower.got[follower.got.len().saturating_sub(1)..]));
            }
        }
    }
}
