//! Silences the two 8259 interrupt controllers. Firmware leaves them active, on vectors that are exceptions in 64-bit
//! mode (8259A data sheet, ICW1 to ICW4).

#![allow(unsafe_code, reason = "the controllers are ports")]

use x86_64::instructions::port::Port;

/// Masks all lines. Also moves the controllers' vectors away from the exceptions, because no mask stops a spurious
/// interrupt.
pub fn silence() {
    // SAFETY: these are the ports of the two controllers. Nothing else uses them. On a machine without the controllers
    // the writes have no effect. The values are, in order: ICW1 (edge, cascade, ICW4 follows), ICW2 (vectors 0x20 and
    // 0x28), ICW3 (slave on line 2), ICW4 (8086 mode), and the mask.
    unsafe {
        for (command, vectors, cascade) in [(0x20_u16, 0x20_u8, 4_u8), (0xa0, 0x28, 2)] {
            Port::<u8>::new(command).write(0x11);
            for word in [vectors, cascade, 1, 0xff] {
                Port::<u8>::new(command.saturating_add(1)).write(word);
            }
        }
    }
}
