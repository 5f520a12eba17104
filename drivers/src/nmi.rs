//! Non-maskable interrupts of the machine itself: what the chipset latches of their cause (NMI_SC, port 0x61; ICH9 data sheet
//! 316972, 13.7.1), and how one without a cause is told from those that cores send to each other.
//!
//! ```text
//!  a core sends an NMI ─▶ Tally::sent ┐
//!  an NMI comes ─▶ Tally::came ───────┴▶ false: no core has sent it ─┐
//!               ─▶ port 0x61 ─▶ Status ─▶ SERR#, IOCHK#, neither ────┴▶ what is said
//! ```
//!
//! Nothing here reads a port.

use core::sync::atomic::{AtomicU64, Ordering};

/// SERR#_NMI_STS: SERR# was asserted. Cleared by setting bit 2 and clearing it again.
const SERR_STATUS: u8 = 1 << 7;
/// IOCHK_NMI_STS: IOCHK# was asserted. Cleared by setting bit 3 and clearing it again.
const IOCHK_STATUS: u8 = 1 << 6;
/// While it is set, IOCHK# causes no NMI and its status is clear.
const IOCHK_OFF: u8 = 1 << 3;
/// While it is set, SERR# causes no NMI and its status is clear.
const SERR_OFF: u8 = 1 << 2;
/// What is written: the bits above it are read only, and those two have to be 0.
const WRITABLE: u8 = 0x0f;
/// What a port reads that is not there.
const NOBODY: u8 = 0xff;

/// What port 0x61 says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// SERR#: a PCI device, or memory, has met an error that nobody can put right.
    pub system_error: bool,
    /// IOCHK#: an error of a device on the LPC bus.
    pub io_check: bool,
    read: u8,
}

impl Status {
    /// Decodes what was read from port 0x61. A machine without that port has latched nothing.
    #[must_use]
    pub const fn from_bits(read: u8) -> Self {
        let there = read != NOBODY;
        Self { system_error: there && read & SERR_STATUS != 0, io_check: there && read & IOCHK_STATUS != 0, read }
    }

    /// Whether a cause is latched.
    #[must_use]
    pub const fn any(self) -> bool {
        self.system_error || self.io_check
    }

    /// What is written to port 0x61, one after the other, so that the next error of this kind is seen. `None`: nothing is latched.
    /// The speaker, the timer's gate and a kind of error that is switched off stay as they are.
    #[must_use]
    pub const fn acknowledge(self) -> Option<[u8; 2]> {
        if !self.any() {
            return None;
        }
        let serr = if self.system_error { SERR_OFF } else { 0 };
        let iochk = if self.io_check { IOCHK_OFF } else { 0 };
        let kept = self.read & WRITABLE & !(serr | iochk);
        Some([kept | serr | iochk, kept])
    }
}

/// The NMIs that cores send to one core, and those that come there.
///
/// NMIs that are sent while one waits are one NMI. So fewer may come than were sent, and never more. What did not come is
/// forgotten when none was sent for [`QUIET`] calls of [`Tally::tick`].
#[derive(Debug, Default)]
pub struct Tally {
    /// Upper half: how many were sent, modulo 2^32. Lower half: how many of them have not come.
    state: AtomicU64,
    /// The upper half at the last tick, and how many ticks it has been that.
    quiet: AtomicU64,
}

/// Ticks without a new NMI after which none is on its way. A tick is a millisecond: also a processor of a virtual machine that is not
/// run for long sends within that time what it has announced.
pub const QUIET: u32 = 1_000;

