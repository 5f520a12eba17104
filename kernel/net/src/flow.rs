//! A flow: the frames from one port that have the same addresses, go to the same port, and get the same verdict from
//! the rules. The last flow of each port is cached, because most batches continue it.

use crate::addresses::Addresses;
use crate::flow_match::{FirstBuffer, Layout, LayoutKind, Pattern, Words, with_layout};
use crate::policy::Refusal;
use crate::policy::vlan;
use crate::policy::vlan::Vlan;
use crate::port_rules::{PairRules, PairVerdict, PortRules, Stopped};
use crate::switch::Switch;

/// A flow, and the verdict on its frames.
pub(crate) struct Flow {
    pub addresses: Addresses,
    /// Their VLAN. The frames have no tag.
    pub vlan: Vlan,
    /// The port of the receiver.
    pub to: usize,
    pub kind: LayoutKind,
    pub pattern: Pattern,
    pair_rules: PairRules,
    pub verdict: PairVerdict,
}

impl Flow {
    /// Makes the flow of a frame of `len` bytes from a port. The frame's first bytes were read. `None`: the frame does
    /// not qualify for the fast path.
    #[cold]
    #[inline(never)]
    pub(crate) fn of(
        (addresses, first_buffer, len): (Addresses, FirstBuffer<'_>, u32),
        port: usize,
        rules: &PortRules,
        switch: &Switch,
        now: u64,
    ) -> Option<Self> {
        let (destination, source) = (addresses.destination(), addresses.source());
        if destination.is_multicast() || source.is_multicast() || addresses.is_tagged() {
            return None;
        }
        let vlan = rules.untagged(port)?;
        let to = switch.lookup(destination, vlan, now)?;
        if rules.tagging(to, vlan)? == vlan::Tagging::Tagged {
            return None;
        }
        let (kind, mut pattern) = Pattern::first(rules.reads(port, to), addresses.ether_type(), first_buffer)?;
        let pair_rules = rules.between(port, to, vlan);
        let verdict = with_layout!(kind, F => {
            pattern.min_len = pattern.min_len.max(F::END as u32);
            if len < pattern.min_len || !F::matches(&pattern.words, &pattern, &pattern.mask) {
                return None;
            }
            match kind {
                LayoutKind::Bare => pair_rules.check_source(source),
                _ => pair_rules.check_front(&Pattern::front::<F>(addresses, &pattern.words))?,
            }
        });
        let verdict = match verdict.stopped {
            Some(Stopped::Entering(_)) => verdict,
            _ if switch.is_of_another(source, port) => verdict.refused(Refusal::Mac),
            _ => verdict,
        };
        Some(Self { addresses, vlan, to, kind, pattern, pair_rules, verdict })
    }

    /// Returns whether the switch still forwards these frames to the same port.
    #[inline]
    pub(crate) fn is_current(&self, switch: &Switch, now: u64) -> bool {
        switch.lookup(self.addresses.destination(), self.vlan, now) == Some(self.to)
    }

    /// Returns whether a frame with other words gets the same verdict. If so, its words become the flow's, and later
    /// frames are compared with them.
    #[cold]
    #[inline(never)]
    pub(crate) fn covers<F: Layout>(&mut self, words: &Words) -> bool {
        let pattern = &mut self.pattern;
        let same = F::matches(words, pattern, &pattern.needed)
            && self.pair_rules.check_front(&Pattern::front::<F>(self.addresses, words)).as_ref() == Some(&self.verdict);
        if same {
            pattern.words = *words;
        }
        same
    }

    /// Counts frames of `bytes` bytes in total at the stages that they match.
    #[inline]
    pub(crate) fn count(&self, frames: u64, bytes: u64) {
        self.pair_rules.count(&self.verdict, frames, bytes);
    }
}
