//! Lines of clients and of sidecore, keys, and what else several parts of the target need.

use std::sync::{Mutex, MutexGuard, PoisonError};

use control::Permissions;
use sidecore_agent::key::Key;

use crate::input::Input;

/// What takes long to make and is used by one run at a time. What a run has that fails is not used again.
pub struct Pool<T: 'static>(Mutex<Vec<&'static mut T>>);

impl<T> Pool<T> {
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn free(&self) -> MutexGuard<'_, Vec<&'static mut T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn with(&self, make: impl FnOnce() -> T, run: impl FnOnce(&mut T)) {
        let free = self.free().pop();
        let one = free.unwrap_or_else(|| Box::leak(Box::new(make())));
        run(one);
        self.free().push(one);
    }
}

/// Most seconds that may be asked for.
pub const DAY: u64 = 24 * 60 * 60;
/// Names of guests. A bound key is for the first one.
pub const GUESTS: [&str; 3] = ["mine", "theirs", "x\\\"y"];
/// Words of the shell and of the agent.
pub const WORDS: [&str; 46] = [
    "list",
    "show",
    "exits",
    "counters",
    "start",
    "stop",
    "kill",
    "restart",
    "mine",
    "theirs",
    "set",
    "weight",
    "3",
    "attach",
    "--raw",
    "top",
    "trace",
    "save",
    "save-without-rips",
    "on",
    "off",
    "exits,visits",
    "--stop",
    "--seconds",
    "--json",
    "--confirm",
    "86400",
    "86401",
    "0",
    "18446744073709551616",
    "put",
    "apply",
    "--dry-run",
    "--restart",
    "apply.toml",
    "capture",
    "net=1",
    "capture",
    "report",
    "version",
    "watch",
    "latency",
    "audit",
    "config",
    "\u{1b}[2J",
    "\u{202e}",
];
/// Pieces of JSON of a client.
pub const MEMBERS: [&str; 40] = [
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\"command\":\"list\"",
    "\"command\":\"kill\"",
    "\"guest\":\"mine\"",
    "\"guest\":\"theirs\"",
    "\"id\":7",
    "\"id\":null",
    "\"id\":-1",
    "\"id\":1e3",
    "\"id\":18446744073709551615",
    "\"who\":\"root\"",
    "\"address\":\"x\"",
    "\"command\":\"notice\"",
    "\"what\":\"login\"",
    "\"command\":\"follow\"",
    "\"on\":true",
    "\"on\":false",
    "\"command\":\"input\"",
    "\"text\":\"a\\u0000\\ud83d\\ude00\"",
    "\"events\":true",
    "\"events\":false",
    "\"command\":\"counters\"",
    "\"aaa\":1",
    "\"zzz\":[1e15,{}]",
    "null",
    "[",
    "]",
    "1e15",
    "\\u006b",
    "\\",
    "\u{1b}",
    "\u{2028}",
    " ",
    "\t",
    "\r",
    "\u{9b}",
];

