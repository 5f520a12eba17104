//! The inputs that the repository keeps: `tests/fuzz/corpus/NAME`, one file for each target. The tests replay them, and a corpus
//! that is empty begins with them.
//!
//! A file is inputs one after another. Before each are two bytes with its length, the low one first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result};

use super::limits::{LONGEST, SLOW};
use super::places::{corpus, folder};
use super::target::Target;
use crate::{paths, tools, ui};

/// Most bytes of a target's file. All files together stay below 2 MiB.
const MOST_BYTES: usize = 96 << 10;
/// Most inputs of a target. The tests replay them without optimization.
const MOST_INPUTS: usize = 300;

fn place(name: &str) -> PathBuf {
    paths::root().join("tests/fuzz/corpus").join(name)
}

/// Puts inputs into a file's form: each of them, or each second one and so on if there are too many, as long as they fit.
fn pack(inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut packed = Vec::new();
    for input in inputs.iter().step_by(inputs.len().div_ceil(MOST_INPUTS).max(1)) {
        let Ok(len) = u16::try_from(input.len()) else { continue };
        if packed.len() + 2 + input.len() > MOST_BYTES {
            break;
        }
        packed.extend(len.to_le_bytes());
        packed.extend(input);
    }
    packed
}

/// Takes a file apart. `None`: an input is cut off.
fn unpack(mut packed: &[u8]) -> Option<Vec<&[u8]>> {
    let mut inputs = Vec::new();
    while !packed.is_empty() {
        let (len, rest) = packed.split_first_chunk()?;
        let (input, rest) = rest.split_at_checked(u16::from_le_bytes(*len).into())?;
        inputs.push(input);
        packed = rest;
    }
    Some(inputs)
}

/// Gives a corpus that is empty the inputs that are kept.
pub fn seed(name: &str) -> Result<()> {
    let corpus = corpus(name);
    fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
    let is_empty = fs::read_dir(&corpus)?.next().is_none();
    if !is_empty || !place(name).is_file() {
        return Ok(());
    }
    let packed = fs::read(place(name)).with_context(|| format!("cannot read {}", place(name).display()))?;
    let inputs = unpack(&packed).with_context(|| format!("{} is cut off", place(name).display()))?;
    for (number, input) in inputs.iter().enumerate() {
        fs::write(corpus.join(format!("kept-{number:03}")), input)?;
    }
    Ok(())
}

/// Writes the kept inputs of a target: a least set that reaches what its corpus reaches, found by libFuzzer.
pub fn write(target: &Target, programs: &Path) -> Result<()> {
    let name = &target.name;
    let least = folder().join(format!("{name}.least"));
    if least.exists() {
        fs::remove_dir_all(&least).with_context(|| format!("cannot empty {}", least.display()))?;
    }
    fs::create_dir_all(&least).with_context(|| format!("cannot make {}", least.display()))?;
    let mut merge = tools::dying_with_us(Path::new("/usr/bin/nice"));
    merge.args(["-n", "19"]).arg(programs.join(format!("fuzz-{name}"))).arg("-set_cover_merge=1");
    merge.args([&format!("-max_len={LONGEST}"), &format!("-timeout={SLOW}")]).arg(&least).arg(corpus(name));
    tools::quietly(merge.stdin(Stdio::null()), &format!("the merge of {name}"))?;
    let mut inputs = Vec::new();
    for entry in fs::read_dir(&least)? {
        inputs.push(fs::read(entry?.path())?);
    }
    // Small ones first, and always in the same order.
    inputs.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    let packed = pack(&inputs);
    fs::write(place(name), &packed).with_context(|| format!("cannot write {}", place(name).display()))?;
    let kept = unpack(&packed).map_or(0, |inputs| inputs.len());
    ui::step("corpus", &format!("{name}: {kept} of {} inputs, {} bytes", inputs.len(), packed.len()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_packed_is_there_again() {
        let inputs = [vec![], vec![7], vec![1; 300]];
        let packed = pack(&inputs);
        assert_eq!(packed.len(), 3 * 2 + 301);
        assert_eq!(unpack(&packed), Some(inputs.iter().map(Vec::as_slice).collect()));
        assert_eq!(unpack(&packed[..packed.len() - 1]), None);
    }

    #[test]
    fn a_file_has_a_greatest_length() {
        let packed = pack(&vec![vec![0; 1000]; 200]);
        assert!(packed.len() <= MOST_BYTES && packed.len() + 1002 > MOST_BYTES);
        assert_eq!(unpack(&pack(&vec![vec![0]; 999])).map(|inputs| inputs.len()), Some(250));
        assert!(pack(&[]).is_empty());
    }
}
