//! All modes of completion: traffic, two virtual CPUs, a guest that is killed and restarted under load, and the exits
//! of a steady load. The guests of a mode share a machine.

use anyhow::{Result, ensure};
use control::{Command, GuestState};

use super::{smp, steady_load};
use crate::boot::{Boot, Check, Shared, Wanted};
use crate::counts::{count, net_of_all, shadow, starts};
use crate::guests::{Guest, server};
use crate::modes;
use crate::platform::{ALSO_NESTED, BOCHS, EVERYWHERE, NESTED, Platform};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::steady::{self, Steady};
use crate::tcp;

/// How often a guest is killed and restarted under load, in the platform's best mode; with `--full` in each mode.
const LIVES: u64 = 10;
/// The same in the other modes without `--full`. `probe-restarts` does ten restarts in each mode.
const FEWER_LIVES: u64 = 3;

/// The names of a mode's scenarios.
struct Names {
    traffic: &'static str,
    steady: &'static str,
    smp: &'static str,
    restarts: &'static str,
}

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    macro_rules! way {
        ($mode:literal, $platforms:expr, $cost:expr, $steady:expr) => {{
            const NAMES: Names = Names {
                traffic: concat!($mode, "-traffic"),
                steady: concat!($mode, "-steady"),
                smp: concat!($mode, "-smp"),
                restarts: concat!($mode, "-restarts"),
            };
            let way: Box<dyn Boot> = Box::new(Shared {
                name: concat!("completions-", $mode),
                about: concat!(
                    "guests in `",
                    $mode,
                    "`: a and b with iperf3, c with two virtual CPUs, d that is restarted; ",
                    $cost
                ),
                start: |context, wanted| start(context, wanted, $mode, &NAMES),
                end: |mut session| session.shut_down().map(drop),
                checks: checks(
                    NAMES,
                    $platforms,
                    [
                        |context, session| traffic(context, session),
                        |context, session| cost(context, session, $mode),
                        |context, session| smp_in(context, session, $mode),
                        |context, session| restarts(context, session, $mode),
                    ],
                    $steady,
                ),
            });
            way
        }};
    }
    const EXITLESS: &str =
        "UDP requests and a TCP stream between Linux guests: no exit for I/O, an interrupt for each request";
    const EXITS: &str =
        "the contrast, every request notified and every completion injected: more than an exit a packet";
    let between =
        "the same between a guest in `eli`, which asks, and one in `direct`: no exit of either for I/O or a timer";
    vec![
        way!("inject", ALSO_NESTED, "e and f are notified of", EXITS),
        way!("eli", ALSO_NESTED, "all polled", EXITLESS),
        way!("direct", ALSO_NESTED, "all polled", EXITLESS),
        way!("posted", BOCHS, "all polled", EXITLESS),
        crate::boot::alone(Scenario::new("eli-direct-steady", between, BOCHS).longer_on(BOCHS), |context, ()| {
            let guests = steady::guests("poll", ["eli", "direct"], [1, 2]);
            let mut session = context.boot(&server("eli-direct-steady", &guests))?;
            session.all_obey(guests.iter().map(Guest::name))?;
            let mut load = Steady::begin(&mut session, ["a", "b"])?;
            steady_load::cost(context, &mut load, ["eli", "direct"])?;
            session.shut_down().map(drop)
        }),
    ]
}

