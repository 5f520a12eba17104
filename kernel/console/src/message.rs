//! Control messages (virtio 1.3 5.3.6.2): `id` (32 bits), `event` (16 bits), `value` (16 bits), little-endian.

/// Bytes of a message without a name.
pub(crate) const MESSAGE_BYTES: usize = 8;

/// Events, as the standard numbers them.
pub(crate) mod event {
    /// From the driver: it is ready for ports.
    pub(crate) const DEVICE_READY: u16 = 0;
    /// To the driver: there is a port.
    pub(crate) const PORT_ADD: u16 = 1;
    /// From the driver: it has set up the port.
    pub(crate) const PORT_READY: u16 = 3;
    /// To the driver: the port is a console.
    pub(crate) const CONSOLE_PORT: u16 = 4;
    /// Both ways: the port was opened (value 1) or closed (value 0).
    pub(crate) const PORT_OPEN: u16 = 6;
    /// To the driver: the port's name follows.
    pub(crate) const PORT_NAME: u16 = 7;
}

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Number of the port.
    pub(crate) id: u32,
    /// What happened or is to happen.
    pub(crate) event: u16,
    /// Its value.
    pub(crate) value: u16,
}

impl Message {
    /// Decodes a message.
    pub(crate) const fn decode(bytes: [u8; MESSAGE_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self {
            id: u32::from_le_bytes([a, b, c, d]),
            event: u16::from_le_bytes([e, f]),
            value: u16::from_le_bytes([g, h]),
        }
    }

    /// Encodes it.
    pub(crate) const fn encode(self) -> [u8; MESSAGE_BYTES] {
        let ([a, b, c, d], [e, f], [g, h]) =
            (self.id.to_le_bytes(), self.event.to_le_bytes(), self.value.to_le_bytes());
        [a, b, c, d, e, f, g, h]
    }
}

#[cfg(test)]
mod tests {
    use super::{Message, event};

    #[test]
    fn a_message_has_the_standards_layout() {
        let message = Message { id: 0x0102_0304, event: event::PORT_NAME, value: 0x0506 };
        assert_eq!(message.encode(), [4, 3, 2, 1, 7, 0, 6, 5]);
        assert_eq!(Message::decode(message.encode()), message);
    }
}
