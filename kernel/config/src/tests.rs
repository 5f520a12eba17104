//! Whole files: what is read from a good one, and what is said about a bad one.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::{Completion, Guest, Mac, Requests, Restart, Scheduling, check_memory, check_modules, default_config, plan};

const GOOD: &str = include_str!("../examples/two-guests.toml");
const BAD: &str = include_str!("../examples/mistakes.toml");
const MINIMAL: &str = "[[guest]]\nname = 'a'\nmemory = '64M'\nkernel = 'k'\n";

fn mistakes(text: &str) -> Vec<String> {
    parse("f", text).explain()
}

fn one(text: &str) -> String {
    let all = mistakes(text);
    assert_eq!(all.len(), 1, "{all:#?}");
    all[0].clone()
}

#[test]
fn a_good_file_is_read_as_it_is_written() {
    let Parsed { config, mistakes } = parse("sidecore.toml", GOOD);
    assert_eq!(mistakes, []);
    assert_eq!((config.log, config.control), (Level::Info, Control::default()));
    assert_eq!(config.engines.iter().map(|engine| engine.core).collect::<Vec<_>>(), [Some(1)]);
    let [alpha, beta] = &config.guests[..] else { panic!("two guests: {config:#?}") };
    assert_eq!((alpha.name.as_str(), alpha.vcpus, alpha.memory), ("alpha", 1, 512 << 20));
    assert_eq!((alpha.kernel.as_str(), alpha.initrd.as_deref()), ("vmlinuz", Some("initrd")));
    assert_eq!(alpha.cmdline, "console=ttyS0 quiet");
    assert_eq!((alpha.restart, alpha.completion, alpha.autostart), (Restart::Always, Completion::Auto, true));
    assert_eq!(alpha.nets[0].mac, Mac([2, 0, 0, 0, 0, 1]));
    assert_eq!((beta.vcpus, beta.cores.as_deref(), beta.restart), (2, Some(&[3, 4][..]), Restart::Never));
}

#[test]
fn what_may_be_left_out_has_a_default() {
    let Parsed { config, mistakes } = parse("f", MINIMAL);
    assert_eq!(mistakes, []);
    let Guest { vcpus, initrd, cmdline, cores, nets, .. } = &config.guests[0];
    assert_eq!(config.guests[0].requests, Requests::Poll);
    assert_eq!((*vcpus, initrd, cmdline.as_str(), cores, nets.len()), (1, &None, "", &None, 0));
    assert_eq!(parse("f", "").config, Config { file: "f".into(), ..Config::default() });
    let config = parse("f", format!("{MINIMAL}[[guest.net]]\n[[guest.net]]\n")).config;
    assert_eq!(config.guests[0].nets[1].mac, Mac::derived("a", 1));
}

#[test]
fn the_way_of_requests_is_one_of_three_words() {
    for (word, requests) in [("poll", Requests::Poll), ("notify", Requests::Notify), ("adaptive", Requests::Adaptive)] {
        let Parsed { config, mistakes } = parse("f", format!("{MINIMAL}requests = '{word}'\n"));
        assert_eq!((mistakes, config.guests[0].requests), (Vec::new(), requests));
    }
}

#[test]
fn scheduling_and_weights_are_fine_and_equal_unless_the_file_says_otherwise() {
    let Parsed { config, mistakes } = parse("f", format!("[[engine]]\n{MINIMAL}"));
    assert_eq!(mistakes, []);
    assert_eq!((config.engines[0].scheduling, config.guests[0].weight), (Scheduling::Fine, 1));
    let Parsed { config, mistakes } =
        parse("f", format!("[[engine]]\nscheduling = 'per-device'\n{MINIMAL}weight = 16\n"));
    assert_eq!(mistakes, []);
    assert_eq!((config.engines[0].scheduling, config.guests[0].weight), (Scheduling::PerDevice, 16));
}

