//! Who has sent a request by the control channel, in the words of the management guest's agent. Root mode cannot check them. So they
//! go into the audit and into sentences, and no permission depends on them.

use heapless::String;

/// Most bytes of the name of a caller.
pub const MAX_WHO: usize = 32;
/// Most bytes of a client's address. An IPv6 address has up to 39, and its zone may follow.
pub const MAX_ADDRESS: usize = 48;

/// The owner of a key, and where the client is. Both are empty if nothing was said. They have only printable ASCII characters,
/// none of `(`, `)` and `,`, which separate them from the rest of a line of the audit, and none
/// of `"` and `\`, which JSON would escape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// The name of the ssh key.
    pub who: String<MAX_WHO>,
    /// The address of the client.
    pub address: String<MAX_ADDRESS>,
}

impl Sender {
    /// Makes a sender. Other characters are left out, and what is too long is cut off.
    #[must_use]
    pub fn new(who: &str, address: &str) -> Self {
        Self { who: clean(who), address: clean(address) }
    }

    /// Nothing was said.
    #[must_use]
    pub const fn nobody() -> Self {
        Self { who: String::new(), address: String::new() }
    }

    /// Whether nothing was said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.who.is_empty() && self.address.is_empty()
    }
}

fn clean<const MOST: usize>(text: &str) -> String<MOST> {
    let kept = text.chars().filter(|c| c.is_ascii_graphic() && !matches!(c, '(' | ')' | ',' | '"' | '\\'));
    // Each of these has a byte.
    kept.take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_has_only_characters_that_end_nothing() {
        let sender = Sender::new("an\x1b[7mna é), \"x\\): kill a: done", "fe80::1%eth0");
        assert_eq!(sender.who, "an[7mnax:killa:done");
        assert_eq!(sender.address, "fe80::1%eth0");
        let long = Sender::new(&"w".repeat(99), &"1".repeat(99));
        assert_eq!((long.who.len(), long.address.len()), (MAX_WHO, MAX_ADDRESS));
        assert!(!long.is_empty() && Sender::new(" \n", "()").is_empty());
    }
}
