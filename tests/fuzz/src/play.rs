//! A conversation as a run of steps: for the targets in which drivers and a back-end talk to each other.

use engine::control::{Command, Control, Reply};
use engine::requests::{Rates, Requests};

use crate::input::Input;

/// Steps of one run at most: a run is short, and many are made.
const MOST_STEPS: usize = 200;

/// Drivers and a back-end.
pub trait World {
    /// All devices start anew. The hostile driver's queues are asked for in the way that the input says.
    fn begin(&mut self, requests: Requests);

    /// Something happens, as the input says.
    fn step(&mut self, input: &mut Input<'_>);

    /// Checks all that must hold at any time.
    fn check(&mut self);

    /// The hostile driver behaves now: its device works.
    fn settle(&mut self);
}

/// Takes a way to ask for requests from the input.
pub fn requests(input: &mut Input<'_>) -> Requests {
    match input.byte() % 3 {
        0 => Requests::Poll,
        1 => Requests::Notify,
        _ => Requests::Adaptive(Rates { kicks: 4, window: 40, quiet: 10 }),
    }
}

/// Gives the engine a command, and lets it `turn` until it has answered.
///
/// # Panics
/// It does not answer.
pub fn command<K>(control: &Control<K>, mut command: Command<K>, mut turn: impl FnMut()) -> Reply {
    for _ in 0..100 {
        let again = command.again();
        assert!(control.submit(command).is_ok(), "the slot is free");
        turn();
        match control.reply().expect("answered within a turn") {
            Reply::Detaching => command = again.expect("a detachment"),
            reply => return reply,
        }
    }
    panic!("a command is answered");
}

/// Plays the input out in a world.
pub fn play(world: &mut impl World, requests: Requests, input: &mut Input<'_>) {
    world.begin(requests);
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        world.step(input);
    }
    world.check();
    world.settle();
}
