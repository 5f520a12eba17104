//! The shadow IDT and the nested tables beneath it: pages swapped and handed back, pages split to be executable, host's vectors
//! chosen and moved, as a guest's vCPUs bring it about in any order. A second walk, written from the manuals, says where each
//! address leads: only the one page leads elsewhere, only it refuses stores, and it shows the guest's table but for two P bits.
//! Every table is in the tree once. No vector is the host's and the guest's.

use std::collections::BTreeSet;

use machine::eli::{Backoff, Eli, HostVectors, Interrupted, Unfit, Verdict, idt, judge};
use machine::testing::FakeVcpu;
use memory::GuestMemory;
use memory::split::Pool;
use memory::swap::Shadow;
use memory::tables::{Access, Format, Tables};
use spin::Mutex;

use crate::input::Input;
use crate::planted::planted;

mod tree;

use tree::{Frames, Leaf, PAGE};

/// Steps of one run at most: a run is short, and many are made.
const MOST_STEPS: usize = 100;
const VCPUS: usize = 3;
/// Guest memory that tests can read: all of it is mapped but for the last page.
const MEMORY: u64 = 0x1_0000;
/// Where guest memory lies.
const BASE: u64 = 0x10_0000_0000;
/// What is mapped besides: address and bytes. Large pages begin and end in it.
const MORE: [(u64, u64); 3] = [(0x20_0000, 0x40_5000), (0x4000_0000, 0x8020_3000), (0xff_ffff_e000, 0x2000)];
const TSC_KHZ: u64 = 1000;

/// What the harness knows.
struct Model {
    eli: Eli,
    shadow: &'static Mutex<Shadow>,
    memory: GuestMemory,
    format: Format,
    pool: Option<Pool>,
    /// Vectors that the guest has used in this life.
    used: [bool; 256],
    host: Option<HostVectors>,
    /// The page that is swapped, and what it shows.
    page: Option<(u64, Box<[u8; 4096]>)>,
    /// Pages that a fetch has made executable since they were last mapped.
    executable: BTreeSet<u64>,
    inside: [bool; VCPUS],
    now: u64,
}

/// The vectors of the highest priority that are free, those first that Linux leaves alone.
fn choose(used: &[bool; 256], idt: Option<&[u8; 4096]>) -> Option<HostVectors> {
    let mut order = vec![0xf5, 0xf0, 0xf1, 0xf2];
    for vector in (0x20..0xff).rev() {
        if !order.contains(&vector) {
            order.push(vector);
        }
    }
    // An interrupt gate or a trap gate of 64 bits, S clear (SDM vol. 3A, table 3-2).
    order.retain(|&v| !used[v] && idt.is_none_or(|idt| [0xe, 0xf].contains(&(idt[v * 16 + 5] % 32))));
    (order.len() >= 2).then(|| HostVectors { kick: order[0] as u8, probe: order[1] as u8 })
}

/// Where guest memory is mapped without a shadow.
fn usual(at: u64) -> Option<u64> {
    let in_any = at < MEMORY - PAGE || MORE.iter().any(|&(from, len)| at >= from && at - from < len);
    in_any.then(|| BASE + at)
}

impl Model {
    fn read(&self, gpa: u64) -> Option<Box<[u8; 4096]>> {
        let mut bytes = Box::new([0; 4096]);
        self.memory.read(gpa, &mut bytes[..]).ok().map(|()| bytes)
    }

    /// What the page at `gpa` is to show, or why it cannot.
    fn expected(&self, gpa: u64) -> Result<(HostVectors, Box<[u8; 4096]>), Unfit> {
        let mut image = self.read(gpa).ok_or(Unfit::NotMemory(gpa))?;
        let host = choose(&self.used, Some(&image)).ok_or(Unfit::NoVectors)?;
        for vector in [host.kick, host.probe] {
            image[usize::from(vector) * 16 + 5] &= if planted() { 0xff } else { 0x7f };
        }
        Ok((host, image))
    }

    /// Makes a vCPU leave the guest, as its core does when it is kicked.
    fn leave(eli: &Eli, inside: &mut [bool; VCPUS], vcpu: usize) {
        assert!(inside[vcpu], "only who is in the guest is kicked");
        eli.quiesce.left(vcpu);
        inside[vcpu] = false;
    }

