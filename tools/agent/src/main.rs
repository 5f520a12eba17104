//! `sidecore-agent`: the command line of the management guest's programs.

use std::env;
use std::io::{self, BufReader, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use control::Notice;
use sidecore_agent::client::{Broker, Failed};
use sidecore_agent::input::Input;
use sidecore_agent::key::Key;
use sidecore_agent::shell::{Exit, Shell, allowed};
use sidecore_agent::{broker, keys, metrics, pipe, syslog};

/// Manages the machine from its management guest.
///
/// Exit codes: 0 done, 1 refused by the hypervisor, 2 no such command, 3 the hypervisor does not answer, 4 no permission.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// The broker's socket.
    #[arg(long, default_value = "/run/sidecore/control.sock", global = true)]
    socket: PathBuf,
    /// The port that a trace comes from.
    #[arg(long, default_value = "/dev/virtio-ports/org.sidecore.trace", global = true)]
    trace_port: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Owns the port to the hypervisor, and shares it among the other programs.
    Serve {
        /// The port.
        #[arg(long, default_value = "/dev/virtio-ports/org.sidecore.control")]
        port: PathBuf,
        /// A public key of this guest's sshd (may be given more than once). The machine's console says its fingerprint, so that whoever
        /// logs in for the first time can compare it.
        #[arg(long, value_name = "FILE")]
        host_key: Vec<PathBuf>,
    },
    /// The forced command of ssh keys: carries out SSH_ORIGINAL_COMMAND, or reads commands.
    Shell {
        /// Permissions, with commas between them. All without it.
        #[arg(long)]
        allow: Option<String>,
        /// Guests that the key is bound to, with commas between them. Without it it is for all, and for the machine.
        #[arg(long)]
        guests: Option<String>,
        /// The name of the key.
        #[arg(long, default_value = "")]
        key: String,
    },
    /// Carries out one command.
    Run {
        /// Permissions, with commas between them. All without it.
        #[arg(long)]
        allow: Option<String>,
        /// The answer is to be JSON.
        #[arg(long)]
        json: bool,
        /// The words of the command.
        #[arg(required = true)]
        words: Vec<String>,
    },
    /// Passes JSON lines both ways.
    Pipe,
    /// Serves /metrics and /healthz over HTTP.
    Metrics {
        /// Address and port.
        #[arg(long, default_value = "127.0.0.1:9560")]
        listen: String,
    },
    /// Writes the machine's events to the log of this guest, but not what guests write to their consoles.
    Syslog {
        /// The socket of syslogd.
        #[arg(long, default_value = "/dev/log")]
        log: PathBuf,
    },
    /// Reads a list of keys, and writes the `authorized_keys` for sshd.
    Keys {
        /// The agent's path in the forced commands.
        #[arg(long, default_value = "/usr/bin/sidecore-agent")]
        program: String,
    },
}

fn main() -> ExitCode {
    let Options { socket, trace_port, verb } = Options::parse();
    let key_of = |allow: Option<String>, guests: Option<String>, name: &str| {
        let guests = guests.as_deref().map(keys::guests).transpose();
        match allowed(allow.as_deref()).and_then(|allowed| Ok(Key::new(name, &address(), allowed, guests?))) {
            Ok(key) => Some((Broker { socket: socket.clone(), sender: key.sender() }, key)),
            Err(why) => {
                eprintln!("{why}");
                None
            }
        }
    };
    let exit = match verb {
        Verb::Serve { port, host_key } => end(broker::serve(&port, &socket, &host_key)),
        Verb::Metrics { listen } => end(metrics::serve(&socket, &listen)),
        Verb::Shell { allow, guests, key } => {
            let Some((broker, key)) = key_of(allow, guests, &key) else { return ExitCode::from(Exit::Usage as u8) };
            let shell = Shell { broker: &broker, trace_port: &trace_port, key: &key };
            broker.report(Notice::Login, "", "");
            // `pipe` reads standard input by itself.
            let input = Input::standard();
            let exit = match env::var("SSH_ORIGINAL_COMMAND").ok().filter(|line| !line.trim().is_empty()) {
                Some(line) if line.trim() == "sidecore-agent pipe" => end(pipe_standard(&broker, &key)),
                command => match (input, command) {
                    (Err(error), _) => end::<io::Error>(Err(error)),
                    (Ok(mut input), Some(line)) => {
                        shell.run(&line, false, &mut input, &mut io::stdout(), &mut io::stderr())
                    }
                    (Ok(mut input), None) => shell.interact(&mut input, &mut io::stdout(), &mut io::stderr()),
                },
            };
            broker.report(Notice::Logout, "", "");
            exit
        }
        Verb::Run { allow, json, words } => {
            let Some((broker, key)) = key_of(allow, None, "") else { return ExitCode::from(Exit::Usage as u8) };
            let shell = Shell { broker: &broker, trace_port: &trace_port, key: &key };
            match Input::standard() {
                Ok(mut input) => shell.run(&words.join(" "), json, &mut input, &mut io::stdout(), &mut io::stderr()),
                Err(error) => end::<io::Error>(Err(error)),
            }
        }
        Verb::Pipe => {
            let Some((broker, key)) = key_of(None, None, "") else { return ExitCode::from(Exit::Usage as u8) };
            end(pipe_standard(&broker, &key))
        }
        Verb::Syslog { log } => end(syslog::run(&Broker { socket, sender: control::Sender::nobody() }, &log)),
        Verb::Keys { program } => make_keys(&program),
    };
    ExitCode::from(exit as u8)
}

fn pipe_standard(broker: &Broker, key: &Key) -> Result<(), Failed> {
    pipe::pipe(broker, key, BufReader::new(io::stdin()), io::stdout())
}

/// The client's address, as sshd says. Empty without ssh.
fn address() -> String {
    let connection = env::var("SSH_CONNECTION").unwrap_or_default();
    connection.split(' ').next().unwrap_or_default().to_owned()
}

fn end<E: std::fmt::Display>(result: Result<(), E>) -> Exit {
    match result {
        Ok(()) => Exit::Done,
        Err(why) => {
            eprintln!("sidecore-agent: {why:#}");
            Exit::NoAnswer
        }
    }
}

fn make_keys(program: &str) -> Exit {
    let mut list = String::new();
    if let Err(error) = io::stdin().read_to_string(&mut list) {
        eprintln!("sidecore-agent: {error}");
        return Exit::Usage;
    }
    let (file, mistakes) = keys::authorized(&list, program);
    print!("{file}");
    mistakes.iter().for_each(|mistake| eprintln!("sidecore-agent: {mistake}"));
    if mistakes.is_empty() { Exit::Done } else { Exit::Usage }
}
