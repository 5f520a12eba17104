//! The two pictures of `top`: the machine, and one guest.

use core::cmp::Reverse;
use core::fmt::{self, Display};

use super::frame::Align::{self, Left, Right};
use super::frame::Style::{Bold, Plain, Reverse as Inverse};
use super::frame::{Frame, ROWS};
use super::picture::{Picture, Sort, View};
use super::rates::{GuestRates, Rates, Reason};

use crate::fold::COLUMNS;
use crate::{Counters, Guest};

/// Engines that have a line.
const ENGINES: usize = 6;
/// Guests that are sorted. There are no more.
pub(super) const GUESTS: usize = 64;
/// Characters of the bar that shows how busy an engine is.
const BAR: u64 = 20;
/// The line with the keys.
const LAST: usize = ROWS - 1;

/// A number in up to 6 characters.
struct Short(u64);

impl Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut number = self.0;
        let mut units = ["", "K", "M", "G", "T", "P"].into_iter();
        let mut unit = units.next().unwrap_or_default();
        while number >= 100_000
            && let Some(next) = units.next()
        {
            (number, unit) = (number / 1000, next);
        }
        write!(f, "{number}{unit}")
    }
}

/// Thousandths as percent.
struct Percent(u64);

impl Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 10, self.0 % 10)
    }
}

/// The columns of the guests: their names, where they begin, how wide they are, and where a value stands in them.
const COLUMNS_OF_GUESTS: [(&str, usize, usize, Align); 9] = [
    ("guest", 0, 14, Left),
    ("state", 15, 9, Left),
    ("exits/s", 24, 7, Right),
    ("most for", 32, 13, Left),
    ("host %", 46, 6, Right),
    ("rx/s", 53, 6, Right),
    ("tx/s", 60, 6, Right),
    ("drop/s", 67, 6, Right),
    ("disk/s", 74, 6, Right),
];

/// Draws the picture into the frame.
pub(super) fn draw(frame: &mut Frame, before: Option<&Counters>, now: Option<&Counters>, picture: Picture) {
    frame.begin();
    let Some(now) = now else {
        frame.put(0, 0, COLUMNS, Left, Plain, "reading the counters");
        return;
    };
    let rates = Rates::new(before, now);
    header(frame, &rates, picture.sort, picture.frozen);
    match (picture.view, now.guests.get(picture.selected)) {
        (View::Guest, Some(guest)) => one_guest(frame, &rates, picture.selected, guest),
        _ => machine(frame, &rates, picture.sort, picture.selected),
    }
    let keys = match picture.view {
        View::Machine => " q quit  Enter guest  sort: e exits h host f frames d disk n name  z freeze",
        View::Guest => " q quit  Enter back  up/down other guest  z freeze",
    };
    frame.put(LAST, 0, COLUMNS, Left, Inverse, keys);
    frame.style_row(LAST, Inverse);
}

fn header(frame: &mut Frame, rates: &Rates<'_>, sort: Sort, frozen: bool) {
    let up = rates.now.tsc.checked_div(rates.now.tsc_hz).unwrap_or(0);
    frame.put(0, 0, 12, Left, Bold, "sidecore top");
    let time = fmt::from_fn(|f| write!(f, "up {}:{:02}:{:02}", up / 3600, up / 60 % 60, up % 60));
    frame.put(0, 14, 20, Left, Plain, time);
    let running = rates.now.guests.iter().filter(|guest| guest.state == crate::GuestState::Running).count();
    let guests = fmt::from_fn(|f| write!(f, "{running} of {} guests run", rates.now.guests.len()));
    frame.put(0, 36, 22, Left, Plain, guests);
    if frozen {
        frame.put(0, 74, 6, Left, Inverse, "frozen");
    } else {
        frame.put(0, 62, 18, Right, Plain, fmt::from_fn(|f| write!(f, "sorted by {}", sort.name())));
    }
}

