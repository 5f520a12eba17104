//! The trace: what cores write of their exits and visits is what the hypervisor counts, and what is lost is counted too.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::rc::Rc;

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use control::{Command, Counters, Event, GuestState, Latency, OCCUPANCY, StopReason, TraceStep};
use net::counters::Drops;
use sidecore_trace::export::{self, pcapng};
use sidecore_trace::model::{Damage, Trace};
use trace::capture::Way;
use trace::record::BUSY;
use trace::stream::{Block, Chunk, Header, Table, blocks};
use trace::{Kind, Record};

use crate::boot::{Boot, alone};
use crate::counts::{disk, net};
use crate::guests::{Guest, address, server, with_entries};
use crate::launch::Judge;
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let whole = "two guests that ping, exits and visits traced from the start and sent on COM2: by guest and reason, records and \
                 their cycles equal the counters exactly; the engine's visits are those of the counters; drops by guest and \
                 cause and states of guests are all there; histograms have the counts, sums and percentiles of the records, those of queues the requests of the visits; each frame \
                 and each request of a disk has its steps; captured frames are the counters', and tshark reads as many pings as were sent; Perfetto's schema \
                 decodes the export";
    let losses = "rings of 127 records, which a guest's boot overruns: records and losses are what the counters have, whether the \
                  ring keeps the first or the last records";
    vec![
        alone(Scenario::new("trace", whole, QEMU), exact),
        alone(Scenario::new("trace-losses", losses, QEMU).taking_turns(), lossy),
    ]
}

/// A command `trace`.
pub fn command(step: TraceStep, stop: bool, classes: &str) -> Command {
    Command::Trace { step, stop, classes: classes.to_owned() }
}

/// The bytes of the trace that have arrived, and whether its end has. The states of guests that COM2 has told meanwhile.
#[derive(Default)]
pub struct Arrived {
    bytes: Vec<u8>,
    ended: bool,
    bad: u64,
    states: States,
}

/// States of guests in the words of COM2: guest, state, reason.
type States = Vec<(String, GuestState, Option<StopReason>)>;

/// Collects the trace that arrives from now on.
pub fn collect(session: &mut Session) -> Rc<RefCell<Arrived>> {
    let arrived = Rc::new(RefCell::new(Arrived::default()));
    let mine = arrived.clone();
    session.observe(move |event| match event {
        Event::Trace { data, end } => {
            let mut arrived = mine.borrow_mut();
            match STANDARD.decode(data) {
                Ok(bytes) => arrived.bytes.extend(bytes),
                Err(_) => arrived.bad += 1,
            }
            arrived.ended |= end;
        }
        Event::Guest { guest, state, reason, .. } => mine.borrow_mut().states.push((guest.clone(), *state, *reason)),
        _ => {}
    });
    arrived
}

/// Waits for the end of the trace. Returns its bytes.
pub fn ended(session: &mut Session, arrived: &RefCell<Arrived>) -> Result<Vec<u8>> {
    if !arrived.borrow().ended {
        session.wait("the end of the trace", seconds(120), |event| {
            matches!(event, Event::Trace { end: true, .. }).then_some(())
        })?;
    }
    let mut arrived = arrived.borrow_mut();
    ensure!(arrived.bad == 0, "{} pieces of the trace are not base64", arrived.bad);
    Ok(std::mem::take(&mut arrived.bytes))
}

/// Fetches a trace that is off over COM2. `step`: with RIPs or without.
pub fn saved(session: &mut Session, step: TraceStep) -> Result<Trace> {
    let arrived = collect(session);
    session.ask(command(step, false, ""), seconds(20))?;
    sidecore_trace::read::bytes_of(&ended(session, &arrived)?).context("no trace")
}

/// Stops a guest at once, and waits until it is down.
pub fn kill(session: &mut Session, guest: &str) -> Result<()> {
    session.ask(Command::Kill(guest.to_owned()), seconds(20))?;
    session.state(guest, GuestState::Stopped, seconds(60)).map(drop)
}

