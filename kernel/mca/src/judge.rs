//! What follows from the errors of all cores that a machine check has stopped.

use crate::{GlobalStatus, Location, Model, Severity, Status, severity};

/// Most uncorrected errors of a core that are looked at. With more the machine stops.
pub const MAX_ERRORS: usize = 8;

/// Where a core was when the machine check came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the hypervisor.
    Host,
    /// In the guest of this number.
    Guest(usize),
}

/// Whose memory an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The guest's of this number.
    Guest(usize),
    /// The hypervisor's, or free.
    Hypervisor,
    /// It is not memory.
    Nobody,
}

/// An uncorrected error of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Number of the bank.
    pub bank: u8,
    /// Its status.
    pub status: Status,
    /// The memory in which it is, if the bank says that.
    pub location: Option<Location>,
}

/// A core that a machine check has stopped, and what it found in its banks.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Number of the core.
    pub core: usize,
    /// Where it was.
    pub place: Place,
    /// Its MCG_STATUS.
    pub global: GlobalStatus,
    /// Its uncorrected errors.
    pub errors: [Option<Error>; MAX_ERRORS],
    /// It had more of them.
    pub more: bool,
    /// The location at which it was last hit in host mode, if it was.
    pub last: Option<u64>,
}

/// What follows from an error that does not stop the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is told and counted. If it is in a guest's memory, the guest goes on, but its memory is not used for another
    /// life.
    Withhold,
    /// The guest of this number ends, and its memory is not used for another life.
    EndGuest(usize),
}

/// Why the machine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The error is fatal by itself.
    Fatal,
    /// Nobody says where the lost data is.
    NoAddress,
    /// The lost data is the hypervisor's, or in no memory.
    NotAGuests,
    /// The core cannot go on with what it did, and that is no guest that ends.
    CannotGoOn,
    /// The core has met the same error again.
    NoProgress,
    /// There was a machine check, and no bank says why.
    NoCause,
    /// The core has more errors than are looked at.
    TooMany,
}

impl Reason {
    /// A few words for the operator.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Fatal => "fatal",
            Self::NoAddress => "action is required and the address is not known",
            Self::NotAGuests => "action is required and the memory is no guest's",
            Self::CannotGoOn => "the core cannot go on",
            Self::NoProgress => "the core has met the same error again",
            Self::NoCause => "no bank says why",
            Self::TooMany => "too many errors",
        }
    }
}

/// What follows from one error of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The machine goes on.
    Act(Action),
    /// The machine stops.
    Stop(Reason),
}

/// What follows from all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The machine goes on. Each error has its action.
    GoOn,
    /// The machine stops, because of this core and, if there is one, this error of it.
    Stop {
        /// Number of the core.
        core: usize,
        /// The error.
        error: Option<Error>,
        /// Why.
        reason: Reason,
    },
}

/// Judges all cores together. First looks whether something stops the machine. If nothing does, calls `act` with each
/// error and its action.
///
/// Whose memory the address is decides, not which core has met the error: with a broadcast the banks of a whole package
/// may be read by any of its cores.
pub fn judge(
    arrivals: impl Iterator<Item = Arrival> + Clone,
    model: &Model,
    owner: impl Fn(u64) -> Owner,
    mut act: impl FnMut(&Arrival, &Error, Action),
) -> Judgement {
    let ends = |guest| {
        let mut errors = arrivals.clone().flat_map(|a| a.errors.into_iter().flatten().map(move |e| (a, e)));
        errors.any(|(a, e)| fate(&a, &e, model, &owner) == Fate::Act(Action::EndGuest(guest)))
    };
    let (mut caused, mut first) = (false, 0);
    for (index, arrival) in arrivals.clone().enumerate() {
        if index == 0 {
            first = arrival.core;
        }
        let stop = |error, reason| Judgement::Stop { core: arrival.core, error, reason };
        let mut errors = arrival.errors.iter().flatten();
        caused |= errors.clone().next().is_some();
        let fates = errors.find_map(|e| match fate(&arrival, e, model, &owner) {
            Fate::Stop(reason) => Some(stop(Some(*e), reason)),
            Fate::Act(_) => None,
        });
        if let Some(stop) = fates {
            return stop;
        }
        if arrival.more {
            return stop(None, Reason::TooMany);
        }
        let goes_on = match arrival.place {
            Place::Host => arrival.global.restartable(),
            Place::Guest(guest) => arrival.global.restartable() || ends(guest),
        };
        if !goes_on {
            return stop(None, Reason::CannotGoOn);
        }
    }
    if !caused {
        return Judgement::Stop { core: first, error: None, reason: Reason::NoCause };
    }
    for arrival in arrivals {
        for error in arrival.errors.iter().flatten() {
            if let Fate::Act(action) = fate(&arrival, error, model, &owner) {
                act(&arrival, error, action);
            }
        }
    }
    Judgement::GoOn
}

