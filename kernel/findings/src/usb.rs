//! USB controllers: which the firmware has worked for, and what became of them.

use alloc::{format, vec::Vec};
use control::ReportEntry;
use drivers::pci::Address;
use drivers::usb::TakenOver;

use crate::{found, warning};

/// Where a person finds the setting.
const SETUP: &str = "each interrupt of the firmware stops all cores for a while: switch \"legacy USB support\" off in the firmware's setup";

/// What became of each controller. An error is the address of registers that cannot be mapped.
#[must_use]
pub fn controllers(all: &[(Address, Result<TakenOver, u64>)]) -> Vec<ReportEntry> {
    let with = |what| all.iter().filter(move |(_, became)| *became == Ok(what)).count();
    let (free, given) = (with(TakenOver::Free), with(TakenOver::Given));
    let mut said = Vec::new();
    if free.saturating_add(given) != 0 {
        let count = all.len();
        said.push(found(format!(
            "USB controllers: {count}; the firmware had left {free} alone, and has let go of {given}"
        )));
    }
    said.extend(all.iter().filter_map(|(at, became)| {
        Some(warning(match became {
            Ok(TakenOver::Free | TakenOver::Given) => return None,
            Ok(TakenOver::Taken) => format!(
                "USB controller {at}: the firmware did not let go of it in a second; it was taken away, and sends the firmware no \
                 interrupt any more"
            ),
            Ok(TakenOver::Kept) => format!("USB controller {at}: the firmware keeps it; {SETUP}"),
            Ok(TakenOver::NoAnswer) => format!("USB controller {at}: its registers do not answer; {SETUP}"),
            Err(base) => format!("USB controller {at}: its registers at {base:#x} cannot be mapped, so that the firmware keeps it; {SETUP}"),
        }))
    }));
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::ReportKind;

    fn said(all: &[Result<TakenOver, u64>]) -> Vec<(ReportKind, alloc::string::String)> {
        let all: Vec<_> =
            (0..).zip(all).map(|(device, became)| (Address { bus: 0, device, function: 0 }, *became)).collect();
        controllers(&all).into_iter().map(|entry| (entry.kind, entry.text.to_string())).collect()
    }

    #[test]
    fn controllers_that_make_no_trouble_are_counted() {
        use TakenOver::{Free, Given};
        assert_eq!(said(&[]), []);
        let texts = said(&[Ok(Given), Ok(Free), Ok(Given)]);
        assert_eq!(texts.len(), 1);
        assert_eq!(texts[0].1, "USB controllers: 3; the firmware had left 1 alone, and has let go of 2");
    }

    #[test]
    fn each_that_stays_is_named() {
        let texts = said(&[Ok(TakenOver::Taken), Ok(TakenOver::Kept), Ok(TakenOver::NoAnswer), Err(0xfe00_0000)]);
        assert_eq!(texts.len(), 4);
        for (device, (kind, text)) in texts.iter().enumerate() {
            assert_eq!(*kind, ReportKind::Warning);
            assert!(text.contains(&format!("00:0{device}.0")), "{text}");
        }
        assert!(texts[3].1.contains("0xfe000000"), "{}", texts[3].1);
    }
}
