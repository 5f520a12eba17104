//! Whole screens against files, and any machine and any keys against the promises of the screen.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::clean::is_shown;
use crate::lines::{Line, Lines};
use crate::record::Player;
use crate::traced::tests as traced;
use crate::ui::Key;

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// The state at a time of the recorded session.
fn at(seconds: f64) -> State {
    played("session.txt", seconds)
}

/// The state at a time of a recording.
fn played(file: &str, seconds: f64) -> State {
    let session = std::fs::read_to_string(tests().join(file)).unwrap();
    let (mut state, mut player) = (State::new(Duration::from_secs(1)), Player::new());
    state.link = Link::Up;
    for line in session.lines() {
        let (time, sent) = player.next(line);
        if time.as_secs_f64() > seconds {
            break;
        }
        state.clock = time;
        state.take(&Line::Text(sent.into()));
    }
    state
}

fn head(colours: bool) -> Head {
    Head { source: "socket /tmp/com2".into(), colours, recording: false }
}

fn drawn(width: u16, height: u16, colours: bool, ui: &mut Ui, state: &State) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, &head(colours), ui, state)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let row = |y: u16| -> String {
        let line: String = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect();
        format!("{}\n", line.trim_end())
    };
    (0..buffer.area.height).map(row).collect()
}

