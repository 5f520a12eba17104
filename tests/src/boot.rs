//! A boot: one machine, started once, and the scenarios that it serves one after another.
//!
//! Each scenario is reported by its own name and can be run alone. The machine then has only what this scenario needs.
//! After a failure, a new machine serves the remaining scenarios, so that none of them fails because of an earlier one.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};

use crate::figures::Figures;
use crate::launch::Launch;
use crate::scenario::{Context, Scenario};

/// The names of the scenarios that a machine is started for.
pub struct Wanted<'a>(&'a [&'static str]);

impl Wanted<'_> {
    /// Whether one of these names is among them.
    #[must_use]
    pub fn any(&self, names: &[&str]) -> bool {
        self.0.iter().any(|wanted| names.contains(wanted))
    }
}

/// A scenario with its code, on a machine of type `M`.
pub struct Check<M> {
    scenario: Scenario,
    run: fn(&mut Context<'_>, &mut M) -> Result<()>,
}

impl<M> Check<M> {
    /// A scenario, and the function that carries it out.
    pub fn new(scenario: Scenario, run: fn(&mut Context<'_>, &mut M) -> Result<()>) -> Self {
        Self { scenario, run }
    }
}

/// A machine that several scenarios share.
pub struct Shared<M> {
    /// The name of the boot and of its logs.
    pub name: &'static str,
    /// The machine, in a few words.
    pub about: &'static str,
    /// Starts the machine with what the wanted scenarios need.
    pub start: fn(&mut Context<'_>, &Wanted<'_>) -> Result<M>,
    /// Shuts the machine down in order. An error here fails the last scenario.
    pub end: fn(M) -> Result<()>,
    /// The scenarios in their order. Those that leave the machine changed come last.
    pub checks: Vec<Check<M>>,
}

/// The result of a scenario.
pub struct Ran {
    /// The scenario.
    pub scenario: Scenario,
    /// Whether it passed, or why not.
    pub result: Result<()>,
    /// Its numbers.
    pub figures: Figures,
    /// The time that it took, without the start of a shared machine.
    pub seconds: f64,
    /// The time that the start of the machine took. 0: the machine was not started for this scenario.
    pub boot_seconds: f64,
}

/// Makes a launcher whose logs have this name.
pub type Launcher<'a> = dyn Fn(&str) -> Box<dyn Launch> + 'a;

/// A boot with any type of machine.
pub trait Boot: Sync {
    /// The name of the boot and of its logs.
    fn name(&self) -> &'static str;

    /// The machine, in a few words.
    fn about(&self) -> &'static str;

    /// Its scenarios in their order.
    fn scenarios(&self) -> Vec<Scenario>;

    /// Runs those of its scenarios that are wanted and reports each as it ends.
    fn run(&self, launcher: &Launcher<'_>, wanted: &[&'static str], full: bool, report: &mut dyn FnMut(Ran));
}

impl<M> Boot for Shared<M> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn scenarios(&self) -> Vec<Scenario> {
        self.checks.iter().map(|check| check.scenario).collect()
    }

    fn run(&self, launcher: &Launcher<'_>, wanted: &[&'static str], full: bool, report: &mut dyn FnMut(Ran)) {
        let checks: Vec<&Check<M>> = self.checks.iter().filter(|check| wanted.contains(&check.scenario.name)).collect();
        let mut first = 0;
        while first < checks.len() {
            first += self.run_until_failure(launcher, &checks, first, full, report);
        }
    }
}

impl<M> Shared<M> {
    /// Starts a machine and runs the checks from `first` on until one fails. Returns the number of reported checks, at
    /// least one.
    fn run_until_failure(
        &self,
        launcher: &Launcher<'_>,
        all: &[&Check<M>],
        first: usize,
        full: bool,
        report: &mut dyn FnMut(Ran),
    ) -> usize {
        let checks = &all[first..];
        let names: Vec<&'static str> = checks.iter().map(|check| check.scenario.name).collect();
        // A machine that is started after a failure has logs of its own, so that those of the failure stay.
        let logs = match (first, names.as_slice()) {
            (_, [only]) => (*only).to_owned(),
            (0, _) => self.name.to_owned(),
            (_, [next, ..]) => format!("{}-from-{next}", self.name),
            (_, []) => return 0,
        };
        let mut launch = launcher(&logs);
        let begin = Instant::now();
        let started = guarded(|| (self.start)(&mut Context::new(&mut *launch, full), &Wanted(&names)));
        let mut boot_seconds = begin.elapsed().as_secs_f64();
        let mut machine = match started {
            Ok(machine) => Some(machine),
            // Nothing is tried twice. Without the machine none of the checks can run.
            Err(error) => {
                let words = format!("the machine did not start: {error:#}");
                for check in checks {
                    let (result, figures) = (Err(anyhow!(words.clone())), Figures::default());
                    report(Ran { scenario: check.scenario, result, figures, seconds: 0.0, boot_seconds });
                    boot_seconds = 0.0;
                }
                return checks.len();
            }
        };
        for (index, check) in checks.iter().enumerate() {
            let begin = Instant::now();
            let mut context = Context::new(&mut *launch, full);
            let mut result = guarded(|| {
                let machine = machine.as_mut().ok_or_else(|| anyhow!("the machine has ended"))?;
                (check.run)(&mut context, machine)?;
                ensure!(context.figures.bounded() > 0, "{} checked no number", check.scenario.name);
                Ok(())
            });
            if result.is_ok() && index + 1 == checks.len() {
                result = machine.take().map_or(Ok(()), |machine| guarded(|| (self.end)(machine)));
            }
            let failed = result.is_err();
            let seconds = begin.elapsed().as_secs_f64();
            report(Ran { scenario: check.scenario, result, figures: context.figures, seconds, boot_seconds });
            boot_seconds = 0.0;
            if failed {
                return index + 1;
            }
        }
        checks.len()
    }
}

