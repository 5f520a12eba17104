//! Makes calls through the linker's table direct in the built image.
//!
//! The compiler's own crates were built to call by that table (`call [rip + constant]`), and with link-time optimisation the
//! setting comes with them into ours: each call of `memcpy`, or of what panics, reads its target from a constant. To the
//! processor that is an indirect branch. Its target is predicted, so after an exit it may go where the guest wants
//! (SECURITY.md, "Speculation"). The linker would make such a call direct if the compiler marked it, as the psABI says
//! (x86-64 psABI, "Optimize GOTPCRELX Relocations"). The stable compiler has no setting for the mark, so it is done here by the same
//! rules: `call *foo@GOTPCREL(%rip)` becomes `addr32 call foo`, and `jmp *foo@GOTPCREL(%rip)` becomes `jmp foo; nop`. No byte
//! moves.

use anyhow::{Context as _, Result, ensure};
use goblin::elf::Elf;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction};

use crate::functions;

/// The section of the linker's table (`linker.ld`). The kernel maps it read-only.
const TABLE: &str = ".data.rel.ro";
/// `call [rip + d]` and `jmp [rip + d]` have six bytes.
const LENGTH: usize = 6;

/// Makes the calls and jumps of `image` direct: an ELF file that was linked with `linker.ld`.
///
/// # Errors
/// The file has no such section, or a constant is no address of a function.
pub fn make(image: &mut [u8]) -> Result<()> {
    for (at, bytes) in changes(image)? {
        image.get_mut(at..at + LENGTH).context("a call outside of the file")?.copy_from_slice(&bytes);
    }
    Ok(())
}

/// Returns each call and jump through the table: its offset in the file, and the bytes that replace it.
fn changes(image: &[u8]) -> Result<Vec<(usize, [u8; LENGTH])>> {
    let elf = Elf::parse(image)?;
    let table = elf.section_headers.iter().find(|section| elf.shdr_strtab.get_at(section.sh_name) == Some(TABLE));
    let table = table.with_context(|| format!("the image has no {TABLE}"))?;
    let functions = functions::of(&elf, image)?;
    let mut changes = Vec::new();
    for function in &functions {
        for i in Decoder::with_ip(64, function.code, function.start, DecoderOptions::NONE) {
            let within = i.memory_displacement64().wrapping_sub(table.sh_addr);
            if !through_memory(&i) || within >= table.sh_size {
                continue;
            }
            // RELR keeps the address as linked in the place itself.
            let at = usize::try_from(table.sh_offset + within)?;
            let bytes = image.get(at..at + 8).context("a constant outside of the file")?;
            let target = u64::from_le_bytes(bytes.try_into()?);
            ensure!(
                functions.binary_search_by_key(&target, |f| f.start).is_ok(),
                "{} calls {target:#x} by the constant at {:#x}, which is no function",
                function.name,
                table.sh_addr + within
            );
            changes.push((function.offset + usize::try_from(i.ip() - function.start)?, direct(&i, target)?));
        }
    }
    Ok(changes)
}

/// Whether it is `call [rip + d]` or `jmp [rip + d]`.
fn through_memory(i: &Instruction) -> bool {
    matches!(i.code(), Code::Call_rm64 | Code::Jmp_rm64) && i.is_ip_rel_memory_operand() && i.len() == LENGTH
}

/// The same call or jump with its target in it.
fn direct(i: &Instruction, target: u64) -> Result<[u8; LENGTH]> {
    let (head, end): (&[u8], u64) =
        if i.code() == Code::Call_rm64 { (&[0x67, 0xe8], i.ip() + 6) } else { (&[0xe9], i.ip() + 5) };
    let distance = i32::try_from(target.wrapping_sub(end).cast_signed())?;
    let mut bytes = [0x90; LENGTH];
    bytes[..head.len()].copy_from_slice(head);
    bytes[head.len()..head.len() + 4].copy_from_slice(&distance.to_le_bytes());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(code: &[u8]) -> Instruction {
        Decoder::with_ip(64, code, 0x20_1000, DecoderOptions::NONE).decode()
    }

    #[test]
    fn calls_and_jumps_get_their_targets() {
        for (code, length) in [([0xff, 0x15, 0x10, 0, 0, 0], 6), ([0xff, 0x25, 0x10, 0, 0, 0], 5)] {
            let old = decoded(&code);
            assert!(through_memory(&old));
            for target in [0x20_0000, 0x20_1006, 0x7020_0000] {
                let bytes = direct(&old, target).unwrap();
                let new = decoded(&bytes);
                assert_eq!((new.near_branch64(), new.len(), new.mnemonic()), (target, length, old.mnemonic()));
                assert!(length == 6 || bytes[5] == 0x90);
            }
            assert!(direct(&old, 0x1_0000_0000).is_err(), "too far");
        }
    }

    #[test]
    fn other_instructions_stay() {
        // call rax; call [rax+8]; call +0; mov rax, [rip+16]
        let others: [&[u8]; 4] =
            [&[0xff, 0xd0], &[0xff, 0x50, 8], &[0xe8, 0, 0, 0, 0], &[0x48, 0x8b, 0x05, 0x10, 0, 0, 0]];
        assert!(others.iter().all(|code| !through_memory(&decoded(code))));
    }
}
