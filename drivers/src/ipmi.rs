//! The watchdog of a management controller (BMC), by IPMI (specification 2.0, revision 1.1, chapter 27): reads whether
//! it runs, and stops it. Firmware starts it before it starts an operating system, which is to stop or to feed it. It
//! resets the machine, or switches it off.
//!
//! [`kcs`] is the way to the controller. What comes from there is checked.

pub mod kcs;

use core::fmt;
use kcs::{Failure, Ports};

/// Network function "application" (5.1), and its two commands that are used.
const APPLICATION: u8 = 0x06;
const SET_WATCHDOG_TIMER: u8 = 0x24;
const GET_WATCHDOG_TIMER: u8 = 0x25;

/// Times that a request is made, the first one included. What firmware has left half done makes the first one fail.
const TRIES: u32 = 3;

/// Timer Use, its bits that say who started the timer, and the two with other meanings (27.6, 27.7).
const USE: u8 = 7;
const DO_NOT_LOG: u8 = 1 << 7;
/// In Get: the timer runs. In Set: it goes on. Without it the timer is stopped.
const RUNS: u8 = 1 << 6;
/// Timer Actions, its bits that say what follows.
const ACTION: u8 = 7;

/// The watchdog as Get Watchdog Timer tells it (27.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    timer_use: u8,
    actions: u8,
    pretimeout: u8,
    /// Tenths of a second, at the start and now.
    initial: u16,
    present: u16,
}

/// What follows the completion code.
impl From<[u8; 8]> for Timer {
    fn from([timer_use, actions, pretimeout, _, initial, initial_high, present, present_high]: [u8; 8]) -> Self {
        Self {
            timer_use,
            actions,
            pretimeout,
            initial: u16::from_le_bytes([initial, initial_high]),
            present: u16::from_le_bytes([present, present_high]),
        }
    }
}

impl Timer {
    /// Whether it runs.
    #[must_use]
    pub const fn runs(&self) -> bool {
        self.timer_use & RUNS != 0
    }

    /// Seconds that are left.
    #[must_use]
    pub const fn left(&self) -> u16 {
        self.present / 10
    }

    /// Who has started it.
    #[must_use]
    pub const fn started_by(&self) -> &'static str {
        match self.timer_use & USE {
            1 => "BIOS FRB2",
            2 => "BIOS/POST",
            3 => "OS Load",
            4 => "SMS/OS",
            5 => "OEM",
            _ => "a reserved use",
        }
    }

    /// What follows at its end.
    #[must_use]
    pub const fn action(&self) -> &'static str {
        match self.actions & ACTION {
            0 => "nothing follows",
            1 => "the machine is reset",
            2 => "the machine is switched off",
            3 => "the machine is switched off and on",
            _ => "a reserved action follows",
        }
    }
}

/// Why a request has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The interface fails.
    Kcs(Failure),
    /// The controller refuses by this completion code (5.2).
    Refused(u8),
    /// The response belongs to another request, or is too short.
    Response,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kcs(failure) => write!(f, "{failure}"),
            Self::Refused(code) => write!(f, "it refuses by completion code {code:#04x}"),
            Self::Response => f.write_str("its response belongs to no request, or is too short"),
        }
    }
}

/// What became of a controller's watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It does not run.
    Off,
    /// It ran like this, and does not any more.
    Stopped(Timer),
    /// It ran like this. `Some`: why it cannot be stopped. `None`: it runs on, although the controller has agreed.
    Runs(Timer, Option<Error>),
}

/// Stops the watchdog of a controller. It keeps its use, its action and its time.
///
/// # Errors
/// It cannot be read.
pub fn stop(ports: &mut impl Ports) -> Result<Outcome, Error> {
    let timer = read(ports)?;
    if !timer.runs() {
        return Ok(Outcome::Off);
    }
    let [low, high] = timer.initial.to_le_bytes();
    let kept = timer.timer_use & (DO_NOT_LOG | USE);
    let set = [kept, timer.actions, timer.pretimeout, 0, low, high];
    let mut none = [];
    let stopped = request(ports, SET_WATCHDOG_TIMER, &set, &mut none).and_then(|()| read(ports));
    Ok(match stopped {
        Ok(now) if now.runs() => Outcome::Runs(timer, None),
        Ok(_) => Outcome::Stopped(timer),
        Err(why) => Outcome::Runs(timer, Some(why)),
    })
}

fn read(ports: &mut impl Ports) -> Result<Timer, Error> {
    let mut data = [0; 8];
    request(ports, GET_WATCHDOG_TIMER, &[], &mut data)?;
    Ok(data.into())
}

/// Makes a request, up to three times. `data`: what follows the command. `result`: what has to follow the completion
/// code. More is ignored.
fn request(ports: &mut impl Ports, command: u8, data: &[u8], result: &mut [u8]) -> Result<(), Error> {
    let mut message = heapless::Vec::<u8, { kcs::MOST }>::new();
    // Network function and logical unit 0 are a byte.
    let made = message.extend_from_slice(&[APPLICATION << 2, command]).and_then(|()| message.extend_from_slice(data));
    if made.is_err() {
        return Err(Error::Response);
    }
    let mut error = Error::Response;
    for _ in 0..TRIES {
        let mut response = [0; kcs::MOST];
        match kcs::exchange(ports, &message, &mut response) {
            Ok(response) => match understand(response, command, result) {
                Ok(()) => return Ok(()),
                // The controller has understood the request.
                Err(Error::Refused(code)) => return Err(Error::Refused(code)),
                Err(why) => error = why,
            },
            Err(failure) => {
                error = Error::Kcs(failure);
                // Another try would wait as long, or there is nobody.
                if matches!(failure, Failure::NoAnswer | Failure::Silent) {
                    break;
                }
            }
        }
    }
    Err(error)
}

