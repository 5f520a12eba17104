//! The management guest: OpenSSH's client logs in and fetches a trace, Prometheus reads the metrics, a third guest comes and goes,
//! then the management guest turns hostile and dies.

mod captures;
mod changes;
pub mod operator;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ::trace::Kind;
use anyhow::{Context as _, Result, bail, ensure};
use config::Completion;
use control::{Command, Counters, Event, GuestState, Outcome, READ_BYTES, Record, SettingKey, TraceStep, Way};
use serde_json::Value;

use self::operator::{LOGIN, Operator, begin_in_guest, ended_in_guest, free_port, in_guest, written};
use crate::boot::{Boot, alone};
use crate::cases::trace::{self, Read};
use crate::counts::all_exits;
use crate::guests::{Guest, LEAST_MEMORY_MIB, address, module_name, server, with_entries, with_last_entries};
use crate::launch::Judge;
use crate::platform::QEMU;
use crate::programs::{Folder, Running};
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{Content, HOST_ADDRESS, Module, Setup, Uplink};

/// The number of the management guest, behind a and b.
pub const NUMBER: usize = 9;
/// Where its agent serves metrics.
pub const METRICS_PORT: u16 = 9560;
/// Pings of b to a in each report while the management guest attacks, and reports for an attack.
const BEAT: u64 = 10;
const BEATS: u64 = 10;

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "login by OpenSSH, a trace fetched by it, captured frames read by tshark while they come, metrics read by Prometheus and judged by promtool and a strict reader of OpenMetrics, ssh-audit, keys with few rights or for one guest, who did what in the audit, what runs as a file; a third guest comes by put and apply; then the management guest attacks, and dies";
    vec![alone(Scenario::new("management", about, QEMU), management)]
}

/// Gets a page from this machine's loopback: its head and its body.
pub fn get(port: u16, path: &str) -> Result<(String, String)> {
    get_as(port, path, "*/*")
}

/// The same with what is accepted.
fn get_as(port: u16, path: &str, accept: &str) -> Result<(String, String)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(LOGIN))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no end of the head")?;
    Ok((head.to_owned(), body.to_owned()))
}

fn setup(keys: String, host_key: String, ssh: u16, metrics: u16) -> Setup {
    let a = Guest::new(1).then("obey");
    let b = Guest::new(2).peer(1).then("obey");
    let allow = "[\"view\", \"profile\", \"capture\", \"operate\"]\nmodules = \"16M\"";
    let mut setup = managed(server("management", &[a, b]), allow, "", keys, Some(host_key));
    setup = with_last_entries(setup, &changes::spare());
    setup.typed = true;
    // Room for modules, for a file that is applied, and for the guest that comes later.
    setup.cpus += 1;
    setup.memory_mib += 16 + 8 + LEAST_MEMORY_MIB;
    let own = address(NUMBER);
    setup.forwards = vec![(ssh, own.clone(), 22), (metrics, own, METRICS_PORT)];
    setup
}

/// Adds a management guest. `allow`: what it may ask, and other values of `[management]` on lines of their own. `words`: more words on its
/// command line.
pub fn managed(setup: Setup, allow: &str, words: &str, keys: String, host_key: Option<String>) -> Setup {
    let mut setup = with_entries(
        setup,
        &format!("[management]\nguest = \"management\"\nallow = {allow}\n\n[[port]]\ndevice = \"first\"\n\n"),
    );
    let own = address(NUMBER);
    let initrd = Content::Management { keys, host_key };
    let entry = format!(
        "[[guest]]\nname = \"management\"\nmemory = \"192M\"\nkernel = \"vmlinuz\"\ninitrd = \"{}\"\ncmdline = \"console=ttyS0 \
         quiet loglevel=3 panic=-1 management.ip={own}/24 management.gateway={HOST_ADDRESS}{words}\"\n\n[[guest.net]]\n\
         mac = \"52:54:00:00:00:09\"\n\n[[guest.entropy]]\n\n",
        module_name(&initrd)
    );
    setup = with_last_entries(setup, &entry);
    setup.modules.push(Module::new(module_name(&initrd), initrd));
    setup.cpus += 1;
    setup.memory_mib += 192 + 64;
    setup.uplink = Uplink::Virtio;
    setup
}

