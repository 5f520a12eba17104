//! How fast a core was since the last look, and what slowed it down.

use bitflags::bitflags;
use core::fmt;

use crate::msrs::{Msrs, Refused};
use crate::processor::{Features, Processor, Vendor};

/// IA32_MPERF: counts at the rate of the TSC while the core is not halted.
pub(crate) const MPERF: u32 = 0xe7;
/// IA32_APERF: counts at the core's own rate meanwhile.
pub(crate) const APERF: u32 = 0xe8;
/// IA32_THERM_STATUS, of the core.
pub(crate) const THERM_STATUS: u32 = 0x19c;
/// IA32_PACKAGE_THERM_STATUS.
pub(crate) const PACKAGE_THERM_STATUS: u32 = 0x1b1;

/// MSR_SMI_COUNT: system management interrupts since the reset, in bits 31 to 0 (SDM vol. 4; all of family 6 since Nehalem).
pub(crate) const SMI_COUNT: u32 = 0x34;

bitflags! {
    /// What slowed a core down. The bits are the logs of both thermal registers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Causes: u32 {
        /// It was too hot.
        const HEAT = 1 << 1;
        /// Something else on the board has asked for it (PROCHOT#).
        const PROCHOT = 1 << 3;
        /// It was so hot that it may switch itself off.
        const CRITICAL = 1 << 5;
        /// The power limit.
        const POWER = 1 << 11;
        /// The current limit.
        const CURRENT = 1 << 13;
        /// A limit of another domain, such as graphics.
        const OTHER = 1 << 15;
    }
}

impl Causes {
    /// Logs of either register that are always there.
    const ALWAYS: Self = Self::HEAT.union(Self::PROCHOT).union(Self::CRITICAL);
    /// Logs of the core's register with HWP.
    const WITH_HWP: Self = Self::CURRENT.union(Self::OTHER);

    /// With their names.
    const NAMED: [(Self, &'static str); 6] = [
        (Self::HEAT, "heat"),
        (Self::PROCHOT, "PROCHOT#"),
        (Self::CRITICAL, "critical heat"),
        (Self::POWER, "the power limit"),
        (Self::CURRENT, "the current limit"),
        (Self::OTHER, "a limit of another domain"),
    ];
}

impl fmt::Display for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMED.iter().filter(|(cause, _)| self.contains(*cause));
        for (n, (_, name)) in names.enumerate() {
            write!(f, "{}{name}", if n == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// What a look has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Average speed of the core while it ran, since the look before, in thousandths of the TSC's rate. `None`: it cannot tell, or this was
    /// the first look.
    pub permille: Option<u32>,
    /// What has slowed it or its package down since.
    pub causes: Causes,
    /// System management interrupts since. `None`: nobody counts them.
    pub smis: Option<u32>,
}

/// Looks at a core, always the same one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    /// APERF and MPERF at the last look.
    last: Option<(u64, u64)>,
    /// The count of system management interrupts at the last look. A register that was refused is not read again.
    smis: Option<Result<u32, Refused>>,
}

impl Meter {
    /// A meter that has not looked yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: None, smis: None }
    }

    /// Whether there is something to look at.
    #[must_use]
    pub const fn has_something(processor: &Processor) -> bool {
        let features = processor.features;
        !features.contains(Features::VIRTUAL)
            && features.intersects(Features::APERF.union(Features::THERMAL).union(Features::PACKAGE_THERMAL))
    }

    /// Looks, on the core itself: up to five reads, and a write for each register that tells of throttling. The first look forgets what
    /// was before it.
    pub fn look(&mut self, processor: &Processor, msrs: &mut impl Msrs) -> Look {
        let first = self.last.is_none();
        let mut look = Look::default();
        let now = if processor.has(Features::APERF) {
            // MPERF and APERF run on between the two reads. A second is long against that.
            msrs.read(MPERF).and_then(|mperf| Ok((msrs.read(APERF)?, mperf))).ok()
        } else {
            None
        };
        if let (Some((aperf, mperf)), Some((old_aperf, old_mperf))) = (now, self.last) {
            let ran = u128::from(mperf.wrapping_sub(old_mperf));
            let thousandths = u128::from(aperf.wrapping_sub(old_aperf)).saturating_mul(1000);
            look.permille = thousandths.checked_div(ran).and_then(|permille| u32::try_from(permille).ok());
        }
        self.last = Some(now.unwrap_or_default());
        let with = |feature, logs| if processor.has(feature) { logs } else { Causes::empty() };
        let package = Causes::ALWAYS | with(Features::POWER_LIMIT, Causes::POWER);
        let core = package | with(Features::HWP, Causes::WITH_HWP);
        for (feature, msr, logs) in
            [(Features::THERMAL, THERM_STATUS, core), (Features::PACKAGE_THERMAL, PACKAGE_THERM_STATUS, package)]
        {
            if processor.has(feature)
                && let Ok(status) = msrs.read(msr)
                && let causes = Causes::from_bits_truncate(status as u32) & logs
                && !causes.is_empty()
            {
                // Writing 0 clears a log, and 1 leaves it. All other bits are read-only, or reserved and 0.
                if msrs.write(msr, logs.difference(causes).bits().into()).is_ok() {
                    look.causes |= causes;
                }
            }
        }
        look.smis = self.smis(processor, msrs);
        if first { Look::default() } else { look }
    }

    fn smis(&mut self, processor: &Processor, msrs: &mut impl Msrs) -> Option<u32> {
        if processor.vendor != Vendor::Intel || processor.family != 6 || matches!(self.smis, Some(Err(_))) {
            return None;
        }
        let now = msrs.read(SMI_COUNT).map(|count| count as u32);
        let before = self.smis.replace(now)?;
        Some(now.ok()?.wrapping_sub(before.ok()?))
    }
}
