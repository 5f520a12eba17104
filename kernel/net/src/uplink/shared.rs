//! What the control core and an engine share of an uplink beside its counters: what its NIC says of its port, and for how
//! long its light is to blink.

use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Words of the text.
const WORDS: usize = 48;
/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Most bytes of the text. What is longer is cut off.
const BYTES: usize = WORDS * WORD;

/// The shared state. Only the engine's core writes the text. Readers never keep it waiting.
#[derive(Debug)]
pub struct UplinkShared {
    /// Odd while the text is being written. Changes with each text.
    sequence: AtomicU32,
    text: [AtomicU64; WORDS],
    obstructed: AtomicBool,
    /// Seconds for which the light is to blink, until the engine has seen that.
    blink: AtomicU32,
}

impl Default for UplinkShared {
    fn default() -> Self {
        Self::new()
    }
}

impl UplinkShared {
    /// Without a text.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            text: [const { AtomicU64::new(0) }; WORDS],
            obstructed: AtomicBool::new(false),
            blink: AtomicU32::new(0),
        }
    }

    /// Changes with each text. The same value: the same text. 0: there was none yet.
    #[must_use]
    pub fn changes(&self) -> u32 {
        self.sequence.load(Ordering::Acquire)
    }

    /// Whether something other than the wire keeps the link down.
    #[must_use]
    pub fn is_obstructed(&self) -> bool {
        self.obstructed.load(Ordering::Relaxed)
    }

    /// Asks for the light to blink for so many seconds.
    pub fn blink(&self, seconds: u32) {
        self.blink.store(seconds, Ordering::Relaxed);
    }

    /// Takes what was asked: seconds, or 0.
    pub(crate) fn take_blink(&self) -> u32 {
        // A load costs less than an exchange, and is mostly all.
        if self.blink.load(Ordering::Relaxed) == 0 { 0 } else { self.blink.swap(0, Ordering::Relaxed) }
    }

    /// Takes over what a NIC says of its port. Only whoever has the NIC calls it.
    pub fn publish(&self, port: &dyn nic::Port) {
        let mut text = Text { bytes: [0; BYTES], len: 0 };
        // The only error is a full buffer: the rest is cut off.
        let _ = write!(text, "{port}");
        self.obstructed.store(port.is_obstructed(), Ordering::Relaxed);
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (place, word) in self.text.iter().zip(text.bytes.as_chunks::<WORD>().0) {
            place.store(u64::from_le_bytes(*word), Ordering::Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }

    /// Writes the text to `out`. Nothing, if the engine writes it at this moment or there is none.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let before = self.sequence.load(Ordering::Acquire);
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.as_chunks_mut::<WORD>().0.iter_mut().zip(&self.text) {
            *place = word.load(Ordering::Relaxed).to_le_bytes();
        }
        fence(Ordering::Acquire);
        if before & 1 == 1 || self.sequence.load(Ordering::Relaxed) != before {
            return Ok(());
        }
        let used = bytes.iter().position(|byte| *byte == 0).unwrap_or(BYTES);
        // The bytes are ASCII: `Text` takes nothing else.
        out.write_str(bytes.get(..used).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default())
    }
}

/// A text of limited length, of ASCII only.
struct Text {
    bytes: [u8; BYTES],
    len: usize,
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            let byte = u8::try_from(character).ok().filter(u8::is_ascii).unwrap_or(b'?');
            *self.bytes.get_mut(self.len).ok_or(fmt::Error)? = byte;
            self.len = self.len.saturating_add(1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Says(String);

    impl fmt::Display for Says {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.0)
        }
    }

    impl nic::Port for Says {
        fn changes(&self) -> u32 {
            0
        }
        fn is_obstructed(&self) -> bool {
            self.0.starts_with("no")
        }
    }

    fn read(shared: &UplinkShared) -> String {
        let mut text = String::new();
        shared.write(&mut text).unwrap();
        text
    }

    #[test]
    fn the_last_text_is_read_and_one_that_is_too_long_is_cut() {
        let shared = UplinkShared::new();
        assert_eq!((read(&shared), shared.changes()), (String::new(), 0));
        for text in ["no module", "a longer text than that", "short"] {
            let before = shared.changes();
            shared.publish(&Says(text.into()));
            assert_eq!((read(&shared), shared.is_obstructed()), (text.into(), text.starts_with("no")));
            assert_ne!(shared.changes(), before);
        }
        shared.publish(&Says("\u{e9}".repeat(BYTES + 9)));
        assert_eq!(read(&shared), "?".repeat(BYTES));
    }

    #[test]
    fn no_reader_sees_two_texts_mixed() {
        let shared = UplinkShared::new();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 0..20_000_u32 {
                    let letter = if n & 1 == 0 { "a" } else { "b" };
                    shared.publish(&Says(letter.repeat(300)));
                }
            });
            while !writer.is_finished() {
                let text = read(&shared);
                let first = text.chars().next();
                assert!(text.chars().all(|c| Some(c) == first), "{text}");
            }
        });
        assert_eq!(read(&shared), "b".repeat(300));
    }

    #[test]
    fn what_is_asked_of_the_light_is_taken_once() {
        let shared = UplinkShared::new();
        assert_eq!(shared.take_blink(), 0);
        shared.blink(3);
        assert_eq!((shared.take_blink(), shared.take_blink()), (3, 0));
    }
}
