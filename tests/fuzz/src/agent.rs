//! The management guest's agent (`tools/agent`): what clients of ssh type, the operator's list of keys, lines of sidecore, and requests for
//! metrics.
//!
//! - A line that is typed is a command, which is the same when it is written for sidecore and read again, or a sentence says why not.
//! - A line of JSON of a key's owner passes as one line that has one meaning and no sender, and only if the key is for it.
//! - A key that is bound to guests sees nothing that names another guest; one without `console` sees nothing that guests write.
//! - Each line of the list of keys is one key with one forced command of harmless words, or one mistake.
//! - Lines are cut as they are here.
//! - Metrics are what a second reader of the format takes, and no guest has more series than are promised.
//! - `machine.rs`: answers of sidecore in a login's shell, in an attached console and in the log. `broker.rs`: the broker between sidecore
//!   and its clients. `web.rs`: requests for metrics.
//!
//! Not in it: terminals, so `top`, the prompt and the keys of an attached person; and the port of traces (`trace` has its blocks).

mod broker;

mod machine;
mod said;
mod web;

use std::collections::BTreeMap;

use control::{Command, Event, Permissions, Request};
use serde_json::{Map, Value};
use sidecore_agent::exposition::Format;
use sidecore_agent::key::Key;
use sidecore_agent::metrics::{MAX_ENGINE_SERIES, MAX_GUEST_SERIES};
use sidecore_agent::words::{self, Asked, NotPassed};
use sidecore_agent::{keys, lines, metrics};

use crate::input::Input;
use crate::planted::planted;
use said::{DAY, GUESTS, WORDS, client_line, counters_line, event_line, key, pieces};

/// What was typed.
fn typed(input: &mut Input<'_>) {
    let line = pieces(input, &WORDS, " ");
    let read = words::read(&line);
    assert_eq!(words::is_trace(&line), matches!(&read, Ok(asked) if saves(&asked.command)));
    assert_eq!(words::reads_file(&line), matches!(&read, Ok(Asked { file: true, .. })));
    let Asked { command, time, file, .. } = match read {
        Ok(asked) => asked,
        Err(why) => return crate::is_line(&why),
    };
    assert!(time.is_none_or(|time| (1..=DAY).contains(&time.as_secs()) && saves(&command)), "{time:?} of {command:?}");
    assert!(!file || matches!(command, Command::Put { .. } | Command::Apply { .. }), "{command:?}");
    // The shell's own commands and those with what is not sent yet have no line.
    if matches!(command, Command::Help | Command::Top | Command::Attach { .. } | Command::Show(_) | Command::Put { .. })
    {
        return;
    }
    let mut written = Request::new(Some(1), command.clone()).to_line();
    if planted() {
        written.insert(1, '\n');
    }
    assert!(written.find('\n') == Some(written.len() - 1), "one line: {written:?}");
    assert_eq!(Request::from_line(&written).map(|request| request.command), Ok(command));
}

/// Whether the answer to a command is a trace or frames. This is a judgement of the target's own.
fn saves(command: &Command) -> bool {
    let words = command.summary().to_string();
    words.starts_with("trace save")
        || matches!(command, Command::Capture { filter, .. } if !filter.split(',').any(|word| word == "off"))
}

