//! Divides the cores among control core, engines and guests. Cores are numbered from 0, the boot core, in the order in
//! which ACPI lists them.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::check::leave_out;
use crate::{Config, Guest, Mistake, Smt, Topology};

/// The division of the cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The control core: always 0.
    pub control: u32,
    /// Cores of the engines. One may be the control core.
    pub engines: Vec<u32>,
    /// For each guest of the configuration, in its order, the cores of its vCPUs.
    pub guests: Vec<Vec<u32>>,
    /// Cores with nothing to do.
    pub spare: Vec<u32>,
    /// Cores that stay idle because a sibling is in use by somebody.
    pub given_up: Vec<u32>,
}

impl Plan {
    /// Whether an engine shares the control core.
    #[must_use]
    pub fn control_is_engine(&self) -> bool {
        self.engines.contains(&self.control)
    }
}

/// Divides the cores of `topology`. Leaves out the guests for which there are not enough cores.
///
/// Cores that the file names come first. An engine without a named core gets a separate core if that leaves enough
/// cores for every guest. Otherwise it shares the control core. Then the guests in their order take the lowest free
/// cores. A core that has not started is nobody's; its sibling is used as if it had none.
///
/// Threads of one physical core run the same guest, or the hypervisor, or nothing: guests without named cores take whole
/// physical cores, and an engine that would share the control core takes a sibling of that. With [`Smt::Share`] every
/// thread counts as a core.
pub fn plan(config: &mut Config, topology: &Topology) -> (Plan, Vec<Mistake>) {
    let cores = topology.cores();
    let flat;
    let topology = match config.smt {
        Smt::Separate => topology,
        Smt::Share => {
            let absent: Vec<u32> = (0..cores).filter(|&core| !topology.runs(core)).collect();
            flat = Topology::one_thread_each(cores).without(&absent);
            &flat
        }
    };
    let mut mistakes = Vec::new();
    let mut engines: Vec<Option<u32>> = Vec::new();
    for engine in &config.engines {
        let core = engine.core.filter(|core| topology.runs(*core));
        if let Some(wrong) = engine.core.filter(|_| core.is_none()) {
            let message = if wrong < cores {
                format!("core {wrong} has not started, so the engine cannot have it; sidecore chooses one")
            } else {
                format!("no such core for the engine: {}; sidecore chooses one", range(cores))
            };
            mistakes.push(Mistake::new(&config.file, &engine.place, message));
        }
        engines.push(core);
    }
    if engines.is_empty() {
        engines.push(None);
    }

    mistakes.extend(leave_out(config, |guest| {
        let core = guest.cores.iter().flatten().find(|core| !topology.runs(**core))?;
        let message = if *core < cores {
            format!("core {core} has not started; name another one")
        } else {
            format!("no core {core}: {}", range(cores))
        };
        Some((guest.places.cores.clone(), message))
    }));

    let mut plan = Plan::default();
    let mut ours: Vec<u32> = [plan.control].into();
    ours.extend(engines.iter().flatten());
    let mut named: Vec<(String, u32)> = Vec::new();
    mistakes.extend(leave_out(config, |guest| {
        let own = guest.cores.iter().flatten();
        if let Some((core, user, other)) = own.clone().find_map(|core| sibling_in_use(topology, *core, &ours, &named)) {
            return Some((guest.places.cores.clone(), shares(core, &user, other)));
        }
        named.extend(own.map(|core| (guest.name.clone(), *core)));
        None
    }));

    let taken = |core: &u32| ours.contains(core) || named.iter().any(|(_, taken)| taken == core);
    let (mut given_up, mut free) = (Vec::new(), Vec::new());
    for group in topology.groups() {
        if group.iter().any(taken) {
            given_up.extend(group.into_iter().filter(|core| !taken(core)));
        } else {
            free.push(group);
        }
    }
    for engine in engines {
        let core = match engine {
            Some(core) => core,
            None => choose_engine(config, topology, plan.control, &mut free, &mut given_up),
        };
        plan.engines.push(core);
    }
    mistakes.extend(leave_out(config, |guest| match place(guest, &mut free, &mut given_up) {
        Ok(cores) => {
            plan.guests.push(cores);
            None
        }
        Err(message) => Some((guest.places.cores.clone(), message)),
    }));
    plan.spare = free.concat();
    plan.spare.sort_unstable();
    given_up.sort_unstable();
    plan.given_up = given_up;
    (plan, mistakes)
}

