//! Workarounds for processors that do not follow their manuals. No real processor needs one. Each says what is wrong
//! and where. It is off unless the kernel has found that processor, and `quirks=` on the kernel's command line switches
//! each on or off by its name ([`Quirks::parse`]).

use memory::GuestMemory;

use crate::{
    posted::Wake,
    vcpu::{Exit, SegmentName, Vcpu},
    walk::{self, Access},
};

/// The workarounds that this host needs. The last three are for [posted interrupts](crate::posted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks {
    /// `rip`. For Bochs with more than one CPU (3.0, in `cpu_run_trace`). The error: an exit for an interrupt or an NMI
    /// comes right after the guest has taken an exception. Bochs saves the RIP of the instruction that raised the
    /// exception, but all other registers are those of the handler's first instruction. The guest then continues at the
    /// wrong address, with the handler's rights. The workaround: [`Quirks::after`].
    pub rip: bool,
    /// `hlt`. For Bochs (3.0, `event.cc`). The error: a posted interrupt does not wake a guest that is halted in guest
    /// mode. The workaround: HLT exits.
    pub hlt: bool,
    /// `virr`. For Bochs (3.0, `event.cc`). The error: any physical interrupt, also a notification, makes Bochs deliver
    /// at once a virtual interrupt that waits for the guest's IF. The workaround: a sender does not notify while
    /// something is in VIRR ([`Quirks::before_notification`]). The core has no other interrupts.
    pub virr: bool,
    /// `pir`. For Bochs (3.0, `vapic.cc`). The error: a notification that finds PIR empty requests vector 0xff. Linux
    /// never ends that interrupt. After that nothing of a lower priority is delivered. The workaround: a sender
    /// notifies only if its post is still in PIR ([`Quirks::before_notification`]), and the host takes a late
    /// notification before each entry ([`Machine::takes_late_notifications`]).
    ///
    /// [`Machine::takes_late_notifications`]: crate::machine::Machine::takes_late_notifications
    pub pir: bool,
}

/// Most turns of the loop in which a sender waits until the guest has taken earlier posts. Linux keeps interrupts off
/// for less time, and a time slice is much longer.
const MAX_SPINS: u32 = 20_000;

const LMA: u64 = 1 << 10;
const IF: u64 = 1 << 9;
const RF: u64 = 1 << 16;
/// Bits of a page fault's error code: present, write, user, reserved bit, fetch, protection key, shadow stack (SDM vol.
/// 3A 4.7).
const ERROR_BITS: u64 = 0x7f;
const ERROR_WRITE: u64 = 1 << 1;
const ERROR_USER: u64 = 1 << 2;
const GENERAL_PROTECTION: u64 = 13;
const PAGE_FAULT: u64 = 14;

impl Quirks {
    /// All that Bochs 3.0 needs.
    pub const BOCHS: Self = Self { rip: true, hlt: true, virr: true, pir: true };