/// A trace that was read.
pub struct Read<'a> {
    headers: Vec<Header<'a>>,
    chunks: Vec<Chunk<'a>>,
}

impl<'a> Read<'a> {
    /// Reads it. Every block must be good, and no record may be missing without being counted.
    pub fn new(bytes: &'a [u8]) -> Result<Self> {
        let mut read = Self { headers: Vec::new(), chunks: Vec::new() };
        for block in blocks(bytes) {
            match block {
                Ok(Block::Header(header)) => read.headers.push(header),
                Ok(Block::Chunk(chunk)) => read.chunks.push(chunk),
                Ok(Block::Captures(_)) => bail!("captures, without a filter"),
                Ok(Block::Kernel(_) | Block::Scope(_)) => {}
                Ok(Block::Unknown { what, .. }) => bail!("an unknown block {what}"),
                Err(damaged) => bail!("{damaged} bytes of the trace are no block"),
            }
        }
        // The chunks of a core follow each other without a gap, but for what was lost.
        let mut next = BTreeMap::new();
        for chunk in &read.chunks {
            // What was sent before is in no chunk.
            let next = next.entry(chunk.core).or_insert(chunk.first);
            ensure!(chunk.first >= *next, "a chunk of core {} goes back", chunk.core);
            ensure!(chunk.first - *next <= chunk.lost, "core {}: a gap that is not counted", chunk.core);
            *next = chunk.first + chunk.count() as u64;
        }
        Ok(read)
    }

    /// The name of a number.
    pub fn name(&self, table: Table, number: u32) -> Result<&'a str> {
        let name = self.headers.iter().find_map(|header| header.name(table, number));
        Ok(name.with_context(|| format!("no name for {number} of {table:?}"))?.name)
    }

    /// Records of a core that were lost.
    pub fn lost(&self, core: u64) -> u64 {
        self.chunks.iter().filter(|chunk| u64::from(chunk.core) == core).map(|chunk| chunk.lost).sum()
    }

    /// Records of a kind, each with its core.
    pub fn records(&self, kind: Kind) -> impl Iterator<Item = (u64, Record)> {
        let all = self.chunks.iter().flat_map(|chunk| chunk.records().map(|record| (u64::from(chunk.core), record)));
        all.filter(move |(_, record)| record.kind == kind as u8)
    }
}

/// Exits and their cycles by guest, core and reason.
type Exits = BTreeMap<(String, u64, String), (u64, u64)>;

fn counted(counters: &Counters) -> Exits {
    let guests = counters.guests.iter();
    let vcpus = guests.flat_map(|guest| guest.vcpus.iter().map(|vcpu| (guest.name.clone(), vcpu)));
    vcpus
        .flat_map(|(guest, vcpu)| {
            let exits = vcpu.exits.iter();
            exits.map(move |exit| ((guest.clone(), vcpu.core, exit.reason.to_string()), (exit.count, exit.cycles)))
        })
        .collect()
}

fn traced(read: &Read<'_>) -> Result<Exits> {
    let mut exits = Exits::new();
    for (core, record) in read.records(Kind::Exit) {
        let guest = read.name(Table::Guest, record.guest.into())?.to_owned();
        let reason = read.name(Table::Reason, record.code.into())?.to_owned();
        let (count, cycles) = exits.entry((guest, core, reason)).or_default();
        *count += 1;
        *cycles += u64::from(record.span);
    }
    Ok(exits)
}