/// Compares with a file of `tests/screens`. With SIDECORE_WRITE_SCREENS=1 it writes the file instead.
fn compare(name: &str, screen: &str) {
    let path = tests().join("screens").join(name);
    if std::env::var_os("SIDECORE_WRITE_SCREENS").is_some() {
        std::fs::write(&path, screen).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(screen == expected, "{name} is\n{screen}\nand should be\n{expected}");
}

fn keys(ui: &mut Ui, state: &State, keys: &[Key]) {
    keys.iter().for_each(|key| _ = ui.key(*key, state));
}

#[test]
fn each_view_is_as_it_was_at_80x24_and_wide() {
    let state = at(BUSY);
    for view in View::ALL {
        for (width, height) in [(80, 24), (200, 50)] {
            let mut ui = Ui { view, ..Ui::default() };
            let name = format!("{}-{width}x{height}.txt", view.name());
            compare(&name, &text(&drawn(width, height, true, &mut ui, &state)));
        }
    }
}

#[test]
fn details_are_as_they_were() {
    let state = at(BUSY);
    for (view, id) in [(View::Engine, "0"), (View::Guest, "b"), (View::Port, "b:0")] {
        let mut ui = Ui { view, detail: Some(id.into()), ..Ui::default() };
        let name = format!("{}-detail-80x24.txt", view.name());
        compare(&name, &text(&drawn(80, 24, true, &mut ui, &state)));
    }
}

#[test]
fn a_guest_s_addresses_and_times_are_shown_when_there_are_some() {
    let mut state = at(BUSY).with_symbols(traced::known());
    state.take(&Line::Text(format!(r#"{{"event":"trace","data":"{}"}}"#, traced::words(&traced::trace()))));
    state.take(&Line::Text(
        r#"{"event":"latency","on":true,"tsc_hz":2000000,"rows":[
            {"guest":"a","what":"hlt","count":3,"sum":90,"p50":20,"p90":30,"p99":40,"max":40},
            {"guest":"a","queue":"net0 queue 1","what":"arrival","count":3,"sum":90,"p50":20,"p90":30,"p99":40,"max":40},
            {"guest":"b","what":"cpuid","count":1,"sum":9,"p50":9,"p90":9,"p99":9,"max":9}]}"#
            .replace('\n', ""),
    ));
    let mut ui = Ui { view: View::Guest, detail: Some("a".into()), ..Ui::default() };
    compare("guest-traced-80x24.txt", &text(&drawn(80, 24, true, &mut ui, &state)));
    let sheet = View::Guest.sheet(&state, Some("a"));
    compare("guest-traced.txt", &crate::sheet::text::whole(&sheet, None, 80));
    let json = crate::sheet::json::whole(&sheet);
    assert_eq!(json["addresses"][0]["function"], "native_halt+0x2", "{json}");
    assert_eq!(
        (&json["times"][0]["p99_us"], json["times"].as_array().map(Vec::len)),
        (&20.0.into(), Some(1)),
        "{json}"
    );
}

/// How long exits, turns, visits and requests took on two guests' machine: the form of `control`'s own answer, with round figures.
const LATENCY: &str = r#"{"event":"latency","on":true,"tsc_hz":2000000,"rows":[
    {"guest":"a","what":"hlt","count":3,"sum":90,"p50":20,"p90":30,"p99":40,"max":40},
    {"engine":0,"what":"busy-turn","count":4711,"sum":942200,"p50":128,"p90":640,"p99":2047,"max":36932},
    {"engine":0,"what":"idle-turn","count":18446744073709551615,"sum":18446744073709551615,"p50":1,"p90":1,"p99":3,"max":77},
    {"engine":0,"what":"visit","count":1889,"sum":90,"p50":96,"p90":320,"p99":1023,"max":18446744073709551615},
    {"engine":1,"what":"visit","count":1,"sum":9,"p50":9,"p90":9,"p99":9,"max":9},
    {"guest":"a","queue":"net0 queue 0","what":"arrival","count":729,"sum":90,"p50":40,"p90":80,"p99":160,"max":3000},
    {"guest":"a","queue":"net0 queue 0","what":"taken","count":151,"sum":90,"p50":24,"p90":48,"p99":96,"max":200},
    {"guest":"a","queue":"net0 queue 0","what":"occupancy","count":812,"sum":90,"p50":256,"p90":256,"p99":256,"max":256},
    {"guest":"b","queue":"net0 queue 0","what":"arrival","count":12,"sum":90,"p50":20,"p90":30,"p99":40,"max":40},
    {"guest":"b","queue":"net0 queue 1","what":"arrival","count":1428,"sum":90,"p50":28,"p90":112,"p99":448,"max":900},
    {"guest":"b","queue":"net0 queue 1","what":"taken","count":191,"sum":90,"p50":12,"p90":20,"p99":28,"max":31},
    {"guest":"b","queue":"net0 queue 1","what":"occupancy","count":640,"sum":90,"p50":1,"p90":3,"p99":7,"max":16},
    {"guest":"b","queue":"net1 queue 0","what":"arrival","count":2,"sum":9,"p50":9,"p90":9,"p99":9,"max":9},
    {"guest":"b","queue":"block0 queue 0","what":"arrival","count":5,"sum":9,"p50":9,"p90":9,"p99":9,"max":9},
    {"guest":"b","queue":"netx queue","what":"arrival","count":5,"sum":9,"p50":9,"p90":9,"p99":9,"max":9},
    {"guest":"b","queue":"","what":"arrival","count":5,"sum":9,"p50":9,"p90":9,"p99":9,"max":9}]}"#;

