//! Machine checks: errors of memory, caches and buses that the CPU reports (SDM vol. 3B, chapter "Machine-Check
//! Architecture"; APM vol. 2, chapter "Machine Check Architecture").
//!
//! ```text
//!  any core        #MC in host mode (interrupts.rs) ──┐
//!                  #MC in a guest (guests/vcpu.rs) ───┴▶ banks read and cleared ─▶ Meeting ─▶ one core judges all ─┐
//!  control core    each tick: what is told is logged, the guests that were hit end (Guests::poll) ◀── told.rs ─────┤
//!                                                                     panic::report, with one line ◀── it stops ───┘
//! ```
//!
//! The crate `mca` decides. This file reads the registers and carries out. The handler allocates nothing and takes no lock:
//! it may have interrupted any code. Each core has a slot of its own.

pub mod banks;
pub mod slot;
mod told;

pub use told::{Kind, Told};

use self::banks::{CORRECTED, DEFERRED, LEFT, poll, read, setup, write};
use self::slot::{NONE, Slot};
use crate::{
    arch::{MAX_CORES, frame::Frame, idle, number, time},
    cores::{self, Core},
    facts::facts,
    heap::For,
    nmi, panic, report,
};
use alloc::vec::Vec;
use control::MachineChecks;
use core::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};
use mca::{
    Action, Arrival, Broadcast, Error, GlobalStatus, Joined, Judgement, MAX_ERRORS, MCG_STATUS, Meeting, Owner, Place,
    Register, Setup, Severity, Status, Waiting, at,
};
use spin::Once;

/// Microseconds that the judge waits for the other cores of a broadcast. All of them come at once, if they are not in system
/// management mode.
const ALL_COME: u64 = 1_000_000;
/// Microseconds that it waits on an emulator, which may send a machine check to one core or to all. Emulated cores share
/// processors, so they come one after the other, some milliseconds apart. Those that come later are judged by themselves.
const PERHAPS_ALL_COME: u64 = 300_000;
/// Microseconds that a core waits for the judge, beyond its waiting for the others.
const JUDGE_ANSWERS: u64 = 1_000_000;
/// Microseconds between two readings of the control core's banks.
const POLL: u64 = 1_000_000;

/// Whose memory is whose.
static MEMORY: Once<Memory> = Once::new();
/// For each guest the physical address of an error that ends it.
static HIT: [AtomicU64; config::MAX_GUESTS] = [const { AtomicU64::new(NONE) }; config::MAX_GUESTS];

/// Where the cores of a broadcast meet.
static MEETING: Meeting<MAX_CORES> = Meeting::new();
/// Where a core is alone that has a local machine check.
static ALONE: Meeting<MAX_CORES> = Meeting::new();

static INTERRUPTS: AtomicU64 = AtomicU64::new(0);
static JUDGED: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);
/// Reports what the machine has, and what the chipset has latched before the boot.
pub fn describe() {
    report::add_all(findings::processor::machine_checks(setup()));
    for cause in nmi::latched_before() {
        report::warning(alloc::format!("the chipset had latched an error before the boot, {cause}"));
    }
}

struct Memory {
    /// Memory of guests: start, end (exclusive), number of the guest.
    guests: Vec<(u64, u64, usize)>,
    /// All usable memory: start, end (exclusive).
    usable: Vec<(u64, u64)>,
}

/// Stores which memory is a guest's: start, end (exclusive), number of the guest. Only the first call has an effect.
pub fn set_guests(guests: impl Iterator<Item = (u64, u64, usize)>) {
    // Any core may be the judge.
    let _everybody = For::everybody();
    MEMORY.call_once(|| Memory { guests: guests.collect(), usable: facts().ranges.clone() });
}

