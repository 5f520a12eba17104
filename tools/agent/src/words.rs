//! What a caller has typed: words of the shell, an option, and what the caller may ask.

use std::time::Duration;

use control::{Caller, Command, Event, Request, TraceStep, View};

/// A command as the agent carries it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The command.
    pub command: Command,
    /// The answer is to be JSON.
    pub json: bool,
    /// For `trace save`: when the trace is to be switched off.
    pub time: Option<Duration>,
}

/// Most seconds of a trace: a day.
const MAX_SECONDS: u64 = 24 * 60 * 60;

/// Reads a line of words. `--json` may stand anywhere, and so may `--seconds N` for `trace save`. `counters` is `show`.
///
/// # Errors
/// The sentence to show.
pub fn read(line: &str) -> Result<Asked, String> {
    let (mut json, mut seconds, mut words) = (false, None, Vec::new());
    let mut all = line.split_whitespace();
    while let Some(word) = all.next() {
        match word {
            "--json" => json = true,
            "--seconds" => {
                let number = all.next().and_then(|word| word.parse().ok()).filter(|n| (1..=MAX_SECONDS).contains(n));
                seconds = Some(number.ok_or(format!("`--seconds` needs a number from 1 to {MAX_SECONDS}"))?);
            }
            word => words.push(word),
        }
    }
    let command = match words[..] {
        ["counters"] => Command::Show(View::Counters),
        _ => Command::from_words(&words.join(" ")).map_err(|why| why.to_string())?,
    };
    // These are not in the counters, which are the answer to `show` in JSON.
    let command = match command {
        Command::Show(View::Audit) => Command::Audit,
        Command::Show(View::Latency) => Command::Latency,
        command => command,
    };
    if seconds.is_some() && !saves(&command) {
        return Err("`--seconds` belongs to `trace save`".to_owned());
    }
    Ok(Asked { command, json, time: seconds.map(Duration::from_secs) })
}

/// Whether a line asks for a trace, whose answer is not text.
#[must_use]
pub fn is_trace(line: &str) -> bool {
    read(line).is_ok_and(|asked| saves(&asked.command))
}

const fn saves(command: &Command) -> bool {
    matches!(command, Command::Trace { step: TraceStep::Save, .. })
}

/// The answer to a line of JSON that the caller has no permission for. A line that is no command has none: the hypervisor says
/// what is wrong with it.
#[must_use]
pub fn refusal(line: &str, caller: &Caller) -> Option<String> {
    let request = Request::from_line(line).ok()?;
    let why = request.command.check(caller).err()?;
    Some(Event::refused(request.id, why).to_line().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use control::{Permissions, Way};

    use super::*;

    #[test]
    fn words_are_those_of_the_shell_with_json_anywhere() {
        assert_eq!(read("list"), Ok(Asked { command: Command::List, json: false, time: None }));
        let counters = Asked { command: Command::Show(View::Counters), json: true, time: None };
        assert_eq!(read("counters --json"), Ok(counters.clone()));
        assert_eq!(read("--json show"), Ok(counters));
        assert_eq!(read("  show   exits "), Ok(Asked { command: Command::Show(View::Exits), json: false, time: None }));
        assert_eq!(read("show audit"), Ok(Asked { command: Command::Audit, json: false, time: None }));
        assert_eq!(read("show latency"), Ok(Asked { command: Command::Latency, json: false, time: None }));
        assert_eq!(read("lst"), Err("no command `lst`; did you mean `list`?".into()));
    }

    #[test]
    fn a_trace_may_have_classes_and_a_time() {
        let save = |classes: &str, stop| Command::Trace { step: TraceStep::Save, stop, classes: classes.into() };
        assert_eq!(read("trace save"), Ok(Asked { command: save("", false), json: false, time: None }));
        let wanted = Asked { command: save("exits,visits", true), json: false, time: Some(Duration::from_secs(9)) };
        assert_eq!(read("trace save --seconds 9 --stop exits,visits"), Ok(wanted));
        for line in ["trace save --seconds", "trace save --seconds 0", "trace save --seconds -1", "list --seconds 3"] {
            assert!(read(line).unwrap_err().contains("`--seconds`"), "{line}");
        }
        assert!(is_trace(" trace  save exits") && !is_trace("trace show") && !is_trace("save"));
    }

    #[test]
    fn a_line_of_json_is_refused_without_the_permission_for_it() {
        let viewer = Caller::named(Way::Channel, "eve", Permissions::VIEW);
        assert_eq!(refusal(r#"{"command":"list","id":1}"#, &viewer), None);
        let refused = refusal(r#"{"command":"kill","guest":"a","id":7}"#, &viewer).unwrap();
        assert!(refused.contains("\"id\":7") && refused.contains("\"ok\":false") && refused.contains("operate"));
        // Written otherwise, it is the same command.
        assert!(refusal(r#" { "guest":"a", "command":"\u006bill"}"#, &viewer).is_some());
        // What is no command reaches no guest.
        assert_eq!(refusal(r#"{"command":"kil","guest":"a"}"#, &viewer), None);
    }
}
