//! What a caller has typed: words of the shell, an option, and what the caller may ask.

use control::{Caller, Command, Event, Request, View};

/// A command as the agent carries it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The command.
    pub command: Command,
    /// The answer is to be JSON.
    pub json: bool,
}

/// Reads a line of words. `--json` may stand anywhere. `counters` is `show`.
///
/// # Errors
/// The sentence to show.
pub fn read(line: &str) -> Result<Asked, String> {
    let json = line.split_whitespace().any(|word| word == "--json");
    let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "--json").collect();
    let command = match words[..] {
        ["counters"] => Command::Show(View::Counters),
        _ => Command::from_words(&words.join(" ")).map_err(|why| why.to_string())?,
    };
    Ok(Asked { command, json })
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
        assert_eq!(read("list"), Ok(Asked { command: Command::List, json: false }));
        let counters = Asked { command: Command::Show(View::Counters), json: true };
        assert_eq!(read("counters --json"), Ok(counters.clone()));
        assert_eq!(read("--json show"), Ok(counters));
        assert_eq!(read("  show   exits "), Ok(Asked { command: Command::Show(View::Exits), json: false }));
        assert_eq!(read("lst"), Err("no command `lst`; did you mean `list`?".into()));
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
