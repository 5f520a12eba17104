//! Commands, events and tables. There is no list of allocations that may fail here: whatever allocates is tried.

use std::fmt::{self, Write};

use control::{
    Action, ApplyState, Audit, Block, Caller, CapturedPort, Channel, Command, Console, ConsolePort, Count, Counters,
    Durations, Engine, Entropy, Event, ExitCount, Guest, GuestState, GuestSummary, Heap, Hypervisor, Latency, Level,
    LineReader, ModuleSummary, NoMemory, Note, Notice, OUT_OF_MEMORY, Outcome, Permissions, PhysicalRange, Platform,
    Port, ReportEntry, ReportKind, Request, Sender, Sha256, Shell, StageCounters, StopReason, Store, TerminalFilter,
    Top, TraceState, TracedCore, Uplink, VcpuCounters, View, Virtualization, Watched, Way, table,
};
use lifecycle::{End, Refused, Report};
use proptest::prelude::*;

use super::{failing, for_each_allocation};

/// Takes text and keeps its length.
struct Sink(usize);

impl Write for Sink {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// Lines of COM2, good ones and others.
const LINES: [&str; 45] = [
    r#"{"command":"applied"}"#,
    r#"{"command":"forget","module":"web"}"#,
    r#"{"command":"follow","guest":"alpha","on":true}"#,
    r#"{"command":"capture","guest":"alpha","filter":"in,mac=52:54:00:00:00:01,vlan=7"}"#,
    r#"{"command":"capture","guest":"alpha","filter":"vlan=x"}"#,
    r#"{"command":"captures"}"#,
    r#"{"command":"identify","uplink":"up","seconds":3}"#,
    r#"{"command":"trace-eoi","guest":"alpha","value":"34"}"#,
    r#"{"command":"trace-eoi","guest":"alpha","value":"no"}"#,
    r#"{"command":"reboot"}"#,
    r#"{"command":"latency","id":5}"#,
    r#"{"command":"put","module":"web","bytes":7,"sha256":"ab"}"#,
    r#"{"command":"put","module":"web","bytes":"7","sha256":"ab"}"#,
    r#"{"command":"put-data","module":"web","at":0,"data":"YWJj"}"#,
    r#"{"command":"put-end","module":"web"}"#,
    r#"{"command":"modules"}"#,
    r#"{"command":"apply","module":"f","dry":true,"restart":true,"confirm":60}"#,
    r#"{"command":"confirm"}"#,
    r#"{"command":"applied","at":7}"#,
    r#"{"command":"list","id":1}"#,
    r#"{"command":"start","guest":"alpha","id":2}"#,
    r#"{"command":"stop","guest":"alpha"}"#,
    r#"{"command":"kill","guest":"alpha"}"#,
    r#"{"command":"restart","guest":"alpha"}"#,
    r#"{"command":"input","guest":"alpha","text":"root\r\n\u00e9\ud83d\ude00"}"#,
    r#"{"command":"input","guest":"alpha","port":"trace","text":"x"}"#,
    r#"{"command":"port","guest":"alpha","port":"trace","on":true}"#,
    r#"{"command":"counters","id":3}"#,
    r#"{"command":"audit"}"#,
    r#"{"command":"watch","on":true}"#,
    r#"{"command":"report"}"#,
    r#"{"command":"version"}"#,
    r#"{"command":"config"}"#,
    r#"{"command":"set","guest":"alpha","key":"weight","value":"3"}"#,
    r#"{"command":"set","guest":"alpha","key":"wait","value":"3"}"#,
    r#"{"command":"notice","what":"refused","line":"attach b","why":"another key's","who":"anna","address":"10.0.0.5"}"#,
    r#"{"command":"notice","what":"logn"}"#,
    r#"{"command":"shutdown"}"#,
    r#"{"command":"trace","step":"on","stop":true,"classes":"exits,visits"}"#,
    r#"{"command":"trace","step":"of"}"#,
    r#"{"command":"strat","id":18446744073709551615}"#,
    r#"{"command":"start","gest":"alpha"}"#,
    r#"{"command":"list","guest":"alpha"}"#,
    r#"{"command":3}"#,
    "nonsense",
];

fn request(line: &str) {
    let usual = Request::from_line(line);
    for_each_allocation(
        || Request::from_line(line),
        |result, there_was| match result {
            Err(refused) if !there_was => assert!(refused.error == OUT_OF_MEMORY || Err(refused) == usual, "{line}"),
            result => assert_eq!(result, usual, "{line}"),
        },
    );
}

#[test]
fn every_request_is_read_or_refused() {
    LINES.into_iter().for_each(request);
    for word in Command::request_words() {
        let with = format!("{{\"command\":\"{word}\"");
        assert!(
            LINES.iter().any(|line| line.starts_with(&with) && Request::from_line(line).is_ok()),
            "no line with {word} is tried"
        );
    }
}

/// Commands of the shell, good ones and others.
const WORDS: [&str; 41] = [
    "?",
    "capture a in vlan=7",
    "capture a vlan=x",
    "identify up",
    "trace eoi a 34",
    "trace-eoi a no",
    "help",
    "list",
    "start a",
    "stop a",
    "kill a",
    "restart a",
    "attach a",
    "attach --raw a",
    "show",
    "show exits",
    "show x",
    "show audit",
    "show config",
    "show modules",
    "show apply",
    "apply f 60 --dry-run",
    "apply f sixty",
    "forget web",
    "confirm",
    "set a restart always",
    "set a wait 3",
    "top",
    "watch on",
    "watch maybe",
    "watch",
    "trace on --stop exits,visits",
    "trace onn",
    "report",
    "version",
    "shutdown",
    "reboot",
    "strt a",
    "start",
    "list a",
    "stop a b",
];

#[test]
fn every_line_of_the_shell_is_carried_out_or_answered() {
    for word in Command::shell_words() {
        let is_it = |line: &&str| line.split(' ').next() == Some(word) && Command::from_words(line).is_ok();
        assert!(WORDS.iter().any(is_it), "no line with {word} is tried");
    }
    for words in WORDS {
        let usual = Command::from_words(words);
        let check = |result: Result<Command, control::Text>, there_was: bool| match result {
            Err(error) if !there_was => assert!(error == OUT_OF_MEMORY || Err(error) == usual, "{words}"),
            result => assert_eq!(result, usual, "{words}"),
        };
        for_each_allocation(|| Command::from_words(words), check);
        // The shell with its editor: a command that it cannot read for want of memory is answered.
        let line = format!("{words}\x1b[A\x7f\x15{words}\r");
        let typed = || {
            let (mut shell, mut out) = (Shell::new(), Sink(0));
            let actions = line.bytes().map(|byte| shell.feed(byte, &mut out).expect("the sink takes all"));
            actions.filter(|action| matches!(action, Action::Run(_))).count()
        };
        let commands = typed();
        for_each_allocation(typed, |count, there_was| assert!(count == commands || !there_was && count < commands));
    }
}

#[test]
fn the_shell_takes_keys_while_attached_without_memory() {
    let mut shell = Shell::new();
    shell.attach("a".into(), &mut Sink(0)).expect("the sink takes all");
    let (actions, failed) =
        failing(1, || [b'x', 3, control::LEAVE_KEY].map(|byte| shell.feed(byte, &mut Sink(0)).ok()));
    assert_eq!(actions, [Some(Action::ToGuest(b'x')), Some(Action::ToGuest(3)), Some(Action::Left)]);
    assert!(!failed, "nothing allocates");
}

#[test]
fn a_module_is_taken_without_memory() {
    let mut memory = [0; 64];
    // That of "abc".
    let sum = Sha256::parse("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad").expect("64 digits");
    let (there, _) = failing(1, || {
        let mut store = Store::new(&mut memory);
        let unused = |_: &str| false;
        assert!(store.begin(0, "web", 65, sum, unused).is_err_and(|why| why == OUT_OF_MEMORY));
        let put = store.begin(0, "web", 3, sum, unused).and_then(|()| store.add(0, "web", 0, b"abc"));
        put.and_then(|()| store.end("web", unused)).is_ok() && store.get("web") == Some(b"abc")
    });
    assert!(there);
}

#[test]
fn a_line_of_com2_comes_whole_or_is_reported() {
    for line in [&b"short\n"[..], b"no \xff text\n", &[&[b'x'; control::MAX_LINE][..], b"\n"].concat()] {
        let read = || {
            let mut reader = LineReader::new();
            line.iter().filter_map(|byte| reader.push(*byte)).next()
        };
        for_each_allocation(read, |found, there_was| match found {
            Some(Ok(text)) => assert!(there_was && text.trim_end() == String::from_utf8_lossy(line).trim_end()),
            Some(Err(error)) => assert!(!there_was && error == control::LineError::NoMemory),
            None => panic!("the end of the line was seen"),
        });
    }
}

fn counters() -> Counters {
    let count = |kind: &'static str| Count { kind: kind.into(), count: 7 };
    let stage = StageCounters { stage: "deny".into(), direction: "tx".into(), frames: 1, bytes: 2, dropped: 3 };
    let guest = |name: &str| Guest {
        name: name.into(),
        state: GuestState::Running,
        starts: 1,
        memory: 1 << 30,
        kept: 1 << 20,
        vcpus: (0..8)
            .map(|core| VcpuCounters {
                core,
                exits: ["cpuid", "hlt", "io-uart"]
                    .map(|reason| ExitCount { reason: reason.into(), count: core, cycles: 9 })
                    .into(),
            })
            .collect(),
        console_dropped: 1,
        lines_dropped: 1,
        input_dropped: 1,
        shadow_idt: [count("shadowed")].into(),
        refusals: [count("msr")].into(),
        ports: [Port {
            mac: "02:00:00:00:00:01".into(),
            drops: [count("x")].into(),
            stages: [stage.clone()].into(),
            ..Port::default()
        }]
        .into(),
        blocks: [Block {
            serial: "root".into(),
            overlay_blocks: 9,
            overlay_full: 1,
            counts: [count("reads")].into(),
            ..Block::default()
        }]
        .into(),
        entropy: [Entropy::default()].into(),
        consoles: [Console {
            ports: [ConsolePort { name: "trace".into(), ..ConsolePort::default() }].into(),
            ..Console::default()
        }]
        .into(),
    };
    Counters {
        hypervisor: Hypervisor { heap: Heap { size: 4 << 20, used: 1 << 20 }, log_dropped: 3, ..Hypervisor::default() },
        guests: ["alpha", "beta"].map(guest).into(),
        engines: [Engine {
            core: 1,
            busy_cycles: 3,
            watched: Some(Watched { visits: vec![1, 2, 3], ..Watched::default() }),
            uplinks: [Uplink {
                name: "lan".into(),
                counts: [count("rx")].into(),
                stages: [stage.clone()].into(),
                ..Uplink::default()
            }]
            .into(),
            ..Engine::default()
        }]
        .into(),
        ..Counters::default()
    }
}

fn guests() -> Vec<GuestSummary> {
    ["alpha", "beta"]
        .map(|name| GuestSummary {
            name: name.into(),
            state: GuestState::Stopped,
            cores: vec![2, 3],
            memory: 1 << 30,
            regions: vec![PhysicalRange { start: 1 << 30, bytes: 1 << 30 }],
            reason: Some(StopReason::Reset),
        })
        .into()
}

fn trace_state() -> TraceState {
    let core = TracedCore { core: 2, user: "alpha".into(), capacity: 8191, records: 10_000, lost: 1_809 };
    let captured = CapturedPort { guest: "a".into(), uplink: true, filter: "in,bytes=64".into(), frames: 5 };
    TraceState {
        exits_one_of: Some(u32::MAX),
        id: Some(1),
        classes: vec!["exits".into()],
        stop: false,
        saving: true,
        cores: vec![core],
        captures: vec![captured],
    }
}

fn module() -> ModuleSummary {
    ModuleSummary { name: "web".into(), bytes: 7, sha256: "ab".repeat(32), put: true }
}

fn latency() -> Latency {
    let exits = Durations {
        guest: Some("alpha".into()),
        queue: None,
        engine: None,
        what: "cpuid".into(),
        count: 100,
        sum: 200_000,
        p50: 2_000,
        p90: 2_100,
        p99: 2_200,
        max: 9_000,
    };
    let visits = Durations { guest: None, engine: Some(0), what: "visit".into(), ..exits.clone() };
    let queue = Durations { queue: Some("net 0 queue 1".into()), what: "arrival".into(), ..exits.clone() };
    Latency { id: Some(1), on: true, tsc_hz: 2_000_000_000, rows: vec![exits, visits, queue] }
}

#[test]
fn an_event_becomes_a_line_or_an_error() {
    let events = [
        Event::Boot {
            version: "0.1.0".into(),
            platform: Platform { virtualization: Some(Virtualization::Vmx), cores: 4, memory: 1 << 30 },
        },
        Event::Report(ReportEntry { kind: ReportKind::Found, text: "a sentence".into() }),
        Event::ConfigError {
            file: "f".into(),
            line: 1,
            column: 2,
            value: "v".into(),
            message: "m".into(),
            guest: Some("a".into()),
        },
        Event::Guest {
            guest: "a".into(),
            state: GuestState::Stopped,
            reason: Some(StopReason::Failed),
            detail: Some("why".into()),
        },
        Event::Console { guest: "a".into(), line: "\u{1b}[0m\u{202e}x".repeat(50) },
        Event::Output { id: None, guest: "a".into(), at: 7, text: "\u{ff}".repeat(512) },
        Event::Port { guest: "a".into(), port: "p".into(), text: "\u{ff}".repeat(512) },
        Event::Dropped { guest: None, messages: 1, bytes: 2 },
        Event::Log { level: Level::Warn, text: "text".into() },
        Event::Trace { data: "AAEC".repeat(1000), end: true },
        Event::TraceState(trace_state()),
        Event::Latency(latency()),
        Event::Counters(counters()),
        Event::Reply { id: Some(1), ok: true, error: None, guests: Some(guests()), version: Some("0.1.0".into()) },
        Event::Config { id: Some(1), text: "[[guest]]\nname = \"a\"\n".repeat(1000) },
        Event::Modules { id: Some(1), modules: vec![module(); 3] },
        Event::Applied { id: Some(1), state: ApplyState::Running, text: "guest c: added\n".repeat(30) },
        Event::done(Some(1)),
        Event::refused(None, "no".into()),
        Event::End { reason: "shutdown".into() },
    ];
    for event in &events {
        let usual = event.to_line().expect("there is memory");
        let allocations = for_each_allocation(
            || event.to_line(),
            |line, there_was| match line {
                Ok(line) => assert!(there_was && line == usual),
                Err(NoMemory) => assert!(!there_was, "{event:?}"),
            },
        );
        // A line that does not fit in the memory that is taken at first takes more.
        let least = if usual.len() > 256 { 2 } else { 1 };
        assert!(allocations >= least, "{event:?}");
    }
}

#[test]
fn an_answer_on_the_channel_is_given_whole_or_counted_as_lost() {
    let long = Event::Log { level: Level::Info, text: "x".repeat(10 << 10) };
    let usual = long.to_line().expect("there is memory");
    for n in 1.. {
        let (mut channel, event, mut got) = (Channel::new(), long.clone(), Vec::new());
        let ((), failed) = failing(n, || channel.answer(Ok(event), Some(1)));
        let lost = channel.counts().dropped.messages;
        channel.pump(usize::MAX, |bytes| {
            got.extend_from_slice(bytes);
            bytes.len()
        });
        if !failed {
            assert!(got == usual.as_bytes() && lost == 0 && n > 3, "after {n} allocations");
            return;
        }
        assert_eq!(lost, 1, "allocation {n}");
        let told = Event::Dropped { guest: None, messages: 1, bytes: 0 }.to_line().expect("there is memory");
        assert!(got == told.as_bytes(), "allocation {n}");
    }
}

#[test]
fn tables_need_no_memory() {
    let (counters, guests) = (counters(), guests());
    for view in View::ALL {
        let (shown, failed) = failing(1, || {
            let mut sink = Sink(0);
            table::show(view, &counters, &mut sink).map(|()| sink.0)
        });
        // These are not in the counters.
        let least = if matches!(view, View::Audit | View::Config | View::Latency | View::Modules | View::Apply) {
            0
        } else {
            100
        };
        assert!(!failed && shown.is_ok_and(|bytes| bytes >= least), "{view:?}");
    }
    let (shown, failed) = failing(1, || table::list(&guests, &mut Sink(0)));
    assert!(!failed && shown.is_ok());
    let state = trace_state();
    let (shown, failed) = failing(1, || control::trace::show(&state, &mut Sink(0)));
    assert!(!failed && shown.is_ok());
    let latency = latency();
    let (shown, failed) = failing(1, || control::latency::show(&latency, &mut Sink(0)));
    assert!(!failed && shown.is_ok());
    let modules = [module()];
    let (shown, failed) = failing(1, || control::show_modules(&modules, &mut Sink(0)));
    assert!(!failed && shown.is_ok());
}

#[test]
fn the_audit_notes_without_memory_and_is_copied_whole_or_not() {
    let mut audit = Audit::new();
    let (caller, command) = (Caller::cable(Way::Com1, Permissions::all()), Command::Stop("alpha".into()));
    let (shown, failed) = failing(1, || {
        audit.note(1, &caller, &Note::from(&command), Outcome::Failed, "a reason");
        let anna = Caller::cable(Way::Channel, Permissions::NONE).with_sender(Sender::new("anna", "10.0.0.5"));
        audit.report(1, &anna, Notice::Refused, "attach b", "not of this key").expect("it is the first one");
        let mut sink = Sink(0);
        audit.show(&mut sink).map(|()| sink.0)
    });
    assert!(!failed && shown.is_ok_and(|bytes| bytes > 40));
    for_each_allocation(
        || audit.copy(),
        |records, there_was| match records {
            Ok(records) => assert!(there_was && records.len() == 2),
            Err(NoMemory) => assert!(!there_was),
        },
    );
}

#[test]
fn top_begins_or_is_refused_and_then_needs_no_memory() {
    for_each_allocation(|| Top::new(&mut Sink(0)).map(drop), |top, there_was| assert_eq!(top.is_ok(), there_was));
    let mut top = Top::new(&mut Sink(0)).expect("there is memory");
    top.read(counters());
    let mut next = Some(counters());
    let (drawn, failed) = failing(1, || {
        top.refresh(&mut Sink(0)).expect("the sink takes all");
        next.take().into_iter().for_each(|next| top.read(next));
        let keys = b"jk\re\x0c".map(|key| top.feed(key, &mut Sink(0)).ok());
        let mut sink = Sink(0);
        top.refresh(&mut sink).map(|()| (keys, sink.0))
    });
    assert!(!failed && drawn.is_ok_and(|(_, bytes)| bytes > 100));
}

#[test]
fn tab_completes_without_memory() {
    let mut shell = Shell::new();
    let ((), failed) = failing(1, || {
        for byte in *b"stop al\t\tx\t" {
            if shell.feed(byte, &mut Sink(0)).expect("the sink takes all") == Action::Complete {
                shell.complete(["alpha", "alpine"].into_iter(), &mut Sink(0)).expect("the sink takes all");
            }
        }
    });
    assert!(!failed);
}

#[test]
fn a_guest_s_output_passes_the_filter_or_is_left_out_whole() {
    let output = "\u{1b}[38;5;3;1m\u{e9}\u{1b}]title\u{7}\r\n".repeat(20);
    let mut usual = Vec::new();
    TerminalFilter::new().feed(output.as_bytes(), &mut usual).expect("there is memory");
    let filtered = || {
        let mut out = Vec::new();
        TerminalFilter::new().feed(output.as_bytes(), &mut out).map(|()| out)
    };
    let allocations = for_each_allocation(filtered, |result, there_was| match result {
        Ok(out) => assert!(there_was && out == usual),
        Err(NoMemory) => assert!(!there_was),
    });
    assert_eq!(allocations, 1, "the room is taken before the first byte");
}

#[test]
fn what_a_life_tells_is_told_or_counted_as_lost() {
    let details = [None, Some("a constant".into()), Some(String::from("a text of its own").into())];
    for detail in details {
        let report = || Report {
            state: GuestState::Stopped,
            end: Some(End { reason: StopReason::Failed, detail: detail.clone() }),
        };
        let usual = report().event("alpha");
        for n in 1.. {
            let (report, mut line) = (report(), Sink(0));
            let (event, failed) = failing(n, || {
                let _ = write!(line, "{}", report.line("alpha"));
                report.event("alpha")
            });
            assert!(line.0 > 10 && if failed { event == Err(NoMemory) } else { event == usual });
            if !failed {
                break;
            }
        }
    }
    for refused in [Refused::Running, Refused::NotRunning, Refused::Detaching, Refused::ShuttingDown] {
        let usual = refused.explain("alpha");
        let check = |text: control::Text, there_was: bool| {
            assert!(text == usual || !there_was && text == OUT_OF_MEMORY, "{text}");
        };
        for_each_allocation(|| refused.explain("alpha"), check);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_line_is_read_or_refused(line in r#"(\{"command":"(start|input|port)",)?("guest":"[ -~]{0,9}",?)?("text":"\PC{0,9}"\}?)?\PC{0,9}"#) {
        request(&line);
    }
}