fn exact(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    // The interrupts of a are injected; b owns its local APIC.
    let a = Guest::new(1).peer(2).completion("inject").disk(1, "size = \"1M\"\nserial = \"small\"\n").then("obey");
    let guests = [a, Guest::new(2).peer(1).completion("eli").then("obey")];
    // The rings hold a whole boot, however late COM2 takes the records.
    let entry = "[trace]\nmemory = \"8M\"\non = [\"exits\", \"entries\", \"interrupts\", \"turns\", \"visits\", \"life\", \"drops\", \
                 \"frames\", \"disks\", \"histograms\"]\n";
    let mut setup = with_entries(server("trace", &guests), entry);
    setup.memory_mib += 4 * 9;
    setup.typed = true;
    let mut session = context.boot(&setup)?;
    let arrived = collect(&mut session);
    session.ask(command(TraceStep::Save, false, ""), seconds(20))?;
    session.all_obey(["a", "b"])?;
    // A guest's kernel may send a frame of its own while the captures begin.
    let before = session.counters()?;
    for guest in ["a", "b"] {
        session.ask(Command::Capture { guest: guest.to_owned(), filter: String::new() }, seconds(20))?;
    }
    let begun = session.counters()?;
    session.act("a", "ping:200", seconds(120))?;
    session.act("a", "disk-fill:small", seconds(120))?;
    let pinged = net(&session.counters()?, "a")?;
    kill(&mut session, "b")?;
    // Nobody has b's address any more.
    session.act("a", &format!("pings:20:{}:1", address(2)), seconds(120))?;
    kill(&mut session, "a")?;
    session.ask(command(TraceStep::Off, false, ""), seconds(20))?;
    let bytes = ended(&mut session, &arrived)?;
    let counters = session.counters()?;
    let read = Read::new(&bytes)?;

    let (wanted, found) = (counted(&counters), traced(&read)?);
    for (what, count) in &wanted {
        ensure!(found.get(what) == Some(count), "{what:?}: {count:?} counted, {:?} traced", found.get(what));
    }
    let figures = &mut context.figures;
    figures.exactly("rows of guest, core and reason that differ", u64::from(found != wanted), 0)?;
    figures.exactly("records lost", read.chunks.iter().map(|chunk| chunk.lost).sum::<u64>(), 0)?;
    figures.at_least("exits traced", found.values().map(|(count, _)| count).sum::<u64>(), 5_000)?;
    figures.at_least("reasons seen", found.len() as u64, 10)?;
    figures.note("bytes of the trace", bytes.len() as f64);

    // Each exit but the last of a vCPU is followed by an entry, and each entry by an exit.
    let of_core = |kind, core| read.records(kind).filter(|(at, _)| *at == core).count() as u64;
    for vcpu in counters.guests.iter().flat_map(|guest| &guest.vcpus) {
        let exits: u64 = vcpu.exits.iter().map(|exit| exit.count).sum();
        let entries = of_core(Kind::Entry, vcpu.core);
        figures.at_least(&format!("entries on core {}", vcpu.core), entries, exits)?;
    }
    let injections = read.records(Kind::Injection).count() as u64;
    figures.at_least("injections traced", injections, 200)?;
    let to = |kind, guest| read.records(kind).filter(|(_, record)| record.guest == guest).count() as u64;
    figures.at_least("kicks of a", to(Kind::Kick, 0), 200)?;
    figures.at_least("interrupts sent to b", to(Kind::Delivery, 1), 200)?;

    // The pings went through the engine: four frames each, and each in a visit.
    let requests: u64 = read.records(Kind::Visit).map(|(_, record)| record.a & 0xffff_ffff).sum();
    figures.at_least("requests in the visits traced", requests, pinged.tx_packets + 200)?;
    let turns: u64 = read.records(Kind::Turn).map(|(_, record)| record.a).sum();
    figures.at_least("requests in the turns traced", turns, requests)?;
    let strange = read.records(Kind::Visit).filter(|(_, record)| record.guest > 1 || record.tsc == 0).count();
    figures.exactly("visits of no guest", strange as u64, 0)?;
    let back = read.chunks.iter().map(|chunk| {
        let exits = chunk.records().filter(|record| record.kind == Kind::Entry as u8);
        let stamps: Vec<u64> = exits.map(|record| record.tsc).collect();
        u64::from(!stamps.is_sorted())
    });
    figures.exactly("chunks in which the time goes back", back.sum::<u64>(), 0)?;
    rare(context, &read, &counters, &arrived.borrow().states)?;
    steps(context, &read, &counters)?;
    disks(context, &read, &counters)?;
    captured(context, &mut session, [&before, &begun], &counters)?;
    perfetto(context, &bytes, &counters)?;
    histograms(context, &mut session, &read, &counters)?;
    session.shut_down().map(drop)
}

