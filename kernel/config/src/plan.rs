//! Divides the cores among control core, engines and guests. Cores are numbered from 0, the boot core, in the order in
//! which ACPI lists them.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::check::leave_out;
use crate::{Config, Guest, Mistake};

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
}

impl Plan {
    /// Whether an engine shares the control core.
    #[must_use]
    pub fn control_is_engine(&self) -> bool {
        self.engines.contains(&self.control)
    }
}

/// Divides cores 0 to `cores` - 1. Leaves out the guests for which there are not enough cores.
///
/// Cores that the file names come first. An engine without a named core gets a separate core if that leaves enough
/// cores for every guest. Otherwise it shares the control core. Then the guests in their order take the lowest free
/// cores.
pub fn plan(config: &mut Config, cores: u32) -> (Plan, Vec<Mistake>) {
    let mut mistakes = Vec::new();
    let mut engines: Vec<Option<u32>> = Vec::new();
    for engine in &config.engines {
        let core = engine.core.filter(|core| *core < cores);
        if core != engine.core {
            let message = format!("no such core for the engine: {}; sidecore chooses one", range(cores));
            mistakes.push(Mistake::new(&config.file, &engine.place, message));
        }
        engines.push(core);
    }
    if engines.is_empty() {
        engines.push(None);
    }

    mistakes.extend(leave_out(config, |guest| {
        let core = guest.cores.iter().flatten().find(|core| **core >= cores)?;
        Some((guest.places.cores.clone(), format!("no core {core}: {}", range(cores))))
    }));

    let named = config.guests.iter().filter_map(|guest| guest.cores.as_ref()).flatten();
    let taken: Vec<u32> = named.chain(engines.iter().flatten()).copied().collect();
    let mut free: Vec<u32> = (1..cores).filter(|core| !taken.contains(core)).collect();
    let unnamed = config.guests.iter().filter(|guest| guest.cores.is_none());
    let wanted = unnamed.fold(0_usize, |sum, guest| sum.saturating_add(guest.vcpus as usize));

    let mut plan = Plan::default();
    for engine in engines {
        let core = match engine {
            Some(core) => core,
            None if free.len() > wanted => free.remove(0),
            None => plan.control,
        };
        plan.engines.push(core);
    }
    mistakes.extend(leave_out(config, |guest| match place(guest, &mut free) {
        Ok(cores) => {
            plan.guests.push(cores);
            None
        }
        Err(message) => Some((guest.places.cores.clone(), message)),
    }));
    plan.spare = free;
    (plan, mistakes)
}

fn place(guest: &Guest, free: &mut Vec<u32>) -> Result<Vec<u32>, String> {
    match &guest.cores {
        Some(cores) => Ok(cores.clone()),
        None if guest.vcpus as usize <= free.len() => Ok(free.drain(..guest.vcpus as usize).collect()),
        None => Err(format!("not enough cores: this guest wants {}, {} left for it", guest.vcpus, are(free.len()))),
    }
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
        plan(&mut parsed.config, cores)
    }

    #[test]
    fn each_role_has_its_core_where_there_are_enough() {
        let (plan, mistakes) = planned("", &["vcpus = 2", ""], 6);
        assert_eq!(mistakes, []);
        assert_eq!(plan, Plan { control: 0, engines: vec![1], guests: vec![vec![2, 3], vec![4]], spare: vec![5] });
        assert!(!plan.control_is_engine());
    }

    #[test]
    fn on_a_small_machine_the_control_core_is_the_engine_too() {
        let (plan, mistakes) = planned("", &["", ""], 3);
        assert_eq!(mistakes, []);
        assert_eq!(plan, Plan { control: 0, engines: vec![0], guests: vec![vec![1], vec![2]], spare: vec![] });
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
        assert_eq!(plan, Plan { control: 0, engines: vec![2], guests: vec![vec![1], vec![3]], spare: vec![4] });
    }

    #[test]
    fn cores_that_the_machine_lacks_are_mistakes() {
        let (plan, mistakes) = planned("[[engine]]\ncore = 9", &["cores = [8]", ""], 4);
        assert_eq!(plan, Plan { control: 0, engines: vec![1], guests: vec![vec![2]], spare: vec![3] });
        let messages: Vec<_> = mistakes.iter().map(|mistake| mistake.message.as_str()).collect();
        assert!(messages[0].starts_with("no such core for the engine") && messages[1].starts_with("no core 8"));
        assert_eq!((mistakes[0].line, mistakes[0].value.as_str()), (2, "9"));
    }

    proptest! {
        #[test]
        fn no_core_has_two_guests(cores in 0_u32..12, vcpus in proptest::collection::vec(1_u32..=4, 0..6)) {
            let guests: Vec<String> = vcpus.iter().map(|count| format!("vcpus = {count}")).collect();
            let guests: Vec<&str> = guests.iter().map(String::as_str).collect();
            let mut config = parse("f", text("", &guests)).config;
            let (plan, mistakes) = plan(&mut config, cores);
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
