//! Reads words of the EEPROM without waiting (data sheet 6, 8.2.3.2).

use crate::bits::Eerd;
use crate::registers::{Bus, EERD, Registers};

/// Most microseconds that a word may take.
const LIMIT: u64 = 100_000;

/// A read under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reader {
    /// The word, and until when it has to be there.
    asked: Option<(u16, u64)>,
}

impl Reader {
    /// Reads a word. Call it until it returns something. `Some(None)`: the device does not read it.
    pub(crate) fn read<R: Registers>(&mut self, bus: &Bus<R>, now: u64, word: u16) -> Option<Option<u16>> {
        let Some((_, deadline)) = self.asked.filter(|(asked, _)| *asked == word) else {
            bus.write(&EERD, 0, Eerd::new().with_start(true).with_address(word & 0x3fff).into_bits());
            self.asked = Some((word, now.saturating_add(LIMIT)));
            return None;
        };
        let value = Eerd::from_bits(bus.read(&EERD, 0));
        if value.done() && value.address() == word & 0x3fff {
            self.asked = None;
            return Some(Some(value.data()));
        }
        if now < deadline {
            return None;
        }
        self.asked = None;
        Some(None)
    }

    /// Forgets a read that was not finished.
    pub(crate) fn forget(&mut self) {
        self.asked = None;
    }
}
