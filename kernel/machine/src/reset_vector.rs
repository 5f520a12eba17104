//! The guest's only firmware: code at the reset vector.
//!
//! By default, Linux on hardware-reduced ACPI resets by EFI. Without EFI it falls back to real mode and jumps to
//! F000:FFF0 (SDM vol. 3A 9.1.4), where it expects a BIOS. The code there writes the ACPI reset register.

use memory::{BadAddress, GuestMemory};

use crate::layout;

/// F000:FFF0.
const RESET_VECTOR: u64 = 0xf_fff0;

/// `mov dx, RESET; mov al, RESET_VALUE; out dx, al`. If that returns, `cli; hlt` in a loop.
const CODE: [u8; 10] = {
    let [low, high] = layout::RESET.to_le_bytes();
    [0xba, low, high, 0xb0, layout::RESET_VALUE, 0xee, 0xfa, 0xf4, 0xeb, 0xfc]
};

/// Writes the code to the reset vector.
///
/// # Errors
/// The guest has no memory there.
pub fn write(memory: &GuestMemory) -> Result<(), BadAddress> {
    memory.write(RESET_VECTOR, &CODE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Code, Decoder, DecoderOptions};
    use memory::guest::testing::memory;

    #[test]
    fn what_stands_at_the_reset_vector_writes_the_reset_register() {
        let m = memory(0, 0x10_0000);
        write(&m).unwrap();
        let mut bytes = [0; 16];
        m.read(RESET_VECTOR, &mut bytes).unwrap();
        let mut decoder = Decoder::with_ip(16, &bytes, 0xfff0, DecoderOptions::NONE);
        let mut next = || decoder.decode();
        let (port, value, out) = (next(), next(), next());
        assert_eq!((port.code(), port.immediate16()), (Code::Mov_r16_imm16, layout::RESET));
        assert_eq!((value.code(), value.immediate8()), (Code::Mov_r8_imm8, layout::RESET_VALUE));
        assert_eq!(out.code(), Code::Out_DX_AL);
        let (cli, hlt, jump) = (next(), next(), next());
        assert_eq!((cli.code(), hlt.code()), (Code::Cli, Code::Hlt));
        assert_eq!(jump.near_branch16(), cli.ip16(), "an NMI does not lead out of it");
    }
}