/// If a sibling of `core` is ours or another guest's, both cores and who uses the sibling.
fn sibling_in_use(topology: &Topology, core: u32, ours: &[u32], named: &[(String, u32)]) -> Option<(u32, String, u32)> {
    let hypervisor = ours.iter().find(|other| topology.siblings(core, **other));
    let by_hypervisor = hypervisor.map(|other| (core, "the hypervisor".into(), *other));
    by_hypervisor.or_else(|| {
        let (name, other) = named.iter().find(|(_, other)| topology.siblings(core, *other))?;
        Some((core, format!("guest `{name}`"), *other))
    })
}

fn shares(core: u32, user: &str, other: u32) -> String {
    format!(
        "core {core} is a thread of the same physical core as core {other}, which {user} uses: one could read what the \
         other leaves in it; name another core, or set smt = \"share\""
    )
}

/// Chooses the core of an engine that has none in the file.
fn choose_engine(
    config: &Config,
    topology: &Topology,
    control: u32,
    free: &mut Vec<Vec<u32>>,
    given_up: &mut Vec<u32>,
) -> u32 {
    if let [first, others @ ..] = free.as_slice()
        && let [core, siblings @ ..] = first.as_slice()
    {
        let (mut rest, mut unused) = (others.to_vec(), Vec::new());
        if config.guests.iter().all(|guest| place(guest, &mut rest, &mut unused).is_ok()) {
            let core = *core;
            given_up.extend(siblings);
            free.remove(0);
            return core;
        }
    }
    match given_up.iter().position(|core| topology.siblings(control, *core)) {
        Some(sibling) => given_up.remove(sibling),
        None => control,
    }
}

/// The guest's cores: those that the file names, or whole physical cores from `free`. Threads that it does not need go to
/// `given_up`.
fn place(guest: &Guest, free: &mut Vec<Vec<u32>>, given_up: &mut Vec<u32>) -> Result<Vec<u32>, String> {
    if let Some(cores) = &guest.cores {
        return Ok(cores.clone());
    }
    let wanted = guest.vcpus as usize;
    let left: usize = free.iter().map(Vec::len).sum();
    if wanted > left {
        return Err(format!("not enough cores: this guest wants {}, {} left for it", guest.vcpus, are(left)));
    }
    let mut cores = Vec::new();
    while cores.len() < wanted {
        cores.append(&mut free.remove(0));
    }
    given_up.extend(cores.drain(wanted..));
    Ok(cores)
}

fn range(cores: u32) -> String {
    format!("this machine has {cores}, numbered from 0")
}

