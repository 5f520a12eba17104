//! The broker between sidecore and its clients. Clients send any lines, come and go; sidecore answers, and says any other lines between. The
//! target is at both ends, and knows before what each line of a client is.
//!
//! - A command comes to sidecore with an `id` that none had before, with what the client's first line has said of who it is and nothing else
//!   of that, and is otherwise as it was sent. What is no command does not come there.
//! - The answer comes to that client, with its own `id`, and to nobody else.
//! - An event comes to the clients that asked for events, a guest's output to those that follow the guest, each once and in order.
//! - The last one that follows a guest ends that, also by leaving.
//!
//! Sidecore's port is a terminal that passes bytes as they are.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use control::{Event, MAX_LINE, Sender};
use serde_json::{Map, Value};

use super::said::Pool;
use crate::input::Input;
use crate::planted::planted;

/// Clients at a time, and steps of a run.
const CLIENTS: usize = 3;
const STEPS: u8 = 12;
/// What is due comes within this time, on a machine that has much to do.
const PATIENCE: Duration = Duration::from_secs(50);
/// Longest line of a client (`OWN_BYTES` of the broker).
const MOST: usize = MAX_LINE - (40 + 32 + 48 + 22);

/// The broker's other end.
struct Port {
    file: File,
    /// What was read behind the last line.
    held: VecDeque<u8>,
    /// The last `id` of a command.
    last: u64,
    /// How many events of the target's own it has said.
    marks: u64,
}

impl Port {
    /// The next line that the broker sends. `None`: nothing comes within this time.
    fn line(&mut self, time: Duration) -> Option<String> {
        let end = Instant::now() + time;
        loop {
            if let Some(at) = self.held.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.held.drain(..=at).collect();
                let line = String::from_utf8(line).expect("text");
                if line != "\n" {
                    return Some(line);
                }
                continue;
            }
            let left = end.saturating_duration_since(Instant::now());
            let mut polled = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: the structure is there.
            let ready = unsafe { libc::poll(&raw mut polled, 1, left.as_millis().try_into().unwrap_or(i32::MAX)) };
            if ready == 0 {
                return None;
            }
            let mut bytes = [0; 4096];
            match self.file.read(&mut bytes) {
                Ok(len) => self.held.extend(&bytes[..len]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted, "the port"),
            }
        }
    }

    /// The next command, which has to come.
    fn command(&mut self) -> (Map<String, Value>, u64, String) {
        let line = self.line(PATIENCE).expect("a command comes to sidecore");
        let members: Map<String, Value> = serde_json::from_str(&line).expect("an object");
        let id = members.get("id").and_then(Value::as_u64).expect("it has an `id`");
        assert!(id > self.last, "an `id` that none had before: {line}");
        self.last = id;
        (members, id, line)
    }

    fn say(&mut self, line: &str) {
        self.file.write_all(line.as_bytes()).and_then(|()| self.file.write_all(b"\n")).expect("the port");
    }
}

/// A broker: its port and its socket, and a client that has asked for events, by which the target knows what the broker has read.
struct Broker {
    port: Port,
    socket: PathBuf,
    listener: Client,
}

static BROKERS: Pool<Broker> = Pool::new();

