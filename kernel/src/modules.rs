//! Boot modules by name, and the contents of compressed ones. Contents are unpacked once, into memory that all guests share.
//!
//! Kernels and RAM disks may also be modules that come while the machine runs (`put`), in memory that is taken at boot. Disks may not.

use crate::{
    facts::facts,
    firmware::Module,
    heap::{self, For},
    mem, report,
};
use alloc::{format, string::String, string::ToString, vec::Vec};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use config::Sha256;
use control::{MAX_LINE, ModuleSummary, NoMemory, Store, Text, sentence};
use sha2::Digest;
use spin::{Mutex, MutexGuard, Once};

/// Contents that were unpacked: the module, the bytes of memory, and the memory or why there is none.
type Done = (String, u64, Result<&'static [u8], String>);

static DONE: Mutex<Vec<Done>> = Mutex::new(Vec::new());

/// Bytes that the heap has been given for the decoder.
static HEAP: Mutex<u64> = Mutex::new(0);

/// The boot modules' names and SHA-256.
static HASHES: Once<Vec<(&'static str, Sha256)>> = Once::new();

/// The modules that were put. Only the control core uses it.
#[expect(unsafe_code, reason = "in data that guests' cores and idle cores do not map")]
// SAFETY: the section is data like any other.
#[unsafe(link_section = ".control")]
static STORE: Mutex<Store<'static>> = Mutex::new(Store::new(&mut []));

/// Takes `bytes` of memory for modules that come while the machine runs. Call it once.
///
/// # Errors
/// There is not so much memory.
pub fn reserve(bytes: u64) -> Result<(), memory::frames::OutOfMemory> {
    *STORE.lock() = Store::new(mem::own_bytes(bytes)?);
    Ok(())
}

/// All modules, as they are now.
pub struct Modules(MutexGuard<'static, Store<'static>>);

/// Returns all modules. Only one at a time has them: the control core.
pub fn all() -> Modules {
    Modules(STORE.lock())
}

impl Modules {
    /// The contents of a module, of the boot or one that was put.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn contents(&self, name: &str) -> Result<&[u8], Text> {
        if let Ok(module) = find(name) {
            return Ok(module.bytes());
        }
        self.0.get(name).ok_or_else(|| sentence(format_args!("there is no module `{name}`")))
    }

    /// Names and SHA-256 of all modules, those of the boot first.
    pub fn hashes(&self) -> impl Iterator<Item = (&str, Sha256)> {
        of_boot().iter().copied().chain(self.0.modules().map(|(name, _, sha256)| (name, sha256)))
    }

    /// The list of modules.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn list(&self) -> Result<Vec<ModuleSummary>, NoMemory> {
        let summary = |name: &str, bytes, sha256: Sha256, put| {
            Ok(ModuleSummary { name: control::copy(name)?, bytes, sha256: control::write(sha256)?, put })
        };
        let bytes = |name: &str| find(name).map_or(0, |module| module.len);
        let boot = of_boot().iter().map(|&(name, sha256)| summary(name, bytes(name), sha256, false));
        control::collect(boot.chain(self.0.modules().map(|(name, bytes, sha256)| summary(name, bytes, sha256, true))))
    }

    /// Begins to take a module. `now`: milliseconds that never decrease; `is_used`: whether a guest uses the module of a name.
    ///
    /// # Errors
    /// It is not taken; the text says why.
    pub fn begin(
        &mut self,
        now: u64,
        name: &str,
        bytes: u64,
        sha256: &str,
        is_used: impl Fn(&str) -> bool,
    ) -> Result<(), Text> {
        if find(name).is_ok() {
            return Err(sentence(format_args!("`{name}` is a module of the boot; expected another name")));
        }
        let sha256 = Sha256::parse(sha256).ok_or("`sha256` has 64 hexadecimal digits")?;
        self.0.begin(now, name, bytes, sha256, is_used)
    }

    /// Takes the next piece of the module that comes, in base64.
    ///
    /// # Errors
    /// It is not its next piece, or not base64.
    pub fn add(&mut self, now: u64, name: &str, at: u64, data: &str) -> Result<(), Text> {
        let mut bytes = [0; MAX_LINE / 4 * 3];
        let len = STANDARD.decode_slice(data, &mut bytes).map_err(|_| "`data` is not base64, or too long")?;
        self.0.add(now, name, at, bytes.get(..len).unwrap_or_default())
    }

    /// Ends the module that comes.
    ///
    /// # Errors
    /// It is not complete, or has another SHA-256.
    pub fn end(&mut self, name: &str, is_used: impl Fn(&str) -> bool) -> Result<(), Text> {
        let sha256 = self.0.end(name, is_used)?;
        let bytes = self.0.get(name).map_or(0, <[u8]>::len);
        log::info!("module {name}: {bytes} bytes, SHA-256 {sha256}");
        Ok(())
    }

    /// Forgets a module that was put.
    ///
    /// # Errors
    /// There is none, or a guest uses it.
    pub fn forget(&mut self, name: &str, is_used: impl Fn(&str) -> bool) -> Result<(), Text> {
        self.0.forget(name, is_used)
    }

    /// Gives up the module that comes, because nobody can send the rest.
    pub fn give_up(&mut self) {
        if let Some(name) = self.0.give_up() {
            log::warn!("module {name}: the rest does not come, and nothing of it is kept");
        }
    }

    /// Whether a module comes.
    pub fn is_taking(&self) -> bool {
        self.0.is_taking()
    }
}

