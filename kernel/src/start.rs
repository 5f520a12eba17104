//! Boots the hypervisor: from GRUB's jump to the control loop. Each step needs the steps before it.

#![allow(unsafe_code, reason = "the assembly calls in here; the boot information is read where GRUB put it")]

use crate::{
    arch::{apic, cpuid, hpet, idle, idt, ioapic, pic, time, timer},
    boots, console, cores, disks, engines,
    facts::{self, Facts, facts},
    firmware,
    guests::{self, Guests},
    halt::halt,
    heap, machine_check, machine_watchdog, management, maps, mem, modules,
    operator::Operator,
    options, pci, remapping, report, screen, settings,
    step::{self, Step},
    symbols, trace, uplink, virt, watchdog,
};
use alloc::{borrow::ToOwned as _, format, vec::Vec};
use boot::{console::Consoles, information::Information};
use config::Scheduling;
use findings::machine::Taken;

/// The entry from `start.s`. The core is in 64-bit mode on the boot stack, the first 4 GiB are mapped, interrupts are
/// off.
#[unsafe(no_mangle)]
extern "C" fn start_rust(magic: u32, information: u32) -> ! {
    // Now an early fault is reported. The stacks for NMIs, double faults and machine checks come later.
    idt::load();
    step::code(Step::Consoles);
    let info = (magic == boot::MULTIBOOT2_MAGIC).then(|| {
        // SAFETY: GRUB passes the address of its information. The first 4 GiB are mapped, and nobody writes there.
        unsafe { firmware::information(information) }
    });
    let info = info.flatten();
    console::open(info.map_or(Consoles::USUAL, firmware::consoles));
    if let Some(info) = info {
        screen::find(info);
    }
    console::print(format_args!("\nsidecore {}\n", env!("CARGO_PKG_VERSION")));
    if magic != boot::MULTIBOOT2_MAGIC {
        halt(format_args!(
            "started with {magic:#x} in EAX, not by multiboot2: boot it with GRUB's `multiboot2` command"
        ));
    }
    let Some(info) = info else {
        halt(format_args!("GRUB's boot information at {information:#x} is unusable"));
    };
    step::begin(Step::Memory);
    let (taken, free) = match claim_memory(info, u64::from(information)) {
        Ok(claimed) => claimed,
        Err(e) => halt(format_args!("no memory for the hypervisor itself: {e}")),
    };
    let usable: Vec<_> = info.usable().collect();
    let memory = usable.iter().map(|(s, e)| e.saturating_sub(*s)).sum();
    step::begin(Step::Acpi);
    // SAFETY: the boot tables are in use until `enable_paging`.
    let mut platform = unsafe { firmware::platform(info) };
    let devices: Vec<_> = platform.ecam.iter().map(|window| (window.start(), window.end())).collect();
    // SAFETY: the boot tables are in use.
    platform.masked = unsafe { ioapic::mask_all(&platform.io_apics) };
    step::begin(Step::Paging);
    screen::check_place(usable.iter().chain(&devices).copied());
    if let Err(e) = mem::enable_paging(&usable, &devices, screen::range()) {
        halt(format_args!("page tables: {e}"));
    }
    screen::open_mapped();
    if let Some(words) = info.command_line() {
        options::read(words);
    }
    let given_up = mem::FRAMES.lock().given_up();
    if given_up > 0 {
        platform.trouble.push(format!(
            "{} KiB of memory are not used: they are in more free ranges than the {} that are kept",
            given_up >> 10,
            memory::frames::MAX_RUNS
        ));
    }
    step::begin(Step::Core);
    match mem::stacks(0) {
        Ok(stacks) => {
            let (modules, left_out) = firmware::modules(info);
            if left_out > 0 {
                platform.trouble.push(format!(
                    "{left_out} boot modules are left out: at most {} are used, with names of up to 255 bytes",
                    firmware::MAX_MODULES
                ));
            }
            facts::set(Facts { modules, platform, ranges: usable, memory, taken, free, stacks });
            cores::continue_on(stacks.main, on_own_stack)
        }
        Err(e) => halt(format_args!("no stack for the boot core: {e}")),
    }
}

/// Finds the free memory and takes the heap from it. Nothing may allocate before this has run. `at`: the address of
/// GRUB's information. Returns what was in use before, but for the modules, and the free bytes without all of that.
fn claim_memory(info: Information<'_>, at: u64) -> Result<(Vec<Taken>, u64), memory::frames::OutOfMemory> {
    let mut frames = mem::FRAMES.lock();
    for (start, end) in info.usable() {
        frames.add(start, end);
    }
    let (image, information) = (mem::image(), (at, at.saturating_add(info.len())));
    let symbols = symbols::find(info);
    // The real-mode vectors and the BIOS data area. Firmware in system management mode may still read them.
    let vectors = (0, 0x1000);
    let modules = || info.modules().map(|module| (module.start, module.end));
    for (start, end) in [image, information, vectors].into_iter().chain(symbols).chain(modules()) {
        frames.reserve(start, end);
    }
    let used = modules().map(|(_, end)| end).fold(image.1, u64::max);
    let kept = boots::kept::begin(&mut frames, used);
    let free = frames.free();
    drop(frames);
    heap::start()?;
    let single = [("image", image), ("boot information", information), ("the firmware's first page", vectors)];
    let named = single
        .into_iter()
        .chain(symbols.map(|range| ("symbols", range)))
        .chain(kept.iter().map(|&range| ("log", range)));
    Ok((named.map(|(what, (start, end))| (what.to_owned(), start, end)).collect(), free))
}

