//! The two rings of bytes of a port, between the engine's core and the control core. Each ring has one writer and one
//! reader. Memory is allocated when they are made. It is freed by the core that drops its end last: the control core, if
//! it keeps its end until the engine has given the device back.

use rtrb::{Consumer, Producer, RingBuffer};

/// The engine's end.
#[derive(Debug)]
pub struct EngineEnd {
    /// Output of the guest, to the control core.
    pub(crate) output: Producer<u8>,
    /// Input from the control core, for the guest.
    pub(crate) input: Consumer<u8>,
}

/// The control core's end.
#[derive(Debug)]
pub struct ControlEnd {
    output: Consumer<u8>,
    input: Producer<u8>,
}

/// Makes the rings of a port. `output` and `input` are their sizes in bytes, not 0.
#[must_use]
pub fn wire(output: usize, input: usize) -> (EngineEnd, ControlEnd) {
    let (to_control, from_engine) = RingBuffer::new(output.max(1));
    let (to_engine, from_control) = RingBuffer::new(input.max(1));
    (EngineEnd { output: to_control, input: from_control }, ControlEnd { output: from_engine, input: to_engine })
}

impl ControlEnd {
    /// Takes output of the guest into `bytes`, in its order. Returns how many bytes it took.
    pub fn read(&mut self, bytes: &mut [u8]) -> usize {
        self.output.pop_partial_slice(bytes).0.len()
    }

    /// How many bytes of input fit now.
    #[must_use]
    pub fn room(&self) -> usize {
        self.input.slots()
    }

    /// Whether the guest's buffers have taken all input that was given.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.input.slots() == self.input.buffer().capacity()
    }

    /// Gives input to the guest, in its order. Returns how many bytes fitted. Ring the [`Bell`](crate::bell::Bell)
    /// afterwards.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.input.push_partial_slice(bytes).0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_drained_when_the_engine_has_taken_all_of_it() {
        let (mut engine, mut control) = wire(1, 3);
        assert!(control.is_drained());
        assert_eq!(control.write(b"abcd"), 3);
        for left in [2, 1, 0] {
            assert!(!control.is_drained());
            assert!(engine.input.pop().is_ok());
            assert_eq!(control.is_drained(), left == 0);
        }
    }
}
