//! Attaches the devices of a guest, all or none, and detaches them. The engine answers each step later, in any order.

use alloc::{collections::VecDeque, vec::Vec};

use control::Text;

/// A step that the kernel asks of the engine. `usize` is the device's index. The kernel answers each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Attach the device. The answer is [`Devices::attached`] or [`Devices::not_attached`].
    Attach(usize),
    /// Detach the device. The answer is [`Devices::detached`], or [`Devices::held`] while the engine still has requests
    /// of it.
    Detach(usize),
}

/// How attaching or detaching has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All devices are attached.
    Attached,
    /// One could not be attached, for this reason. None is attached.
    NotAttached(Text),
    /// None is attached. The engine does not touch the guest's memory any more.
    Detached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The engine does not have it.
    Free,
    /// The engine was asked to take it.
    Attaching,
    /// The engine has it.
    Attached,
    /// The engine was asked to give it back, and may still use the guest's memory.
    Detaching,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Attach,
    Detach,
}

/// The devices of a guest.
#[derive(Clone, Debug)]
pub struct Devices {
    states: Vec<State>,
    /// What [`Devices::outcome`] has not returned yet.
    goal: Option<Goal>,
    /// Why a device could not be attached: the first reason.
    failure: Option<Text>,
    /// Steps that the kernel has not taken yet.
    steps: VecDeque<Step>,
}

