//! What each core maps, from the end of the boot on. `memory::maps` decides, and this file carries it out.
//!
//! Each core has tables of its own, and only that core changes or replaces what it maps. So no core has to be told of a
//! change, and a running guest's core never has one:
//!
//! ```text
//!  control core   its own tables; a guest's memory is added while the guest is loaded (While)
//!  engine core    its own tables; a guest's memory is added with the first of its devices, removed after the last (Maps)
//!  guest core     two tables, without and with its guest; a job for the guest begins and ends with MOV to CR3 (AtWork)
//!  idle core      its own tables
//! ```
//!
//! Nobody's tables have global pages, and a CPU caches no entry that is not present (SDM vol. 3A 4.10; APM vol. 2 5.5). So a
//! removal ends with MOV to CR3, and an addition needs nothing.

#![allow(unsafe_code, reason = "switches page tables")]

use crate::{
    arch::{CoreIndex, MAX_CORES, time},
    cores::{self, Core},
    heap::For,
    mem, report,
};
use alloc::{boxed::Box, collections::BTreeMap, format, string::String, vec::Vec};
use config::{Config, Plan};
use memory::{
    frames::OutOfMemory,
    maps::{GuestLayout, Piece, Role},
    tables::{FrameSource, MapError, Tables},
};
use spin::{Mutex, Once};
use x86_64::{
    PhysAddr,
    instructions::tlb,
    registers::control::{Cr3, Cr3Flags},
    structures::paging::PhysFrame,
};

/// Microseconds that the boot waits for a core to load its tables. It takes less than one; an emulated core may be late.
const PATIENCE: u64 = 2_000_000;

/// The maps by core.
static MAPS: [Once<Box<Map>>; MAX_CORES] = [const { Once::new() }; MAX_CORES];

/// The map of a core.
pub struct Map {
    /// Root of the tables that it uses if it works for no guest.
    root: u64,
    /// The guest of a guest's core, and the root of the tables that it uses while it works for that guest.
    guest: Option<(usize, u64)>,
    /// What the control core or an engine's core changes.
    changing: Mutex<Changing>,
}

/// The tables of a core that works for several guests. Only that core uses them.
struct Changing {
    tables: Tables,
    /// For each guest: what maps its memory, and for how many users it is mapped now.
    guests: Vec<(Vec<Piece>, usize)>,
}

/// No frames. A guest's memory was mapped once when the tables were made, so the tables between root and leaves are there.
struct NoFrames;

impl FrameSource for NoFrames {
    fn frame(&mut self) -> Result<u64, OutOfMemory> {
        Err(OutOfMemory { bytes: 4096, free: 0 })
    }
}

/// Makes each core's map, and has each core use it. Call it once, when all memory is given out, no guest runs, and the
/// cores but this one have nothing to do. `guests` are the guests' parts, by number.
///
/// # Errors
/// There is no memory for the tables, or a core does not answer; the text says which.
pub fn start(config: &Config, plan: &Plan, guests: Vec<GuestLayout>) -> Result<(), String> {
    mem::LAYOUT.lock().guests = guests;
    // Of idle cores, which may be hundreds, those with the same size are told together.
    let mut idle: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for core in cores::all() {
        let role = role(plan, core.index);
        let map = Map::new(role, core.index).map_err(|e| format!("core {}: {e}", core.index))?;
        if role == Role::Idle {
            idle.entry(kib_all_the_time(role, core.index)).or_default().push(core.index as u32);
        } else {
            report::decision(describe(config, plan, role, core.index));
        }
        let root = map.root;
        if let Some(place) = MAPS.get(core.index) {
            // A guest's core looks up its tables when a job begins.
            let _everybody = For::everybody();
            place.call_once(|| map.into());
        }
        if core.index == 0 {
            load(root);
        } else {
            core.give(move |_| load(root));
            wait(core)?;
        }
    }
    for (kib, cores) in idle {
        report::decision(match &cores[..] {
            [core] => format!("core {core}, idle, maps {kib} KiB"),
            cores => format!("cores {}, idle, map {kib} KiB each", findings::ranges(cores)),
        });
    }
    Ok(())
}

fn role(plan: &Plan, core: CoreIndex) -> Role {
    let is = |number: &u32| *number as usize == core;
    if core == 0 {
        Role::Control
    } else if plan.engines.iter().any(is) {
        Role::Engine
    } else {
        plan.guests.iter().position(|cores| cores.iter().any(is)).map_or(Role::Idle, Role::Guest)
    }
}

/// Waits until a core has done its job.
fn wait(core: &Core) -> Result<(), String> {
    let until = time::tsc().saturating_add(time::micros(PATIENCE));
    while core.is_busy() {
        if time::tsc() > until {
            return Err(format!("core {} does not load its page tables", core.index));
        }
        core::hint::spin_loop();
    }
    Ok(())
}

/// Returns the KiB that a core with this role maps all the time.
fn kib_all_the_time(role: Role, core: CoreIndex) -> u64 {
    kib(&mem::LAYOUT.lock().base(role)).saturating_add(kib(&mem::pieces_of_stacks(core)))
}

