//! `sidecore-agent`: the command line of the management guest's programs.

use std::env;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use control::{Caller, Way};
use sidecore_agent::shell::{Exit, Shell, allowed};
use sidecore_agent::{broker, keys, metrics, pipe};

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
    },
    /// The forced command of ssh keys: carries out SSH_ORIGINAL_COMMAND, or reads commands.
    Shell {
        /// Permissions, with commas between them. All without it.
        #[arg(long)]
        allow: Option<String>,
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
    /// Reads a list of keys, and writes the `authorized_keys` for sshd.
    Keys {
        /// The agent's path in the forced commands.
        #[arg(long, default_value = "/usr/bin/sidecore-agent")]
        program: String,
    },
}

fn main() -> ExitCode {
    let Options { socket, trace_port, verb } = Options::parse();
    let caller = |allow: Option<String>, key: &str| match allowed(allow.as_deref()) {
        Ok(allowed) => Some(Caller::named(Way::Channel, key, allowed)),
        Err(why) => {
            eprintln!("{why}");
            None
        }
    };
    let exit = match verb {
        Verb::Serve { port } => end(broker::serve(&port, &socket)),
        Verb::Metrics { listen } => end(metrics::serve(&socket, &listen)),
        Verb::Shell { allow, key } => {
            let Some(caller) = caller(allow, &key) else { return ExitCode::from(Exit::Usage as u8) };
            let shell = Shell { socket: &socket, trace_port: &trace_port, caller };
            match env::var("SSH_ORIGINAL_COMMAND").ok().filter(|line| !line.trim().is_empty()) {
                Some(line) if line.trim() == "sidecore-agent pipe" => end(pipe::pipe(&socket, &shell.caller)),
                Some(line) => shell.run(&line, false, &mut io::stdout(), &mut io::stderr()),
                None => shell.interact(),
            }
        }
        Verb::Run { allow, json, words } => {
            let Some(caller) = caller(allow, "") else { return ExitCode::from(Exit::Usage as u8) };
            let shell = Shell { socket: &socket, trace_port: &trace_port, caller };
            shell.run(&words.join(" "), json, &mut io::stdout(), &mut io::stderr())
        }
        Verb::Pipe => end(pipe::pipe(&socket, &Caller::named(Way::Channel, "", control::Permissions::all()))),
        Verb::Keys { program } => make_keys(&program),
    };
    ExitCode::from(exit as u8)
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
