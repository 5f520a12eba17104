//! The names of a guest kernel's functions, for addresses of exits.
//!
//! A file is one of: the kernel that the guest boots (bzImage), a `vmlinux` (ELF), a `System.map`, or the guest's
//! `/proc/kallsyms` (`ADDRESS TYPE NAME [MODULE]` a line). An ELF file's symbols are its symbol table, or if it has none, the
//! kernel's own table ([`kallsyms`]).

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fmt, fs, str};

use anyhow::{Context as _, Result, bail, ensure};
use goblin::elf::Elf;

use crate::{bzimage, kallsyms};

/// A function is no longer than this. An address farther behind the last symbol is in no function of the file.
const LONGEST: u64 = 1 << 20;
/// KASLR moves a kernel by multiples of this (CONFIG_PHYSICAL_ALIGN of Debian's kernels).
const ALIGNMENT: u64 = 2 << 20;
/// Where LSTAR goes.
const SYSCALL: &str = "entry_SYSCALL_64";
/// Where the IDT's gate of page faults goes. Before Linux 5.8 it had the second name.
const PAGE_FAULT: [&str; 2] = ["asm_exc_page_fault", "page_fault"];

/// Start addresses and names, sorted by address, each address once.
type Functions = Vec<(u64, String)>;

/// The functions of one kernel.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    /// Those of the kernel itself, as in the file.
    functions: Functions,
    /// Those of modules. KASLR moves modules by another offset.
    modules: Functions,
    /// The address of [`SYSCALL`] in the file.
    syscall: Option<u64>,
    /// The address of [`PAGE_FAULT`] in the file.
    page_fault: Option<u64>,
    /// Whether the file may have the addresses of the running kernel: it has lines, as `/proc/kallsyms`.
    may_be_running: bool,
}

/// What `--symbols` says: a guest, its file, and by how much its kernel was moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The guest's name.
    pub guest: String,
    /// The file.
    pub file: PathBuf,
    /// What KASLR has added to the addresses of the file. None: it is found from the trace.
    pub offset: Option<u64>,
}

/// Why it is not known by how much a kernel was moved. Its text ends a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// The file does not have this symbol.
    NoSymbol(&'static str),
    /// LSTAR says that it was moved by this, which KASLR does not do.
    NotAligned(u64),
    /// LSTAR says the first, the gate of page faults the second.
    Disagree(u64, u64),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSymbol(name) => write!(f, "the file has no `{name}`"),
            Self::NotAligned(offset) => {
                write!(f, "LSTAR is at an offset of {offset:#x}, no multiple of 2 MiB: the file is of another kernel")
            }
            Self::Disagree(syscall, page_fault) => write!(
                f,
                "LSTAR is at an offset of {syscall:#x}, the handler of page faults at {page_fault:#x}: the file is of another \
                 kernel"
            ),
        }
    }
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
                (file, Some(offset))
            }
            None => (rest, None),
        };
        Ok(Self { guest: guest.to_owned(), file: PathBuf::from(file), offset })
    }
}

impl Symbols {
    /// Reads a file of any kind.
    ///
    /// # Errors
    /// The file cannot be read, or has no function's address in it. The sentence says what would help.
    pub fn read(file: &Path) -> Result<Self> {
        let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let symbols = match bytes.as_slice() {
            elf @ [0x7f, b'E', b'L', b'F', ..] => of_elf(elf),
            image if bzimage::is_one(image) => bzimage::kernel(image).and_then(|kernel| of_elf(&kernel)),
            lines => Ok(of_lines(lines)),
        };
        let mut symbols = symbols.with_context(|| format!("no symbols in {}", file.display()))?;
        symbols.check(file)?;
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
        self.syscall = self.address(SYSCALL);
        self.page_fault = PAGE_FAULT.into_iter().find_map(|name| self.address(name));
        for functions in [&mut self.functions, &mut self.modules] {
            // Of several names of an address the first one of the file stays.
            functions.sort_by_key(|&(address, _)| address);
            functions.dedup_by_key(|&mut (address, _)| address);
        }
    }

    fn address(&self, wanted: &str) -> Option<u64> {
        self.functions.iter().find(|(_, name)| name == wanted).map(|&(address, _)| address)
    }

    /// Whether the addresses of the file may be those of the running kernel.
    #[must_use]
    pub fn may_be_running(&self) -> bool {
        self.may_be_running
    }

    /// Finds by how much a running kernel was moved from the addresses of the file. `lstar`: its LSTAR. `page_fault`: where the
    /// IDT's gate of page faults goes.
    ///
    /// # Errors
    /// The two do not fit to the file.
    pub fn offset(&self, lstar: u64, page_fault: u64) -> Result<u64, Unknown> {
        let syscall = self.syscall.ok_or(Unknown::NoSymbol(SYSCALL))?;
        let [name, _] = PAGE_FAULT;
        let handler = self.page_fault.ok_or(Unknown::NoSymbol(name))?;
        let (offset, second) = (lstar.wrapping_sub(syscall), page_fault.wrapping_sub(handler));
        if !offset.is_multiple_of(ALIGNMENT) {
            return Err(Unknown::NotAligned(offset));
        }
        if offset != second {
            return Err(Unknown::Disagree(offset, second));
        }
        Ok(offset)
    }

    /// The function that `address` is in, and how far behind its start, in a kernel that was moved by `offset`. None: in none
    /// of the file's.
    #[must_use]
    pub fn find(&self, address: u64, offset: u64) -> Option<(&str, u64)> {
        let kernel = function(&self.functions, address.wrapping_sub(offset));
        // Where the file has the running kernel's addresses, it also has its modules'.
        let module = (offset == 0).then(|| function(&self.modules, address)).flatten();
        [kernel, module].into_iter().flatten().min_by_key(|&(_, distance)| distance)
    }
}

