//! Where guests' exits come from: counts the records of exits in a trace that the machine sends on COM2.
//!
//! With the symbols of a guest's kernel, addresses have names. Where KASLR has moved the kernel is in the trace, as in
//! `sidecore-trace`. What is kept is bounded, whatever the machine sends.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sidecore_trace::symbols::{Choice, Symbols};
use trace::stream::{self, Block, Chunk, Header, KernelAddresses, Step, Table};
use trace::{Kind, Record};

use crate::clean::{NAME, clean};

/// Most addresses that are kept apart, of all guests and reasons together.
const MOST: usize = 10_000;
/// Most cores whose guests' kernels are known.
const MOST_CORES: usize = 1024;
/// Addresses that are shown for a reason.
const OF_A_REASON: usize = 3;
/// Addresses that are shown for a guest.
const OF_A_GUEST: usize = 12;

/// The symbols of one guest's kernel.
#[derive(Debug)]
struct OfGuest {
    guest: String,
    symbols: Symbols,
    /// By how much the kernel was moved, as the user said.
    given: Option<u64>,
}

/// Symbols of guests' kernels, by the command line.
#[derive(Clone, Debug, Default)]
pub struct Known(Arc<Vec<OfGuest>>);

impl Known {
    /// Reads the files of all choices.
    ///
    /// # Errors
    /// A file cannot be read, or has no symbols.
    pub fn read(choices: &[Choice]) -> Result<Self> {
        let of = |choice: &Choice| {
            let symbols = Symbols::read(&choice.file)?;
            Ok(OfGuest { guest: clean(&choice.guest, NAME), symbols, given: choice.offset })
        };
        Ok(Self(Arc::new(choices.iter().map(of).collect::<Result<_>>()?)))
    }

    fn of(&self, guest: &str) -> Option<&OfGuest> {
        self.0.iter().find(|of| of.guest == guest)
    }
}

/// An address, for a reason of exits. The kernel was moved by the last, if that was known when its exit came.
type Place = (u8, u8, u64, Option<u64>);

/// What has arrived of a trace.
#[derive(Clone, Debug, Default)]
pub struct Traced {
    known: Known,
    /// The beginning of a block that has not arrived whole.
    begun: Vec<u8>,
    guests: BTreeMap<u8, String>,
    reasons: BTreeMap<u8, String>,
    /// By core: the guest, and by how much its kernel was moved.
    kernels: BTreeMap<u32, (u8, Option<u64>)>,
    exits: BTreeMap<Place, u64>,
    /// Exits that came.
    counted: u64,
    /// Records that the machine had no room for.
    lost: u64,
    ended: bool,
}

/// An address that exits come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hot {
    /// The reason of the exits.
    pub reason: String,
    /// The guest's RIP.
    pub address: u64,
    /// How many exits.
    pub exits: u64,
    /// Exits of the guest for that reason, from anywhere.
    pub of: u64,
    /// The function, and how far behind its start.
    pub function: Option<(String, u64)>,
}

impl Traced {
    /// Makes an empty one.
    #[must_use]
    pub fn new(known: Known) -> Self {
        Self { known, ..Self::default() }
    }

    /// Forgets what has arrived.
    pub fn forget(&mut self) {
        *self = Self::new(std::mem::take(&mut self.known));
    }