impl Broker {
    fn new() -> Self {
        // SAFETY: no memory is given to these. The terminal's name is copied before another one is asked for.
        let (file, name) = unsafe {
            let number = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY);
            assert!(number >= 0 && libc::grantpt(number) == 0 && libc::unlockpt(number) == 0, "a terminal");
            (File::from_raw_fd(number), std::ffi::CStr::from_ptr(libc::ptsname(number)).to_owned())
        };
        // SAFETY: the structure is filled in before it is read. Zeroes are one.
        unsafe {
            let mut raw: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(file.as_raw_fd(), &raw mut raw), 0);
            libc::cfmakeraw(&raw mut raw);
            assert_eq!(libc::tcsetattr(file.as_raw_fd(), libc::TCSANOW, &raw const raw), 0);
        }
        let socket = super::machine::place("broker");
        let (port, at) = (PathBuf::from(name.into_string().expect("a path")), socket.clone());
        thread::spawn(move || sidecore_agent::broker::serve(&port, &at, &[]));
        let end = Instant::now() + PATIENCE;
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < end, "the broker's socket");
            thread::sleep(Duration::from_millis(1));
        }
        let mut port = Port { file, held: VecDeque::new(), last: 0, marks: 0 };
        let mut listener = Client::connect(&socket);
        listener.send(b"{\"events\":true}\n{\"command\":\"list\",\"id\":0}");
        let (_, id, _) = port.command();
        port.say(&serde_json::json!({ "event": "reply", "ok": true, "id": id }).to_string());
        listener.read_until(&serde_json::json!({ "event": "reply", "ok": true, "id": 0 }));
        Self { port, socket, listener }
    }
}

/// A client, and what it is to get.
struct Client {
    stream: BufReader<UnixStream>,
    sender: Sender,
    is_new: bool,
    events: bool,
    follows: BTreeSet<String>,
    due: VecDeque<Value>,
}

impl Client {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).expect("the broker");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self {
            stream: BufReader::new(stream),
            sender: Sender::default(),
            is_new: true,
            events: false,
            follows: BTreeSet::new(),
            due: VecDeque::new(),
        }
    }

    fn send(&mut self, line: &[u8]) {
        let stream = self.stream.get_mut();
        stream.write_all(line).and_then(|()| stream.write_all(b"\n")).expect("the broker reads");
    }

    /// Takes all lines up to this one.
    fn read_until(&mut self, last: &Value) {
        loop {
            let mut line = String::new();
            let len = self.stream.read_line(&mut line).expect("it comes");
            assert!(len > 0, "{last} is due, and the connection is closed");
            if serde_json::from_str::<Value>(&line).is_ok_and(|got| got == *last) {
                return;
            }
        }
    }

    /// Takes all that is due, and nothing else comes before it.
    fn take(&mut self) {
        for due in std::mem::take(&mut self.due) {
            let mut line = String::new();
            let len = self.stream.read_line(&mut line).expect("what is due comes");
            assert!(len > 0, "{due} is due, and the connection is closed");
            let got: Value = serde_json::from_str(&line).expect("a line of JSON");
            if due["error"] == "*" {
                assert!(got["event"] == "reply" && got["ok"] == false && got.get("id").is_none(), "{got}");
            } else {
                assert_eq!(got, due);
            }
        }
    }
}

/// A refusal by the broker itself, in any words.
fn refusal() -> Value {
    serde_json::json!({ "error": "*" })
}

/// What a line of a client is.
enum Line {
    Nothing,
    Refused,
    Introduction(Map<String, Value>),
    Command(Map<String, Value>),
}

fn judge(line: &[u8]) -> Line {
    if line.len() > MOST {
        return Line::Refused;
    }
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end();
    if text.is_empty() {
        return Line::Nothing;
    }
    let Ok(Value::Object(members)) = serde_json::from_str(text) else { return Line::Refused };
    let is_about_itself = members.keys().all(|name| ["events", "who", "address"].contains(&name.as_str()));
    if is_about_itself && members.get("events").is_some_and(Value::is_boolean) {
        return Line::Introduction(members);
    }
    match members.get("id") {
        None | Some(Value::Null) => Line::Command(members),
        Some(id) if id.is_u64() => Line::Command(members),
        Some(_) => Line::Refused,
    }
}

/// What a command asks of a guest's output.
fn follow(members: &Map<String, Value>) -> Option<(String, bool)> {
    let is_follow = members.get("command")? == "follow";
    let (guest, on) = (members.get("guest")?.as_str()?, members.get("on")?.as_bool()?);
    is_follow.then(|| (guest.to_owned(), on))
}

/// The clients and the port.
struct World<'a> {
    port: &'a mut Port,
    listener: &'a mut Client,
    clients: Vec<Client>,
}