/// Text, most of it out of pieces.
pub fn pieces(input: &mut Input<'_>, from: &[&str], between: &str) -> String {
    let mut bytes = Vec::new();
    for _ in 0..input.within(0, 20) {
        match input.byte() {
            piece @ 0..232 => bytes.extend(from[usize::from(piece) % from.len()].bytes()),
            232..248 => bytes.push(input.byte()),
            _ => bytes.extend(vec![[b'x', b'1', 0xff][usize::from(input.byte() % 3)]; input.within(0, 5000) as usize]),
        }
        bytes.extend(between.bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A line of a client of the broker.
pub fn client_line(input: &mut Input<'_>) -> String {
    if input.byte() < 96 {
        return pieces(input, &MEMBERS, "");
    }
    // A whole object with members in any order, some of them twice.
    let known: Vec<&str> = MEMBERS.into_iter().filter(|member| member.contains("\":")).collect();
    let members: Vec<&str> =
        (0..1 + input.byte() % 5).map(|_| known[usize::from(input.byte()) % known.len()]).collect();
    format!("{{{}}}", members.join(","))
}

/// A key of any kind.
pub fn key(input: &mut Input<'_>) -> Key {
    let allowed = Permissions::from_bits_truncate(if input.flag() { 0xff } else { input.byte() });
    let guests = match input.byte() % 3 {
        0 => None,
        1 => Some(vec![GUESTS[0].to_owned()]),
        _ => Some(Vec::new()),
    };
    Key::new("anna", "10.0.0.5", allowed, guests)
}

/// A line of sidecore: most of them events, about several guests.
pub fn event_line(input: &mut Input<'_>, id: Option<u64>) -> String {
    let guest = || serde_json::to_string(GUESTS[0]).expect("JSON");
    let mut name = || {
        let name = GUESTS[usize::from(input.byte()) % GUESTS.len()];
        serde_json::to_string(name).expect("JSON")
    };
    let (one, two) = (name(), name());
    let id = id.map_or(String::new(), |id| format!("\"id\":{id},"));
    let text = serde_json::to_string(&String::from_utf8_lossy(&crate::console_tool::sent(input))).expect("JSON");
    let text: String = if text.len() > 2000 { guest() } else { text };
    let number = input.wide();
    match input.byte() % 22 {
        0 => format!("{{\"event\":\"console\",\"guest\":{one},\"line\":{text}}}"),
        1 => format!("{{\"event\":\"output\",{id}\"guest\":{one},\"at\":{number},\"text\":{text}}}"),
        2 => format!("{{\"event\":\"output\",\"guest\":{one},\"at\":{},\"text\":{text}}}", number % 300),
        3 => format!("{{\"event\":\"port\",\"guest\":{one},\"port\":\"p\",\"text\":{text}}}"),
        4 => format!("{{\"event\":\"dropped\",\"guest\":{one},\"messages\":{number},\"bytes\":2}}"),
        5 => format!(
            "{{\"event\":\"guest\",\"guest\":{one},\"state\":\"stopped\",\"reason\":\"killed\",\"detail\":{text}}}"
        ),
        6 => format!("{{\"event\":\"stuck\",\"core\":{number},\"guest\":{one},\"seconds\":9,\"at\":{text}}}"),
        7 => format!(
            "{{\"event\":\"config-error\",\"file\":\"f\",\"line\":1,\"value\":{text},\"message\":\"m\",\"guest\":{one}}}"
        ),
        8 => format!("{{\"event\":\"log\",\"level\":\"error\",\"text\":{text}}}"),
        9 => format!("{{\"event\":\"report\",\"kind\":\"warning\",\"text\":{text}}}"),
        10 => format!("{{\"event\":\"config\",{id}\"text\":{text}}}"),
        11 => format!(
            "{{\"event\":\"modules\",{id}\"modules\":[{{\"name\":{text},\"bytes\":{number},\"sha256\":\"x\",\"put\":true}}]}}"
        ),
        12 => format!(
            "{{\"event\":\"latency\",{id}\"on\":true,\"tsc_hz\":{number},\"rows\":[{{\"guest\":{one},\"what\":\"host\",\"count\":{number},\
                        \"sum\":{number},\"p50\":1,\"p90\":2,\"p99\":3,\"max\":{number}}},{{\"engine\":1,\"what\":{text},\"count\":0,\"sum\":0,\"p50\":0,\"p90\":0,\"p99\":0,\"max\":0}}]}}"
        ),
        13 => format!("{{\"event\":\"reply\",{id}\"ok\":false,\"error\":{text}}}"),
        14 => format!(
            "{{\"event\":\"reply\",{id}\"ok\":true,\"guests\":[{{\"name\":{one},\"state\":\"running\",\"cores\":[{number}],\"memory\":{number}}},\
                        {{\"name\":{two},\"state\":\"stopped\",\"cores\":[],\"memory\":1}}]}}"
        ),
        15 => format!("{{\"event\":\"reply\",{id}\"ok\":true,\"version\":{text}}}"),
        16 => format!(
            "{{\"event\":\"audit\",{id}\"records\":[{{\"number\":{number},\"time\":{number},\"last\":1,\"times\":2,\"way\":\"channel\",\"who\":\"w\",\
                        \"command\":\"kill a\",\"outcome\":\"refused\"}}]}}"
        ),
        17 => format!("{{\"event\":\"panic\",\"message\":{text},\"location\":\"l\",\"backtrace\":[]}}"),
        18 => format!("{{\"event\":\"end\",\"reason\":{text}}}"),
        19 => counters_line(input, &id, &[one, two]),
        20 => format!("{{\"event\":\"reply\",{id}\"ok\":true}}"),
        _ => String::from_utf8_lossy(&crate::console_tool::sent(input)).replace('\n', " "),
    }
}

/// All counters, with any numbers, of guests with these names.
pub fn counters_line(input: &mut Input<'_>, id: &str, guests: &[String]) -> String {
    let one = crate::console_tool::reading(input);
    let one = one.trim_end();
    // Its only guest becomes several.
    let (head, rest) = one.split_once("\"guests\":[").expect("there are guests");
    let (guest, tail) = rest.split_once("],\"engines\"").expect("there are engines");
    let (_, guest_rest) = guest.split_once(",\"state\"").expect("a guest has a state");
    let all: Vec<String> = guests.iter().map(|name| format!("{{\"name\":{name},\"state\"{guest_rest}")).collect();
    let head = head.replacen("\"event\":\"counters\",", &format!("\"event\":\"counters\",{id}"), 1);
    format!("{head}\"guests\":[{}],\"engines\"{tail}", all.join(","))
}
