//! Keeps a guest's NMI mask (APM vol. 2 15.20; 8.2.3 on masking). The processor masks NMIs from the delivery of an NMI
//! until an IRET has completed. Without the vNMI feature it does not do this for an injected NMI, so the mask is kept
//! here.
//!
//! While NMIs are masked, IRET exits. The exit comes before the IRET, but the mask ends after it. If an NMI waits then,
//! the guest is single-stepped over the IRET.
//!
//! IRET also exits while an NMI waits that could not be injected because of an exception. It is injected at the next
//! exit, and the IRET at the end of the exception's handler is the last that can be.

/// NMI state of one vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Nmi {
    mask: Mask,
    waiting: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Mask {
    #[default]
    Open,
    /// The guest is in the handler. IRET exits.
    Handler,
    /// The guest will execute the IRET at this address. NMIs are masked until RIP is elsewhere.
    Iret(u64),
}

/// What the next entry has to do for NMIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing.
    Nothing,
    /// Inject the NMI that waits.
    Inject,
    /// Single-step the guest over the IRET: set RFLAGS.TF for this entry.
    Step,
}

impl Nmi {
    /// Adds an NMI for the guest. If one waits already, the two become one, as in hardware.
    pub fn post(&mut self) {
        self.waiting = true;
    }

    /// An exception came instead of the NMI that was being delivered. The NMI waits again, and is not in service.
    pub fn superseded(&mut self) {
        *self = Self { mask: Mask::Open, waiting: true };
    }

    /// Whether IRET must exit, after [`Nmi::injected`] if that is the plan.
    #[must_use]
    pub fn intercept_iret(&self) -> bool {
        match self.mask {
            Mask::Open => self.waiting,
            Mask::Handler => true,
            Mask::Iret(_) => false,
        }
    }

    /// Returns what to do at the next entry. `occupied`: another event will be injected there already.
    #[must_use]
    pub fn plan(&self, occupied: bool) -> Plan {
        match self.mask {
            _ if !self.waiting || occupied => Plan::Nothing,
            Mask::Open => Plan::Inject,
            Mask::Handler => Plan::Nothing,
            Mask::Iret(_) => Plan::Step,
        }
    }

    /// The waiting NMI was written to EVENTINJ.
    pub fn injected(&mut self) {
        *self = Self { mask: Mask::Handler, waiting: false };
    }

    /// The guest exited at `rip`. `iret`: the reason was an IRET intercept.
    pub fn left(&mut self, rip: u64, iret: bool) {
        match self.mask {
            Mask::Handler if iret => self.mask = Mask::Iret(rip),
            Mask::Iret(at) if at != rip => self.mask = Mask::Open,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_nmi_waits_until_the_iret_has_completed() {
        let mut nmi = Nmi::default();
        nmi.post();
        assert_eq!(nmi.plan(false), Plan::Inject);
        nmi.injected();
        assert!(nmi.intercept_iret());
        nmi.post();
        assert_eq!(nmi.plan(false), Plan::Nothing);
        nmi.left(0x1000, false);
        assert_eq!(nmi.plan(false), Plan::Nothing, "an exit inside the handler changes nothing");
        nmi.left(0x1010, true);
        assert!(!nmi.intercept_iret());
        assert_eq!(nmi.plan(false), Plan::Step);
        nmi.left(0x1010, false);
        assert_eq!(nmi.plan(false), Plan::Step, "a fault in the IRET: still before it");
        nmi.left(0x5000, false);
        assert_eq!(nmi.plan(false), Plan::Inject);
    }

    #[test]
    fn without_another_nmi_the_iret_is_not_stepped() {
        let mut nmi = Nmi::default();
        nmi.post();
        nmi.injected();
        nmi.left(0x1010, true);
        assert_eq!(nmi.plan(false), Plan::Nothing);
        nmi.left(0x2000, false);
        assert_eq!(nmi, Nmi::default());
    }

    #[test]
    fn an_nmi_that_an_exception_superseded_comes_at_its_handlers_end_at_the_latest() {
        let mut nmi = Nmi::default();
        nmi.post();
        assert_eq!(nmi.plan(false), Plan::Inject);
        nmi.injected();
        nmi.left(0x1000, false);
        nmi.superseded();
        assert_eq!(nmi.plan(true), Plan::Nothing, "the exception goes first");
        assert!(nmi.intercept_iret());
        nmi.left(0x2000, true);
        assert_eq!(nmi.plan(false), Plan::Inject, "before the handler's IRET");
        nmi.injected();
        nmi.left(0x3000, true);
        assert!(!nmi.intercept_iret(), "its own IRET");
        nmi.left(0x2000, false);
        assert_eq!(nmi, Nmi::default());
    }

    #[test]
    fn an_event_already_there_goes_first() {
        let mut nmi = Nmi::default();
        nmi.post();
        assert_eq!(nmi.plan(true), Plan::Nothing);
        assert_eq!(nmi.plan(false), Plan::Inject);
    }
}