impl World<'_> {
    fn others_follow(&self, number: usize, guest: &str) -> bool {
        self.clients.iter().enumerate().any(|(n, client)| n != number && client.follows.contains(guest))
    }

    /// Sidecore says something that answers nothing. All of it is where it belongs when this returns: before anything that a client
    /// changes of what it gets.
    fn event(&mut self, line: &str) {
        self.port.marks += 1;
        let mark = serde_json::json!({ "event": "mark", "number": self.port.marks });
        self.port.say(line);
        self.port.say(&mark.to_string());
        self.listener.read_until(&mark);
        let event = serde_json::from_str::<Value>(line.trim_end()).ok();
        // With an `id` it is an answer to a command, for which nobody waits.
        for event in event.filter(|event| event.is_object() && !event["id"].is_u64()).iter().chain([&mark]) {
            let is_output = event["event"] == "output";
            let guest = event["guest"].as_str().unwrap_or_default();
            for client in &mut self.clients {
                if if is_output { client.follows.contains(guest) } else { client.events } {
                    client.due.push_back(event.clone());
                }
            }
        }
        self.clients.iter_mut().for_each(Client::take);
    }

    /// A client sends a line.
    fn send(&mut self, number: usize, line: &[u8], input: &mut Input<'_>) {
        let is_new = std::mem::take(&mut self.clients[number].is_new);
        self.clients[number].send(line);
        match judge(line) {
            Line::Nothing => {}
            Line::Refused => self.clients[number].due.push_back(refusal()),
            Line::Introduction(members) => {
                let client = &mut self.clients[number];
                client.events = members["events"] == true;
                if is_new {
                    let text = |name: &str| members.get(name).and_then(Value::as_str).unwrap_or_default();
                    client.sender = Sender::new(text("who"), text("address"));
                }
                // It counts when the next command has come.
                self.ask(number, &Map::from_iter([("command".to_owned(), "list".into())]), input);
            }
            Line::Command(members) => self.command(number, members, input),
        }
        self.clients[number].take();
    }

    fn ask(&mut self, number: usize, members: &Map<String, Value>, input: &mut Input<'_>) {
        self.clients[number].send(serde_json::to_string(members).expect("JSON").as_bytes());
        self.command(number, members.clone(), input);
    }

    /// A command of a client comes to sidecore, which answers.
    fn command(&mut self, number: usize, members: Map<String, Value>, input: &mut Input<'_>) {
        let own = members.get("id").and_then(Value::as_u64);
        let follow = follow(&members);
        if let Some((guest, false)) = &follow
            && self.others_follow(number, guest)
        {
            let client = &mut self.clients[number];
            client.follows.remove(guest);
            let done = Event::done(own).to_line().expect("there is memory");
            client.due.push_back(serde_json::from_str(&done).expect("JSON"));
            return;
        }
        let (mut came, id, line) = self.port.command();
        let mut expected = members;
        expected.insert("id".into(), id.into());
        let sender = &self.clients[number].sender;
        for (name, said) in [("who", &*sender.who), ("address", &*sender.address)] {
            expected.remove(name);
            if !said.is_empty() {
                expected.insert(name.into(), said.into());
            }
        }
        if planted() {
            came.insert("who".into(), "root".into());
        }
        assert_eq!(came, expected, "the command that came to sidecore");
        is_answerable(&line, id);
        // Something else may come before.
        if input.byte() < 64 {
            self.event(&super::said::event_line(input, None).replace('\n', " "));
        }
        if input.byte() < 16 {
            self.event(&format!("{{\"event\":\"reply\",\"ok\":true,\"id\":{}}}", id + 1 + input.wide() % 1000));
        }
        let mut answer = match &follow {
            Some((guest, true)) if input.byte() < 192 => {
                self.clients[number].follows.insert(guest.clone());
                serde_json::json!({ "event": "output", "guest": guest, "at": 0, "text": "before" })
            }
            _ => match serde_json::from_str::<Value>(&super::said::event_line(input, Some(1))) {
                Ok(answer @ Value::Object(_)) if answer["event"] != "output" => answer,
                _ => serde_json::json!({ "event": "reply", "ok": input.flag() }),
            },
        };
        if let Some((guest, false)) = &follow {
            self.clients[number].follows.remove(guest);
        }
        answer["id"] = id.into();
        self.port.say(&answer.to_string());
        let members = answer.as_object_mut().expect("an object");
        match own {
            Some(own) => _ = members.insert("id".into(), own.into()),
            None => _ = members.remove("id"),
        }
        self.clients[number].due.push_back(answer);
    }

    /// A client leaves. What it alone has followed ends.
    fn leave(&mut self, number: usize) {
        let mut client = self.clients.swap_remove(number);
        client.stream.get_ref().shutdown(Shutdown::Write).expect("it is connected");
        let follows = client.follows.iter();
        let mut ending: BTreeSet<&String> = follows.filter(|guest| !self.others_follow(usize::MAX, guest)).collect();
        while !ending.is_empty() {
            let (members, ..) = self.port.command();
            let Some((guest, false)) = follow(&members) else { panic!("{members:?}") };
            assert!(ending.remove(&guest) && members.len() == 4, "{members:?}");
        }
        // When the connection is closed, the broker has forgotten it.
        client.take();
        let mut rest = String::new();
        client.stream.read_to_string(&mut rest).expect("the connection ends");
        assert_eq!(rest, "", "nothing else comes");
    }
}

