//! A third guest: its RAM disk comes by `put`, and it comes, changes and goes by `apply`. Files that are wrong change nothing.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, Event, GuestState, ModuleSummary, Outcome};

use super::operator::{Operator, in_guest, written};
use crate::guests::{Guest, config_text};
use crate::scenario::seconds;
use crate::session::{Session, number};
use crate::setup::{Content, Setup};

/// The module of the guest's RAM disk.
const MODULE: &str = "web";
/// Pings in each direction.
const PINGS: u64 = 50;

/// Its entry, once it is there.
fn entry() -> String {
    let entry = config_text(&[Guest::new(3).peer(1).then("obey")]);
    entry.replace("\"initrd-small\"", &format!("\"{MODULE}\""))
}

/// Its entry at boot: its place.
pub fn spare() -> String {
    let is_kept = |line: &&str| !["kernel ", "initrd ", "cmdline "].iter().any(|key| line.starts_with(key));
    let mut entry: String = entry().lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
    entry = entry.replacen("memory = ", "spare = true\nmemory = ", 1);
    entry
}

/// The file with the third guest, of the one that was booted.
fn with_third(booted: &str) -> Result<String> {
    let spare = spare();
    ensure!(booted.contains(&spare), "{booted}\nhas not:\n{spare}");
    Ok(booted.replacen(&spare, &entry(), 1))
}

/// The modules, as COM2 says.
fn modules(session: &mut Session) -> Result<Vec<ModuleSummary>> {
    let sent = session.send(Command::Modules)?;
    session.wait("the modules", seconds(30), |event| match event {
        Event::Modules { id, modules } if *id == Some(sent) => Some(modules.clone()),
        _ => None,
    })
}

/// How many modules of this name were put.
fn put_modules(session: &mut Session, name: &str) -> Result<usize> {
    Ok(modules(session)?.iter().filter(|module| module.put && module.name == name).count())
}

/// Puts the third guest's RAM disk, and has the guest come, change, go and come back.
pub fn third_guest(operator: &mut Operator<'_, '_>, session: &mut Session, setup: &Setup) -> Result<()> {
    let booted = written(setup)?.to_owned();
    let file = with_third(&booted)?;
    put(operator, session)?;
    refuse(operator, session, &booted, &file)?;

    // It comes, and answers.
    let said = operator.says_of("alice", "apply --confirm 300", file.as_bytes())?;
    for words in ["guest c: added", "outlives a reboot", "apply is done: guest c: added", "goes back in 300 s"] {
        ensure!(said.contains(words), "{words} is not in: {said}");
    }
    session.result("c", "obey", seconds(240))?;
    let pings = [("c", format!("ping:{PINGS}")), ("b", format!("ping:{PINGS}:10.0.0.3"))];
    for (guest, action) in pings {
        let ping = session.act(guest, &action, seconds(120))?;
        let figure = format!("pings answered between a guest that came by apply and the others, by {guest}");
        operator.context.figures.exactly(&figure, number(&ping, "received")?, PINGS)?;
    }
    ensure!(operator.fails_of("alice", "apply", file.as_bytes(), 1)?.contains("waits for `confirm`"));
    operator.says("alice", "confirm")?;
    ensure!(operator.fails("alice", "confirm", 1)?.contains("nothing waits for `confirm`"));
    let shown = operator.says("alice", "show config")?;
    ensure!(shown.contains(&format!("initrd = \"{MODULE}\"")) && !shown.contains("spare"), "{shown}");
    ensure!(operator.says_of("alice", "apply --dry-run", shown.as_bytes())?.contains("the file changes nothing"));

    // What it uses stays.
    ensure!(operator.fails("alice", &format!("forget {MODULE}"), 1)?.contains("a guest uses the module"));
    ensure!(operator.fails_of("alice", &format!("put {MODULE}"), b"x", 1)?.contains("a guest uses the module"));

    // It changes: at once, and with a restart only if that is allowed.
    let changed = file.replacen("sc.ip=10.0.0.3/24 sc.peer=10.0.0.1", "sc.ip=10.0.0.3/24 sc.peer=10.0.0.2", 1);
    let at_c = changed.find("name = \"c\"").context("no guest c")?;
    let lighter = format!("{}weight = 3\n{}", &changed[..at_c], &changed[at_c..]);
    let refused = operator.fails_of("alice", "apply", lighter.as_bytes(), 1)?;
    ensure!(refused.contains("guest c has to restart for: cmdline, weight"), "{refused}");
    let said = operator.says_of("alice", "apply --restart", lighter.as_bytes())?;
    ensure!(said.contains("guest c: changed, with a restart: cmdline, weight"), "{said}");
    session.result("c", "obey", seconds(240))?;
    let ping = session.act("c", &format!("ping:{PINGS}"), seconds(120))?;
    ensure!(ping["peer"] == "10.0.0.2", "its new command line counts: {ping}");

    // It goes, nobody confirms, and it comes back. The agent asks every 300 ms how far the change is, and has to ask once between
    // the two. One second is too short for that on a slow machine.
    let said = operator.says_of("alice", "apply --confirm 8", booted.as_bytes())?;
    ensure!(said.contains("apply is done: guest c: removed"), "{said}");
    session.result("c", "obey", seconds(240))?;
    let said = operator.says("alice", "show apply")?;
    ensure!(said.contains("the way back is done: guest c: added"), "{said}");
    ensure!(operator.says("alice", "show config")?.contains("sc.peer=10.0.0.2"), "it has what it had");

    read_audit(operator, session)?;

    // It goes for good. Its module is free, and its place does not start.
    operator.says_of("alice", "apply", booted.as_bytes())?;
    ensure!(session.guest("c")?.state == GuestState::Stopped);
    ensure!(operator.fails("alice", "start c", 1)?.contains("is spare"));
    operator.says("alice", &format!("forget {MODULE}"))?;
    operator.context.figures.exactly("modules left of the guest that went", put_modules(session, MODULE)?, 0)?;
    operator.context.figures.exactly("guests that run then", session.running()?, 3)
}

