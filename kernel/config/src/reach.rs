//! Whether the operator still reaches a machine that runs a configuration with mistakes.

use alloc::format;
use alloc::string::String;

use crate::Parsed;

/// Why the operator of a machine in a rack does not reach it with this configuration, as far as it is checked: nothing of the file
/// could be read, or it has `[management]`, and no guest that manages starts. `None`: he does, or the file wants nobody to.
#[must_use]
pub fn out_of_reach(parsed: &Parsed) -> Option<String> {
    let Parsed { config, is_read, wants_management, .. } = parsed;
    if !is_read {
        return Some(format!("{} cannot be read", config.file));
    }
    let manages = config.management.as_ref().is_some_and(|management| {
        // A guest with a mistake is left out.
        config.guests.iter().any(|guest| guest.name == management.guest)
    });
    (*wants_management && !manages).then(|| format!("the management guest of {} does not start", config.file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{check_modules, parse};

    const MANAGED: &str = "[management]\nguest = 'm'\n[[guest]]\nname = 'm'\nmemory = '64M'\nkernel = 'k'\n";

    fn why(text: &str) -> String {
        let mut parsed = parse("f", text);
        parsed.mistakes.extend(check_modules(&mut parsed.config, &["k"]));
        assert!(!parsed.mistakes.is_empty(), "{text}");
        out_of_reach(&parsed).unwrap_or_default()
    }

    #[test]
    fn a_file_of_which_nothing_is_read_leaves_nobody() {
        assert_eq!(why("[[guest"), "f cannot be read");
        assert_eq!(why(&"#".repeat(crate::MAX_FILE + 1)), "f cannot be read");
        let parsed = parse("f", b"\xff");
        assert_eq!(out_of_reach(&parsed).as_deref(), Some("f cannot be read"));
    }

    #[test]
    fn a_management_guest_that_is_left_out_leaves_nobody() {
        for (from, to) in [
            ("memory = '64M'", "memory = '1X'"),
            ("guest = 'm'", "guest = 'n'"),
            ("guest = 'm'", "gest = 'm'"),
            ("kernel = 'k'", "kernel = 'none'"),
        ] {
            assert_eq!(why(&MANAGED.replacen(from, to, 1)), "the management guest of f does not start", "{to}");
        }
    }

    #[test]
    fn other_mistakes_do_not_matter() {
        let other = "[[guest]]\nname = 'a'\nmemory = '1X'\nkernel = 'k'\n";
        assert_eq!(why(&format!("{MANAGED}{other}")), "");
        assert_eq!(why(other), "", "nobody is to manage it over the network");
        assert_eq!(out_of_reach(&parse("f", MANAGED)), None);
        assert_eq!(out_of_reach(&parse("f", "")), None);
    }
}
