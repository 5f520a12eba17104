//! Chooses the guest's address space identifier (ASID; APM vol. 2 15.16), and what the next entry flushes.
//!
//! One core runs one vCPU, so a new ASID serves here only as a cheap flush: translations of the former ASID are not
//! used again before a full flush. With flush-by-ASID the guest keeps one ASID. The first entry flushes everything,
//! because another guest may have run on the core before.

use crate::fields::TlbControl;

/// ASID policy of one core.
#[derive(Clone, Debug)]
pub struct Asids {
    /// Number of the processor's ASIDs. It includes ASID 0, which is the host's.
    count: u32,
    flush_by_asid: bool,
    current: u32,
    control: TlbControl,
}

impl Asids {
    /// For a processor with `count` ASIDs (CPUID Fn8000_000A_EBX, at least 2), with or without flush-by-ASID.
    #[must_use]
    pub const fn new(count: u32, flush_by_asid: bool) -> Self {
        Self { count, flush_by_asid, current: 1, control: TlbControl::EVERYTHING }
    }

    /// Has the next entry drop the guest's cached translations: its nested tables have changed, or it starts anew.
    pub fn flush(&mut self) {
        if self.control != TlbControl::NOTHING {
            return; // the flush that is pending already covers this guest
        }
        if self.flush_by_asid {
            self.control = TlbControl::THIS_ASID;
        } else if let next = self.current.saturating_add(1)
            && next < self.count
        {
            self.current = next;
        } else {
            self.current = 1; // all used up: start over with nothing cached for any of them
            self.control = TlbControl::EVERYTHING;
        }
    }

    /// ASID and TLB_CONTROL for the next entry.
    #[must_use]
    pub const fn for_entry(&self) -> (u32, TlbControl) {
        (self.current, self.control)
    }

    /// The entry was made, and with it the flush. Not to be called for an entry that was given up before VMRUN, because
    /// that flushes nothing.
    pub fn entered(&mut self) {
        self.control = TlbControl::NOTHING;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(asids: &mut Asids) -> (u32, TlbControl) {
        let used = asids.for_entry();
        asids.entered();
        used
    }

    #[test]
    fn the_first_entry_flushes_everything_and_the_next_nothing() {
        for flush_by_asid in [false, true] {
            let mut asids = Asids::new(8, flush_by_asid);
            assert_eq!(enter(&mut asids), (1, TlbControl::EVERYTHING));
            assert_eq!(enter(&mut asids), (1, TlbControl::NOTHING));
        }
    }

    #[test]
    fn a_flush_before_the_first_entry_does_not_weaken_it() {
        let mut asids = Asids::new(8, true);
        asids.flush();
        assert_eq!(enter(&mut asids), (1, TlbControl::EVERYTHING));
    }

    #[test]
    fn an_entry_given_up_leaves_the_flush_pending() {
        let mut asids = Asids::new(8, true);
        enter(&mut asids);
        asids.flush();
        assert_eq!(asids.for_entry(), (1, TlbControl::THIS_ASID));
        assert_eq!(asids.for_entry(), (1, TlbControl::THIS_ASID));
    }

    #[test]
    fn flush_by_asid_keeps_the_asid() {
        let mut asids = Asids::new(8, true);
        enter(&mut asids);
        asids.flush();
        asids.flush();
        assert_eq!(enter(&mut asids), (1, TlbControl::THIS_ASID));
        assert_eq!(enter(&mut asids), (1, TlbControl::NOTHING));
    }

    #[test]
    fn without_flush_by_asid_no_asid_is_used_again_before_everything_was_flushed() {
        let count = 5;
        let mut asids = Asids::new(count, false);
        let mut stale = [false; 5];
        for _ in 0..40 {
            let (asid, control) = enter(&mut asids);
            if control == TlbControl::EVERYTHING {
                stale = [false; 5];
            }
            assert!((1..count).contains(&asid), "ASID 0 is the host's, {count} does not exist: {asid}");
            assert!(!stale[asid as usize], "ASID {asid} was given out twice");
            asids.flush();
            stale[asid as usize] = true;
        }
    }

    #[test]
    fn two_asids_are_enough() {
        let mut asids = Asids::new(2, false);
        enter(&mut asids);
        asids.flush();
        assert_eq!(enter(&mut asids), (1, TlbControl::EVERYTHING));
    }
}