#[test]
fn every_mistake_has_its_own_message_and_the_good_guest_remains() {
    let Parsed { mut config, mut mistakes } = parse("sidecore.toml", BAD);
    mistakes.extend(check_modules(&mut config, &["vmlinuz", "initrd"]));
    let names: Vec<_> = config.guests.iter().map(|guest| guest.name.as_str()).collect();
    assert_eq!(names, ["good"]);
    let messages: BTreeSet<_> = mistakes.iter().map(|mistake| mistake.message.as_str()).collect();
    assert_eq!((mistakes.len(), messages.len()), (13, 13), "{mistakes:#?}");
    for mistake in &mistakes {
        let line = BAD.lines().nth(mistake.line as usize - 1).unwrap();
        assert!(mistake.value == "[[guest]]" || line.contains(&mistake.value), "{mistake} is not in line: {line}");
    }
    let shown = |guest: &str| {
        let mistake = mistakes.iter().find(|mistake| mistake.guest.as_deref() == Some(guest)).unwrap();
        (mistake.value.as_str(), mistake.message.as_str())
    };
    assert_eq!(shown("unknown-key"), ("memroy", "no such key in [[guest]]; did you mean `memory`?"));
    assert_eq!(shown("wrong-type").0, "\"two\"");
    assert_eq!(shown("not-yet").1, "not available yet: VLANs");
    assert_eq!(shown("no-kernel").0, "[[guest]]");
}

#[test]
fn every_way_of_completion_that_is_there_is_taken_by_its_name() {
    for (name, completion) in [
        ("auto", Completion::Auto),
        ("inject", Completion::Inject),
        ("direct", Completion::Direct),
        ("eli", Completion::Eli),
    ] {
        let file = format!("[[guest]]\nname = \"a\"\nmemory = \"64M\"\nkernel = \"k\"\ncompletion = \"{name}\"\n");
        let parsed = crate::parse("x", file.as_bytes());
        assert_eq!(parsed.mistakes.len(), 0, "{name}");
        assert_eq!(parsed.config.guests[0].completion, completion);
    }
}

#[test]
fn a_mistake_outside_the_guests_leaves_them_alone() {
    for text in [
        "[log]\nlevel = 'loud'\n",
        "[lgo]\n",
        "[control]\nstop_seconds = 0\n",
        "[[engine]]\nscheduling = 'fien'\n",
        "[[port]]\nname = 'up'\n",
        "[[port]]\n",
        "[[port]]\ndevice = 'eth0'\n",
        "log = 3\n",
    ] {
        let text = format!("{text}{MINIMAL}");
        let parsed = parse("f", &text);
        assert_eq!((parsed.mistakes.len(), parsed.config.guests.len()), (1, 1), "{text}");
        assert_eq!(parsed.mistakes[0].guest, None);
    }
    assert!(one("[log]\nlevel = 'wran'\n").contains("did you mean \"warn\"?"));
    assert!(one("[[engine]]\n[[engine]]\n").contains("not available yet: a second engine"));
}

#[test]
fn a_file_that_is_not_toml_gives_one_mistake_and_no_guest() {
    let parsed = parse("f", format!("{MINIMAL}[[guest\n"));
    assert!(parsed.config.guests.is_empty());
    let [mistake] = &parsed.mistakes[..] else { panic!("{parsed:#?}") };
    assert_eq!((mistake.line, mistake.value.as_str()), (5, "[[guest"));
    assert!(mistake.message.starts_with("not TOML"), "{mistake}");
    let parsed = parse("f", b"# \xff\n");
    assert_eq!(parsed.explain(), ["f:1:3: byte 0xff: not UTF-8, so that no guest is known: expected a text file"]);
}

