use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use control::{Counters, Notice, Permissions, Way};

use super::*;
use crate::client::{Broker, Client};
use crate::input::Input;
use crate::key::Key;
use crate::shell::{Exit, Shell};

/// A hypervisor that answers what `answer` says, and a broker at its port. Returns the broker's socket.
pub(crate) fn machine(answer: impl Fn(&Request) -> Vec<String> + Send + 'static) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let socket = std::env::temp_dir().join(format!("sidecore-agent-{}-{number}", std::process::id()));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let listener = listen(&socket).unwrap();
    let from = ours.try_clone().unwrap();
    thread::spawn(move || serve_with("", from, ours, &listener));
    thread::spawn(move || {
        let mut to = theirs.try_clone().unwrap();
        let mut from = BufReader::new(theirs);
        while let Ok(Some(line)) = read_line(&mut from, MAX_LINE) {
            let request = Request::from_line(&line.unwrap()).unwrap();
            answer(&request).iter().for_each(|line| to.write_all(line.as_bytes()).unwrap());
        }
    });
    socket
}

fn done(request: &Request) -> String {
    Event::done(request.id).to_line().unwrap()
}

/// A port that takes nothing before all that waits in it has been read, as the hypervisor's channel does.
struct Full(std::sync::mpsc::Receiver<()>, std::sync::mpsc::Sender<Vec<u8>>);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // It gives an error once its other end has been read and dropped, and is open from then on.
        let _ = self.0.recv();
        let _ = self.1.send(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Left(io::Cursor<Vec<u8>>, Option<std::sync::mpsc::Sender<()>>);

impl Read for Left {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = self.0.read(bytes)?;
        if len == 0 {
            self.1 = None;
        }
        Ok(len)
    }
}

#[test]
fn what_an_earlier_owner_left_is_read_before_anything_can_be_written() {
    let socket = PathBuf::from(format!("/tmp/sidecore-broker-left-{}", std::process::id()));
    let listener = listen(&socket).unwrap();
    let (read, all_read) = std::sync::mpsc::channel();
    let (written, got) = std::sync::mpsc::channel();
    let answers = b"{\"event\":\"reply\",\"id\":7,\"ok\":true}\n".repeat(100);
    let from = Left(io::Cursor::new(answers), Some(read));
    thread::spawn(move || serve_with("\n", from, Full(all_read, written), &listener));
    assert_eq!(got.recv_timeout(Duration::from_secs(30)).as_deref(), Ok(&b"\n"[..]));
    fs::remove_file(socket).unwrap();
}

