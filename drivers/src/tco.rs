//! The TCO watchdog of Intel's chipsets: reads whether it runs, halts it, arms it and feeds it (ICH9 data sheet 316972,
//! 13.9: TCO registers; 13.1: PMBASE and RCBA of the LPC bridge; chapter 10: GCS. 100 series data sheet, volume 2:
//! TCOBASE and TCOCTL of the SMBus function).
//!
//! The timer counts down in ticks of 0.6 s. At 0 it begins again and sends an SMI, if the firmware wants one. At 0 the
//! second time it resets the machine, unless NO_REBOOT is set. A write to TCO_RLD, which feeds it, begins both times
//! again.
//!
//! | chipset | TCO registers | NO_REBOOT |
//! |---|---|---|
//! | ICH6 to ICH10, 5 to 9 series, C600, C610 | PMBASE of the LPC bridge, + 0x60 | GCS, by RCBA of the LPC bridge |
//! | 100 and 200 series, C620, C3000 | TCOBASE of the SMBus function | a register of the SMBus controller on the sideband, by the bridge P2SB |
//! | 300 series and later, C740 | TCOBASE of the SMBus function | TCO1_CNT |
//!
//! Chipsets before ICH6 have another timer, and are left alone.

use crate::watchdog::NoAnswer;

/// Ports of the watchdog, in bytes.
pub const PORTS: u16 = 0x20;

/// Offsets of its registers, 16 bits each.
const TCO_RLD: u16 = 0x00;
const TCO1_STS: u16 = 0x04;
const TCO2_STS: u16 = 0x06;
const TCO1_CNT: u16 = 0x08;
const TCO_TMR: u16 = 0x12;

/// The ticks in TCO_RLD and TCO_TMR.
const TICKS: u16 = 0x3ff;
/// In TCO1_STS: the timer was at 0 once. Cleared by writing 1.
const TIMEOUT: u16 = 1 << 3;
/// In TCO2_STS: it was at 0 twice, and it has reset the machine. Cleared by writing 1.
const SECOND_TO_STS: u16 = 1 << 1;
const BOOT_STS: u16 = 1 << 2;
/// In TCO1_CNT: an NMI is sent. Cleared by writing 1.
const NMI_NOW: u16 = 1 << 8;
/// In TCO1_CNT: the timer halts. TCO_LOCK (bit 12) does not lock it: that bit keeps TCO_EN, the SMI, as it is.
const TCO_TMR_HLT: u16 = 1 << 11;
/// NO_REBOOT: the timer does not reset the machine. Where a strap of the board says so, the bit cannot be cleared. In GCS, in
/// the register on the sideband, and in TCO1_CNT.
const IN_GCS: u32 = 1 << 5;
const ON_SIDEBAND: u32 = 1 << 1;
const IN_CONTROL: u16 = 1 << 0;

/// Fewest ticks that the timer takes. Fewer are ignored.
const LEAST: u16 = 4;

/// The offset of GCS from RCBA.
pub const GCS: u64 = 0x3410;

/// How the registers of a chipset are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The function is the LPC bridge, and has PMBASE and RCBA.
    Lpc,
    /// The function is the SMBus controller, and has TCOBASE. NO_REBOOT is at this offset from the base of the sideband.
    Sideband(u64),
    /// The function is the SMBus controller, and has TCOBASE. NO_REBOOT is in TCO1_CNT.
    Smbus,
}

/// Where NO_REBOOT is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoReboot {
    /// In a register of 32 bits in memory.
    Memory {
        /// Its physical address.
        address: u64,
        /// The bit of it, as a mask.
        bit: u32,
    },
    /// In TCO1_CNT.
    Control,
}