fn management(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let folder = Folder::new("management")?;
    let mut operator = Operator::new(context, folder, free_port()?)?;
    let (alice, viewer, bound) = (operator.new_key("alice")?, operator.new_key("viewer")?, operator.new_key("bound")?);
    ensure!(operator.new_key("stranger")? != viewer);
    let host_key = operator.new_host_key()?;
    let setup = setup(format!("{alice}view {viewer}guests=a {bound}"), host_key, operator.ssh, operator.metrics);
    let mut session = operator.context.boot(&setup)?;
    session.all_obey(["a", "b"])?;
    is_ready(&mut session)?;
    log_in(&mut operator, &mut session)?;
    read_audit(&mut operator)?;
    read_config(&mut operator, &mut session, &setup)?;
    change(&mut operator, &mut session)?;
    read_metrics(&mut operator)?;
    audit_ssh(&mut operator)?;
    changes::third_guest(&mut operator, &mut session, &setup)?;
    // The logins after the attacks have to open connections of their own.
    operator.unshare();
    attack(&mut operator, &mut session)?;
    rescue(&mut operator, &mut session)
}

/// Waits until the management guest lets people log in.
pub fn is_ready(session: &mut Session) -> Result<()> {
    session.wait("the management guest to be ready", seconds(240), |event| match event {
        Event::Console { guest, line } if guest == "management" && line.contains("management: ready") => Some(()),
        _ => None,
    })
}

/// What an operator does from elsewhere.
fn log_in(operator: &mut Operator<'_, '_>, session: &mut Session) -> Result<()> {
    let version = operator.first_login(seconds(240))?;
    ensure!(version.starts_with("sidecore "), "{version}");
    for key in ["alice", "viewer", "bound"] {
        operator.share(key)?;
    }
    let list = operator.says("alice", "list")?;
    for guest in ["a", "b", "management"] {
        ensure!(list.lines().any(|line| line.starts_with(guest) && line.contains("running")), "{list}");
    }
    let exits = operator.says("alice", "show exits")?;
    ensure!(exits.lines().any(|line| line.starts_with("a ") && line.contains("cpuid")), "{exits}");
    let json = operator.says("alice", "counters --json")?;
    let Ok(Event::Counters(counters)) = Event::from_line(&json) else { bail!("no counters: {json}") };
    operator.context.figures.exactly("guests in the counters", counters.guests.len(), 4)?;

    // Exit codes say what went wrong.
    ensure!(operator.fails("alice", "lst", 2)?.contains("did you mean `list`"));
    ensure!(operator.fails("alice", "stop nobody", 1)?.contains("no guest `nobody`"));
    // A key with few rights, a key that the hypervisor itself gives less than all, and no key at all.
    ensure!(operator.says("viewer", "list")? == operator.says("alice", "list")?);
    ensure!(operator.fails("viewer", "stop a", 4)?.contains("needs the permission `operate`"));
    ensure!(operator.fails("viewer", "trace save", 4)?.contains("needs the permission `profile`"));
    ensure!(operator.fails("viewer", "trace save-without-rips exits", 4)?.contains("needs the permission `profile`"));
    ensure!(operator.says("viewer", "trace show")?.contains("the trace is off"));
    ensure!(operator.fails("alice", "attach a", 1)?.contains("needs the permission `console`"));
    operator.fails("stranger", "list", 255)?;
    // A key for one guest.
    let seen = operator.says("bound", "list")?;
    ensure!(seen.lines().skip(1).all(|line| line.starts_with("a ")) && seen.contains("running"), "{seen}");
    ensure!(operator.fails("bound", "attach b", 4)?.contains("of guest `b` is not for this key, which is bound to: a"));
    let forged = "{\"command\":\"list\",\"command\":\"kill\",\"guest\":\"b\",\"id\":7}\n";
    let answer = operator.pipes("bound", forged)?;
    ensure!(answer.contains("`command` is there twice"), "{answer}");
    let mut running = |name| session.guest(name).map(|guest| guest.state == GuestState::Running);
    ensure!(running("a")? && running("b")?, "nobody was to stop a and b");
    for port in ["org.sidecore.control", "org.sidecore.trace"] {
        let open = Command::Port { guest: "management".to_owned(), port: port.to_owned(), open: true };
        let why = session.ask(open, seconds(20)).err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(why.contains("is the management guest's"), "COM2 opens {port}: {why}");
    }
    Ok(())
}