#[test]
fn each_client_gets_its_own_answers_with_its_own_ids() {
    // The version is the name of the guest that the client has asked to start.
    let socket = machine(|request| {
        let version = request.command.guest().map(|guest| guest.to_owned().into());
        let reply = Event::Reply { id: request.id, ok: true, error: None, guests: None, version };
        vec![reply.to_line().unwrap()]
    });
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let socket = socket.clone();
            thread::spawn(move || {
                let mut client = Client::connect(&socket, false).unwrap();
                for round in 0..50 {
                    let name = format!("{number}-{round}");
                    let (answer, events) = client.ask(Command::Start(name.clone())).unwrap();
                    assert!(matches!(answer, Event::Reply { version: Some(version), .. } if version == name));
                    assert!(events.is_empty());
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn events_go_to_those_that_want_them() {
    let log = || Event::Log { level: control::Level::Info, text: "hello".into() }.to_line().unwrap();
    let socket = machine(move |request| vec!["half a li\n".to_owned(), log(), done(request)]);
    for (wants, got) in [(true, 1), (false, 0)] {
        let mut client = Client::connect(&socket, wants).unwrap();
        assert_eq!(client.ask(Command::List).unwrap().1.len(), got);
    }
}

/// A machine whose guest `a` writes something whenever it is asked for `list`. Returns what it was asked to follow, too.
fn writing() -> (PathBuf, std::sync::mpsc::Receiver<(String, bool)>) {
    let (tell, told) = std::sync::mpsc::channel();
    let socket = machine(move |request| {
        let output = |id, at| Event::Output { id, guest: "a".into(), at, text: "login: ".into() }.to_line().unwrap();
        match &request.command {
            Command::Follow { guest, on } => {
                let _ = tell.send((guest.clone(), *on));
                match (&**guest, on) {
                    ("a", true) => vec![output(request.id, 0)],
                    ("a", false) => vec![done(request)],
                    _ => vec![Event::refused(request.id, "no guest".into()).to_line().unwrap()],
                }
            }
            _ => vec![output(None, 7), done(request)],
        }
    });
    (socket, told)
}

#[test]
fn output_goes_to_those_who_follow_and_the_last_one_ends_it() {
    let (socket, told) = writing();
    let next = || told.recv_timeout(Duration::from_secs(30)).unwrap();
    let follow = |guest: &str, on| Command::Follow { guest: guest.into(), on };
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(&socket, true).unwrap()).collect();
    let outputs = |client: &mut Client| client.ask(Command::List).unwrap().1.len();
    for client in &mut clients[..2] {
        assert!(matches!(client.ask(follow("a", true)), Ok((Event::Output { .. }, _))));
        assert_eq!(next(), ("a".to_owned(), true));
    }
    // Who was refused does not follow, whatever guest of that name comes later.
    assert!(clients[2].ask(follow("b", true)).is_err());
    assert_eq!(next(), ("b".to_owned(), true));
    let got: Vec<_> = clients.iter_mut().map(outputs).collect();
    // Each has also got what the clients before it have asked for.
    assert_eq!((got[0], got[1] >= 1, got[2], got[3]), (1, true, 0, 0));
    // The first one ends it for itself, and the other goes on.
    assert!(matches!(clients[0].ask(follow("a", false)), Ok((Event::Reply { ok: true, .. }, _))));
    assert!(told.try_recv().is_err(), "the port is not told");
    assert!(outputs(&mut clients[1]) >= 1);
    let mut last = clients.remove(1);
    assert_eq!(outputs(&mut clients[0]), 0);
    // One that goes away does so without a word.
    assert!(last.ask(follow("a", true)).is_ok());
    assert_eq!(next(), ("a".to_owned(), true));
    drop(last);
    assert_eq!(next(), ("a".to_owned(), false));
}

#[test]
fn what_is_no_command_is_refused_before_the_port() {
    let socket = machine(|request| vec![done(request)]);
    let mut stream = UnixStream::connect(&socket).unwrap();
    let long = "x".repeat(2 * MAX_LINE);
    stream
        .write_all(format!("{long}\n[1]\nnonsense\n{{\"id\":-1}}\n{{\"command\":\"list\",\"id\":5}}\n").as_bytes())
        .unwrap();
    let mut answers = BufReader::new(stream);
    let mut next = || Event::from_line(&read_line(&mut answers, MAX_EVENT).unwrap().unwrap().unwrap()).unwrap();
    for _ in 0..4 {
        assert!(matches!(next(), Event::Reply { id: None, ok: false, .. }));
    }
    assert_eq!(next(), Event::done(Some(5)));
}

#[test]
fn there_is_a_limit_of_clients_and_a_place_is_free_when_one_leaves() {
    let socket = machine(|request| vec![done(request)]);
    let mut clients: Vec<_> = (0..MAX_CLIENTS).map(|_| Client::connect(&socket, false).unwrap()).collect();
    clients.iter_mut().for_each(|client| _ = client.ask(Command::List).unwrap());
    let refused = Client::connect(&socket, false).and_then(|mut client| client.ask(Command::List));
    assert!(!matches!(refused, Ok((Event::Reply { ok: true, .. }, _))));
    clients.pop();
    let deadline = Instant::now() + Duration::from_secs(20);
    let served = || {
        let asked = Client::connect(&socket, false).and_then(|mut client| client.ask(Command::List));
        matches!(asked, Ok((Event::Reply { ok: true, .. }, _)))
    };
    while !served() {
        assert!(Instant::now() < deadline);
    }
}

fn run(socket: &Path, allowed: Permissions, line: &str) -> (Exit, String, String) {
    run_as(socket, &Key::new("anna", "10.0.0.5", allowed, None), line)
}

fn run_as(socket: &Path, key: &Key, line: &str) -> (Exit, String, String) {
    run_with(socket, key, line, None)
}

fn run_with(socket: &Path, key: &Key, line: &str, file: Option<&[u8]>) -> (Exit, String, String) {
    let broker = Broker { socket: socket.into(), sender: key.sender() };
    let shell = Shell { broker: &broker, trace_port: Path::new("/nonexistent"), key };
    let (mut out, mut errors) = (Vec::new(), Vec::new());
    let (from, mut to) = io::pipe().unwrap();
    let file = file.unwrap_or_default().to_vec();
    // Whoever does not read it all lets it fail.
    thread::spawn(move || to.write_all(&file));
    let mut input = Input::new(from.into());
    let exit = shell.run(line, false, &mut input, &mut out, &mut errors);
    (exit, String::from_utf8(out).unwrap(), String::from_utf8(errors).unwrap())
}

#[test]
fn a_command_has_who_the_client_s_first_line_says() {
    let (sent, got) = std::sync::mpsc::channel();
    let socket = machine(move |request| {
        sent.send(request.sender.clone()).unwrap();
        vec![done(request)]
    });
    let next = |line: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        let sender = got.recv_timeout(Duration::from_secs(30)).unwrap();
        (sender.who.to_string(), sender.address.to_string())
    };
    let said = |who: &str, address: &str| (who.to_owned(), address.to_owned());
    let list = r#"{"command":"list","who":"forged","address":"x"}"#;
    let anna = r#"{"events":false,"who":"anna","address":"10.0.0.5"}"#;
    assert_eq!(next(&format!("{list}\n")), said("", ""), "a command does not say it");
    assert_eq!(next(&format!("{anna}\n{list}\n")), said("anna", "10.0.0.5"));
    let root = r#"{"events":true,"who":"root"}"#;
    assert_eq!(next(&format!("{anna}\n{root}\n{list}\n")), said("anna", "10.0.0.5"), "it is said once");
    assert_eq!(next(&format!("nonsense\n{root}\n{list}\n")), said("", ""), "and first");
    let long = format!(r#"{{"events":false,"who":"{0}","address":"{0}"}}"#, "\"w".repeat(200).replace('"', "\\\""));
    let text = "y".repeat(MAX_LINE - OWN_BYTES - 50);
    let input = format!(r#"{{"command":"input","guest":"a","text":"{text}"}}"#);
    assert_eq!(next(&format!("{long}\n{input}\n")), said(&"w".repeat(MAX_WHO), &"w".repeat(MAX_ADDRESS)));
}

#[test]
fn what_the_agent_refuses_is_reported_with_the_key_s_name() {
    let (sent, got) = std::sync::mpsc::channel();
    let socket = machine(move |request| {
        sent.send((request.sender.clone(), request.command.clone())).unwrap();
        vec![done(request)]
    });
    let bound = Key::new("anna", "10.0.0.5", Permissions::all(), Some(vec!["a".into()]));
    let (exit, _, errors) = run_as(&socket, &bound, "attach b");
    assert!(exit == Exit::Forbidden && errors.contains("which is bound to: a"), "{errors}");
    let (sender, command) = got.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!((&*sender.who, &*sender.address), ("anna", "10.0.0.5"));
    assert!(
        matches!(&command, Command::Notice { what: Notice::Refused, line, why } if line == "attach b" && why.contains("guest `b`")),
        "{command:?}"
    );
    assert_eq!(run_as(&socket, &bound, "stop a").0, Exit::Done);
    assert_eq!(got.recv_timeout(Duration::from_secs(30)).unwrap().1, Command::Stop("a".into()));
    assert!(got.try_recv().is_err(), "what is done needs no report");
}

/// A machine that takes modules, and changes guests in three looks.
#[test]
fn a_file_is_put_and_applied_whole() {
    let memory: &'static mut [u8] = Box::leak(vec![0; 1 << 20].into_boxed_slice());
    let store = Mutex::new((control::Store::new(memory), 0, 0));
    let socket = machine(move |request| {
        use base64::Engine as _;
        let (store, looks, soon) = &mut *store.lock().unwrap();
        let id = request.id;
        let unused = |_: &str| false;
        let result = match &request.command {
            Command::Put { module, bytes, sha256 } => {
                store.begin(0, module, *bytes, control::Sha256::parse(sha256).unwrap(), unused)
            }
            Command::PutData { module, at, data } => {
                let piece = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
                store.add(0, module, *at, &piece)
            }
            Command::PutEnd(module) => store.end(module, unused).map(drop),
            Command::Apply { module, dry, restart, confirm } => {
                assert_eq!((*restart, *confirm), (false, 60));
                *soon += 1;
                match store.get(module) {
                    // Other files were read just before.
                    Some(_) if (1..3).contains(soon) => Err(control::READ_TOO_SOON.into()),
                    Some(b"bad") => Err("apply.toml:1:1: bad: not TOML\nnothing was changed".into()),
                    Some(file) => {
                        let state = if *dry { control::ApplyState::Nothing } else { control::ApplyState::Running };
                        let text = format!("{} bytes\n", file.len());
                        return vec![Event::Applied { id, state, text }.to_line().unwrap()];
                    }
                    None => Err("there is no module".into()),
                }
            }
            Command::Applied => {
                *looks += 1;
                let state = match *looks {
                    3 => control::ApplyState::Unconfirmed,
                    6 => control::ApplyState::Failed,
                    _ => control::ApplyState::Running,
                };
                return vec![Event::Applied { id, state, text: format!("look {looks}\n") }.to_line().unwrap()];
            }
            other => panic!("{other:?}"),
        };
        vec![match result {
            Ok(()) => done(request),
            Err(why) => Event::refused(id, why).to_line().unwrap(),
        }]
    });
    let key = Key::new("anna", "10.0.0.5", Permissions::all(), None);
    let run = |line: &str, file: &[u8]| run_with(&socket, &key, line, Some(file));
    let file: Vec<u8> = (0..100_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
    let sum = crate::put::sha256(&file);
    assert_eq!(run("put web", &file), (Exit::Done, format!("{sum}  web\n"), String::new()));
    assert_eq!(run(&format!("put web2 {sum}"), &file).0, Exit::Done);
    let (exit, out, errors) = run(&format!("put web3 {sum}"), &file[..99_999]);
    assert!(exit == Exit::Refused && out.is_empty() && errors.contains("nothing of it is kept"), "{errors}");
    let (exit, out, _) = run("put web4 --json", b"abc");
    let Ok(Event::Modules { modules, .. }) = Event::from_line(&out) else { panic!("{out}") };
    assert_eq!((exit, modules[0].bytes, modules[0].sha256.len()), (Exit::Done, 3, 64));
    assert!(run("put large", &vec![0; 1 << 20]).2.contains("no room for 1048576 bytes"));
    assert_eq!(run("put empty", b""), (Exit::Usage, String::new(), "the file is empty\n".into()));
    assert_eq!(run_as(&socket, &key, "put web").0, Exit::Usage, "there is no file");

    assert_eq!(run("apply --dry-run --confirm 60", b"file"), (Exit::Done, "4 bytes\n".into(), String::new()));
    let (exit, out, _) = run("apply --confirm 60", b"file2");
    assert_eq!((exit, out.as_str()), (Exit::Done, "5 bytes\nlook 3\n"));
    let (exit, out, _) = run("apply --confirm 60 apply.toml", b"");
    assert_eq!((exit, out.as_str()), (Exit::Refused, "5 bytes\nlook 6\n"));
    let (exit, out, errors) = run("apply --confirm 60", b"bad");
    assert_eq!((exit, out.as_str()), (Exit::Refused, ""));
    assert_eq!(errors, "apply.toml:1:1: bad: not TOML\nnothing was changed\n");
    let viewer = Key::new("eve", "", Permissions::VIEW, None);
    assert_eq!(run_with(&socket, &viewer, "put web", Some(b"x")).0, Exit::Forbidden);
}

#[test]
fn whatever_help_lists_is_carried_out() {
    let socket = machine(|request| {
        vec![
            match &request.command {
                Command::Show(_) => Event::Counters(Counters { id: request.id, tsc_hz: 1, ..Counters::default() }),
                Command::Latency => {
                    Event::Latency(control::Latency { id: request.id, tsc_hz: 1, ..control::Latency::default() })
                }
                Command::Follow { guest, on: true } => {
                    Event::Output { id: request.id, guest: guest.clone(), at: 0, text: String::new() }
                }
                Command::Apply { .. } => {
                    Event::Applied { id: request.id, state: control::ApplyState::Done, text: String::new() }
                }
                _ => Event::done(request.id),
            }
            .to_line()
            .unwrap(),
        ]
    });
    let all = Permissions::all();
    let (_, help, _) = run(&socket, all, "help");
    let is_word = |line: &&str| line.starts_with(|c: char| c.is_ascii_lowercase());
    let words: Vec<_> = help.lines().filter(is_word).map(|line| line.split(' ').next().unwrap()).collect();
    for word in ["list", "attach", "top", "identify", "put", "counters"] {
        assert!(words.contains(&word), "{word} is not in {help}");
    }
    for word in words {
        let key = Key::new("anna", "", all, None);
        let run = |more: &str| run_with(&socket, &key, &format!("{word}{more}"), Some(b"file"));
        // One of these is how it is typed.
        let ends: Vec<_> = ["", " on", " a", " a off", " a weight 3", " a 49"].map(run).into();
        let is_done = ends.iter().any(|(exit, ..)| *exit == Exit::Done);
        // It needs a terminal, and says so.
        let is_top = word == "top" && ends[0].2.contains("ssh -t HOST top");
        // It ends a login without a command.
        assert!(is_done || is_top || word == "exit", "{word}: {ends:?}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
}

#[test]
fn commands_end_with_an_exit_code_that_says_how() {
    let mut audit = control::Audit::new();
    let cable = control::Caller::cable(Way::Com2, Permissions::all());
    audit.note(0, &cable, &(&Command::Kill("a".into())).into(), control::Outcome::Done, "");
    let socket = machine(move |request| {
        vec![match &request.command {
            Command::Show(_) => {
                Event::Counters(Counters { id: request.id, tsc_hz: 1, ..Counters::default() }).to_line().unwrap()
            }
            Command::Config => Event::Config { id: request.id, text: "# what runs\n".into() }.to_line().unwrap(),
            Command::Audit => Event::Audit { id: request.id, records: audit.copy().unwrap() }.to_line().unwrap(),
            Command::Kill(_) => Event::refused(request.id, "no guest `x`".into()).to_line().unwrap(),
            _ => done(request),
        }]
    });
    let all = Permissions::all();
    let (exit, out, errors) = run(&socket, all, "counters --json");
    assert!(matches!(Event::from_line(&out), Ok(Event::Counters(_))), "{exit:?} {out} {errors}");
    let (exit, out, errors) = run(&socket, all, "show audit");
    assert_eq!((exit, out.as_str(), errors.as_str()), (Exit::Done, "1970-01-01 00:00:00 COM2: kill a: done\n", ""));
    assert_eq!(run(&socket, all, "show config"), (Exit::Done, "# what runs\n".into(), String::new()));
    assert_eq!(run(&socket, all, "stop a"), (Exit::Done, String::new(), String::new()));
    assert_eq!(run(&socket, all, "kill x"), (Exit::Refused, String::new(), "no guest `x`\n".into()));
    let (exit, _, errors) = run(&socket, all, "lst");
    assert_eq!((exit, errors.as_str()), (Exit::Usage, "no command `lst`; did you mean `list`?\n"));
    let (exit, _, errors) = run(&socket, Permissions::VIEW, "stop a");
    assert!(exit == Exit::Forbidden && errors.contains("needs the permission `operate`"), "{errors}");
    // There is no port for a trace, and no permission.
    assert_eq!(run(&socket, all, "trace save").0, Exit::NoAnswer);
    assert_eq!(run(&socket, Permissions::VIEW, "trace save").0, Exit::Forbidden);
    assert!(run(&socket, all, "help").1.contains("--json"));
    assert_eq!(run(Path::new("/nonexistent"), all, "list").0, Exit::NoAnswer);
}

#[test]
fn the_hypervisor_is_told_of_the_host_keys_that_can_be_read() {
    let (good, bad) = (std::env::temp_dir().join("sidecore-agent-host-key"), PathBuf::from("/nowhere/host_key.pub"));
    fs::write(&good, "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGBKS1wNCFmu4p0xf+K6BHOTO8/AhZ7JCdtFR1tg2vpF x\n").unwrap();
    let lines = reports(&[bad, good.clone()]);
    fs::remove_file(good).unwrap();
    let request = Request::from_line(lines.strip_suffix('\n').unwrap()).unwrap();
    let line = "SHA256:OzlprdmD0SRJMwdl3APzwPy7jmoZsibNQhX5yJMi6gQ (ED25519)".to_owned();
    assert_eq!(request.command, Command::Notice { what: Notice::HostKey, line, why: String::new() });
    assert_eq!(request.id, Some(0));
}
