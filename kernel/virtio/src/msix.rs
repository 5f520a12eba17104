//! MSI-X table and pending bits of a virtual function (PCI Express Base 6.1.4, PCI Local Bus 3.0 6.8.2), and the check
//! of its messages (SDM vol. 3A 11.11).
//!
//! The guest's cores write the table while the engine's core raises interrupts from it. All of it is atomics; neither
//! side waits for the other. An entry's address and data are guest input. [`Message::decode`] decides which interrupts
//! they may request.

use bitfield_struct::bitfield;

use crate::atomics::{self, AtomicBool, AtomicU32, Ordering};

#[cfg(all(test, not(miri)))]
mod model;
mod pending;

/// Bytes of one table entry: address low, address high, data, vector control.
pub const ENTRY_BYTES: u64 = 16;

/// Bit of `MsixTable::function`: MSI-X is enabled.
const ENABLED: u32 = 1;
/// Bit of `MsixTable::function`: all entries are masked.
const FUNCTION_MASKED: u32 = 2;
/// Bit of an entry's vector control: this entry is masked.
const ENTRY_MASKED: u32 = 1;
/// Index of the vector control in an entry's words.
const CONTROL: usize = 3;

struct Entry {
    words: [AtomicU32; 4],
    pending: AtomicBool,
}

/// The table of `N` entries with its pending bits.
pub struct MsixTable<const N: usize> {
    function: AtomicU32,
    entries: [Entry; N],
}

/// The registers of an [`MsixTable`] as plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixState<const N: usize> {
    /// Address low, address high, data and vector control of each entry.
    pub entries: [[u32; 4]; N],
    /// The pending bit of each entry.
    pub pending: [bool; N],
    /// MSI-X enable of the capability's message control.
    pub enabled: bool,
    /// Function mask of the capability's message control.
    pub masked: bool,
}

