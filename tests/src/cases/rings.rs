//! Tests packed rings, resizing of rings under traffic, and all other features of a network device, with Linux's
//! driver.

use anyhow::{Context as _, Result, ensure};
use net::features::Features;

use crate::boot::{Boot, alone};
use crate::counts::net;
use crate::guests::{Guest, address, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::tcp;

/// Features that Linux's driver does not take. IN_ORDER is not offered to guests. The driver does not know
/// NET_CTRL_RX_EXTRA.
const NOT_TAKEN: Features = Features::IN_ORDER.union(Features::NET_CTRL_RX_EXTRA);
/// Changes of the rings' sizes.
const RESIZES: u64 = 12;
/// Size of the file in MiB.
const MIB: u64 = 8;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "two guests with packed rings, and one with split rings: all features taken, ping, TCP both ways, a file, rings resized under traffic";
    vec![alone(Scenario::new("packed-rings", about, QEMU).taking_turns(), packed)]
}

/// For each mode of requests, the numbers of three guests: two with packed rings, and one with split rings.
const GUESTS: [(&str, [usize; 3]); 2] = [("poll", [1, 2, 3]), ("notify", [4, 5, 6])];

fn packed(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut guests = Vec::new();
    for (requests, [first, second, split]) in GUESTS {
        for (number, peer, packed) in [(first, second, true), (second, first, true), (split, first, false)] {
            let guest = Guest::new(number).full().peer(peer).requests(requests).net(&format!("packed = {packed}"));
            guests.push(guest.then("obey"));
        }
    }
    let mut session = context.boot(&server("packed-rings", &guests))?;
    session.all_obey(guests.iter().map(Guest::name))?;
    for (requests, [first, second, split]) in GUESTS {
        for (other, both) in [(second, true), (split, false)] {
            let [a, b] = [first, other].map(|number| guests[number - 1].name());
            exchange(context, &mut session, requests, both, [a, b], first)?;
        }
    }
    session.shut_down().map(drop)
}

/// Runs traffic between guests `a` and `b`, and resizes `b`'s rings. Guest `a` has packed rings and the number
/// `server_number`. Guest `b` has packed rings if `both` is true.
fn exchange(
    context: &mut Context<'_>,
    session: &mut Session,
    requests: &str,
    both: bool,
    [a, b]: [&str; 2],
    server_number: usize,
) -> Result<()> {
    let of = |what: &str| format!("{requests}, {}: {what}", if both { "both" } else { "one" });
    for (name, wanted) in [(a, true), (b, both)] {
        let features = session.act(name, "features", seconds(240))?;
        let bits = features["bits"].as_str().with_context(|| format!("no bits in {features}"))?;
        ensure!(bits.len() == 64, "the features of {name} are {bits}");
        let taken = bits.bytes().rev().fold(0, |word, bit| word << 1 | u64::from(bit == b'1'));
        let mut offered = Features::all().difference(NOT_TAKEN);
        offered.set(Features::RING_PACKED, wanted);
        ensure!(
            taken == offered.bits(),
            "{name} is offered {offered:?} and takes {:?}",
            Features::from_bits_retain(taken)
        );
        context
            .figures
            .note(&of(&format!("features of {name}, all that it is offered")), u64::from(taken.count_ones()));
    }
    for (ping, count) in [("ping:200".to_owned(), 200), (format!("ping:50:{}:1400", address(server_number)), 50)] {
        let ping = session.act(b, &ping, seconds(240))?;
        context.figures.exactly(&of("pings answered"), number(&ping, "received")?, count)?;
    }
    session.act(a, "iperf-server", seconds(60))?;
    for (way, direction) in [("", "out"), (":reverse", "in")] {
        let before = session.counters()?;
        let stream = session.act(b, &tcp::action(16, way), seconds(240))?;
        let dropped = tcp::dropped(&before, &session.counters()?, &[a, b])?;
        tcp::arrived_at_once(&mut context.figures, &of(direction), &stream, 16, dropped)?;
    }
    let served = session.act(a, &format!("serve:{MIB}"), seconds(120))?;
    let fetched = session.act(b, "fetch", seconds(240))?;
    context.figures.same_file(&of("files with the right checksum"), &served, &fetched)?;
    let resize = session.act(b, &format!("resize:{RESIZES}"), seconds(240))?;
    context.figures.exactly(&of("rings resized under traffic"), number(&resize, "resized")?, RESIZES)?;
    context.figures.exactly(&of("frames went on both ways"), number(&resize, "alive")?, RESIZES)?;
    let ping = session.act(b, "ping:50", seconds(240))?;
    context.figures.exactly(&of("pings answered afterwards"), number(&ping, "received")?, 50)?;
    let counters = session.counters()?;
    for name in [a, b] {
        context.figures.exactly(
            &of(&format!("rules of the ring that {name} broke")),
            net(&counters, name)?.ring_errors,
            0,
        )?;
    }
    Ok(())
}