    /// Nobody is in the guest but, perhaps, nobody: the tables may change.
    fn shadow(&mut self, me: usize, gpa: u64) {
        let expected = self.expected(gpa);
        let Self { eli, memory, inside, .. } = self;
        if inside[me] {
            Self::leave(eli, inside, me);
        }
        let mut state = eli.lock();
        let got = eli.shadow(&mut state, me, gpa, memory, |vcpu| Self::leave(eli, inside, vcpu));
        let page = state.page();
        drop(state);
        match expected {
            Err(why) => assert_eq!((got, page), (Err(why), self.page.as_ref().map(|(at, _)| *at)), "nothing changes"),
            Ok((host, image)) => {
                assert!(self.inside.iter().all(|inside| !inside), "nobody was in the guest meanwhile");
                self.forget();
                self.host = Some(host);
                if usual(gpa).is_some() {
                    assert_eq!((got, page), (Ok(()), Some(gpa)));
                    self.page = Some((gpa, image));
                } else {
                    assert_eq!((got, page), (Err(Unfit::NotMemory(gpa)), None));
                }
            }
        }
    }

    /// The page is mapped as before.
    fn forget(&mut self) {
        if let Some((page, _)) = self.page.take() {
            // A page of 2 MiB comes back as it was mapped at first, and so do the pages around it.
            let whole = page & !0x1f_ffff;
            if self.is_large(whole) {
                self.executable.retain(|at| at & !0x1f_ffff != whole);
            }
        }
    }

    /// Whether 2 MiB from `at` on were mapped by one page, and no fetch has split that.
    fn is_large(&self, at: u64) -> bool {
        at >= MEMORY && usual(at).is_some() && usual(at + 0x1f_ffff).is_some() && !self.executable.contains(&(at | 1))
    }

    fn hand_back(&mut self, me: usize, gpa: u64) {
        let Self { eli, inside, .. } = self;
        if inside[me] {
            Self::leave(eli, inside, me);
        }
        let mut state = eli.lock();
        let was = state.page() == Some(gpa & !0xfff);
        let got = eli.hand_back(&mut state, me, gpa, self.now, |vcpu| Self::leave(eli, inside, vcpu));
        assert_eq!(got, was, "the page is handed back if it is the one");
        if got {
            assert_eq!((state.page(), state.in_use()), (None, false));
            let wait = state.due() - self.now;
            assert!((8 * TSC_KHZ..=1024 * TSC_KHZ).contains(&wait), "8 ms to a second: {wait}");
            drop(state);
            self.forget();
        }
    }

    fn uses(&mut self, me: usize, vector: u8) {
        let was = self.host.is_some_and(|host| vector == host.kick || vector == host.probe);
        assert_eq!(self.eli.uses(vector), was, "the vector is the host's");
        self.used[usize::from(vector)] = true;
        if was {
            let Self { eli, inside, .. } = self;
            if inside[me] {
                Self::leave(eli, inside, me);
            }
            let mut state = eli.lock();
            eli.move_vectors(&mut state, me, |vcpu| Self::leave(eli, inside, vcpu));
            assert_eq!((state.page(), state.in_use()), (None, false));
            drop(state);
            self.forget();
            self.host = choose(&self.used, None);
        }
    }

    /// The guest fetches an instruction from a page.
    fn fetch(&mut self, at: u64) {
        let Some(pool) = &mut self.pool else { return };
        let done = self.shadow.lock().make_executable(at, pool);
        assert_eq!(done.is_ok(), usual(at).is_some(), "what is mapped can be executed: {done:?}");
        if done.is_err() {
            return;
        }
        let (page, whole) = (at & !0xfff, at & !0x1f_ffff);
        let swapped_around = self.page.as_ref().is_some_and(|(swapped, _)| swapped & !0x1f_ffff == whole);
        if self.is_large(whole) && !swapped_around {
            self.executable.insert(whole | 1);
            self.executable.extend((whole..whole + 0x20_0000).step_by(0x1000));
        } else {
            self.executable.insert(page);
        }
    }