/// Checks that each frame of the guests has a record of each step.
fn steps(context: &mut Context<'_>, read: &Read<'_>, counters: &Counters) -> Result<()> {
    let of = |kind, guest| read.records(kind).filter(|(_, record)| record.guest == guest).count() as u64;
    for (guest, name) in (0..).zip(["a", "b"]) {
        let net = net(counters, name)?;
        let figures = &mut context.figures;
        figures.exactly(
            &format!("frames of {name} taken, less those sent"),
            of(Kind::FrameIn, guest).abs_diff(net.tx_packets),
            0,
        )?;
        figures.exactly(
            &format!("frames given to {name}, less those received"),
            of(Kind::FrameOut, guest).abs_diff(net.rx_packets),
            0,
        )?;
        // Every frame that is not refused is switched.
        let refused: u64 = net
            .drops
            .iter()
            .filter(|(cause, _)| cause.starts_with("tx_") && *cause != "tx_no_destination")
            .map(|(_, count)| count)
            .sum();
        let switched = of(Kind::FrameSwitched, guest) + refused;
        figures.exactly(
            &format!("frames of {name} switched or refused, less those sent"),
            switched.abs_diff(net.tx_packets),
            0,
        )?;
    }
    context.figures.at_least("frames given", read.records(Kind::FrameOut).count() as u64, 400)
}

/// Checks that each request of a's disk has a record when it was submitted and when it ended, and that they are as many as the
/// disk's counters say.
fn disks(context: &mut Context<'_>, read: &Read<'_>, counters: &Counters) -> Result<()> {
    // The type of each request that has not ended.
    let mut waiting = BTreeMap::new();
    let (mut bytes, mut strange) = (0, 0_u64);
    let mut ended = BTreeMap::<u8, u64>::new();
    let steps = [Kind::DiskSubmitted as u8, Kind::DiskCompleted as u8];
    let records = read.chunks.iter().flat_map(Chunk::records).filter(|record| steps.contains(&record.kind));
    for record in records {
        let request = (record.unit, record.a);
        if record.kind == Kind::DiskSubmitted as u8 {
            strange += u64::from(record.guest != 0 || waiting.insert(request, record.code).is_some());
            continue;
        }
        let Some(kind) = waiting.remove(&request).filter(|_| record.code == 0) else {
            strange += 1;
            continue;
        };
        *ended.entry(kind).or_default() += 1;
        // Reads and writes.
        bytes += if kind <= 1 { record.b } else { 0 };
    }
    let disk = disk(counters, "a", "small")?;
    let figures = &mut context.figures;
    figures.exactly("requests of the disk out of order, of another guest or failed", strange, 0)?;
    figures.exactly("requests of the disk without an end", waiting.len() as u64, 0)?;
    for (kind, name) in [(0, "reads"), (1, "writes"), (4, "flushes")] {
        let count = ended.get(&kind).copied().unwrap_or_default();
        figures.exactly(&format!("{name} traced, less those counted"), count.abs_diff(disk.count(name)), 0)?;
    }
    let counted = disk.count("read_bytes") + disk.count("written_bytes");
    figures.exactly("bytes of reads and writes traced, less those counted", bytes.abs_diff(counted), 0)?;
    figures.at_least("bytes read and written", bytes, 2 << 20)
}