fn are(count: usize) -> String {
    if count == 1 { "1 is".into() } else { format!("{count} are") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse;

    fn text(head: &str, guests: &[&str]) -> String {
        guests.iter().enumerate().fold(head.into(), |text, (index, rest)| {
            format!("{text}\n[[guest]]\nname = 'g{index}'\nmemory = '64M'\nkernel = 'k'\n{rest}\n")
        })
    }

    fn planned(head: &str, guests: &[&str], cores: u32) -> (Plan, Vec<Mistake>) {
        let mut parsed = parse("f", text(head, guests));
        assert_eq!(parsed.mistakes, []);
        plan(&mut parsed.config, &Topology::one_thread_each(cores))
    }

    #[test]
    fn each_role_has_its_core_where_there_are_enough() {
        let (plan, mistakes) = planned("", &["vcpus = 2", ""], 6);
        assert_eq!(mistakes, []);
        assert_eq!(
            plan,
            Plan { control: 0, engines: vec![1], guests: vec![vec![2, 3], vec![4]], spare: vec![5], given_up: vec![] }
        );
        assert!(!plan.control_is_engine());
    }

    #[test]
    fn on_a_small_machine_the_control_core_is_the_engine_too() {
        let (plan, mistakes) = planned("", &["", ""], 3);
        assert_eq!(mistakes, []);
        assert_eq!(
            plan,
            Plan { control: 0, engines: vec![0], guests: vec![vec![1], vec![2]], spare: vec![], given_up: vec![] }
        );
        assert!(plan.control_is_engine());
    }

    #[test]
    fn a_guest_for_which_no_core_is_left_does_not_start() {
        let (plan, mistakes) = planned("", &["", "vcpus = 2", ""], 3);
        assert_eq!(plan.guests, [[1], [2]], "the third guest is smaller than the second and fits");
        assert_eq!(mistakes[0].message, "not enough cores: this guest wants 2, 1 is left for it");
        assert_eq!(mistakes[0].guest.as_deref(), Some("g1"));
        let (plan, mistakes) = planned("", &[""], 1);
        assert_eq!((plan.engines.as_slice(), plan.guests.len(), mistakes.len()), (&[0][..], 0, 1));
    }

    #[test]
    fn named_cores_are_kept_and_the_others_fit_around_them() {
        let (plan, mistakes) = planned("[[engine]]\ncore = 2", &["cores = [1]", ""], 5);
        assert_eq!(mistakes, []);
        assert_eq!(
            plan,
            Plan { control: 0, engines: vec![2], guests: vec![vec![1], vec![3]], spare: vec![4], given_up: vec![] }
        );
    }

    #[test]
    fn cores_that_the_machine_lacks_are_mistakes() {
        let (plan, mistakes) = planned("[[engine]]\ncore = 9", &["cores = [8]", ""], 4);
        assert_eq!(
            plan,
            Plan { control: 0, engines: vec![1], guests: vec![vec![2]], spare: vec![3], given_up: vec![] }
        );
        let messages: Vec<_> = mistakes.iter().map(|mistake| mistake.message.as_str()).collect();
        assert!(messages[0].starts_with("no such core for the engine") && messages[1].starts_with("no core 8"));
        assert_eq!((mistakes[0].line, mistakes[0].value.as_str()), (2, "9"));
    }

    /// Cores with two threads each: 0 and 1, 2 and 3 and so on.
    fn with_threads(head: &str, guests: &[&str], cores: u32) -> (Plan, Vec<Mistake>) {
        let mut parsed = parse("f", text(head, guests));
        assert_eq!(parsed.mistakes, []);
        plan(&mut parsed.config, &Topology::new(&(0..cores).collect::<Vec<_>>(), 1))
    }

    #[test]
    fn threads_of_a_core_run_one_guest_or_nothing() {
        let (plan, mistakes) = with_threads("", &["vcpus = 3", ""], 12);
        assert_eq!(mistakes, []);
        assert_eq!(plan.engines, [2]);
        assert_eq!(plan.guests, [vec![4, 5, 6], vec![8]]);
        assert_eq!((plan.given_up, plan.spare), (vec![1, 3, 7, 9], vec![10, 11]));
    }

    #[test]
    fn an_engine_without_a_core_of_its_own_takes_a_sibling_of_the_control_core() {
        let (plan, mistakes) = with_threads("", &["", ""], 6);
        assert_eq!(mistakes, []);
        let (engines, guests) = (vec![1], vec![vec![2], vec![4]]);
        assert_eq!(plan, Plan { control: 0, engines, guests, spare: vec![], given_up: vec![3, 5] });
    }

    #[test]
    fn a_guest_that_would_have_half_a_core_does_not_start() {
        let (plan, mistakes) = with_threads("", &["", "", ""], 6);
        assert_eq!(plan.guests, [[2], [4]]);
        assert_eq!(mistakes[0].message, "not enough cores: this guest wants 1, 0 are left for it");
    }

    #[test]
    fn named_cores_that_share_a_physical_core_are_mistakes() {
        let (plan, mistakes) = with_threads("[[engine]]\ncore = 2", &["cores = [3]", "cores = [4]", "cores = [5]"], 8);
        let said: Vec<&str> = mistakes.iter().map(|mistake| mistake.message.as_str()).collect();
        assert!(
            said[0].starts_with("core 3 is a thread of the same physical core as core 2, which the hypervisor uses")
        );
        assert!(said[1].starts_with("core 5 is a thread of the same physical core as core 4, which guest `g1` uses"));
        assert_eq!((plan.guests, plan.given_up, plan.spare), (vec![vec![4]], vec![1, 3, 5], vec![6, 7]));
    }

    #[test]
    fn a_guest_may_name_both_threads() {
        let (plan, mistakes) = with_threads("", &["vcpus = 2\ncores = [3, 2]", ""], 8);
        assert_eq!(mistakes, []);
        assert_eq!((plan.engines, plan.guests), (vec![4], vec![vec![3, 2], vec![6]]));
        assert_eq!(plan.given_up, [1, 5, 7]);
    }

    #[test]
    fn share_makes_every_thread_a_core() {
        let (plan, mistakes) = with_threads("smt = 'share'", &["", ""], 4);
        assert_eq!(mistakes, []);
        assert_eq!((plan.engines, plan.guests, plan.given_up), (vec![1], vec![vec![2], vec![3]], vec![]));
    }

    #[test]
    fn cores_that_have_not_started_are_nobodys() {
        let text = text("[[engine]]\ncore = 3", &["cores = [5]", "vcpus = 2", ""]);
        let mut parsed = parse("f", text);
        let topology = Topology::new(&(0..10).collect::<Vec<_>>(), 1).without(&[3, 5, 6]);
        let (plan, mistakes) = plan(&mut parsed.config, &topology);
        let said: Vec<&str> = mistakes.iter().map(|mistake| mistake.message.as_str()).collect();
        assert_eq!(
            said,
            [
                "core 3 has not started, so the engine cannot have it; sidecore chooses one",
                "core 5 has not started; name another one",
            ]
        );
        // Core 2 has lost its sibling 3, and core 7 its sibling 6.
        assert_eq!((plan.engines, plan.guests), (vec![2], vec![vec![4, 7], vec![8]]));
        assert_eq!((plan.given_up, plan.spare), (vec![1, 9], vec![]));
    }

    #[test]
    fn a_thousand_cores_are_divided() {
        let guests = vec!["vcpus = 8"; 30];
        let (plan, mistakes) = with_threads("", &guests, 1024);
        assert_eq!(mistakes, []);
        assert_eq!((plan.engines, plan.guests.len()), (vec![2], 30));
        assert_eq!((plan.guests[29].last(), plan.spare.len()), (Some(&243), 1024 - 244));
    }

    proptest! {
        #[test]
        fn no_two_guests_share_a_physical_core(
            ids in proptest::collection::vec(0_u32..16, 1..12),
            bits in 0_u32..3,
            vcpus in proptest::collection::vec(1_u32..=4, 0..6),
            named in proptest::option::of(1_u32..12),
            engine in proptest::option::of(0_u32..12),
        ) {
            let head = engine.map_or(String::new(), |core| format!("[[engine]]\ncore = {core}"));
            let mut guests: Vec<String> = vcpus.iter().map(|count| format!("vcpus = {count}")).collect();
            if let Some(core) = named.filter(|core| Some(*core) != engine) {
                guests.push(format!("cores = [{core}]"));
            }
            let guests: Vec<&str> = guests.iter().map(String::as_str).collect();
            let mut config = parse("f", text(&head, &guests)).config;
            let topology = Topology::new(&ids, bits);
            let (plan, _) = plan(&mut config, &topology);
            let mut owners: Vec<Vec<u32>> = plan.guests.clone();
            owners.push(plan.engines.iter().copied().chain([plan.control]).collect());
            for (number, one) in owners.iter().enumerate() {
                for other in owners.iter().skip(number + 1) {
                    let shared = one.iter().find(|a| other.iter().any(|b| topology.siblings(**a, *b) || *a == b));
                    prop_assert_eq!(shared, None);
                }
            }
            let mut all = [plan.guests.concat(), plan.engines, plan.spare, plan.given_up, vec![0]].concat();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all, (0..topology.cores()).collect::<Vec<_>>(), "every core has its place");
        }

        #[test]
        fn no_core_has_two_guests(cores in 0_u32..12, vcpus in proptest::collection::vec(1_u32..=4, 0..6)) {
            let guests: Vec<String> = vcpus.iter().map(|count| format!("vcpus = {count}")).collect();
            let guests: Vec<&str> = guests.iter().map(String::as_str).collect();
            let mut config = parse("f", text("", &guests)).config;
            let (plan, mistakes) = plan(&mut config, &Topology::one_thread_each(cores));
            prop_assert_eq!(plan.guests.len(), config.guests.len());
            prop_assert_eq!(plan.guests.len() + mistakes.len(), vcpus.len());
            let mut used: Vec<u32> = plan.guests.concat();
            used.extend(&plan.spare);
            used.extend(plan.engines.iter().filter(|core| **core != 0));
            used.sort_unstable();
            prop_assert_eq!(used, (1..cores).collect::<Vec<_>>(), "every core but the first once");
        }
    }
}