/// Returns which of Intel's chipsets a PCI function belongs to, if it is the one by which that chipset's watchdog is
/// reached.
#[must_use]
pub fn chipset(vendor: u16, device: u16) -> Option<(&'static str, Way)> {
    if vendor != 0x8086 {
        return None;
    }
    let name = match device {
        0x2640..=0x2642 => "ICH6",
        0x2670..=0x267f => "631xESB",
        0x27b0 | 0x27b8 | 0x27b9 | 0x27bd => "ICH7",
        0x27bc => "NM10",
        0x2810..=0x2812 | 0x2814 | 0x2815 => "ICH8",
        0x2912 | 0x2914 | 0x2916..=0x2919 => "ICH9",
        0x3a14 | 0x3a16 | 0x3a18 | 0x3a1a => "ICH10",
        0x3b00..=0x3b1f => "5 series",
        0x1c41..=0x1c5f => "6 series",
        0x1d40 | 0x1d41 => "C600",
        0x1e40..=0x1e5f => "7 series",
        0x8c40..=0x8c5f => "8 series",
        0x8cc1..=0x8cc6 => "9 series",
        0x8d40..=0x8d5f => "C610",
        0x9c40..=0x9c47 => "8 series LP",
        _ => return smbus(device),
    };
    Some((name, Way::Lpc))
}

fn smbus(device: u16) -> Option<(&'static str, Way)> {
    /// The SMBus controller's register with NO_REBOOT: its port on the sideband in bits 23:16, the offset below.
    const SIDEBAND: Way = Way::Sideband(0xc6_000c);
    const SIDEBAND_OF_C3000: Way = Way::Sideband(0xcf_000c);
    Some(match device {
        0xa123 => ("100 series", SIDEBAND),
        0x9d23 => ("100 series LP", SIDEBAND),
        0xa1a3 | 0xa223 => ("C620", SIDEBAND),
        0xa2a3 => ("200 series", SIDEBAND),
        0xa3a3 => ("400 series (Comet Lake-V)", SIDEBAND),
        0x19df => ("C3000", SIDEBAND_OF_C3000),
        0xa323 => ("300 series", Way::Smbus),
        0x06a3 => ("400 series", Way::Smbus),
        0x43a3 => ("500 series", Way::Smbus),
        0x7aa3 => ("600 series", Way::Smbus),
        0x7a23 => ("700 series", Way::Smbus),
        0x1bc9 => ("C740", Way::Smbus),
        _ => return None,
    })
}

/// Returns the first of the watchdog's ports from PMBASE, a register of the LPC bridge's configuration space (0x40).
/// `None`: the firmware has set no base, or something stands there that is none.
#[must_use]
pub fn ports_by_pmbase(pmbase: u32) -> Option<u16> {
    let base = (pmbase & 0xff80) as u16;
    (pmbase >> 16 == 0 && pmbase & 1 != 0 && base != 0).then(|| base.saturating_add(0x60))
}

/// Returns the first of its ports from TCOBASE (0x50) and TCOCTL (0x54) of the SMBus function. `None` as for
/// [`ports_by_pmbase`].
#[must_use]
pub fn ports_by_tcobase(tcobase: u32, tcoctl: u32) -> Option<u16> {
    const ENABLED: u32 = 1 << 8;
    let base = (tcobase & 0xffe0) as u16;
    (tcoctl != u32::MAX && tcoctl & ENABLED != 0 && tcobase >> 16 == 0 && tcobase & 1 != 0 && base != 0).then_some(base)
}

/// Returns where NO_REBOOT is in GCS, from RCBA (0xf0) of the LPC bridge, if that is enabled.
#[must_use]
pub fn in_gcs(rcba: u32) -> Option<NoReboot> {
    let base = u64::from(rcba & 0xffff_c000);
    let address = base.saturating_add(GCS);
    (rcba != u32::MAX && rcba & 1 != 0 && base != 0).then_some(NoReboot::Memory { address, bit: IN_GCS })
}

/// The registers of the bridge P2SB, 00:1f.1, with the base of the sideband's registers in memory (16 MiB), in two words.
pub const SIDEBAND_BASE: [u16; 2] = [0x10, 0x14];
/// The register of P2SB by which firmware hides it.
pub const P2SB_CONTROL: u16 = 0xe0;
/// In [`P2SB_CONTROL`]: the bridge is hidden. Then it reads as ones, and takes no write but to that register.
pub const P2SB_HIDDEN: u32 = 1 << 8;

/// Returns where NO_REBOOT is on the sideband, from P2SB's two words of [`SIDEBAND_BASE`], read while it is not hidden, and
/// the offset of [`Way::Sideband`]. `None`: the firmware has set no base.
#[must_use]
pub fn on_sideband([low, high]: [u32; 2], offset: u64) -> Option<NoReboot> {
    /// Bytes that the base is aligned to.
    const WINDOW: u64 = 1 << 24;
    let base = u64::from(high) << 32 | u64::from(low & !0xf);
    let usable = low != u32::MAX && base != 0 && base.is_multiple_of(WINDOW);
    usable.then(|| NoReboot::Memory { address: base.saturating_add(offset), bit: ON_SIDEBAND })
}

