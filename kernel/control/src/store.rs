//! Modules that come while the machine runs, by the command `put`. They are in one piece of memory that was taken at boot.
//!
//! A module comes in pieces, in their order. Its size and its SHA-256 are known before the first piece. Until its last byte is
//! there and the SHA-256 is right, there is no such module. What breaks off leaves nothing: a module of the same name that was there
//! before stays. One module comes at a time. A module that somebody uses is neither replaced nor forgotten.
//!
//! Whoever sends the pieces is hostile: each number is checked against what was said before it.

use core::fmt;

use heapless::String;
use sha2::Digest as _;

use crate::no_memory::sentence;
use crate::sha256::Sha256;
use crate::{Text, is_name};

/// Most modules that come while the machine runs.
pub const MAX_PUT_MODULES: usize = 32;
/// Most bytes of the name of such a module.
const NAME: usize = 32;
/// Milliseconds without a piece, after which another module may come instead.
const PATIENCE: u64 = 30_000;
/// Modules begin at multiples of so many bytes.
const ALIGNMENT: usize = 64;

/// The modules, and the memory that they are in.
pub struct Store<'m> {
    memory: &'m mut [u8],
    modules: heapless::Vec<Stored, MAX_PUT_MODULES>,
    coming: Option<Coming>,
}

/// A module that is there.
struct Stored {
    name: String<NAME>,
    place: Place,
    sha256: Sha256,
}

/// A module that comes.
struct Coming {
    name: String<NAME>,
    place: Place,
    /// The bytes that are there.
    filled: usize,
    hash: sha2::Sha256,
    expected: Sha256,
    /// When the last piece came, in milliseconds.
    last: u64,
}

/// A piece of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    start: usize,
    len: usize,
}

impl Place {
    const fn end(self) -> usize {
        self.start.saturating_add(self.len)
    }

    const fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

impl<'m> Store<'m> {
    /// Makes a store without modules. Without memory nothing can be put there.
    #[must_use]
    pub const fn new(memory: &'m mut [u8]) -> Self {
        Self { memory, modules: heapless::Vec::new(), coming: None }
    }

    /// Begins to take a module of `bytes` bytes. `now`: milliseconds that never decrease. `is_used`: whether somebody uses the module
    /// of that name.
    ///
    /// # Errors
    /// There is no room, somebody uses the module of this name, or another one comes now. The sentence for whoever asked.
    pub fn begin(
        &mut self,
        now: u64,
        name: &str,
        bytes: u64,
        expected: Sha256,
        is_used: impl Fn(&str) -> bool,
    ) -> Result<(), Text> {
        if self.memory.is_empty() {
            return Err("no memory is kept for modules: `modules` of [management] in the file of the boot".into());
        }
        let Some(name) = String::try_from(name).ok().filter(|name| is_name(name)) else {
            return Err("the name of a module is 1 to 32 letters, digits, `-`, `_` and `.`".into());
        };
        if let Some(coming) = self.coming.as_ref().filter(|coming| now.saturating_sub(coming.last) < PATIENCE) {
            return Err(sentence(format_args!("the module `{}` is being put; only one comes at a time", coming.name)));
        }
        self.coming = None;
        if is_used(&name) {
            return Err(used(&name));
        }
        let is_new = self.find(&name).is_none();
        if is_new && self.modules.is_full() {
            return Err(sentence(format_args!("there are {MAX_PUT_MODULES} modules already; `forget` one")));
        }
        let Some(place) = usize::try_from(bytes).ok().filter(|len| *len > 0).and_then(|len| self.gap(len)) else {
            let (most, all) = (self.largest_gap(), self.memory.len());
            return Err(sentence(format_args!(
                "no room for {bytes} bytes: of {all} for modules the largest free piece has {most}"
            )));
        };
        self.coming = Some(Coming { name, place, filled: 0, hash: sha2::Sha256::new(), expected, last: now });
        Ok(())
    }

    /// Takes the next piece of the module that comes. `at`: the bytes before it.
    ///
    /// # Errors
    /// It does not come, or this is not its next piece. A piece that does not fit ends it, and nothing is left.
    pub fn add(&mut self, now: u64, name: &str, at: u64, piece: &[u8]) -> Result<(), Text> {
        let Some(coming) = self.coming.as_mut().filter(|coming| coming.name == name) else {
            return Err(not_coming(name));
        };
        let next = coming.filled.saturating_add(piece.len());
        let fits = usize::try_from(at) == Ok(coming.filled) && next <= coming.place.len;
        let start = coming.place.start.saturating_add(coming.filled);
        let place = self.memory.get_mut(start..start.saturating_add(piece.len())).filter(|_| fits);
        let Some(place) = place else {
            let (filled, len, piece) = (coming.filled, coming.place.len, piece.len());
            self.coming = None;
            return Err(sentence(format_args!(
                "{piece} bytes at {at} are not the next ones: {filled} of {len} are there; the module is given up"
            )));
        };
        place.copy_from_slice(piece);
        coming.hash.update(piece);
        coming.filled = next;
        coming.last = now;
        Ok(())
    }