/// Turns a panic into an error, so that only this check fails.
fn guarded<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| Err(anyhow!("it panicked: {}", words(&*panic))))
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}

/// A scenario alone in its boot. It starts its machine by itself, and no other scenario can use that machine.
#[must_use]
pub fn alone(scenario: Scenario, run: fn(&mut Context<'_>, &mut ()) -> Result<()>) -> Box<dyn Boot> {
    Box::new(Shared {
        name: scenario.name,
        about: "",
        start: |_, _| Ok(()),
        end: |()| Ok(()),
        checks: vec![Check::new(scenario, run)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::nowhere::Nowhere;
    use crate::platform::QEMU;
    use anyhow::bail;
    use std::cell::RefCell;

    /// Runs these scenarios. Returns the names of the machines that were started, and the result of each scenario.
    fn run(boot: &dyn Boot, wanted: &[&'static str]) -> (Vec<String>, Vec<(&'static str, bool)>) {
        let (started, mut ran) = (RefCell::new(Vec::new()), Vec::new());
        let launcher = |name: &str| -> Box<dyn Launch> {
            started.borrow_mut().push(name.to_owned());
            Box::new(Nowhere)
        };
        boot.run(&launcher, wanted, false, &mut |r| ran.push((r.scenario.name, r.result.is_ok())));
        (started.into_inner(), ran)
    }

    fn three(start: fn(&mut Context<'_>, &Wanted<'_>) -> Result<u32>) -> Shared<u32> {
        let scenario = |name| Scenario::new(name, "", QEMU);
        let good = |c: &mut Context<'_>, _: &mut u32| c.figures.at_least("one", 1, 1);
        Shared {
            name: "three",
            about: "",
            start,
            end: |_| Ok(()),
            checks: vec![
                Check::new(scenario("first"), good),
                Check::new(scenario("bad"), |_, _| bail!("no")),
                Check::new(scenario("last"), good),
            ],
        }
    }

    #[test]
    fn after_a_failure_the_rest_run_on_a_machine_started_anew() {
        let boot = three(|_, _| Ok(0));
        let (started, ran) = run(&boot, &["first", "bad", "last"]);
        assert_eq!(started, ["three", "last"]);
        assert_eq!(ran, [("first", true), ("bad", false), ("last", true)]);
    }

    #[test]
    fn one_that_is_wanted_alone_has_a_machine_of_its_own_name() {
        let (started, ran) = run(&three(|_, wanted| Ok(u32::from(wanted.any(&["bad"])))), &["last"]);
        assert_eq!((started, ran), (vec!["last".to_owned()], vec![("last", true)]));
    }

    #[test]
    fn a_machine_that_does_not_start_fails_all_and_is_not_tried_again() {
        let (started, ran) = run(&three(|_, _| bail!("no")), &["first", "bad", "last"]);
        assert_eq!(started.len(), 1);
        assert_eq!(ran, [("first", false), ("bad", false), ("last", false)]);
    }

    #[test]
    fn a_bad_end_fails_the_last_scenario() {
        let boot = Shared { end: |_| bail!("it did not end"), ..three(|_, _| Ok(0)) };
        assert_eq!(run(&boot, &["first", "last"]).1, [("first", true), ("last", false)]);
    }

    #[test]
    fn a_scenario_that_checks_nothing_fails_and_so_does_one_that_panics() {
        let empty = Scenario::new("empty", "", QEMU);
        assert_eq!(run(&*alone(empty, |_, ()| Ok(())), &["empty"]).1, [("empty", false)]);
        assert_eq!(run(&*alone(empty, |_, ()| panic!("oh")), &["empty"]).1, [("empty", false)]);
        assert_eq!(run(&*alone(empty, |c, ()| c.figures.at_least("one", 1, 1)), &["empty"]).1, [("empty", true)]);
    }
}