/// The watchdog's registers.
pub trait Registers {
    /// Reads 16 bits. `offset`: in bytes, a multiple of 2 below [`PORTS`].
    fn read(&mut self, offset: u16) -> u16;
    /// Writes 16 bits.
    fn write(&mut self, offset: u16, value: u16);
    /// Where NO_REBOOT is. `None`: it cannot be reached.
    fn no_reboot(&self) -> Option<NoReboot>;
    /// Reads the register in memory that [`Registers::no_reboot`] names.
    fn read_memory(&mut self, address: u64) -> u32;
    /// Writes it.
    fn write_memory(&mut self, address: u64, value: u32);
}

/// Returns whether NO_REBOOT is set. `None`: it cannot be read.
fn is_no_reboot_set(registers: &mut impl Registers) -> Option<bool> {
    match registers.no_reboot()? {
        NoReboot::Memory { address, bit } => {
            let value = registers.read_memory(address);
            (value != u32::MAX).then_some(value & bit != 0)
        }
        NoReboot::Control => Some(registers.read(TCO1_CNT) & IN_CONTROL != 0),
    }
}

/// Clears NO_REBOOT. Whether that worked is to be read.
fn clear_no_reboot(registers: &mut impl Registers, place: NoReboot) {
    match place {
        NoReboot::Memory { address, bit } => {
            let value = registers.read_memory(address);
            registers.write_memory(address, value & !bit);
        }
        NoReboot::Control => {
            let control = registers.read(TCO1_CNT);
            registers.write(TCO1_CNT, control & !(NMI_NOW | IN_CONTROL));
        }
    }
}

/// What a watchdog did that sidecore has halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Seconds that were left until it reset the machine. `None`: it did not count.
    pub left: Option<u16>,
    /// NO_REBOOT is set: the machine would not have been reset. `None`: it cannot be read.
    pub harmless: Option<bool>,
    /// It halts now.
    pub halts: bool,
}

/// Halts the watchdog.
///
/// # Errors
/// Nothing answers.
pub fn stop(registers: &mut impl Registers) -> Result<Stopped, NoAnswer> {
    let control = registers.read(TCO1_CNT);
    if control == u16::MAX {
        return Err(NoAnswer);
    }
    let harmless = is_no_reboot_set(registers);
    if control & TCO_TMR_HLT != 0 {
        return Ok(Stopped { left: None, harmless, halts: true });
    }
    let mut ticks = registers.read(TCO_RLD) & TICKS;
    // A timer that does not halt and was never loaded stands at 0.
    let counts = ticks != 0;
    if registers.read(TCO1_STS) & TIMEOUT == 0 {
        ticks = ticks.saturating_add(registers.read(TCO_TMR) & TICKS);
    }
    registers.write(TCO1_CNT, control & !NMI_NOW | TCO_TMR_HLT);
    let halts = registers.read(TCO1_CNT) & TCO_TMR_HLT != 0;
    Ok(Stopped { left: counts.then(|| seconds(ticks)), harmless, halts })
}

/// Seconds of a number of ticks of at most 2046, rounded down.
const fn seconds(ticks: u16) -> u16 {
    ticks.saturating_mul(6) / 10
}

/// Why a watchdog cannot be armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotArmed {
    /// NO_REBOOT cannot be read: RCBA is off, or P2SB does not answer.
    Unknown,
    /// NO_REBOOT cannot be cleared: a strap of the board sets it.
    Strap,
    /// The timer does not take its time, or does not begin to count.
    Timer,
}

