//! Checks the copy routine in the built image. The compiler may turn vector intrinsics into scalar code without a
//! warning, and assembly may get lost. The disassembler is that of binutils, which every machine with a linker for Rust
//! has.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::image;

/// The variants, and for each the registers that it has to load and store as a whole.
const VARIANTS: [(&str, &str); 3] =
    [("sidecore_copy_plain", "r"), ("sidecore_copy_avx2", "ymm"), ("sidecore_copy_avx512", "zmm")];

/// The function that fetches lines ahead of a copy, and its instruction.
const AHEAD: (&str, &str) = ("sidecore_copy_behind", "prefetchw");

/// Disassembles every variant in the kernel image. Returns what it found, as a sentence.
pub fn verify() -> Result<String> {
    let image = &image::parts()?.kernel;
    let mut said = Vec::new();
    for (name, register) in VARIANTS {
        let (loads, stores) = accesses(&disassemble(name, image)?, register);
        ensure!(
            loads > 0 && stores > 0,
            "{name} in {} has {loads} loads and {stores} stores of {register} registers",
            image.display()
        );
        said.push(format!("{name} ({loads} loads and {stores} stores)"));
    }
    let (name, instruction) = AHEAD;
    let fetches = disassemble(name, image)?.matches(instruction).count();
    ensure!(fetches > 0, "{name} in {} has no {instruction}", image.display());
    said.push(format!("{name} ({fetches} of {instruction})"));
    Ok(format!("it has {}", said.join(", ")))
}

/// The instructions of a symbol.
fn disassemble(name: &str, image: &Path) -> Result<String> {
    let output = Command::new("objdump")
        .args(["-d", "-M", "intel", "--no-show-raw-insn", &format!("--disassemble={name}")])
        .arg(image)
        .output()
        .context("cannot start objdump; install binutils")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Counts the moves that load and that store a register whose name begins with `register`.
fn accesses(disassembly: &str, register: &str) -> (usize, usize) {
    let (mut loads, mut stores) = (0, 0);
    for line in disassembly.lines() {
        let Some((_, instruction)) = line.split_once(":\t") else { continue };
        let Some((to, from)) = instruction.split_once(',') else { continue };
        let (Some(mnemonic), Some(to)) = (to.split_whitespace().next(), to.split_whitespace().nth(1)) else { continue };
        if !mnemonic.contains("mov") {
            continue;
        }
        let memory = |operand: &str| operand.contains('[');
        loads += usize::from(to.starts_with(register) && memory(from));
        stores += usize::from(memory(instruction.split(',').next().unwrap_or("")) && from.starts_with(register));
    }
    (loads, stores)
}

#[cfg(test)]
mod tests {
    use super::accesses;

    #[test]
    fn loads_and_stores_are_told_by_their_registers() {
        let text = "\nimage:     file format elf64-x86-64\n\n0000000000263940 <sidecore_copy_avx2>:\n\
                    \x20 263940:\tcmp    rdx,0x20\n\
                    \x20 263946:\tvmovdqu ymm2,YMMWORD PTR [rsi+rdx*1-0x20]\n\
                    \x20 26394c:\tvmovdqu YMMWORD PTR [rdi],ymm2\n\
                    \x20 263950:\tvmovdqu8 ZMMWORD PTR [rdi]{k1},zmm16\n\
                    \x20 263958:\tmov    rax,QWORD PTR [rsi]\n\
                    \x20 26395c:\tret\n";
        assert_eq!(accesses(text, "ymm"), (1, 1));
        assert_eq!(accesses(text, "zmm"), (0, 1));
        assert_eq!(accesses(text, "r"), (1, 0));
    }
}