fn machine(frame: &mut Frame, rates: &Rates<'_>, sort: Sort, selected: usize) {
    let shares = [("engine", 0, 6), ("core", 7, 4), ("busy %", 12, 6), ("60 s %", 19, 6)];
    let turns = [("busy turns/s", 48, 12), ("idle turns/s", 61, 12), ("long/s", 74, 6)];
    for (name, column, width) in shares.into_iter().chain(turns) {
        frame.put(2, column, width, Right, Bold, name);
    }
    let mut row = 3_usize;
    for engine in rates.now.engines.iter().take(ENGINES) {
        let rate = rates.engine(engine);
        frame.put(row, 0, 6, Right, Plain, engine.id);
        frame.put(row, 7, 4, Right, Plain, engine.core);
        frame.put(row, 12, 6, Right, Plain, Percent(rate.busy));
        match engine.busy_permille_minute {
            Some(busy) => frame.put(row, 19, 6, Right, Plain, Percent(busy)),
            None => frame.put(row, 19, 6, Right, Plain, "-"),
        }
        let filled = rate.busy.saturating_mul(BAR).saturating_add(500) / 1000;
        let bar = fmt::from_fn(|f| (0..BAR).try_for_each(|n| f.write_str(if n < filled { "#" } else { "." })));
        frame.put(row, 27, BAR as usize, Left, Plain, bar);
        frame.put(row, 48, 12, Right, Plain, Short(rate.busy_turns));
        frame.put(row, 61, 12, Right, Plain, Short(rate.idle_turns));
        frame.put(row, 74, 6, Right, Plain, Short(rate.long_turns));
        row = row.saturating_add(1);
    }
    row = row.saturating_add(1);
    guest_head(frame, row);
    row = row.saturating_add(1);
    let order = sorted(rates, sort);
    let place = order.iter().position(|guest| guest.number == selected).unwrap_or(0);
    // The chosen guest is always in the picture.
    let room = LAST.saturating_sub(row);
    let skipped = place.saturating_add(1).saturating_sub(room);
    for rate in order.iter().skip(skipped).take(room) {
        let Some(guest) = rates.now.guests.get(rate.number) else { continue };
        guest_line(frame, row, guest, rate);
        if rate.number == selected {
            frame.style_row(row, Inverse);
        }
        row = row.saturating_add(1);
    }
}

/// The guests in the order of the picture.
pub(super) fn sorted<'a>(rates: &Rates<'a>, sort: Sort) -> heapless::Vec<GuestRates<'a>, GUESTS> {
    let mut order = heapless::Vec::<GuestRates<'_>, GUESTS>::new();
    for (number, guest) in rates.now.guests.iter().enumerate().take(GUESTS) {
        let _ = order.push(rates.guest(number, guest));
    }
    order.sort_unstable_by_key(|guest| {
        let key = match sort {
            Sort::Exits => guest.exits,
            Sort::Host => guest.host,
            Sort::Frames => guest.rx.saturating_add(guest.tx),
            Sort::Disk => guest.disk,
            Sort::Name => 0,
        };
        (Reverse(key), guest.number)
    });
    order
}

/// Puts the names of the guests' columns into a line.
fn guest_head(frame: &mut Frame, row: usize) {
    for (name, column, width, align) in COLUMNS_OF_GUESTS {
        frame.put(row, column, width, align, Bold, name);
    }
}

fn guest_line(frame: &mut Frame, row: usize, guest: &Guest, rate: &GuestRates<'_>) {
    let cells: [&dyn Display; 9] = [
        &guest.name,
        &guest.state.name(),
        &Short(rate.exits),
        &rate.reason,
        &Percent(rate.host),
        &Short(rate.rx),
        &Short(rate.tx),
        &Short(rate.drops),
        &Short(rate.disk),
    ];
    for (value, (_, column, width, align)) in cells.into_iter().zip(COLUMNS_OF_GUESTS) {
        frame.put(row, column, width, align, Plain, value);
    }
}

/// One guest: its ports and disks, and its exits by reason.
fn one_guest<'a>(frame: &mut Frame, rates: &Rates<'a>, number: usize, guest: &'a Guest) {
    guest_head(frame, 2);
    guest_line(frame, 3, guest, &rates.guest(number, guest));
    let mut row = 5_usize;
    for (number, port) in guest.ports.iter().enumerate().take(4) {
        let [rx, tx, drops] = rates.port(guest, number, port);
        frame.put(row, 0, 5, Left, Bold, "port");
        frame.put(row, 6, 17, Left, Plain, &port.mac);
        for (column, value) in [(53, rx), (60, tx), (67, drops)] {
            frame.put(row, column, 6, Right, Plain, Short(value));
        }
        row = row.saturating_add(1);
    }
    for (number, disk) in guest.blocks.iter().enumerate().take(4) {
        frame.put(row, 0, 5, Left, Bold, "disk");
        frame.put(row, 6, 20, Left, Plain, &disk.serial);
        frame.put(row, 74, 6, Right, Plain, Short(rates.disk(guest, number, disk)));
        row = row.saturating_add(1);
    }
    row = row.saturating_add(1);
    for (name, column, align, width) in
        [("exit", 0, Left, 24), ("exits/s", 24, Right, 7), ("cycles", 35, Right, 10), ("host %", 46, Right, 6)]
    {
        frame.put(row, column, width, align, Bold, name);
    }
    let mut reasons = rates.reasons(guest);
    reasons.sort_unstable_by_key(|reason| (Reverse(reason.exits), reason.name));
    for Reason { name, exits, cycles } in reasons.iter().filter(|reason| reason.exits > 0) {
        row = row.saturating_add(1);
        if row >= LAST {
            break;
        }
        frame.put(row, 0, 24, Left, Plain, name);
        frame.put(row, 24, 7, Right, Plain, Short(*exits));
        frame.put(row, 35, 10, Right, Plain, Short(cycles.checked_div(*exits).unwrap_or(0)));
        frame.put(row, 46, 6, Right, Plain, Percent(rates.share(*cycles, guest)));
    }
}