fn of_boot() -> &'static [(&'static str, Sha256)] {
    HASHES.get().map_or(&[], Vec::as_slice)
}

/// Returns the boot module of that name.
///
/// # Errors
/// There is none.
pub fn find(name: &str) -> Result<&'static Module, Text> {
    let mut modules = facts().modules.iter();
    modules.find(|module| module.name == name).ok_or_else(|| sentence(format_args!("there is no boot module `{name}`")))
}

/// Returns the SHA-256 of each module's bytes with the module's name, and reports it. Nothing writes to the modules later.
pub fn hash_all() -> &'static [(&'static str, Sha256)] {
    let hash = |module: &'static Module| {
        let hash = Sha256(sha2::Sha256::digest(module.bytes()).into());
        report::found(format!("boot module {}: {} KiB, SHA-256 {hash}", module.name, module.len.div_ceil(1024)));
        (module.name.as_str(), hash)
    };
    HASHES.call_once(|| facts().modules.iter().map(hash).collect())
}

/// What a module tells of its contents: their bytes, if it is compressed and tells them, or why it cannot be unpacked.
/// `None` if it is not compressed. Takes the memory that the decoder needs.
pub fn content(name: &str) -> Option<Result<Option<u64>, String>> {
    let bytes = find(name).ok()?.bytes();
    if !unpack::is_packed(bytes) {
        return None;
    }
    Some(unpack::header(bytes).map_err(|bad| bad.to_string()).and_then(|header| {
        extend_heap(header.heap())?;
        Ok(header.content)
    }))
}

/// Gives the heap so many bytes for the decoder, unless it has got them already. One module is unpacked at a time.
fn extend_heap(bytes: u64) -> Result<(), String> {
    let mut given = HEAP.lock();
    if *given < bytes {
        heap::extend(bytes).map_err(|e| format!("there is no memory to unpack it: {e}"))?;
        *given = bytes;
    }
    Ok(())
}

/// Returns the contents of a compressed module in `bytes` of memory, with zeroes behind them. The first call unpacks it.
///
/// # Errors
/// It is damaged or longer, or there is no memory.
pub fn unpacked(name: &str, bytes: u64) -> Result<&'static [u8], String> {
    let _control = For::control();
    let mut done = DONE.lock();
    if let Some((.., found)) = done.iter().find(|(of, size, _)| of == name && *size == bytes) {
        return found.clone();
    }
    let found = find(name).map_err(String::from).and_then(|module| unpack_module(module, bytes));
    match &found {
        Ok(memory) => report::decision(format!("boot module {name}: unpacked, {} KiB", memory.len() >> 10)),
        Err(why) => report::warning(why.clone()),
    }
    done.push((name.into(), bytes, found.clone()));
    found
}

fn unpack_module(module: &Module, bytes: u64) -> Result<&'static [u8], String> {
    let failed = |why: String| format!("boot module {}: {why}", module.name);
    let memory = mem::own_bytes(bytes).map_err(|e| failed(e.to_string()))?;
    unpack::unpack(module.bytes(), memory).map_err(|bad| failed(bad.to_string()))?;
    Ok(memory)
}
