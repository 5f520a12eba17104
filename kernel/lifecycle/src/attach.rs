//! Attaches the devices of a guest, all or none.

/// Attaches `devices` in their order. If one cannot be attached, those before it are detached in the same order and the
/// others are not tried.
///
/// # Errors
/// Why a device could not be attached.
pub fn attach_all<'a, D, E>(
    devices: &'a [D],
    mut attach: impl FnMut(&'a D) -> Result<(), E>,
    detach: impl FnMut(&'a D),
) -> Result<(), E> {
    for (number, device) in devices.iter().enumerate() {
        if let Err(why) = attach(device) {
            devices[..number].iter().for_each(detach);
            return Err(why);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Returns the calls and the result if device `bad` cannot be attached.
    fn run(devices: &[u32], bad: Option<u32>) -> (Vec<String>, Result<(), u32>) {
        let calls = RefCell::new(Vec::new());
        let result = attach_all(
            devices,
            |&device| {
                calls.borrow_mut().push(format!("attach {device}"));
                if Some(device) == bad { Err(device) } else { Ok(()) }
            },
            |device| calls.borrow_mut().push(format!("detach {device}")),
        );
        (calls.into_inner(), result)
    }

    #[test]
    fn all_devices_are_attached_in_their_order() {
        assert_eq!(run(&[], None), (vec![], Ok(())));
        let calls = ["attach 4", "attach 2", "attach 9"].map(String::from).to_vec();
        assert_eq!(run(&[4, 2, 9], None), (calls, Ok(())));
    }

    #[test]
    fn after_a_failure_exactly_those_attached_before_are_detached() {
        let calls = |all: &[&str]| all.iter().map(|&call| call.into()).collect::<Vec<String>>();
        assert_eq!(run(&[4, 2, 9], Some(4)), (calls(&["attach 4"]), Err(4)));
        let expected = calls(&["attach 4", "attach 2", "attach 9", "detach 4", "detach 2"]);
        assert_eq!(run(&[4, 2, 9], Some(9)), (expected, Err(9)));
    }
}