/// The hypervisor's audit knows who has logged in, what the agent has refused, and who has given which command.
fn read_audit(operator: &mut Operator<'_, '_>) -> Result<()> {
    let json = operator.says("alice", "show audit --json")?;
    let Ok(Event::Audit { records, .. }) = Event::from_line(&json) else { bail!("no audit: {json}") };
    for (who, command, outcome, reported) in [
        ("alice", "login", Outcome::Done, true),
        ("alice", "logout", Outcome::Done, true),
        ("viewer", "stop a", Outcome::Refused, true),
        ("bound", "login", Outcome::Done, true),
        ("bound", "attach b", Outcome::Refused, true),
        // These have reached the hypervisor.
        ("alice", "stop nobody", Outcome::Failed, false),
        ("alice", "follow a on", Outcome::Refused, false),
    ] {
        let found = records.iter().any(|record| {
            (&*record.who, &*record.address) == (who, HOST_ADDRESS)
                && (&*record.command, record.outcome, record.reported) == (command, outcome, reported)
        });
        ensure!(found, "no record of `{command}` by {who} at {HOST_ADDRESS}: {json}");
    }
    ensure!(records.iter().all(|record| record.who != "stranger"), "sshd has refused that key: {json}");
    let shown = operator.says("alice", "show audit")?;
    let line = format!("channel, the agent reports (bound, {HOST_ADDRESS}): attach b:");
    ensure!(shown.contains(&line), "{shown}");
    Ok(())
}

/// `show config` gives a file that says the same as the one that was booted.
fn read_config(operator: &mut Operator<'_, '_>, session: &mut Session, setup: &Setup) -> Result<()> {
    let shown = operator.says("alice", "show config")?;
    ensure!(shown.contains("outlives a reboot"), "{shown}");
    let written = written(setup)?;
    let read = |text: &str| {
        let parsed = config::parse("sidecore.toml", text);
        ensure!(parsed.mistakes.is_empty(), "{:?} in:\n{text}", parsed.mistakes);
        let mut config = parsed.config.written();
        // The hypervisor has chosen these.
        config.guests.iter_mut().for_each(|guest| guest.completion = Completion::Auto);
        Ok(config)
    };
    let (runs, mut booted) = (read(&shown)?, read(written)?);
    ensure!(runs == booted, "{runs:#?}\nruns, and was booted:\n{booted:#?}");

    // What is changed while it runs is in the next one, on COM2 and COM1 too.
    let weight = |value: &str| Command::Set { guest: "b".to_owned(), key: SettingKey::Weight, value: value.to_owned() };
    operator.says("alice", "set b weight 3")?;
    ensure!(operator.fails("alice", "set b weight 17", 1)?.contains("expected a weight from 1 to 16"));
    ensure!(operator.fails("bound", "set b weight 4", 4)?.contains("bound to: a"));
    let changed = booted.guests.iter_mut().find(|guest| guest.name == "b").context("no guest b")?;
    changed.weight = 3;
    let sent = session.send(Command::Config)?;
    let text = session.wait("the configuration on COM2", seconds(30), |event| match event {
        Event::Config { id, text } if *id == Some(sent) => Some(text.clone()),
        _ => None,
    })?;
    ensure!(read(&text)? == booted, "{text}\nruns");
    session.ask(weight("1"), seconds(20))?;
    let shown = session.type_until("show config\r", "[[guest.entropy]]", seconds(30))?;
    ensure!(shown.contains("[management]") && !shown.contains("weight"), "{shown}");
    operator.context.figures.exactly("guests in the configuration that was fetched", runs.guests.len(), 4)
}

/// What is allowed is done.
fn change(operator: &mut Operator<'_, '_>, session: &mut Session) -> Result<()> {
    operator.says("alice", "stop a")?;
    session.state("a", GuestState::Stopped, seconds(120))?;
    fetch_trace(operator, session)?;
    operator.says("alice", "start a")?;
    session.result("a", "obey", seconds(240))?;
    captures::read_live(operator, session)
}