/// Returns whose memory a physical address is.
pub fn owner(address: u64) -> Owner {
    let within = |&(start, end): &(u64, u64)| (start..end).contains(&address);
    // Until the guests are known each core maps all memory, so also the facts.
    let (guests, usable) = match MEMORY.get() {
        Some(Memory { guests, usable }) => (&guests[..], &usable[..]),
        None => (&[][..], &facts().ranges[..]),
    };
    match guests.iter().find(|&&(start, end, _)| within(&(start, end))) {
        Some(&(.., guest)) => Owner::Guest(guest),
        None if usable.iter().any(within) => Owner::Hypervisor,
        None => Owner::Nobody,
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { bank, status, location } = self.error;
        let when = if self.kind == Kind::LeftByFirmware { "error from before the start" } else { "machine check" };
        write!(f, "{when} on core {}: bank {bank}, status {:#018x}, ", self.core, status.into_bits())?;
        let Some(location) = location else { return f.write_str("no address") };
        write!(f, "address {:#x}, ", location.address)?;
        match owner(location.address) {
            Owner::Guest(guest) => write!(f, "memory of guest number {guest}"),
            Owner::Hypervisor => f.write_str("memory of sidecore's"),
            Owner::Nobody => f.write_str("no memory of anybody's"),
        }
    }
}

/// Does what the control core does in each tick: once a second it reads its banks and has a core without work read its own, and each
/// time it gives `take` what the cores have told.
pub fn tick(mut take: impl FnMut(&Told)) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = time::tsc();
    if now >= NEXT.load(Ordering::Relaxed) {
        NEXT.store(now.saturating_add(time::micros(POLL)), Ordering::Relaxed);
        poll(number::current());
        cores::wake_to_poll();
    }
    told::take_all(&mut take);
}

/// Returns the counters.
pub fn counters() -> MachineChecks {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    MachineChecks {
        interrupts: get(&INTERRUPTS),
        judged: get(&JUDGED),
        corrected: get(&CORRECTED),
        deferred: get(&DEFERRED),
        ended: get(&ENDED),
        left_by_firmware: get(&LEFT),
    }
}

/// Handles a machine check that has interrupted the hypervisor.
pub fn in_host(frame: &mut Frame) {
    if frame.is_nested() {
        panic::report(format_args!("a machine check within a machine check"), None, Some(frame), None);
    }
    handle(Place::Host, Some(frame));
    // A kick that came meanwhile found this handler, not the code that is about to halt or to enter a guest.
    idle::leave_park(frame);
    vmx::leave_entry_window(&mut frame.rip);
}

/// Handles a machine check that has interrupted a guest. If the guest of this number has to end, returns the physical address
/// of an error in its memory.
pub fn in_guest(guest: usize) -> Option<u64> {
    handle(Place::Guest(guest), None);
    let hit = HIT.get(guest)?.load(Ordering::Acquire);
    (hit != NONE).then_some(hit)
}

fn handle(place: Place, frame: Option<&Frame>) {
    panic::park_if_panicking();
    let Some(setup) = setup() else {
        panic::report(format_args!("a machine check, and the CPU has no banks"), None, frame, None)
    };
    let core = number::current();
    let global = GlobalStatus::from_bits(read(MCG_STATUS));
    let Some(Core { machine_check: slot, .. }) = cores::get(core) else { return };
    slot.collect(setup, place, global);
    let alone = setup.broadcast == Broadcast::Never || setup.local && global.local();
    let (meeting, expected) = if alone { (&ALONE, 1) } else { (&MEETING, cores::count().max(1)) };
    let others = if setup.broadcast == Broadcast::Always { ALL_COME } else { PERHAPS_ALL_COME };
    let begun = time::tsc();
    let joined = meeting.join(core, expected, |what| {
        // The rate is measured early in the boot, when there is one core.
        let ticks = time::known_rates().map_or(0, |rates| rates.tsc / 1_000_000);
        let limit = match what {
            Waiting::ForOthers => others,
            Waiting::ForJudge => others.saturating_add(JUDGE_ANSWERS),
        };
        time::tsc().wrapping_sub(begun) < limit.saturating_mul(ticks)
    });
    match joined {
        Joined::Judge(judging) => {
            JUDGED.fetch_add(1, Ordering::Relaxed);
            let count = judging.count();
            if count < expected && setup.broadcast == Broadcast::Always {
                let why = format_args!("machine check: {count} of {expected} cores came");
                panic::report(why, None, frame, None);
            }
            judge(
                setup,
                judging.cores().filter_map(|core| Some(cores::get(core)?.machine_check.arrival(setup, core))),
                frame,
            );
        }
        Joined::Judged => {}
        Joined::Abandoned => {
            panic::report(format_args!("machine check: the core that judges does not answer"), None, frame, None)
        }
    }
    // From here on another machine check is an interrupt again, and no shutdown.
    write(MCG_STATUS, 0);
    INTERRUPTS.fetch_add(1, Ordering::Relaxed);
}

