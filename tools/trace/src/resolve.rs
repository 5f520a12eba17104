//! Names the functions in which guests were at their exits, with the symbols that the user gave for each guest.
//!
//! KASLR moves a kernel at each boot. By how much is found from what the machine has read of the running kernel
//! ([`KernelAddresses`]), for each life of the guest. Where the two do not fit, addresses have no names, and
//! [`Resolver::notes`] says why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::Serialize;
use trace::Kind;
use trace::stream::KernelAddresses;

use crate::model::{Event, Trace, clean};
use crate::symbols::{Choice, Symbols, Unknown};

/// Symbols by number of the guest.
#[derive(Debug, Default)]
pub struct Resolver(BTreeMap<u8, OfGuest>);

/// A guest's symbols, and where its kernel was.
#[derive(Debug)]
struct OfGuest {
    guest: String,
    file: PathBuf,
    symbols: Symbols,
    moved: Moved,
}

/// By how much a kernel was moved.
#[derive(Debug)]
enum Moved {
    /// By this, as the user said.
    Given(u64),
    /// Nobody knows. The file's addresses may be those of the running kernel, and are taken for that.
    NotChecked,
    /// Nobody knows, and the file has the addresses of a kernel that was not moved.
    Unknown,
    /// By core, then by the beginning of the vCPU's life. None: nothing was read in this life.
    Found(BTreeMap<u32, BTreeMap<u64, Option<Result<u64, Unknown>>>>),
}

/// What is known of a guest's symbols.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The guest.
    pub guest: String,
    /// The file of its symbols.
    pub file: PathBuf,
    /// What was added to the file's addresses, one for each place where the kernel was.
    pub offsets: BTreeSet<u64>,
    /// Whether LSTAR and the gate of page faults say so.
    pub checked: bool,
    /// Why exits have no names, or some have none. Empty: there is no reason.
    pub raw: Vec<String>,
}

impl Resolver {
    /// Reads the files of all choices.
    ///
    /// # Errors
    /// A guest that the trace does not have, or a file without symbols.
    pub fn new(choices: &[Choice], trace: &Trace) -> Result<Self> {
        let mut all = BTreeMap::new();
        for Choice { guest, file, offset } in choices {
            let number = trace.names.guests.iter().find(|(_, name)| *name == guest).map(|(&number, _)| number);
            let Some(number) = number else { bail!("--symbols: no guest `{}` in this trace", clean(guest)) };
            let symbols = Symbols::read(file)?;
            let kernels = || trace.kernels.iter().filter(|kernel| kernel.guest == u32::from(number));
            let moved = match offset {
                &Some(offset) => Moved::Given(offset),
                None if kernels().any(|kernel| kernel.lstar != 0) => Moved::Found(found(&symbols, kernels())),
                None if symbols.may_be_running() => Moved::NotChecked,
                None => Moved::Unknown,
            };
            all.insert(number, OfGuest { guest: clean(guest), file: file.clone(), symbols, moved });
        }
        Ok(Self(all))
    }

    /// The function in which an exit's guest was, and how far behind its start. None: the record is no exit, the guest has
    /// no symbols, none has this address, or it is not known where the guest's kernel was.
    #[must_use]
    pub fn function(&self, event: &Event) -> Option<(&str, u64)> {
        let record = &event.record;
        if record.known_kind() != Some(Kind::Exit) {
            return None;
        }
        let of = self.0.get(&record.guest)?;
        of.symbols.find(record.a, of.moved.at(event.core, record.tsc)?)
    }

    /// The function's name for stacks. None: the guest has no symbols, and stacks have no level for them.
    #[must_use]
    pub fn frame(&self, event: &Event) -> Option<String> {
        self.0.get(&event.record.guest)?;
        Some(self.function(event).map_or_else(|| format!("{:#x}", event.record.a), |(name, _)| name.to_owned()))
    }

    /// What is known of each guest's symbols.
    #[must_use]
    pub fn notes(&self) -> Vec<Note> {
        self.0.values().map(OfGuest::note).collect()
    }
}

