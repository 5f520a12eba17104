//! `shell` and `run`: commands in words, answered by tables or JSON.

use std::io::Write;
use std::path::Path;

use control::{ApplyState, Command, Event, ModuleSummary, Notice, Permissions, Sha256, TraceStep, View, table};
use sidecore_pcapng::filter;

use crate::attach::attach;
use crate::client::{Broker, Failed};
use crate::input::Input;
use crate::key::Key;
use crate::prompt::Prompt;
use crate::put;
use crate::top::top;
use crate::trace::{self, NotSaved, Wanted};
use crate::words::{self, Asked};

/// How a command ended: the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It was carried out.
    Done = 0,
    /// The hypervisor has refused it: there is no such guest, or it is in another state. Or another client has the trace, or
    /// the output takes nothing more.
    Refused = 1,
    /// It is no command.
    Usage = 2,
    /// The hypervisor does not answer.
    NoAnswer = 3,
    /// The caller has no permission for it.
    Forbidden = 4,
}

/// Where commands come from and go to.
pub struct Shell<'a> {
    /// The broker.
    pub broker: &'a Broker,
    /// The port that a trace comes from.
    pub trace_port: &'a Path,
    /// Who asks.
    pub key: &'a Key,
}

impl Shell<'_> {
    /// Carries out one command. `json`: also without the word `--json`.
    /// `input`: where a file for `put` and `apply` comes from, and what is typed for `attach` and `top`.
    pub fn run(&self, line: &str, json: bool, input: &mut Input, out: &mut dyn Write, errors: &mut dyn Write) -> Exit {
        let asked = match words::read(line) {
            Ok(asked) => asked,
            Err(why) => return fail(errors, &why, Exit::Usage),
        };
        if let Err(why) = self.key.check(&asked.command) {
            self.broker.report(Notice::Refused, &asked.command.summary().to_string(), &why);
            return fail(errors, &why, Exit::Forbidden);
        }
        let json = json || asked.json;
        let file = match asked.file.then(|| put::read(input)).transpose() {
            Ok(file) => file,
            Err(why) => return fail(errors, &why, Exit::Usage),
        };
        match asked.command {
            Command::Put { module, sha256, .. } => {
                self.put(&module, &sha256, &file.unwrap_or_default(), json, out, errors)
            }
            Command::Apply { .. } => match self.apply(asked.command, file.as_deref(), json, out) {
                Ok(exit) => exit,
                Err(why) => failed(errors, &why),
            },
            Command::Help => {
                let help = help();
                let _ = out.write_all(help.as_bytes());
                Exit::Done
            }
            Command::Attach { raw, guest } => match attach(self.broker, &guest, raw, input, out, errors) {
                Ok(()) => Exit::Done,
                Err(why) => failed(errors, &why),
            },
            Command::Top if !input.is_terminal() => {
                fail(errors, "`top` needs a terminal: `ssh -t HOST top`", Exit::Usage)
            }
            Command::Top => match top(self.broker, self.key, input, out) {
                Ok(()) => Exit::Done,
                Err(why) => failed(errors, &why),
            },
            Command::Capture { guest, filter } if !filter::is_off(&filter) => {
                let is_guest = self.key.guests.is_some();
                let wanted = trace::Captured { name: guest, filter, time: asked.time, is_guest };
                let opened = trace::open(self.trace_port);
                saved(opened.and_then(|mut port| trace::capture(&mut port, self.broker, &wanted, out)), errors)
            }
            Command::Trace { step: step @ (TraceStep::Save | TraceStep::SaveWithoutRips), stop, classes } => {
                let wanted = Wanted { classes, stop, time: asked.time, rips: step == TraceStep::Save };
                let opened = trace::open(self.trace_port);
                saved(opened.and_then(|mut port| trace::save(&mut port, self.broker, &wanted, out)), errors)
            }
            _ => {
                let events = matches!(asked.command, Command::Report);
                let answer = self.broker.connect(events).and_then(|mut client| client.ask(asked.command.clone()));
                match answer {
                    Err(why) => failed(errors, &why),
                    Ok((answer, events)) => {
                        let events: Vec<_> = events.into_iter().filter_map(|event| self.key.sees(event)).collect();
                        let Some(answer) = self.key.sees(answer) else {
                            return fail(errors, "this key does not see the answer", Exit::Forbidden);
                        };
                        let text = if json { as_json(&answer, &events) } else { as_text(&asked, &answer, &events) };
                        let _ = out.write_all(text.as_bytes());
                        Exit::Done
                    }
                }
            }
        }
    }

    /// Reads commands from the input until it ends. At a terminal there is a prompt with a line editor.
    pub fn interact(&self, input: &mut Input, out: &mut dyn Write, errors: &mut dyn Write) -> Exit {
        let mut prompt = input.is_terminal().then(Prompt::default);
        let mut last = Exit::Done;
        loop {
            let line = match &mut prompt {
                Some(prompt) => prompt.ask(self.broker, self.key, input, out),
                None => input.line(),
            };
            let Ok(Some(line)) = line else { return last };
            match line.trim() {
                "" => {}
                "exit" | "quit" => return last,
                line if prompt.is_some() && words::is_trace(line) => {
                    let why = "this is not for a terminal: `ssh HOST trace save >FILE`, `ssh HOST capture NAME >FILE`";
                    last = fail(errors, why, Exit::Usage);
                }
                line if words::reads_file(line) => {
                    let why = "a file is read from a login for it: `ssh HOST put MODULE <FILE`, `ssh HOST apply <FILE`";
                    last = fail(errors, why, Exit::Usage);
                }
                line => last = self.run(line, false, input, out, errors),
            }
        }
    }

    /// Gives the hypervisor a module. `expected`: its SHA-256, or nothing.
    fn put(
        &self,
        module: &str,
        expected: &str,
        file: &[u8],
        json: bool,
        out: &mut dyn Write,
        errors: &mut dyn Write,
    ) -> Exit {
        let sha256 = put::sha256(file);
        if Sha256::parse(expected).is_some_and(|expected| expected != sha256) {
            let why = format!("what has come has the SHA-256 {sha256}; nothing of it is kept");
            return fail(errors, &why, Exit::Refused);
        }
        if let Err(why) = self.broker.connect(false).and_then(|mut client| put::put(&mut client, module, file)) {
            return failed(errors, &why);
        }
        let text = if json {
            let (name, bytes) = (module.to_owned(), file.len() as u64);
            let module = ModuleSummary { name, bytes, sha256: sha256.to_string(), put: true };
            as_json(&Event::Modules { id: None, modules: vec![module] }, &[])
        } else {
            format!("{sha256}  {module}\n")
        };
        let _ = out.write_all(text.as_bytes());
        Exit::Done
    }

    /// Has a file applied, and waits until that is carried out.
    fn apply(&self, command: Command, file: Option<&[u8]>, json: bool, out: &mut dyn Write) -> Result<Exit, Failed> {
        let mut client = self.broker.connect(false)?;
        if let Some(file) = file {
            put::put(&mut client, put::APPLIED, file)?;
        }
        let mut show = |event: &Event| {
            let text = match event {
                Event::Applied { text, .. } if !json => text.clone(),
                event => as_json(event, &[]),
            };
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        };
        let mut answer = put::apply(&mut client, &command)?;
        show(&answer);
        if matches!(answer, Event::Applied { state: ApplyState::Running, .. }) {
            answer = put::wait(&mut client)?;
            show(&answer);
        }
        Ok(match answer {
            Event::Applied { state: ApplyState::Failed, .. } => Exit::Refused,
            _ => Exit::Done,
        })
    }
}