/// Has the captured frames sent, and checks them against the counters. tshark reads them too, exported as pcap-ng. The captures
/// began between the two counters of `begin`.
fn captured(context: &mut Context<'_>, session: &mut Session, begin: [&Counters; 2], after: &Counters) -> Result<()> {
    let arrived = collect(session);
    // The end of the trace has ended the captures. What they have is in the ring.
    session.ask(Command::Captures, seconds(20))?;
    let bytes = ended(session, &arrived)?;
    let trace = sidecore_trace::read::bytes_of(&bytes).context("no captured frames were sent")?;
    ensure!(trace.damage == Damage::default(), "{:?}", trace.damage);
    for (guest, name) in (0..).zip(["a", "b"]) {
        let frames = |way, dropped: bool| {
            let own = trace.captures.iter().filter(|capture| capture.frame.guest == guest && capture.frame.way == way);
            own.filter(|capture| capture.frame.dropped.is_some() == dropped).count() as u64
        };
        let found: [u64; 3] = [
            frames(Way::In, false) + frames(Way::In, true),
            frames(Way::Out, false),
            frames(Way::In, true) + frames(Way::Out, true),
        ];
        let counted = |counters| {
            let net = net(counters, name)?;
            anyhow::Ok([net.tx_packets, net.rx_packets, net.drops.values().sum::<u64>()])
        };
        let (before, begun, after) = (counted(begin[0])?, counted(begin[1])?, counted(after)?);
        for (of, what) in ["sent", "received", "dropped"].into_iter().enumerate() {
            let wanted = after[of] - begun[of]..=after[of] - before[of];
            ensure!(wanted.contains(&found[of]), "captured of {name}, {what}: {}; counted: {wanted:?}", found[of]);
        }
    }
    let figures = &mut context.figures;
    figures.exactly("captured frames lost", trace.captures_lost, 0)?;
    figures.at_least("frames captured", trace.captures.len() as u64, 800)?;
    let lengths = trace.captures.iter().map(|capture| (capture.frame.len, capture.frame.bytes().len()));
    let short = lengths.filter(|&(len, kept)| kept < 64.min(len as usize)).count();
    figures.exactly("frames of which less than 64 bytes are there", short as u64, 0)?;

    let file = std::env::temp_dir().join(format!("sidecore-{}.pcapng", std::process::id()));
    let read = File::create(&file).map_err(anyhow::Error::from).and_then(|mut out| pcapng::write(&trace, &mut out));
    let read = read.and_then(|()| {
        let fields = ["frame.interface_name", "icmp.type", "frame.comment", "icmp.ident"]
            .into_iter()
            .flat_map(|field| ["-e", field]);
        let mut tshark = context.judge(Judge::Tshark)?;
        tshark.arg("-r").arg(&file).args(["-Y", "icmp", "-T", "fields", "-E", "separator=/t"]).args(fields);
        tshark.output().context("cannot start tshark")
    });
    let _ = std::fs::remove_file(&file);
    let read = read?;
    let said = String::from_utf8_lossy(&read.stdout);
    ensure!(read.status.success(), "tshark: {}", String::from_utf8_lossy(&read.stderr));
    for (interface, kind, what) in [
        ("a net0", "8", "echo requests that tshark reads at a"),
        ("b net0", "8", "echo requests that tshark reads at b"),
        ("b net0", "0", "echo replies that tshark reads at b"),
        ("a net0", "0", "echo replies that tshark reads at a"),
    ] {
        // Each run of ping has an identifier. The longest one is what is asked for: others were sent to wait for the peer.
        let line = [interface, kind, "passed", ""].join("\t");
        let mut runs: BTreeMap<&str, u64> = BTreeMap::new();
        said.lines().filter_map(|found| found.strip_prefix(&line)).for_each(|run| *runs.entry(run).or_default() += 1);
        context.figures.exactly(what, runs.into_values().max().unwrap_or(0), 200)?;
    }
    Ok(())
}