    /// What an address leads to.
    fn leaf(&self, at: u64) -> Option<Leaf> {
        let usual = usual(at)?;
        let page = self.page.as_ref().is_some_and(|(page, _)| *page == at & !0xfff);
        let to = if page { None } else { Some(usual) };
        // Without the work-around everything is executable, and with it what was fetched from, and pages that were never part
        // of a larger one.
        let small = at < MEMORY || !(usual_is_large(at));
        let execute =
            if self.pool.is_none() || small { Some(true) } else { Some(self.executable.contains(&(at & !0xfff))) };
        Some(Leaf { to, write: !page, execute })
    }

    fn look(&self, at: u64) {
        let found = tree::walk(self.shadow.lock().root(), self.format, at);
        let expected = self.leaf(at);
        match (found, expected) {
            (None, None) => (),
            (Some(found), Some(expected)) => {
                if let Some(to) = expected.to {
                    assert_eq!(found.to, Some(to), "{at:#x} leads where it did");
                } else {
                    assert!(usual(at) != found.to, "{at:#x} leads to the shadow");
                }
                assert_eq!(found.write, expected.write, "stores at {at:#x}");
                assert_eq!(found.execute, expected.execute, "fetches at {at:#x}");
            }
            (found, expected) => panic!("{at:#x}: {found:?}, expected {expected:?}"),
        }
    }

    /// Looks at a page and around it.
    fn look_around(&self, input: &mut Input<'_>) {
        let page = self.page.as_ref().map_or(0x20_0000, |(page, _)| *page);
        for distance in [0, 0xfff, 0x1000, 0x20_0000, 0x4000_0000, 0x80_0000_0000] {
            self.look(page + distance);
            self.look(page.saturating_sub(distance));
        }
        self.look(address(input) & !7);
        let shadow = self.shadow.lock();
        assert_eq!(shadow.at(), self.page.as_ref().map(|(page, _)| *page), "the page that is swapped");
        if let Some((_, image)) = &self.page {
            assert!(shadow.image().as_ref() == Some(image), "the guest finds its table but for the host's gates");
        }
    }

    /// Every mapped byte is mapped, nothing else is, and no table is there twice.
    fn look_at_all(&self, frames: &Frames) {
        let mapped = tree::mapped(self.shadow.lock().root(), frames);
        assert_eq!(mapped, MEMORY - PAGE + MORE.iter().map(|(_, len)| len).sum::<u64>(), "bytes that are mapped");
    }
}

/// Whether the page of 2 MiB around an address is mapped as a whole.
fn usual_is_large(at: u64) -> bool {
    let whole = at & !0x1f_ffff;
    at >= MEMORY && usual(whole).is_some() && usual(whole + 0x1f_ffff).is_some()
}

/// An address: most are mapped, and near an end of something.
fn address(input: &mut Input<'_>) -> u64 {
    let near = match input.byte() % 12 {
        0..6 => input.within(0, MEMORY + 2 * PAGE),
        6 => input.wide() & 0xffff_ffff_ffff,
        7 => MORE[0].0 + input.within(0, MORE[0].1 + PAGE),
        8 => MORE[1].0 + input.within(0, MORE[1].1 + PAGE),
        9 => MORE[1].0 + 0x4000_0000 * (input.byte() as u64 % 3) + PAGE * input.within(0, 4),
        10 => MORE[1].0 + MORE[1].1 - PAGE * input.within(0, 4),
        _ => MORE[2].0 + input.within(0, MORE[2].1),
    };
    near & 0xffff_ffff_ffff
}

/// What a #NP is, by the manuals' tables.
fn verdict(error: u32, interrupted: Option<Interrupted>, host: Option<HostVectors>) -> Verdict {
    let names_idt = error >> 1 & 1 == 1;
    let vectors = host.map_or(Vec::new(), |host| vec![host.kick, host.probe]);
    let hosts = |vector: u8| names_idt && (error & !7) / 8 == u32::from(vector) && vectors.contains(&vector);
    match interrupted {
        Some(Interrupted::External(vector)) if hosts(vector) => Verdict::Host(vector),
        Some(Interrupted::Software(vector)) if hosts(vector) => Verdict::Claimed(vector),
        Some(Interrupted::Exception(8)) => Verdict::TripleFault,
        Some(Interrupted::Exception(vector)) if [0, 10, 11, 12, 13, 14].contains(&vector) => Verdict::DoubleFault,
        _ => Verdict::Guest,
    }
}

