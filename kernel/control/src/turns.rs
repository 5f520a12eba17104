//! Shares the room of COM2 among guests: deficit round robin. In each tick a guest may send a quantum of bytes. Where the
//! UART has room for less, guests go on in the next tick where they stopped, so that each gets the same share.

use alloc::vec::Vec;

/// Why a guest stopped sending in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// It has nothing more to send.
    Idle,
    /// It has used its credit up.
    Spent,
    /// The UART has no room.
    NoRoom,
}

/// The guests' turns.
#[derive(Debug)]
pub struct Turns {
    /// Bytes that each guest may send. Negative: it has sent a long line, which the next ticks pay for.
    credit: Vec<isize>,
    /// The guest that is next.
    next: usize,
    /// Whether `next` stopped for want of room, in the middle of its turn.
    interrupted: bool,
}

impl Turns {
    /// Makes the turns of so many guests.
    #[must_use]
    pub fn new(guests: usize) -> Self {
        Self { credit: core::iter::repeat_n(0, guests).collect(), next: 0, interrupted: false }
    }

    /// One tick: offers each guest a turn of up to `quantum` bytes, until there is no room. `send` gets the guest's number
    /// and the bytes that it may send. It returns the bytes that the guest has sent, and why it stopped. A guest may send
    /// more than allowed to finish a line; that is taken from its next turns.
    pub fn tick(&mut self, quantum: usize, mut send: impl FnMut(usize, usize) -> (usize, Pause)) {
        let quantum = isize::try_from(quantum).unwrap_or(isize::MAX);
        let guests = self.credit.len();
        let first = self.next;
        for step in 0..guests {
            let guest = first.saturating_add(step).checked_rem(guests).unwrap_or(0);
            let Some(credit) = self.credit.get_mut(guest) else { return };
            if !core::mem::take(&mut self.interrupted) {
                *credit = credit.saturating_add(quantum).min(quantum);
            }
            let most = usize::try_from(*credit).unwrap_or(0);
            if most == 0 {
                continue;
            }
            let (sent, pause) = send(guest, most);
            *credit = credit.saturating_sub_unsigned(sent);
            match pause {
                Pause::Idle => *credit = 0.min(*credit),
                Pause::Spent => {}
                Pause::NoRoom => {
                    (self.next, self.interrupted) = (guest, true);
                    return;
                }
            }
        }
        self.next = first.saturating_add(1).checked_rem(guests).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `ticks` ticks in which the UART takes `per_tick` bytes from a queue of `room` bytes. Guest i has lines of
    /// `lines[i]` bytes without end; 0: it has none. Returns the bytes that each has sent.
    fn flood(lines: &[usize], quantum: usize, room: usize, per_tick: usize, ticks: usize) -> Vec<usize> {
        let mut turns = Turns::new(lines.len());
        let (mut used, mut total) = (0_usize, vec![0; lines.len()]);
        for _ in 0..ticks {
            used = used.saturating_sub(per_tick);
            turns.tick(quantum, |guest, most| {
                let line = lines[guest];
                let mut sent = 0;
                let pause = loop {
                    if line == 0 {
                        break Pause::Idle;
                    }
                    if sent >= most {
                        break Pause::Spent;
                    }
                    if used + line > room {
                        break Pause::NoRoom;
                    }
                    used += line;
                    sent += line;
                };
                total[guest] += sent;
                (sent, pause)
            });
        }
        total
    }

    #[test]
    fn floods_of_long_and_short_lines_get_the_same_bytes() {
        let total = flood(&[1000, 10, 0, 300], 512, 4096, 16, 20_000);
        let busy: Vec<usize> = total.iter().copied().filter(|&bytes| bytes > 0).collect();
        let (least, most) = (busy.iter().min().unwrap(), busy.iter().max().unwrap());
        // They differ by a turn at most: a quantum and a line.
        assert!(busy.len() == 3 && most - least <= 512 + 1000, "{total:?}");
        assert_eq!(total[2], 0);
    }

    #[test]
    fn a_tick_costs_each_guest_its_quantum_and_one_line_at_most() {
        let ticks = 100;
        let total = flood(&[1000, 10], 512, usize::MAX / 2, 0, ticks);
        assert!(total.iter().all(|&sent| sent <= ticks * 512 + 1000), "{total:?}");
        assert!(total.iter().all(|&sent| sent >= (ticks - 2) * 512), "{total:?}");
    }

    #[test]
    fn a_guest_that_was_idle_has_saved_nothing() {
        let mut turns = Turns::new(1);
        (0..100).for_each(|_| turns.tick(512, |_, _| (0, Pause::Idle)));
        turns.tick(512, |_, most| {
            assert_eq!(most, 512);
            (most, Pause::Spent)
        });
    }

    #[test]
    fn without_guests_nothing_happens() {
        Turns::new(0).tick(512, |_, _| unreachable!("there is no guest"));
    }
}