fn judge(setup: &Setup, arrivals: impl Iterator<Item = Arrival> + Clone, frame: Option<&Frame>) {
    let judgement = mca::judge(arrivals, &setup.model, owner, |arrival, error, action| {
        let kind = match action {
            Action::Withhold => {
                DEFERRED.fetch_add(1, Ordering::Relaxed);
                Kind::Withhold
            }
            Action::EndGuest(guest) => {
                ENDED.fetch_add(1, Ordering::Relaxed);
                if let Some(location) = error.location {
                    if arrival.place == Place::Host
                        && let Some(core) = cores::get(arrival.core)
                    {
                        core.machine_check.last.store(location.start, Ordering::Relaxed);
                    }
                    if let Some(hit) = HIT.get(guest) {
                        hit.store(location.address, Ordering::Release);
                    }
                }
                Kind::EndGuest
            }
        };
        let told = Told { core: arrival.core, error: *error, kind };
        if !told::tell(&told) {
            panic::report(format_args!("{told}, and too many errors wait for the control core"), None, frame, None);
        }
    });
    if let Judgement::Stop { core, error, reason } = judgement {
        let error: &dyn fmt::Display = match &error {
            Some(error) => &Told { core, error: *error, kind: Kind::Stop },
            None => &format_args!("machine check on core {core}"),
        };
        panic::report(format_args!("{error}: {}", reason.text()), None, frame, None);
    }
}

impl Slot {
    /// Reads and clears this core's banks. Corrected errors are counted and are nobody's business.
    fn collect(&self, setup: &Setup, place: Place, global: GlobalStatus) {
        self.global.store(global.into_bits(), Ordering::Relaxed);
        let place = match place {
            Place::Host => 0,
            Place::Guest(guest) => (guest as u64).saturating_add(1),
        };
        self.place.store(place, Ordering::Relaxed);
        self.more.store(false, Ordering::Relaxed);
        let mut count = 0;
        for bank in setup.banks() {
            let status = Status::from_bits(read(at(bank, Register::Status)));
            match mca::severity(status, &setup.model) {
                None => continue,
                Some(Severity::Corrected) => {
                    CORRECTED.fetch_add(setup.model.corrected(status), Ordering::Relaxed);
                }
                Some(_) => match self.errors.get(count) {
                    Some(words) => {
                        let register = |valid, register| if valid { read(at(bank, register)) } else { 0 };
                        let address = register(status.address_valid(), Register::Address);
                        let further = register(status.further_valid(), Register::Further);
                        for (word, value) in words.iter().zip([bank.into(), status.into_bits(), address, further]) {
                            word.store(value, Ordering::Relaxed);
                        }
                        count = count.saturating_add(1);
                    }
                    None => self.more.store(true, Ordering::Relaxed),
                },
            }
            write(at(bank, Register::Status), 0);
        }
        self.count.store(count as u64, Ordering::Relaxed);
    }

    fn arrival(&self, setup: &Setup, core: usize) -> Arrival {
        let mut errors = [None; MAX_ERRORS];
        let count = self.count.load(Ordering::Relaxed) as usize;
        for (error, words) in errors.iter_mut().zip(&self.errors).take(count) {
            let [bank, status, address, further] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
            let status = Status::from_bits(status);
            let location = setup.model.location(status, address, further);
            *error = Some(Error { bank: bank as u8, status, location });
        }
        let place = match self.place.load(Ordering::Relaxed) {
            0 => Place::Host,
            guest => Place::Guest((guest as usize).saturating_sub(1)),
        };
        Arrival {
            core,
            place,
            global: GlobalStatus::from_bits(self.global.load(Ordering::Relaxed)),
            errors,
            more: self.more.load(Ordering::Relaxed),
            last: Some(self.last.load(Ordering::Relaxed)).filter(|&last| last != NONE),
        }
    }
}
