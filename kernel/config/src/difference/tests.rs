//! What may change, what is refused, and with which line.

use proptest::prelude::*;

use super::*;
use crate::Shown;

const HEAD: &str = "[management]\nguest = 'm'\nallow = ['operate']\nmodules = '64M'\n[[engine]]\nscheduling = 'fine'\n[[port]]\n\
                    device = 'first'\n[[stage]]\nname = 's'\naction = 'count'\n";
const M: &str = "[[guest]]\nname = 'm'\nmemory = '192M'\nkernel = 'vmlinuz'\n[[guest.net]]\n";
const A: &str =
    "[[guest]]\nname = 'a'\nmemory = '128M'\nkernel = 'vmlinuz'\ninitrd = 'i'\nweight = 2\n[[guest.net]]\ntx = ['s']\n";
const SPARE: &str = "[[guest]]\nname = 'c'\nmemory = '64M'\nspare = true\n[[guest.net]]\nvlan = 7\n[[guest.entropy]]\n";
const C: &str = "[[guest]]\nname = 'c'\nmemory = '64M'\nkernel = 'new'\ncmdline = 'quiet'\n[[guest.net]]\nvlan = 7\n[[guest.entropy]]\n";

const MODULES: [&str; 3] = ["vmlinuz", "i", "new"];

fn refusal(completion: Completion) -> Option<String> {
    matches!(completion, Completion::Posted).then(|| "it has no VT-x".into())
}

/// What runs after a boot with this file.
fn booted(text: &str) -> Config {
    let parsed = parse("boot", text);
    assert_eq!(parsed.mistakes, []);
    let mut config = parsed.config;
    assert_eq!(check_modules(&mut config, &MODULES), []);
    assert_eq!(check_completion(&mut config, refusal), []);
    config.written()
}

fn applied(runs: &Config, text: &str) -> Result<(Vec<Change>, Config), Vec<Mistake>> {
    let hash_of = |name: &str| MODULES.contains(&name).then_some(Sha256([0; 32]));
    let changes = difference(runs, "f", text.as_bytes(), Machine { modules: &MODULES, hash_of, refusal })?;
    let after = after(runs, &changes);
    Ok((changes, after))
}

/// The changes as lines.
fn shown(runs: &Config, text: &str) -> Vec<String> {
    let (changes, _) = applied(runs, text).unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
    changes.iter().map(|change| format!("{change}")).collect()
}

/// Line and message of each mistake.
fn refused(runs: &Config, text: &str) -> Vec<(u32, String)> {
    let mistakes = applied(runs, text).expect_err("it is refused");
    assert!(mistakes.iter().all(|mistake| mistake.guest.is_none()), "nobody is left out: {mistakes:?}");
    mistakes.into_iter().map(|mistake| (mistake.line, mistake.message)).collect()
}

fn one(runs: &Config, text: &str, line: u32, words: &str) {
    let mistakes = refused(runs, text);
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
    assert!(mistakes[0].0 == line && mistakes[0].1.contains(words), "{mistakes:?} and not {line}: {words}");
}

fn all() -> String {
    [HEAD, M, A, SPARE].concat()
}

#[test]
fn the_file_that_runs_changes_nothing_in_any_order_of_its_guests() {
    let runs = booted(&all());
    assert_eq!(applied(&runs, &all()), Ok((Vec::new(), runs.clone())));
    assert_eq!(shown(&runs, &[HEAD, SPARE, A, M].concat()), [""; 0]);
    assert_eq!(shown(&runs, &Shown(&runs).to_string()), [""; 0], "`show config` may be applied");
    // A place that is spare need not be named.
    assert_eq!(shown(&runs, &[HEAD, M, A].concat()), [""; 0]);
}

#[test]
fn guests_are_removed_changed_and_added_in_this_order() {
    let runs = booted(&all());
    let text = [HEAD, M, C].concat();
    let (changes, after) = applied(&runs, &text).unwrap();
    assert_eq!(
        changes.iter().map(|change| format!("{change}")).collect::<Vec<_>>(),
        ["guest a: removed", "guest c: added"]
    );
    let names: Vec<_> = after.guests.iter().map(|guest| (&*guest.name, guest.spare, &*guest.kernel)).collect();
    assert_eq!(names, [("m", false, "vmlinuz"), ("a", true, ""), ("c", false, "new")], "places keep their order");
    // It was to be read again from `show config`, and what is removed can come again.
    let again = booted(&Shown(&after).to_string());
    assert_eq!(again, after);
    assert_eq!(shown(&after, &all()), ["guest c: removed", "guest a: added"]);
    let (_, back) = applied(&after, &all()).unwrap();
    assert_eq!(back, runs);
}