impl<const N: usize> Default for MsixTable<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> MsixTable<N> {
    /// A table as after reset: disabled, every entry masked.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            function: AtomicU32::new(0),
            entries: [const {
                Entry {
                    words: [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(ENTRY_MASKED)],
                    pending: AtomicBool::new(false),
                }
            }; N],
        }
    }

    /// Reads `size` bytes at `offset` of the table; zero beyond its end.
    #[must_use]
    pub fn read(&self, offset: u64, size: u8) -> u64 {
        gather(offset, size, |word| {
            let entry = self.entries.get((word / 4) as usize)?;
            Some(entry.words.get((word % 4) as usize)?.load(Ordering::Relaxed))
        })
    }

    /// Writes to the table. Only aligned accesses of 4 or 8 bytes have an effect, as the specification says. The caller
    /// must then send the messages of [`MsixTable::take_unmasked`].
    pub fn write(&self, offset: u64, size: u8, value: u64) {
        if !matches!(size, 4 | 8) || !offset.is_multiple_of(u64::from(size)) {
            return;
        }
        for (i, value) in (0..u64::from(size) / 4).zip([value as u32, (value >> 32) as u32]) {
            let word = (offset / 4).saturating_add(i);
            let field = (word % 4) as usize;
            let Some(entry) = self.entries.get((word / 4) as usize) else { return };
            let Some(word) = entry.words.get(field) else { return };
            match field {
                // Only the mask bit is defined. Sequentially consistent: see `pending`.
                CONTROL => word.store(value & ENTRY_MASKED, Ordering::SeqCst),
                _ => word.store(value, Ordering::Relaxed),
            }
        }
    }

    /// Reads `size` bytes at `offset` of the pending bit array; zero beyond its end. It is read-only.
    #[must_use]
    pub fn read_pba(&self, offset: u64, size: u8) -> u64 {
        gather(offset, size, |word| {
            let first = usize::try_from(word).ok()?.checked_mul(32)?;
            let entries = self.entries.get(first..)?;
            let bit = |(i, e): (usize, &Entry)| u32::from(e.pending.load(Ordering::Relaxed)) << i;
            Some(entries.iter().take(32).enumerate().map(bit).fold(0, |a, b| a | b))
        })
    }

    /// Sets MSI-X enable and function mask (message control). The caller must then send the messages of
    /// [`MsixTable::take_unmasked`].
    pub fn set_function_control(&self, enable: bool, mask: bool) {
        let value = if enable { ENABLED } else { 0 } | if mask { FUNCTION_MASKED } else { 0 };
        self.function.store(value, Ordering::SeqCst);
    }

    /// Whether MSI-X is enabled. Without it the function sends no interrupt.
    #[must_use]
    pub fn enabled(&self) -> bool {
        self.function.load(Ordering::Relaxed) & ENABLED != 0
    }

    /// Raises the interrupt of an entry. Returns:
    /// - `Some`: the message to send now.
    /// - `None`: nothing to send. MSI-X is off, or there is no such entry, or the entry is masked and its pending bit
    ///   was set.
    pub fn raise(&self, entry: u16) -> Option<Message> {
        let e = self.entries.get(usize::from(entry))?;
        if !self.enabled() {
            return None;
        }
        pending::raise(&e.pending, || self.masked(e)).then(|| e.message())
    }

    /// Takes the messages that were pending and are no longer masked. Call it after every write to the table or to
    /// message control, and send them.
    pub fn take_unmasked(&self) -> impl Iterator<Item = Message> + '_ {
        self.entries.iter().filter(|e| pending::take(&e.pending, || self.masked(e))).map(Entry::message)
    }

    /// Resets the table.
    pub fn reset(&self) {
        self.set_function_control(false, false);
        for e in &self.entries {
            for (i, word) in e.words.iter().enumerate() {
                word.store(if i == CONTROL { ENTRY_MASKED } else { 0 }, Ordering::SeqCst);
            }
            e.pending.store(false, Ordering::SeqCst);
        }
    }

    /// Returns the registers as plain data. The guest's cores must be stopped; otherwise the fields may be from
    /// different moments.
    #[must_use]
    pub fn save(&self) -> MsixState<N> {
        let function = self.function.load(Ordering::SeqCst);
        MsixState {
            entries: self.entries.each_ref().map(|e| e.words.each_ref().map(|word| word.load(Ordering::Relaxed))),
            pending: self.entries.each_ref().map(|e| e.pending.load(Ordering::SeqCst)),
            enabled: function & ENABLED != 0,
            masked: function & FUNCTION_MASKED != 0,
        }
    }

    /// Restores saved registers.
    pub fn restore(&self, state: &MsixState<N>) {
        for (e, (words, pending)) in self.entries.iter().zip(state.entries.iter().zip(state.pending)) {
            for (i, (word, value)) in e.words.iter().zip(words).enumerate() {
                word.store(if i == CONTROL { value & ENTRY_MASKED } else { *value }, Ordering::SeqCst);
            }
            e.pending.store(pending, Ordering::SeqCst);
        }
        self.set_function_control(state.enabled, state.masked);
    }

    fn masked(&self, e: &Entry) -> bool {
        self.function.load(Ordering::SeqCst) != ENABLED || e.words[CONTROL].load(Ordering::SeqCst) & ENTRY_MASKED != 0
    }
}

impl Entry {
    /// Address and data may be from different moments if the guest writes them while the entry is unmasked. The
    /// specification forbids that. Only that guest is affected.
    fn message(&self) -> Message {
        let [low, high, data, _] = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        Message { address: u64::from(high) << 32 | u64::from(low), data }
    }
}

/// Reads `size` bytes at `offset` of an area of 32-bit words. The access may cross a word. Bytes for which `word`
/// returns `None` are zero.
fn gather(offset: u64, size: u8, word: impl Fn(u64) -> Option<u32>) -> u64 {
    let byte = |at: u64| word(at / 4)?.to_le_bytes().get((at % 4) as usize).copied();
    let mut bytes = [0; 8];
    for (into, i) in bytes.iter_mut().zip(0..u64::from(size)) {
        *into = byte(offset.wrapping_add(i)).unwrap_or(0);
    }
    u64::from_le_bytes(bytes)
}

/// A message, as it is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The address of the write.
    pub address: u64,
    /// The data of the write.
    pub data: u32,
}

/// Message address register (SDM vol. 3A 11.11.1).
#[bitfield(u32)]
struct Address {
    #[bits(2)]
    ignored: u8,
    logical: bool,
    redirection_hint: bool,
    #[bits(8)]
    reserved: u8,
    destination: u8,
    #[bits(12)]
    base: u16,
}

/// Message data register (SDM vol. 3A 11.11.2).
#[bitfield(u32)]
struct Data {
    vector: u8,
    #[bits(3)]
    delivery_mode: u8,
    #[bits(3)]
    reserved: u8,
    assert: bool,
    level_triggered: bool,
    reserved_high: u16,
}

