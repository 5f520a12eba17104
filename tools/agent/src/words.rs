//! What a caller has typed: words of the shell, an option, and what the caller may ask.

use std::time::Duration;

use control::{Command, Event, Request, Sha256, TraceStep, View};
use sidecore_pcapng::filter;

use crate::key::Key;
use crate::put::APPLIED;

/// A command as the agent carries it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The command.
    pub command: Command,
    /// The answer is to be JSON.
    pub json: bool,
    /// For `trace save` and `capture`: when that is to end.
    pub time: Option<Duration>,
    /// It needs a file. For `put` the command has the SHA-256 that is expected, if one is; for `apply` it has no module.
    pub file: bool,
}

/// Most seconds of a trace: a day.
const MAX_SECONDS: u64 = 24 * 60 * 60;

/// Reads a line of words. `--json` may stand anywhere, and so may `--seconds N` for `trace save` and `capture`, and `--confirm N` for `apply`.
/// `counters` is `show`. `put` and `apply` without a module read a file.
///
/// # Errors
/// The sentence to show.
pub fn read(line: &str) -> Result<Asked, String> {
    let (mut json, mut seconds, mut confirm, mut words) = (false, None, None, Vec::new());
    let mut all = line.split_whitespace();
    while let Some(word) = all.next() {
        match word {
            "--json" => json = true,
            "--seconds" => {
                let number = all.next().and_then(|word| word.parse().ok()).filter(|n| (1..=MAX_SECONDS).contains(n));
                seconds = Some(number.ok_or(format!("`--seconds` needs a number from 1 to {MAX_SECONDS}"))?);
            }
            "--confirm" => {
                let number = all.next().filter(|word| word.parse().is_ok_and(|n| (1..=MAX_SECONDS).contains(&n)));
                confirm = Some(number.ok_or(format!("`--confirm` needs a number from 1 to {MAX_SECONDS}"))?);
            }
            word => words.push(word),
        }
    }
    let mut file = false;
    let command = match words[..] {
        ["counters"] => Command::Show(View::Counters),
        ["put", module, ref rest @ ..] if rest.len() < 2 => {
            let sha256 = rest.first().map_or("", |sum| *sum);
            if !sha256.is_empty() && Sha256::parse(sha256).is_none() {
                return Err("`put MODULE [SHA256]`: a SHA-256 has 64 hexadecimal digits".to_owned());
            }
            file = true;
            Command::Put { module: module.to_owned(), bytes: 0, sha256: sha256.to_owned() }
        }
        ["put", ..] => return Err("`put` needs the name of a module: `ssh HOST put MODULE [SHA256] <FILE`".to_owned()),
        ["apply", ref rest @ ..] => {
            let mut line = words.clone();
            file = rest.iter().all(|word| word.starts_with("--"));
            if file {
                line.push(APPLIED);
            }
            line.extend(confirm);
            Command::from_words(&line.join(" ")).map_err(|why| why.to_string())?
        }
        _ => Command::from_words(&words.join(" ")).map_err(|why| why.to_string())?,
    };
    let command = if let Command::Show(view) = command { showing(view) } else { command };
    if seconds.is_some() && !saves(&command) {
        return Err("`--seconds` belongs to `trace save` and `capture`".to_owned());
    }
    if confirm.is_some() && !matches!(command, Command::Apply { .. }) {
        return Err("`--confirm` belongs to `apply`".to_owned());
    }
    Ok(Asked { command, json, time: seconds.map(Duration::from_secs), file })
}

/// The command of the control channel whose answer has what a view shows. The answer to `show` has all counters.
const fn showing(view: View) -> Command {
    match view {
        View::Counters | View::Exits | View::Engine | View::Ports | View::Memory => Command::Show(view),
        View::Audit => Command::Audit,
        View::Config => Command::Config,
        View::Latency => Command::Latency,
        View::Modules => Command::Modules,
        View::Apply => Command::Applied,
    }
}

