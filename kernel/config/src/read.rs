//! Reads the whole file: first as TOML, then the tables at its top.

mod block;
mod guest;
mod management;
mod module;
mod rules;
mod share;
mod stage;
mod trace;
mod uplink;

use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use control::{Level, Permissions};
use toml::de::DeTable;

use self::stage::Stages;
use crate::config::{Config, Control, Engine, Scheduling, Smt};
use crate::limits::{MAX_ENGINES, MAX_FILE, MAX_GUESTS, MAX_UPLINKS};
use crate::mistake::{Mistake, Place, Source};
use crate::rules::{Identity, Rules};
use crate::section::Section;
use crate::stage::Stage;

const TOP_KEYS: [&str; 11] =
    ["smt", "log", "control", "com2", "management", "trace", "module", "engine", "port", "stage", "guest"];

/// The result of reading a file: the usable part, and the mistakes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The usable part.
    pub config: Config,
    /// What was wrong, in the order of the file.
    pub mistakes: Vec<Mistake>,
    /// Whether the file is TOML. Otherwise nothing of it is in `config`.
    pub is_read: bool,
    /// Whether it has `[management]`, with mistakes or without.
    pub wants_management: bool,
}

/// Reads the configuration `contents` of the file called `file`. The contents may be text or raw bytes.
///
/// ```
/// let text = "[[guest]]\nname = 'a'\nmemory = '1X'\nkernel = 'vmlinuz'\n";
/// let parsed = config::parse("sidecore.toml", text);
/// assert!(parsed.config.guests.is_empty());
/// assert_eq!(
///     parsed.mistakes[0].to_string(),
///     "sidecore.toml:3:10: '1X': expected a size like \"512M\" or \"2G\" (guest `a` does not start)"
/// );
/// ```
#[must_use]
pub fn parse(file: &str, contents: impl AsRef<[u8]>) -> Parsed {
    let mut config = Config { file: file.into(), ..Config::default() };
    let contents = contents.as_ref();
    if contents.len() > MAX_FILE {
        let place = Place { value: format!("{} bytes", contents.len()), ..Place::default() };
        let message = format!("the file is too large, so that no guest is known: expected at most {MAX_FILE} bytes");
        return Parsed::unread(config, Mistake::new(file, &place, message));
    }
    let text = match str::from_utf8(contents) {
        Ok(text) => text,
        Err(error) => {
            let mistake = not_utf8(file, contents, error.valid_up_to());
            return Parsed::unread(config, mistake);
        }
    };
    let source = Source { file, text };
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            let message = format!("not TOML, so that no guest is known: {}", error.message().replace('\n', ", "));
            let mistake = source.mistake(error.span().unwrap_or(0..0), message);
            return Parsed::unread(config, mistake);
        }
    };
    let mut top = Section::new(source, table.get_ref(), table.span(), "the file", &TOP_KEYS);
    config.smt = top.word("smt", &Smt::WORDS).unwrap_or_default();
    read_log(source, &mut top, &mut config);
    read_control(source, &mut top, &mut config);
    read_com2(source, &mut top, &mut config);
    read_trace(source, &mut top, &mut config);
    for (span, table) in top.tables("module", "module") {
        let (module, mut mistakes) = module::read(source, table, span, &config.modules);
        config.modules.extend(module);
        top.mistakes.append(&mut mistakes);
    }
    read_engines(source, &mut top, &mut config);
    let stages = stage::read_all(source, &mut top, &mut config);
    read_ports(source, &mut top, &mut config, &stages);
    for (index, (span, table)) in top.tables("guest", "guest").into_iter().enumerate() {
        if index == MAX_GUESTS {
            top.complain(
                span,
                format!("expected at most {MAX_GUESTS} guests: this one and those after it are left out"),
            );
            break;
        }
        match guest::read(source, table, span, &config, &stages) {
            Ok(guest) => config.guests.push(guest),
            Err(mut mistakes) => top.mistakes.append(&mut mistakes),
        }
    }
    let management = top.table("management");
    let wants_management = management.is_some();
    if let Some((span, table)) = management {
        let (management, mut mistakes) = management::read(source, table, span);
        config.management = management;
        top.mistakes.append(&mut mistakes);
        let left_out: Vec<&str> = top.mistakes.iter().filter_map(|mistake| mistake.guest.as_deref()).collect();
        let mistake = management::apply(&mut config, &left_out);
        top.mistakes.extend(mistake);
    }
    let mut mistakes = top.mistakes;
    mistakes.append(&mut stage::check_mirrors(&config));
    mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
    Parsed { config, mistakes, is_read: true, wants_management }
}

/// The rules in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedRules {
    /// `[[stage]]`.
    pub stages: Vec<Stage>,
    /// For each `[[port]]`, its addresses and its rules.
    pub ports: Vec<(Identity, Rules)>,
    /// What was wrong, in the order of the file.
    pub mistakes: Vec<Mistake>,
}