/// An interrupt that a device may request: fixed or lowest priority, edge-triggered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupt {
    /// APIC ID (0xff: all vCPUs of the guest), or a set of logical IDs. The receiver must find it among the guest's own
    /// vCPUs.
    pub destination: u32,
    /// `destination` is a set of logical IDs.
    pub logical: bool,
    /// Lowest priority: deliver to any one of the destinations.
    pub lowest_priority: bool,
    /// 0x20 to 0xfe.
    pub vector: u8,
}

/// Why a message is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The address is outside 0xFEE0_0000 to 0xFEEF_FFFF, where interrupts are sent.
    Address(u64),
    /// The address has reserved bits (11:4) set: a format that this machine does not support.
    ReservedAddressBits(u64),
    /// Delivery mode other than fixed (0) and lowest priority (1): SMI, NMI, INIT, ExtINT and reserved ones.
    DeliveryMode(u8),
    /// Level-triggered.
    LevelTriggered,
    /// A vector below 0x20, reserved for exceptions, or 0xff, the spurious vector.
    Vector(u8),
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Address(a) => write!(f, "message address {a:#x}, expected 0xfeexxxxx"),
            Self::ReservedAddressBits(a) => write!(f, "message address {a:#x} has reserved bits 11:4 set"),
            Self::DeliveryMode(m) => write!(f, "delivery mode {m}, expected 0 (fixed) or 1 (lowest priority)"),
            Self::LevelTriggered => write!(f, "level-triggered message, expected edge"),
            Self::Vector(v) => write!(f, "vector {v:#x}, expected 0x20 to 0xfe"),
        }
    }
}