impl Tally {
    /// None was sent.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: AtomicU64::new(0), quiet: AtomicU64::new(0) }
    }

    /// Notes that a core is about to send one. Any core may call it.
    pub fn sent(&self) {
        let next = |state: u64| {
            let (sent, open) = halves(state);
            Some(state_of(sent.wrapping_add(1), open.saturating_add(1)))
        };
        _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
    }

    /// Notes that one has come. Returns whether a core has sent it. Its handler calls it.
    pub fn came(&self) -> bool {
        let next = |state: u64| {
            let (sent, open) = halves(state);
            Some(state_of(sent, open.checked_sub(1)?))
        };
        self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok()
    }

    /// Forgets those that will not come any more. One core calls it, the one to which they are sent, once a tick.
    pub fn tick(&self) {
        let state = self.state.load(Ordering::SeqCst);
        let (sent, open) = halves(state);
        let (last, ticks) = halves(self.quiet.load(Ordering::Relaxed));
        let ticks = if last == sent { ticks.saturating_add(1) } else { 0 };
        self.quiet.store(state_of(sent, ticks), Ordering::Relaxed);
        if open > 0 && ticks >= QUIET {
            // If one was sent just now, or has come, the next tick looks again.
            _ = self.state.compare_exchange(state, state_of(sent, 0), Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

const fn halves(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

const fn state_of(upper: u32, lower: u32) -> u64 {
    (upper as u64) << 32 | lower as u64
}

/// Whether the code that an NMI has interrupted ran on the NMI's own stack, of `size` bytes up to `top`: then it has
/// interrupted an NMI's handler. `rsp` is the interrupted code's. A stack that is empty has `rsp == top`.
#[must_use]
pub const fn is_on_own_stack(rsp: u64, top: u64, size: u64) -> bool {
    top.saturating_sub(size) <= rsp && rsp <= top
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chipset's register, as the data sheet has it: a status bit is clear while its error is switched off.
    struct Chipset(u8);

    impl Chipset {
        fn write(&mut self, value: u8) {
            assert_eq!(value & !WRITABLE, 0, "bits 7 and 6 have to be 0 in a write");
            let kept = self.0 & !WRITABLE;
            let off = if value & SERR_OFF != 0 { SERR_STATUS } else { 0 }
                | if value & IOCHK_OFF != 0 { IOCHK_STATUS } else { 0 };
            self.0 = kept & !off | value;
        }
    }

    #[test]
    fn every_value_of_the_port_is_decoded_and_what_was_latched_is_acknowledged() {
        for read in 0..=u8::MAX {
            let status = Status::from_bits(read);
            let there = read != 0xff;
            assert_eq!(status.system_error, there && read >= 0x80, "{read:#x}");
            assert_eq!(status.io_check, there && read & 0x40 != 0, "{read:#x}");
            let Some(writes) = status.acknowledge() else {
                assert!(!status.any());
                continue;
            };
            assert!(status.any());
            let mut chipset = Chipset(read);
            writes.into_iter().for_each(|value| chipset.write(value));
            assert!(!Status::from_bits(chipset.0).any(), "{read:#x} leaves {:#x}", chipset.0);
            assert_eq!(chipset.0 & 0x33, read & 0x33, "the speaker and the timer's gate stay: {read:#x}");
            // What was latched was on, and is on again. What was off stays off.
            assert_eq!(chipset.0 & SERR_OFF != 0, read & SERR_OFF != 0 && !status.system_error, "{read:#x}");
            assert_eq!(chipset.0 & IOCHK_OFF != 0, read & IOCHK_OFF != 0 && !status.io_check, "{read:#x}");
        }
    }

    #[test]
    fn an_nmi_that_no_core_has_sent_is_none_of_a_core_s() {
        let tally = Tally::new();
        assert!(!tally.came(), "the button of a management controller");
        tally.sent();
        assert!(tally.came());
        assert!(!tally.came(), "one sent, two came");
    }

    #[test]
    fn nmis_that_were_merged_hide_others_until_it_was_quiet() {
        let tally = Tally::new();
        (0..3).for_each(|_| tally.sent());
        assert!(tally.came(), "three were sent, one comes");
        // The first tick learns the count.
        for _ in 0..QUIET {
            tally.tick();
        }
        tally.sent();
        assert!(tally.came() && tally.came() && tally.came(), "one was sent, so it was not quiet");
        tally.sent();
        for _ in 0..=QUIET {
            tally.tick();
        }
        assert!(!tally.came());
    }

    #[test]
    fn the_stack_of_the_handler_is_told_from_others_to_the_byte() {
        let (top, size) = (0x2_0000, 0x4000);
        let inside = [0x1_c000, 0x1_fff8, 0x2_0000];
        assert!(inside.into_iter().all(|rsp| is_on_own_stack(rsp, top, size)));
        let outside = [0, 0x1_bff8, 0x2_0008, u64::MAX];
        assert!(!outside.into_iter().any(|rsp| is_on_own_stack(rsp, top, size)));
    }

    /// Each NMI that is sent comes, or is merged with one that comes later. Ticks pass. All orders of seven steps.
    #[test]
    fn what_cores_send_never_counts_as_the_machine_s() {
        for order in 0..3_u32.pow(7) {
            let (tally, mut waits) = (Tally::new(), false);
            for at in 0..7 {
                match order / 3_u32.pow(at) % 3 {
                    0 => {
                        tally.sent();
                        waits = true;
                    }
                    1 if core::mem::take(&mut waits) => assert!(tally.came(), "order {order}, step {at}"),
                    // One that waits comes long before it counts as quiet.
                    _ if !waits => (0..QUIET).for_each(|_| tally.tick()),
                    _ => tally.tick(),
                }
            }
        }
    }
}
