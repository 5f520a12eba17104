//! The control core's questions to one engine. The engine takes one command at a time and answers it later. Nobody waits:
//! a question is put in a queue, and its answer is looked for in each tick.

use alloc::{collections::VecDeque, vec::Vec};

/// Questions to an engine, in the order in which they were asked. `C` is a command and `R` is an answer. Each question is
/// about a slot of the engine, and the answer is found by the slot.
#[derive(Debug)]
pub struct Asks<C, R> {
    /// Not given to the engine yet.
    waiting: VecDeque<(usize, C)>,
    /// The slot of the command that the engine has.
    asked: Option<usize>,
    /// Answers that nobody has taken yet.
    answers: Vec<(usize, R)>,
}

impl<C, R> Asks<C, R> {
    /// Makes an empty queue for an engine with so many slots. Later nothing here allocates: there is one question or answer for
    /// each slot at most.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self { waiting: VecDeque::with_capacity(slots), asked: None, answers: Vec::with_capacity(slots) }
    }

    /// Asks about a slot. Do not ask again about it before the answer was taken.
    pub fn ask(&mut self, slot: usize, command: C) {
        self.waiting.push_back((slot, command));
    }

    /// Asks about something that is no slot, and whose answer nobody takes ([`Asks::forget`]). It takes the place of an older question
    /// about the same that the engine does not have yet.
    pub fn ask_anew(&mut self, about: usize, command: C) {
        match self.waiting.iter_mut().find(|(slot, _)| *slot == about) {
            Some((_, waiting)) => *waiting = command,
            None => self.waiting.push_back((about, command)),
        }
    }

    /// Forgets the answers about what is no slot: `first` and above.
    pub fn forget(&mut self, first: usize) {
        self.answers.retain(|(about, _)| *about < first);
    }

    /// Takes the engine's answer if there is one, and gives it the next command. `reply` returns the reply to the last
    /// command. `submit` gives the engine a command, and returns it if the engine does not take it now.
    pub fn step(&mut self, reply: impl FnOnce() -> Option<R>, submit: impl FnOnce(C) -> Result<(), C>) {
        if let Some(slot) = self.asked {
            let Some(answer) = reply() else { return };
            self.asked = None;
            self.answers.push((slot, answer));
        }
        if let Some((slot, command)) = self.waiting.pop_front() {
            match submit(command) {
                Ok(()) => self.asked = Some(slot),
                Err(back) => self.waiting.push_front((slot, back)),
            }
        }
    }

    /// Takes the answer about a slot.
    pub fn take(&mut self, slot: usize) -> Option<R> {
        let at = self.answers.iter().position(|(of, _)| *of == slot)?;
        Some(self.answers.remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// An engine that answers a command with the same word, when it is told to.
    #[derive(Default)]
    struct Engine {
        command: Option<&'static str>,
        reply: Option<&'static str>,
    }

    impl Engine {
        fn turn(&mut self) {
            self.reply = self.command.take();
        }
    }

    fn step(asks: &mut Asks<&'static str, &'static str>, engine: &RefCell<Engine>) {
        let reply = || engine.borrow_mut().reply.take();
        asks.step(reply, |command| {
            let mut engine = engine.borrow_mut();
            assert!(engine.reply.is_none(), "the reply before was not taken");
            if engine.command.is_some() {
                return Err(command);
            }
            engine.command = Some(command);
            Ok(())
        });
    }

    #[test]
    fn each_question_gets_its_own_answer() {
        let (mut asks, engine) = (Asks::new(8), RefCell::new(Engine::default()));
        asks.ask(7, "seven");
        asks.ask(2, "two");
        asks.ask(5, "five");
        for _ in 0..4 {
            step(&mut asks, &engine);
            engine.borrow_mut().turn();
        }
        assert_eq!([2, 5, 7, 2, 3].map(|slot| asks.take(slot)), [Some("two"), Some("five"), Some("seven"), None, None]);
    }

    #[test]
    fn an_engine_that_is_silent_holds_up_its_own_questions_and_no_tick() {
        let (mut asks, engine) = (Asks::new(8), RefCell::new(Engine::default()));
        asks.ask(1, "one");
        asks.ask(2, "two");
        for _ in 0..100 {
            step(&mut asks, &engine);
        }
        assert_eq!((asks.take(1), engine.borrow().command), (None, Some("one")));
        engine.borrow_mut().turn();
        step(&mut asks, &engine);
        assert_eq!((asks.take(1), engine.borrow().command), (Some("one"), Some("two")));
    }

    #[test]
    fn of_several_questions_about_the_same_the_last_one_is_asked_and_its_answer_forgotten() {
        let (mut asks, engine) = (Asks::new(8), RefCell::new(Engine::default()));
        asks.ask_anew(9, "first");
        step(&mut asks, &engine);
        asks.ask_anew(9, "second");
        asks.ask_anew(9, "third");
        asks.ask(1, "one");
        assert_eq!(asks.waiting, [(9, "third"), (1, "one")], "the engine has the first");
        for _ in 0..4 {
            engine.borrow_mut().turn();
            step(&mut asks, &engine);
        }
        asks.forget(8);
        assert_eq!((asks.take(9), asks.take(1)), (None, Some("one")));
    }

    #[test]
    fn one_that_asks_again_and_again_does_not_hold_up_the_others() {
        let (mut asks, engine) = (Asks::new(8), RefCell::new(Engine::default()));
        asks.ask(1, "again");
        asks.ask(2, "two");
        let mut ticks = 0;
        while asks.take(2).is_none() {
            step(&mut asks, &engine);
            if asks.take(1).is_some() {
                asks.ask(1, "again");
            }
            engine.borrow_mut().turn();
            ticks += 1;
        }
        assert_eq!(ticks, 3);
    }

    #[test]
    fn a_command_that_the_engine_does_not_take_now_stays_the_next() {
        let mut asks = Asks::<_, ()>::new(8);
        asks.ask(1, "one");
        asks.ask(2, "two");
        let mut seen = Vec::new();
        for taken in [false, false, true] {
            asks.step(
                || None,
                |command| {
                    seen.push(command);
                    if taken { Ok(()) } else { Err(command) }
                },
            );
        }
        assert_eq!(seen, ["one"; 3]);
    }
}