impl Devices {
    /// Makes `count` devices that no engine has. Later nothing here allocates: each device has one step at most.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self {
            states: alloc::vec![State::Free; count],
            goal: None,
            failure: None,
            steps: VecDeque::with_capacity(count),
        }
    }

    /// Begins to attach all devices. Call it only when none is attached.
    pub fn attach(&mut self) {
        (self.goal, self.failure) = (Some(Goal::Attach), None);
        self.turn(State::Free, State::Attaching, Step::Attach);
    }

    /// Begins to detach all devices that are attached.
    pub fn detach(&mut self) {
        self.goal = Some(Goal::Detach);
        self.settle();
    }

    /// Gives up attaching, because of `why`: those that are attached are detached. The outcome is
    /// [`Outcome::NotAttached`].
    pub fn abandon(&mut self, why: Text) {
        (self.goal, self.failure) = (Some(Goal::Attach), Some(why));
        self.settle();
    }

    /// Returns the next step, or `None` if there is none now.
    pub fn next_step(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// The engine has the device.
    pub fn attached(&mut self, device: usize) {
        self.change(device, State::Attaching, State::Attached);
    }

    /// The engine did not take the device, because of `why`.
    pub fn not_attached(&mut self, device: usize, why: Text) {
        if self.change(device, State::Attaching, State::Free) {
            self.failure.get_or_insert(why);
            self.settle();
        }
    }

    /// The engine has given the device back.
    pub fn detached(&mut self, device: usize) {
        self.change(device, State::Detaching, State::Free);
    }

    /// The engine still has requests of a device that it was asked to give back. It is asked again.
    pub fn held(&mut self, device: usize) {
        if self.states.get(device) == Some(&State::Detaching) {
            self.steps.push_back(Step::Detach(device));
        }
    }

    /// The devices of which the engine has not answered that it has them or has given them back.
    pub fn pending(&self) -> impl Iterator<Item = usize> + Clone {
        let pending = |state: &State| matches!(state, State::Attaching | State::Detaching);
        self.states.iter().enumerate().filter(move |(_, state)| pending(state)).map(|(device, _)| device)
    }

    /// Returns how [`Devices::attach`] or [`Devices::detach`] has ended, once.
    pub fn outcome(&mut self) -> Option<Outcome> {
        if self.pending().next().is_some() {
            return None;
        }
        match self.goal.take()? {
            Goal::Attach => Some(self.failure.take().map_or(Outcome::Attached, Outcome::NotAttached)),
            Goal::Detach => Some(Outcome::Detached),
        }
    }

    /// Changes a device's state if it is `from`. Returns whether it was.
    fn change(&mut self, device: usize, from: State, to: State) -> bool {
        let Some(state) = self.states.get_mut(device).filter(|state| **state == from) else { return false };
        *state = to;
        self.settle();
        true
    }

    /// Detaches what is attached but is not to be, when no device is being attached any more.
    fn settle(&mut self) {
        let unwanted = self.goal == Some(Goal::Detach) || self.failure.is_some();
        if unwanted && !self.states.contains(&State::Attaching) {
            self.turn(State::Attached, State::Detaching, Step::Detach);
        }
    }

    /// Changes all devices in one state to another, with a step for each.
    fn turn(&mut self, from: State, to: State, step: impl Fn(usize) -> Step) {
        for (device, state) in self.states.iter_mut().enumerate().filter(|(_, state)| **state == from) {
            *state = to;
            self.steps.push_back(step(device));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::{Step::*, *};

    fn steps(devices: &mut Devices) -> Vec<Step> {
        std::iter::from_fn(|| devices.next_step()).collect()
    }

    #[test]
    fn all_devices_are_attached_and_detached_whatever_the_order_of_the_answers() {
        let mut devices = Devices::new(3);
        devices.attach();
        assert_eq!(steps(&mut devices), [Attach(0), Attach(1), Attach(2)]);
        [2, 0].into_iter().for_each(|device| devices.attached(device));
        assert_eq!((devices.outcome(), devices.pending().collect::<Vec<_>>()), (None, vec![1]));
        devices.attached(1);
        assert_eq!((devices.outcome(), devices.outcome()), (Some(Outcome::Attached), None), "once");
        devices.detach();
        assert_eq!(steps(&mut devices), [Detach(0), Detach(1), Detach(2)]);
        [1, 2].into_iter().for_each(|device| devices.detached(device));
        assert_eq!((devices.outcome(), devices.pending().collect::<Vec<_>>()), (None, vec![0]));
        devices.detached(0);
        assert_eq!((devices.outcome(), devices.outcome()), (Some(Outcome::Detached), None), "once");
    }

    #[test]
    fn a_device_that_is_held_is_asked_for_again_and_its_guest_waits_for_it() {
        let mut devices = Devices::new(2);
        devices.attach();
        steps(&mut devices);
        [0, 1].into_iter().for_each(|device| devices.attached(device));
        devices.outcome();
        devices.detach();
        steps(&mut devices);
        devices.detached(1);
        for _ in 0..3 {
            devices.held(0);
            assert_eq!((devices.outcome(), steps(&mut devices)), (None, vec![Detach(0)]));
        }
        devices.held(1);
        assert_eq!(steps(&mut devices), [], "it was given back");
        devices.detached(0);
        assert_eq!(devices.outcome(), Some(Outcome::Detached));
    }

    #[test]
    fn after_a_failure_exactly_those_attached_are_detached_and_the_guest_waits_for_that() {
        let mut devices = Devices::new(4);
        devices.attach();
        steps(&mut devices);
        devices.attached(0);
        devices.not_attached(2, "no slot".into());
        assert_eq!(steps(&mut devices), [], "two are not answered yet");
        devices.not_attached(3, "another reason".into());
        devices.attached(1);
        assert_eq!((steps(&mut devices), devices.outcome()), (vec![Detach(0), Detach(1)], None));
        devices.held(1);
        devices.detached(0);
        assert_eq!((steps(&mut devices), devices.outcome()), (vec![Detach(1)], None));
        devices.detached(1);
        assert_eq!(devices.outcome(), Some(Outcome::NotAttached("no slot".into())));
        // The next life is another try.
        devices.attach();
        assert_eq!(steps(&mut devices).len(), 4);
        (0..4).for_each(|device| devices.attached(device));
        assert_eq!(devices.outcome(), Some(Outcome::Attached));
    }

    #[test]
    fn a_guest_that_cannot_go_on_after_attaching_has_its_devices_detached_first() {
        let mut devices = Devices::new(1);
        devices.attach();
        steps(&mut devices);
        devices.attached(0);
        assert_eq!(devices.outcome(), Some(Outcome::Attached));
        devices.abandon("core 2 is busy".into());
        assert_eq!((steps(&mut devices), devices.outcome()), (vec![Detach(0)], None));
        devices.detached(0);
        assert_eq!(devices.outcome(), Some(Outcome::NotAttached("core 2 is busy".into())));
    }

    #[test]
    fn a_guest_without_devices_waits_for_nobody() {
        let mut devices = Devices::new(0);
        devices.attach();
        assert_eq!(devices.outcome(), Some(Outcome::Attached));
        devices.detach();
        assert_eq!(devices.outcome(), Some(Outcome::Detached));
    }

    proptest! {
        /// An engine that answers in any order and holds devices for a while. It has no device when the guest is told
        /// so, and all of them when the guest is told that.
        #[test]
        fn what_the_guest_is_told_is_true_of_the_engine(
            count in 0_usize..6,
            refused in 0_u32..64,
            answers in vec((any::<usize>(), 0_u32..3), 0..120),
        ) {
            let (mut devices, mut has) = (Devices::new(count), 0_u32);
            let mut asked = Vec::new();
            let mut up = false;
            devices.attach();
            for (which, patience) in answers {
                asked.extend(steps(&mut devices));
                if !asked.is_empty() {
                    match asked.remove(which % asked.len()) {
                        Attach(device) if refused >> device & 1 != 0 && patience == 0 => {
                            devices.not_attached(device, "refused".into());
                        }
                        Attach(device) => {
                            prop_assert_eq!(has & 1 << device, 0);
                            has |= 1 << device;
                            devices.attached(device);
                        }
                        Detach(device) if patience != 0 => devices.held(device),
                        Detach(device) => {
                            prop_assert!(has & 1 << device != 0);
                            has &= !(1 << device);
                            devices.detached(device);
                        }
                    }
                }
                match devices.outcome() {
                    None => {}
                    Some(Outcome::Attached) => {
                        prop_assert!(!up);
                        prop_assert_eq!(has, (1 << count) - 1);
                        up = true;
                        devices.detach();
                    }
                    Some(Outcome::NotAttached(_)) => {
                        prop_assert!(!up);
                        prop_assert_eq!(has, 0);
                        devices.attach();
                    }
                    Some(Outcome::Detached) => {
                        prop_assert!(up);
                        prop_assert_eq!(has, 0);
                        up = false;
                        devices.attach();
                    }
                }
            }
        }
    }
}
