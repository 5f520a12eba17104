//! Boot modules by name, and the contents of compressed ones. Contents are unpacked once, into memory that all guests share.

use crate::{
    facts::facts,
    firmware::Module,
    heap::{self, For},
    mem, report,
};
use alloc::{format, string::String, string::ToString, vec::Vec};
use config::Sha256;
use control::{Text, sentence};
use sha2::Digest;
use spin::Mutex;

/// Contents that were unpacked: the module, the bytes of memory, and the memory or why there is none.
type Done = (String, u64, Result<&'static [u8], String>);

static DONE: Mutex<Vec<Done>> = Mutex::new(Vec::new());

/// Bytes that the heap has been given for the decoder.
static HEAP: Mutex<u64> = Mutex::new(0);

/// Returns the module of that name.
///
/// # Errors
/// There is none.
pub fn find(name: &str) -> Result<&'static Module, Text> {
    let mut modules = facts().modules.iter();
    modules.find(|module| module.name == name).ok_or_else(|| sentence(format_args!("there is no boot module `{name}`")))
}

/// Returns the SHA-256 of each module's bytes with the module's name, and reports it. Nothing writes to the modules later.
pub fn hash_all() -> Vec<(&'static str, Sha256)> {
    let hash = |module: &'static Module| {
        let hash = Sha256(sha2::Sha256::digest(module.bytes()).into());
        report::found(format!("boot module {}: {} KiB, SHA-256 {hash}", module.name, module.len.div_ceil(1024)));
        (module.name.as_str(), hash)
    };
    facts().modules.iter().map(hash).collect()
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
    let _everybody = For::everybody();
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
