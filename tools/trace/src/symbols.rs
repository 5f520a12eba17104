//! The names of a guest kernel's functions, for addresses of exits.
//!
//! A file is one of: the kernel that the guest boots (bzImage), a `vmlinux` (ELF), a `System.map`, or the guest's
//! `/proc/kallsyms` (`ADDRESS TYPE NAME [MODULE]` a line). An ELF file's symbols are its symbol table, or if it has none, the
//! kernel's own table ([`kallsyms`]).

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, str};

use anyhow::{Context as _, Result, bail, ensure};
use goblin::elf::Elf;

use crate::{bzimage, kallsyms};

/// A function is no longer than this. An address farther behind the last symbol is in no function of the file.
const LONGEST: u64 = 1 << 20;

/// The functions of one kernel.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    /// Start addresses and names, sorted by address, each address once.
    functions: Vec<(u64, String)>,
}

/// What `--symbols` says: a guest, its file, and by how much its kernel was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The guest's name.
    pub guest: String,
    /// The file.
    pub file: PathBuf,
    /// What KASLR has added to the addresses of the file.
    pub offset: u64,
}

impl FromStr for Choice {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (guest, rest) = text.split_once('=').context("expected GUEST=FILE or GUEST=FILE+0xOFFSET")?;
        ensure!(!guest.is_empty() && !rest.is_empty(), "expected GUEST=FILE or GUEST=FILE+0xOFFSET");
        let (file, offset) = match rest.rsplit_once("+0x") {
            Some((file, digits)) => {
                let offset = u64::from_str_radix(digits, 16)
                    .with_context(|| format!("`{digits}` behind `+0x` is no hexadecimal number"))?;
                (file, offset)
            }
            None => (rest, 0),
        };
        Ok(Self { guest: guest.to_owned(), file: PathBuf::from(file), offset })
    }
}

impl Symbols {
    /// Reads the file of `choice`, of any kind.
    ///
    /// # Errors
    /// The file cannot be read, or has no function's address in it. The sentence says what would help.
    pub fn read(choice: &Choice) -> Result<Self> {
        let bytes = fs::read(&choice.file).with_context(|| format!("cannot read {}", choice.file.display()))?;
        let symbols = match bytes.as_slice() {
            elf @ [0x7f, b'E', b'L', b'F', ..] => of_elf(elf),
            image if bzimage::is_one(image) => bzimage::kernel(image).and_then(|kernel| of_elf(&kernel)),
            lines => Ok(of_lines(lines)),
        };
        let mut symbols = symbols.with_context(|| format!("no symbols in {}", choice.file.display()))?;
        symbols.check(&choice.file)?;
        for (address, _) in &mut symbols.functions {
            *address = address.wrapping_add(choice.offset);
        }
        symbols.sort();
        Ok(symbols)
    }

    fn check(&self, file: &Path) -> Result<()> {
        if self.functions.is_empty() {
            bail!(
                "{} has no functions in it. Debian's System.map is an empty stand-in: take the kernel that the guest boots \
                 (vmlinuz), or the guest's /proc/kallsyms, read as root",
                file.display()
            );
        }
        ensure!(
            self.functions.iter().any(|&(address, _)| address != 0),
            "{} has only zeros for addresses: read /proc/kallsyms as root in the guest",
            file.display()
        );
        Ok(())
    }

    fn sort(&mut self) {
        self.functions.sort_by_key(|&(address, _)| address);
        self.functions.dedup_by_key(|&mut (address, _)| address);
    }

    /// The function that `address` is in, and how far behind its start. None: in none of the file's.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(&str, u64)> {
        let after = self.functions.partition_point(|&(start, _)| start <= address);
        let (start, name) = self.functions.get(after.checked_sub(1)?)?;
        let distance = address.checked_sub(*start)?;
        (distance < LONGEST).then_some((name.as_str(), distance))
    }
}

/// Lines of `System.map` or `/proc/kallsyms`. Lines of another form are left out; so is what is no code.
fn of_lines(bytes: &[u8]) -> Symbols {
    let mut functions = Vec::new();
    for line in bytes.split(|&byte| byte == b'\n') {
        let Ok(line) = str::from_utf8(line) else { continue };
        let mut words = line.split_whitespace();
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
        let Ok(address) = u64::from_str_radix(address, 16) else { continue };
        if let &[kind] = kind.as_bytes()
            && is_text(kind)
        {
            functions.push((address, name.to_owned()));
        }
    }
    Symbols { functions }
}

/// Whether symbols of this type, as `nm` has it, are code, in any binding.
const fn is_text(kind: u8) -> bool {
    matches!(kind, b't' | b'T' | b'w' | b'W')
}