/// Whether a line asks for a trace or for captured frames, whose answer is not text.
#[must_use]
pub fn is_trace(line: &str) -> bool {
    read(line).is_ok_and(|asked| saves(&asked.command))
}

/// Whether a line asks for something that reads a file.
#[must_use]
pub fn reads_file(line: &str) -> bool {
    read(line).is_ok_and(|asked| asked.file)
}

fn saves(command: &Command) -> bool {
    match command {
        Command::Trace { step: TraceStep::Save | TraceStep::SaveWithoutRips, .. } => true,
        Command::Capture { filter, .. } => !filter::is_off(filter),
        _ => false,
    }
}

/// A line of JSON that does not go to the hypervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotPassed {
    /// The line of the answer.
    pub answer: String,
    /// What the audit is told: the command, and why the key may not give it. `None`: the line is no command.
    pub refused: Option<(String, String)>,
}

/// Reads a line of JSON from the owner of a key. Returns the line for the broker, which is written anew: what the two readers could
/// understand differently does not pass. It does not say who asks.
///
/// # Errors
/// It is no command, or the key is not for it.
pub fn passed(line: &str, key: &Key) -> Result<String, NotPassed> {
    let answer = |id, why: &str| Event::refused(id, why.to_owned().into()).to_line().unwrap_or_default();
    match Request::from_line(line) {
        Err(bad) => Err(NotPassed { answer: answer(bad.id, &bad.error), refused: None }),
        Ok(Request { id, command, .. }) => match key.check(&command) {
            Ok(()) => Ok(Request::new(id, command).to_line()),
            Err(why) => {
                let refused = Some((command.summary().to_string(), why.to_string()));
                Err(NotPassed { answer: answer(id, &why), refused })
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use control::Permissions;

    use super::*;

    #[test]
    fn words_are_those_of_the_shell_with_json_anywhere() {
        assert_eq!(read("list"), Ok(Asked { command: Command::List, json: false, time: None, file: false }));
        let counters = Asked { command: Command::Show(View::Counters), json: true, time: None, file: false };
        assert_eq!(read("counters --json"), Ok(counters.clone()));
        assert_eq!(read("--json show"), Ok(counters));
        assert_eq!(
            read("  show   exits "),
            Ok(Asked { command: Command::Show(View::Exits), json: false, time: None, file: false })
        );
        assert_eq!(read("show audit"), Ok(Asked { command: Command::Audit, json: false, time: None, file: false }));
        assert_eq!(read("show config"), Ok(Asked { command: Command::Config, json: false, time: None, file: false }));
        assert_eq!(read("show latency"), Ok(Asked { command: Command::Latency, json: false, time: None, file: false }));
        assert_eq!(read("lst"), Err("no command `lst`; did you mean `list`?".into()));
    }

    #[test]
    fn a_trace_may_have_classes_and_a_time() {
        let save = |classes: &str, stop| Command::Trace { step: TraceStep::Save, stop, classes: classes.into() };
        assert_eq!(read("trace save"), Ok(Asked { command: save("", false), json: false, time: None, file: false }));
        let wanted =
            Asked { command: save("exits,visits", true), json: false, time: Some(Duration::from_secs(9)), file: false };
        assert_eq!(read("trace save --seconds 9 --stop exits,visits"), Ok(wanted));
        for line in ["trace save --seconds", "trace save --seconds 0", "trace save --seconds -1", "list --seconds 3"] {
            assert!(read(line).unwrap_err().contains("`--seconds`"), "{line}");
        }
        assert!(is_trace("capture a in --seconds 3") && !is_trace("capture a off") && !is_trace("capture a net=1,off"));
        assert!(
            is_trace(" trace  save exits")
                && is_trace("trace save-without-rips")
                && !is_trace("trace show")
                && !is_trace("save")
        );
    }

    #[test]
    fn put_and_apply_may_read_a_file() {
        let put = |sha256: &str| Command::Put { module: "web".into(), bytes: 0, sha256: sha256.into() };
        let sum = "ab".repeat(32);
        let asked = |line: &str| read(line).map(|asked| (asked.command, asked.file));
        assert_eq!(asked("put web"), Ok((put(""), true)));
        assert_eq!(asked(&format!("put web {sum}")), Ok((put(&sum), true)));
        for (line, words) in
            [("put", "needs the name"), ("put a b c", "needs the name"), ("put a b", "64 hexadecimal digits")]
        {
            assert!(read(line).unwrap_err().contains(words), "{line}");
        }
        let apply =
            |module: &str, dry, restart, confirm| Command::Apply { dry, restart, module: module.into(), confirm };
        assert_eq!(asked("apply"), Ok((apply(APPLIED, false, false, 0), true)));
        assert_eq!(asked("apply --dry-run --restart"), Ok((apply(APPLIED, true, true, 0), true)));
        assert_eq!(asked("apply --confirm 60"), Ok((apply(APPLIED, false, false, 60), true)));
        assert_eq!(asked("apply new.toml --confirm 60 --restart"), Ok((apply("new.toml", false, true, 60), false)));
        assert_eq!(asked("apply new.toml 60"), Ok((apply("new.toml", false, false, 60), false)));
        for line in ["apply --confirm", "apply --confirm 0", "apply --confirm x", "list --confirm 3"] {
            assert!(read(line).unwrap_err().contains("`--confirm`"), "{line}");
        }
        assert!(read("apply a b").unwrap_err().contains("takes a number"));
        assert_eq!(asked("show modules"), Ok((Command::Modules, false)));
        assert_eq!(asked("show apply"), Ok((Command::Applied, false)));
    }

    #[test]
    fn a_line_of_json_is_refused_without_the_permission_for_it() {
        let viewer = Key::new("eve", "10.0.0.5", Permissions::VIEW, None);
        let list = "{\"id\":1,\"command\":\"list\"}\n";
        assert_eq!(passed(r#"{"command":"list","id":1}"#, &viewer).as_deref(), Ok(list));
        let NotPassed { answer, refused } = passed(r#"{"command":"kill","guest":"a","id":7}"#, &viewer).unwrap_err();
        assert!(answer.contains("\"id\":7") && answer.contains("\"ok\":false") && answer.contains("operate"));
        assert!(matches!(refused, Some((line, why)) if line == "kill a" && why.contains("operate")));
        // Written otherwise, it is the same command.
        assert!(passed(r#" { "guest":"a", "command":"\u006bill"}"#, &viewer).is_err());
        // Who asks is not said by the one who asks.
        assert_eq!(passed(r#"{"command":"list","id":1,"who":"root","address":"x"}"#, &viewer).as_deref(), Ok(list));
        let bound = Key::new("bob", "", Permissions::all(), Some(vec!["b".into()]));
        assert!(passed(r#"{"command":"kill","guest":"a"}"#, &bound).unwrap_err().answer.contains("bound to: b"));
        assert!(passed(r#"{"command":"kill","guest":"b"}"#, &bound).is_ok());
    }

    #[test]
    fn what_is_no_command_does_not_pass() {
        let viewer = Key::new("eve", "", Permissions::VIEW, None);
        for line in [
            // A reader that takes the last of two members would kill the guest.
            r#"{"command":"list","command":"kill","guest":"a","id":3}"#,
            r#"{"command":"kil","guest":"a","id":3}"#,
            r#"{"events":false,"id":3}"#,
            r#"{"who":"root","address":"x"}"#,
            r#"{"command":"notice","what":"login"}"#,
            "nonsense",
        ] {
            let NotPassed { answer, .. } = passed(line, &viewer).unwrap_err();
            assert!(answer.contains("\"ok\":false") && answer.ends_with('\n'), "{answer}");
        }
    }
}