/// The audit has who put and applied what, and no record for each piece.
fn read_audit(operator: &mut Operator<'_, '_>, session: &mut Session) -> Result<()> {
    let records = session.audit()?;
    for (command, outcome) in [
        (format!("put {MODULE} "), Outcome::Done),
        ("put half 3 ".to_owned(), Outcome::Done),
        ("put-end half".to_owned(), Outcome::Failed),
        ("apply apply.toml".to_owned(), Outcome::Failed),
        ("apply apply.toml 300".to_owned(), Outcome::Done),
        ("confirm".to_owned(), Outcome::Done),
    ] {
        let found = records
            .iter()
            .any(|record| record.who == "alice" && record.command.starts_with(&*command) && record.outcome == outcome);
        ensure!(found, "no record of `{command}`: {records:?}");
    }
    let pieces = records.iter().filter(|record| record.command.starts_with("put-data")).count();
    operator.context.figures.exactly("records of pieces of a module", pieces, 0)
}

/// Puts the RAM disk: whole, and in ways that leave nothing.
fn put(operator: &mut Operator<'_, '_>, session: &mut Session) -> Result<()> {
    let path = operator.context.build_module(&Content::SmallInitrd, "management-module")?;
    let initrd = fs::read(path)?;
    let begun = Instant::now();
    let said = operator.says_of("alice", &format!("put {MODULE}"), &initrd)?;
    operator.context.figures.note("seconds for it, with the login", begun.elapsed().as_secs_f64());
    let all = modules(session)?;
    let Some(module) = all.iter().find(|module| module.name == MODULE && module.put) else { bail!("{all:?}") };
    operator.context.figures.exactly("bytes of the module that was put", module.bytes, initrd.len() as u64)?;
    // The same file is a module of the boot.
    let of_boot = all.iter().find(|module| module.name == "initrd-small" && !module.put).context("no initrd-small")?;
    ensure!(module.sha256 == of_boot.sha256 && said == format!("{}  {MODULE}\n", module.sha256), "{said}{all:?}");

    let cut_off = operator.fails_of("alice", &format!("put half {}", module.sha256), &initrd[1..], 1)?;
    ensure!(cut_off.contains("nothing of it is kept"), "{cut_off}");
    ensure!(operator.fails_of("viewer", "put half", b"x", 4)?.contains("needs the permission `operate`"));
    ensure!(operator.fails_of("alice", "put vmlinuz", b"x", 1)?.contains("a module of the boot"));
    // A program that says one thing and sends another.
    let sum = &module.sha256;
    let lines = format!(
        "{{\"command\":\"put\",\"module\":\"half\",\"bytes\":3,\"sha256\":\"{sum}\",\"id\":1}}\n\
         {{\"command\":\"put-data\",\"module\":\"half\",\"at\":0,\"data\":\"YWJj\",\"id\":2}}\n\
         {{\"command\":\"put-end\",\"module\":\"half\",\"id\":3}}\n"
    );
    let answers = operator.pipes("alice", &lines)?;
    ensure!(answers.contains(&format!("and not {sum}; the module is given up")), "{answers}");
    // More than there is room for, and pieces that are not the next ones.
    let next = |at: u64, data: &str| {
        format!("{{\"command\":\"put-data\",\"module\":\"half\",\"at\":{at},\"data\":\"{data}\"}}\n")
    };
    for (bytes, piece, why) in [
        (17 << 20, String::new(), "no room for 17825792 bytes"),
        (6, next(0, "YWJj") + &next(4, "ZGU="), "2 bytes at 4 are not the next ones: 3 of 6 are there"),
        (6, next(0, "YWJj") + &next(0, "YWJj"), "3 bytes at 0 are not the next ones: 3 of 6 are there"),
        (2, next(0, "YWJj"), "3 bytes at 0 are not the next ones: 0 of 2 are there"),
    ] {
        let put = format!("{{\"command\":\"put\",\"module\":\"half\",\"bytes\":{bytes},\"sha256\":\"{sum}\"}}\n");
        let answers = operator.pipes("alice", &(put + &piece))?;
        ensure!(answers.contains(why), "{bytes} bytes: {answers}");
    }
    operator.context.figures.exactly("modules of which not all has come", put_modules(session, "half")?, 0)
}