/// Has the watchdog reset the machine if it is not fed for so many seconds, 5 to 1227. Rounds up to a multiple of 1.2
/// s.
///
/// # Errors
/// It cannot be armed, and halts as far as that can be done.
pub fn arm(registers: &mut impl Registers, seconds: u16) -> Result<(), NotArmed> {
    // The machine is reset when the timer is at 0 for the second time.
    let ticks = u32::from(seconds).saturating_mul(10).div_ceil(12);
    let ticks = u16::try_from(ticks).unwrap_or(TICKS).clamp(LEAST, TICKS);
    let place = registers.no_reboot().ok_or(NotArmed::Unknown)?;
    if is_no_reboot_set(registers).ok_or(NotArmed::Unknown)? {
        clear_no_reboot(registers, place);
        if is_no_reboot_set(registers) != Some(false) {
            return Err(NotArmed::Strap);
        }
    }
    let control = registers.read(TCO1_CNT) & !NMI_NOW;
    registers.write(TCO1_CNT, control | TCO_TMR_HLT);
    let timer = registers.read(TCO_TMR);
    registers.write(TCO_TMR, timer & !TICKS | ticks);
    if registers.read(TCO_TMR) & TICKS != ticks {
        return Err(NotArmed::Timer);
    }
    registers.write(TCO1_STS, TIMEOUT);
    registers.write(TCO2_STS, SECOND_TO_STS);
    registers.write(TCO2_STS, BOOT_STS);
    feed(registers);
    registers.write(TCO1_CNT, control & !TCO_TMR_HLT);
    feed(registers);
    if registers.read(TCO1_CNT) & TCO_TMR_HLT != 0 || registers.read(TCO_RLD) & TICKS == 0 {
        registers.write(TCO1_CNT, control | TCO_TMR_HLT);
        return Err(NotArmed::Timer);
    }
    Ok(())
}

