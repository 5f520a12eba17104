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

    /// Gives input to the guest, in its order. Returns how many bytes fitted. Ring the [`Bell`](crate::bell::Bell)
    /// afterwards.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        self.input.push_partial_slice(bytes).0.len()
    }
}
