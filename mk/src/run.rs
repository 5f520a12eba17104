//! `cargo mk run`: two guests that talk to each other, with their output as it comes.

use std::io::{Read as _, Write as _, stdin, stdout};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use control::{Counters, Event};
use scenarios::guests;
use scenarios::launch::Launch as _;
use scenarios::platform::Platform;
use scenarios::session::guest_result;
use scenarios::setup::{Image, Setup};

use crate::emulator::{self, Emulator, SocketPath};
use crate::outcome::Outcome;
use crate::terminal::Raw;
use crate::{two_guests, ui};

const MINUTE: Duration = Duration::from_secs(60);
/// Ctrl-\ leaves `run -i`. Ctrl-] is not free: sidecore leaves a guest's console by it.
const LEAVE: u8 = 0x1c;

/// `cargo mk run`. `disk`: a disk image that the only guest boots from. `checked`: with the hypervisor that checks
/// arithmetic and assertions.
pub fn run(interactive: bool, disk: Option<PathBuf>, platform: Option<Platform>, checked: bool) -> Result<Outcome> {
    let chosen = emulator::choose(platform)?;
    emulator::announce(chosen, platform.is_some());
    match disk {
        Some(file) => {
            let file = file.canonicalize().with_context(|| format!("cannot read the disk image {}", file.display()))?;
            stay(chosen, checked, &guests::debian("run-disk", Image::File(file)), guests::DEBIAN)
        }
        None if interactive => stay(chosen, checked, &two_guests::setup(true), "a"),
        None => show(chosen, checked),
    }
}

fn show(platform: Platform, checked: bool) -> Result<Outcome> {
    ui::step("boot", "sidecore with the guests a and b");
    let mut session = Emulator::new(platform).checked(checked).launch(&two_guests::setup(false))?;
    session.observe(print_event);
    session.booted(MINUTE)?;
    let ping = session.result("b", "ping", 2 * MINUTE)?;
    let iperf = session.result("b", "iperf", 3 * MINUTE)?;
    let counters = session.counters()?;
    session.shut_down()?;
    println!();
    println!("ping   b to a: {} of {} answered, average {} us", ping["received"], ping["sent"], ping["avg_us"]);
    let rate = iperf["bits_per_second"].as_f64().unwrap_or(0.0) / 1e6;
    println!("iperf3 b to a: {} bytes, {rate:.1} Mbit/s", iperf["bytes"]);
    print!("{}", summary(&counters));
    let lost = ping["received"] != ping["sent"] || ping["sent"] == 0;
    Ok(if lost || rate <= 0.0 { Outcome::Failed } else { Outcome::Good })
}

/// Shows events as a person wants to read them.
fn print_event(event: &Event) {
    match event {
        Event::Boot { version, platform } => {
            println!("sidecore {version}: {} cores, {} MiB", platform.cores, platform.memory >> 20)
        }
        Event::Report(entry) => println!("  {}", entry.text),
        Event::Console { guest, line } => {
            // Result lines are for scripts. The summary at the end has them.
            if guest_result(event).is_none() {
                println!("{} {line}", ui::tag(usize::from(guest != "a"), &format!("{guest} |")));
            } else if let Some((_, result)) = guest_result(event) {
                println!("{} {result}", ui::tag(usize::from(guest != "a"), &format!("{guest} *")));
            }
        }
        Event::Guest { guest, state, reason, detail } => {
            let why = reason.map_or(String::new(), |reason| format!(" ({})", reason.name()));
            let detail = detail.as_deref().map_or(String::new(), |detail| format!(": {detail}"));
            println!("guest {guest} is {}{why}{detail}", state.name());
        }
        Event::ConfigError { file, line, message, .. } => println!("{file}:{line}: {message}"),
        _ => {}
    }
}

