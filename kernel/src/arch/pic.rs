//! The two 8259 interrupt controllers of old, silenced: firmware leaves them delivering to vectors that are exceptions
//! to us (8259A data sheet, ICW1 to ICW4).

#![allow(unsafe_code, reason = "the controllers are ports")]

use x86_64::instructions::port::Port;

/// Moves the controllers' vectors out of the exceptions' way, for a spurious interrupt that no mask holds back, and
/// masks all lines.
pub fn silence() {
    // SAFETY: the ports of the two controllers, which nothing else uses; on a machine without them the writes go
    // nowhere. ICW1: edge, cascade, ICW4 follows; ICW2: vectors 0x20 and 0x28; ICW3: slave on line 2; ICW4: 8086 mode.
    unsafe {
        for (command, vectors, cascade) in [(0x20_u16, 0x20_u8, 4_u8), (0xa0, 0x28, 2)] {
            Port::<u8>::new(command).write(0x11);
            for word in [vectors, cascade, 1, 0xff] {
                Port::<u8>::new(command + 1).write(word);
            }
        }
    }
}