impl OfGuest {
    fn note(&self) -> Note {
        let (mut offsets, mut raw) = (BTreeSet::new(), BTreeSet::new());
        let mut checked = false;
        match &self.moved {
            &Moved::Given(offset) => drop(offsets.insert(offset)),
            Moved::NotChecked => drop(offsets.insert(0)),
            Moved::Unknown => drop(
                raw.insert(
                    "the trace does not say where the kernel is; give the offset of KASLR, or +0x0, behind the file"
                        .to_owned(),
                ),
            ),
            Moved::Found(cores) => {
                for found in cores.values().flat_map(BTreeMap::values).flatten() {
                    match found {
                        Ok(offset) => drop(offsets.insert(*offset)),
                        Err(why) => drop(raw.insert(why.to_string())),
                    }
                }
                checked = !offsets.is_empty();
            }
        }
        let raw = raw.into_iter().collect();
        Note { guest: self.guest.clone(), file: self.file.clone(), offsets, checked, raw }
    }
}

impl Moved {
    /// By how much the kernel was moved at this time, for an exit on this core.
    fn at(&self, core: u32, tsc: u64) -> Option<u64> {
        let cores = match self {
            Self::Given(offset) => return Some(*offset),
            Self::NotChecked => return Some(0),
            Self::Unknown => return None,
            Self::Found(cores) => cores,
        };
        let life = |core: u32| {
            let (_, offset) = cores.get(&core)?.range(..=tsc).next_back()?;
            offset.as_ref()?.as_ref().ok().copied()
        };
        // A core that has not read it since the kernel has set LSTAR takes it from another one of the guest's.
        life(core).or_else(|| cores.keys().find_map(|&other| life(other)))
    }
}