/// The counters of each guest's frames, and its exits by reason.
fn summary(counters: &Counters) -> String {
    let mut text = format!(
        "\n{:<8}{:>12}{:>14}{:>12}{:>14}{:>10}{:>10}{:>10}{:>10}\n",
        "guest", "rx packets", "rx bytes", "tx packets", "tx bytes", "drops", "kicks", "arms", "polls"
    );
    for guest in &counters.guests {
        for port in &guest.ports {
            let drops: u64 = port.drops.iter().map(|drop| drop.count).sum();
            text += &format!(
                "{:<8}{:>12}{:>14}{:>12}{:>14}{drops:>10}{:>10}{:>10}{:>10}\n",
                guest.name,
                port.rx_packets,
                port.rx_bytes,
                port.tx_packets,
                port.tx_bytes,
                port.kicks,
                port.arms,
                port.polls
            );
        }
    }
    for guest in &counters.guests {
        text += &format!("\nguest {}: {} exits\n", guest.name, guest.total_exits());
        for vcpu in &guest.vcpus {
            let mut exits: Vec<_> = vcpu.exits.iter().filter(|exit| exit.count > 0).collect();
            exits.sort_by_key(|exit| std::cmp::Reverse(exit.count));
            for exit in exits {
                let each = exit.cycles / exit.count.max(1);
                text += &format!("  {:<24}{:>12}  {each:>10} cycles each\n", exit.reason, exit.count);
            }
        }
    }
    text
}

/// Boots this server with its console on the terminal. `guest`: the name of a guest, for an example.
fn stay(platform: Platform, checked: bool, setup: &Setup, guest: &str) -> Result<Outcome> {
    let socket = SocketPath::new("com1");
    let listener = UnixListener::bind(&socket.0).with_context(|| format!("cannot listen on {}", socket.0.display()))?;
    let com2 = SocketPath::new("com2");
    let emulator = Emulator::with_consoles(platform, socket.0.clone(), com2.0.clone())?;
    let mut session = emulator.checked(checked).launch(setup)?;
    let (console, _) = listener.accept()?;
    ui::step(
        "run",
        &format!(
            "this is sidecore's console: `help` lists its commands, `attach {guest}` shows guest {guest} and types into it."
        ),
    );
    ui::step("run", &format!("in another terminal: cargo run -p sidecore-console -- --socket {}", com2.0.display()));
    ui::step("run", "Ctrl-] goes back from a guest to sidecore; Ctrl-\\ leaves and ends everything.");
    let raw = Raw::enter()?;
    let (finished, wait) = mpsc::channel();
    let keys = console.try_clone()?;
    let left = finished.clone();
    thread::spawn(move || {
        let _ = left.send(forward_keys(keys));
    });
    thread::spawn(move || {
        let _ = finished.send(show_console(console));
    });
    let result = loop {
        match wait.recv_timeout(Duration::from_millis(200)) {
            Ok(result) => break result,
            Err(_) if session.ended()? => break Ok(()),
            Err(_) => session.forget(),
        }
    };
    drop(raw);
    println!();
    result.map(|()| Outcome::Good)
}

fn forward_keys(mut console: UnixStream) -> Result<()> {
    let mut key = [0];
    while stdin().read(&mut key)? == 1 {
        if key[0] == LEAVE {
            return Ok(());
        }
        console.write_all(&key)?;
    }
    // Standard input has ended, but sidecore may still work on what was typed. The program ends when the console does.
    thread::park();
    Ok(())
}

fn show_console(mut console: UnixStream) -> Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let length = console.read(&mut bytes)?;
        if length == 0 {
            return Ok(());
        }
        stdout().write_all(&bytes[..length])?;
        stdout().flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{Count, ExitCount, Guest as GuestCounters, GuestState, Port, VcpuCounters};

    #[test]
    fn the_summary_has_packets_bytes_and_exits_of_each_guest() {
        let exit = |reason: &'static str, count| ExitCount { reason: reason.into(), count, cycles: count * 100 };
        let guest = GuestCounters {
            name: "a".into(),
            state: GuestState::Running,
            starts: 1,
            vcpus: vec![VcpuCounters { core: 2, exits: vec![exit("hlt", 3), exit("io", 40), exit("cpuid", 0)] }],
            ports: vec![Port {
                rx_packets: 7,
                tx_bytes: 999,
                drops: vec![Count { kind: "no-buffer".into(), count: 5 }],
                ..Port::default()
            }],
            ..GuestCounters::default()
        };
        let text = summary(&Counters { guests: vec![guest], ..Counters::default() });
        assert!(text.contains("guest a: 43 exits"), "{text}");
        assert!(text.find("io ").unwrap() < text.find("hlt ").unwrap(), "{text}");
        assert!(!text.contains("cpuid"), "{text}");
        let row = text.lines().find(|line| line.starts_with("a ")).unwrap();
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["a", "7", "0", "0", "999", "5", "0", "0", "0"]);
    }
}
