//! Shows a configuration as a `sidecore.toml`. `parse` reads what is shown here as the same configuration. What has its default is
//! left out.
//!
//! Strings, integers and lists are those of TOML 1.0. Nothing here needs the heap.

use core::fmt::{self, Display, Formatter, Write};
use core::net::IpAddr;
use core::ops::RangeInclusive;

use control::{Level, Permissions, is_name};

use crate::config::{Config, Control, Engine, Scheduling, Smt};
use crate::disk::{Block, Cache, Disk};
use crate::guest::{Completion, Console, Guest, GuestDevice, Net, NotifyBar, Offloads, Requests, Restart, SplitLock};
use crate::limits::{DEFAULT_MTU, DEFAULT_OVERLAY};
use crate::mac::{Mac, derived_mac};
use crate::management::is_reserved_port;
use crate::rules::{DEFAULT_STORM, Rules, Vlan};
use crate::share::Share;
use crate::size;
use crate::stage::{Action, PROTOCOLS, Rule, Stage};
use crate::trace::Trace;
use crate::uplink::{Optics, Steering, Uplink};

/// A configuration, shown as a file.
///
/// ```
/// let text = "[[guest]]\nname = 'a'\nmemory = '64M'\nkernel = 'vmlinuz'\nweight = 3\n";
/// let config = config::parse("sidecore.toml", text).config;
/// let shown = config::Shown(&config).to_string();
/// assert!(shown.ends_with("[[guest]]\nname = \"a\"\nmemory = \"64M\"\nkernel = \"vmlinuz\"\nweight = 3\n"));
/// assert_eq!(config::parse("sidecore.toml", shown).config.written(), config.written());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a Config);

/// The first lines of the file.
const HEAD: &str = "# What runs now. What is left out has its default.\n\
                    # Nothing of this outlives a reboot: save it as sidecore.toml among the boot modules.\n";

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let config = self.0;
        f.write_str(HEAD)?;
        choice(f, "smt", config.smt, Smt::default(), &Smt::WORDS)?;
        if config.log != Level::default() {
            f.write_str("\n[log]\n")?;
            key(f, "level", &Text(level(config.log)))?;
        }
        control(f, config.control)?;
        if config.com2 != Permissions::all() {
            f.write_str("\n[com2]\n")?;
            key(f, "allow", &permissions(config.com2))?;
        }
        management(f, config)?;
        trace(f, config.trace)?;
        for module in &config.modules {
            f.write_str("\n[[module]]\n")?;
            key(f, "name", &Text(&module.name))?;
            match &module.sha256 {
                Some(sha256) => key(f, "sha256", &Quoted(sha256))?,
                None => f.write_str("# its `sha256` had a mistake: no guest may use it\n")?,
            }
        }
        config.engines.iter().try_for_each(|engine| show_engine(f, engine))?;
        config.stages.iter().try_for_each(|stage| show_stage(f, stage))?;
        config.uplinks.iter().try_for_each(|uplink| show_uplink(f, config, uplink))?;
        config.guests.iter().try_for_each(|guest| show_guest(f, config, guest))
    }
}

/// Writes `key = value`.
fn key(f: &mut Formatter<'_>, key: &str, value: &dyn Display) -> fmt::Result {
    writeln!(f, "{key} = {value}")
}

/// Writes `key = value` if there is a value.
fn some<T: Display>(f: &mut Formatter<'_>, name: &str, value: Option<T>) -> fmt::Result {
    value.map_or(Ok(()), |value| key(f, name, &value))
}

/// Writes `key = true` or `false`, unless it is the default.
fn flag(f: &mut Formatter<'_>, name: &str, value: bool, default: bool) -> fmt::Result {
    if value == default { Ok(()) } else { key(f, name, &value) }
}

/// Writes `key = "word"` if there is a word.
fn word(f: &mut Formatter<'_>, name: &str, word: Option<&str>) -> fmt::Result {
    some(f, name, word.map(Text))
}

/// Writes the word of a value, unless it is the default.
fn choice<T: PartialEq>(f: &mut Formatter<'_>, name: &str, value: T, default: T, words: &[(&str, T)]) -> fmt::Result {
    let known = words.iter().find(|(_, known)| *known == value && *known != default);
    word(f, name, known.map(|(word, _)| *word))
}

/// Writes `key = [...]`, unless it is empty.
fn list<I>(f: &mut Formatter<'_>, name: &str, values: I) -> fmt::Result
where
    I: Iterator<Item: Display> + Clone,
{
    if values.clone().next().is_none() { Ok(()) } else { key(f, name, &List(values)) }
}

/// A list of TOML.
struct List<I>(I);

impl<I: Iterator<Item: Display> + Clone> Display for List<I> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]", control::Joined(self.0.clone()))
    }
}