fn fail(errors: &mut dyn Write, why: &str, exit: Exit) -> Exit {
    let _ = writeln!(errors, "{why}");
    exit
}

/// How the saving of a trace or of captured frames ended.
fn saved(result: Result<(), NotSaved>, errors: &mut dyn Write) -> Exit {
    match result {
        Ok(()) => Exit::Done,
        Err(NotSaved::Refused(why)) => fail(errors, &why, Exit::Refused),
        Err(NotSaved::Output(error)) => fail(errors, &format!("the output cannot be written: {error}"), Exit::Refused),
        Err(NotSaved::Failed(why)) => failed(errors, &why),
    }
}

fn failed(errors: &mut dyn Write, why: &Failed) -> Exit {
    let exit = match why {
        Failed::Refused(_) => Exit::Refused,
        Failed::Connection(_) | Failed::NotAnAnswer(_) => Exit::NoAnswer,
    };
    fail(errors, &why.to_string(), exit)
}

/// The answer as lines of JSON: the events that belong to it, then the answer itself.
fn as_json(answer: &Event, events: &[Event]) -> String {
    let reports = events.iter().filter(|event| matches!(event, Event::Report(_)));
    reports.chain([answer]).map(|event| event.to_line().unwrap_or_default()).collect()
}

/// The answer for a person. Each event is named here, so that a new answer is shown before this compiles again.
fn as_text(asked: &Asked, answer: &Event, events: &[Event]) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = match (answer, &asked.command) {
        (Event::Counters(counters), Command::Show(view)) => table::show(*view, counters, &mut text),
        (Event::Counters(counters), _) => table::show(View::Counters, counters, &mut text),
        (Event::TraceState(state), _) => control::trace::show(state, &mut text),
        (Event::Latency(latency), _) => control::latency::show(latency, &mut text),
        (Event::Audit { records, .. }, _) => control::show_records(records, &mut text),
        (Event::Modules { modules, .. }, _) => control::show_modules(modules, &mut text),
        (Event::Config { text: shown, .. } | Event::Applied { text: shown, .. }, _) => {
            text.clone_from(shown);
            Ok(())
        }
        (Event::Reply { guests: Some(guests), .. }, _) => table::list(guests, &mut text),
        (Event::Reply { version: Some(version), .. }, _) => {
            text = format!("sidecore {version}\n");
            Ok(())
        }
        // Done, and nothing to say of it.
        (Event::Reply { .. }, _) => Ok(()),
        (
            Event::Boot { .. }
            | Event::Report(_)
            | Event::ConfigError { .. }
            | Event::Guest { .. }
            | Event::Console { .. }
            | Event::Output { .. }
            | Event::Port { .. }
            | Event::Dropped { .. }
            | Event::Log { .. }
            | Event::Trace { .. }
            | Event::Stuck { .. }
            | Event::Panic { .. }
            | Event::End { .. },
            _,
        ) => {
            debug_assert!(false, "no command is answered by {answer:?}");
            Ok(())
        }
    };
    for event in events {
        if let Event::Report(entry) = event {
            text.push_str(&format!("{}\n", entry.text));
        }
    }
    text
}

/// The text of `help`: the commands of the shell, and the agent's own words.
fn help() -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = control::help(&mut text);
    text = text.replace('\r', "");
    text.push_str(
        "\
By ssh also:
counters             show
put MODULE [SHA256]  a module from a file: `ssh HOST put MODULE <FILE`
apply [--dry-run] [--restart] [--confirm SECONDS]
                     changes guests as a file says: `ssh HOST apply <FILE`
trace save [CLASSES] [--seconds N]
                     the trace itself: `ssh HOST trace save >FILE`
capture NAME [FILTER] [--seconds N]
                     the frames as pcap-ng: `ssh HOST capture a >FILE`
--json               after any command with an answer: the answer as JSON
exit                 ends; so does Ctrl-D
At a terminal keys go to the guest at once, and `top` runs: `ssh -t HOST top`.
",
    );
    text
}

/// The permissions that a command line names, or all.
///
/// # Errors
/// A name is none.
pub fn allowed(names: Option<&str>) -> Result<Permissions, String> {
    names.map_or(Ok(Permissions::all()), crate::keys::permissions)
}
