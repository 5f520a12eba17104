//! The Keyboard Controller Style interface to a management controller (IPMI 2.0, chapter 9): two ports, polled. One has
//! data, the other status and commands. The controller takes each byte when it likes, so every wait has an end.

use core::fmt;

/// Microseconds for one exchange. A controller may take up to five seconds for a response.
pub const PATIENCE: u64 = 5_000_000;
/// Longest message in bytes. The specification's are shorter.
pub const MOST: usize = 64;

/// Bits of the status (9.7): the controller has a byte for us, it has not taken ours yet, and its state in two bits.
const OBF: u8 = 1 << 0;
const IBF: u8 = 1 << 1;
const STATE: u8 = 3 << 6;
const IDLE: u8 = 0 << 6;
const READ: u8 = 1 << 6;
const WRITE: u8 = 2 << 6;

/// Control codes (9.10).
const ABORT: u8 = 0x60;
const WRITE_START: u8 = 0x61;
const WRITE_END: u8 = 0x62;
const NEXT: u8 = 0x68;

/// The interface's ports, and the time.
pub trait Ports {
    /// Reads a byte of data.
    fn read_data(&mut self) -> u8;
    /// Writes a byte of data.
    fn write_data(&mut self, value: u8);
    /// Reads the status.
    fn read_status(&mut self) -> u8;
    /// Writes a control code.
    fn write_command(&mut self, value: u8);
    /// Microseconds since a fixed moment. It grows while it is asked again and again.
    fn micros(&mut self) -> u64;
}

/// Why an exchange fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nothing is at the ports.
    NoAnswer,
    /// The controller does not go on within [`PATIENCE`].
    Silent,
    /// It is in another state than it should be. The exchange was aborted.
    State(u8),
    /// The response is longer than any.
    TooLong,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer => f.write_str("nothing answers at its ports"),
            Self::Silent => write!(f, "it does not go on within {} s", PATIENCE / 1_000_000),
            Self::State(status) => write!(f, "its interface is in a wrong state, status {status:#04x}"),
            Self::TooLong => write!(f, "its response has more than {MOST} bytes"),
        }
    }
}

/// Sends a message, and returns the part of `response` that the answer is in. After a failure the interface is idle
/// again, if that can be reached.
///
/// # Errors
/// There is no answer.
pub fn exchange<'a>(ports: &mut impl Ports, message: &[u8], response: &'a mut [u8; MOST]) -> Result<&'a [u8], Failure> {
    // No controller has all bits set: it would have taken no byte, and be in error.
    if ports.read_status() == u8::MAX {
        return Err(Failure::NoAnswer);
    }
    let end = ports.micros().saturating_add(PATIENCE);
    let mut kcs = Kcs { ports, end };
    match kcs.send(message).and_then(|()| kcs.receive(response)) {
        Ok(len) => Ok(response.get(..len).unwrap_or_default()),
        Err(failure) => {
            if failure != Failure::Silent {
                kcs.abort();
            }
            Err(failure)
        }
    }
}

/// An exchange, which has to end at a time.
struct Kcs<'p, P> {
    ports: &'p mut P,
    end: u64,
}

impl<P: Ports> Kcs<'_, P> {
    /// Waits until the bits of `mask` in the status are `wanted`. Returns the status.
    fn wait(&mut self, mask: u8, wanted: u8) -> Result<u8, Failure> {
        loop {
            // The clock is read first: the last look is after the limit, however long this core was kept from it.
            let over = self.ports.micros() > self.end;
            let status = self.ports.read_status();
            if status & mask == wanted {
                return Ok(status);
            }
            if over {
                return Err(Failure::Silent);
            }
            core::hint::spin_loop();
        }
    }

    /// Waits until the controller has taken what was written, and returns its status.
    fn taken(&mut self) -> Result<u8, Failure> {
        self.wait(IBF, 0)
    }

    /// Takes the byte that the controller may have for us.
    fn clear(&mut self) {
        let _ = self.ports.read_data();
    }

    /// Sends a message (9.15, figure 9-6).
    fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        let Some((&last, first)) = message.split_last() else { return Ok(()) };
        self.taken()?;
        self.clear();
        self.ports.write_command(WRITE_START);
        self.writing()?;
        for &byte in first {
            self.ports.write_data(byte);
            self.writing()?;
        }
        self.ports.write_command(WRITE_END);
        self.writing()?;
        self.ports.write_data(last);
        Ok(())
    }

    /// Waits until the controller takes the next byte of the message.
    fn writing(&mut self) -> Result<(), Failure> {
        let status = self.taken()?;
        if status & STATE != WRITE {
            return Err(Failure::State(status));
        }
        self.clear();
        Ok(())
    }

    /// Receives a message (9.15, figure 9-7). Returns its length.
    fn receive(&mut self, response: &mut [u8; MOST]) -> Result<usize, Failure> {
        let mut len = 0_usize;
        loop {
            let status = self.taken()?;
            match status & STATE {
                READ => {
                    self.wait(OBF, OBF)?;
                    let byte = self.ports.read_data();
                    *response.get_mut(len).ok_or(Failure::TooLong)? = byte;
                    len = len.saturating_add(1);
                    self.ports.write_data(NEXT);
                }
                IDLE => {
                    // A byte without meaning ends the message.
                    self.wait(OBF, OBF)?;
                    self.clear();
                    return Ok(len);
                }
                _ => return Err(Failure::State(status)),
            }
        }
    }

    /// Has the interface become idle (9.15, figure 9-8). What fails here fails in the next exchange too.
    fn abort(&mut self) {
        let _ = self.try_abort();
    }

    fn try_abort(&mut self) -> Result<(), Failure> {
        self.taken()?;
        self.ports.write_command(ABORT);
        self.taken()?;
        self.clear();
        self.ports.write_data(0);
        // The controller says why it was in error: a byte, and the end of a message.
        let mut why = [0; MOST];
        self.receive(&mut why).map(drop)
    }
}

