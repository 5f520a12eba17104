//! The operator's console against a hostile machine: lines of any kind, of pieces of good ones, cut anywhere, while a person presses
//! keys and the terminal changes its size. The screen has the size of the terminal and nothing on it that a terminal obeys; what is
//! kept is bounded; the log and the tables as text and as JSON are as clean.

use std::time::Duration;

use sidecore_console::lines::Lines;
use sidecore_console::record::{Player, Recorder};
use sidecore_console::screen::{Head, rows};
use sidecore_console::sheet::{json, text};
use sidecore_console::state::{MAX_GUESTS, MAX_LOG, State};
use sidecore_console::ui::{Key, Ui};
use sidecore_console::views::View;

use crate::input::Input;
use crate::planted::planted;

/// Most steps of a run.
const STEPS: usize = 40;
/// Pieces of lines.
const PIECES: [&str; 44] = [
    "{\"event\":\"counters\",\"tsc\":",
    ",\"tsc_hz\":",
    "1000",
    "18446744073709551615",
    "7",
    ",\"hypervisor\":{\"memory\":1,\"memory_without_guests\":1},\"guests\":[",
    "],\"engines\":[",
    "]}\n",
    "{\"name\":\"",
    "a",
    "\",\"state\":\"running\",\"starts\":1,\"memory\":1,\"kept\":1,\"vcpus\":[",
    "{\"core\":2,\"exits\":[",
    "{\"reason\":\"hlt\",\"count\":",
    ",\"cycles\":",
    "}",
    "]}",
    "],\"refusals\":[],\"ports\":[",
    "{\"mac\":\"02:00:00:00:00:01\",\"rx_packets\":1,\"rx_bytes\":2,\"tx_packets\":3,\"tx_bytes\":4,\"drops\":[],\"interrupts\":1,\"kicks\":2,\"ring_errors\":0}",
    "],\"blocks\":[",
    "{\"serial\":\"s\",\"size\":4096,\"interrupts\":1,\"kicks\":1,\"arms\":0,\"polls\":0,\"engine_cycles\":5,\"resets\":0,\"stale_tokens\":0,\"ring_errors\":0}",
    "{\"core\":1,\"busy_turns\":5,\"idle_turns\":6,\"busy_cycles\":7,\"idle_cycles\":8,\"long_turns\":0}",
    "{\"core\":1,\"busy_turns\":9,\"idle_turns\":9,\"busy_cycles\":9,\"idle_cycles\":9,\"busy_permille_second\":1000,\"busy_permille_minute\":18446744073709551615,\"long_turns\":1,\"watched\":{\"visits\":[1,2],\"empty_visits\":3,\"longest_turn\":4,\"notified\":5,\"suppressed\":6}}",
    ",",
    "\n",
    "\"",
    "{\"event\":\"console\",\"guest\":\"a\",\"line\":\"",
    "\"}\n",
    "{\"event\":\"guest\",\"guest\":\"",
    "\",\"state\":\"stopped\",\"reason\":\"killed\",\"detail\":\"",
    "{\"event\":\"boot\",\"version\":\"1\",\"virtualization\":null,\"cores\":18446744073709551615,\"memory\":1}\n",
    "{\"event\":\"report\",\"kind\":\"warning\",\"text\":\"",
    "{\"event\":\"reply\",\"ok\":false,\"error\":\"",
    "{\"event\":\"stuck\",\"core\":1,\"seconds\":9,\"at\":\"",
    "{\"event\":\"log\",\"level\":\"error\",\"text\":\"",
    "{\"event\":\"panic\",\"message\":\"x\",\"location\":\"y\",\"backtrace\":[]}\n",
    "\\u001b[2J",
    "\\u001b]0;title\\u0007",
    "\\u202e",
    "\\u0301",
    "\\ud83d\\ude00",
    "漢",
    "\x1b[31m",
    "\u{9b}",
    "\r",
];

/// Bytes, most of them out of pieces of lines of a machine.
pub(crate) fn sent(input: &mut Input<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..input.within(0, 60) {
        match input.byte() {
            piece @ 0..240 => bytes.extend(PIECES[usize::from(piece) % PIECES.len()].bytes()),
            240..250 => bytes.push(input.byte()),
            _ => bytes.extend(vec![b'x'; input.within(0, 5000) as usize]),
        }
    }
    bytes
}