    /// Reads the value of `quirks=`: `none`, `all`, or names with commas between them. Returns `None` if a name is
    /// unknown.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut quirks = Self::default();
        match text {
            "none" => return Some(quirks),
            "all" => return Some(Self::BOCHS),
            _ => {}
        }
        for name in text.split(',') {
            match name {
                "rip" => quirks.rip = true,
                "hlt" => quirks.hlt = true,
                "virr" => quirks.virr = true,
                "pir" => quirks.pir = true,
                _ => return None,
            }
        }
        Some(quirks)
    }

    /// Returns the name of each workaround that is on, and what it does.
    pub fn described(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        [
            (self.rip, "rip", "where an exit finds RIP left behind after a guest's page fault, RIP is put right"),
            (self.hlt, "hlt", "HLT exits, also with posted interrupts"),
            (self.virr, "virr", "nobody is notified of a posted interrupt while one waits in VIRR"),
            (
                self.pir,
                "pir",
                "nobody is notified whose PIR is empty, and late notifications are taken before an entry",
            ),
        ]
        .into_iter()
        .filter_map(|(on, name, does)| on.then_some((name, does)))
    }

    /// Returns what the sender of a posted interrupt does instead of the notification that is due. Without `virr` and
    /// `pir` it returns `Notify`.
    ///
    /// - `posted`: whether ON is still set.
    /// - `requesting`: whether something is in VIRR.
    ///
    /// Returns:
    /// - `Nobody`: the vCPU's core has taken the interrupt meanwhile.
    /// - `Notify`: notify it.
    /// - `Kick`: VIRR did not become empty in 20,000 turns of a loop. The vCPU must exit and look.
    ///
    /// One race remains: between the test here and the notification, the guest interrupts itself, or it exits and
    /// enters. Bochs offers no way to close it.
    #[must_use]
    pub fn before_notification(self, posted: impl Fn() -> bool, requesting: impl Fn() -> bool) -> Wake {
        if !self.virr && !self.pir {
            return Wake::Notify;
        }
        for _ in 0..MAX_SPINS {
            let requesting = self.virr && requesting();
            if !posted() {
                return Wake::Nobody;
            }
            if !requesting {
                return Wake::Notify;
            }
            core::hint::spin_loop();
        }
        Wake::Kick
    }

    /// Corrects what an exit left wrong. Call it after each exit, before anything reads RIP. Returns true if it
    /// corrected something.
    pub fn after(self, exit: &Exit, vcpu: &mut impl Vcpu, memory: &GuestMemory) -> bool {
        let by_chance = matches!(exit, Exit::ExternalInterrupt(_) | Exit::Nmi | Exit::Deadline);
        if !(self.rip && by_chance) {
            return false;
        }
        let handler = handler(vcpu, memory);
        if let Some(handler) = handler {
            vcpu.set_rip(handler);
        }
        handler.is_some()
    }
}