fn judge_one(model: &Model, input: &mut Input<'_>) {
    let vector = match (input.byte() % 4, model.host) {
        (0, Some(host)) => host.kick,
        (1, Some(host)) => host.probe,
        _ => input.byte(),
    };
    let interrupted = match input.byte() % 5 {
        0 => Some(Interrupted::External(vector)),
        1 => Some(Interrupted::Software(vector)),
        2 => Some(Interrupted::Exception(vector % 32)),
        3 => Some(Interrupted::Nmi),
        _ => None,
    };
    let error = if input.flag() { u32::from(vector) << 3 | u32::from(input.byte() % 8) } else { input.wide() as u32 };
    let host = if input.byte().is_multiple_of(4) { None } else { model.host };
    assert_eq!(judge(error, interrupted, host), verdict(error, interrupted, host));
}

/// Which page a vCPU's IDT is in, by paging that is off.
fn find_page(model: &Model, input: &mut Input<'_>) {
    let (aligned, limit, long) = (input.flag(), input.wide() as u16 | 0xf00, !input.byte().is_multiple_of(4));
    // Without paging an address has 32 bits.
    let base = (if aligned { address(input) & !0xfff } else { input.wide() >> 16 }) & 0xffff_ffff;
    let efer = if long { 1 << 10 } else { 0 };
    let vcpu = FakeVcpu { idt: (base, limit), efer, ..FakeVcpu::long_mode() };
    let expected = match base {
        _ if !long => Err(Unfit::NotLongMode),
        _ if base & 0xfff != 0 || limit < 0xfff => Err(Unfit::NotOnePage { base, limit }),
        _ if base >= MEMORY => Err(Unfit::NotMemory(base)),
        _ => Ok(base),
    };
    assert_eq!(idt::page(&vcpu, &model.memory), expected);
    if let Err(why) = expected {
        assert!(!why.to_string().is_empty());
        model.eli.is_first(why);
        assert!(!model.eli.is_first(why), "each kind is told once in a life");
    }
    // A vCPU that waits to shadow its table is kicked when it is due, and not before.
    let (vcpu, due, now) = (usize::from(input.byte()) % VCPUS, u64::from(input.byte()), u64::from(input.byte()));
    (0..VCPUS).for_each(|other| model.eli.set_next_try(other, if other == vcpu { due } else { u64::MAX }));
    let mut kicked = Vec::new();
    model.eli.tick(now, |vcpu| kicked.push(vcpu));
    assert_eq!(kicked, if due <= now { vec![vcpu] } else { vec![] });
    assert_eq!(model.eli.next_try(vcpu), due);
}

