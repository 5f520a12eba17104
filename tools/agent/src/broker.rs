//! `serve`: owns the port, and shares it among clients of a unix socket.
//!
//! Each line of a client is a command. The broker gives it an `id` of its own, and gives the answer to that client, with the
//! client's `id`, and with who the client is, if its first line has said that. A client has one command at a time on the port, so that none keeps the others waiting with many. Lines without
//! an `id` are events; they go to the clients that asked for them. A guest's output as it comes goes to the clients that follow that
//! guest, and the last one of them ends it (`follow`). Nothing waits for a client: a client that does not read loses
//! events, and is disconnected when it does not take an answer.

use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use control::{Command, Event, MAX_ADDRESS, MAX_LINE, MAX_WHO, Notice, Request, Sender};
use serde_json::{Map, Value};

use crate::keys::fingerprint;
use crate::lines::{MAX_EVENT, read_line};

/// Most clients at a time.
pub const MAX_CLIENTS: usize = 32;
/// Lines that wait for a client to read them.
const QUEUE: usize = 256;
/// Time for an answer of the hypervisor.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// Time for a client to take what waits for it.
const CLIENT_TIME: Duration = Duration::from_secs(30);
/// Time until the port is read again, when the hypervisor has it closed.
const REOPEN: Duration = Duration::from_millis(100);
/// Bytes that a command may grow by when it gets another `id`, and who has sent it.
const OWN_BYTES: usize = 40 + MAX_WHO + MAX_ADDRESS + "\"who\":\"\",\"address\":\"\",".len();

/// The state of the clients and their commands.
#[derive(Default)]
struct State {
    clients: HashMap<u64, Client>,
    /// The commands on their way, by the broker's `id`.
    pending: HashMap<u64, Pending>,
    /// The last `id` given, to clients and to commands.
    last: u64,
}

struct Client {
    lines: SyncSender<String>,
    events: bool,
    /// The guests whose output it gets as it comes.
    follows: HashSet<String>,
    stream: UnixStream,
}

/// A command on its way.
struct Pending {
    client: u64,
    id: Option<u64>,
    follow: Option<Follow>,
}

/// What a client asks of a guest's output.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Follow {
    guest: String,
    on: bool,
}

impl Follow {
    /// `None`: the command is another one.
    fn of(members: &Map<String, Value>) -> Option<Self> {
        (members.get("command")?.as_str()? == "follow").then_some(())?;
        Some(Self { guest: members.get("guest")?.as_str()?.to_owned(), on: members.get("on")?.as_bool()? })
    }
}