/// A value in quotes, of which nothing has to be escaped.
struct Quoted<T>(T);

impl<T: Display> Display for Quoted<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

/// A text as a string of TOML. It is a literal string where a basic one would need escapes.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let text = self.0;
        let is_literal = text.contains(['"', '\\']) && !text.contains('\'') && !text.contains(char::is_control);
        if is_literal {
            return write!(f, "'{text}'");
        }
        write!(f, "{}", Escaped(text))
    }
}

/// A value as a basic string of TOML.
struct Escaped<T>(T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        struct Pieces<'a, 'b>(&'a mut Formatter<'b>);
        impl Write for Pieces<'_, '_> {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                text.chars().try_for_each(|character| match character {
                    '"' | '\\' => write!(self.0, "\\{character}"),
                    _ if character.is_control() => write!(self.0, "\\u{:04x}", u32::from(character)),
                    _ => self.0.write_char(character),
                })
            }
        }
        f.write_str("\"")?;
        write!(Pieces(f), "{}", self.0)?;
        f.write_str("\"")
    }
}

fn level(level: Level) -> &'static str {
    let is_it = |name: &&str| Level::from_name(name) == Some(level);
    Level::NAMES.into_iter().find(is_it).unwrap_or_default()
}

fn permissions(allowed: Permissions) -> impl Display {
    let names = Permissions::NAMED.iter().filter(move |(_, one)| allowed.contains(*one));
    List(names.map(|(name, _)| Quoted(*name)))
}

fn control(f: &mut Formatter<'_>, control: Control) -> fmt::Result {
    let default = Control::default();
    if control == default {
        return Ok(());
    }
    f.write_str("\n[control]\n")?;
    flag(f, "end_when_guests_stop", control.end_when_guests_stop, default.end_when_guests_stop)?;
    let seconds = Some(control.stop_seconds).filter(|seconds| *seconds != default.stop_seconds);
    some(f, "stop_seconds", seconds)
}

fn management(f: &mut Formatter<'_>, config: &Config) -> fmt::Result {
    let Some(management) = config.managing() else { return Ok(()) };
    f.write_str("\n[management]\n")?;
    key(f, "guest", &Text(&management.guest))?;
    key(f, "allow", &permissions(management.allow))?;
    some(f, "modules", Some(management.modules).filter(|bytes| *bytes != 0).map(|bytes| Quoted(size::show(bytes))))
}

fn trace(f: &mut Formatter<'_>, trace: Trace) -> fmt::Result {
    let default = Trace::default();
    if trace == default {
        return Ok(());
    }
    f.write_str("\n[trace]\n")?;
    if trace.memory != default.memory {
        key(f, "memory", &Quoted(format_args!("{}K", trace.memory >> 10)))?;
    }
    list(f, "on", trace.on.names().map(Quoted))
}

fn share(f: &mut Formatter<'_>, share: Share) -> fmt::Result {
    some(f, "cache", share.cache)?;
    some(f, "bandwidth", share.bandwidth)
}

fn show_engine(f: &mut Formatter<'_>, engine: &Engine) -> fmt::Result {
    f.write_str("\n[[engine]]\n")?;
    some(f, "core", engine.core)?;
    choice(f, "scheduling", engine.scheduling, Scheduling::default(), &Scheduling::WORDS)?;
    share(f, engine.share)
}

fn show_stage(f: &mut Formatter<'_>, stage: &Stage) -> fmt::Result {
    f.write_str("\n[[stage]]\n")?;
    key(f, "name", &Text(&stage.name))?;
    match &stage.action {
        Action::Allow => key(f, "action", &Text("allow"))?,
        Action::Deny => key(f, "action", &Text("deny"))?,
        Action::Count => key(f, "action", &Text("count"))?,
        Action::Mirror { guest, net } => {
            key(f, "action", &Text("mirror"))?;
            match net {
                0 => key(f, "to", &Text(guest))?,
                _ => key(f, "to", &Quoted(format_args!("{guest}:{net}")))?,
            }
        }
        &Action::Limit { rate, burst, bytes } => {
            key(f, "action", &Text("limit"))?;
            if bytes {
                key(f, "bits_per_second", &Quoted(Bits(rate.saturating_mul(8))))?;
            } else {
                key(f, "frames_per_second", &rate)?;
            }
            key(f, "burst", &burst)?;
        }
    }
    show_rule(f, &stage.rule)
}

/// Bits a second, in the largest unit that keeps them exact.
struct Bits(u64);

impl Display for Bits {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "K")];
        match units.into_iter().find(|(unit, _)| self.0.is_multiple_of(*unit)) {
            Some((unit, letter)) => write!(f, "{}{letter}", self.0.checked_div(unit).unwrap_or_default()),
            None => write!(f, "{}", self.0),
        }
    }
}

