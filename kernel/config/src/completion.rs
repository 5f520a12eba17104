//! What `completion = "auto"` stands for on a machine.

use alloc::format;
use alloc::string::String;

use crate::Completion;

/// Ways without an exit, the better first: with `posted` the host keeps its interrupts and the timer's end is exitless too;
/// with `eli` the guest has its cores' local APICs, and the host two vectors on them. `direct` leaves the host none and
/// has to be asked for by name.
const PREFERRED: [(Completion, &str); 2] = [(Completion::Posted, "posted"), (Completion::Eli, "eli")];

/// The best way that there is, and the sentence for the capability report: which it is and why no better one. `refusal` says
/// why a way is not to be had.
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