/// Returns what follows from an uncorrected error.
fn fate(arrival: &Arrival, error: &Error, model: &Model, owner: impl Fn(u64) -> Owner) -> Fate {
    match severity(error.status, model) {
        None | Some(Severity::Corrected | Severity::Deferred | Severity::Optional) => {
            return Fate::Act(Action::Withhold);
        }
        Some(Severity::Fatal) => return Fate::Stop(Reason::Fatal),
        Some(Severity::Required) => {}
    }
    let Some(location) = error.location else { return Fate::Stop(Reason::NoAddress) };
    let Owner::Guest(guest) = owner(location.address) else { return Fate::Stop(Reason::NotAGuests) };
    if arrival.place == Place::Guest(guest) {
        return Fate::Act(Action::EndGuest(guest));
    }
    let task_corrupt = matches!(model.format, crate::Format::Amd { .. }) && error.status.task_corrupt();
    if !arrival.global.restartable() || task_corrupt {
        return Fate::Stop(Reason::CannotGoOn);
    }
    // The interrupted instruction is run again. If it needs the data, it meets the error again.
    if arrival.place == Place::Host && arrival.last == Some(location.start) {
        return Fate::Stop(Reason::NoProgress);
    }
    Fate::Act(Action::EndGuest(guest))
}

/// Whether an error that was found without a machine check is told and cleared there. If not, it stays for the machine
/// check that has it as its cause.
#[must_use]
pub fn when_polled(status: Status, model: &Model) -> bool {
    matches!(severity(status, model), Some(Severity::Corrected | Severity::Deferred))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;

    const MODEL: Model = Model { format: Format::Recovery, counts: false };
    const AMD: Model = Model { format: Format::Amd { containment: true, overflow_recovery: true }, counts: false };
    const REQUIRED: u64 = 0xbd80_0000_0000_0134;
    const OPTIONAL: u64 = 0xbd00_0000_0000_00c0;
    const UCNA: u64 = 0xa000_0000_0000_0000;
    const FATAL: u64 = 0xb600_0000_0000_0134;
    /// MCIP, RIPV.
    const GOES_ON: u64 = 5;
    const LOST: u64 = 4;

    /// Guest 0 has the first MiB, guest 1 the second, the hypervisor the third.
    fn owner(address: u64) -> Owner {
        match address >> 20 {
            guest @ 0..2 => Owner::Guest(guest as usize),
            2 => Owner::Hypervisor,
            _ => Owner::Nobody,
        }
    }

    fn error(status: u64, address: u64) -> Error {
        let location = MODEL.location(Status::from_bits(status), address, 0x86);
        Error { bank: 1, status: Status::from_bits(status), location }
    }

    fn arrival(core: usize, place: Place, global: u64, errors: &[Error]) -> Arrival {
        let mut all = [None; MAX_ERRORS];
        errors.iter().zip(&mut all).for_each(|(e, slot)| *slot = Some(*e));
        Arrival { core, place, global: GlobalStatus::from_bits(global), errors: all, more: false, last: None }
    }

    /// Judges, and returns the actions in their order.
    fn judged(arrivals: &[Arrival], model: &Model) -> (Judgement, Vec<(usize, Action)>) {
        let mut actions = Vec::new();
        let judgement = judge(arrivals.iter().copied(), model, owner, |a, _, action| actions.push((a.core, action)));
        (judgement, actions)
    }

    fn stops(arrivals: &[Arrival]) -> Option<Reason> {
        match judged(arrivals, &MODEL) {
            (Judgement::Stop { reason, .. }, actions) => {
                assert!(actions.is_empty(), "nothing is done before the machine stops");
                Some(reason)
            }
            (Judgement::GoOn, _) => None,
        }
    }

    fn one(place: Place, global: u64, status: u64, address: u64) -> [Arrival; 1] {
        [arrival(3, place, global, &[error(status, address)])]
    }

    #[test]
    fn the_guest_whose_memory_it_is_ends_whichever_core_met_the_error() {
        for place in [Place::Host, Place::Guest(0), Place::Guest(1)] {
            let (judgement, actions) = judged(&one(place, GOES_ON, REQUIRED, 0x10_0040), &MODEL);
            assert_eq!(judgement, Judgement::GoOn);
            assert_eq!(actions, [(3, Action::EndGuest(1))], "{place:?}");
        }
    }

    #[test]
    fn a_core_that_cannot_go_on_stops_the_machine_unless_it_was_in_the_guest_that_ends() {
        assert_eq!(stops(&one(Place::Guest(1), LOST, REQUIRED, 0x10_0000)), None);
        assert_eq!(stops(&one(Place::Guest(0), LOST, REQUIRED, 0x10_0000)), Some(Reason::CannotGoOn));
        assert_eq!(stops(&one(Place::Host, LOST, REQUIRED, 0x10_0000)), Some(Reason::CannotGoOn));
        // Another core of the same broadcast has the error.
        let meets = arrival(1, Place::Host, GOES_ON, &[error(REQUIRED, 0)]);
        assert_eq!(stops(&[meets, arrival(2, Place::Guest(0), LOST, &[])]), None);
        assert_eq!(stops(&[meets, arrival(2, Place::Guest(1), LOST, &[])]), Some(Reason::CannotGoOn));
        assert_eq!(stops(&[meets, arrival(2, Place::Host, LOST, &[])]), Some(Reason::CannotGoOn));
    }

    #[test]
    fn what_is_no_guest_s_stops_the_machine() {
        for place in [Place::Host, Place::Guest(0)] {
            assert_eq!(stops(&one(place, GOES_ON, REQUIRED, 0x20_0000)), Some(Reason::NotAGuests));
            assert_eq!(stops(&one(place, GOES_ON, REQUIRED, 0x50_0000)), Some(Reason::NotAGuests));
            assert_eq!(stops(&one(place, GOES_ON, FATAL, 0)), Some(Reason::Fatal));
            let mut nowhere = error(REQUIRED, 0);
            nowhere.location = None;
            assert_eq!(stops(&[arrival(0, place, GOES_ON, &[nowhere])]), Some(Reason::NoAddress));
        }
    }

    #[test]
    fn the_worst_error_decides_and_is_named() {
        let guests = error(REQUIRED, 0);
        let own = Error { bank: 4, ..error(REQUIRED, 0x20_0000) };
        let all = [arrival(0, Place::Host, GOES_ON, &[guests]), arrival(5, Place::Host, GOES_ON, &[guests, own])];
        let expected = Judgement::Stop { core: 5, error: Some(own), reason: Reason::NotAGuests };
        assert_eq!(judged(&all, &MODEL), (expected, vec![]));
    }

    #[test]
    fn no_action_required_ends_nobody_and_withholds_the_memory() {
        for status in [OPTIONAL, UCNA] {
            for address in [0x40, 0x20_0000, 0x50_0000] {
                let (judgement, actions) = judged(&one(Place::Host, GOES_ON, status, address), &MODEL);
                assert_eq!((judgement, actions), (Judgement::GoOn, vec![(3, Action::Withhold)]));
            }
        }
    }

    #[test]
    fn a_broadcast_is_judged_once_for_all_cores() {
        let all = [
            arrival(0, Place::Host, GOES_ON, &[error(UCNA, 0)]),
            arrival(1, Place::Guest(0), GOES_ON, &[error(REQUIRED, 0x10_0000)]),
            arrival(2, Place::Guest(1), GOES_ON, &[]),
        ];
        let expected = vec![(0, Action::Withhold), (1, Action::EndGuest(1))];
        assert_eq!(judged(&all, &MODEL), (Judgement::GoOn, expected));
    }

    #[test]
    fn the_same_place_again_in_host_mode_is_no_progress() {
        let mut again = one(Place::Host, GOES_ON, REQUIRED, 0x1_2345);
        again[0].last = Some(0x1_2000);
        assert_eq!(stops(&again), Some(Reason::NoProgress));
        again[0].last = Some(0x1_3000);
        assert_eq!(stops(&again), None, "another page");
        again[0].last = Some(0x1_2000);
        again[0].place = Place::Guest(0);
        assert_eq!(stops(&again), None, "the guest does not go on");
    }

    #[test]
    fn a_machine_check_without_a_cause_and_one_with_too_many_stop_the_machine() {
        let none = arrival(7, Place::Host, GOES_ON, &[]);
        let expected = Judgement::Stop { core: 7, error: None, reason: Reason::NoCause };
        assert_eq!(judged(&[none, none], &MODEL), (expected, vec![]));
        let mut many = arrival(0, Place::Host, GOES_ON, &[error(REQUIRED, 0); MAX_ERRORS]);
        assert_eq!(stops(&[many]), None);
        many.more = true;
        assert_eq!(stops(&[many]), Some(Reason::TooMany));
    }

    #[test]
    fn a_task_whose_context_is_lost_goes_on_only_if_it_is_the_guest_that_ends() {
        // VAL, UC, EN, ADDRV, TCC.
        let lost = Status::from_bits(0xb480_0000_0000_0000);
        let error = Error { bank: 0, status: lost, location: AMD.location(lost, 0x40, 0) };
        let at = |place| judged(&[arrival(0, place, GOES_ON, &[error])], &AMD).0;
        assert_eq!(at(Place::Guest(0)), Judgement::GoOn);
        for place in [Place::Host, Place::Guest(1)] {
            assert_eq!(
                at(place),
                Judgement::Stop { core: 0, error: Some(error), reason: Reason::CannotGoOn },
                "{place:?}"
            );
        }
    }

    #[test]
    fn polling_leaves_what_belongs_to_a_machine_check() {
        for (status, taken) in
            [(1 << 63, true), (UCNA, true), (OPTIONAL, false), (REQUIRED, false), (FATAL, false), (0, false)]
        {
            assert_eq!(when_polled(Status::from_bits(status), &MODEL), taken, "{status:#x}");
        }
    }
}