    /// Ends the module that comes. From now on it is there, instead of one of the same name.
    ///
    /// # Errors
    /// It does not come, is not complete, has another SHA-256, or somebody uses the one of the same name now. Nothing of it is
    /// left.
    pub fn end(&mut self, name: &str, is_used: impl Fn(&str) -> bool) -> Result<Sha256, Text> {
        let Some(coming) = self.coming.take_if(|coming| coming.name == name) else { return Err(not_coming(name)) };
        if coming.filled != coming.place.len {
            let (filled, len) = (coming.filled, coming.place.len);
            return Err(sentence(format_args!("{filled} bytes of {len} have come; the module is given up")));
        }
        let sha256 = Sha256(coming.hash.finalize().into());
        if sha256 != coming.expected {
            let expected = coming.expected;
            return Err(sentence(format_args!("the SHA-256 is {sha256} and not {expected}; the module is given up")));
        }
        if is_used(name) {
            return Err(used(name));
        }
        self.modules.retain(|stored| stored.name != name);
        let stored = Stored { name: coming.name, place: coming.place, sha256 };
        // This succeeds: there was a place when it began, and only one comes at a time.
        self.modules.push(stored).map_err(|_| "there are too many modules")?;
        Ok(sha256)
    }

    /// Gives up the module that comes, if there is one. Returns its name.
    pub fn give_up(&mut self) -> Option<String<NAME>> {
        self.coming.take().map(|coming| coming.name)
    }

    /// Whether a module comes.
    #[must_use]
    pub const fn is_taking(&self) -> bool {
        self.coming.is_some()
    }

    /// Forgets a module.
    ///
    /// # Errors
    /// There is none, or somebody uses it.
    pub fn forget(&mut self, name: &str, is_used: impl Fn(&str) -> bool) -> Result<(), Text> {
        if self.find(name).is_none() {
            return Err(sentence(format_args!("no module `{}` was put", crate::shown::Shortened(name))));
        }
        if is_used(name) {
            return Err(used(name));
        }
        self.modules.retain(|stored| stored.name != name);
        Ok(())
    }

    fn find(&self, name: &str) -> Option<&Stored> {
        self.modules.iter().find(|stored| stored.name == name)
    }

    /// The contents of a module.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let place = self.find(name)?.place;
        self.memory.get(place.start..place.end())
    }

    /// The modules: name, bytes, SHA-256.
    pub fn modules(&self) -> impl Iterator<Item = (&str, u64, Sha256)> {
        self.modules.iter().map(|stored| (&*stored.name, stored.place.len as u64, stored.sha256))
    }

    fn is_free(&self, place: Place) -> bool {
        place.end() <= self.memory.len() && self.places().all(|taken| !taken.overlaps(place))
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        self.modules.iter().map(|stored| stored.place).chain(self.coming.iter().map(|coming| coming.place))
    }

    /// Where a free piece may begin.
    fn starts(&self) -> impl Iterator<Item = usize> {
        core::iter::once(0).chain(self.places().map(|place| place.end().next_multiple_of(ALIGNMENT)))
    }

    /// The first free piece of this length.
    fn gap(&self, len: usize) -> Option<Place> {
        self.starts()
            .map(|start| Place { start, len })
            .filter(|place| self.is_free(*place))
            .min_by_key(|place| place.start)
    }

    /// Bytes of the largest free piece.
    fn largest_gap(&self) -> usize {
        let free_at = |start: usize| {
            if self.places().any(|place| place.overlaps(Place { start, len: 1 })) {
                return 0;
            }
            let next = self.places().map(|place| place.start).filter(|next| *next >= start).min();
            next.unwrap_or(self.memory.len()).saturating_sub(start)
        };
        self.starts().map(free_at).max().unwrap_or(0)
    }
}

impl fmt::Debug for Store<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.modules()).finish()
    }
}

fn used(name: &str) -> Text {
    sentence(format_args!("a guest uses the module `{name}`; expected another name"))
}

fn not_coming(name: &str) -> Text {
    sentence(format_args!("no module `{}` is being put; begin with `put`", crate::shown::Shortened(name)))
}

#[cfg(test)]
mod tests;