#[cfg(test)]
pub(super) mod model {
    //! A management controller behind a KCS interface.

    use super::{ABORT, IBF, NEXT, OBF, Ports, READ, STATE, WRITE, WRITE_END, WRITE_START};

    /// In the two bits of the state.
    const ERROR: u8 = 3 << 6;

    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Trouble {
        None,
        /// Nobody is at the ports.
        Absent,
        /// It never takes a byte.
        NeverReady,
        /// It takes a request and says nothing.
        NeverAnswers,
        /// Firmware has begun a request, has not read a response, has made a mistake.
        InTheMiddleOfARequest,
        InTheMiddleOfAResponse,
        InError,
        /// It refuses Set Watchdog Timer by this code, or agrees and does nothing.
        RefusesSet(u8),
        IgnoresSet,
        /// It answers each request by this.
        Says(Vec<u8>),
    }

    pub struct Controller {
        pub watchdog: [u8; 8],
        /// The commands that it got.
        pub commands: Vec<u8>,
        pub now: u64,
        trouble: Trouble,
        status: u8,
        data: u8,
        request: Vec<u8>,
        last: bool,
        response: Vec<u8>,
        /// Looks at the status until it has taken a byte.
        busy: u32,
    }

    impl Controller {
        pub fn new(watchdog: [u8; 8]) -> Self {
            Self {
                watchdog,
                commands: Vec::new(),
                now: 0,
                trouble: Trouble::None,
                status: 0,
                data: 0x77,
                request: Vec::new(),
                last: false,
                response: Vec::new(),
                busy: 0,
            }
        }

        pub fn with(mut self, trouble: Trouble) -> Self {
            match trouble {
                Trouble::InTheMiddleOfARequest => self.status = WRITE | OBF,
                Trouble::InTheMiddleOfAResponse => {
                    (self.status, self.response) = (READ | OBF, vec![0x1c, 0x22, 0]);
                }
                Trouble::InError => self.status = ERROR,
                Trouble::NeverReady => self.busy = u32::MAX,
                _ => {}
            }
            self.trouble = trouble;
            self
        }

        fn set(&mut self, state: u8) {
            self.status = self.status & !STATE | state;
        }

        fn give(&mut self, byte: u8) {
            (self.data, self.status) = (byte, self.status | OBF);
        }

        fn error(&mut self) {
            self.set(ERROR);
            self.give(0xff);
        }

        fn next(&mut self) {
            if self.response.is_empty() {
                self.set(0);
                self.give(0);
            } else {
                let byte = self.response.remove(0);
                self.give(byte);
            }
        }

        fn answer(&mut self) {
            let request = std::mem::take(&mut self.request);
            let [0x18, command, data @ ..] = &request[..] else { panic!("the request {request:02x?}") };
            self.commands.push(*command);
            self.response = match (*command, &self.trouble) {
                (_, Trouble::NeverAnswers) => {
                    self.busy = u32::MAX;
                    return;
                }
                (_, Trouble::Says(what)) => what.clone(),
                (0x25, _) => [&[0x1c, 0x25, 0][..], &self.watchdog].concat(),
                (0x24, Trouble::RefusesSet(code)) => vec![0x1c, 0x24, *code],
                (0x24, trouble) => {
                    if *trouble != Trouble::IgnoresSet {
                        self.watchdog[..6].copy_from_slice(data);
                        self.watchdog[6..].fill(0);
                    }
                    vec![0x1c, 0x24, 0]
                }
                _ => vec![0x1c, *command, 0xc1],
            };
            self.set(READ);
            self.next();
        }

        fn written(&mut self) {
            assert!(self.trouble != Trouble::Absent, "a write where nobody is");
            assert_eq!(self.busy, 0, "a write before the byte before was taken");
            self.busy = 3;
        }
    }

    impl Ports for Controller {
        fn read_data(&mut self) -> u8 {
            self.status &= !OBF;
            self.data
        }

        fn read_status(&mut self) -> u8 {
            if self.trouble == Trouble::Absent {
                return 0xff;
            }
            self.busy = if self.busy == u32::MAX { u32::MAX } else { self.busy.saturating_sub(1) };
            self.status | if self.busy > 0 { IBF } else { 0 }
        }

        fn write_command(&mut self, value: u8) {
            self.written();
            match (value, self.status & STATE) {
                (ABORT, _) => self.set(ERROR),
                (WRITE_START, 0) => {
                    self.set(WRITE);
                    self.request.clear();
                    self.last = false;
                    self.give(0);
                }
                (WRITE_END, WRITE) => {
                    self.last = true;
                    self.give(0);
                }
                // A controller may begin anew here too. This one does not.
                _ => self.error(),
            }
        }

        fn write_data(&mut self, value: u8) {
            self.written();
            match self.status & STATE {
                WRITE => {
                    self.request.push(value);
                    self.give(0);
                    if self.last {
                        self.answer();
                    }
                }
                READ if value == NEXT => self.next(),
                ERROR => {
                    self.set(READ);
                    self.response.clear();
                    self.give(1);
                }
                _ => self.error(),
            }
        }

        fn micros(&mut self) -> u64 {
            if self.trouble != Trouble::Absent {
                self.now += 10;
            }
            self.now
        }
    }
}
