//! Posted interrupts and the virtual local APIC in the VMCS (SDM vol. 3C 25.6.8, 25.4.2, ch. 30), and the preemption
//! timer (26.5.1), which replaces the guest's APIC timer and ends a guest's freedom to make split locks. `machine::posted` handles the content of the pages.

use crate::{fields::*, instructions::CurrentVmcs};
use machine::posted::{Addresses, HandOver};

/// A vCPU's virtual local APIC.
#[derive(Clone, Copy, Debug)]
pub struct VirtualApic {
    /// Physical addresses of descriptor and page. Only this vCPU uses them, as long as it exists.
    pub addresses: Addresses,
    /// Vector of this core that is used only for notifications.
    pub notification: u8,
}

impl VirtualApic {
    /// Writes its fields as after INIT: no interrupt is requested or in service.
    pub fn write(&self, vmcs: &mut CurrentVmcs) {
        vmcs.write(VIRTUAL_APIC_ADDRESS, self.addresses.page as u64);
        vmcs.write(POSTED_INTERRUPT_DESCRIPTOR_ADDRESS, self.addresses.descriptor as u64);
        vmcs.write(POSTED_INTERRUPT_NOTIFICATION_VECTOR, u16::from(self.notification));
        vmcs.write(TPR_THRESHOLD, 0);
        vmcs.write(GUEST_INTERRUPT_STATUS, 0);
        write_eoi_exits(vmcs, [0; 4]);
    }
}

fn write_eoi_exits(vmcs: &mut CurrentVmcs, bitmap: [u64; 4]) {
    for (field, bits) in EOI_EXIT_BITMAPS.into_iter().zip(bitmap) {
        vmcs.write(field, bits);
    }
}

/// Updates the VMCS after interrupts were put into the page: RVI, which is the low byte of the guest interrupt status,
/// and the EOI-exit bitmaps. SVI stays.
pub fn handed_over(vmcs: &mut CurrentVmcs, change: &HandOver) {
    let old = vmcs.read(GUEST_INTERRUPT_STATUS);
    let new = with_rvi(old, change.rvi);
    if new != old {
        vmcs.write(GUEST_INTERRUPT_STATUS, new);
    }
    if let Some(bitmap) = change.eoi_exits {
        write_eoi_exits(vmcs, bitmap);
    }
}

const fn with_rvi(status: u16, rvi: u8) -> u16 {
    status & 0xff00 | rvi as u16
}

/// Ticks of the preemption timer until the TSC has passed `deadline`. It is never too few, because an exit that comes
/// too early costs a second exit. The timer counts at each change of TSC bit `shift`, and the first change may come at
/// once. If a deadline is too far for 32 bits, an exit comes before it.
pub fn preemption_ticks(deadline: u64, now: u64, shift: u8) -> u32 {
    let wait = deadline.saturating_sub(now);
    if wait == 0 {
        return 0;
    }
    u32::try_from(wait.div_ceil(1 << shift).saturating_add(1)).unwrap_or(u32::MAX)
}

/// The earlier of two times at which a guest is to exit.
pub fn earliest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rvi_changes_and_svi_stays() {
        assert_eq!(with_rvi(0x4131, 0x52), 0x4152);
        assert_eq!(with_rvi(0xffff, 0), 0xff00);
    }

    #[test]
    fn the_earlier_of_two_times_counts_and_none_is_none() {
        assert_eq!(
            [earliest(Some(3), Some(2)), earliest(None, Some(2)), earliest(Some(3), None)],
            [Some(2), Some(2), Some(3)]
        );
        assert_eq!(earliest(None, None), None);
    }

    #[test]
    fn a_deadline_that_has_passed_exits_at_once_and_one_far_away_on_the_way() {
        assert_eq!(preemption_ticks(100, 100, 5), 0);
        assert_eq!(preemption_ticks(99, 100, 5), 0);
        assert_eq!(preemption_ticks(101, 100, 0), 2);
        assert_eq!(preemption_ticks(u64::MAX, 0, 5), u32::MAX);
        assert_eq!(preemption_ticks(u64::MAX, 0, 0), u32::MAX);
    }

    proptest! {
        #[test]
        fn the_timer_is_never_early_and_late_by_two_ticks_at_most(
            now in 0u64..1 << 50, wait in 1u64..1 << 30, shift in 0u8..10
        ) {
            let (deadline, unit) = (now + wait, 1 << shift);
            // The moment of the n-th change of bit `shift` after `now`.
            let ends = ((now >> shift) + u64::from(preemption_ticks(deadline, now, shift))) << shift;
            prop_assert!(ends >= deadline && ends <= deadline + 2 * unit, "{} {}", ends, deadline);
        }
    }
}
