//! How much input of a port is taken in a tick of the control core: whatever floods a port, the tick goes on.

/// Most bytes that are read from a port in a tick. A UART of 115,200 baud receives 12 in a millisecond; an emulated one may have any
/// number. The rest waits in the UART, which loses and counts what does not fit.
pub const INPUT_BYTES: usize = 256;
/// Most commands of a port that are carried out in a tick.
pub const COMMANDS: usize = 4;

/// Takes the bytes of a port, as `read` gives them, until there is none, or [`INPUT_BYTES`] are taken. `take` returns whether a byte ended
/// a command: after [`COMMANDS`] of these, the rest waits too.
pub fn take_input(mut read: impl FnMut() -> Option<u8>, mut take: impl FnMut(u8) -> bool) {
    let mut commands = 0_usize;
    for _ in 0..INPUT_BYTES {
        let Some(byte) = read() else { break };
        commands = commands.saturating_add(take(byte).into());
        if commands == COMMANDS {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many bytes of an endless flood, and of `there` bytes, a tick takes, when each byte of `end` ends a command.
    fn taken(flood: u8, there: usize, end: u8) -> usize {
        let (mut left, mut taken) = (there, 0);
        let read = || {
            left = left.checked_sub(1)?;
            Some(flood)
        };
        take_input(read, |byte| {
            taken += 1;
            byte == end
        });
        taken
    }

    #[test]
    fn a_flood_of_bytes_or_of_commands_waits_for_the_next_tick() {
        assert_eq!(taken(b'x', usize::MAX, b'\n'), INPUT_BYTES);
        assert_eq!(taken(b'\n', usize::MAX, b'\n'), COMMANDS);
        assert_eq!([0, 1, 17].map(|there| taken(b'x', there, b'\n')), [0, 1, 17]);
        assert_eq!([0, 1, 3].map(|there| taken(b'\n', there, b'\n')), [0, 1, 3]);
    }

    #[test]
    fn what_is_not_taken_is_not_read() {
        let mut input = (0..=255).cycle().take(1000);
        let mut all = Vec::new();
        for _ in 0..4 {
            take_input(
                || input.next(),
                |byte| {
                    all.push(byte);
                    false
                },
            );
        }
        assert!(all.into_iter().eq((0..=255).cycle().take(1000)));
    }
}
