//! Starts all application processors together (SDM vol. 3A 9.4.4): INIT to each, 10 ms, a start-up IPI to each, another one
//! to those that have not come. Then it waits as long as one more comes.
//!
//! A processor that does not come costs the machine itself and two seconds, however many do not come. Its seat is withdrawn, so
//! that it cannot run anything if it comes later, and INIT stops it.

use crate::trampoline::{Fate, Seat};

/// Microseconds between INIT and the start-up IPI.
const AFTER_INIT: u64 = 10_000;
/// Microseconds between the two start-up IPIs.
const AFTER_STARTUP: u64 = 200;
/// Microseconds without one more processor, after which no more are waited for.
const PATIENCE: u64 = 2_000_000;

/// What starting needs of the machine.
pub trait Machine {
    /// Sends INIT to a processor.
    fn init(&mut self, apic_id: u32);
    /// Sends it a start-up IPI with the trampoline's page.
    fn startup(&mut self, apic_id: u32);
    /// Returns the time in microseconds since anything fixed.
    fn micros(&mut self) -> u64;
    /// Is called again and again while it waits.
    fn pause(&mut self) {
        core::hint::spin_loop();
    }
}

/// Starts the processors of these seats. Afterwards no seat is [`Fate::Open`].
pub fn start(seats: &[Seat], machine: &mut impl Machine) {
    seats.iter().for_each(|seat| machine.init(seat.apic_id()));
    wait(machine, AFTER_INIT, || false);
    seats.iter().for_each(|seat| machine.startup(seat.apic_id()));
    wait(machine, AFTER_STARTUP, || seats.iter().all(Seat::is_taken));
    for seat in seats.iter().filter(|seat| !seat.is_taken()) {
        machine.startup(seat.apic_id());
    }
    let count = || seats.iter().filter(|seat| seat.fate() == Fate::Started).count();
    let mut before = count();
    while before < seats.len() {
        wait(machine, PATIENCE, || count() > before);
        let now = count();
        if now == before {
            break;
        }
        before = now;
    }
    for seat in seats.iter().filter(|seat| seat.withdraw() != Fate::Started) {
        machine.init(seat.apic_id());
    }
}

