//! What the views of ports and of disks have in common: a guest's device by its id, and tables of counts with their rates.

use control::Guest;

use crate::rates::{Named, Pair};
use crate::sheet::{Column, Table, Tone, number};

/// The id of a guest's device number `n`, such as `alpha:0`.
pub fn id(guest: &Guest, n: usize) -> String {
    format!("{}:{n}", guest.name)
}

/// Finds the device with an id among those that `devices` takes from each guest. Returns its guest, its number and itself.
pub fn find<'a, T>(
    pair: &Pair<'a>,
    wanted: &str,
    devices: fn(&'a Guest) -> &'a [T],
) -> Option<(&'a Guest, usize, &'a T)> {
    pair.now.guests.iter().find_map(|guest| {
        let (n, device) = devices(guest).iter().enumerate().find(|(n, _)| id(guest, *n) == wanted)?;
        Some((guest, n, device))
    })
}

/// An empty table of counts: what was counted (`first`), how often so far, and how often a second.
pub fn counts(key: &'static str, title: impl Into<String>, first: Column) -> Table {
    Table::new(key, title, &[first, number("total", "total", 0), number("per_second", "/s", 0)])
}

/// Adds a row for each of a device's counters.
pub fn add<T>(table: &mut Table, pair: &Pair<'_>, counters: &[Named<T>], now: &T, before: Option<&T>) {
    for &(name, value) in counters {
        let rate = pair.rate(value(now), before.map(value));
        table.row(name, Tone::Plain, vec![name.into(), value(now).into(), rate.into()]);
    }
}
