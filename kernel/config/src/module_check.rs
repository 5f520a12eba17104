//! Checks boot modules against `[[module]]`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::check::leave_out;
use crate::module::{Module, Sha256};
use crate::{Config, Mistake, Place};

/// Leaves out guests that use a boot module whose contents are not those that `[[module]]` names. `found` returns the
/// SHA-256 of the boot module of a name, or `None` if there is no such module. Such a `[[module]]` is a mistake too:
/// otherwise a wrong letter in the name would switch the check off.
pub fn check_hashes(config: &mut Config, found: impl Fn(&str) -> Option<Sha256>) -> Vec<Mistake> {
    let modules = core::mem::take(&mut config.modules);
    let mut mistakes = Vec::new();
    let mut wrong: Vec<(&Module, String)> = Vec::new();
    for module in &modules {
        let have = found(&module.name);
        match (have, module.sha256) {
            (None, _) => {
                let message = format!("there is no boot module `{}`", module.name);
                mistakes.push(Mistake::new(&config.file, &module.place, message));
            }
            (Some(have), Some(expected)) if have == expected => {}
            (Some(have), Some(_)) => {
                wrong.push((module, format!("boot module `{}` has the SHA-256 {have}", module.name)));
            }
            (Some(_), None) => {
                let message =
                    format!("the SHA-256 of boot module `{}` is not known, because of a mistake", module.name);
                wrong.push((module, message));
            }
        }
    }
    let mut guests = leave_out(config, |guest| {
        let (module, message) = wrong.iter().find(|(module, _)| guest.modules().any(|name| name == module.name))?;
        Some((module.place.clone(), message.clone()))
    });
    let unused = wrong.iter().filter(|(module, _)| !guests.iter().any(|mistake| is_at(mistake, &module.place)));
    mistakes.extend(unused.map(|(module, message)| Mistake::new(&config.file, &module.place, message.as_str())));
    mistakes.append(&mut guests);
    config.modules = modules;
    mistakes
}

fn is_at(mistake: &Mistake, place: &Place) -> bool {
    (mistake.line, mistake.column) == (place.line, place.column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    const ZEROES: &str = "0000000000000000000000000000000000000000000000000000000000000000";
    const ONES: &str = "1111111111111111111111111111111111111111111111111111111111111111";

    fn text(kernel: &str, initrd: &str) -> String {
        format!(
            "[[module]]\nname = 'k'\nsha256 = '{kernel}'\n[[module]]\nname = 'i'\nsha256 = '{initrd}'\n\
             [[guest]]\nname = 'a'\nmemory = '64M'\nkernel = 'k'\ninitrd = 'i'\n\
             [[guest]]\nname = 'b'\nmemory = '64M'\nkernel = 'k'\n\
             [[guest]]\nname = 'c'\nmemory = '64M'\nkernel = 'other'\n[[guest.block]]\ndisk = 'ram'\nmodule = 'i'\n"
        )
    }

    /// Every module has the hash that is all zeroes.
    fn zeroes(name: &str) -> Option<Sha256> {
        ["k", "i", "other"].contains(&name).then_some(Sha256([0; 32]))
    }

    fn names(config: &Config) -> Vec<&str> {
        config.guests.iter().map(|guest| guest.name.as_str()).collect()
    }

    #[test]
    fn guests_start_if_all_their_modules_are_as_expected() {
        let parsed = parse("f", text(ZEROES, ZEROES));
        assert_eq!(parsed.mistakes, []);
        let mut config = parsed.config;
        assert_eq!(check_hashes(&mut config, zeroes), []);
        assert_eq!(names(&config), ["a", "b", "c"]);
        assert_eq!(config.modules.len(), 2);
    }

    #[test]
    fn a_kernel_a_ram_disk_and_a_disk_with_another_hash_leave_their_guests_out() {
        let mut config = parse("f", text(ONES, ZEROES)).config;
        let mistakes = check_hashes(&mut config, zeroes);
        assert_eq!(names(&config), ["c"]);
        assert_eq!(
            mistakes.iter().map(|m| (m.line, m.guest.as_deref())).collect::<Vec<_>>(),
            [(3, Some("a")), (3, Some("b"))]
        );
        assert_eq!(mistakes[0].message, format!("boot module `k` has the SHA-256 {ZEROES}"));
        let mut config = parse("f", text(ZEROES, ONES)).config;
        let mistakes = check_hashes(&mut config, zeroes);
        assert_eq!(names(&config), ["b"]);
        assert_eq!(
            mistakes.iter().map(|m| (m.line, m.guest.as_deref())).collect::<Vec<_>>(),
            [(6, Some("a")), (6, Some("c"))]
        );
    }

    #[test]
    fn a_hash_with_a_mistake_leaves_its_guests_out() {
        let parsed = parse("f", text(&ZEROES[1..], ZEROES));
        assert_eq!(parsed.mistakes.len(), 1);
        assert!(parsed.mistakes[0].message.contains("64"), "{}", parsed.mistakes[0]);
        let mut config = parsed.config;
        check_hashes(&mut config, zeroes);
        assert_eq!(names(&config), ["c"]);
    }

    #[test]
    fn a_module_that_is_not_there_or_that_no_guest_uses_is_said() {
        let text = format!(
            "[[module]]\nname = 'vmlinux'\nsha256 = '{ZEROES}'\n[[module]]\nname = 'other'\nsha256 = '{ONES}'\n"
        );
        let parsed = parse("f", text);
        assert_eq!(parsed.mistakes, []);
        let mut config = parsed.config;
        let mistakes = check_hashes(&mut config, zeroes);
        assert_eq!(mistakes.iter().map(|m| m.line).collect::<Vec<_>>(), [3, 6]);
        assert_eq!(mistakes[0].message, "there is no boot module `vmlinux`");
    }

    #[test]
    fn a_module_is_named_once_and_has_name_and_hash() {
        let twice = format!("[[module]]\nname = 'k'\nsha256 = '{ZEROES}'\n[[module]]\nname = 'k'\nsha256 = '{ONES}'\n");
        let parsed = parse("f", twice);
        assert_eq!(parsed.mistakes.iter().map(|m| m.line).collect::<Vec<_>>(), [5]);
        assert_eq!(parse("f", "[[module]]\nname = 'k'\n").mistakes.len(), 1);
        assert_eq!(parse("f", format!("[[module]]\nsha256 = '{ZEROES}'\n")).mistakes.len(), 1);
    }
}