/// Has Perfetto's published schema decode the export. There have to be as many slices of each reason as the counters have exits.
/// A host without pip is told that nobody has judged.
fn perfetto(context: &mut Context<'_>, bytes: &[u8], counters: &Counters) -> Result<()> {
    let pip = std::process::Command::new("python3").args(["-m", "pip", "--version"]).output();
    if !pip.is_ok_and(|pip| pip.status.success()) {
        context.figures.note("exports that Perfetto's schema has judged (python3 with pip is needed)", 0);
        return Ok(());
    }
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    for ((_, _, reason), (count, _)) in counted(counters) {
        *reasons.entry(reason).or_default() += count;
    }
    let trace = sidecore_trace::read::bytes_of(bytes).context("no trace")?;
    let place = std::env::temp_dir().join(format!("sidecore-export-{}", std::process::id()));
    export::perfetto::write(&trace, &mut BufWriter::new(File::create(&place)?))?;
    let mut judge = context.judge(Judge::Perfetto)?;
    judge.arg(&place);
    for (reason, count) in &reasons {
        judge.args(["--slices", &format!("{reason}={count}")]);
    }
    let said = judge.output().context("Python cannot be started")?;
    std::fs::remove_file(&place)?;
    ensure!(said.status.success(), "Perfetto's schema: {}", String::from_utf8_lossy(&said.stderr));
    context.figures.at_least("reasons with as many slices in Perfetto's format", reasons.len() as u64, 10)
}

/// Checks the histograms against the counters, and their percentiles against those of the records.
fn histograms(context: &mut Context<'_>, session: &mut Session, read: &Read<'_>, counters: &Counters) -> Result<()> {
    let latency = session.latency()?;
    ensure!(!latency.on, "the histograms are still on");
    let mut spans: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    for (_, record) in read.records(Kind::Exit) {
        let guest = read.name(Table::Guest, record.guest.into())?;
        let reason = read.name(Table::Reason, record.code.into())?;
        spans.entry((guest.to_owned(), reason.to_owned())).or_default().push(record.span.into());
    }
    for (_, record) in read.records(Kind::Turn).filter(|(_, record)| record.code == BUSY) {
        spans.entry(("engine".to_owned(), "busy-turn".to_owned())).or_default().push(record.span.into());
    }
    for (_, record) in read.records(Kind::Visit) {
        spans.entry(("engine".to_owned(), "visit".to_owned())).or_default().push(record.span.into());
    }
    // Of each guest there is one vCPU and one life.
    let mut wanted: BTreeMap<(String, String), (u64, u64)> =
        counted(counters).into_iter().map(|((guest, _, reason), figures)| ((guest, reason), figures)).collect();
    let (mut rows, mut percentiles) = (0, 0);
    for row in latency.rows.iter().filter(|row| row.queue.is_none()) {
        let key = (row.guest.clone().unwrap_or("engine".to_owned()), row.what.to_string());
        // No records of idle turns are written here, and none of the control core's ticks anywhere.
        let Some(spans) = spans.get_mut(&key) else {
            ensure!(["idle-turn", "tick"].contains(&&*row.what), "{row:?}: no such record");
            continue;
        };
        spans.sort_unstable();
        let count = spans.len() as u64;
        let same = match wanted.remove(&key) {
            Some(counted) => (row.count, row.sum) == counted,
            // The trace may be switched off between the histogram and the record.
            None => row.count.abs_diff(count) <= 1,
        };
        ensure!(same, "{row:?}: {count} records");
        if row.count != count {
            continue;
        }
        for (per_mille, found) in [(500, row.p50), (900, row.p90), (990, row.p99), (1000, row.max)] {
            let exact = spans[(spans.len() * per_mille).div_ceil(1000).max(1) - 1];
            let most = if per_mille == 1000 { exact } else { exact + exact / 8 };
            ensure!((exact..=most).contains(&found), "{row:?}: {per_mille} of 1,000 are not longer than {exact}");
            percentiles += 1;
        }
        rows += 1;
    }
    let figures = &mut context.figures;
    figures.exactly("exits counted that are in no histogram", wanted.len() as u64, 0)?;
    figures.at_least("histograms whose counts and sums are right", rows, 12)?;
    figures.at_least("percentiles that are those of the records", percentiles, 4 * 12)?;
    queues(context, &latency, read)?;
    let shown = session.type_until("show latency\r", "visit", seconds(60))?;
    ensure!(shown.contains("nothing is recorded now") && shown.contains("p99 us"), "show latency: {shown}");
    ensure!(shown.lines().all(|line| line.chars().count() <= 80), "show latency is too wide: {shown}");
    Ok(())
}