type Run = fn(&mut Context<'_>, &mut Session) -> Result<()>;

fn checks(names: Names, platforms: &'static [Platform], runs: [Run; 4], steady: &'static str) -> Vec<Check<Session>> {
    const TRAFFIC: &str = "1,000 pings, TCP both ways, and a file of 32 MiB that arrives intact";
    const SMP: &str = "two virtual CPUs: both at work, one goes offline and comes back";
    const RESTARTS: &str = "a guest is killed and started again and again under load; its neighbour is unharmed";
    let scenario = |name, about| {
        // In nested KVM its stream is over before the counters are read.
        let platforms = if name == "inject-steady" { EVERYWHERE } else { platforms };
        let scenario = Scenario::new(name, about, platforms);
        // `eli` under traffic is what nested KVM is for.
        let usual = ["eli-traffic", "eli-steady"].contains(&name) || !platforms.contains(&Platform::Nested);
        if usual { scenario } else { scenario.rarely_on(NESTED) }
    };
    let restarts = scenario(names.restarts, RESTARTS);
    let restarts = match names.restarts {
        "posted-restarts" => restarts,
        "eli-restarts" => restarts.longer_on(BOCHS),
        // In a mode that is no platform's best one, fewer restarts without `--full`, and not every day.
        _ => restarts.longer_on(EVERYWHERE).taking_turns(),
    };
    let smp = scenario(names.smp, SMP);
    let smp = match names.smp {
        // One runs every day, and the other on Bochs only.
        "eli-smp" | "posted-smp" => smp,
        _ => smp.taking_turns(),
    };
    let [run_traffic, run_steady, run_smp, run_restarts] = runs;
    vec![
        Check::new(scenario(names.traffic, TRAFFIC).longer_on(BOCHS), run_traffic),
        Check::new(scenario(names.steady, steady).longer_on(BOCHS), run_steady),
        Check::new(smp, run_smp),
        Check::new(restarts, run_restarts),
    ]
}

/// Whether the steady load of a mode is the contrast, with `requests = "notify"`. It has guests of its own.
fn notified(mode: &str) -> bool {
    modes::named(mode).exits
}

fn start(context: &mut Context<'_>, wanted: &Wanted<'_>, mode: &str, names: &Names) -> Result<Session> {
    let (talk, load) = (wanted.any(&[names.traffic]), wanted.any(&[names.steady]));
    let mut guests = Vec::new();
    if load && !notified(mode) {
        guests.extend(steady::guests("poll", [mode; 2], [1, 2]).map(|guest| guest.memory_mib(256)));
    } else if talk {
        guests.extend([(1, 2), (2, 1)].map(|(n, peer)| still(n, mode).peer(peer).full().memory_mib(256)));
    } else if wanted.any(&[names.restarts]) {
        guests.push(still(1, mode));
    }
    if wanted.any(&[names.smp]) {
        guests.push(still(3, mode).vcpus(2));
    }
    if wanted.any(&[names.restarts]) {
        // This guest floods a as long as it lives.
        guests.push(still(4, mode).peer(1));
    }
    if load && notified(mode) {
        guests.extend(steady::guests("notify", [mode; 2], [5, 6]));
    }
    let mut session = context.boot(&server(&format!("completions-{mode}"), &guests))?;
    session.all_obey(guests.iter().map(Guest::name))?;
    Ok(session)
}

/// A guest that sends nothing by itself.
fn still(number: usize, mode: &str) -> Guest {
    Guest::new(number).completion(mode).kernel_option("ipv6.disable=1").then("obey")
}

fn traffic(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let (pings, mib) = (context.times(1000, 100), context.times(32, 2));
    // The server ends as soon as the client says that all is sent, and does not count what is still in the sockets.
    let (sent_mib, counted_mib) = (context.times(40, 4), context.times(32, 2));
    session.act("a", "iperf-server", seconds(60))?;
    session.tell("a", &format!("serve:{mib}"))?;
    let ping = session.act("b", &format!("ping:{pings}"), seconds(240))?;
    context.figures.exactly("pings answered", number(&ping, "received")?, pings)?;
    for (way, direction) in [("", "out"), (":reverse", "in")] {
        let before = session.counters()?;
        let iperf = session.act("b", &format!("iperf:{sent_mib}M{way}"), seconds(240))?;
        let dropped = tcp::dropped(&before, &session.counters()?, &["a", "b"])?;
        ensure!(iperf["direction"] == direction, "expected the result for {direction:?}, got {iperf}");
        tcp::arrived_at_once(&mut context.figures, direction, &iperf, counted_mib, dropped)?;
    }
    let file = session.result("a", "serve", seconds(120))?;
    let received = session.act("b", "fetch", seconds(300))?;
    context.figures.at_least("file bytes", number(&received, "bytes")?, mib << 20)?;
    context.figures.same_file("files with the right checksum", &file, &received)
}

fn cost(context: &mut Context<'_>, session: &mut Session, mode: &str) -> Result<()> {
    let guests = if notified(mode) { ["e", "f"] } else { ["a", "b"] };
    let mut load = Steady::begin(session, guests)?;
    steady_load::cost(context, &mut load, [mode; 2])
}

fn smp_in(context: &mut Context<'_>, session: &mut Session, mode: &str) -> Result<()> {
    let counters = smp::both_at_work(context, session, "c")?;
    if mode == "eli" {
        let counts = shadow(&counters, "c");
        context.figures.at_least("virtual CPUs that came to rely on the shadow", count(counts, "shadowed"), 2)?;
        let through = count(counts, "host-interrupts");
        context.figures.at_least("interrupts of the host's through the shadow", through, 2)?;
    }
    Ok(())
}

/// Kills and starts a guest under load, again and again.
fn restarts(context: &mut Context<'_>, session: &mut Session, mode: &str) -> Result<()> {
    let all = context.full || mode == modes::best(context.platform()).name;
    let lives = if all { LIVES } else { FEWER_LIVES };
    let before = session.counters()?;
    for _ in 0..lives {
        restart_under_load(session)?;
    }
    session.act("d", "ping:3", seconds(240))?;
    let counters = session.counters()?;
    let started = |name| starts(&counters, name) - starts(&before, name);
    context.figures.exactly("further lives of d", started("d"), lives)?;
    context.figures.exactly("further lives of a", started("a"), 0)?;
    context.figures.exactly("ring errors", net_of_all(&counters).ring_errors, 0)?;
    if mode == "eli" {
        for name in ["a", "d"] {
            let through = count(shadow(&counters, name), "host-interrupts");
            context.figures.at_least(&format!("interrupts of the host's through {name}'s shadow"), through, 1)?;
        }
    }
    Ok(())
}

fn restart_under_load(session: &mut Session) -> Result<()> {
    // The guest is up and gets answers, so interrupts are on their way when it is killed.
    session.act("d", "ping:3", seconds(240))?;
    session.tell("d", "ping:100000")?;
    session.ask(Command::Restart("d".into()), seconds(30))?;
    session.state("d", GuestState::Stopped, seconds(60))?;
    session.state("d", GuestState::Running, seconds(60))?;
    session.result("d", "obey", seconds(240)).map(drop)
}