/// Feeds the watchdog.
pub fn feed(registers: &mut impl Registers) {
    registers.write(TCO_RLD, 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the model has NO_REBOOT, if that is in memory.
    const AT: u64 = 0xfed1_f410;

    /// All places of it.
    const PLACES: [NoReboot; 3] = [
        NoReboot::Memory { address: AT, bit: IN_GCS },
        NoReboot::Memory { address: AT, bit: ON_SIDEBAND },
        NoReboot::Control,
    ];

    /// The timer, with the time in ticks.
    #[derive(Clone)]
    struct Model {
        control: u16,
        timer: u16,
        /// Ticks until it is at 0. `None`: it does not count.
        count: Option<u16>,
        timeouts: u16,
        /// Where NO_REBOOT is.
        place: Option<NoReboot>,
        /// The register in memory with it.
        memory: u32,
        /// NO_REBOOT is a strap.
        strapped: bool,
        /// HLT cannot be set.
        stubborn: bool,
        absent: bool,
        nmi_cleared: bool,
        reset: bool,
    }

    impl Model {
        fn new() -> Self {
            Self {
                control: TCO_TMR_HLT,
                timer: 4,
                count: None,
                timeouts: 0,
                place: Some(NoReboot::Memory { address: AT, bit: IN_GCS }),
                memory: IN_GCS | 0x400,
                strapped: false,
                stubborn: false,
                absent: false,
                nmi_cleared: false,
                reset: false,
            }
        }

        fn running(timer: u16) -> Self {
            Self { control: 0, timer, count: Some(timer), memory: 0, ..Self::new() }
        }

        /// Has NO_REBOOT at this place, where it is set, like each other bit that the chipset may have there.
        fn with(place: NoReboot) -> Self {
            let [memory, control] = match place {
                NoReboot::Memory { bit, .. } => [0x400 | bit, 0],
                NoReboot::Control => [0, IN_CONTROL.into()],
            };
            Self { place: Some(place), memory, control: TCO_TMR_HLT | control as u16, ..Self::new() }
        }

        fn may_reset(&self) -> bool {
            match self.place {
                Some(NoReboot::Memory { bit, .. }) => self.memory & bit == 0,
                Some(NoReboot::Control) => self.control & IN_CONTROL == 0,
                None => true,
            }
        }

        fn pass(&mut self, ticks: u32) {
            for _ in 0..ticks {
                let Some(count) = &mut self.count else { return };
                *count -= 1;
                if *count == 0 {
                    *count = self.timer;
                    self.timeouts += 1;
                    self.reset |= self.timeouts >= 2 && self.may_reset();
                }
            }
        }
    }

    impl Registers for Model {
        fn read(&mut self, offset: u16) -> u16 {
            if self.absent {
                return u16::MAX;
            }
            match offset {
                TCO_RLD => self.count.unwrap_or(0) | 0x8000,
                TCO1_STS => {
                    if self.timeouts > 0 {
                        TIMEOUT
                    } else {
                        0
                    }
                }
                TCO1_CNT => self.control,
                TCO_TMR => self.timer,
                _ => panic!("a read of {offset:#x}"),
            }
        }

        fn write(&mut self, offset: u16, value: u16) {
            assert!(!self.absent, "a write where nothing answers");
            match offset {
                TCO_RLD => {
                    self.timeouts = 0;
                    if self.control & TCO_TMR_HLT == 0 {
                        self.count = Some(self.timer & TICKS);
                    }
                }
                TCO1_STS | TCO2_STS => {}
                TCO1_CNT => {
                    self.nmi_cleared |= value & NMI_NOW != 0;
                    // TCO_LOCK stays once it is set.
                    let halt = if self.stubborn { 0 } else { value & TCO_TMR_HLT };
                    let strap = if self.strapped && self.place == Some(NoReboot::Control) { IN_CONTROL } else { 0 };
                    self.control = value & !TCO_TMR_HLT | halt | strap | self.control & 1 << 12;
                    self.count = (self.control & TCO_TMR_HLT == 0).then_some(self.timer & TICKS);
                }
                TCO_TMR => {
                    if value & TICKS >= LEAST {
                        self.timer = value;
                    }
                }
                _ => panic!("a write of {offset:#x}"),
            }
        }

        fn no_reboot(&self) -> Option<NoReboot> {
            self.place
        }

        fn read_memory(&mut self, address: u64) -> u32 {
            assert_eq!(address, AT);
            self.memory
        }

        fn write_memory(&mut self, address: u64, value: u32) {
            let Some(NoReboot::Memory { address: at, bit }) = self.place else { panic!("NO_REBOOT is not in memory") };
            assert_eq!(address, at);
            self.memory = value | if self.strapped { bit } else { 0 };
        }
    }

    #[test]
    fn one_that_runs_is_halted_and_the_seconds_to_the_reset_are_told() {
        let mut model = Model::running(50);
        model.control = 1 << 12 | 1 << 9 | NMI_NOW;
        model.pass(10);
        // 40 ticks and then 50 more, 0.6 s each.
        assert_eq!(stop(&mut model), Ok(Stopped { left: Some(54), harmless: Some(false), halts: true }));
        assert_eq!(model.control & !NMI_NOW, 1 << 12 | 1 << 9 | TCO_TMR_HLT, "all else stays");
        assert!(!model.nmi_cleared);
        model.pass(1000);
        assert!(!model.reset);

        // After the first time at 0 nothing comes on top.
        let mut model = Model::running(50);
        model.pass(60);
        assert_eq!(stop(&mut model).map(|stopped| stopped.left), Ok(Some(24)));
    }

    #[test]
    fn one_that_does_not_count_is_halted_too_and_not_said_to_have_run() {
        let mut model = Model { control: 0, ..Model::new() };
        assert_eq!(stop(&mut model), Ok(Stopped { left: None, harmless: Some(true), halts: true }));
        assert_eq!(model.control, TCO_TMR_HLT);
        for unreadable in [Model { place: None, ..Model::new() }, Model { memory: u32::MAX, ..Model::new() }] {
            assert_eq!(stop(&mut unreadable.clone()), Ok(Stopped { left: None, harmless: None, halts: true }));
        }
    }

    #[test]
    fn one_that_cannot_be_halted_lives_on_while_it_is_fed() {
        let mut model = Model { stubborn: true, ..Model::running(50) };
        assert_eq!(stop(&mut model), Ok(Stopped { left: Some(60), harmless: Some(false), halts: false }));
        for _ in 0..100 {
            model.pass(99);
            feed(&mut model);
        }
        assert!(!model.reset);
        model.pass(100);
        assert!(model.reset, "the model does reset");
    }

    #[test]
    fn where_nothing_answers_nothing_is_written() {
        assert_eq!(stop(&mut Model { absent: true, ..Model::new() }), Err(NoAnswer));
    }

    #[test]
    fn no_reboot_is_read_and_left_as_it_is_where_each_chipset_has_it() {
        for place in PLACES {
            let mut model = Model::with(place);
            assert_eq!(stop(&mut model).map(|stopped| stopped.harmless), Ok(Some(true)), "{place:?}");
            assert!(!model.may_reset(), "{place:?}");
            let mut model = Model { memory: 0, control: TCO_TMR_HLT, ..Model::with(place) };
            assert_eq!(stop(&mut model).map(|stopped| stopped.harmless), Ok(Some(false)), "{place:?}");
        }
    }

    #[test]
    fn an_armed_one_resets_after_its_seconds_and_not_before() {
        let seconds = [5_u16, 20, 21, 60, 600, 1227];
        for (place, seconds) in PLACES.into_iter().flat_map(|place| seconds.map(|seconds| (place, seconds))) {
            let mut model = Model::with(place);
            assert_eq!(arm(&mut model, seconds), Ok(()), "{seconds}");
            let kept = if place == NoReboot::Control { 0 } else { 0x400 };
            assert_eq!(model.memory, kept, "all else stays: {place:?}");
            let least = u32::from(seconds) * 10 / 6;
            model.pass(least - 1);
            assert!(!model.reset, "{seconds}");
            feed(&mut model);
            model.pass(least - 1);
            assert!(!model.reset, "{seconds}");
            model.pass(3);
            assert!(model.reset, "{seconds}");
        }
    }

    #[test]
    fn one_that_cannot_reset_the_machine_is_not_armed() {
        let strapped = PLACES.map(|place| (Model { strapped: true, ..Model::with(place) }, NotArmed::Strap));
        let unknown = [Model { place: None, ..Model::new() }, Model { memory: u32::MAX, ..Model::new() }];
        for (mut model, why) in strapped.into_iter().chain(unknown.map(|model| (model, NotArmed::Unknown))) {
            assert_eq!(arm(&mut model, 30), Err(why));
            assert_eq!(model.control & !IN_CONTROL, TCO_TMR_HLT, "{why:?}");
            model.pass(1000);
            assert!(!model.reset, "{why:?}");
        }
    }

    #[test]
    fn bases_that_are_none_are_not_taken() {
        assert_eq!(ports_by_pmbase(0x601), Some(0x660));
        assert_eq!(ports_by_pmbase(0xff81), Some(0xffe0));
        for none in [0, 1, 0x600, 0x1_0601, u32::MAX] {
            assert_eq!(ports_by_pmbase(none), None, "{none:#x}");
        }
        assert_eq!(ports_by_tcobase(0x401, 0x101), Some(0x400));
        for (base, control) in [(0x401, 0), (0x400, 0x100), (1, 0x100), (0x1_0401, 0x100), (u32::MAX, u32::MAX)] {
            assert_eq!(ports_by_tcobase(base, control), None, "{base:#x} {control:#x}");
        }
        assert_eq!(in_gcs(0xfed1_c001), Some(NoReboot::Memory { address: 0xfed1_f410, bit: 1 << 5 }));
        for none in [0, 1, 0xfed1_c000, u32::MAX] {
            assert_eq!(in_gcs(none), None, "{none:#x}");
        }
        // Bits 3:0 say what kind of memory it is.
        assert_eq!(
            on_sideband([0xfd00_0004, 0], 0xc6_000c),
            Some(NoReboot::Memory { address: 0xfdc6_000c, bit: 1 << 1 })
        );
        assert_eq!(
            on_sideband([0xfd00_0004, 0x2f], 0xcf_000c),
            Some(NoReboot::Memory { address: 0x2f_fdcf_000c, bit: 1 << 1 })
        );
        for none in [[0, 0], [4, 0], [0xfd10_0004, 0], [u32::MAX, 0], [u32::MAX; 2]] {
            assert_eq!(on_sideband(none, 0xc6_000c), None, "{none:x?}");
        }
    }

    #[test]
    fn only_intels_known_functions_are_touched() {
        assert_eq!(chipset(0x8086, 0x2918), Some(("ICH9", Way::Lpc)));
        assert_eq!(chipset(0x8086, 0xa1a3), Some(("C620", Way::Sideband(0xc6_000c))));
        assert_eq!(chipset(0x8086, 0x19df), Some(("C3000", Way::Sideband(0xcf_000c))));
        assert_eq!(chipset(0x8086, 0x1bc9), Some(("C740", Way::Smbus)));
        assert_eq!(chipset(0x1022, 0x2918), None);
        // ICH5, and ICH9's SMBus function.
        assert_eq!([chipset(0x8086, 0x24d0), chipset(0x8086, 0x2930)], [None, None]);
    }
}
