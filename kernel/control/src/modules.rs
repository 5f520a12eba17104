//! The list of modules for a person.

use core::fmt;

use crate::event::ModuleSummary;

/// Writes the modules, two lines each: name, size and where it is from; and its SHA-256.
///
/// # Errors
/// `out` fails.
pub fn show_modules(modules: &[ModuleSummary], out: &mut dyn fmt::Write) -> fmt::Result {
    if modules.is_empty() {
        return out.write_str("no modules\n");
    }
    modules.iter().try_for_each(|ModuleSummary { name, bytes, sha256, put }| {
        let from = if *put { "put" } else { "of the boot" };
        writeln!(out, "{name}: {bytes} bytes, {from}\n  {sha256}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_shown_with_its_hash() {
        let module = |name: &str, put| ModuleSummary { name: name.into(), bytes: 7, sha256: "ab".repeat(32), put };
        let mut text = String::new();
        show_modules(&[module("vmlinuz", false), module("web", true)], &mut text).unwrap();
        let sum = "ab".repeat(32);
        assert_eq!(text, format!("vmlinuz: 7 bytes, of the boot\n  {sum}\nweb: 7 bytes, put\n  {sum}\n"));
        assert!(text.lines().all(|line| line.len() <= 80));
        text.clear();
        show_modules(&[], &mut text).unwrap();
        assert_eq!(text, "no modules\n");
    }
}