#[test]
fn ports_and_engines_have_percentiles_while_the_machine_records_them() {
    let mut state = at(BUSY);
    state.take(&Line::Text(LATENCY.replace('\n', "")));
    assert_eq!(state.latency.as_ref().map(|latency| latency.rows.len()), Some(16));
    for (view, detail) in
        [(View::Engine, None), (View::Engine, Some("0")), (View::Port, None), (View::Port, Some("b:0"))]
    {
        let mut ui = Ui { view, detail: detail.map(String::from), ..Ui::default() };
        let name = format!("{}{}-latency", view.name(), detail.map_or("", |_| "-detail"));
        compare(&format!("{name}-80x24.txt"), &text(&drawn(80, 24, true, &mut ui, &state)));
        let whole = crate::sheet::text::whole(&view.sheet(&state, detail), None, 80);
        compare(&format!("{name}.txt"), &whole);
        assert!(whole.lines().all(|line| line.width() <= 80), "{whole}");
    }
    let json = |view: View, detail| crate::sheet::json::whole(&view.sheet(&state, detail));
    let port = json(View::Port, Some("b:0"));
    assert_eq!(
        port["latency"].as_array().map(Vec::len),
        Some(4),
        "another guest's, another port's, or no port's: {port}"
    );
    let row = &port["latency"][1];
    assert_eq!(
        (&row["queue"], &row["what"], &row["unit"], &row["count"], &row["p50"], &row["p99"]),
        (&"net0 queue 1".into(), &"arrival".into(), &"us".into(), &1428.into(), &14.0.into(), &224.0.into()),
        "{port}"
    );
    let waiting = &port["latency"][3];
    assert_eq!((&waiting["unit"], &waiting["p99"]), (&"requests".into(), &7.into()), "{port}");
    let engines = json(View::Engine, None);
    let row = &engines["times"][0];
    assert_eq!(
        (&row["engine"], &row["what"], &row["count"], &row["p50_us"], &row["p99_us"]),
        (&0.into(), &"busy-turn".into(), &4711.into(), &64.0.into(), &1023.5.into()),
        "{engines}"
    );
    assert_eq!(json(View::Engine, Some("0"))["times"].as_array().map(Vec::len), Some(3));

    // What was recorded stays, and is no news.
    state.take(&Line::Text(LATENCY.replace('\n', "").replace("\"on\":true", "\"on\":false")));
    for view in [View::Engine, View::Port] {
        let whole = crate::sheet::text::whole(&view.sheet(&state, None), None, 80);
        assert!(whole.contains("; not recorded now\n"), "{whole}");
    }
    // A machine that does not say its frequency.
    state.take(&Line::Text(LATENCY.replace('\n', "").replace("2000000", "0")));
    assert!(crate::sheet::json::whole(&View::Engine.sheet(&state, None))["times"][0]["p50_us"].is_null());
}

#[test]
fn disks_are_as_they_were() {
    let state = played("disks.txt", f64::MAX);
    for (detail, name) in [(None, "disks-80x24.txt"), (Some("p1:0"), "disks-detail-80x24.txt")] {
        let mut ui = Ui { view: View::Disk, detail: detail.map(String::from), ..Ui::default() };
        compare(name, &text(&drawn(80, 24, true, &mut ui, &state)));
    }
}

/// Seconds from the beginning of the session at which both guests have traffic.
const BUSY: f64 = 40.5;

#[test]
fn keys_sort_filter_choose_enter_and_go_back() {
    let state = at(BUSY);
    let mut ui = Ui { view: View::Guest, ..Ui::default() };
    let screen = |ui: &mut Ui| text(&drawn(80, 24, false, ui, &state));
    let row = |screen: &str, name: &str| screen.lines().position(|line| line.starts_with(&format!("{name} "))).unwrap();

    assert!(row(&screen(&mut ui), "a") < row(&screen(&mut ui), "b"));
    keys(&mut ui, &state, &[Key::Char('s'), Key::Char('r')]);
    let sorted = screen(&mut ui);
    assert!(sorted.contains("guest^") && row(&sorted, "a") > row(&sorted, "b"), "{sorted}");

    keys(&mut ui, &state, &[Key::Char('/'), Key::Char('A'), Key::Backspace, Key::Char('b'), Key::Enter]);
    let filtered = screen(&mut ui);
    assert!(filtered.contains("/b (1 hidden)"), "{filtered}");
    keys(&mut ui, &state, &[Key::Escape]);
    assert!(screen(&mut ui).contains("Enter details"));

    // The last row is a's, because the order is reversed.
    keys(&mut ui, &state, &[Key::End, Key::Enter]);
    assert!(screen(&mut ui).contains("Exits of a by reason"), "{}", screen(&mut ui));
    keys(&mut ui, &state, &[Key::Escape]);
    assert_eq!(ui.chosen.as_deref(), Some("a"));
    keys(&mut ui, &state, &[Key::Char('?')]);
    compare("help-80x24.txt", &screen(&mut ui));
    assert_eq!(ui.key(Key::Char('q'), &state), crate::ui::Action::Quit);
    keys(&mut ui, &state, &[Key::Previous, Key::Previous]);
    assert_eq!(ui.view, View::Machine);
    keys(&mut ui, &state, &[Key::Previous]);
    assert_eq!(ui.view, View::Log);
}

