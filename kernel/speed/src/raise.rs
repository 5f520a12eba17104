//! Raises the core that runs this to full speed, and tells what came of it.
//!
//! | processor | written, in this order |
//! |---|---|
//! | Intel with HWP | IA32_PM_ENABLE 1 if it is 0; IA32_HWP_REQUEST: minimum and maximum are the highest level, EPP 0; EPB 0 |
//! | Intel without HWP | IA32_PERF_CTL: the highest ratio, turbo's if there is turbo; EPB 0 |
//! | AMD with CPPC switched on | CPPC's request: as HWP's |
//! | AMD without | P-state command: the lowest number that the limit allows, which is 0 unless the firmware limits it |

use crate::msrs::{Msrs, Refused};
use crate::processor::{Features, Processor, Vendor};

/// IA32_PM_ENABLE. Bit 0 switches HWP on for the whole package, until the next reset.
pub(crate) const PM_ENABLE: u32 = 0x770;
/// IA32_HWP_CAPABILITIES: levels highest, guaranteed, most efficient, lowest, of 8 bits each. #GP while HWP is off.
pub(crate) const HWP_CAPABILITIES: u32 = 0x771;
/// IA32_HWP_REQUEST: minimum, maximum, desired (0: the hardware chooses), EPP, of 8 bits each. #GP while HWP is off.
pub(crate) const HWP_REQUEST: u32 = 0x774;
/// IA32_ENERGY_PERF_BIAS: bits 3 to 0, from 0 (performance) to 15.
pub(crate) const ENERGY_PERF_BIAS: u32 = 0x1b0;
const BIAS: u64 = 0xf;
/// IA32_MISC_ENABLE.
pub(crate) const MISC_ENABLE: u32 = 0x1a0;
/// IA32_MISC_ENABLE: SpeedStep is on.
const SPEEDSTEP: u64 = 1 << 16;
/// IA32_MISC_ENABLE: turbo is off. CPUID has no turbo then.
const TURBO_OFF: u64 = 1 << 38;
/// IA32_PERF_CTL.
pub(crate) const PERF_CTL: u32 = 0x199;
/// IA32_PERF_CTL: the target, whose form depends on the model.
const TARGET: u64 = 0xffff;
/// IA32_PERF_CTL: no turbo for this core.
const NO_TURBO: u64 = 1 << 32;
/// MSR_PLATFORM_INFO: bits 15 to 8 are the highest ratio without turbo.
pub(crate) const PLATFORM_INFO: u32 = 0xce;
/// MSR_TURBO_RATIO_LIMIT: bits 7 to 0 are the ratio with the fewest active cores, the highest one.
pub(crate) const TURBO_RATIO_LIMIT: u32 = 0x1ad;

/// AMD's HWCR.
pub(crate) const HWCR: u32 = 0xc001_0015;
/// HWCR: boost is off (CpbDis).
const BOOST_OFF: u64 = 1 << 25;
/// Bits 2 to 0: the lowest number of a P-state that may be asked for.
pub(crate) const P_STATE_LIMIT: u32 = 0xc001_0061;
/// Bits 2 to 0: the P-state that is asked for. The others must be 0.
pub(crate) const P_STATE_CONTROL: u32 = 0xc001_0062;
/// The first of eight descriptions of P-states.
pub(crate) const P_STATE_0: u32 = 0xc001_0064;
/// CPPC's levels: lowest, lowest that is not linear, nominal, highest, of 8 bits each.
pub(crate) const CPPC_CAPABILITIES: u32 = 0xc001_02b0;
/// Bit 0: CPPC is on, until the next reset.
pub(crate) const CPPC_ENABLE: u32 = 0xc001_02b1;
/// CPPC's request: maximum, minimum, desired (0: the hardware chooses), EPP, of 8 bits each.
pub(crate) const CPPC_REQUEST: u32 = 0xc001_02b3;

/// What the core was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The highest level of HWP.
    Hwp {
        /// It. Only on some models it is a multiple of 100 MHz.
        highest: u8,
        /// The level that heat and power never forbid.
        guaranteed: u8,
    },
    /// A ratio, by IA32_PERF_CTL.
    Ratio {
        /// It. It may be turbo's.
        ratio: u8,
        /// The highest one without turbo.
        base: u8,
        /// MHz of ratio 1: 100, or 133 before Sandy Bridge.
        unit: u16,
    },
    /// The energy bias alone: nothing else of this model is known.
    Bias,
    /// The highest level of AMD's CPPC.
    Cppc {
        /// It.
        highest: u8,
        /// The level without boost.
        nominal: u8,
    },
    /// A P-state of AMD.
    PState {
        /// Its number: 0, unless the firmware limits it.
        state: u8,
        /// Its frequency in MHz without boost. `None`: its description is empty, or nobody knows how to read it in this family.
        mhz: Option<u32>,
    },
}

