//! Checks the file against the machine.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{Completion, Config, Guest, Mistake, Place, best_completion, size};

/// Leaves out guests whose kernel, initial RAM disk or disk is not among `modules`, the names of the boot modules.
pub fn check_modules(config: &mut Config, modules: &[&str]) -> Vec<Mistake> {
    leave_out(config, |guest| {
        let missing = |name: &str| !modules.contains(&name);
        let message = |what: &str, name: &str| {
            let have = match modules {
                [] => "the boot loader passed none".into(),
                _ => format!("there are: {}", modules.join(", ")),
            };
            format!("no boot module `{name}` for the {what}; {have}")
        };
        match &guest.initrd {
            _ if !guest.spare && missing(&guest.kernel) => {
                let what = if guest.firmware { "firmware" } else { "kernel" };
                Some((guest.places.kernel.clone(), message(what, &guest.kernel)))
            }
            Some(initrd) if missing(initrd) => Some((guest.places.initrd.clone(), message("initrd", initrd))),
            _ => guest.blocks().find_map(|block| {
                let name = block.module().filter(|name| missing(name))?;
                Some((block.place.clone(), message("disk", name)))
            }),
        }
    })
}

/// Replaces every [`Completion::Auto`] by the best way that the machine has. If a guest names a way that the machine
/// does not have, the guest is left out, without a fallback. `refusal` says why the machine does not have a way.
pub fn check_completion(config: &mut Config, refusal: impl Fn(Completion) -> Option<String>) -> Vec<Mistake> {
    let (best, _) = best_completion(&refusal);
    for guest in config.guests.iter_mut().filter(|guest| guest.completion == Completion::Auto) {
        guest.completion = best;
    }
    leave_out(config, |guest| refusal(guest.completion).map(|why| (guest.places.completion.clone(), why)))
}

/// Leaves out guests for which there is not enough memory. Guests take their memory from the `available` bytes in the
/// order of the file. A guest that does not start by itself takes its memory too, so that it can start at any time.
pub fn check_memory(config: &mut Config, available: u64) -> Vec<Mistake> {
    let mut left = available;
    leave_out(config, |guest| match left.checked_sub(guest.memory_with_disks()) {
        Some(rest) => {
            left = rest;
            None
        }
        None => {
            let (wanted, left, all) = (size::show(guest.memory_with_disks()), size::show(left), size::show(available));
            let message = format!(
                "expected at most {left}: this guest and its RAM disks want {wanted}, of {all} for guests {left} are left"
            );
            Some((guest.places.memory.clone(), message))
        }
    })
}

/// Leaves out the guests in which `fault` finds a fault.
pub(crate) fn leave_out(config: &mut Config, mut fault: impl FnMut(&Guest) -> Option<(Place, String)>) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let file = &config.file;
    config.guests.retain(|guest| match fault(guest) {
        Some((place, message)) => {
            mistakes.push(Mistake::new(file, &place, message).of_guest(&guest.name));
            false
        }
        None => true,
    });
    mistakes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const TEXT: &str = "
[[guest]]
name = 'a'
memory = '512M'
kernel = 'vmlinuz'
initrd = 'initrd'
[[guest]]
name = 'b'
memory = '1G'
kernel = 'vmlinux'
[[guest]]
name = 'c'
memory = '256M'
kernel = 'vmlinuz'
";

    fn config() -> Config {
        let parsed = parse("f", TEXT);
        assert_eq!(parsed.mistakes, []);
        parsed.config
    }

    fn names(config: &Config) -> Vec<&str> {
        config.guests.iter().map(|guest| guest.name.as_str()).collect()
    }

    #[test]
    fn a_guest_without_its_modules_is_left_out() {
        let mut config = config();
        let mistakes = check_modules(&mut config, &["vmlinuz"]);
        assert_eq!(names(&config), ["c"]);
        let lines: Vec<_> = mistakes.iter().map(|mistake| (mistake.line, mistake.value.as_str())).collect();
        assert_eq!(lines, [(6, "'initrd'"), (10, "'vmlinux'")]);
        assert_eq!(mistakes[0].message, "no boot module `initrd` for the initrd; there are: vmlinuz");
    }

    #[test]
    fn a_completion_that_is_not_to_be_had_leaves_its_guest_out() {
        let text = "[[guest]]\nname = 'a'\nmemory = '64M'\nkernel = 'k'\n[[guest]]\nname = 'b'\ncompletion = 'posted'\n\
                    memory = '64M'\nkernel = 'k'\n";
        let mut config = parse("f", text).config;
        assert!(check_completion(&mut config.clone(), |_| None).is_empty());
        let mistakes = check_completion(&mut config, |c| (c == Completion::Posted).then(|| "no VT-x".into()));
        assert_eq!(names(&config), ["a"]);
        assert_eq!(config.guests[0].completion, Completion::Eli, "`auto` takes the best that is there");
        let [m] = &mistakes[..] else { panic!("{mistakes:?}") };
        assert_eq!((m.line, m.value.as_str(), m.message.as_str()), (7, "'posted'", "no VT-x"));
    }

    #[test]
    fn guests_that_do_not_fit_are_left_out_and_smaller_ones_after_them_stay() {
        let mut config = config();
        let mistakes = check_memory(&mut config, 1 << 30);
        assert_eq!(names(&config), ["a", "c"]);
        assert_eq!(mistakes.len(), 1);
        assert_eq!((mistakes[0].line, mistakes[0].guest.as_deref()), (9, Some("b")));
        assert!(mistakes[0].message.contains("of 1G for guests 512M are left"), "{}", mistakes[0]);
        assert!(check_memory(&mut config, u64::MAX).is_empty());
    }
}