impl Message {
    /// Decodes the message into the interrupt that it requests.
    ///
    /// # Errors
    /// A device may not request it. Nothing must be delivered then.
    pub fn decode(&self) -> Result<Interrupt, Refused> {
        let low = u32::try_from(self.address).map_err(|_| Refused::Address(self.address))?;
        let address = Address::from_bits(low);
        let data = Data::from_bits(self.data);
        if address.base() != 0xfee {
            return Err(Refused::Address(self.address));
        }
        if address.reserved() != 0 {
            return Err(Refused::ReservedAddressBits(self.address));
        }
        if data.delivery_mode() > 1 {
            return Err(Refused::DeliveryMode(data.delivery_mode()));
        }
        if data.level_triggered() {
            return Err(Refused::LevelTriggered);
        }
        if !(0x20..=0xfe).contains(&data.vector()) {
            return Err(Refused::Vector(data.vector()));
        }
        Ok(Interrupt {
            destination: u32::from(address.destination()),
            logical: address.logical(),
            lowest_priority: data.delivery_mode() == 1 || address.redirection_hint(),
            vector: data.vector(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Interrupt, Message, MsixTable, Refused};

    fn table() -> MsixTable<3> {
        let t = MsixTable::new();
        t.set_function_control(true, false);
        t.write(16, 8, 0xfee0_1000);
        t.write(24, 8, 0x41);
        t
    }

    const MESSAGE: Message = Message { address: 0xfee0_1000, data: 0x41 };

    #[test]
    fn an_unmasked_entry_yields_its_message_each_time() {
        let t = table();
        assert_eq!(t.raise(1), Some(MESSAGE));
        assert_eq!(t.raise(1), Some(MESSAGE));
        assert_eq!(t.read_pba(0, 8), 0);
        assert_eq!(t.take_unmasked().count(), 0);
    }

    #[test]
    fn a_masked_entry_becomes_pending_and_is_sent_once_when_unmasked() {
        let t = table();
        t.write(28, 4, 1);
        assert_eq!(t.raise(1), None);
        assert_eq!(t.raise(1), None);
        assert_eq!(t.read_pba(0, 8), 2);
        assert_eq!(t.take_unmasked().count(), 0, "still masked");
        t.write(28, 4, 0);
        assert_eq!(t.take_unmasked().collect::<Vec<_>>(), [MESSAGE]);
        assert_eq!(t.read_pba(0, 8), 0);
        assert_eq!(t.take_unmasked().count(), 0);
    }

    #[test]
    fn the_function_mask_masks_every_entry() {
        let t = table();
        t.set_function_control(true, true);
        assert_eq!(t.raise(1), None);
        t.set_function_control(true, false);
        assert_eq!(t.take_unmasked().collect::<Vec<_>>(), [MESSAGE]);
    }

    #[test]
    fn a_disabled_function_and_a_missing_entry_raise_nothing() {
        let t = table();
        assert_eq!((t.raise(3), t.raise(0xffff)), (None, None));
        t.set_function_control(false, false);
        assert_eq!(t.raise(1), None);
        assert_eq!(t.read_pba(0, 4), 0);
    }

    #[test]
    fn an_interrupt_raised_while_another_core_unmasks_is_sent_exactly_once() {
        use core::sync::atomic::{AtomicU32, Ordering};
        const ROUNDS: u32 = if cfg!(miri) { 30 } else { 20_000 };
        let t = table();
        let (start, done, sent) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        let mut wrong: Vec<u32> = Vec::new();
        let wait = |word: &AtomicU32, round| {
            while word.load(Ordering::Acquire) != round {
                core::hint::spin_loop();
            }
        };
        std::thread::scope(|s| {
            s.spawn(|| {
                for round in 1..=ROUNDS {
                    wait(&start, round);
                    sent.fetch_add(u32::from(t.raise(1).is_some()), Ordering::Relaxed);
                    done.store(round, Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                t.write(28, 4, 1);
                start.store(round, Ordering::Release);
                // A little later each time, to meet the other side at every point.
                (0..round % 64).for_each(|_| core::hint::spin_loop());
                t.write(28, 4, 0);
                let taken = t.take_unmasked().count() as u32;
                wait(&done, round);
                if sent.swap(0, Ordering::Relaxed) + taken != 1 {
                    wrong.push(round);
                }
            }
        });
        assert!(wrong.is_empty(), "rounds with another number of interrupts than one: {wrong:?}");
    }

    #[test]
    fn accesses_beyond_the_table_or_of_odd_sizes_do_nothing() {
        let t = table();
        let before = t.save();
        for (offset, size) in [(48, 4), (48, 8), (u64::MAX, 4), (u64::MAX - 7, 8), (17, 4), (20, 8), (16, 1), (16, 2)] {
            t.write(offset, size, u64::MAX);
        }
        assert_eq!(t.save(), before);
        assert_eq!(t.read(48, 8), 0);
        assert_eq!(t.read(u64::MAX, 8) & 0xff, 0);
        assert_eq!(t.read(17, 2), 0xe010);
        assert_eq!(t.read_pba(u64::MAX - 3, 8) & 0xffff_ffff, 0);
        t.write(40, 8, u64::MAX);
        assert_eq!(t.read(44, 4), 1, "only the mask bit of vector control is writable");
    }

    #[test]
    fn reset_masks_everything_and_restore_brings_it_back() {
        let t = table();
        t.write(28, 4, 1);
        t.raise(1);
        let state = t.save();
        t.reset();
        assert_eq!(t.save(), MsixTable::<3>::new().save());
        t.restore(&state);
        assert_eq!(t.save(), state);
    }

    #[test]
    fn fixed_and_lowest_priority_edge_messages_are_decoded() {
        let interrupt = Interrupt { destination: 1, logical: false, lowest_priority: false, vector: 0x41 };
        assert_eq!(MESSAGE.decode(), Ok(interrupt));
        let m = Message { address: 0xfee0_300c, data: 0x4120 };
        let wanted = Interrupt { destination: 3, logical: true, lowest_priority: true, vector: 0x20 };
        assert_eq!(m.decode(), Ok(wanted));
    }

    #[test]
    fn everything_else_is_refused_with_the_reason() {
        let with = |address: u64, data: u32| Message { address, data }.decode().unwrap_err();
        for address in [0, 0xfed0_0000, 0xfef0_0000, 0x1_fee0_0000, u64::MAX] {
            assert_eq!(with(address, 0x41), Refused::Address(address));
        }
        assert_eq!(with(0xfee0_0010, 0x41), Refused::ReservedAddressBits(0xfee0_0010));
        for mode in 2..=7 {
            assert_eq!(with(0xfee0_0000, 0x41 | u32::from(mode) << 8), Refused::DeliveryMode(mode));
        }
        assert_eq!(with(0xfee0_0000, 0x8041), Refused::LevelTriggered);
        for vector in (0..0x20).chain([0xff]) {
            assert_eq!(with(0xfee0_0000, u32::from(vector)), Refused::Vector(vector));
        }
    }
}