extern "C" fn on_own_stack() -> ! {
    let facts = facts();
    require_x2apic();
    pic::silence();
    let core = cores::adopt_boot_core(&facts.stacks);
    require_x2apic_mode();
    step::begin(Step::Clock);
    let Some((rates, doubt)) = timer::calibrate(facts.platform.pm_timer) else {
        report::missing("neither the ACPI PM timer nor the PIT counts, so that the TSC's rate cannot be found");
        report::send_boot(None, facts.memory);
        end();
    };
    for text in &facts.platform.trouble {
        report::warning(text.clone());
    }
    console::print(format_args!("\nwhat this machine has:\n"));
    report::add_all([findings::machine::memory(facts.memory)]);
    report::found(format!("sidecore's image at {:#x}, where GRUB has put it", mem::image().0));
    report::found(format!("TSC at {} MHz by {}", rates.tsc / 1_000_000, rates.source));
    report::add_all(findings::processor::clock(cpuid::words));
    if let Some(doubt) = doubt {
        report::warning(doubt);
    }
    if time::read_wall_clock().is_none() {
        report::warning("no CMOS clock, or it shows nonsense: guests begin in 1970");
    }
    machine_check::describe();
    let processor = speed::Processor::new(cpuid::words);
    let sleep = speed::sleep(&processor, cpuid::words);
    if let Ok(sleep) = sleep {
        idle::sleep_by(sleep);
    }
    report::add_all(findings::speed::means(&processor));
    report::add_all(findings::speed::idle(sleep));
    step::begin(Step::Pci);
    report::add_all(findings::machine::io_apics(&facts.platform.masked));
    report::add_all(facts.platform.hpet.map(|at| findings::machine::hpet(at, hpet::silence(at))));
    find_pci();
    remapping::switch_off_all();
    machine_watchdog::begin();
    if !console::has_com2() {
        report::add_all([findings::machine::no_com2()]);
    }
    step::begin(Step::Cores);
    match cores::start_others(&facts.platform.cores.enabled, options::last_core_is_silent()) {
        Ok(started) => report_cores(started),
        Err(e) => report::warning(e),
    }
    step::begin(Step::Virtualization);
    let virtualization = virt::detect();
    report::send_boot(virtualization, facts.memory);
    if report::is_fatal() {
        end();
    }
    #[cfg(feature = "count")]
    if options::COUNT.load(core::sync::atomic::Ordering::Relaxed) {
        crate::count::run_all();
        halt(format_args!("everything is counted"));
    }
    console::print(format_args!("\nwhat it is used for:\n"));
    if let Some((wanted, [people, programs])) = console::opened() {
        report::add_all(findings::consoles::people(&wanted, people));
        report::add_all(facts.platform.spcr.and_then(|spcr| findings::consoles::late(&wanted, spcr)));
        report::add_all(findings::consoles::programs(people, programs));
    }
    report::add_all([screen::describe()]);
    step::begin(Step::Configuration);
    boots::open_store();
    let hashes = modules::hash_all();
    let file = boots::attempt(settings::FILE, hashes);
    options::self_test_of_configuration(file == boots::PREVIOUS);
    let (config, plan) = settings::load(file, hashes);
    let mtu = config.guests.iter().flat_map(config::Guest::nets).map(|net| net.mtu).max();
    let max_frame = u32::from(mtu.unwrap_or(config::DEFAULT_MTU)) + net::ethernet::ETHERNET_BYTES;
    step::begin(Step::Nics);
    let uplinks = uplink::open_all(&config, max_frame);
    let has_nic = |number: usize| uplinks.get(number).is_some_and(|uplink| uplink.known.has_nic());
    if let Some(why) = config::out_of_reach_here(&config, &plan, has_nic) {
        boots::out_of_reach(&config.file, &why);
    }
    let scheduling = config.engines.first().map_or(Scheduling::default(), |e| e.scheduling);
    let engine = plan.engines.first().and_then(|&e| cores::get(e as usize)).filter(|c| c.index != 0);
    step::begin(Step::Disks);
    let disks = disks::take(&config);
    step::begin(Step::Engines);
    engines::make_all(
        [engines::Setup {
            core: engine,
            node: facts.platform.node(engine.unwrap_or(core).apic_id),
            scheduling,
            uplinks,
            disks,
        }]
        .into(),
    );
    watchdog::start(options::watchdog(), engine.is_none());
    {
        // All guests' cores use the decoder's tables.
        let _everybody = heap::For::everybody();
        machine::decode::prepare();
    }
    // So that no command and no start of a guest lacks memory later.
    if let Err(e) = heap::ensure_room(guests::heap(&config)) {
        report::warning(format!("the heap has little memory left for commands and guests: {e}"));
    }
    if let Some(bytes) = config.management.as_ref().map(|management| management.modules).filter(|bytes| *bytes > 0) {
        match modules::reserve(bytes) {
            Ok(()) => report::decision(format!("{} MiB are kept for modules that come later", bytes >> 20)),
            Err(e) => report::warning(format!("no module can be put: {e}")),
        }
    }
    step::begin(Step::Guests);
    let guests = Guests::new(&config, &plan);
    management::start(&config);
    let trace = match trace::reader::Reader::new(&config, &plan) {
        Ok(trace) => trace,
        Err(why) => halt(format_args!("{why}")),
    };
    step::begin(Step::Maps);
    if let Err(why) = maps::start(&config, &plan, guests.layouts()) {
        halt(format_args!("the page tables of the cores: {why}"));
    }
    engines::choose_loops();
    engines::launch();
    engines::report_speed();
    let modules = facts
        .modules
        .iter()
        .map(|module| (format!("module {}", module.name), module.start, module.start.saturating_add(module.len)));
    let taken: Vec<_> = facts.taken.iter().cloned().chain(modules).collect();
    report::add_all(findings::machine::memory_map(&facts.ranges, &taken, facts.free));
    report::decision(format!("the hypervisor keeps {} KiB for itself", mem::used() >> 10));
    let heap = heap::usage();
    report::decision(format!("its heap has {} KiB, {} KiB of them in use", heap.size >> 10, heap.used >> 10));
    let heap = heap::usage_of_everybody();
    report::decision(format!(
        "every core maps {} KiB of the heap, {} KiB of them in use",
        heap.size >> 10,
        heap.used >> 10
    ));
    step::begin(Step::Running);
    report::summarize(guests.starts());
    Operator::new(guests, config, trace).run(core)
}