fn step(model: &mut Model, input: &mut Input<'_>) {
    let me = usize::from(input.byte()) % VCPUS;
    match input.byte() % 16 {
        0..4 => {
            let gpa = address(input) & !0xfff;
            model.shadow(me, gpa);
        }
        4 => {
            let gpa = match &model.page {
                Some((page, _)) if input.flag() => page + input.within(0, PAGE),
                _ => address(input),
            };
            model.hand_back(me, gpa);
        }
        5 => {
            let vector = match model.host {
                Some(host) if input.flag() => host.kick,
                Some(host) if input.flag() => host.probe,
                _ => input.byte(),
            };
            model.uses(me, vector);
        }
        6 => {
            // Almost all vectors: few are left.
            let keep = input.byte();
            (0x20..0xff_u8).filter(|v| v % 16 != keep % 16).for_each(|vector| model.uses(me, vector));
        }
        7..10 => {
            // The guest writes its table; a store to the page that is swapped would have handed it back.
            let page = input.within(0, MEMORY / PAGE) * PAGE;
            if model.page.as_ref().is_some_and(|(swapped, _)| *swapped == page) {
                model.hand_back(me, page);
            }
            let (kind, from, count) = (input.byte(), input.byte(), input.byte());
            for vector in 0..u64::from(count) {
                let gate = page + 16 * ((u64::from(from) + vector) % 256);
                model.memory.write_u64(gate, u64::from(kind) << 40 | vector).expect("in its memory");
            }
        }
        10 => {
            let number = model.eli.quiesce.stable();
            let stale = input.byte().is_multiple_of(4);
            let entered = model.eli.quiesce.enter(me, if stale { number.wrapping_sub(2) } else { number });
            assert_eq!(entered, !stale, "who has flushed for these tables enters");
            model.inside[me] = entered;
        }
        11 => {
            model.eli.quiesce.left(me);
            model.inside[me] = false;
        }
        12 => {
            let at = address(input);
            model.fetch(at);
        }
        13 => judge_one(model, input),
        14 => find_page(model, input),
        _ => {
            model.now += input.wide() >> (input.byte() % 64).max(20);
            if input.byte().is_multiple_of(8) {
                // Another life.
                model.eli = Eli::new(model.shadow, VCPUS, TSC_KHZ);
                model.forget();
                (model.used, model.inside) = ([false; 256], [false; VCPUS]);
                model.host = choose(&model.used, None);
            }
            let mut backoff = Backoff::new(input.wide() >> (input.byte() % 64));
            assert!(backoff.disturbed(model.now) >= model.now);
        }
    }
    let vectors = model.eli.vectors();
    assert_eq!(vectors, model.host, "the host's vectors");
    assert!(vectors.is_none_or(|host| !model.used[usize::from(host.kick)] && !model.used[usize::from(host.probe)]));
}

/// The target.
///
/// # Panics
/// Something leads where it does not belong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = input.byte();
    let format = if kind & 1 == 0 { Format::Npt } else { Format::Ept };
    let small = kind & 2 != 0;
    // The work-around is not there for larger pages.
    let gigabyte = kind & 4 != 0 && !small;
    let mut frames = Frames::new();
    let mut tables = Tables::new(format, gigabyte, &mut frames).expect("frames");
    if small {
        tables.set_small_executable();
    }
    for (from, len) in [(0, MEMORY - PAGE)].into_iter().chain(MORE) {
        tables.map(from, BASE + from, len, Access::RWX, &mut frames).expect("nothing is there yet");
    }
    let pool = small.then(|| Pool::take(MORE.iter().map(|(_, len)| len).sum(), &mut frames).expect("frames"));
    let shadow = Box::into_raw(Box::new(Mutex::new(Shadow::new(tables, &mut frames).expect("frames"))));
    // SAFETY: it lives until the end of this function, and nothing that has it lives longer.
    let shadow_ref: &'static Mutex<Shadow> = unsafe { &*shadow };
    tree::MEMORY_OF_GUEST.with(|memory| {
        memory.zero(0, MEMORY).expect("all of it");
        let mut model = Model {
            eli: Eli::new(shadow_ref, VCPUS, TSC_KHZ),
            shadow: shadow_ref,
            memory: memory.clone(),
            format,
            pool,
            used: [false; 256],
            host: choose(&[false; 256], None),
            page: None,
            executable: BTreeSet::new(),
            inside: [false; VCPUS],
            now: 0,
        };
        // A table as Linux has it.
        for gate in (0..PAGE).step_by(16) {
            model.memory.write_u64(0x5000 + gate, 0x8e << 40 | gate).expect("in its memory");
        }
        for _ in 0..MOST_STEPS {
            if input.is_empty() {
                break;
            }
            step(&mut model, &mut input);
            model.look_around(&mut input);
        }
        model.look_at_all(&frames);
        model.eli = Eli::new(shadow_ref, VCPUS, TSC_KHZ);
        model.forget();
        model.look_around(&mut input);
        model.look_at_all(&frames);
    });
    // SAFETY: the model and its `Eli` are gone.
    drop(unsafe { Box::from_raw(shadow) });
}

crate::planted::tests!(only_the_one_page_leads_elsewhere, 256, 1..800);