fn show_rule(f: &mut Formatter<'_>, rule: &Rule) -> fmt::Result {
    some(f, "ether_type", rule.ether_type.map(|number| fmt::from_fn(move |f| write!(f, "{number:#06x}"))))?;
    some(f, "vlan", rule.vlan)?;
    some(f, "source_mac", rule.source_mac.map(Quoted))?;
    some(f, "destination_mac", rule.destination_mac.map(Quoted))?;
    match rule.protocol {
        None => {}
        Some(protocol) => match PROTOCOLS.iter().find(|(_, number)| *number == protocol) {
            Some((name, _)) => key(f, "protocol", &Text(name))?,
            None => key(f, "protocol", &protocol)?,
        },
    }
    some(f, "source", rule.source.map(prefix))?;
    some(f, "destination", rule.destination.map(prefix))?;
    some(f, "source_port", rule.source_port.as_ref().map(ports))?;
    some(f, "destination_port", rule.destination_port.as_ref().map(ports))?;
    some(f, "opening", rule.opening)?;
    some(f, "icmp_type", rule.icmp_type)
}

fn prefix((address, bits): (IpAddr, u8)) -> impl Display {
    fmt::from_fn(move |f| {
        let all = if address.is_ipv4() { 32 } else { 128 };
        if bits == all { write!(f, "\"{address}\"") } else { write!(f, "\"{address}/{bits}\"") }
    })
}

fn ports(range: &RangeInclusive<u16>) -> impl Display {
    let (first, last) = (*range.start(), *range.end());
    fmt::from_fn(move |f| if first == last { write!(f, "{first}") } else { write!(f, "\"{first}-{last}\"") })
}

fn show_uplink(f: &mut Formatter<'_>, config: &Config, uplink: &Uplink) -> fmt::Result {
    f.write_str("\n[[port]]\n")?;
    let device = uplink.device.map(|device| (device, fmt::from_fn(move |f| write!(f, "{device}"))));
    match &device {
        Some((_, shown)) => key(f, "device", &Quoted(shown))?,
        None => f.write_str("# its entry had a mistake: no frame passes\n")?,
    }
    let is_device = uplink.device.is_some_and(|device| is_shown_as(device, &uplink.name));
    // Without a device, a name that was the device's address is no name.
    let name = Some(&*uplink.name).filter(|name| is_name(name) && !is_device);
    word(f, "name", name)?;
    choice(f, "steering", uplink.steering, Steering::default(), &Steering::WORDS)?;
    choice(f, "optics", uplink.optics, Optics::default(), &Optics::WORDS)?;
    let gateway = &uplink.gateway;
    let addresses = gateway.addresses.iter().map(|address| address as &dyn Display);
    let macs = gateway.macs.iter().map(|mac| mac as &dyn Display);
    list(f, "gateway", addresses.chain(macs).map(Quoted))?;
    show_rules(f, config, &uplink.rules)
}

/// Whether a value is shown as this text.
fn is_shown_as(value: impl Display, text: &str) -> bool {
    struct Rest<'a>(Option<&'a str>);
    impl Write for Rest<'_> {
        fn write_str(&mut self, piece: &str) -> fmt::Result {
            self.0 = self.0.and_then(|rest| rest.strip_prefix(piece));
            Ok(())
        }
    }
    let mut rest = Rest(Some(text));
    write!(rest, "{value}").is_ok() && rest.0 == Some("")
}

fn show_rules(f: &mut Formatter<'_>, config: &Config, rules: &Rules) -> fmt::Result {
    match &rules.vlan {
        Vlan::Plain => {}
        Vlan::Access(vlan) => key(f, "vlan", vlan)?,
        Vlan::Trunk { vlans, native } => {
            key(f, "vlans", &List(vlans.iter()))?;
            some(f, "native", *native)?;
        }
    }
    if rules.storm != Some(DEFAULT_STORM) {
        key(f, "storm", &rules.storm.unwrap_or(0))?;
    }
    for (name, chain) in [("tx", &rules.tx), ("rx", &rules.rx)] {
        let stages = chain.iter().filter_map(|stage| config.stages.get(*stage));
        list(f, name, stages.map(|stage| Text(&stage.name)))?;
    }
    Ok(())
}