/// The symbol table of an ELF file, or if that names no function, the table in the kernel.
fn of_elf(bytes: &[u8]) -> Result<Symbols> {
    let elf = Elf::parse(bytes).context("not a sound ELF file")?;
    let mut functions = Vec::new();
    for symbol in &elf.syms {
        // Assembly's entry points have no type; Linux's names them all.
        let code = symbol.is_function() || symbol.st_type() == goblin::elf::sym::STT_NOTYPE;
        let name = elf.strtab.get_at(symbol.st_name).unwrap_or_default();
        if code && symbol.st_value != 0 && symbol.st_shndx != 0 && !name.is_empty() {
            functions.push((symbol.st_value, name.to_owned()));
        }
    }
    if functions.is_empty() {
        let code = kallsyms::of(bytes)?.into_iter().filter(|symbol| is_text(symbol.kind));
        functions.extend(code.map(|symbol| (symbol.address, symbol.name)));
    }
    Ok(Symbols { functions })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Symbols {
        let mut symbols = of_lines(text.as_bytes());
        symbols.sort();
        symbols
    }

    const MAP: &str = "\
ffffffff81000000 T _text
ffffffff81000110 t native_halt
0000000000000000 A fixed_percpu_data
ffffffff82000000 D jiffies
ffffffff81000200 W arch_cpu_idle
ffffffffc0000000 t virtnet_poll\t[virtio_net]
not a line
ffffffff81000110 T native_halt_alias
";

    #[test]
    fn an_address_is_in_the_function_that_starts_before_it() {
        let symbols = lines(MAP);
        assert_eq!(symbols.find(0xffff_ffff_8100_0110), Some(("native_halt", 0)));
        assert_eq!(symbols.find(0xffff_ffff_8100_01ff), Some(("native_halt", 0xef)));
        assert_eq!(symbols.find(0xffff_ffff_8100_0200), Some(("arch_cpu_idle", 0)));
        assert_eq!(symbols.find(0xffff_ffff_c000_0004), Some(("virtnet_poll", 4)), "a module's");
    }

    #[test]
    fn an_address_outside_of_all_functions_has_no_name() {
        let symbols = lines(MAP);
        assert_eq!(symbols.find(0x40_0000), None, "user space is below all");
        assert_eq!(symbols.find(0xffff_ffff_9000_0000), None, "far behind the last one before it");
        assert_eq!(Symbols::default().find(0), None);
    }

    #[test]
    fn a_choice_has_a_guest_a_file_and_perhaps_an_offset() {
        let plain: Choice = "a=/boot/System.map-6.12".parse().unwrap();
        assert_eq!(plain, Choice { guest: "a".into(), file: "/boot/System.map-6.12".into(), offset: 0 });
        let moved: Choice = "a=vmlinux+0x1e000000".parse().unwrap();
        assert_eq!((moved.file, moved.offset), ("vmlinux".into(), 0x1e00_0000));
        for wrong in ["a", "=x", "a=", "a=x+0xzz"] {
            assert!(wrong.parse::<Choice>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_without_addresses_are_refused_with_what_would_help() {
        let stub = lines("ffffffffffffffff B The real System.map is in the linux-image-<version>-dbg package\n");
        assert!(
            stub.check(Path::new("System.map")).unwrap_err().to_string().contains("the kernel that the guest boots")
        );
        let hidden = lines("0000000000000000 T _text\n0000000000000000 t native_halt\n");
        assert!(hidden.check(Path::new("kallsyms")).unwrap_err().to_string().contains("as root"));
    }

    #[test]
    fn an_elf_file_gives_its_own_functions() {
        let program = std::env::current_exe().unwrap();
        let symbols = Symbols::read(&Choice { guest: "a".into(), file: program, offset: 0 }).unwrap();
        assert!(symbols.functions.iter().any(|(_, name)| name.contains("an_elf_file_gives_its_own_functions")));
    }

    #[test]
    fn a_moved_kernel_is_found_at_its_new_place() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), MAP).unwrap();
        let choice = Choice { guest: "a".into(), file: file.path().into(), offset: 0x100_0000 };
        assert_eq!(Symbols::read(&choice).unwrap().find(0xffff_ffff_8200_0112), Some(("native_halt", 2)));
    }

    /// An ELF file without sections or segments, and with a kernel's table in it.
    fn stripped() -> Vec<u8> {
        let mut elf = vec![0; 64];
        elf[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        elf[16..24].copy_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
        elf[52] = 64;
        let symbols = kallsyms::tests::symbols(1_000);
        let symbols: Vec<(u64, &str)> = symbols.iter().map(|(address, name)| (*address, name.as_str())).collect();
        [elf, kallsyms::tests::kernel(kallsyms::tests::Order::AddressesLast, &symbols, true)].concat()
    }

    #[test]
    fn a_kernel_without_a_symbol_table_is_named_by_its_own_table_also_inside_of_a_bzimage() {
        for bytes in [stripped(), bzimage::tests::gzip(&stripped())] {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), bytes).unwrap();
            let symbols = Symbols::read(&Choice { guest: "a".into(), file: file.path().into(), offset: 0 }).unwrap();
            assert_eq!(symbols.find(0xffff_ffff_8100_0041), Some(("__x64_sys_call_1", 1)));
            assert_eq!(symbols.find(0x20), None, "a per-CPU variable is no code");
        }
    }

    #[test]
    fn bytes_that_are_no_elf_file_are_an_error() {
        assert!(of_elf(b"\x7fELF\x02\x01\x01").is_err());
    }
}