/// Waits so many microseconds, or until `done`.
fn wait(machine: &mut impl Machine, micros: u64, done: impl Fn() -> bool) {
    let begun = machine.micros();
    while !done() && machine.micros().saturating_sub(begun) < micros {
        machine.pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a processor behaves.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Habit {
        /// It runs so many microseconds after the start-up IPI of this number, counted from 1.
        Runs { at: u64, after: u64 },
        /// It takes no start-up IPI.
        Ignores,
        /// It takes its seat and gets no further.
        Hangs,
    }

    struct Processor {
        habit: Habit,
        inits: Vec<u64>,
        startups: Vec<u64>,
    }

    const STEP: u64 = 25;

    /// A machine whose time goes on in steps of [`STEP`] microseconds.
    struct Model<'a> {
        seats: &'a [Seat],
        processors: Vec<Processor>,
        now: u64,
    }

    impl<'a> Model<'a> {
        fn new(seats: &'a [Seat], habits: &[Habit]) -> Self {
            let processor = |&habit| Processor { habit, inits: Vec::new(), startups: Vec::new() };
            Self { seats, processors: habits.iter().map(processor).collect(), now: 0 }
        }

        fn number(&self, apic_id: u32) -> usize {
            self.seats.iter().position(|seat| seat.apic_id() == apic_id).expect("only listed processors are sent to")
        }
    }

    impl Machine for Model<'_> {
        fn init(&mut self, apic_id: u32) {
            let number = self.number(apic_id);
            self.processors[number].inits.push(self.now);
        }

        fn startup(&mut self, apic_id: u32) {
            let number = self.number(apic_id);
            self.processors[number].startups.push(self.now);
        }

        fn micros(&mut self) -> u64 {
            self.now += STEP;
            for (processor, seat) in self.processors.iter().zip(self.seats) {
                match processor.habit {
                    Habit::Runs { at, after } => {
                        let sent = processor.startups.get(at as usize - 1);
                        if sent.is_some_and(|sent| self.now >= sent + after) && seat.take() {
                            assert!(seat.started());
                        }
                    }
                    Habit::Hangs if !processor.startups.is_empty() => _ = seat.take(),
                    Habit::Hangs | Habit::Ignores => {}
                }
            }
            self.now
        }
    }

    /// Starts processors with these habits. Their IDs are far apart and have the top bit set.
    fn run(habits: &[Habit]) -> (Vec<Fate>, Vec<Processor>, u64) {
        let seats: Vec<Seat> = (0..habits.len() as u32).map(|n| Seat::new(0x8000_0000 | n << 9, 0, 0)).collect();
        let mut model = Model::new(&seats, habits);
        start(&seats, &mut model);
        (seats.iter().map(Seat::fate).collect(), model.processors, model.now)
    }

    const PROMPT: Habit = Habit::Runs { at: 1, after: 50 };

    #[test]
    fn a_thousand_processors_start_together() {
        let (fates, processors, took) = run(&[PROMPT; 1023]);
        assert!(fates.iter().all(|&fate| fate == Fate::Started));
        assert!(processors.iter().all(|p| p.inits.len() == 1 && p.startups.len() == 1));
        assert!(processors.iter().all(|p| p.startups[0] - p.inits[0] >= AFTER_INIT));
        assert!(took < 2 * AFTER_INIT, "{took} us");
    }

    #[test]
    fn one_that_needs_the_second_start_up_ipi_gets_it() {
        let (fates, processors, _) = run(&[PROMPT, Habit::Runs { at: 2, after: 10 }]);
        assert_eq!(fates, [Fate::Started; 2]);
        assert_eq!(processors.iter().map(|p| p.startups.len()).collect::<Vec<_>>(), [1, 2]);
        assert!(processors[1].startups[1] - processors[1].startups[0] >= AFTER_STARTUP);
    }

    #[test]
    fn those_that_ignore_it_or_hang_cost_only_themselves_and_two_seconds_together() {
        let mut habits = [PROMPT; 64];
        (habits[3], habits[7], habits[40]) = (Habit::Ignores, Habit::Hangs, Habit::Ignores);
        let (fates, processors, took) = run(&habits);
        for (number, (fate, processor)) in fates.iter().zip(&processors).enumerate() {
            let (wanted, inits) = match number {
                3 | 40 => (Fate::Silent, 2),
                7 => (Fate::Stuck, 2),
                _ => (Fate::Started, 1),
            };
            assert_eq!((*fate, processor.inits.len()), (wanted, inits), "processor {number}");
        }
        assert!(took < PATIENCE + 2 * AFTER_INIT, "{took} us");
    }

    #[test]
    fn slow_ones_are_waited_for_as_long_as_one_more_comes() {
        let slow = |n: u64| Habit::Runs { at: 1, after: n * (PATIENCE - 1000) };
        let (fates, ..) = run(&[slow(1), slow(2), slow(3)]);
        assert_eq!(fates, [Fate::Started; 3]);
    }

    #[test]
    fn one_that_comes_too_late_finds_its_seat_withdrawn() {
        let seats = [Seat::new(1, 0, 0), Seat::new(2, 0, 0)];
        let mut model = Model::new(&seats, &[Habit::Ignores, Habit::Hangs]);
        start(&seats, &mut model);
        assert!(!seats[0].take(), "so ap.s halts");
        assert!(!seats[1].started(), "so the kernel halts");
    }

    #[test]
    fn two_with_one_id_do_not_share_a_stack() {
        let seat = Seat::new(5, 0x1000, 0);
        assert!(seat.take());
        assert!(!seat.take(), "the second one halts");
        assert!(seat.started());
        assert_eq!(seat.withdraw(), Fate::Started, "one that runs keeps its seat");
    }
}