/// A line of JSON of a key's owner.
fn passed(input: &mut Input<'_>) {
    let (key, line) = (key(input), client_line(input));
    let Key { caller, guests } = &key;
    match words::passed(&line, &key) {
        Ok(passed) => {
            let request = Request::from_line(&passed).expect("a command");
            assert_eq!(request.to_line(), passed, "it has one form");
            assert!(passed.find('\n') == Some(passed.len() - 1) && request.sender.is_empty(), "{passed:?}");
            let members: Map<String, Value> = serde_json::from_str(&passed).expect("an object");
            let before: Map<String, Value> = serde_json::from_str(&line).expect("the line was JSON, too");
            // Whatever reader: each member is there once, and is what the owner has said.
            let said = |name: &str| before.get(name).filter(|value| !value.is_null());
            let id = said("id").and_then(Value::as_u64);
            // One of several counts, if the others are `null`.
            let is_once = line.matches("\"id\"").count() <= 1 && !line.contains('\\');
            assert!(!is_once || members.get("id").and_then(Value::as_u64) == id, "{line:?}");
            assert_eq!(members.get("command"), said("command"), "{line:?}");
            assert!(line.matches("\"command\"").count() <= 1 || line.contains('\\'), "which of two commands? {line:?}");
            let word = members["command"].as_str().unwrap_or_default();
            assert!(word != "notice" && !members.contains_key("who"), "{passed:?}");
            let needed = if matches!(word, "kill" | "start" | "stop" | "restart" | "shutdown") {
                Permissions::OPERATE
            } else {
                Permissions::NONE
            };
            let about = members.get("guest").and_then(Value::as_str).unwrap_or(GUESTS[0]);
            assert!(caller.allowed.contains(needed), "{passed:?}");
            assert!(
                guests.as_ref().is_none_or(|bound| word == "list"
                    || word == "counters"
                    || word == "version"
                    || word == "latency"
                    || bound.iter().any(|name| name == about)),
                "{passed:?}"
            );
        }
        Err(NotPassed { mut answer, refused }) => {
            if planted() {
                answer.insert(1, '\n');
            }
            let id = Request::from_line(&line).map_or_else(|bad| bad.id, |request| request.id);
            match Event::from_line(&answer) {
                Ok(Event::Reply { id: told, ok: false, error: Some(error), .. }) => {
                    assert!(
                        told == id && !error.is_empty() && answer.find('\n') == Some(answer.len() - 1),
                        "{answer:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
            if let Some((command, why)) = refused {
                assert!(!command.is_empty() && !why.is_empty());
            }
        }
    }
}

/// Whether something in an event names a guest that is not the first one.
fn names_another(value: &Value) -> bool {
    let is_another = |name: &Value| name.as_str().is_some_and(|name| name != GUESTS[0]);
    match value {
        Value::Object(members) => members.iter().any(|(name, value)| match (name.as_str(), value) {
            ("guest", name) => is_another(name),
            ("guests", Value::Array(all)) => all.iter().any(|guest| guest.get("name").is_some_and(is_another)),
            (_, value) => names_another(value),
        }),
        Value::Array(all) => all.iter().any(names_another),
        _ => false,
    }
}

/// What the owner of a key sees.
fn seen(input: &mut Input<'_>) {
    let (mut key, id) = (key(input), input.flag().then_some(3));
    let line = event_line(input, id);
    let Ok(event) = Event::from_line(&line) else { return };
    let bound = key.guests.clone();
    if planted() {
        key.guests = None;
    }
    let Some(seen) = key.sees(event.clone()) else { return assert!(!key.sees_all(), "{event:?} is for this key") };
    let shown = seen.to_line().expect("there is memory");
    assert_eq!(Event::from_line(&shown).as_ref(), Ok(&seen), "it is the same when it is read again");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let is_output = matches!(shown["event"].as_str(), Some("console" | "output" | "port"));
    assert!(!is_output || key.caller.allowed.contains(Permissions::CONSOLE), "{shown}");
    if let Some(bound) = bound {
        assert!(!names_another(&shown), "{shown}");
        assert!(!bound.is_empty() || !is_output, "{shown}");
        assert!(!matches!(shown["event"].as_str(), Some("log" | "audit" | "config" | "report" | "modules")), "{shown}");
    } else {
        assert!(seen == event || planted(), "a key for all guests sees all of it");
    }
}

/// The operator's list of keys.
fn list_of_keys(input: &mut Input<'_>) {
    const PIECES: [&str; 28] = [
        "ssh-ed25519",
        "ssh-rsa",
        "ecdsa-sha2-nistp256",
        " ",
        "\n",
        "\t",
        "AAAA",
        "AAAAC3Nz",
        "A=",
        "alice",
        "\"",
        ";",
        "$(reboot)",
        "view",
        "view,console",
        "operate",
        "guests=",
        "guests=web",
        "guests=web,mail",
        ",",
        "#",
        "\\",
        "--allow",
        "'",
        "`",
        "\r",
        "\u{1b}",
        "\u{2028}",
    ];
    let between = if input.flag() { " " } else { "" };
    let list: String =
        (0..1 + input.byte() % 4).map(|_| pieces(input, &PIECES, between)).collect::<Vec<_>>().join("\n");
    let (file, mistakes) = keys::authorized(&list, "/usr/bin/agent");
    mistakes.iter().for_each(|mistake| assert!(mistake.starts_with("line ") && !mistake.contains('\n'), "{mistake:?}"));
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).count();
    assert_eq!(file.lines().count() + mistakes.len(), lines, "each line is a key or a mistake");
    for mut line in file.lines() {
        if planted() {
            line = &line[1..];
        }
        let rest = line
            .strip_prefix("restrict,pty,command=\"trap '' HUP; exec /usr/bin/agent shell --allow ")
            .expect("one command");
        let (command, key) = rest.split_once("\" ").expect("an end of the command");
        let is_harmless = |c: char| c.is_ascii_alphanumeric() || "-_.@,= ".contains(c);
        assert!(command.chars().all(is_harmless), "{line:?}");
        let words: Vec<&str> = command.split(' ').collect();
        let (allowed, guests, name) = match words[..] {
            [allowed, "--key", name] => (allowed, None, name),
            [allowed, guests, "--key", name] => (allowed, guests.strip_prefix("--guests="), name),
            _ => panic!("{line:?}"),
        };
        assert!(keys::permissions(allowed).is_ok_and(|allowed| !allowed.is_empty()), "{line:?}");
        assert!(words.len() == 3 || guests.is_some_and(|guests| keys::guests(guests).is_ok()), "{line:?}");
        assert!(!name.starts_with('-') && !name.is_empty() && !name.contains([',', '=']), "{line:?}");
        let parts: Vec<&str> = key.split(' ').collect();
        let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=".contains(c);
        assert!(parts.len() == 3 && parts[2] == name && parts[1].chars().all(is_base64), "{line:?}");
    }
    match keys::fingerprint(&list) {
        Ok(print) => {
            let (hash, kind) = print.split_once(' ').expect("two words");
            assert!(
                hash.len() == 7 + 43
                    && hash.starts_with("SHA256:")
                    && ["(ED25519)", "(RSA)", "(ECDSA)"].contains(&kind),
                "{print:?}"
            );
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

/// Lines of any stream.
fn cut_lines(input: &mut Input<'_>) {
    let (most, capacity) = (input.within(0, 40) as usize, 1 + usize::from(input.byte() % 50));
    let bytes: Vec<u8> =
        std::iter::from_fn(|| (!input.is_empty()).then(|| if input.byte() < 32 { b'\n' } else { input.byte() }))
            .collect();
    let mut stream = std::io::BufReader::with_capacity(capacity, &bytes[..]);
    let mut found = Vec::new();
    while let Some(line) = lines::read_line(&mut stream, most).expect("bytes in memory") {
        found.push(line);
    }
    let mut pieces: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
    // What has no end.
    pieces.pop();
    if planted() {
        pieces.push(b"more");
    }
    let cut = |line: &[u8]| (line.len() <= most).then(|| String::from_utf8_lossy(line).trim_end().to_owned());
    assert_eq!(found, pieces.into_iter().map(cut).collect::<Vec<_>>());
}

/// The series of metrics, by the second reader: name with labels, and the value.
fn series(text: &str) -> Vec<(String, BTreeMap<String, String>)> {
    let mut all = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let end = line.find(['{', ' ']).expect("a name and a value");
        let (name, mut rest) = line.split_at(end);
        assert!(
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit()),
            "{line:?}"
        );
        let mut labels = BTreeMap::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                let (label, value) = rest.split_once("=\"").expect("a label");
                let (mut text, mut characters) = (String::new(), value.char_indices());
                let end = loop {
                    match characters.next().expect("an end of the value") {
                        (at, '"') => break at,
                        (_, '\\') => text.push(match characters.next() {
                            Some((_, 'n')) => '\n',
                            Some((_, c @ ('\\' | '"'))) => c,
                            other => panic!("{other:?} in {line:?}"),
                        }),
                        (_, c) => text.push(c),
                    }
                };
                assert!(labels.insert(label.trim_start_matches(',').to_owned(), text).is_none(), "{line:?}");
                rest = &value[end + 1..];
                if let Some(behind) = rest.strip_prefix('}') {
                    rest = behind;
                    break;
                }
            }
        }
        let value = rest.strip_prefix(' ').expect("a blank before the value");
        assert!(value.parse::<f64>().is_ok(), "{line:?}");
        all.push((name.to_owned(), labels));
    }
    all
}

/// Counters as metrics.
fn as_metrics(input: &mut Input<'_>) {
    let names: Vec<String> = GUESTS
        .iter()
        .enumerate()
        .map(|(n, name)| {
            let more = String::from_utf8_lossy(&[input.byte(), input.byte()]).into_owned();
            serde_json::to_string(&format!("{name}{n}{more}")).expect("JSON")
        })
        .collect();
    let line = counters_line(input, "", &names);
    let Ok(Event::Counters(counters)) = Event::from_line(&line) else { panic!("counters: {line}") };
    let all = [Format::Text, Format::OpenMetrics].map(|format| {
        let mut text = metrics::write(&counters, format);
        if planted() {
            text = text.replace("guest=\"", "guest=\"\"");
        }
        series(&text)
    });
    assert_eq!(all[0], all[1], "both formats have the same series");
    for guest in &counters.guests {
        let of_guest = all[0].iter().filter(|(_, labels)| labels.get("guest") == Some(&guest.name)).count();
        assert!((1..=MAX_GUEST_SERIES).contains(&of_guest), "{of_guest} series of {:?}", guest.name);
    }
    let of_engine = all[0].iter().filter(|(_, labels)| labels.contains_key("engine")).count();
    assert!(of_engine <= MAX_ENGINE_SERIES * counters.engines.len());
    let accept = pieces(
        input,
        &[
            "application/openmetrics-text",
            ";",
            ",",
            "q=",
            "0.5",
            "version=1.0.0",
            "text/plain",
            "*/*",
            "q=nan",
            "q=inf",
            "=",
            "\"",
        ],
        "",
    );
    let format = Format::accepted(&accept);
    assert!(accept.contains("openmetrics-text") || format == Format::Text);
}

/// Runs one input.
///
/// # Panics
/// Something was read or passed on wrongly.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.byte() % 16 {
        0 | 1 => typed(&mut input),
        2..5 => passed(&mut input),
        5 | 6 => seen(&mut input),
        7 => list_of_keys(&mut input),
        8 => cut_lines(&mut input),
        9 => as_metrics(&mut input),
        10 => machine::shell(&mut input),
        11 => machine::log(&mut input),
        12 => web::run(&mut input),
        _ => broker::run(&mut input),
    }
}

crate::planted::tests!(what_comes_from_either_side_is_read_rightly_or_refused, 256, 0..600);

/// Each part sees a fault of its own.
#[cfg(test)]
mod planted_in_parts {
    use super::*;

    #[test]
    fn a_planted_fault_is_found_in_each_part() {
        let parts: [fn(&mut Input<'_>); 10] = [
            typed,
            passed,
            seen,
            list_of_keys,
            cut_lines,
            as_metrics,
            machine::shell,
            machine::log,
            web::run,
            broker::run,
        ];
        for part in parts {
            crate::planted::is_found(|bytes| part(&mut Input::new(bytes)));
        }
    }
}