/// Checks that sidecore can answer a command, whatever it is: it finds the `id`. Otherwise the client waits in vain, and all others that
/// have asked for events get the refusal.
fn is_answerable(line: &str, id: u64) {
    let said = control::Request::from_line(line).map_or_else(|bad| bad.id, |request| request.id);
    let is_good = line.len() <= MAX_LINE + 1 && said == Some(id);
    assert!(is_good, "no answer to it can have its `id`: {} bytes: {line:.300}", line.len());
}

/// Runs one input.
pub fn run(input: &mut Input<'_>) {
    BROKERS.with(Broker::new, |broker| run_on(broker, input));
}

fn run_on(Broker { port, socket, listener }: &mut Broker, input: &mut Input<'_>) {
    let mut world = World { port, listener, clients: Vec::new() };
    for _ in 0..1 + input.byte() % STEPS {
        let number = usize::from(input.byte()) % CLIENTS;
        if number >= world.clients.len() {
            world.clients.push(Client::connect(socket));
            continue;
        }
        match input.byte() {
            0..128 => {
                let line = super::said::client_line(input).replace('\n', " ");
                // What is no character was a byte.
                let line = line.split('\u{fffd}').map(str::as_bytes).collect::<Vec<_>>().join(&0xff);
                world.send(number, &line, input);
            }
            128..160 => {
                let guest = super::said::GUESTS[usize::from(input.byte() % 2)];
                let line = format!(
                    "{{\"command\":\"follow\",\"guest\":\"{guest}\",\"on\":{},\"id\":{}}}",
                    input.flag(),
                    input.byte()
                );
                world.send(number, line.as_bytes(), input);
            }
            160..184 => {
                let (who, address) = (super::said::pieces(input, &super::said::MEMBERS, ""), input.wide().to_string());
                let line = serde_json::json!({ "events": input.flag(), "who": who, "address": address });
                world.send(number, line.to_string().as_bytes(), input);
            }
            184..240 => {
                let id = (input.byte() < 32).then_some(u64::MAX);
                world.event(&super::said::event_line(input, id).replace('\n', " "));
            }
            _ => world.leave(number),
        }
    }
    // All of it has come when the answer to a last command has.
    for number in 0..world.clients.len() {
        world.send(number, b"{\"command\":\"list\",\"id\":0}", input);
    }
    while !world.clients.is_empty() {
        world.leave(0);
    }
}