#[test]
fn further_mistakes_are_explained_as_well() {
    let with = |rest: &str| one(&format!("{MINIMAL}{rest}\n"));
    for (rest, expected) in [
        ("cores = [1, 1]\nvcpus = 2", "core 1 stands twice"),
        ("cores = [1, 2]", "expected as many cores as vCPUs: 2 for 1"),
        ("cores = ['x']", "a list of core numbers"),
        ("cores = 1", "not of type integer"),
        ("autostart = 'yes'", "true or false"),
        ("cmdline = \"a\\u0000b\"", "without control characters"),
        ("net = 3", "write [[guest.net]]"),
        ("[guest.net]\nmac = '02:00:00:00:00:01'", "write [[guest.net]]"),
        ("[[guest.net]]\nqueues = 2", "not available yet: more than one pair"),
        ("[[guest.net]]\nvlan = 7", "not available yet: VLANs"),
        ("[[guest.net]]\nport = 'up'", "not available yet: a choice of uplinks"),
        ("[[guest.net]]\nmac = '02:00'", "six pairs"),
        ("vcpus = 99999999999999999999", "from 1 to 8"),
        ("vcpus = -1", "from 1 to 8"),
        ("vcpus = 1.5", "not of type float"),
        ("completion = 'injekt'", "did you mean \"inject\"?"),
        ("requests = 'pol'", "must be one of \"poll\", \"notify\", \"adaptive\"; did you mean \"poll\"?"),
        ("requests = true", "not of type boolean"),
        ("weight = 0", "from 1 to 16"),
        ("weight = 17", "from 1 to 16"),
    ] {
        assert!(with(rest).contains(expected), "{}", with(rest));
    }
    assert!(one("[[guest]]\n").contains("needs a `name`"));
    assert!(one("[[guest]]\nname = 'a b'\n").contains("letters, digits"));
    let long = format!("{MINIMAL}cmdline = '{}'\n", "x".repeat(2048));
    assert!(one(&long).contains("at most 2047 bytes, got 2048"));
    let many: String = (0..40).map(|n| format!("[[guest]]\nname = 'g{n}'\nmemory = '64M'\nkernel = 'k'\n")).collect();
    assert!(one(&many).contains("at most 32 guests"));
    assert!(
        one("[[engine]]\ncore = 1\n[[guest]]\nname='a'\nmemory='64M'\nkernel='k'\ncores=[1]\n")
            .contains("is an engine")
    );
    let two = format!("{MINIMAL}cores=[1]\n{}cores=[1]\n", MINIMAL.replace("'a'", "'b'"));
    assert!(one(&two).contains("belongs to guest `a`"));
}

#[test]
fn a_mistake_becomes_the_event_of_com2() {
    let mistake = parse("f", "[[guest]]\nname = 'a'\nmemory = '1X'\nkernel = 'k'\n").mistakes.remove(0);
    let control::Event::ConfigError { file, line, value, guest, .. } = mistake.into() else { panic!() };
    assert_eq!((file.as_str(), line, value.as_str(), guest.as_deref()), ("f", 3, "'1X'", Some("a")));
}

/// Text that looks enough like the file to get past the TOML parser often.
fn lines() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "name",
        "vcpus",
        "memory",
        "kernel",
        "initrd",
        "cmdline",
        "completion",
        "requests",
        "weight",
        "scheduling",
        "restart",
        "cores",
        "net",
        "mac",
        "level",
    ]);
    let value = prop_oneof![
        prop::sample::select(vec![
            "1",
            "0",
            "-1",
            "'a'",
            "'64M'",
            "'1G'",
            "true",
            "[1]",
            "[[1]]",
            "{}",
            "{mac='x'}",
            "1e9",
            "'auto'",
            "1979-05-27",
        ])
        .prop_map(String::from),
        "'\\PC{0,20}'",
    ];
    let line = prop_oneof![
        4 => (key, value).prop_map(|(key, value)| format!("{key} = {value}")),
        2 => prop::sample::select(vec!["[[guest]]", "[[guest.net]]", "[log]", "[control]", "[[engine]]", "[[port]]", "[guest]"])
            .prop_map(String::from),
    ];
    prop::collection::vec(line, 0..24).prop_map(|lines| lines.join("\n"))
}

fn use_all(contents: &[u8]) {
    let Parsed { mut config, mistakes } = parse("f", contents);
    for mistake in &mistakes {
        assert!(mistake.line > 0 && !mistake.value.is_empty() && !mistake.message.is_empty());
    }
    check_modules(&mut config, &["vmlinuz", "a"]);
    check_memory(&mut config, 1 << 30);
    let (plan, _) = plan(&mut config, 4);
    assert_eq!(plan.guests.len(), config.guests.len());
    let _ = default_config(4, &[]);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        use_all(&bytes);
    }

    #[test]
    fn no_text_panics(text in "\\PC*") {
        use_all(text.as_bytes());
    }

    #[test]
    fn no_lines_of_the_right_look_panic(text in lines()) {
        use_all(text.as_bytes());
    }

    #[test]
    fn a_good_file_with_a_piece_cut_out_does_not_panic(start in 0..GOOD.len(), length in 0_usize..80) {
        let end = (start + length).min(GOOD.len());
        use_all(&[&GOOD.as_bytes()[..start], &GOOD.as_bytes()[end..]].concat());
    }
}