fn kib(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.bytes).sum::<u64>() >> 10
}

/// Returns the sentence of the report about a core that is not idle.
fn describe(config: &Config, plan: &Plan, role: Role, core: CoreIndex) -> String {
    let base = kib_all_the_time(role, core);
    let layout = mem::LAYOUT.lock();
    let guest = |number: usize| {
        let name = config.guests.get(number).map_or("", |guest| &guest.name);
        format!("{name} {} KiB", kib(&layout.guest(role, number)))
    };
    let all = || (0..plan.guests.len()).map(guest).collect::<Vec<_>>().join(", ");
    match role {
        Role::Control if plan.control_is_engine() => format!(
            "core {core}, control and engine, maps {base} KiB, and a guest while it is loaded or has a device: {}",
            all()
        ),
        Role::Control => format!("core {core}, control, maps {base} KiB, and a guest while it is loaded: {}", all()),
        Role::Engine => format!("core {core}, engine, maps {base} KiB, and a guest while it has a device: {}", all()),
        Role::Guest(number) => {
            format!("core {core} maps {base} KiB, and its guest while it works for it: {}", guest(number))
        }
        Role::Idle => format!("core {core}, idle, maps {base} KiB"),
    }
}

/// The map of a core, once [`start`] has made it.
pub fn of(core: CoreIndex) -> Option<&'static Map> {
    MAPS.get(core)?.get().map(|map| &**map)
}

fn load(root: u64) {
    // SAFETY: the roots are those of `Map::new`. They map the image, this core's stacks, everybody's part of the heap, and what
    // the core's role needs, at the same addresses as all other tables.
    unsafe { Cr3::write(PhysFrame::containing_address(PhysAddr::new(root)), Cr3Flags::empty()) };
}

impl Map {
    fn new(role: Role, core: CoreIndex) -> Result<Self, MapError> {
        let layout = mem::LAYOUT.lock();
        let stacks = mem::pieces_of_stacks(core);
        let base = [layout.base(role), stacks].concat();
        let mut tables = mem::tables_of(&base)?;
        let mut guests = Vec::new();
        let mut own = None;
        match role {
            Role::Control | Role::Engine => {
                for number in 0..layout.guests.len() {
                    let pieces = layout.guest(role, number);
                    for piece in &pieces {
                        tables.map(piece.at, piece.to, piece.bytes, piece.access, &mut *mem::FRAMES.lock())?;
                        tables.unmap(piece.at, piece.bytes)?;
                    }
                    guests.push((pieces, 0));
                }
            }
            Role::Guest(number) => {
                let all = [base, layout.guest(role, number)].concat();
                own = Some((number, mem::tables_of(&all)?.root()));
            }
            Role::Idle => {}
        }
        Ok(Self { root: tables.root(), guest: own, changing: Mutex::new(Changing { tables, guests }) })
    }
}

impl engine::maps::Maps for Map {
    fn map(&self, guest: usize) {
        let Changing { tables, guests } = &mut *self.changing.lock();
        let Some((pieces, users)) = guests.get_mut(guest) else { return };
        *users = users.saturating_add(1);
        if *users == 1 {
            for piece in pieces {
                // This succeeds: the range was mapped and unmapped when the tables were made. Without it the first access
                // faults.
                let _ = tables.map(piece.at, piece.to, piece.bytes, piece.access, &mut NoFrames);
            }
        }
    }

    fn unmap(&self, guest: usize) {
        let Changing { tables, guests } = &mut *self.changing.lock();
        let Some((pieces, users)) = guests.get_mut(guest) else { return };
        *users = users.saturating_sub(1);
        if *users == 0 {
            for piece in pieces {
                // This succeeds too: all of it is mapped.
                let _ = tables.unmap(piece.at, piece.bytes);
            }
            tlb::flush_all();
        }
    }
}

/// The control core maps a guest's memory as long as this lives.
pub struct While(usize);

impl While {
    /// Maps it.
    pub fn loading(guest: usize) -> Self {
        if let Some(map) = of(0) {
            engine::maps::Maps::map(map, guest);
        }
        Self(guest)
    }
}

impl Drop for While {
    fn drop(&mut self) {
        if let Some(map) = of(0) {
            engine::maps::Maps::unmap(map, self.0);
        }
    }
}

/// A guest's core maps its guest as long as this lives. Drop everything that is in the guest's part of the heap before.
pub struct AtWork {
    /// Root of the tables that it uses afterwards.
    root: u64,
    /// The core allocates from the guest's part of the heap.
    _heap: For,
}

impl AtWork {
    /// Maps it. Call it on a core of that guest. On another one it changes nothing.
    pub fn of(core: &Core, guest: usize) -> Option<Self> {
        let map = of(core.index)?;
        let (_, root) = map.guest.filter(|&(own, _)| own == guest)?;
        load(root);
        Some(Self { root: map.root, _heap: For::guest(guest) })
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        load(self.root);
    }
}