/// Checks what was measured of the guests' queues against the records of visits, and of what drivers have taken.
fn queues(context: &mut Context<'_>, latency: &Latency, read: &Read<'_>) -> Result<()> {
    // By guest, device and queue: visits that took requests, those requests, and ticks until the driver had taken some.
    let mut visits: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
    let mut taken: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    let name = |record: &Record| {
        let device = read.name(Table::Device, (record.a >> 32) as u32)?;
        let guest = read.name(Table::Guest, record.guest.into())?;
        anyhow::Ok((guest.to_owned(), format!("{device} queue {}", record.unit)))
    };
    for (_, record) in read.records(Kind::Visit).filter(|(_, record)| record.a & 0xffff_ffff != 0) {
        let (count, requests) = visits.entry(name(&record)?).or_default();
        *count += 1;
        *requests += record.a & 0xffff_ffff;
    }
    for (_, record) in read.records(Kind::Taken) {
        taken.entry(name(&record)?).or_default().push(record.b);
    }
    let (mut right, mut told) = (0, 0);
    for row in &latency.rows {
        let (Some(guest), Some(queue)) = (&row.guest, &row.queue) else { continue };
        let key = (guest.clone(), queue.clone());
        let visits = visits.get(&key).copied().unwrap_or_default();
        match &*row.what {
            // The trace may be switched off between the histogram and the record.
            OCCUPANCY => ensure!(row.count.abs_diff(visits.0) <= 1 && row.max >= 1, "{row:?}: {} visits", visits.0),
            // These back-ends complete all requests of a visit before the turn ends.
            "arrival" if queue == "net0 queue 1" || queue.starts_with("block0") => {
                ensure!(row.count.abs_diff(visits.1) <= 64, "{row:?}: {} requests", visits.1);
                right += 1;
            }
            "arrival" => ensure!(row.count <= visits.1, "{row:?}: {} requests", visits.1),
            "taken" => {
                let spans = taken.get_mut(&key).with_context(|| format!("{row:?}: no such record"))?;
                spans.sort_unstable();
                ensure!(row.count.abs_diff(spans.len() as u64) <= 1, "{row:?}: {} records", spans.len());
                ensure!(row.max >= spans[spans.len() - 1], "{row:?}: longer ones have records");
                told += row.count;
            }
            what => bail!("{what} of a queue"),
        }
    }
    context.figures.at_least("queues of guests whose requests were all measured", right, 3)?;
    context.figures.at_least("times that drivers were seen to have taken completions", told, 200)
}

