//! Values of a guest that can be changed while it runs. They are checked as those of the file.

use alloc::string::String;

use control::{SettingKey, Text, sentence};

use crate::guest::{Guest, Restart};
use crate::limits::WEIGHTS;

/// A value to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// `weight`: 1 to [`MAX_WEIGHT`](crate::MAX_WEIGHT).
    Weight(u16),
    /// `restart`: what follows the next end of the guest.
    Restart(Restart),
}

impl Setting {
    /// Reads a value as it is typed, without quotes.
    ///
    /// # Errors
    /// What is expected instead.
    pub fn read(key: SettingKey, value: &str) -> Result<Self, Text> {
        match key {
            SettingKey::Weight => {
                let digits = value.bytes().all(|byte| byte.is_ascii_digit());
                let weight = value.parse().ok().filter(|weight| digits && WEIGHTS.contains(weight));
                weight.and_then(|weight: u32| u16::try_from(weight).ok()).map(Self::Weight).ok_or_else(|| {
                    sentence(format_args!("expected a weight from {} to {}", WEIGHTS.start(), WEIGHTS.end()))
                })
            }
            SettingKey::Restart => Restart::WORDS
                .iter()
                .find(|(word, _)| *word == value)
                .map(|&(_, restart)| Self::Restart(restart))
                .ok_or_else(|| "expected `never` or `always`".into()),
        }
    }

    /// Changes the guest's configuration, which `show config` shows.
    ///
    /// # Errors
    /// The guest of `[management]` starts again whenever it ends: `managed` names it.
    pub fn apply(self, guest: &mut Guest, managed: Option<&String>) -> Result<(), Text> {
        match self {
            Self::Weight(weight) => guest.weight = weight,
            Self::Restart(_) if managed == Some(&guest.name) => {
                return Err("the guest of [management] starts again whenever it ends".into());
            }
            Self::Restart(restart) => guest.restart = restart,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    #[test]
    fn a_value_is_read_as_in_the_file() {
        let file = |line: &str| parse("f", alloc::format!("[[guest]]\nname='a'\nmemory='64M'\nkernel='k'\n{line}\n"));
        let mut guest = file("").config.guests.remove(0);
        for value in ["1", "16", "0", "17", "-1", "+1", "1.0", "", "x", "99999999999"] {
            let parsed = file(&alloc::format!("weight = {value}"));
            // A sign is TOML's, and not typed.
            let expected = parsed.config.guests.first().map(|guest| guest.weight).filter(|_| value != "+1");
            let read = Setting::read(SettingKey::Weight, value);
            assert_eq!(read.is_ok(), expected.is_some(), "{value}");
            if let Ok(setting) = read {
                setting.apply(&mut guest, None).unwrap();
                assert_eq!(Some(guest.weight), expected);
            }
        }
        for value in ["never", "always", "", "Always"] {
            let parsed = file(&alloc::format!("restart = '{value}'"));
            let read = Setting::read(SettingKey::Restart, value);
            assert_eq!(read.is_ok(), parsed.mistakes.is_empty(), "{value}");
            if let Ok(setting) = read {
                setting.apply(&mut guest, None).unwrap();
                assert_eq!(guest.restart, parsed.config.guests[0].restart);
            }
        }
        assert_eq!(Setting::read(SettingKey::Weight, "17").unwrap_err(), "expected a weight from 1 to 16");
    }

    #[test]
    fn the_management_guest_starts_again_in_any_case() {
        let text = "[management]\nguest='m'\n[[guest]]\nname='m'\nmemory='64M'\nkernel='k'\n";
        let mut guest = parse("f", text).config.guests.remove(0);
        let managed = Some(String::from("m"));
        let never = Setting::Restart(Restart::Never);
        assert!(never.apply(&mut guest, managed.as_ref()).unwrap_err().contains("starts again whenever it ends"));
        assert_eq!(guest.restart, Restart::Always);
        Setting::Weight(3).apply(&mut guest, managed.as_ref()).unwrap();
        assert_eq!(guest.weight, 3);
    }
}