/// Offsets by core and life. The last one that was read in a life is the life's.
fn found<'a>(
    symbols: &Symbols,
    kernels: impl Iterator<Item = &'a KernelAddresses>,
) -> BTreeMap<u32, BTreeMap<u64, Option<Result<u64, Unknown>>>> {
    let mut cores: BTreeMap<u32, BTreeMap<_, _>> = BTreeMap::new();
    for kernel in kernels {
        let offset = (kernel.lstar != 0).then(|| symbols.offset(kernel.lstar, kernel.page_fault));
        cores.entry(kernel.core).or_default().insert(kernel.since, offset);
    }
    cores
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use tempfile::NamedTempFile;
    use trace::Record;

    use super::*;
    use crate::clock::Clock;
    use crate::model::{Damage, Names};

    const MAP: &str = "\
ffffffff81000000 T _text
ffffffff81000110 t native_halt
ffffffff81e00080 T entry_SYSCALL_64
ffffffff81e01280 T asm_exc_page_fault
";
    const MOVED: u64 = 0x1e00_0000;

    /// A kernel at this offset, in a life of the core that begins at `since`.
    fn kernel(core: u32, since: u64, offset: u64) -> KernelAddresses {
        let (lstar, page_fault) = (0xffff_ffff_81e0_0080 + offset, 0xffff_ffff_81e0_1280 + offset);
        KernelAddresses { core, guest: 0, since, read: since + 5, lstar, page_fault }
    }

    /// A vCPU of which nothing was read.
    fn unread(core: u32, since: u64) -> KernelAddresses {
        KernelAddresses { core, guest: 0, since, read: 0, lstar: 0, page_fault: 0 }
    }

    fn trace(kernels: &[KernelAddresses]) -> Trace {
        let names = Names { guests: [(0, "a".to_owned())].into(), ..Names::default() };
        let trace = Trace::new(Clock::new(0, None), names, Vec::new(), Vec::new(), Damage::default());
        Trace { kernels: kernels.to_vec(), ..trace }
    }

    fn resolver(file: &[u8], offset: Option<u64>, kernels: &[KernelAddresses]) -> Resolver {
        let mut place = NamedTempFile::new().unwrap();
        place.write_all(file).unwrap();
        let choice = Choice { guest: "a".into(), file: place.path().into(), offset };
        Resolver::new(&[choice], &trace(kernels)).unwrap()
    }

    /// The name for an exit of a kernel at an offset.
    fn name(resolver: &Resolver, core: u32, tsc: u64, offset: u64) -> Option<&str> {
        let record = Record { guest: 0, a: 0xffff_ffff_8100_0112 + offset, ..Record::new(Kind::Exit, tsc) };
        resolver.function(&Event { core, number: 0, record }).map(|(name, _)| name)
    }

    #[test]
    fn each_life_of_a_guest_has_its_own_offset() {
        let kernels = [kernel(1, 100, MOVED), unread(1, 200), kernel(1, 300, 2 * MOVED)];
        let resolver = resolver(MAP.as_bytes(), None, &kernels);
        assert_eq!(name(&resolver, 1, 150, MOVED), Some("native_halt"));
        assert_eq!(name(&resolver, 1, 250, MOVED), None, "nobody knows where the kernel is in this life");
        assert_eq!(name(&resolver, 1, 350, 2 * MOVED), Some("native_halt"));
        assert_eq!(name(&resolver, 1, 350, MOVED), None);
        assert_eq!(name(&resolver, 1, 50, MOVED), None, "before all lives");
        let [note] = &resolver.notes()[..] else { panic!("one guest") };
        assert_eq!((note.offsets.clone(), note.checked, note.raw.len()), ([MOVED, 2 * MOVED].into(), true, 0));
    }

    #[test]
    fn the_last_that_was_read_in_a_life_holds_from_its_beginning() {
        let kernels = [unread(1, 100), kernel(1, 100, MOVED)];
        assert_eq!(name(&resolver(MAP.as_bytes(), None, &kernels), 1, 101, MOVED), Some("native_halt"));
    }

    #[test]
    fn a_vcpu_that_has_not_read_it_takes_it_from_another_one() {
        let kernels = [kernel(1, 100, MOVED), unread(2, 110)];
        let resolver = resolver(MAP.as_bytes(), None, &kernels);
        assert_eq!(name(&resolver, 2, 150, MOVED), Some("native_halt"));
        assert_eq!(name(&resolver, 3, 150, MOVED), Some("native_halt"), "its block is missing");
    }

    #[test]
    fn a_file_of_another_kernel_names_nothing_and_says_why() {
        let other = MAP.replace("81e01280", "81e01380");
        let resolver = resolver(other.as_bytes(), None, &[kernel(1, 100, MOVED)]);
        assert_eq!(name(&resolver, 1, 150, MOVED), None);
        let [note] = &resolver.notes()[..] else { panic!("one guest") };
        assert!(note.offsets.is_empty() && !note.checked);
        assert!(note.raw[0].contains("page faults at 0x1dffff00"), "{:?}", note.raw);
        let frame = resolver.frame(&Event {
            core: 1,
            number: 0,
            record: Record { guest: 0, a: 0x1234, ..Record::new(Kind::Exit, 150) },
        });
        assert_eq!(frame.as_deref(), Some("0x1234"), "the address stays raw");
    }

    #[test]
    fn what_the_user_gives_is_taken_without_a_check() {
        let resolver = resolver(MAP.as_bytes(), Some(2 * MOVED), &[kernel(1, 100, MOVED)]);
        assert_eq!(name(&resolver, 1, 150, 2 * MOVED), Some("native_halt"));
        assert!(!resolver.notes()[0].checked);
    }

    #[test]
    fn without_a_word_of_the_kernel_lines_are_taken_as_they_are_and_an_image_is_not() {
        for kernels in [&[][..], &[unread(1, 100)]] {
            assert_eq!(name(&resolver(MAP.as_bytes(), None, kernels), 1, 150, 0), Some("native_halt"));
            let image = resolver(&std::fs::read(std::env::current_exe().unwrap()).unwrap(), None, kernels);
            assert_eq!(name(&image, 1, 150, 0), None);
            assert!(image.notes()[0].raw[0].contains("+0x0"));
        }
    }
}