fn function(functions: &Functions, address: u64) -> Option<(&str, u64)> {
    let after = functions.partition_point(|&(start, _)| start <= address);
    let (start, name) = functions.get(after.checked_sub(1)?)?;
    let distance = address.checked_sub(*start)?;
    (distance < LONGEST).then_some((name.as_str(), distance))
}

/// Lines of `System.map` or `/proc/kallsyms`. Lines of another form are left out; so is what is no code.
fn of_lines(bytes: &[u8]) -> Symbols {
    let mut symbols = Symbols { may_be_running: true, ..Symbols::default() };
    for line in bytes.split(|&byte| byte == b'\n') {
        let Ok(line) = str::from_utf8(line) else { continue };
        let mut words = line.split_whitespace();
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
        let Ok(address) = u64::from_str_radix(address, 16) else { continue };
        if let &[kind] = kind.as_bytes()
            && is_text(kind)
        {
            let module = words.next().is_some();
            let functions = if module { &mut symbols.modules } else { &mut symbols.functions };
            functions.push((address, name.to_owned()));
        }
    }
    symbols
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
    Ok(Symbols { functions, ..Symbols::default() })
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
        assert_eq!(symbols.find(0xffff_ffff_8100_0110, 0), Some(("native_halt", 0)));
        assert_eq!(symbols.find(0xffff_ffff_8100_01ff, 0), Some(("native_halt", 0xef)));
        assert_eq!(symbols.find(0xffff_ffff_8100_0200, 0), Some(("arch_cpu_idle", 0)));
        assert_eq!(symbols.find(0xffff_ffff_c000_0004, 0), Some(("virtnet_poll", 4)), "a module's");
    }

    #[test]
    fn an_address_outside_of_all_functions_has_no_name() {
        let symbols = lines(MAP);
        assert_eq!(symbols.find(0x40_0000, 0), None, "user space is below all");
        assert_eq!(symbols.find(0xffff_ffff_9000_0000, 0), None, "far behind the last one before it");
        assert_eq!(Symbols::default().find(0, 0), None);
    }

    #[test]
    fn a_moved_kernel_is_found_at_its_new_place_and_modules_of_another_boot_are_not() {
        let symbols = lines(MAP);
        assert_eq!(symbols.find(0xffff_ffff_8200_0112, 0x100_0000), Some(("native_halt", 2)));
        assert_eq!(symbols.find(0xffff_ffff_c100_0004, 0x100_0000), None);
        assert_eq!(symbols.find(0xffff_ffff_c000_0004, 0x100_0000), None);
    }

    const ENTRIES: &str = "\
ffffffff81000000 T _text
ffffffff81e00080 T entry_SYSCALL_64
ffffffff81e01280 T asm_exc_page_fault
";

    #[test]
    fn the_offset_is_what_both_entries_of_the_kernel_say() {
        let offset = |moved: u64, more: u64| {
            lines(ENTRIES)
                .offset(0xffff_ffff_81e0_0080_u64.wrapping_add(moved), 0xffff_ffff_81e0_1280_u64.wrapping_add(more))
        };
        assert_eq!(offset(0, 0), Ok(0));
        assert_eq!(offset(0x1e00_0000, 0x1e00_0000), Ok(0x1e00_0000));
        assert_eq!(offset(0x1e00_1000, 0x1e00_1000), Err(Unknown::NotAligned(0x1e00_1000)));
        assert_eq!(offset(0x1e00_0000, 0x1c00_0000), Err(Unknown::Disagree(0x1e00_0000, 0x1c00_0000)));
        assert!(lines(ENTRIES).offset(0xffff_ffff_9fe0_0080, 0).is_err(), "the gate could not be read");
    }

    #[test]
    fn a_file_without_one_of_the_entries_gives_no_offset() {
        let without =
            |name: &str| lines(&ENTRIES.replace(name, "other")).offset(0xffff_ffff_81e0_0080, 0xffff_ffff_81e0_1280);
        assert_eq!(without("entry_SYSCALL_64"), Err(Unknown::NoSymbol("entry_SYSCALL_64")));
        assert_eq!(without("asm_exc_page_fault"), Err(Unknown::NoSymbol("asm_exc_page_fault")));
        let older = lines(&ENTRIES.replace("asm_exc_page_fault", "page_fault"));
        assert_eq!(older.offset(0xffff_ffff_81e0_0080, 0xffff_ffff_81e0_1280), Ok(0), "before Linux 5.8");
    }

    #[test]
    fn a_choice_has_a_guest_a_file_and_perhaps_an_offset() {
        let plain: Choice = "a=/boot/System.map-6.12".parse().unwrap();
        assert_eq!(plain, Choice { guest: "a".into(), file: "/boot/System.map-6.12".into(), offset: None });
        let moved: Choice = "a=vmlinux+0x1e000000".parse().unwrap();
        assert_eq!((moved.file, moved.offset), ("vmlinux".into(), Some(0x1e00_0000)));
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
        let symbols = Symbols::read(&program).unwrap();
        assert!(symbols.functions.iter().any(|(_, name)| name.contains("an_elf_file_gives_its_own_functions")));
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
            let symbols = Symbols::read(file.path()).unwrap();
            assert_eq!(symbols.find(0xffff_ffff_8100_0041, 0), Some(("__x64_sys_call_1", 1)));
            assert_eq!(symbols.find(0x20, 0), None, "a per-CPU variable is no code");
        }
    }

    #[test]
    fn bytes_that_are_no_elf_file_are_an_error() {
        assert!(of_elf(b"\x7fELF\x02\x01\x01").is_err());
    }
}