/// Reads the rules in another program's configuration. Its `[[port]]` has the keys of `[[guest.net]]` for rules.
/// `top_keys` and `port_keys` are the other keys in that file, which the program itself reads.
#[must_use]
pub fn parse_rules(file: &str, text: &str, top_keys: &[&'static str], port_keys: &[&'static str]) -> ParsedRules {
    let source = Source { file, text };
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            let message = format!("not TOML: {}", error.message().replace('\n', ", "));
            let mistakes = [source.mistake(error.span().unwrap_or(0..0), message)].into();
            return ParsedRules { mistakes, ..ParsedRules::default() };
        }
    };
    let keys: Vec<&str> = top_keys.iter().copied().chain(["stage", "port"]).collect();
    let mut top = Section::new(source, table.get_ref(), table.span(), "the file", &keys);
    let mut config = Config { file: file.into(), ..Config::default() };
    let stages = stage::read_all(source, &mut top, &mut config);
    let keys: Vec<&str> = port_keys.iter().copied().chain(rules::KEYS).chain(rules::IDENTITY_KEYS).collect();
    let mut ports = Vec::new();
    for (span, table) in top.tables("port", "port") {
        let mut section = Section::new(source, table, span, "[[port]]", &keys);
        let rules = rules::read(&mut section, &stages);
        let identity = rules::read_identity(&mut section, |_| None);
        ports.push((identity, rules));
        top.mistakes.append(&mut section.mistakes);
    }
    let mut mistakes = top.mistakes;
    mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
    ParsedRules { stages: config.stages, ports, mistakes }
}

fn not_utf8(file: &str, contents: &[u8], at: usize) -> Mistake {
    let before = contents.get(..at).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count().saturating_add(1);
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count().saturating_add(1);
    let value = format!("byte 0x{:02x}", contents.get(at).copied().unwrap_or(0));
    let clamp = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let place = Place { line: clamp(line), column: clamp(column), value };
    Mistake::new(file, &place, "not UTF-8, so that no guest is known: expected a text file")
}

fn read_log(source: Source<'_>, top: &mut Section<'_, '_>, config: &mut Config) {
    let Some((span, table)) = top.table("log") else { return };
    let mut log = Section::new(source, table, span, "[log]", &["level"]);
    let words = Level::NAMES.map(|name| (name, Level::from_name(name).unwrap_or_default()));
    config.log = log.word("level", &words).unwrap_or_default();
    top.mistakes.append(&mut log.mistakes);
}

fn read_control(source: Source<'_>, top: &mut Section<'_, '_>, config: &mut Config) {
    let Some((span, table)) = top.table("control") else { return };
    let mut section = Section::new(source, table, span, "[control]", &["end_when_guests_stop", "stop_seconds"]);
    let default = Control::default();
    config.control = Control {
        end_when_guests_stop: section.boolean("end_when_guests_stop").unwrap_or(default.end_when_guests_stop),
        stop_seconds: section.integer("stop_seconds", 1..=3600).map_or(default.stop_seconds, |(value, _)| value),
    };
    top.mistakes.append(&mut section.mistakes);
}

fn read_com2(source: Source<'_>, top: &mut Section<'_, '_>, config: &mut Config) {
    let Some((span, table)) = top.table("com2") else { return };
    let mut section = Section::new(source, table, span, "[com2]", &["allow"]);
    config.com2 = section.permissions("allow").unwrap_or_default();
    if !section.mistakes.is_empty() {
        // Whoever writes the table wants to forbid something.
        config.com2 = Permissions::VIEW;
    }
    top.mistakes.append(&mut section.mistakes);
}

fn read_trace(source: Source<'_>, top: &mut Section<'_, '_>, config: &mut Config) {
    let Some((span, table)) = top.table("trace") else { return };
    let mut section = Section::new(source, table, span, "[trace]", &trace::KEYS);
    config.trace = trace::read(&mut section);
    top.mistakes.append(&mut section.mistakes);
}

fn read_engines(source: Source<'_>, top: &mut Section<'_, '_>, config: &mut Config) {
    for (index, (span, table)) in top.tables("engine", "engine").into_iter().enumerate() {
        if index == MAX_ENGINES {
            top.complain(span, "not available yet: a second engine");
            break;
        }
        let mut section =
            Section::new(source, table, span, "[[engine]]", &["core", "scheduling", "cache", "bandwidth"]);
        let (core, place) = section.integer("core", 0..=u32::MAX).unzip();
        let scheduling = section.word("scheduling", &Scheduling::WORDS).unwrap_or_default();
        let share = share::read(&mut section);
        config.engines.push(Engine { core, scheduling, share, place: place.unwrap_or_default() });
        top.mistakes.append(&mut section.mistakes);
    }
}

fn read_ports(source: Source<'_>, top: &mut Section<'_, '_>, config: &mut Config, stages: &Stages) {
    for (index, (span, table)) in top.tables("port", "port").into_iter().enumerate() {
        if index == MAX_UPLINKS {
            top.complain(
                span,
                format!("expected at most {MAX_UPLINKS} uplinks: this one and those after it are left out"),
            );
            break;
        }
        let (port, mut mistakes) = uplink::read(source, table, span, &config.uplinks, stages);
        config.uplinks.push(port);
        top.mistakes.append(&mut mistakes);
    }
}

impl Parsed {
    /// Of a file of which nothing could be read.
    fn unread(config: Config, mistake: Mistake) -> Self {
        Self { config, mistakes: [mistake].into(), ..Self::default() }
    }

    /// Returns the mistakes as lines of text, for a person.
    #[must_use]
    pub fn explain(&self) -> Vec<alloc::string::String> {
        self.mistakes.iter().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests;