/// Files that are wrong, or want what needs a reboot, are refused with the line, and nothing is changed.
fn refuse(operator: &mut Operator<'_, '_>, session: &mut Session, booted: &str, file: &str) -> Result<()> {
    let before = operator.says("alice", "show config")?;
    let line_of = |text: &str, what: &str| Some(text.get(..text.find(what)?)?.lines().count());
    let engine = format!("[[engine]]\nscheduling = \"per-device\"\n{file}");
    let memory = file.replacen("memory = \"96M\"", "memory = \"1X\"", 1);
    let stranger = file.replacen("name = \"c\"", "name = \"stranger\"", 1);
    let missing = file.replacen(&format!("initrd = \"{MODULE}\""), "initrd = \"missing\"", 1);
    for (what, text, place, words) in [
        ("nonsense", "nonsense", Some(1), "not TOML"),
        ("an engine", &engine, Some(1), "[[engine]] is not what runs"),
        ("a wrong value", &memory, line_of(&memory, "\"1X\""), "expected a size"),
        ("a guest without a place", &stranger, line_of(&stranger, "\"stranger\""), "spare are: c"),
        ("a module that is not there", &missing, line_of(&missing, "\"missing\""), "no boot module `missing`"),
    ] {
        let said = operator.fails_of("alice", "apply", text.as_bytes(), 1)?;
        let line = place.with_context(|| format!("no line of {what}"))?;
        ensure!(said.starts_with(&format!("apply.toml:{line}:")) && said.contains(words), "{what}, {line}: {said}");
        ensure!(said.contains("nothing was changed"), "{said}");
    }
    let said = operator.says_of("alice", "apply --dry-run", file.as_bytes())?;
    ensure!(said.contains("guest c: added") && said.contains("nothing was done"), "{said}");
    ensure!(operator.says_of("alice", "apply", booted.as_bytes())?.contains("the file changes nothing"));
    ensure!(operator.fails_of("bound", "apply", file.as_bytes(), 4)?.contains("bound to: a"));
    ensure!(operator.says("alice", "show config")? == before, "nothing was changed");
    operator.context.figures.exactly("guests that run after files that were refused", session.running()?, 3)
}

/// The management guest dies in the middle of a module: it closes the port. The agent has ended. Nothing is left, and the next one
/// need not wait.
pub fn broken_put(session: &mut Session) -> Result<()> {
    let put = "{\"command\":\"put\",\"module\":\"half\",\"bytes\":6,\"sha256\":\"'$(printf %064d 0)'\"}";
    let piece = "{\"command\":\"put-data\",\"module\":\"half\",\"at\":0,\"data\":\"YWJj\"}";
    in_guest(session, &format!("(echo '{put}'; echo '{piece}'; sleep 1) | cat >$P"), 40, seconds(60))?;
    in_guest(session, "(echo '{\"command\":\"version\"}'; sleep 1) | cat >$P", 41, seconds(60))?;
    session.wait("the end of the module", seconds(60), |event| match event {
        Event::Log { text, .. } if text.contains("module half: the rest does not come") => Some(()),
        _ => None,
    })?;
    ensure!(put_modules(session, "half")? == 0, "half a module is there");
    let begin = Command::Put { module: "next".to_owned(), bytes: 1, sha256: "0".repeat(64) };
    session.ask(begin, seconds(20)).context("the next one begins at once")?;
    let end = session.ask(Command::PutEnd("next".to_owned()), seconds(20));
    let why = end.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(why.contains("0 bytes of 1 have come"), "{why}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_and_the_guest_are_understood() {
        assert_eq!(config::parse("f", spare()).mistakes, []);
        let parsed = config::parse("f", entry());
        assert_eq!(parsed.mistakes, []);
        assert_eq!(parsed.config.guests[0].initrd.as_deref(), Some(MODULE));
        let file = with_third(&format!("# the head\n{}", spare())).unwrap();
        assert!(file.ends_with(&entry()) && !file.contains("spare"));
    }
}