/// Returns the correct RIP if the guest has just taken a page fault or #GP(0) and RIP is still where that was raised.
///
/// It recognises this by the stack, which holds exactly the frame of a fault at RIP: aligned, RF set in the pushed
/// flags (SDM vol. 3B 18.3.1.1), an error code, interrupts off. No other code has its own address on its stack in this
/// form. RF in the guest's own flags says nothing, because Bochs saves it as set at each exit by an NMI. The frame does
/// not name its vector. So the fault counts as a page fault if the address in CR2 faults, and as #GP otherwise. All other
/// faults with an error code are rare enough in guests.
fn handler(vcpu: &impl Vcpu, memory: &GuestMemory) -> Option<u64> {
    let rsp = vcpu.gprs().rsp;
    let in_handler = vcpu.efer() & LMA != 0
        && vcpu.segment(SegmentName::Cs).attributes.long()
        && vcpu.cpl() == 0
        && vcpu.rflags() & IF == 0
        && rsp.is_multiple_of(16)
        && !vcpu.event_waiting();
    if !in_handler {
        return None;
    }
    let word = |at: u64| {
        let gpa = walk::translate(vcpu, memory, at, Access::Read).ok()?;
        let mut bytes = [0; 8];
        memory.read(gpa, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    let (error, rip, flags) = (word(rsp)?, word(rsp.checked_add(8)?)?, word(rsp.checked_add(24)?)?);
    if rip != vcpu.rip() || error & !ERROR_BITS != 0 || flags & RF == 0 {
        return None;
    }
    let access = if error & ERROR_WRITE != 0 { Access::Write } else { Access::Read };
    let by_page = error & ERROR_USER != 0 || walk::translate(vcpu, memory, vcpu.cr2(), access).is_err();
    let vector = match error {
        _ if by_page => PAGE_FAULT,
        0 => GENERAL_PROTECTION,
        _ => return None,
    };
    let gate = vcpu.idt().0.checked_add(vector << 4)?;
    let (low, high) = (word(gate)?, word(gate.checked_add(8)?)?);
    Some(low & 0xffff | low >> 32 & 0xffff_0000 | high << 32)
}

#[cfg(test)]
mod tests {
    use memory::guest::testing::memory;

    use super::*;
    use crate::testing::FakeVcpu;

    const BOCHS: Quirks = Quirks { rip: true, hlt: false, virr: false, pir: false };
    const FAULTED: u64 = 0x4a_8eb9;
    const STACK: u64 = 0x2fd0;
    const GP_HANDLER: u64 = 0xffff_ffff_b520_1a90;
    const PF_HANDLER: u64 = 0xffff_ffff_b520_1ac0;

    /// A guest that has taken a page fault, with RIP still at the faulting instruction.
    fn left_behind() -> (FakeVcpu, GuestMemory) {
        let memory = memory(0, 1 << 20);
        let mut vcpu = FakeVcpu::long_mode();
        vcpu.rflags = 0x97;
        vcpu.rip = FAULTED;
        vcpu.gprs.rsp = STACK;
        vcpu.idt = (0x5000, 0xfff);
        for (i, word) in [4, FAULTED, 0x33, 0x1_0202, 0x7ffd_0000, 0x2b].into_iter().enumerate() {
            memory.write(STACK + 8 * i as u64, &u64::to_le_bytes(word)).unwrap();
        }
        for (vector, handler) in [(13, GP_HANDLER), (14, PF_HANDLER)] {
            let gate = [handler & 0xffff | 0x8e00_0010_0000 | (handler & 0xffff_0000) << 32, handler >> 32];
            for (i, word) in gate.into_iter().enumerate() {
                memory.write(0x5000 + vector * 16 + 8 * i as u64, &u64::to_le_bytes(word)).unwrap();
            }
        }
        (vcpu, memory)
    }

    #[test]
    fn a_rip_left_behind_is_moved_to_the_handler() {
        for (exit, saved) in
            [(Exit::Nmi, RF), (Exit::Nmi, 0), (Exit::ExternalInterrupt(Some(0xf0)), 0), (Exit::Deadline, 0)]
        {
            let (mut vcpu, memory) = left_behind();
            vcpu.rflags |= saved;
            assert!(BOCHS.after(&exit, &mut vcpu, &memory));
            assert_eq!(vcpu.rip, PF_HANDLER);
        }
    }

    #[test]
    fn a_fault_of_the_kernels_with_a_good_cr2_is_general_protection() {
        let (mut vcpu, memory) = left_behind();
        memory.write(STACK, &0_u64.to_le_bytes()).unwrap();
        // Without paging every address can be read.
        vcpu.cr2 = 0x1000;
        assert!(BOCHS.after(&Exit::Nmi, &mut vcpu, &memory));
        assert_eq!(vcpu.rip, GP_HANDLER);
        let (mut vcpu, memory) = left_behind();
        memory.write(STACK, &2_u64.to_le_bytes()).unwrap();
        assert!(!BOCHS.after(&Exit::Nmi, &mut vcpu, &memory), "#GP with a selector's error code is not looked for");
    }

    #[test]
    fn a_gate_that_reaches_beyond_the_last_address_is_left_alone() {
        const PRESENT_WRITABLE: u64 = 0b11;
        let (mut vcpu, memory) = left_behind();
        // Page tables from 0x8000 on: the first 2 MiB at their addresses, and the last page of all at 0x6000.
        for (at, entry) in [
            (0x8000, 0x9000 | PRESENT_WRITABLE),
            (0x8ff8, 0x9000 | PRESENT_WRITABLE),
            (0x9000, 0xa000 | PRESENT_WRITABLE),
            (0x9ff8, 0xa000 | PRESENT_WRITABLE),
            (0xa000, 0x80 | PRESENT_WRITABLE),
            (0xaff8, 0xb000 | PRESENT_WRITABLE),
            (0xbff8, 0x6000 | PRESENT_WRITABLE),
        ] {
            memory.write(at, &u64::to_le_bytes(entry)).unwrap();
        }
        (vcpu.cr0, vcpu.cr3, vcpu.cr4) = (0x8000_0011, 0x8000, 0x20);
        vcpu.cr2 = 0x7ffd_0000;
        assert!(BOCHS.after(&Exit::Nmi, &mut vcpu, &memory), "with paging, and a table in the middle");
        let (mut vcpu, rip) = (FakeVcpu { rip: FAULTED, ..vcpu }, FAULTED);
        // The first half of the gate of vector 14 is in the last eight bytes.
        vcpu.idt = (u64::MAX - 7 - 14 * 16, 0xfff);
        assert!(!BOCHS.after(&Exit::Nmi, &mut vcpu, &memory));
        assert_eq!(vcpu.rip, rip);
    }

    #[test]
    fn real_processors_and_other_exits_are_left_alone() {
        let (mut vcpu, memory) = left_behind();
        assert!(!Quirks::default().after(&Exit::Nmi, &mut vcpu, &memory));
        assert!(!BOCHS.after(&Exit::Cpuid, &mut vcpu, &memory));
        assert_eq!(vcpu.rip, FAULTED);
    }

    #[test]
    fn whatever_is_not_exactly_such_a_frame_is_left_alone() {
        let changes: [fn(&mut FakeVcpu, &GuestMemory); 8] = [
            |v, _| v.rip += 1,
            |v, _| v.rflags |= IF,
            |v, _| v.cpl = 3,
            |v, _| v.gprs.rsp += 8,
            |v, _| v.gprs.rsp = u64::MAX - 15,
            |v, _| v.event = Some(crate::vcpu::Event::Nmi),
            |_, m| m.write(STACK, &0x1000_u64.to_le_bytes()).unwrap(),
            |_, m| m.write(STACK + 24, &0x202_u64.to_le_bytes()).unwrap(),
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let (mut vcpu, memory) = left_behind();
            change(&mut vcpu, &memory);
            let rip = vcpu.rip;
            assert!(!BOCHS.after(&Exit::Nmi, &mut vcpu, &memory), "change {i}");
            assert_eq!(vcpu.rip, rip);
        }
    }

    #[test]
    fn the_command_line_switches_each_workaround_by_its_name() {
        assert_eq!(Quirks::parse("none"), Some(Quirks::default()));
        assert_eq!(Quirks::parse("all"), Some(Quirks::BOCHS));
        assert_eq!(Quirks::parse("rip,hlt,virr,pir"), Some(Quirks::BOCHS));
        assert_eq!(Quirks::parse("pir"), Some(Quirks { pir: true, ..Quirks::default() }));
        for wrong in ["", "hlt,", "posting", "none,hlt"] {
            assert_eq!(Quirks::parse(wrong), None, "{wrong}");
        }
        for name in ["rip", "hlt", "virr", "pir"] {
            let described: Vec<_> = Quirks::parse(name).unwrap().described().map(|(name, _)| name).collect();
            assert_eq!(described, [name]);
        }
    }

    #[test]
    fn a_notification_is_held_back_only_by_the_workaround_for_its_error() {
        let of = |quirks: Quirks, posted, requesting| quirks.before_notification(|| posted, || requesting);
        let [virr, pir] = ["virr", "pir"].map(|name| Quirks::parse(name).unwrap());
        for (posted, requesting) in [(false, false), (false, true), (true, false), (true, true)] {
            assert_eq!(of(Quirks::default(), posted, requesting), Wake::Notify, "as hardware does it");
        }
        assert_eq!(of(virr, true, true), Wake::Kick);
        assert_eq!(of(virr, true, false), Wake::Notify);
        assert_eq!(of(pir, true, true), Wake::Notify);
        assert_eq!([of(pir, false, true), of(virr, false, true)], [Wake::Nobody; 2]);
    }
}