/// Why the core was left as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// There is a hypervisor beneath.
    Virtual,
    /// CPUID has nothing that sets the speed.
    Nothing,
    /// The firmware has switched SpeedStep off.
    SpeedStepOff,
    /// The form of the registers is not known for this model.
    UnknownModel,
    /// The highest level or ratio reads as 0.
    NoLevels {
        /// The register.
        msr: u32,
    },
    /// The register was written and reads otherwise: the firmware has kept it for itself.
    NotTaken {
        /// The register.
        msr: u32,
    },
    /// An access was refused.
    Refused(Refused),
}

impl From<Refused> for Left {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

/// Turbo, which AMD calls boost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turbo {
    /// It is on.
    On,
    /// The firmware has switched it off.
    Off,
    /// CPUID has none, and nobody says that it was switched off.
    Absent,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the core was asked for, or why for nothing.
    pub asked: Result<Asked, Left>,
    /// Whether the energy bias is 0 now. `None`: there is none.
    pub bias: Option<Result<(), Refused>>,
    /// Turbo. Nothing here changes it.
    pub turbo: Turbo,
}

/// Raises the core that runs this to full speed. Call it once, on an engine's core.
#[must_use]
pub fn raise(processor: &Processor, msrs: &mut impl Msrs) -> Outcome {
    if processor.has(Features::VIRTUAL) {
        return Outcome { asked: Err(Left::Virtual), bias: None, turbo: Turbo::Absent };
    }
    match processor.vendor {
        Vendor::Intel => intel(processor, msrs),
        Vendor::Amd => Outcome { asked: amd(processor, msrs), bias: None, turbo: boost(processor, msrs) },
        Vendor::Other => Outcome { asked: Err(Left::Nothing), bias: None, turbo: Turbo::Absent },
    }
}

fn intel(processor: &Processor, msrs: &mut impl Msrs) -> Outcome {
    // The register is on every processor with 64-bit mode (SDM vol. 4, table 2-2). Without it nothing is known to be off.
    let misc = msrs.read(MISC_ENABLE).unwrap_or(SPEEDSTEP);
    let turbo = match (processor.has(Features::TURBO), misc & TURBO_OFF != 0) {
        (true, false) => Turbo::On,
        (_, true) => Turbo::Off,
        (false, false) => Turbo::Absent,
    };
    let mut asked = match switch_hwp_on(processor, msrs) {
        Some(Ok(())) => hwp(msrs),
        // HWP may be hidden, and is off: the old registers still work.
        Some(Err(_)) | None if processor.has(Features::PERF_CTL) => {
            if misc & SPEEDSTEP == 0 {
                Err(Left::SpeedStepOff)
            } else {
                ratio(processor, turbo, msrs)
            }
        }
        Some(Err(refused)) => Err(refused.into()),
        None => Err(Left::Nothing),
    };
    let bias = processor.has(Features::EPB).then(|| {
        let old = msrs.read(ENERGY_PERF_BIAS)?;
        msrs.write(ENERGY_PERF_BIAS, old & !BIAS)
    });
    if asked == Err(Left::UnknownModel) && bias == Some(Ok(())) {
        asked = Ok(Asked::Bias);
    }
    Outcome { asked, bias, turbo }
}

/// Switches HWP on, if it is not on yet. `None`: there is no HWP.
fn switch_hwp_on(processor: &Processor, msrs: &mut impl Msrs) -> Option<Result<(), Refused>> {
    processor.has(Features::HWP).then(|| {
        let on = msrs.read(PM_ENABLE)?;
        if on & 1 == 0 { msrs.write(PM_ENABLE, on | 1) } else { Ok(()) }
    })
}

/// Asks for the highest level of HWP, which is on. The request also has EPP 0, no desired level, no activity window, and does not
/// follow the package's request. A processor without EPP or window ignores those bits, which are 0.
fn hwp(msrs: &mut impl Msrs) -> Result<Asked, Left> {
    let [highest, guaranteed, ..] = msrs.read(HWP_CAPABILITIES)?.to_le_bytes();
    if highest == 0 {
        return Err(Left::NoLevels { msr: HWP_CAPABILITIES });
    }
    take(msrs, HWP_REQUEST, highest)?;
    Ok(Asked::Hwp { highest, guaranteed })
}

/// Writes a request whose minimum and maximum are the same level, and whose other fields are 0. HWP has the minimum first and CPPC
/// the maximum, so they do not differ here.
fn take(msrs: &mut impl Msrs, msr: u32, level: u8) -> Result<(), Left> {
    let request = u64::from(u16::from_le_bytes([level, level]));
    msrs.write(msr, request)?;
    if msrs.read(msr)? == request { Ok(()) } else { Err(Left::NotTaken { msr }) }
}

/// How a model of Intel's tells and takes ratios.
struct Ratios {
    /// Where the ratio is in IA32_PERF_CTL.
    shift: u32,
    /// MHz of ratio 1.
    unit: u16,
    /// It has MSR_TURBO_RATIO_LIMIT. Without it, the ratio above the highest one without turbo asks for turbo.
    limit: bool,
}