fn show_guest(f: &mut Formatter<'_>, config: &Config, guest: &Guest) -> fmt::Result {
    f.write_str("\n[[guest]]\n")?;
    key(f, "name", &Text(&guest.name))?;
    some(f, "vcpus", Some(guest.vcpus).filter(|vcpus| *vcpus != 1))?;
    key(f, "memory", &Quoted(size::show(guest.memory)))?;
    if guest.spare {
        key(f, "spare", &true)?;
    } else {
        key(f, if guest.firmware { "firmware" } else { "kernel" }, &Text(&guest.kernel))?;
    }
    word(f, "initrd", guest.initrd.as_deref())?;
    word(f, "cmdline", Some(&*guest.cmdline).filter(|cmdline| !cmdline.is_empty()))?;
    choice(f, "completion", guest.completion, Completion::default(), &Completion::WORDS)?;
    choice(f, "requests", guest.requests, Requests::default(), &Requests::WORDS)?;
    choice(f, "split_lock", guest.split_lock, SplitLock::default(), &SplitLock::WORDS)?;
    let usual = if guest.firmware { NotifyBar::Memory } else { NotifyBar::Io };
    choice(f, "notify_bar", guest.notify_bar, usual, &NotifyBar::WORDS)?;
    some(f, "weight", Some(guest.weight).filter(|weight| *weight != 1))?;
    share(f, guest.share)?;
    choice(f, "restart", guest.restart, Restart::default(), &Restart::WORDS)?;
    flag(f, "autostart", guest.autostart, true)?;
    if let Some(cores) = &guest.cores {
        key(f, "cores", &List(cores.iter()))?;
    }
    let (mut nets, mut blocks) = (0..=u8::MAX, 0_u32..);
    for device in &guest.devices {
        match device {
            GuestDevice::Net(net) => {
                let derived = nets.next().map(|index| derived_mac(&guest.name, index));
                show_net(f, config, net, derived)?;
            }
            GuestDevice::Block(block) => show_block(f, block, blocks.next().unwrap_or_default())?,
            GuestDevice::Entropy(_) => f.write_str("\n[[guest.entropy]]\n")?,
            GuestDevice::Console(console) => show_console(f, console)?,
        }
    }
    Ok(())
}

/// Writes a network device. `derived`: the address that it has without `mac`.
fn show_net(f: &mut Formatter<'_>, config: &Config, net: &Net, derived: Option<Mac>) -> fmt::Result {
    f.write_str("\n[[guest.net]]\n")?;
    some(f, "mac", Some(net.mac).filter(|mac| Some(*mac) != derived).map(Quoted))?;
    some(f, "mtu", Some(net.mtu).filter(|mtu| *mtu != DEFAULT_MTU))?;
    some(f, "queues", Some(net.queues).filter(|queues| *queues != 1))?;
    word(f, "port", net.uplink.and_then(|uplink| config.uplinks.get(uplink)).map(|uplink| &*uplink.name))?;
    choice(f, "offloads", net.offloads, Offloads::default(), &Offloads::WORDS)?;
    flag(f, "packed", net.packed, false)?;
    flag(f, "anti_spoofing", net.identity.anti_spoofing, true)?;
    list(f, "addresses", net.identity.addresses.iter().map(Quoted))?;
    list(f, "static", net.identity.fixed.iter().map(Quoted))?;
    show_rules(f, config, &net.rules)
}

/// Writes a block device, which is the guest's number `index`.
fn show_block(f: &mut Formatter<'_>, block: &Block, index: u32) -> fmt::Result {
    f.write_str("\n[[guest.block]]\n")?;
    match &block.disk {
        Disk::Ram { bytes } => {
            key(f, "disk", &Text("ram"))?;
            key(f, "size", &Quoted(size::show(*bytes)))?;
        }
        Disk::Module { name, overlay, size, unpacked: _ } => {
            key(f, "disk", &Text("ram"))?;
            key(f, "module", &Text(name))?;
            if !block.read_only && *overlay != DEFAULT_OVERLAY {
                key(f, "overlay", &Quoted(size::show(*overlay)))?;
            }
            some(f, "size", size.map(|bytes| Quoted(size::show(bytes))))?;
        }
        Disk::Machine(name) => key(f, "disk", &Escaped(name))?,
    }
    word(f, "partition", block.partition.as_ref().map(|partition| &*partition.name))?;
    flag(f, "emulate", block.emulate, false)?;
    flag(f, "wipe", block.wipe, false)?;
    flag(f, "readonly", block.read_only, false)?;
    let is_default = is_shown_as(format_args!("disk{index}"), &block.serial);
    word(f, "serial", Some(&*block.serial).filter(|_| !is_default))?;
    choice(f, "cache", block.cache, Cache::default(), &Cache::WORDS)?;
    some(f, "queues", Some(block.queues).filter(|queues| *queues != 1))?;
    flag(f, "packed", block.packed, false)
}

/// Writes a console device. The ports of the management guest come with `[management]`.
fn show_console(f: &mut Formatter<'_>, console: &Console) -> fmt::Result {
    f.write_str("\n[[guest.console]]\n")?;
    list(f, "ports", console.ports.iter().filter(|name| !is_reserved_port(name)).map(|name| Text(name)))
}

#[cfg(test)]
mod tests;
