//! Chooses the way of completion for `completion = "auto"` on this machine.

use alloc::format;
use alloc::string::String;

use crate::Completion;

/// Ways without an exit, the better first. With `posted` the host keeps its interrupts, and the timer's end costs no
/// exit either. With `eli` the guest owns its cores' local APICs, and the host has two vectors on them. `direct` is not
/// here: it leaves the host no vector, so the operator must ask for it by name.
const PREFERRED: [(Completion, &str); 2] = [(Completion::Posted, "posted"), (Completion::Eli, "eli")];

/// Returns the best way that the machine has, and a sentence for the capability report. The sentence names the way, and
/// says why no better one is possible. `refusal` says why the machine does not have a way.
pub fn best(refusal: impl Fn(Completion) -> Option<String>) -> (Completion, String) {
    let mut against = String::new();
    for (completion, name) in PREFERRED {
        match refusal(completion) {
            None => {
                return (
                    completion,
                    format!("completions are by {name}, unless the configuration says otherwise{against}"),
                );
            }
            Some(why) => against = format!("{against}; not by {name}: {why}"),
        }
    }
    (Completion::Inject, format!("completions are by inject, unless the configuration says otherwise{against}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_the_best_that_there_is_and_the_report_says_why_no_better() {
        let without = |missing: &'static [Completion]| best(|c| missing.contains(&c).then(|| format!("no {c:?} here")));
        let (way, why) = without(&[]);
        assert_eq!(
            (way, why.as_str()),
            (Completion::Posted, "completions are by posted, unless the configuration says otherwise")
        );
        let (way, why) = without(&[Completion::Posted]);
        assert_eq!(way, Completion::Eli);
        assert!(why.contains("by eli") && why.ends_with("not by posted: no Posted here"), "{why}");
        let (way, why) = without(&[Completion::Posted, Completion::Eli]);
        assert_eq!(way, Completion::Inject);
        assert!(why.ends_with("not by posted: no Posted here; not by eli: no Eli here"), "{why}");
        assert_eq!(without(&[Completion::Eli]).0, Completion::Posted);
    }
}