/// Checks that the records of states are those that COM2 told, and the records of drops those that the ports have counted.
fn rare(context: &mut Context<'_>, read: &Read<'_>, counters: &Counters, told: &States) -> Result<()> {
    let mut states = Vec::new();
    for (core, record) in read.records(Kind::Life) {
        ensure!(core == 0, "core {core} has a record of a guest's state");
        let reason = match record.a {
            0 => None,
            reason => Some(read.name(Table::Stop, u32::try_from(reason)?)?),
        };
        states.push((
            read.name(Table::Guest, record.guest.into())?,
            read.name(Table::State, record.code.into())?,
            reason,
        ));
    }
    let told: Vec<_> = told
        .iter()
        .map(|(guest, state, reason)| (guest.as_str(), state.name(), reason.map(StopReason::name)))
        .collect();
    // What was told before COM2 was read is in the trace too.
    ensure!(states.ends_with(&told), "states traced: {states:?}; told: {told:?}");
    let figures = &mut context.figures;
    figures.at_least("states of guests told", told.len() as u64, 4)?;
    let killed = states.iter().filter(|state| **state == (state.0, "stopped", Some("killed")));
    figures.exactly("guests killed", killed.count() as u64, 2)?;
    figures.exactly(
        "guests that have started to run",
        states.iter().filter(|state| state.1 == "running").count() as u64,
        2,
    )?;

    let mut drops: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut lengths = Vec::new();
    for (_, record) in read.records(Kind::FrameDropped) {
        let what = (read.name(Table::Guest, record.guest.into())?, read.name(Table::Cause, record.code.into())?);
        *drops.entry(what).or_default() += 1;
        lengths.push(record.a & 0xffff_ffff);
    }
    let mut counted = BTreeMap::new();
    let causes = Drops::new();
    for name in ["a", "b"] {
        let net = net(counters, name)?;
        let rows = causes.iter().map(|(cause, _)| ((name, cause), net.dropped(cause)));
        counted.extend(rows.filter(|(_, frames)| *frames != 0));
    }
    ensure!(drops == counted, "drops traced: {drops:?}; counted: {counted:?}");
    figures.at_least("drops traced", drops.values().sum::<u64>(), 15)?;
    ensure!(lengths.iter().all(|&bytes| (14..=1518).contains(&bytes)), "lengths of dropped frames: {lengths:?}");
    Ok(())
}

fn lossy(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    const RING: u64 = 127;
    let entry = "[trace]\nmemory = \"4K\"\non = [\"exits\"]\n";
    let setup = with_entries(server("trace-losses", &[Guest::new(1).then("obey")]), entry);
    let mut session = context.boot(&setup)?;
    session.all_obey(["a"])?;
    kill(&mut session, "a")?;
    let (first, exits) = check_losses(context, &mut session, "the last", RING)?;
    context.figures.exactly(
        "number of the first of the last records, less that of its exit",
        first.abs_diff(exits - RING),
        0,
    )?;

    session.ask(command(TraceStep::On, true, "exits"), seconds(20))?;
    session.ask(Command::Start("a".into()), seconds(60))?;
    session.all_obey(["a"])?;
    kill(&mut session, "a")?;
    let (first, _) = check_losses(context, &mut session, "the first", RING)?;
    // The numbers go on after those of the life before.
    context.figures.exactly(
        "number of the first record, less the exits of the life before",
        first.abs_diff(exits),
        0,
    )?;
    session.shut_down().map(drop)
}

/// Checks a trace of which the ring holds `ring` records, and all others are lost. Returns the number of the first record, and
/// how many exits were counted.
fn check_losses(context: &mut Context<'_>, session: &mut Session, which: &str, ring: u64) -> Result<(u64, u64)> {
    let arrived = collect(session);
    session.ask(command(TraceStep::Off, false, ""), seconds(20))?;
    session.ask(command(TraceStep::Save, false, ""), seconds(20))?;
    let bytes = ended(session, &arrived)?;
    let read = Read::new(&bytes)?;
    let counters = session.counters()?;
    let vcpu = counters.guests.iter().flat_map(|guest| &guest.vcpus).next().context("no vCPU")?;
    let exits: u64 = vcpu.exits.iter().map(|exit| exit.count).sum();
    let (records, lost) = (read.records(Kind::Exit).count() as u64, read.lost(vcpu.core));
    let figures = &mut context.figures;
    figures.exactly(&format!("{which} records kept"), records, ring as f64)?;
    figures.exactly(
        &format!("{which} records and losses, less the exits counted"),
        (records + lost).abs_diff(exits),
        0,
    )?;
    let first = read.chunks.iter().find(|chunk| u64::from(chunk.core) == vcpu.core).context("no chunk")?.first;
    figures.at_least(&format!("{which}: records lost"), lost, 1_000)?;
    Ok((first, exits))
}