/// A reading whose numbers are any: a line.
pub(crate) fn reading(input: &mut Input<'_>) -> String {
    let mut number = || match input.byte() % 4 {
        0 => u64::from(input.byte()),
        1 => u64::MAX - u64::from(input.byte()),
        _ => input.wide(),
    };
    let (tsc, exits, cycles, packets, busy) = (number(), number(), number(), number(), number());
    let (starts, tsc_hz) = (number() % 3, number() % 5);
    format!(
        "{{\"event\":\"counters\",\"tsc\":{tsc},\"tsc_hz\":{tsc_hz},\"hypervisor\":{{\"memory\":{cycles},\"memory_without_guests\":0}},\
         \"guests\":[{{\"name\":\"g{starts}\",\"state\":\"running\",\"starts\":{starts},\"memory\":{packets},\"kept\":{busy},\"vcpus\":[{{\"core\":{starts},\
         \"exits\":[{{\"reason\":\"hlt\",\"count\":{exits},\"cycles\":{cycles}}}]}}],\"refusals\":[{{\"kind\":\"msr\",\"count\":{exits}}}],\
         \"ports\":[{{\"mac\":\"m\",\"rx_packets\":{packets},\"rx_bytes\":{cycles},\"tx_packets\":{exits},\"tx_bytes\":{busy},\
         \"drops\":[{{\"kind\":\"no-buffer\",\"count\":{packets}}}],\"interrupts\":1,\"kicks\":{exits},\"ring_errors\":0}}]}}],\
         \"engines\":[{{\"id\":{starts},\"core\":1,\"busy_turns\":{exits},\"idle_turns\":{packets},\"busy_cycles\":{busy},\"idle_cycles\":{cycles},\"long_turns\":0}}]}}\n"
    )
}

fn key(input: &mut Input<'_>) -> Key {
    const KEYS: [Key; 12] = [
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
        Key::Backspace,
        Key::Interrupt,
    ];
    const CHARACTERS: &[u8] = b"123456qwfsr/?hjk a";
    match input.byte() {
        byte @ 0..120 => KEYS[usize::from(byte) % KEYS.len()],
        byte @ 120..240 => Key::Char(CHARACTERS[usize::from(byte) % CHARACTERS.len()].into()),
        _ => Key::Char(char::from_u32(input.within(0, 0x11_0000) as u32).unwrap_or('\u{1b}')),
    }
}

/// Whether a terminal shows the text and does nothing else. This is a judgement of its own, not that of the console.
fn is_harmless(text: &str) -> bool {
    text.chars().all(|c| {
        let turns =
            matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let joins = matches!(c, '\u{300}'..='\u{36f}' | '\u{200b}'..='\u{200d}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}');
        !c.is_control() && !turns && !joins
    })
}

/// Runs one input.
///
/// # Panics
/// Something was shown that a terminal obeys, or more was kept than is promised.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (mut state, mut ui, mut lines) = (State::new(Duration::from_secs(1)), Ui::default(), Lines::new());
    let (mut player, mut recorded) = (Player::new(), Vec::new());
    let mut recorder = Recorder::new(&mut recorded, 1 << 16);
    state.connected("a machine");
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 6 {
            0 | 1 => lines.feed(&sent(&mut input), |line| {
                if let sidecore_console::lines::Line::Text(text) = &line {
                    let _ = recorder.line(state.clock, text);
                    let (at, _) = player.next(text);
                    assert!(player.next("{").0 == at, "time went on without a line");
                }
                state.take(&line);
            }),
            2 => lines.feed(reading(&mut input).as_bytes(), |line| state.take(&line)),
            3 => state.clock = state.clock.saturating_add(Duration::from_millis(input.within(0, 20_000))),
            4 => state.disconnected(&String::from_utf8_lossy(&sent(&mut input)), Duration::from_secs(1)),
            _ => {
                let _ = ui.key(key(&mut input), &state);
            }
        }
        let (width, height) = (input.within(0, 220) as u16, input.within(0, 60) as u16);
        let head = Head { source: "x".into(), colours: input.flag(), recording: input.flag() };
        let mut screen = rows(width, height, &head, &mut ui, &state);
        if planted() {
            screen.push("\u{1b}c".into());
        }
        assert!(screen.iter().all(|row| is_harmless(row)), "{screen:?}");
    }
    assert!(state.log().len() <= 2 * MAX_LOG && state.told.len() <= MAX_GUESTS);
    for view in View::ALL {
        let sheet = view.sheet(&state, None);
        let (text, json) = (text::whole(&sheet, None, 80), json::whole(&sheet).to_string());
        assert!(text.lines().all(is_harmless) && is_harmless(&json), "{text}\n{json}");
        if let Some(row) = sheet.main.rows.last() {
            let detail = text::whole(&view.sheet(&state, Some(&row.id)), None, 80);
            assert!(detail.lines().all(is_harmless), "{detail}");
        }
    }
    let recorded = String::from_utf8(recorded).expect("a recording is text");
    assert!(recorded.len() <= 1 << 16 && recorded.lines().all(is_harmless), "{recorded:?}");
}

crate::planted::tests!(any_machine_and_any_keys_leave_a_clean_screen, 50, 0..800);