#[test]
fn a_full_filter_takes_no_more_characters_and_still_finds_its_rows() {
    let mut state = State::new(Duration::from_secs(1));
    let name = "a".repeat(40);
    state.take(&Line::Text(format!(r#"{{"event":"console","guest":"{name}","line":"x"}}"#)));
    let mut ui = Ui { view: View::Log, ..Ui::default() };
    keys(&mut ui, &state, &[Key::Char('/')]);
    keys(&mut ui, &state, &[Key::Char('a'); 40]);
    assert_eq!(ui.filter, "a".repeat(30));
    assert_eq!(ui.sheet(&state).main.rows.len(), 1);
}

#[test]
fn a_frozen_view_stays_while_the_machine_goes_on() {
    let (before, after) = (at(BUSY), at(f64::MAX));
    let mut ui = Ui { view: View::Guest, ..Ui::default() };
    let live = text(&drawn(80, 24, false, &mut ui, &before));
    keys(&mut ui, &before, &[Key::Char('f')]);
    let frozen = text(&drawn(80, 24, false, &mut ui, &after));
    assert!(frozen.contains("FROZEN (live)"), "{frozen}");
    assert_eq!(live.lines().skip(1).collect::<Vec<_>>(), frozen.lines().skip(1).collect::<Vec<_>>());
    keys(&mut ui, &after, &[Key::Char('f')]);
    assert_ne!(text(&drawn(80, 24, false, &mut ui, &after)).lines().nth(5), live.lines().nth(5));
}

#[test]
fn without_colours_there_are_none() {
    let mut state = at(BUSY);
    state.disconnected("it broke", Duration::from_secs(1));
    for view in View::ALL {
        let mut ui = Ui { view, ..Ui::default() };
        let buffer = drawn(200, 50, false, &mut ui, &state);
        assert!(buffer.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    }
    let coloured = drawn(80, 24, true, &mut Ui::default(), &state);
    assert!(coloured.content().iter().any(|cell| cell.fg == Color::Red), "a lost connection is red");
}

#[test]
fn a_lost_connection_is_said_and_the_last_state_stays() {
    let mut state = at(BUSY);
    let mut ui = Ui { view: View::Guest, ..Ui::default() };
    let live = text(&drawn(80, 24, false, &mut ui, &state));
    state.disconnected("the other end closed the connection", Duration::from_secs(2));
    let old = text(&drawn(80, 24, false, &mut ui, &state));
    assert!(live.lines().next().unwrap().ends_with("live"), "{live}");
    assert!(
        old.lines().next().unwrap().contains("OLD, no connection (the other end closed th~), again in 2 s"),
        "{old}"
    );
    assert_eq!(live.lines().skip(1).collect::<Vec<_>>(), old.lines().skip(1).collect::<Vec<_>>());
}

#[test]
fn the_first_row_follows_the_chosen_one() {
    assert_eq!(scrolled(0, 9, 5, 20), 5);
    assert_eq!(scrolled(7, 5, 5, 20), 5);
    assert_eq!(scrolled(7, 9, 5, 20), 7);
    assert_eq!(scrolled(18, 19, 5, 20), 15);
    assert_eq!(scrolled(3, 0, 0, 0), 0);
}

const EMPTY: &str = r#"{"event":"counters","tsc":1000,"tsc_hz":1000,"hypervisor":{"memory":0,"memory_without_guests":0},"guests":[],"engines":[]}"#;

#[test]
fn lists_that_would_keep_the_program_busy_are_cut() {
    let mut state = State::new(Duration::from_secs(1));
    let counts = vec![r#"{"kind":"x","count":1}"#; 50_000].join(",");
    let uplink = format!(
        r#"{{"core":1,"busy_turns":1,"idle_turns":1,"busy_cycles":1,"idle_cycles":1,"long_turns":0,"uplinks":[{{"name":"u","device":"d","counts":[{counts}]}}]}}"#
    );
    for tsc in [2000, 3000] {
        let line = EMPTY
            .replace("\"tsc\":1000", &format!("\"tsc\":{tsc}"))
            .replace("\"engines\":[]", &format!("\"engines\":[{uplink}]"));
        state.take(&Line::Text(line));
    }
    assert_eq!((state.readings, state.noise), (2, 0));
    let shown = View::Port.sheet(&state, None);
    assert_eq!(shown.more[1].rows.len(), crate::rates::MAX_REASONS);
}

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        any::<char>().prop_map(Key::Char),
        prop::sample::select(&b"123456qwfsr/?hjk "[..]).prop_map(|byte| Key::Char(byte.into())),
        prop::sample::select(vec![
            Key::Next,
            Key::Previous,
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Enter,
            Key::Escape,
            Key::Backspace
        ]),
    ]
}

/// Lines of the session with bytes changed, and any bytes.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let session = std::fs::read(tests().join("session.txt")).unwrap();
    let lines: Vec<Vec<u8>> = session
        .split(|byte| *byte == b'\n')
        .filter_map(|line| Some(line.splitn(2, |byte| *byte == b' ').nth(1)?.to_vec()))
        .filter(|line| !line.starts_with(br#"{"event":"report""#))
        .collect();
    let nasty = prop::sample::select(vec![
        "18446744073709551615",
        "-1",
        "1e400",
        "\\u001b[2J",
        "\\u202e",
        "\u{1b}]0;x\u{7}",
        "0",
        "\"\"",
        "[",
        "null",
        "漢",
    ]);
    let damaged = (prop::sample::select(lines), prop::collection::vec((any::<prop::sample::Index>(), nasty), 0..4))
        .prop_map(|(mut line, changes)| {
            for (at, what) in changes {
                // At the end of a number or a text, so that it often stays JSON.
                let ends: Vec<usize> = (0..line.len()).filter(|n| matches!(line[*n], b',' | b'"' | b'}')).collect();
                let at = ends[at.index(ends.len())];
                line.splice(at..at, what.bytes());
            }
            line.push(b'\n');
            line
        });
    prop_oneof![3 => damaged, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_machine_sends_and_a_person_types_the_screen_is_clean(
        sent in prop::collection::vec(hostile(), 0..12),
        typed in prop::collection::vec(any_key(), 0..30),
        width in 0_u16..220,
        height in 0_u16..60,
        colours in any::<bool>(),
    ) {
        let (mut state, mut ui, mut lines) = (State::new(Duration::from_secs(1)), Ui::default(), Lines::new());
        state.connected("a machine");
        let mut keys = typed.into_iter();
        for bytes in sent {
            lines.feed(&bytes, |line| state.take(&line));
            let _ = keys.by_ref().take(3).map(|key| ui.key(key, &state)).count();
            let buffer = drawn(width, height, colours, &mut ui, &state);
            for cell in buffer.content() {
                prop_assert!(cell.symbol().chars().all(is_shown), "{:?}", cell.symbol());
            }
            for view in View::ALL {
                let whole = crate::sheet::text::whole(&view.sheet(&state, None), None, 80);
                prop_assert!(whole.lines().all(|line| line.chars().all(is_shown) && line.width() <= 80));
            }
        }
    }
}