impl Ratios {
    /// Finds them by the model (SDM vol. 4, tables 2-12 and later). All of these have MSR_PLATFORM_INFO.
    fn of(processor: &Processor) -> Option<Self> {
        if processor.family != 6 {
            return None;
        }
        Some(match processor.model {
            // Nehalem and Westmere.
            0x1a | 0x1e | 0x1f | 0x25 | 0x2c => Self { shift: 0, unit: 133, limit: true },
            // Nehalem-EX and Westmere-EX.
            0x2e | 0x2f => Self { shift: 0, unit: 133, limit: false },
            // Sandy Bridge, Ivy Bridge, Haswell, Broadwell, Skylake and its like, Ice Lake, Sapphire Rapids, Emerald Rapids, Granite
            // Rapids; Denverton.
            0x2a | 0x2d | 0x3a | 0x3e | 0x3c | 0x3f | 0x45 | 0x46 | 0x3d | 0x47 | 0x4f | 0x56 | 0x4e | 0x5e | 0x55
            | 0x8e | 0x9e | 0xa5 | 0xa6 | 0x6a | 0x6c | 0xa7 | 0x8f | 0xcf | 0xad | 0xae | 0x5f => {
                Self { shift: 8, unit: 100, limit: true }
            }
            _ => return None,
        })
    }
}

/// Asks for the highest ratio.
fn ratio(processor: &Processor, turbo: Turbo, msrs: &mut impl Msrs) -> Result<Asked, Left> {
    let Ratios { shift, unit, limit } = Ratios::of(processor).ok_or(Left::UnknownModel)?;
    let [_, base, ..] = msrs.read(PLATFORM_INFO)?.to_le_bytes();
    if base == 0 {
        return Err(Left::NoLevels { msr: PLATFORM_INFO });
    }
    let ratio = match (turbo, limit) {
        (Turbo::Off | Turbo::Absent, _) => base,
        (Turbo::On, false) => base.saturating_add(1),
        (Turbo::On, true) => {
            let [highest, ..] = msrs.read(TURBO_RATIO_LIMIT)?.to_le_bytes();
            highest.max(base)
        }
    };
    let old = msrs.read(PERF_CTL)?;
    msrs.write(PERF_CTL, old & !(TARGET | NO_TURBO) | u64::from(ratio) << shift)?;
    Ok(Asked::Ratio { ratio, base, unit })
}

fn amd(processor: &Processor, msrs: &mut impl Msrs) -> Result<Asked, Left> {
    if processor.has(Features::CPPC) && msrs.read(CPPC_ENABLE)? & 1 != 0 {
        let [_, _, nominal, highest, ..] = msrs.read(CPPC_CAPABILITIES)?.to_le_bytes();
        if highest == 0 {
            return Err(Left::NoLevels { msr: CPPC_CAPABILITIES });
        }
        take(msrs, CPPC_REQUEST, highest)?;
        return Ok(Asked::Cppc { highest, nominal });
    }
    if !processor.has(Features::P_STATES) {
        return Err(Left::Nothing);
    }
    let state = msrs.read(P_STATE_LIMIT)? & 7;
    msrs.write(P_STATE_CONTROL, state)?;
    // There are eight descriptions.
    let description = msrs.read(P_STATE_0.saturating_add(state as u32))?;
    Ok(Asked::PState { state: state as u8, mhz: megahertz(processor.family, description) })
}

/// Returns the frequency that a P-state's description has (AMD's PPR or BKDG of each family, "P-state [7:0]"). `None`: the state is
/// not valid, or the family is not known.
fn megahertz(family: u32, description: u64) -> Option<u32> {
    const VALID: u64 = 1 << 63;
    if description & VALID == 0 {
        return None;
    }
    let low = description as u32;
    match family {
        // 100 MHz times (bits 5 to 0 and 16), divided by two to the power of bits 8 to 6.
        0x10 | 0x15 => (low & 0x3f).checked_add(0x10)?.checked_mul(100)?.checked_shr(low >> 6 & 7),
        // 200 MHz times bits 7 to 0, divided by bits 13 to 8.
        0x17..=0x19 => (low & 0xff).checked_mul(200)?.checked_div(low >> 8 & 0x3f),
        // 5 MHz times bits 11 to 0.
        0x1a => (low & 0xfff).checked_mul(5),
        _ => None,
    }
}

fn boost(processor: &Processor, msrs: &mut impl Msrs) -> Turbo {
    if !processor.has(Features::BOOST) {
        return Turbo::Absent;
    }
    match msrs.read(HWCR) {
        Ok(value) if value & BOOST_OFF != 0 => Turbo::Off,
        Ok(_) => Turbo::On,
        Err(_) => Turbo::Absent,
    }
}