    /// Whether the machine has sent the end of the trace, or nothing of one.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended || self.guests.is_empty()
    }

    /// Exits that came, and records that were lost.
    #[must_use]
    pub const fn totals(&self) -> (u64, u64) {
        (self.counted, self.lost)
    }

    /// Takes an event `trace`. Returns false if it is no base64.
    pub fn take(&mut self, data: &str, end: bool) -> bool {
        let bytes = STANDARD.decode(data);
        self.bytes(bytes.as_deref().unwrap_or_default(), end);
        bytes.is_ok()
    }

    /// Takes the next bytes of a trace. `end`: it ends with them.
    pub fn bytes(&mut self, bytes: &[u8], end: bool) {
        if self.ended {
            // Another trace begins.
            self.forget();
        }
        self.ended = end;
        let mut waiting = std::mem::take(&mut self.begun);
        waiting.extend(bytes);
        let mut rest = waiting.as_slice();
        loop {
            let used = match stream::step(rest) {
                Step::Block(block, used) => {
                    self.block(&block);
                    used
                }
                Step::Damaged(bytes) => bytes,
                Step::Incomplete => break,
            };
            rest = rest.get(used..).unwrap_or_default();
        }
        // Less than a block.
        self.begun = rest.to_vec();
    }

    fn block(&mut self, block: &Block<'_>) {
        match block {
            Block::Header(header) => self.header(header),
            Block::Chunk(chunk) => self.chunk(chunk),
            Block::Kernel(kernel) => self.kernel(kernel),
            // The console asks for all exits with their RIPs, and is refused if others have them sampled.
            Block::Scope(_) | Block::Captures(_) | Block::Unknown { .. } => {}
        }
    }

    fn header(&mut self, header: &Header<'_>) {
        for name in header.names() {
            let Ok(number) = u8::try_from(name.number) else { continue };
            let names = match name.table {
                table if table == Table::Guest as u8 => &mut self.guests,
                table if table == Table::Reason as u8 => &mut self.reasons,
                _ => continue,
            };
            names.insert(number, clean(name.name, NAME));
        }
    }

    fn kernel(&mut self, kernel: &KernelAddresses) {
        let Ok(guest) = u8::try_from(kernel.guest) else { return };
        let of = self.guests.get(&guest).and_then(|name| self.known.of(name));
        let moved = of.filter(|_| kernel.lstar != 0);
        let moved = moved.and_then(|of| of.symbols.offset(kernel.lstar, kernel.page_fault).ok());
        if self.kernels.len() < MOST_CORES || self.kernels.contains_key(&kernel.core) {
            self.kernels.insert(kernel.core, (guest, moved));
        }
    }

    fn chunk(&mut self, chunk: &Chunk<'_>) {
        self.lost = self.lost.saturating_add(chunk.lost);
        for record in chunk.records().filter(|record| record.known_kind() == Some(Kind::Exit)) {
            self.exit(chunk.core, &record);
        }
    }

    fn exit(&mut self, core: u32, record: &Record) {
        self.counted = self.counted.saturating_add(1);
        let own = self.kernels.get(&core).filter(|(guest, _)| *guest == record.guest).and_then(|(_, moved)| *moved);
        let other = || self.kernels.values().find_map(|&(guest, moved)| moved.filter(|_| guest == record.guest));
        let place = (record.guest, record.code, record.a, own.or_else(other));
        if self.exits.len() < MOST || self.exits.contains_key(&place) {
            let exits = self.exits.entry(place).or_default();
            *exits = exits.saturating_add(1);
        }
    }

    /// The addresses that most exits of a guest come from, for each reason: reasons with most exits first.
    #[must_use]
    pub fn hottest(&self, guest: &str) -> Vec<Hot> {
        let Some((&number, _)) = self.guests.iter().find(|(_, name)| *name == guest) else { return Vec::new() };
        let of = self.known.of(guest);
        let mut reasons: BTreeMap<u8, Vec<Hot>> = BTreeMap::new();
        let places = self.exits.range((number, 0, 0, None)..).take_while(|((guest, ..), _)| *guest == number);
        for (&(_, code, address, moved), &exits) in places {
            let function = || {
                let of = of?;
                let running = of.symbols.may_be_running().then_some(0);
                let (name, distance) = of.symbols.find(address, of.given.or(moved).or(running)?)?;
                Some((clean(name, NAME), distance))
            };
            let hot = reasons.entry(code).or_default();
            match hot.last_mut() {
                // Exits of one address stand together: before the place of the kernel was known, and after.
                Some(same) if same.address == address => {
                    same.exits = same.exits.saturating_add(exits);
                    same.function = same.function.take().or_else(function);
                }
                _ => {
                    let reason = self.reasons.get(&code).cloned().unwrap_or_else(|| format!("reason-{code}"));
                    hot.push(Hot { reason, address, exits, of: 0, function: function() });
                }
            }
        }
        let mut reasons: Vec<(u64, Vec<Hot>)> = reasons.into_values().map(|places| (sum(&places), places)).collect();
        reasons.sort_by_key(|(all, _)| std::cmp::Reverse(*all));
        let of_reason = |(of, mut places): (u64, Vec<Hot>)| {
            places.sort_by_key(|place| std::cmp::Reverse(place.exits));
            places.into_iter().take(OF_A_REASON).map(move |place| Hot { of, ..place })
        };
        reasons.into_iter().flat_map(of_reason).take(OF_A_GUEST).collect()
    }
}

fn sum(places: &[Hot]) -> u64 {
    places.iter().fold(0, |sum, place| sum.saturating_add(place.exits))
}

#[cfg(test)]
pub mod tests;