/// What the threads share.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    answered: Condvar,
    /// Held from the decision whether a `follow` goes to the port until it is on its way there. So none overtakes another one.
    order: Mutex<()>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for its turn to give the port a `follow`. The reader of the port never waits for it.
    fn order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Whether another client follows a guest, or is about to.
    fn others_follow(&self, client: u64, guest: &str) -> bool {
        let follows = |(&number, it): (&u64, &Client)| number != client && it.follows.contains(guest);
        let asks = |pending: &Pending| {
            pending.client != client && pending.follow.as_ref().is_some_and(|follow| follow.on && follow.guest == guest)
        };
        self.clients.iter().any(follows) || self.pending.values().any(asks)
    }

    /// Notes what a client follows, as the hypervisor has answered. It has answered every `follow` before that of output.
    fn answered(&mut self, client: u64, follow: Option<Follow>, is_output: bool) {
        let (Some(Follow { guest, on }), Some(client)) = (follow, self.clients.get_mut(&client)) else { return };
        match on {
            true if is_output => _ = client.follows.insert(guest),
            true => {}
            false => _ = client.follows.remove(&guest),
        }
    }

    /// Gives a line to a client. A client whose queue is full is disconnected if the line is an answer.
    fn give(&mut self, client: u64, line: String, is_answer: bool) {
        let Some(to) = self.clients.get(&client) else { return };
        if let Err(TrySendError::Full(_)) = to.lines.try_send(line)
            && is_answer
        {
            // Its threads see the end of the stream.
            let _ = to.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Serves clients for good. While the hypervisor has the port closed, they get no answers. `host_keys`: files with the public keys of this
/// guest's sshd, of which the hypervisor is told. One that cannot be read is said, and left out.
///
/// # Errors
/// The port or the socket cannot be opened.
pub fn serve(port: &Path, socket: &Path, host_keys: &[PathBuf]) -> Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(port)
        .with_context(|| format!("cannot open the port {}", port.display()))?;
    let listener = listen(socket)?;
    let from = file.try_clone()?;
    // What an earlier owner of the port has left unfinished ends by the line feed.
    serve_with(&format!("\n{}", reports(host_keys)), from, file, &listener);
    Ok(())
}

/// The lines by which the hypervisor is told of host keys. No client has their `id`, so nobody gets the answers.
fn reports(host_keys: &[PathBuf]) -> String {
    let mut lines = String::new();
    for path in host_keys {
        match fs::read_to_string(path).map_err(|error| error.to_string()).and_then(|key| fingerprint(&key)) {
            Ok(line) => {
                let notice = Command::Notice { what: Notice::HostKey, line, why: String::new() };
                lines.push_str(&Request::new(Some(0), notice).to_line());
            }
            Err(why) => eprintln!("sidecore-agent: the host key {}: {why}", path.display()),
        }
    }
    lines
}

fn listen(socket: &Path) -> Result<UnixListener> {
    if let Some(folder) = socket.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove the old {}", socket.display()));
        }
        _ => {}
    }
    let listener = UnixListener::bind(socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
    // The group is that of the users who may manage the machine.
    fs::set_permissions(socket, fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Serves clients of `listener` over a port. `first` is written to the port before any command. Nobody waits for that: the
/// hypervisor may take nothing before the answers to an earlier owner's commands have been read.
fn serve_with(first: &str, from: impl Read + Send + 'static, to: impl Write + Send + 'static, listener: &UnixListener) {
    let shared = Arc::new(Shared::default());
    let (commands, to_port) = sync_channel(MAX_CLIENTS);
    // It has room for the first one.
    let _ = commands.send(first.to_owned());
    thread::spawn(move || write_port(to, &to_port));
    let reader = shared.clone();
    thread::spawn(move || read_port(BufReader::new(from), &reader));
    for stream in listener.incoming() {
        match stream {
            Ok(stream) => {
                if let Err(error) = begin(stream, &shared, &commands) {
                    eprintln!("sidecore-agent: a client: {error:#}");
                }
            }
            Err(error) => {
                eprintln!("sidecore-agent: the socket: {error}");
                thread::sleep(REOPEN);
            }
        }
    }
}

/// Writes commands to the port. It waits while the hypervisor takes none.
fn write_port(mut port: impl Write, commands: &Receiver<String>) {
    for command in commands {
        if let Err(error) = port.write_all(command.as_bytes()) {
            eprintln!("sidecore-agent: the port takes nothing: {error}");
            thread::sleep(REOPEN);
        }
    }
}

/// Reads the port, and gives its lines to clients.
fn read_port(mut port: impl io::BufRead, shared: &Shared) {
    loop {
        match read_line(&mut port, MAX_EVENT) {
            Ok(Some(Some(line))) => handle(&line, shared),
            Ok(Some(None)) => eprintln!("sidecore-agent: a line of the hypervisor is longer than {MAX_EVENT} bytes"),
            // The hypervisor has the port closed.
            Ok(None) => thread::sleep(REOPEN),
            Err(error) => {
                eprintln!("sidecore-agent: the port: {error}");
                thread::sleep(REOPEN);
            }
        }
    }
}

/// Gives a line of the hypervisor to the client that waits for it, or to all that want events.
fn handle(line: &str, shared: &Shared) {
    // The beginning of the conversation may be the rest of an earlier one.
    let Ok(Value::Object(mut members)) = serde_json::from_str(line) else { return };
    let mut state = shared.state();
    match members.get("id").and_then(Value::as_u64) {
        Some(id) => {
            let Some(Pending { client, id, follow }) = state.pending.remove(&id) else { return };
            state.answered(client, follow, is_output(&members));
            set_id(&mut members, id);
            state.give(client, to_line(&members), true);
            drop(state);
            shared.answered.notify_all();
        }
        None => {
            let line = format!("{line}\n");
            let guest = members.get("guest").and_then(Value::as_str).unwrap_or_default();
            let is_for =
                |client: &Client| if is_output(&members) { client.follows.contains(guest) } else { client.events };
            let all: Vec<u64> = state.clients.iter().filter(|(_, it)| is_for(it)).map(|(&number, _)| number).collect();
            all.into_iter().for_each(|client| state.give(client, line.clone(), false));
        }
    }
}

/// Whether a line has a guest's output as it comes.
fn is_output(members: &Map<String, Value>) -> bool {
    members.get("event").and_then(Value::as_str) == Some("output")
}

fn set_id(members: &mut Map<String, Value>, id: Option<u64>) {
    match id {
        Some(id) => members.insert("id".into(), id.into()),
        None => members.remove("id"),
    };
}

fn to_line(members: &Map<String, Value>) -> String {
    let mut line = serde_json::to_string(members).unwrap_or_default();
    line.push('\n');
    line
}

/// The line of a command with this `id`. It comes first: sidecore reads a line up to the first mistake, and its refusal has the `id` only if
/// that was before.
fn with_id_first(id: u64, members: &Map<String, Value>) -> String {
    let others = to_line(members);
    let comma = if members.is_empty() { "" } else { "," };
    format!("{{\"id\":{id}{comma}{}", others.strip_prefix('{').unwrap_or(&others))
}

/// Begins to serve a client.
fn begin(stream: UnixStream, shared: &Arc<Shared>, commands: &SyncSender<String>) -> Result<()> {
    stream.set_write_timeout(Some(CLIENT_TIME))?;
    let (lines, queue) = sync_channel(QUEUE);
    let (mut to, from) = (stream.try_clone()?, stream.try_clone()?);
    let number = {
        let mut state = shared.state();
        if state.clients.len() >= MAX_CLIENTS {
            let _ = to.write_all(refusal(None, "there are too many clients").as_bytes());
            return Ok(());
        }
        let number = state.next();
        state.clients.insert(number, Client { lines, events: false, follows: HashSet::new(), stream });
        number
    };
    thread::spawn(move || {
        for line in queue {
            if to.write_all(line.as_bytes()).is_err() {
                let _ = to.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    });
    let (shared, commands) = (shared.clone(), commands.clone());
    thread::spawn(move || {
        // A client that breaks the connection is no error.
        let _ = read_client(number, BufReader::new(from), &shared, &commands);
        end(number, &shared, &commands);
    });
    Ok(())
}

/// Ends serving a client, and has no output sent that nobody follows any more.
fn end(number: u64, shared: &Shared, commands: &SyncSender<String>) {
    let _order = shared.order();
    let mut state = shared.state();
    // What waits for it is still written; then the connection ends.
    let followed = state.clients.remove(&number).map(|client| client.follows).unwrap_or_default();
    // A `follow` that is not answered yet may still begin.
    let asked = state.pending.values().filter(|pending| pending.client == number);
    let asked = asked.filter_map(|pending| pending.follow.clone()).filter(|follow| follow.on).map(|it| it.guest);
    let mut guests: HashSet<String> = asked.chain(followed).collect();
    state.pending.retain(|_, pending| pending.client != number);
    guests.retain(|guest| !state.others_follow(number, guest));
    // Nobody waits for the answers.
    let lines: Vec<_> = guests
        .into_iter()
        .map(|guest| Request::new(Some(state.next()), Command::Follow { guest, on: false }).to_line())
        .collect();
    drop(state);
    lines.into_iter().for_each(|line| _ = commands.send(line));
}

/// The line of an answer that the broker gives itself.
fn refusal(id: Option<u64>, why: &str) -> String {
    Event::refused(id, why.to_owned().into()).to_line().unwrap_or_default()
}

/// Reads a client's commands, one after the other.
fn read_client(
    number: u64,
    mut from: impl io::BufRead,
    shared: &Shared,
    commands: &SyncSender<String>,
) -> io::Result<()> {
    let (mut sender, mut is_first) = (Sender::default(), true);
    while let Some(line) = read_line(&mut from, MAX_LINE - OWN_BYTES)? {
        let introduces = std::mem::take(&mut is_first);
        let refuse = |id, why: &str| shared.state().give(number, refusal(id, why), true);
        let Some(line) = line else {
            refuse(None, "the line is too long");
            continue;
        };
        if line.is_empty() {
            continue;
        }
        let mut members = match serde_json::from_str(&line) {
            Ok(Value::Object(members)) => members,
            Ok(_) => {
                refuse(None, "not a command: expected a JSON object");
                continue;
            }
            Err(error) => {
                refuse(None, &format!("not a command: {error}"));
                continue;
            }
        };
        if let Some(events) = members.get("events").and_then(Value::as_bool).filter(|_| is_introduction(&members)) {
            // Not a command: what the client wants of the broker, and who it is. It says that once.
            if let Some(client) = shared.state().clients.get_mut(&number) {
                client.events = events;
            }
            if introduces {
                let text = |name| members.get(name).and_then(Value::as_str).unwrap_or_default();
                sender = Sender::new(text("who"), text("address"));
            }
            continue;
        }
        let id = match members.get("id") {
            None | Some(Value::Null) => None,
            Some(id) if id.as_u64().is_some() => id.as_u64(),
            Some(id) => {
                refuse(None, &format!("not a command: `id` is {id}; expected an integer from 0"));
                continue;
            }
        };
        let follow = Follow::of(&members);
        let order = follow.as_ref().map(|_| shared.order());
        let own = {
            let mut state = shared.state();
            if let Some(Follow { guest, on: false }) = &follow
                && state.others_follow(number, guest)
            {
                state.answered(number, follow, false);
                state.give(number, Event::done(id).to_line().unwrap_or_default(), true);
                continue;
            }
            let own = state.next();
            state.pending.insert(own, Pending { client: number, id, follow });
            own
        };
        members.remove("id");
        for (name, said) in [("who", &*sender.who), ("address", &*sender.address)] {
            members.remove(name);
            if !said.is_empty() {
                members.insert(name.into(), said.into());
            }
        }
        // It may be longer than it came: numbers and damaged characters are written in full.
        let line = with_id_first(own, &members);
        if line.len() > MAX_LINE {
            shared.state().pending.remove(&own);
            refuse(id, "the line is too long");
            continue;
        }
        if commands.send(line).is_err() {
            return Ok(());
        }
        drop(order);
        wait_for_answer(own, number, id, shared);
    }
    Ok(())
}

/// Whether a line is about the client itself.
fn is_introduction(members: &Map<String, Value>) -> bool {
    members.keys().all(|name| matches!(name.as_str(), "events" | "who" | "address"))
}

/// Waits until a command is answered. After [`ANSWER_TIME`] the client is told that there is no answer.
fn wait_for_answer(own: u64, client: u64, id: Option<u64>, shared: &Shared) {
    let end = Instant::now() + ANSWER_TIME;
    let mut state = shared.state();
    while state.pending.contains_key(&own) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            state.pending.remove(&own);
            state.give(client, refusal(id, "the hypervisor does not answer"), true);
            return;
        }
        state =
            shared.answered.wait_timeout(state, left).map_or_else(|broken| broken.into_inner().0, |(state, _)| state);
    }
}

#[cfg(test)]
pub(crate) mod tests;