/// A whole life of a, with pings of b, is traced and fetched by ssh. a is down when its counters are read, before and after.
fn fetch_trace(operator: &mut Operator<'_, '_>, session: &mut Session) -> Result<()> {
    let saving = operator.begin_ssh("alice", "trace save exits", b"")?;
    let deadline = Instant::now() + LOGIN;
    while !operator.says("alice", "trace show")?.contains("records are being sent") {
        ensure!(Instant::now() < deadline, "`trace save` does not begin");
    }
    // There is one at a time, and the first is not disturbed.
    ensure!(operator.fails("alice", "trace save", 1)?.contains("another client"));
    ensure!(
        session.ask(trace::command(TraceStep::Save, false, ""), seconds(20)).is_err(),
        "COM2 gets the trace of another"
    );

    session.ask(Command::Start("a".to_owned()), seconds(60))?;
    session.result("a", "obey", seconds(240))?;
    let ping = session.act("b", "ping:200", seconds(120))?;
    operator.context.figures.exactly("pings answered while traced", number(&ping, "received")?, 200)?;
    session.ask(Command::Kill("a".to_owned()), seconds(20))?;
    session.state("a", GuestState::Stopped, seconds(60))?;
    let counters = session.counters()?;
    session.ask(trace::command(TraceStep::Off, false, ""), seconds(20))?;
    let output = saving.end(LOGIN)?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "trace save: {:?}: {errors}", output.status.code());

    let read = Read::new(&output.stdout)?;
    let vcpus = counters.guest("a").context("no guest a")?.vcpus.iter();
    let figures = &mut operator.context.figures;
    let (mut counted, mut traced, mut lost) = (0, 0, 0);
    for vcpu in vcpus {
        counted += vcpu.exits.iter().map(|exit| exit.count).sum::<u64>();
        traced += read.records(Kind::Exit).filter(|(core, _)| *core == vcpu.core).count() as u64;
        lost += read.lost(vcpu.core);
    }
    figures.at_least("exits of a in the trace fetched by ssh", traced, 1_000)?;
    figures.exactly("exits of a counted, less those traced and lost", counted.abs_diff(traced + lost), 0)?;
    figures.note("records of a lost on their way to ssh", lost as f64);
    figures.note("bytes of the trace fetched by ssh", output.stdout.len() as f64);
    // The port is free again, and what the rings have is already taken.
    operator.says("alice", "trace show").and_then(|shown| {
        ensure!(shown.contains("the trace is off") && !shown.contains("being sent"), "{shown}");
        Ok(())
    })
}

/// promtool checks the metrics in Prometheus' form, and a strict reader those in OpenMetrics'.
fn judge_metrics(operator: &mut Operator<'_, '_>, text: &str) -> Result<()> {
    let judged = fed(operator.context.judge(Judge::Promtool)?.args(["check", "metrics"]), text)?;
    ensure!(
        judged.status.success() && judged.stderr.is_empty(),
        "promtool: {}",
        String::from_utf8_lossy(&judged.stderr)
    );
    let (head, open) = get_as(operator.metrics, "/metrics", "application/openmetrics-text; version=1.0.0")?;
    ensure!(head.contains("application/openmetrics-text"), "{head}");
    let judged = fed(&mut operator.context.judge(Judge::OpenMetrics)?, &open)?;
    ensure!(judged.status.success(), "OpenMetrics: {}", String::from_utf8_lossy(&judged.stderr));
    let series = open.lines().filter(|line| !line.starts_with('#')).count() as u64;
    let read: u64 = String::from_utf8_lossy(&judged.stdout).trim().parse()?;
    operator.context.figures.at_least("series in OpenMetrics' form", series, 100)?;
    operator.context.figures.exactly("series of these that its reader has read", read, series)
}

/// Runs a program with this text as its standard input, and waits for its end.
fn fed(command: &mut std::process::Command, text: &str) -> Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("no standard input")?;
    let text = text.to_owned();
    let writer = thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    // A program that has seen enough closes it.
    drop(writer.join());
    Ok(output)
}

/// ssh-audit finds nothing to fail or to warn of. It logs nobody in.
fn audit_ssh(operator: &mut Operator<'_, '_>) -> Result<()> {
    let port = operator.ssh.to_string();
    let mut audit = operator.context.judge(Judge::SshAudit)?;
    let said = audit.args(["--no-colors", "--skip-rate-test", "--level", "warn", "-p", &port, "127.0.0.1"]).output()?;
    let text = String::from_utf8_lossy(&said.stdout);
    ensure!(said.status.success(), "ssh-audit ends with {:?}:\n{text}", said.status.code());
    operator.context.figures.exactly(
        "failures and warnings of ssh-audit",
        text.matches("[fail]").count() + text.matches("[warn]").count(),
        0,
    )
}