fn understand(response: &[u8], command: u8, result: &mut [u8]) -> Result<(), Error> {
    const RESPONSE: u8 = (APPLICATION | 1) << 2;
    match response {
        [RESPONSE, answered, 0, data @ ..] if *answered == command => {
            let data = data.get(..result.len()).ok_or(Error::Response)?;
            result.copy_from_slice(data);
            Ok(())
        }
        [RESPONSE, answered, code, ..] if *answered == command => Err(Error::Refused(*code)),
        _ => Err(Error::Response),
    }
}

#[cfg(test)]
mod tests {
    use super::kcs::model::{Controller, Trouble};
    use super::*;

    /// A watchdog that the firmware has started for the operating system, with 56.7 s left of 60.
    const LOADS: [u8; 8] = [RUNS | 3, 1, 0, 0, 0x58, 0x02, 0x37, 0x02];

    #[test]
    fn one_that_runs_is_stopped_and_keeps_everything_else() {
        let watchdog = [DO_NOT_LOG | RUNS | 2, 0x23, 7, 0, 0x58, 0x02, 0x37, 0x02];
        let mut controller = Controller::new(watchdog);
        let Ok(Outcome::Stopped(timer)) = stop(&mut controller) else { panic!("not stopped") };
        assert_eq!((timer.left(), timer.started_by()), (56, "BIOS/POST"));
        assert_eq!(timer.action(), "the machine is switched off and on");
        assert_eq!(controller.watchdog, [DO_NOT_LOG | 2, 0x23, 7, 0, 0x58, 0x02, 0, 0]);
    }

    #[test]
    fn one_that_does_not_run_is_not_written_to() {
        let mut controller = Controller::new([4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(stop(&mut controller), Ok(Outcome::Off));
        assert_eq!(controller.commands, [GET_WATCHDOG_TIMER]);
    }

    #[test]
    fn what_firmware_has_left_half_done_is_no_obstacle() {
        for trouble in [Trouble::InTheMiddleOfARequest, Trouble::InTheMiddleOfAResponse, Trouble::InError] {
            let mut controller = Controller::new(LOADS).with(trouble.clone());
            assert!(matches!(stop(&mut controller), Ok(Outcome::Stopped(_))), "{trouble:?}");
        }
    }

    #[test]
    fn where_there_is_no_controller_nothing_is_written_and_nothing_waits() {
        let mut controller = Controller::new(LOADS).with(Trouble::Absent);
        assert_eq!(stop(&mut controller), Err(Error::Kcs(Failure::NoAnswer)));
        assert_eq!(controller.now, 0);
    }

    #[test]
    fn one_that_says_nothing_is_given_up_in_time() {
        for trouble in [Trouble::NeverReady, Trouble::NeverAnswers] {
            let mut controller = Controller::new(LOADS).with(trouble.clone());
            assert_eq!(stop(&mut controller), Err(Error::Kcs(Failure::Silent)), "{trouble:?}");
            assert!(controller.now < 3 * kcs::PATIENCE, "{trouble:?}: {} us", controller.now);
        }
    }

    #[test]
    fn one_that_refuses_or_does_not_stop_still_runs() {
        let mut controller = Controller::new(LOADS).with(Trouble::RefusesSet(0xcc));
        let outcome = stop(&mut controller);
        assert!(matches!(outcome, Ok(Outcome::Runs(_, Some(Error::Refused(0xcc))))), "{outcome:?}");
        let mut controller = Controller::new(LOADS).with(Trouble::IgnoresSet);
        assert!(matches!(stop(&mut controller), Ok(Outcome::Runs(_, None))));
    }

    #[test]
    fn responses_that_are_none_are_not_believed() {
        for response in [&[][..], &[0x1c], &[0x1c, 0x25], &[0x1c, 0x24, 0], &[0x1c, 0x25, 0, 0x43, 1], &[0x18, 0x25, 0]]
        {
            let mut controller = Controller::new(LOADS).with(Trouble::Says(response.to_vec()));
            assert_eq!(stop(&mut controller), Err(Error::Response), "{response:02x?}");
        }
        let mut controller = Controller::new(LOADS).with(Trouble::Says(vec![0x5a; 5000]));
        assert_eq!(stop(&mut controller), Err(Error::Kcs(Failure::TooLong)));
    }

    #[test]
    fn whatever_the_ports_read_it_ends() {
        // A generator of numbers (xorshift): each read gives something else.
        struct Noise(u64, u64);
        impl Noise {
            fn next(&mut self) -> u8 {
                self.0 ^= self.0 << 13;
                self.0 ^= self.0 >> 7;
                self.0 ^= self.0 << 17;
                self.0 as u8
            }
        }
        impl Ports for Noise {
            fn read_data(&mut self) -> u8 {
                self.next()
            }
            fn read_status(&mut self) -> u8 {
                self.next()
            }
            fn write_data(&mut self, _: u8) {}
            fn write_command(&mut self, _: u8) {}
            fn micros(&mut self) -> u64 {
                self.1 += 1000;
                self.1
            }
        }
        for seed in 1..2000 {
            let mut noise = Noise(seed, 0);
            let _ = stop(&mut noise);
            assert!(noise.1 < 60 * kcs::PATIENCE);
        }
    }
}