#[test]
fn each_changed_key_is_named_with_what_it_needs() {
    let runs = booted(&all());
    let a = |old: &str, new: &str| [HEAD, M, &A.replace(old, new), SPARE].concat();
    for (old, new, expected) in [
        ("weight = 2", "weight = 3", "guest a: changed at once: weight"),
        ("weight = 2", "restart = 'always'\nautostart = false", "guest a: changed at once: weight, restart, autostart"),
        ("'vmlinuz'", "'new'", "guest a: changed, with a restart: kernel"),
        ("initrd = 'i'", "cmdline = 'x'", "guest a: changed, with a restart: initrd, cmdline"),
        (
            "weight = 2",
            "requests = 'notify'\nsplit_lock = 'kill'\nnotify_bar = 'memory'",
            "guest a: changed, with a restart: requests, split_lock, notify_bar, weight",
        ),
        (
            "kernel = 'vmlinuz'\ninitrd = 'i'",
            "firmware = 'new'",
            "guest a: changed, with a restart: firmware, initrd, notify_bar",
        ),
    ] {
        assert_eq!(shown(&runs, &a(old, new)), [expected]);
    }
    let (changes, _) = applied(&runs, &a("'vmlinuz'", "'new'")).unwrap();
    assert!(needs_restart(&changes).unwrap().contains("guest a has to restart for: kernel; give `--restart`"));
    let (changes, _) = applied(&runs, &a("weight = 2", "weight = 3")).unwrap();
    assert_eq!(needs_restart(&changes), None);
}

#[test]
fn what_a_place_was_made_for_does_not_change() {
    let runs = booted(&all());
    let start = [HEAD, M].concat().lines().count() as u32;
    let a = |old: &str, new: &str| [HEAD, M, &A.replace(old, new), SPARE].concat();
    for (old, new, line, words) in [
        ("'128M'", "'256M'", 3, "`memory` of guest `a`"),
        ("weight = 2", "weight = 2\nvcpus = 2", 7, "`vcpus` of guest `a`"),
        ("weight = 2", "weight = 2\ncores = [3]", 7, "`cores` of guest `a`"),
        ("weight = 2", "weight = 2\ncompletion = 'inject'", 7, "`completion` of guest `a`"),
        ("weight = 2", "weight = 2\ncache = 10", 2, "`cache` of guest `a`"),
        ("weight = 2", "weight = 2\nbandwidth = 10", 2, "`bandwidth` of guest `a`"),
        ("tx = ['s']", "mtu = 9000", 2, "`net` of guest `a`"),
        ("[[guest.net]]", "[[guest.block]]\ndisk = 'ram'\nsize = '1M'\n[[guest.net]]", 2, "`block` of guest `a`"),
        ("[[guest.net]]", "[[guest.entropy]]\n[[guest.net]]", 2, "`entropy` of guest `a`"),
        ("[[guest.net]]", "[[guest.console]]\n[[guest.net]]", 2, "`console` of guest `a`"),
    ] {
        one(&runs, &a(old, new), start + line, words);
    }
    // Neither by a guest that comes.
    one(&runs, &[HEAD, M, A, &C.replace("vlan = 7", "vlan = 8")].concat(), start + 10, "`net` of guest `c`");
}

#[test]
fn changes_of_other_tables_are_refused_by_name_and_line() {
    let runs = booted(&all());
    for (old, new, line, words) in [
        ("'64M'\n[[engine]]", "'32M'\n[[engine]]", 1, "[management] is not what runs"),
        ("scheduling = 'fine'", "scheduling = 'per-device'", 5, "[[engine]] is not what runs"),
        ("[[engine]]\nscheduling = 'fine'\n", "", 34, "[[engine]] is not what runs"),
        ("'first'", "'01:00.0'", 7, "[[port]] is not what runs"),
        ("action = 'count'", "action = 'deny'", 9, "[[stage]] is not what runs"),
    ] {
        let text = all().replacen(old, new, 1);
        assert_ne!(text, all(), "{old}");
        let line = if line == 34 { text.lines().count() as u32 + 1 } else { line };
        one(&runs, &text, line, words);
    }
    for (added, words) in [
        ("smt = 'share'\n", "smt is not what runs"),
        ("[log]\nlevel = 'error'\n", "[log] is not"),
        ("[control]\nstop_seconds = 3\n", "[control] is not"),
        ("[com2]\nallow = ['view']\n", "[com2] is not"),
        ("[trace]\nmemory = '4K'\n", "[trace] is not"),
        (
            "[[module]]\nname = 'i'\nsha256 = '0000000000000000000000000000000000000000000000000000000000000000'\n",
            "[[module]] is not",
        ),
    ] {
        one(&runs, &format!("{added}{}", all()), 1, words);
    }
}

/// The line of the first text like this, which does not begin a line.
fn line_of(text: &str, what: &str) -> u32 {
    text[..text.find(what).unwrap()].lines().count() as u32
}

