//! Loads the configuration: `sidecore.toml` from the boot modules, or the default. Checks it against this machine.

use crate::{
    boots, cache, console, cores, disks, facts::facts, guests, halt::halt, heap, mem, modules, options, report, trace,
    uplink, virt,
};
use alloc::{format, vec::Vec};
use config::{Completion, Config, Mistake, Parsed, Plan, Sha256, Smt, Topology};
use control::{Event, Level};
use log::LevelFilter;

/// Name of the configuration file among the boot modules.
pub const FILE: &str = "sidecore.toml";

/// Reads and checks the configuration in the boot module `name`, or in `previous.toml` ([`choose`]), divides the cores, and reports every mistake. `hashes` are those of
/// the boot modules.
pub fn load(name: &str, hashes: &[(&str, Sha256)]) -> (Config, Plan) {
    let names: Vec<&str> = hashes.iter().map(|(name, _)| *name).collect();
    // Bochs reserves a bit of the APIC ID for one thread a core, and does not use it in its APIC IDs.
    let flat = virt::is_bochs();
    if flat {
        report::fallback("this is Bochs: each processor is taken for a core, whatever CPUID says of threads");
    }
    let topology = cores::topology(flat);
    let (mut config, mut mistakes) = match choose(name, hashes) {
        Some(parsed) => (parsed.config, parsed.mistakes),
        None => {
            let (config, said) = config::default_config(&topology, &names);
            report::decision(said);
            (config, Vec::new())
        }
    };
    // The decoder's memory is taken here, so the guests have that much less.
    mistakes.extend(config::check_packed(&mut config, modules::content));
    // The drivers of the disks take their memory here, so the guests have that much less.
    let found = disks::open_all(&config);
    mistakes.extend(config::check_disks(&mut config, &found, options::booted()));
    // The NICs' rings, more for the disks, and more of the heap are taken before the guests' memory or with it, so the guests
    // have that much less.
    let on_heap =
        guests::PART_BYTES.saturating_mul(config.guests.len() as u64).saturating_add(guests::heap(&config) as u64);
    let for_modules = config.management.as_ref().map_or(0, |management| management.modules);
    let traces = trace::memory(&config, cores::count());
    let taken = uplink::memory(&config)
        .saturating_add(disks::memory(&config))
        .saturating_add(on_heap)
        .saturating_add(traces)
        .saturating_add(for_modules);
    let mut free = mem::FRAMES.lock().free().saturating_sub(taken);
    if virt::needs_splits() {
        // Each 2 MiB of a guest need a table of 4 KiB.
        free = free.saturating_sub(free / 512);
    }
    mistakes.extend(config::check_memory(&mut config, free));
    mistakes.extend(config::check_completion(&mut config, virt::refusal));
    let (plan, more) = config::plan(&mut config, &topology);
    mistakes.extend(more);
    mistakes.into_iter().for_each(tell);
    log::set_max_level(match config.log {
        Level::Error => LevelFilter::Error,
        Level::Warn => LevelFilter::Warn,
        Level::Info => LevelFilter::Info,
        Level::Debug => LevelFilter::Debug,
        Level::Trace => LevelFilter::Trace,
    });
    describe(&config, &plan, &topology);
    cache::divide(&config);
    (config, plan)
}

/// The configuration in the boot module `name`, or that of `previous.toml` if the operator reaches the machine only with that. `None`:
/// there is neither.
fn choose(name: &str, hashes: &[(&str, Sha256)]) -> Option<Parsed> {
    let first = read(name, hashes);
    let why = match &first {
        Some(parsed) => config::out_of_reach(parsed),
        None => Some(format!("there is no boot module {name}")),
    };
    let (Some(why), false) = (why, name == boots::PREVIOUS) else { return first };
    let Some(previous) = read(boots::PREVIOUS, hashes).filter(|parsed| config::out_of_reach(parsed).is_none()) else {
        return first;
    };
    first.into_iter().flat_map(|parsed| parsed.mistakes).for_each(tell);
    report::warning(format!("{why}: {} is taken", boots::PREVIOUS));
    Some(previous)
}

/// Reads a boot module as a configuration, and checks it against the other modules. `None`: there is no such module.
fn read(name: &str, hashes: &[(&str, Sha256)]) -> Option<Parsed> {
    let file = facts().modules.iter().find(|module| module.name == name)?;
    // The parser cannot refuse for want of memory, so the heap gets what it needs at most.
    let bytes = config::heap(file.bytes().len().min(config::MAX_FILE));
    if let Err(e) = heap::ensure_room(bytes) {
        halt(format_args!("no memory to read {name}, {} KiB: {e}", file.bytes().len().div_ceil(1024)));
    }
    let mut parsed = config::parse(name, file.bytes());
    let names: Vec<&str> = hashes.iter().map(|(name, _)| *name).collect();
    parsed.mistakes.extend(config::check_modules(&mut parsed.config, &names));
    let hash_of = |name: &str| hashes.iter().find(|(of, _)| *of == name).map(|&(_, hash)| hash);
    parsed.mistakes.extend(config::check_hashes(&mut parsed.config, hash_of));
    Some(parsed)
}

fn tell(mistake: Mistake) {
    report::refused(format!("{mistake}"));
    console::send_event(Ok(Event::from(mistake)));
}

fn describe(config: &Config, plan: &Plan, topology: &Topology) {
    config::open_ports(config).into_iter().for_each(report::warning);
    let engines = if plan.control_is_engine() {
        "core 0 is control core and engine".into()
    } else {
        format!("core 0 is the control core, engine on core {:?}", plan.engines)
    };
    report::decision(engines);
    for (guest, cores) in config.guests.iter().zip(&plan.guests) {
        let completion = match guest.completion {
            Completion::Auto | Completion::Inject => "inject: an NMI makes it exit",
            Completion::Posted => "posted: the CPU delivers them",
            Completion::Direct => "direct: it owns its cores' local APICs",
            Completion::Eli => "eli: it owns its cores' local APICs, a shadow of its IDT keeps the host's vectors",
        };
        report::decision(format!(
            "guest {}: {} MiB, vCPUs on cores {cores:?}, completions by {completion}{}",
            guest.name,
            guest.memory >> 20,
            if guest.spare { "; spare: `apply` says what it starts" } else { "" }
        ));
    }
    if !plan.given_up.is_empty() {
        report::decision(format!(
            "cores {} stay idle: each is a thread of a physical core in use, and could read what the other thread \
             leaves in it (smt = \"share\" uses them)",
            findings::ranges(&plan.given_up)
        ));
    }
    if config.smt == Smt::Share && topology.has_siblings() {
        report::warning(
            "smt = \"share\": guests and the hypervisor run on threads of one physical core, where one can read what \
             the other leaves in it",
        );
    }
}