/// Reports which of the cores that ACPI lists have started, whether they are alike, and whether their TSCs agree.
fn report_cores(cores::Started { mut absent, clocks, trouble }: cores::Started) {
    let platform = &facts().platform;
    if let Some(trouble) = trouble {
        report::warning(trouble);
    }
    if absent.is_empty() {
        report::add_all([findings::cores::started(cores::count(), platform.cores.enabled.len())]);
    } else {
        absent.iter_mut().for_each(|core| core.node = platform.node(core.apic_id));
        report::add_all([findings::cores::absent(&absent, cores::count(), &cores::topology(false))]);
    }
    report::add_all(findings::cores::offline(&platform.cores));
    report::add_all(findings::cores::clocks(&clocks));
    let kinds: Vec<_> = cores::all().filter_map(|core| Some((core.index as u32, core.kind()?))).collect();
    report::add_all(findings::cores::kinds(&kinds));
    let revisions: Vec<_> = cores::all().filter_map(|core| Some((core.index as u32, core.microcode()?))).collect();
    report::add_all([findings::speed::microcode(&revisions)]);
}

/// Stops the machine if the CPU has no x2APIC mode. All later steps need it, and there is no fallback.
fn require_x2apic() {
    if let Some(missing) = findings::processor::x2apic(cpuid::words) {
        report::add_all([missing]);
        report::send_boot(None, facts().memory);
        end();
    }
}

/// The same if the CPU has that mode and the APIC is not in it, although [`cores::adopt_boot_core`] has switched it on.
fn require_x2apic_mode() {
    if let Some(missing) = findings::processor::x2apic_mode(apic::base()) {
        report::add_all([missing]);
        report::send_boot(None, facts().memory);
        end();
    }
}

fn find_pci() {
    /// Base address register 0 (PCI 3.0, 6.2.5.1).
    const FIRST_BAR: u16 = 0x10;
    let windows = &facts().platform.ecam;
    let pci::Scanned { functions, elsewhere, active, without_bus, bridges, usb } = pci::scan(windows);
    report::add_all(findings::machine::configuration_space(windows));
    report::add_all([findings::machine::pci_devices(functions)]);
    report::add_all(findings::machine::elsewhere(elsewhere.iter().map(pci::Function::elsewhere)));
    for at in without_bus {
        report::warning(format!("PCI bridge at {at}: the firmware gave it no bus, so that nothing behind it is found"));
    }
    report::add_all(findings::machine::bridges_with_messages(bridges));
    report::add_all(findings::usb::controllers(&usb));
    let used = console::opened().map_or([None; 2], |(_, used)| used);
    let serial = pci::functions().unwrap_or_default().iter();
    report::add_all(serial.filter_map(|f| findings::consoles::on_pci(f.at, f.class(), f.read(FIRST_BAR), &used)));
    let names: Vec<_> = active.iter().map(|f| format!("{} ({:04x}:{:04x})", f.at, f.vendor, f.device)).collect();
    if !names.is_empty() {
        report::decision(format!(
            "bus mastering and MSI are off for every PCI device that sidecore does not drive; the firmware had left them on \
             for {}",
            names.join(", ")
        ));
    }
}

/// Stops the machine below its report, before there are guests.
fn end() -> ! {
    console::print(format_args!("\n"));
    halt(format_args!("something required is missing; see the report above"))
}
