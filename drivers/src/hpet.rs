//! The HPET (IA-PC HPET Specification 1.0a, 2.3): stops what its timers send. Firmware and loaders that use it may leave a timer on
//! that writes its interrupt to a core by itself, past the I/O APICs. Its counter goes on.

/// Bytes of its registers that the timers can have: 32 timers of 0x20 bytes behind 0x100.
pub const BYTES: u64 = 0x500;

/// General capabilities: revision in bits 7:0, which is not 0, and the number of the last timer.
const CAPABILITIES: u16 = 0;
/// The first timer's configuration. Each has 0x20 bytes.
const TIMERS: u16 = 0x100;
const TIMER_BYTES: u16 = 0x20;
/// In it: the timer sends interrupts.
const SENDS: u32 = 1 << 2;
/// In it: they are messages, which go to a core by themselves.
const AS_MESSAGES: u32 = 1 << 14;

/// Its registers.
pub trait Registers {
    /// Reads 32 bits. `offset`: in bytes, a multiple of 4 below [`BYTES`].
    fn read(&mut self, offset: u16) -> u32;
    /// Writes 32 bits.
    fn write(&mut self, offset: u16, value: u32);
}

/// What became of its timers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silenced {
    /// Number of timers.
    pub timers: u32,
    /// Those that sent interrupts, and do not any more.
    pub were_on: u32,
    /// Those of them that sent messages.
    pub messages: u32,
    /// Those that send although they were switched off.
    pub refused: u32,
}

/// Stops the interrupts of all timers. `None`: nothing answers.
pub fn silence(registers: &mut impl Registers) -> Option<Silenced> {
    let capabilities = registers.read(CAPABILITIES);
    if capabilities == u32::MAX || capabilities as u8 == 0 {
        return None;
    }
    let last = (capabilities >> 8 & 0x1f) as u16;
    let mut silenced = Silenced { timers: u32::from(last).saturating_add(1), ..Silenced::default() };
    for number in 0..=last {
        let offset = TIMERS.saturating_add(number.saturating_mul(TIMER_BYTES));
        let was = registers.read(offset);
        if was & SENDS == 0 {
            continue;
        }
        registers.write(offset, was & !(SENDS | AS_MESSAGES));
        let count = if registers.read(offset) & SENDS == 0 { &mut silenced.were_on } else { &mut silenced.refused };
        *count = count.saturating_add(1);
        silenced.messages = silenced.messages.saturating_add(u32::from(was & AS_MESSAGES != 0));
    }
    Some(silenced)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers that are plain memory, but for a timer that stays on.
    struct Model {
        registers: Vec<u32>,
        stubborn: Option<u16>,
        writes: usize,
    }

    impl Registers for Model {
        fn read(&mut self, offset: u16) -> u32 {
            self.registers[usize::from(offset) / 4]
        }

        fn write(&mut self, offset: u16, value: u32) {
            self.writes += 1;
            if self.stubborn != Some(offset) {
                self.registers[usize::from(offset) / 4] = value;
            }
        }
    }

    fn model(capabilities: u32, timers: &[u32]) -> Model {
        let mut registers = vec![0; BYTES as usize / 4];
        registers[0] = capabilities;
        for (number, &timer) in timers.iter().enumerate() {
            registers[(0x100 + number * 0x20) / 4] = timer;
        }
        Model { registers, stubborn: None, writes: 0 }
    }

    #[test]
    fn timers_that_send_are_switched_off_and_nothing_else_is_written() {
        // Periodic with an interrupt; 32 bits without one; an interrupt as a message.
        let mut model = model(0x8086_a201, &[0x3c, 0x8130, 0xc004]);
        assert_eq!(silence(&mut model), Some(Silenced { timers: 3, were_on: 2, messages: 1, refused: 0 }));
        assert_eq!([0x100, 0x120, 0x140].map(|at| model.registers[at / 4]), [0x38, 0x8130, 0x8000]);
        assert_eq!(model.writes, 2);
        assert_eq!(silence(&mut model), Some(Silenced { timers: 3, ..Silenced::default() }));
        assert_eq!(model.writes, 2);
    }

    #[test]
    fn one_that_stays_on_is_counted() {
        let mut model = Model { stubborn: Some(0x120), ..model(0x8086_8101, &[0, 4]) };
        assert_eq!(silence(&mut model), Some(Silenced { timers: 2, refused: 1, ..Silenced::default() }));
    }

    #[test]
    fn all_thirty_two_timers_are_within_the_registers() {
        let mut model = model(0x8086_ff01, &[4; 32]);
        assert_eq!(silence(&mut model), Some(Silenced { timers: 32, were_on: 32, ..Silenced::default() }));
    }

    #[test]
    fn where_nothing_answers_nothing_is_written() {
        for nothing in [u32::MAX, 0, 0x8086_a200] {
            let mut model = model(nothing, &[4]);
            assert_eq!((silence(&mut model), model.writes), (None, 0));
        }
    }
}