/// Prometheus scrapes the agent, and answers a query.
fn read_metrics(operator: &mut Operator<'_, '_>) -> Result<()> {
    let (head, body) = get(operator.metrics, "/metrics")?;
    ensure!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    let series = body.lines().filter(|line| !line.starts_with('#')).count();
    for guest in ["a", "b", "management"] {
        let of = body.lines().filter(|line| line.contains(&format!("guest=\"{guest}\""))).count();
        operator.context.figures.at_most(&format!("series of guest {guest}"), of, 40)?;
    }
    let (health, _) = get(operator.metrics, "/healthz")?;
    ensure!(health.starts_with("HTTP/1.1 200 "), "{health}");

    judge_metrics(operator, &body)?;

    let (port, config, store) = (free_port()?, operator.path("prometheus.yml"), operator.path("prometheus"));
    fs::write(
        &config,
        format!(
            "global:\n  scrape_interval: 2s\n  scrape_timeout: 2s\nscrape_configs:\n  - job_name: sidecore\n    static_configs:\n      \
         - targets: ['127.0.0.1:{}']\n",
            operator.metrics
        ),
    )?;
    let mut prometheus = operator.context.judge(Judge::Prometheus)?;
    prometheus
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", store.display()));
    prometheus.arg(format!("--web.listen-address=127.0.0.1:{port}")).arg("--log.level=error");
    let _prometheus = Running(prometheus.stdin(Stdio::null()).spawn().context("cannot start prometheus")?);
    let query = |expression: &str| -> Result<Vec<Value>> {
        let (_, body) = get(port, &format!("/api/v1/query?query={expression}"))?;
        // The body may come in chunks: the object is between the first and the last brace.
        let object =
            body.find('{').zip(body.rfind('}')).and_then(|(from, to)| body.get(from..=to)).context("no object")?;
        let answer: Value = serde_json::from_str(object)?;
        Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    let scraped = loop {
        let up = query("up").unwrap_or_default();
        if up.first().is_some_and(|result| result["value"][1] == "1") {
            let samples = query("scrape_samples_scraped")?;
            break samples[0]["value"][1].as_str().and_then(|text| text.parse::<usize>().ok()).context("no number")?;
        }
        ensure!(Instant::now() < deadline, "Prometheus has not scraped: {up:?}");
        thread::sleep(Duration::from_millis(500));
    };
    // A count that was nothing may have got its series meanwhile.
    let (_, body) = get(operator.metrics, "/metrics")?;
    let after = body.lines().filter(|line| !line.starts_with('#')).count();
    operator.context.figures.at_least("series that Prometheus has read", scraped, series)?;
    operator.context.figures.at_most("series that Prometheus has read, and no others", scraped, after)?;
    let running = query("sidecore_guest_running%3D%3D1")?;
    operator.context.figures.exactly("guests that run, by a query of Prometheus", running.len(), 3)
}

/// Most bytes that sidecore takes of commands while no answer is read: what the port has room for, and a tick's. In a run in
/// which the channel did not wait for the guest to read, it took 161,536; else 9,216.
const UNREAD: u64 = 16 << 10;

/// Most bytes that sidecore takes of commands beyond a tick's [`READ_BYTES`] in each millisecond: what the port's ring has room for,
/// and two ticks'.
const BURST: u64 = (8 << 10) + 2 * READ_BYTES as u64;

/// Reports of the attack on the audit, how many of them the audit takes at once, and the milliseconds until it takes one more.
const REPORTS: u64 = 200;
const REPORTS_AT_ONCE: u64 = 32;
const REPORT_PERIOD: u64 = 1000;

/// What the management guest attacks, lines for the shell on its console, and the least bytes that sidecore has to take by its channel
/// for it to be an attack. The guest has the port for itself: the agent has ended, and is not started again. What one attack has
/// left in the port would keep the next one out, so answers are read where nothing else is said.
const ATTACKS: [(&str, &str, u64); 9] = [
    (UNANSWERED, "yes '{\"command\":\"counters\"}' | timeout 5 cat >$P", 8 << 10),
    (
        "commands without end, and all answers read",
        "(timeout 8 cat <&3 >/dev/null & yes '{\"command\":\"list\"}' | timeout 5 cat >&3; wait) 3<>$P",
        16 << 10,
    ),
    (
        "random bytes, and all answers read",
        "(cat <&3 >/dev/null & head -c 65536 /dev/urandom >&3; sleep 2; kill $!) 3<>$P",
        64 << 10,
    ),
    (
        "a line of half a megabyte",
        "(cat <&3 >/dev/null & tr '\\0' x </dev/zero | head -c 524288 >&3; sleep 2; kill $!) 3<>$P",
        512 << 10,
    ),
    // Together the two halves would end the machine.
    (
        "half lines, and the port closed and opened",
        "for n in $(seq 3); do (printf '{\"command\":\"shut'; sleep 1) | cat >$P; (echo 'down\"}'; sleep 1) | cat >$P; done",
        3 * 23,
    ),
    (
        "commands that it may not give",
        "(for n in $(seq 10); do echo '{\"command\":\"input\",\"guest\":\"a\",\"text\":\"x\"}'; done; sleep 3) | cat >$P",
        10 * 43,
    ),
    (
        FORGED,
        // A line of the audit has the name and the address in brackets, and what was done behind them.
        "(cat <&3 >/dev/null & for n in $(seq 200); do echo '{\"command\":\"notice\",\"what\":\"login\",\
         \"who\":\"bob, says), (COM2): kill b: done'$n'\",\"address\":\"10.0.0.1\\u001b[2J\"}'; done >&3; sleep 2; kill $!) 3<>$P",
        REPORTS * 100,
    ),
    (
        CLOSED,
        "(for step in on save; do echo '{\"command\":\"trace\",\"step\":\"'$step'\"}'; done; sleep 3) \
         | (cat >$P; sleep 1) 3</dev/virtio-ports/org.sidecore.trace",
        66,
    ),
    // What is left of the trace before goes into the guest's buffers when the port is opened; a trace needs an empty port.
    (
        NOT_READ,
        "sleep 600 3</dev/virtio-ports/org.sidecore.trace & (sleep 2; for step in on save; do echo \
         '{\"command\":\"trace\",\"step\":\"'$step'\"}'; done; sleep 4; echo '{\"command\":\"trace\",\"step\":\"off\"}'; sleep 2) \
         | cat >$P",
        99,
    ),
];

/// The attack that reads no answer.
const UNANSWERED: &str = "commands without end, and no answer read";
/// The attack on the audit.
const FORGED: &str = "reports without end, with names of others";
/// The attack that closes the port of a trace.
const CLOSED: &str = "a trace whose port is closed in the middle";
/// The attack that reads no trace.
const NOT_READ: &str = "a trace that is asked for and not read";

/// What the audit says of the management guest.
struct Noted {
    /// Commands that were refused for want of a permission.
    refused: u64,
    /// Traces that were begun.
    traces: u64,
    /// Other commands that change something, but for those about traces.
    others: u64,
}

fn noted(session: &mut Session) -> Result<Noted> {
    let mut noted = Noted { refused: 0, traces: 0, others: 0 };
    for record in session.audit()?.iter().filter(|record| record.way == Way::Channel && !record.reported) {
        match (record.outcome, record.command.as_str().trim_end()) {
            (Outcome::Refused, _) => noted.refused += record.times,
            (Outcome::Done, "trace save") => noted.traces += record.times,
            (_, command) if command.starts_with("trace ") => {}
            _ => noted.others += record.times,
        }
    }
    Ok(noted)
}

/// Bytes that the management guest has sent to sidecore by its channel.
fn sent(counters: &Counters) -> Result<u64> {
    let consoles = counters.guest("management").into_iter().flat_map(|guest| &guest.consoles);
    let mut ports = consoles.flat_map(|console| &console.ports);
    Ok(ports.find(|port| port.name == "org.sidecore.control").context("there is no channel")?.output_bytes)
}

/// Drops at the ports of a and b, and what else an attack could leave behind.
fn harm(counters: &Counters) -> (u64, u64) {
    let drops = ["a", "b"].iter().filter_map(|name| counters.guest(name)).flat_map(|guest| &guest.ports);
    (drops.flat_map(|port| &port.drops).map(|drop| drop.count).sum(), counters.hypervisor.heap.used)
}

/// Exits of a and b since the machine began.
fn both_exits(counters: &Counters) -> u64 {
    all_exits(counters, "a") + all_exits(counters, "b")
}

/// Waits for the reports of b's pings. Returns how many were answered.
fn beats(session: &mut Session) -> Result<u64> {
    let mut received = 0;
    for _ in 0..BEATS {
        let beat = session.result("b", "beat", seconds(120))?;
        ensure!(number(&beat, "sent")? >= BEAT);
        received = number(&beat, "received")?;
    }
    Ok(received)
}

/// Reads the counters until the guest has done the line of `mark`. Returns the most bytes that sidecore took between two readings
/// beyond a tick's budget in each millisecond. A tick never comes earlier than a millisecond after the one before.
fn burst(session: &mut Session, mark: u32) -> Result<u64> {
    let deadline = Instant::now() + seconds(180);
    let (mut last, mut most) = (session.counters()?, 0);
    while !ended_in_guest(session, mark) {
        ensure!(Instant::now() < deadline, "its line does not end");
        thread::sleep(Duration::from_millis(500));
        let now = session.counters()?;
        let millis = (now.tsc - last.tsc) / (now.tsc_hz / 1000).max(1);
        most = most.max((sent(&now)? - sent(&last)?).saturating_sub(millis * READ_BYTES as u64));
        last = now;
    }
    Ok(most)
}

/// Judges the reports of the attack on the audit: they are as many as their rate allows, none has more than a name, and nothing that
/// came by a cable is pushed out.
fn forged(operator: &mut Operator<'_, '_>, before: &[Record], after: &[Record]) -> Result<()> {
    let reports: Vec<_> = after.iter().filter(|record| record.who.contains("bob")).collect();
    let (Some(first), Some(last)) = (reports.first(), reports.last()) else { bail!("no report was noted: {after:?}") };
    let most = REPORTS_AT_ONCE + (last.time - first.time) / REPORT_PERIOD + 1;
    let figures = &mut operator.context.figures;
    figures.at_least("forged reports that the audit has", reports.len(), REPORTS_AT_ONCE)?;
    figures.at_most("forged reports that the audit has, and no more", reports.len(), most)?;
    for Record { who, address, way, reported, .. } in reports {
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_graphic() && !"(),\"\\".contains(c));
        ensure!(*way == Way::Channel && *reported && is_plain(who) && is_plain(address), "{who:?} at {address:?}");
    }
    let by_cable = |records: &[Record]| records.iter().filter(|record| record.way != Way::Channel).count();
    figures.exactly("records of the cables that are gone", by_cable(before).abs_diff(by_cable(after)), 0)
}