#[test]
fn all_mistakes_of_a_file_are_told_and_nothing_is_changed() {
    let runs = booted(&all());
    one(&runs, "nonsense", 1, "not TOML");
    for (old, new, at, words) in [
        ("'128M'", "'1X'", "'1X'", "expected a size"),
        ("'i'", "'j'", "'j'", "no boot module `j`"),
        ("weight = 2", "completion = 'posted'", "'posted'", "it has no VT-x"),
        (M, "", "'m'", "no guest has this name"),
        ("'192M'\nkernel = 'vmlinuz'", "'192M'\nspare = true", "'m'", "is spare"),
    ] {
        let text = all().replacen(old, new, 1);
        one(&runs, &text, line_of(&text, at), words);
    }
    let text = [&all(), &C.replace("'c'", "'d'")[..]].concat();
    one(&runs, &text, line_of(&text, "'d'"), "no place is kept for this guest; spare are: c");
    let full = booted(&[HEAD, M, A].concat());
    let text = all();
    one(&full, &text, line_of(&text, "'c'"), "none is spare");
    one(&runs, &format!("# {}\n", "x".repeat(MAX_APPLIED)), 1, "too large");
    let two = all().replace("'128M'", "'1X'").replace("'first'", "'second'");
    let lines = ["'second'", "'1X'"].map(|at| line_of(&two, at));
    assert_eq!(refused(&runs, &two).iter().map(|(line, _)| *line).collect::<Vec<_>>(), lines);
}

#[test]
fn a_module_of_another_hash_starts_in_no_guest() {
    let sum = "1".repeat(64);
    let head = format!("[[module]]\nname = 'new'\nsha256 = '{sum}'\n{HEAD}");
    let runs = booted(&[&head, M, SPARE].concat());
    one(&runs, &[&head, M, C].concat(), 3, "has the SHA-256 0000");
    // That of a module that has not come keeps nobody else from changing.
    let head = head.replacen("'new'", "'later'", 1);
    let runs = booted(&[&head, M, SPARE].concat());
    assert_eq!(shown(&runs, &[&head, M, C].concat()), ["guest c: added"]);
}

#[test]
fn a_spare_guest_has_no_kernel() {
    for (key, words) in [
        ("kernel = 'vmlinuz'", "no `kernel` beside `spare`"),
        ("firmware = 'vmlinuz'", "no `firmware`"),
        ("initrd = 'i'", "no `initrd`"),
        ("cmdline = 'i'", "no `cmdline`"),
    ] {
        let parsed = parse("f", SPARE.replace("spare = true", &format!("spare = true\n{key}")));
        assert_eq!((parsed.mistakes.len(), parsed.mistakes[0].line), (1, 5));
        assert!(parsed.mistakes[0].message.contains(words), "{:?}", parsed.mistakes);
    }
}

proptest! {
    /// From any set of guests to any other: the changes lead there and back, and what is said of them is true.
    #[test]
    fn changes_lead_where_they_should(
        from in proptest::collection::vec((0_u8..4, 1_u16..4, any::<bool>()), 4),
        to in proptest::collection::vec((0_u8..4, 1_u16..4, any::<bool>()), 4),
    ) {
        let file = |states: &[(u8, u16, bool)]| {
            let guests = states.iter().enumerate().map(|(number, (kernel, weight, auto))| {
                let starts = match kernel {
                    0 => String::from("spare = true"),
                    kernel => format!("kernel = '{}'", MODULES[usize::from(kernel - 1)]),
                };
                format!("[[guest]]\nname = 'g{number}'\nmemory = '64M'\n{starts}\nweight = {weight}\nautostart = {auto}\n[[guest.net]]\n")
            });
            guests.collect::<String>()
        };
        let (old, new) = (booted(&file(&from)), booted(&file(&to)));
        let (changes, after) = applied(&old, &file(&to)).unwrap();
        prop_assert_eq!(&after, &new);
        prop_assert!(changes.is_sorted_by_key(|change| change.kind));
        let changed = from.iter().zip(&to).filter(|(from, to)| from != to).count();
        prop_assert_eq!(changes.len(), changed);
        for change in &changes {
            let index: usize = change.guest.name[1..].parse().unwrap();
            let expected = match (from[index].0, to[index].0) {
                (0, 0) => ChangeKind::AtOnce,
                (0, _) => ChangeKind::Add,
                (_, 0) => ChangeKind::Remove,
                (one, other) if one == other => ChangeKind::AtOnce,
                _ => ChangeKind::Restart,
            };
            prop_assert_eq!(change.kind, expected);
        }
        let (changes, back) = applied(&after, &file(&from)).unwrap();
        prop_assert_eq!(way_back(&after, &old), changes);
        prop_assert_eq!(back, old);
    }
}
