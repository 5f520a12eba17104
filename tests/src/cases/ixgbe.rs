//! Linux's own driver for the 82599, `ixgbe`, tests the device model on which our driver is tested. A model that
//! `ixgbe` does not accept is no 82599. These machines run no sidecore.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use x520_model::pcap::Frame;
use x520_model::sfp::Module;

use crate::boot::{Boot, Check, Shared, alone};
use crate::linux::{Linux, Setup};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::tcp;

/// These scenarios. The one that compares the driver's counters with the wire comes first. The one that resets them
/// comes last.
pub fn list() -> Vec<Box<dyn Boot>> {
    type Run = fn(&mut Context<'_>, &mut Machines) -> Result<()>;
    let scenario = |name, about| Scenario::new(name, about, QEMU);
    let check = |name, about, run: Run| Check::new(scenario(name, about).longer_on(QEMU), run);
    let pin = "the same by the interrupt pin: only there is the self-test's interrupt test real";
    let modules_of =
        "ixgbe and SFP+ modules of the model: `ethtool -m` reads each, the link has its rate, a wrong one is refused";
    vec![
        Box::new(Shared {
            name: "ixgbe",
            about: "two machines of plain Linux with the model of the 82599, a wire between them; no sidecore",
            start: |context, wanted| {
                let cpus = if wanted.any(&["ixgbe-traffic"]) { 2 } else { 1 };
                let setups = [Setup { cpus, ..A }, Setup { cpus, ..B }];
                let both = wanted.any(&["ixgbe-traffic", "ixgbe-offloads"]);
                boot(context, "ixgbe", if both { &setups } else { &setups[..1] }).map(Machines)
            },
            end: |_| Ok(()),
            checks: vec![
                check(
                    "ixgbe-traffic",
                    "two ixgbe on a wire: ping, TCP, UDP, RSS; its statistics are the wire's",
                    traffic,
                ),
                Check::new(
                    scenario("ixgbe-offloads", "two ixgbe on a wire: TCP with each offload off and on")
                        .longer_on(QEMU)
                        .taking_turns(),
                    offloads,
                ),
                // `ixgbe-intx` does most of it by the pin, every day.
                Check::new(
                    scenario(
                        "ixgbe-probe",
                        "ixgbe on the model of the 82599: no warning, its self-test, link flaps, reloads",
                    )
                    .longer_on(QEMU)
                    .taking_turns(),
                    probe,
                ),
            ],
        }),
        alone(scenario("ixgbe-intx", pin), intx),
        alone(scenario("ixgbe-modules", modules_of).taking_turns(), modules),
    ]
}

const A: Setup =
    Setup { name: "a", number: 1, cpus: 1, memory_mib: 384, reboots: false, options: "", backplane: false };
const B: Setup =
    Setup { name: "b", number: 2, cpus: 1, memory_mib: 384, reboots: false, options: "", backplane: false };

/// The tests of `ethtool -t`: registers, EEPROM, interrupt, loopback, link.
const SELF_TESTS: u64 = 5;

/// One machine, or two with a wire between them.
struct Machines(Vec<Linux>);

fn boot(context: &mut Context<'_>, name: &str, setups: &[Setup]) -> Result<Vec<Linux>> {
    let mut machines = context.boot_linux(name, setups)?;
    for machine in &mut machines {
        machine.ask("carrier:on", seconds(20))?;
    }
    Ok(machines)
}

/// Checks that the driver has no warning and the device no complaint. Warnings that match `excused` do not count.
fn nobody_complains(context: &mut Context<'_>, machine: &mut Linux, excused: &str) -> Result<()> {
    let log = machine.ask(&format!("dmesg:{excused}"), seconds(20))?;
    let warnings = log["driver"].as_u64().with_context(|| format!("no count in {log}"))?;
    ensure!(warnings == 0, "ixgbe warned: {}", log["first"]);
    context.figures.exactly("warnings of the driver", warnings, 0)?;
    let complaints: BTreeSet<String> = machine.nic.complaints()?.into_iter().collect();
    ensure!(complaints.is_empty(), "the device has something against ixgbe: {complaints:#?}");
    context.figures.exactly("complaints of the device", complaints.len(), 0)
}

fn self_test(context: &mut Context<'_>, machine: &mut Linux) -> Result<()> {
    let result = machine.ask("selftest", seconds(60))?;
    ensure!(result["result"] == "PASS", "ethtool -t: {result}");
    context.figures.exactly("self-tests passed", result["good"].as_f64().unwrap_or_default(), SELF_TESTS)?;
    machine.ask("carrier:on", seconds(20)).map(drop)
}

fn probe(context: &mut Context<'_>, Machines(machines): &mut Machines) -> Result<()> {
    let a = machines.first_mut().context("no machine")?;
    nobody_complains(context, a, "")?;
    self_test(context, a)?;

    let flaps = if context.full { 20 } else { 3 };
    let mut back = 0.0;
    for _ in 0..flaps {
        a.nic.cable(false)?;
        a.ask("carrier:off", seconds(20))?;
        a.nic.cable(true)?;
        back += a.number("carrier:on", "up", seconds(20))?;
        a.ask("link:down", seconds(20))?;
        a.ask("link:up", seconds(20))?;
        back += a.number("carrier:on", "up", seconds(20))?;
    }
    context.figures.exactly("times that the link came back", back, 2 * flaps)?;

    let reloads = if context.full { 50 } else { 10 };
    let good = a.number(&format!("reload:{reloads}"), "good", seconds(10 * reloads))?;
    context.figures.exactly("reloads of the driver", good, reloads)?;
    self_test(context, a)
}

fn intx(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut machines = boot(context, "ixgbe-intx", &[Setup { options: "pci=nomsi", ..A }])?;
    let a = machines.first_mut().context("no machine")?;
    // The driver was told to use no MSI, and warns of that.
    nobody_complains(context, a, "MSI\\|Disabling")?;
    let pin = a.ask("vectors", seconds(20))?;
    context.figures.exactly("interrupts that are no pin's", pin["msi"].as_f64().unwrap_or(-1.0), 0)?;
    self_test(context, a)?;
    let pin = a.ask("vectors", seconds(20))?;
    context.figures.at_least("interrupts by the pin", pin["count"].as_f64().unwrap_or_default(), 1)
}

/// Modules that `ixgbe` takes, and the rate of their link in Mb/s.
const MODULES: [(&str, u32); 4] = [("sr", 10_000), ("passive", 10_000), ("sx", 1_000), ("lr", 10_000)];

fn modules(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut machines = boot(context, "ixgbe-modules", &[A])?;
    let a = machines.first_mut().context("no machine")?;
    let mut as_they_are = 0_u64;
    for (name, rate) in MODULES {
        a.ask("driver:out", seconds(60))?;
        a.nic.module(name, rate)?;
        ensure!(a.ask("driver:in", seconds(120))?["there"] == true, "{name}: the driver does not take it");
        a.ask("carrier:on", seconds(60)).with_context(|| format!("a link with {name}"))?;
        let read = a.ask("module", seconds(120))?;
        let module = Module::named(name).context("there is no such module")?;
        let expected: String = module.bytes().iter().take(96).map(|byte| format!("{byte:02x}")).collect();
        ensure!(read["hex"] == expected, "{name}: `ethtool -m` has {}, not {expected}", read["hex"]);
        as_they_are += 1;
        context.figures.exactly(
            &format!("Mb/s with {name}"),
            read["speed"].as_f64().unwrap_or_default(),
            u64::from(rate),
        )?;
    }
    nobody_complains(context, a, "")?;
    a.ask("driver:out", seconds(60))?;
    a.nic.module("ten-t", 10_000)?;
    ensure!(a.ask("driver:in", seconds(120))?["there"] == false, "ixgbe takes a module without a known code");
    context.figures.exactly("modules whose bytes `ethtool -m` has", as_they_are, MODULES.len())
}

fn traffic(context: &mut Context<'_>, Machines(machines): &mut Machines) -> Result<()> {
    let [a, b] = machines.as_mut_slice() else { unreachable!("two were asked for") };
    let pings = if context.full { 1000 } else { 20 };
    let answered = b.number(&format!("ping:{pings}"), "received", seconds(60))?;
    context.figures.exactly("pings answered", answered, pings)?;

    a.ask("iperf-server", seconds(20))?;
    let time = if context.full { 20 } else { 3 };
    for way in ["", ":reverse"] {
        let stream = b.ask(&tcp::action(64 * time, way), seconds(240))?;
        tcp::arrived_at_once(&mut context.figures, "by TCP", &stream, 64 * time, 0)?;
        let udp = b.ask(&format!("datagrams:{time}:20{way}"), seconds(60))?;
        let (sent, lost) = (udp["packets"].as_f64().unwrap_or_default(), udp["lost"].as_f64().unwrap_or(f64::MAX));
        context.figures.at_least("datagrams", sent, 1000 * time)?;
        context.figures.at_most("datagrams lost", lost, sent / 50.0)?;
    }
    // Sixteen flows all miss one of two queues once in 32,768 runs.
    b.ask("flows:2:16", seconds(60))?;
    for machine in [&mut *a, &mut *b] {
        let queues = machine.ask("queues", seconds(20))?;
        let used = queues["received"].as_array().into_iter().flatten().filter(|n| n.as_u64() > Some(100)).count();
        context.figures.at_least("receive queues that RSS has used", used, 2)?;
    }
    let mut wires = Vec::new();
    for (machine, setup) in [(&mut *a, &A), (&mut *b, &B)] {
        wires.push(same_as_on_the_wire(context, machine, setup)?);
        nobody_complains(context, machine, "")?;
    }
    if let [(a_sent, a_got), (b_sent, b_got)] = wires[..] {
        context.figures.exactly("frames lost between the two", a_sent.abs_diff(b_got) + b_sent.abs_diff(a_got), 0)?;
    }
    b.nic.cable(false)?;
    b.ask("carrier:off", seconds(20))?;
    b.nic.cable(true)?;
    b.ask("carrier:on", seconds(20))?;
    context.figures.exactly("pings answered after a flap", b.number("ping:20", "received", seconds(60))?, 20)
}

/// Compares the driver's counters, which it reads from the device, with a capture of the wire. Returns the frames sent
/// and the frames received.
fn same_as_on_the_wire(context: &mut Context<'_>, machine: &mut Linux, setup: &Setup) -> Result<(usize, usize)> {
    // No frame may pass between the two readings.
    let (mut stats, mut wire) = (machine.ask("stats", seconds(20))?, machine.nic.wire()?);
    for _ in 0..10 {
        (stats, wire) = (machine.ask("stats", seconds(20))?, machine.nic.wire()?);
        if machine.nic.wire()?.len() == wire.len() && machine.ask("stats", seconds(20))? == stats {
            break;
        }
    }
    let is_pause = |f: &&Frame| f.bytes[12..14] == [0x88, 0x08];
    let (out, came): (Vec<&Frame>, Vec<&Frame>) =
        wire.iter().filter(|f| !is_pause(f)).partition(|f| f.bytes[6..12] == setup.mac());
    let bytes = |frames: &[&Frame]| frames.iter().map(|f| f.bytes.len() as u64 + 4).sum::<u64>();
    let counter = |name: &str| stats[name].as_u64().unwrap_or_default();
    context.figures.at_least("frames on the wire", wire.len(), 10_000)?;
    context.figures.exactly("frames sent, as counted", counter("tx_pkts_nic"), out.len())?;
    context.figures.exactly("bytes sent, as counted", counter("tx_bytes_nic"), bytes(&out))?;
    let kept = counter("rx_pkts_nic") + counter("rx_missed_errors");
    context.figures.exactly("frames that came, as counted", kept, came.len())?;
    context.figures.exactly("bytes that came, as counted", counter("rx_bytes_nic"), bytes(&came))?;
    let xoff = wire.iter().filter(is_pause).filter(|f| f.bytes[16..18] != [0, 0]).count() as u64;
    let counted = counter("tx_flow_control_xoff") + counter("rx_flow_control_xoff");
    context.figures.exactly("requests for silence, as counted", counted, xoff)?;
    Ok((out.len(), came.len()))
}

/// Offloads, by ethtool's short and long names. LRO is missing: the device may leave it out, and the model does.
const FEATURES: [(&str, &str); 9] = [
    ("tso", "tcp-segmentation-offload"),
    ("gso", "generic-segmentation-offload"),
    ("tx", "tx-checksum-ip-generic"),
    ("rx", "rx-checksumming"),
    ("gro", "generic-receive-offload"),
    ("rxhash", "receive-hashing"),
    ("txvlan", "tx-vlan-offload"),
    ("rxvlan", "rx-vlan-offload"),
    ("sg", "scatter-gather"),
];

fn offloads(context: &mut Context<'_>, Machines(machines): &mut Machines) -> Result<()> {
    let [a, b] = machines.as_mut_slice() else { unreachable!("two were asked for") };
    a.ask("iperf-server", seconds(20))?;
    let mib = if context.full { 80 } else { 16 };
    let mut switched = 0_u64;
    for (short, long) in FEATURES {
        for state in ["off", "on"] {
            for machine in [&mut *a, &mut *b] {
                let set = machine.ask(&format!("set:{short}:{long}:{state}"), seconds(20))?;
                ensure!(set["good"] == true, "{short} {state}: {set}");
                machine.ask("carrier:on", seconds(20))?;
            }
            for way in ["", ":reverse"] {
                // The next round also has everything on.
                if state == "on" && !context.full {
                    continue;
                }
                let stream = b.ask(&tcp::action(mib, way), seconds(240))?;
                tcp::arrived_at_once(&mut context.figures, &format!("with {short} {state}"), &stream, mib, 0)?;
            }
            switched += 1;
        }
    }
    context.figures.exactly("offloads switched", switched, 2 * FEATURES.len())?;
    let stream = b.ask(&tcp::action(mib, ""), seconds(240))?;
    tcp::arrived_at_once(&mut context.figures, "with all on", &stream, mib, 0)?;
    nobody_complains(context, a, "")?;
    nobody_complains(context, b, "")
}