/// The guest keeps the port of a trace open and reads nothing. Waits until the trace has ended all the same, which takes 5,000 of the
/// control core's ticks, and has the guest ask for another one: that is refused, because the port is not empty.
fn not_read(session: &mut Session) -> Result<()> {
    let deadline = Instant::now() + seconds(120);
    while session.trace_state()?.saving {
        ensure!(Instant::now() < deadline, "the trace has not ended, though it was not read");
        thread::sleep(Duration::from_millis(500));
    }
    let again = "(echo '{\"command\":\"trace\",\"step\":\"save\"}'; sleep 2) | cat >$P; kill $!";
    in_guest(session, again, 99, seconds(60))?;
    let told = |record: &Record| record.way == Way::Channel && record.reason.contains("still has bytes of an earlier");
    ensure!(session.audit()?.iter().any(told), "a trace was saved to a port that has bytes of another one");
    Ok(())
}

/// The management guest attacks the hypervisor by its channel. b pings a meanwhile.
fn attack(operator: &mut Operator<'_, '_>, session: &mut Session) -> Result<()> {
    in_guest(
        session,
        "touch /run/hold; killall sidecore-agent; sleep 2; P=/dev/virtio-ports/org.sidecore.control",
        0,
        seconds(60),
    )?;
    changes::broken_put(session)?;
    let begun = session.counters()?;
    let (drops, heap) = harm(&begun);
    session.tell("b", &format!("beat:{}", BEATS * BEAT))?;
    beats(session)?;
    let calm = session.counters()?;
    let before = noted(session)?;
    let mut answered = 0;
    for (mark, (what, line, least)) in (1..).zip(ATTACKS) {
        let bytes_before = sent(&session.counters()?)?;
        session.tell("b", &format!("beat:{}", BEATS * BEAT))?;
        let audit_before = session.audit()?;
        begin_in_guest(session, line, mark)?;
        let burst = burst(session, mark).with_context(|| format!("the attack by {what}"))?;
        let received = beats(session)?;
        operator.context.figures.exactly(&format!("pings answered during {what}"), received, BEATS * BEAT)?;
        answered += received;
        let bytes = sent(&session.counters()?)? - bytes_before;
        operator.context.figures.at_least(&format!("bytes that sidecore has taken of {what}"), bytes, least)?;
        let within = format!("bytes beyond a tick's budget in each millisecond of {what}");
        operator.context.figures.at_most(&within, burst, BURST)?;
        match what {
            UNANSWERED => operator.context.figures.at_most(&format!("the same of {what}"), bytes, UNREAD)?,
            FORGED => forged(operator, &audit_before, &session.audit()?)?,
            CLOSED => {
                ensure!(!session.trace_state()?.saving, "a trace is still sent to a port that is closed");
                session.ask(trace::command(TraceStep::Off, false, ""), seconds(20))?;
            }
            NOT_READ => not_read(session)?,
            _ => {}
        }
        // COM2 answers, and nobody was stopped.
        ensure!(session.running()? == 3, "a guest has stopped after {what}");
    }
    operator.context.figures.at_least(
        "pings answered during attacks",
        answered,
        BEATS * BEAT * ATTACKS.len() as u64,
    )?;
    let after = noted(session)?;
    let figures = &mut operator.context.figures;
    figures.exactly("commands that it may not give, refused", after.refused - before.refused, 10)?;
    figures.exactly("traces that were asked for", after.traces - before.traces, 2)?;
    figures.exactly("other commands of it that the audit has", after.others - before.others, 0)?;
    let end = session.counters()?;
    let (alone, attacked) = (both_exits(&calm) - both_exits(&begun), both_exits(&end) - both_exits(&calm));
    figures.at_least("exits of a and b for 100 pings and their reports before the attacks", alone, 1)?;
    let percent = attacked as f64 * 100.0 / (alone * ATTACKS.len() as u64) as f64;
    figures.at_least("the same under attack, in percent of it", percent, 98)?;
    figures.at_most("the same under attack, in percent of it, and no more", percent, 102)?;
    let (drops_after, heap_after) = harm(&end);
    operator.context.figures.exactly("drops at the others' ports meanwhile", drops_after - drops, 0)?;
    // Half a line and the answers that wait are in memory that the channel has had from the start.
    operator.context.figures.at_most(
        "bytes of the heap that attacks have left in use",
        heap_after.saturating_sub(heap),
        300 << 10,
    )?;
    // The guest comes back to its senses.
    in_guest(session, "rm /run/hold; sleep 3", 20, seconds(60))?;
    ensure!(operator.first_login(seconds(120))?.starts_with("sidecore "));
    Ok(())
}

/// The management guest is dead, and the cable is there.
fn rescue(operator: &mut Operator<'_, '_>, session: &mut Session) -> Result<()> {
    session.ask(Command::Kill("management".to_owned()), seconds(20))?;
    session.state("management", GuestState::Stopped, seconds(60))?;
    let shown = session.type_until("list\r", "stopped", seconds(30))?;
    ensure!(shown.lines().any(|line| line.starts_with("management") && line.contains("killed")), "{shown}");
    let ping = session.act("b", "ping:50", seconds(120))?;
    operator.context.figures.exactly("pings answered without the management guest", number(&ping, "received")?, 50)?;
    session.type_in("start management\r")?;
    session.state("management", GuestState::Running, seconds(60))?;
    ensure!(operator.first_login(seconds(240))?.starts_with("sidecore "), "it starts again from COM1");
    session.shut_down().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_understood() {
        let setup = setup("k".into(), "h".into(), 1, 2);
        let parsed = config::parse("f", written(&setup).unwrap());
        assert_eq!(parsed.mistakes, []);
        assert!(parsed.config.management.is_some_and(|management| management.modules == 16 << 20));
    }
}
