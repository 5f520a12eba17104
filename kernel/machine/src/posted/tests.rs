//! The virtual-APIC page, beside the APIC in software that it must agree with.

use super::*;
use crate::lapic::{Accepts, Clock, LocalApic, Settings};
use proptest::prelude::*;

const NOW: Clock = Clock { tsc: 0, offset: 0 };

fn apic() -> LocalApic {
    let settings = Settings { id: 3, bootstrap: false, timer_hz: 1_000_000, tsc_hz: 1_000_000, tsc_deadline: true };
    let mut apic = LocalApic::new(settings);
    apic.write(msr::SVR, 0x1ff, NOW).unwrap();
    apic
}

/// What the CPU does to the page (30.1.2 to 30.2.2).
impl ApicPage {
    fn set(&self, group: u32, vector: u8, value: bool) {
        let (word, bit) = (self.word(group + u32::from(vector) / 32), 1 << (vector % 32));
        let old = word.load(Relaxed);
        word.store(if value { old | bit } else { old & !bit }, Relaxed);
    }

    fn deliver(&self) -> Option<u8> {
        let vector = self.deliverable()?;
        self.set(msr::IRR, vector, false);
        self.set(msr::ISR, vector, true);
        Some(vector)
    }

    fn end_of_interrupt(&self) {
        if let Some(vector) = self.highest(msr::ISR) {
            self.set(msr::ISR, vector, false);
        }
    }
}

#[test]
fn registers_are_sixteen_bytes_apart_as_their_numbers_say() {
    let page = ApicPage::new();
    page.show(msr::ICR, 0x0000_0003_0000_00fd);
    page.show(msr::ID, 3);
    let bytes: Vec<u32> = page.0.iter().map(|w| w.load(Relaxed)).collect();
    assert_eq!((bytes[0x20 / 4], bytes[0x300 / 4], bytes[0x304 / 4]), (3, 0xfd, 3));
    let _ = page.request(&[0, 0, 0, 1 << 63], &[0; 4]);
    assert_eq!(page.0[0x270 / 4].load(Relaxed), 1 << 31, "VIRR ends at 0x270");
}

#[test]
fn rvi_is_the_highest_request_of_old_and_new_ones() {
    let page = ApicPage::new();
    assert_eq!(page.request(&[1 << 0x31, 0, 0, 0], &[0; 4]), HandOver { rvi: 0x31, eoi_exits: None });
    assert_eq!(page.request(&[0, 0, 1 << 2, 0], &[0; 4]).rvi, 0x82);
    assert_eq!(page.request(&[1 << 0x20, 0, 0, 0], &[0; 4]).rvi, 0x82, "a lower one does not lower it");
    assert_eq!(page.deliver(), Some(0x82));
    assert_eq!(page.request(&[0; 4], &[0; 4]).rvi, 0x31);
}

#[test]
fn a_level_triggered_vector_exits_at_its_end_until_it_comes_as_an_edge() {
    let page = ApicPage::new();
    let bit = [0, 1 << 1, 0, 0];
    assert_eq!(page.request(&bit, &bit).eoi_exits, Some(bit));
    assert_eq!(page.request(&bit, &bit).eoi_exits, None, "no change");
    assert_eq!(page.request(&[1 << 0x30, 0, 0, 0], &[0; 4]).eoi_exits, None, "another vector's mode is its own");
    assert_eq!(page.request(&bit, &[0; 4]).eoi_exits, Some([0; 4]));
}

#[test]
fn what_arrives_in_the_apic_goes_to_the_page_once() {
    let (mut apic, page) = (apic(), ApicPage::new());
    assert_eq!(apic.hand_over(&page), None);
    apic.accept(0x41, false);
    apic.accept(0x52, true);
    assert_eq!(apic.hand_over(&page), Some(HandOver { rvi: 0x52, eoi_exits: Some([0, 1 << 0x12, 0, 0]) }));
    assert_eq!(apic.hand_over(&page), None);
    assert_eq!((page.register(msr::IRR + 2), page.register(msr::TMR + 2)), (1 << 1 | 1 << 0x12, 1 << 0x12));
}

#[test]
fn what_the_guest_reads_in_the_page_is_what_the_apic_would_answer() {
    let (mut apic, page) = (apic(), ApicPage::new());
    for (number, value) in
        [(msr::ICR, 0x7_0004_00f6), (msr::LVT_TIMER, 0x4_00ec), (msr::DIVIDE, 3), (msr::LVT_LINT0, 0x1_0700)]
    {
        apic.write(number, value, NOW).unwrap();
    }
    page.reset();
    apic.show(&page);
    for number in READ_FROM_PAGE.iter().cloned().flatten() {
        if matches!(number, msr::TPR | msr::PPR) || (msr::ISR..msr::ESR).contains(&number) {
            continue; // the CPU's
        }
        assert_eq!(
            Ok(u64::from(page.register(number))),
            apic.read(number, NOW).map(|v| v & 0xffff_ffff),
            "{number:#x}"
        );
    }
}

#[test]
fn the_cpu_answers_for_registers_that_exist_and_can_be_read() {
    for number in READ_FROM_PAGE.iter().cloned().flatten() {
        assert!(apic().read(number, NOW).is_ok(), "{number:#x}");
    }
    for &number in WRITTEN_BY_CPU {
        assert!(apic().write(number, 0, NOW).is_ok(), "{number:#x}");
    }
    assert!(!READ_FROM_PAGE.iter().cloned().flatten().any(|n| n == msr::CURRENT_COUNT));
}

#[test]
fn only_what_waits_in_virr_counts_as_requesting() {
    let page = ApicPage::new();
    assert!(!page.is_requesting());
    let _ = page.request(&[1 << 0x31, 0, 0, 0], &[0; 4]);
    assert!(page.is_requesting());
    page.deliver();
    assert!(!page.is_requesting(), "in service is not requested");
}

proptest! {
    /// The page, with the CPU played by the model above, delivers the same vectors in the same order as the APIC in
    /// software, whatever the traffic.
    #[test]
    fn the_page_and_the_apic_in_software_agree(
        steps in proptest::collection::vec((0u8..4, 16u8.., any::<bool>()), 1..200)
    ) {
        let (mut soft, mut front, page) = (apic(), apic(), ApicPage::new());
        for (step, value, level) in steps {
            match step {
                0 => {
                    soft.accept(value, level);
                    front.accept(value, level);
                    if let Some(change) = front.hand_over(&page) {
                        prop_assert_eq!(Some(change.rvi), page.highest(msr::IRR));
                    }
                }
                1 => {
                    soft.write(msr::TPR, value.into(), NOW).unwrap();
                    page.show(msr::TPR, value.into());
                }
                2 => {
                    soft.write(msr::EOI, 0, NOW).unwrap();
                    page.end_of_interrupt();
                }
                _ => {
                    let vector = soft.next_interrupt();
                    if let Some(v) = vector {
                        soft.acknowledge(v);
                    }
                    prop_assert_eq!(page.deliver(), vector);
                }
            }
            prop_assert_eq!(page.ppr(), soft.ppr());
            prop_assert_eq!(page.deliverable(), soft.next_interrupt());
            for number in (msr::ISR..msr::ESR).chain([msr::TPR, msr::PPR]).filter(|n| *n != msr::PPR) {
                prop_assert_eq!(u64::from(page.register(number)), soft.read(number, NOW).unwrap(), "{:#x}", number);
            }
        }
    }
}
