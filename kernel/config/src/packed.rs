//! Disks over compressed boot modules: their sizes.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::check::leave_out;
use crate::disk::Unpacked;
use crate::{Config, Disk, GuestDevice, Mistake};

/// Finds the size of each disk over a compressed module, and leaves out guests for whose disks there is none. `content`
/// returns `None` for a module that is not compressed. For one that is, it returns the bytes of its contents if the module
/// tells them, or why it cannot be unpacked. All modules exist ([`check_modules`](crate::check_modules)).
pub fn check_packed(
    config: &mut Config,
    content: impl Fn(&str) -> Option<Result<Option<u64>, String>>,
) -> Vec<Mistake> {
    let mistakes = leave_out(config, |guest| {
        guest.blocks().find_map(|block| {
            let Disk::Module { name, size, .. } = &block.disk else { return None };
            let message = match (content(name), size) {
                (None, Some(_)) => "`size` is for a compressed module; the disk of another has its size".into(),
                (Some(Err(why)), _) => format!("the module cannot be unpacked: {why}"),
                (Some(Ok(None)), None) => "the module is compressed and does not tell its size; expected `size`".into(),
                (Some(Ok(Some(bytes))), Some(size)) if *size < bytes => {
                    format!("the module unpacks to {bytes} bytes; expected a `size` that is not smaller than that")
                }
                _ => return None,
            };
            Some((block.place.clone(), message))
        })
    });
    let mut seen = Vec::new();
    for device in config.guests.iter_mut().flat_map(|guest| &mut guest.devices) {
        let GuestDevice::Block(block) = device else { continue };
        let Disk::Module { name, size, unpacked, .. } = &mut block.disk else { continue };
        let Some(Ok(told)) = content(name) else { continue };
        let bytes = size.or(told).unwrap_or(0);
        let key = (name.clone(), bytes);
        let shared = seen.contains(&key);
        *unpacked = Some(Unpacked { bytes, shared });
        seen.push(key);
    }
    mistakes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check_memory, parse};

    const MIB: u64 = 1 << 20;

    fn config(disks: &[&str]) -> Config {
        let mut text = String::new();
        for (n, lines) in disks.iter().enumerate() {
            text += &format!("[[guest]]\nname = 'g{n}'\nmemory = '64M'\nkernel = 'k'\n");
            text += &format!("[[guest.block]]\ndisk = 'ram'\n{lines}\n");
        }
        let parsed = parse("f", text);
        assert_eq!(parsed.mistakes, []);
        parsed.config
    }

    fn content(name: &str) -> Option<Result<Option<u64>, String>> {
        match name {
            "told" => Some(Ok(Some(16 * MIB))),
            "untold" => Some(Ok(None)),
            "bad" => Some(Err("it is damaged".into())),
            _ => None,
        }
    }

    #[test]
    fn a_compressed_module_has_the_size_that_it_tells_or_that_is_given() {
        let disks =
            ["module = 'told'", "module = 'told'\nsize = '32M'", "module = 'untold'\nsize = '8M'", "module = 'plain'"];
        let mut config = config(&disks);
        assert_eq!(check_packed(&mut config, content), []);
        let found = config.guests.iter().flat_map(crate::Guest::blocks).map(|block| match block.disk {
            Disk::Module { unpacked, .. } => unpacked.map(|unpacked| unpacked.bytes / MIB),
            _ => None,
        });
        assert_eq!(found.collect::<Vec<_>>(), [Some(16), Some(32), Some(8), None]);
    }

    #[test]
    fn what_cannot_be_unpacked_or_has_no_size_leaves_its_guest_out() {
        let disks =
            ["module = 'bad'", "module = 'untold'", "module = 'told'\nsize = '8M'", "module = 'plain'\nsize = '8M'"];
        let mut config = config(&disks);
        let mistakes = check_packed(&mut config, content);
        assert!(config.guests.is_empty());
        for (mistake, (line, words)) in mistakes.iter().zip([
            (7, "cannot be unpacked: it is damaged"),
            (14, "does not tell its size"),
            (21, "the module unpacks to 16777216 bytes"),
            (29, "`size` is for a compressed module"),
        ]) {
            assert_eq!(mistake.line, line, "{mistake}");
            assert!(mistake.message.contains(words), "{mistake}");
        }
        assert_eq!(mistakes.len(), 4);
    }

    #[test]
    fn contents_that_several_guests_have_take_memory_once() {
        let mut config = config(&["module = 'told'\nreadonly = true"; 3]);
        check_packed(&mut config, content);
        assert_eq!(check_memory(&mut config, (3 * 64 + 16) * MIB), []);
        assert_eq!(config.guests.len(), 3);
        assert_eq!(check_memory(&mut config, (3 * 64 + 15) * MIB).len(), 1);
    }
}
