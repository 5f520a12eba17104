//! Completion of a line in the shell: the words that may stand where the cursor is.

use core::fmt::{self, Write};

use crate::Editor;
use crate::argument::{Argument, Kind};
use crate::command::Row;
use crate::fold::{Folded, Returns};

/// Calls `found` for each word that may stand at the end of `line` and begins with what is typed of it. Returns how many
/// characters of the word are typed.
fn candidates<'a>(line: &str, guests: impl Iterator<Item = &'a str>, mut found: impl FnMut(&str)) -> usize {
    let typed = line.rsplit(' ').next().unwrap_or_default();
    let mut found = |word: &str| {
        if word.starts_with(typed) {
            found(word);
        }
    };
    let before = line.strip_suffix(typed).unwrap_or_default();
    let mut words = before.split_whitespace();
    let Some(command) = words.next() else {
        Row::words().for_each(found);
        return typed.len();
    };
    let Some((row, _)) = Row::of_word(command) else { return typed.len() };
    let is_option = |word: &str| row.arguments.iter().any(|argument| argument.is_option(word));
    let at = words.clone().filter(|word| !is_option(word)).count();
    if typed.starts_with('-') {
        for argument in row.arguments {
            if let Kind::Option(option) = argument.kind
                && !words.clone().any(|word| word == option)
            {
                found(option);
            }
        }
    }
    let mut positions = row.arguments.iter().filter(|argument| argument.is_positional());
    match positions.nth(at) {
        Some(Argument { kind: Kind::Guest, .. }) => guests.for_each(found),
        Some(Argument { kind: Kind::Flag, .. }) => ["on", "off"].into_iter().for_each(found),
        Some(Argument { kind: Kind::Choice { words, .. }, .. }) => words.iter().for_each(|word| found(word)),
        _ => {}
    }
    typed.len()
}

/// Completes the line of an editor. A word that can be only one is completed, and a blank follows. If it can be several, it
/// grows by what they have in common; if that is nothing, they are listed. Returns whether they were listed: then the prompt is
/// to be shown again.
///
/// # Errors
/// Those of `out`.
pub fn complete<'a>(
    editor: &mut Editor,
    guests: impl Iterator<Item = &'a str> + Clone,
    out: &mut dyn Write,
) -> Result<bool, fmt::Error> {
    let line = crate::Typed::try_from(editor.text()).map_err(|_| fmt::Error)?;
    let (mut count, mut common) = (0_usize, crate::Typed::new());
    let typed = candidates(&line, guests.clone(), |word| {
        if count == 0 {
            // A longer word cannot be typed.
            let _ = common.push_str(word);
        } else {
            let same = common.chars().zip(word.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
            common.truncate(same);
        }
        count = count.saturating_add(1);
    });
    let rest = common.get(typed..).unwrap_or_default();
    match count {
        0 => out.write_char('\x07')?,
        1 => {
            editor.insert(rest, out)?;
            editor.insert(" ", out)?;
        }
        _ if !rest.is_empty() => editor.insert(rest, out)?,
        _ => {
            out.write_str("\r\n")?;
            let mut ends = Returns(out);
            let mut list = Folded::new(&mut ends);
            let mut result = Ok(());
            candidates(&line, guests, |word| {
                result = result.and_then(|()| write!(list, "{word} "));
            });
            result?;
            list.end()?;
            return Ok(true);
        }
    }
    Ok(false)
}
