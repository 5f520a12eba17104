//! Capture files of Ethernet, in the classic format with nanoseconds, which any packet tool can read
//! (draft-ietf-opsawg-pcap).

use std::io::{Error, ErrorKind, Read, Result, Write};

/// Nanoseconds, in the byte order of whoever wrote it; microseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const ETHERNET: u32 = 1;
const LONGEST: u32 = 0x4_0000;

/// A capture being written.
#[derive(Debug)]
pub struct Writer<W>(W);

impl<W: Write> Writer<W> {
    /// Begins a capture.
    ///
    /// # Errors
    /// An error of `to`.
    pub fn new(mut to: W) -> Result<Self> {
        for word in [MAGIC, 2 | 4 << 16, 0, 0, LONGEST, ETHERNET] {
            to.write_all(&word.to_le_bytes())?;
        }
        Ok(Self(to))
    }

    /// Adds a frame without FCS.
    ///
    /// # Errors
    /// An error of the file.
    pub fn write(&mut self, microseconds: u64, frame: &[u8]) -> Result<()> {
        let len = frame.len() as u32;
        let mut record = Vec::with_capacity(16 + frame.len());
        for word in [(microseconds / 1_000_000) as u32, (microseconds % 1_000_000 * 1000) as u32, len, len] {
            record.extend(word.to_le_bytes());
        }
        record.extend(frame);
        // One write: whoever reads the file meanwhile sees whole frames, but for the last.
        self.0.write_all(&record)
    }
}

/// A frame of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The time of its passing, in microseconds.
    pub microseconds: u64,
    /// Its bytes, without FCS.
    pub bytes: Vec<u8>,
}

/// Reads a capture from any tool. Leaves out a last frame that is cut off.
///
/// # Errors
/// It is no capture, or not one of Ethernet; or an error of `from`.
pub fn read(mut from: impl Read) -> Result<Vec<Frame>> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    let little = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let magic = little(0).unwrap_or_default();
    let (swapped, unit) = match (magic, magic.swap_bytes()) {
        (MAGIC, _) => (false, 1000),
        (MAGIC_MICROSECONDS, _) => (false, 1),
        (_, MAGIC) => (true, 1000),
        (_, MAGIC_MICROSECONDS) => (true, 1),
        _ => return Err(Error::new(ErrorKind::InvalidData, format!("no capture: it begins with {magic:#x}"))),
    };
    let word = |at: usize| little(at).map(|w| if swapped { w.swap_bytes() } else { w });
    if word(20).map(|kind| kind & 0xffff) != Some(ETHERNET) {
        return Err(Error::new(ErrorKind::InvalidData, format!("a capture of type {:?}, not Ethernet", word(20))));
    }
    let (mut frames, mut at) = (Vec::new(), 24);
    while let (Some(seconds), Some(part), Some(len)) = (word(at), word(at + 4), word(at + 8)) {
        let Some(frame) = bytes.get(at + 16..).and_then(|b| b.get(..len as usize)) else { break };
        let microseconds = u64::from(seconds) * 1_000_000 + u64::from(part / unit);
        frames.push(Frame { microseconds, bytes: frame.to_vec() });
        at += 16 + len as usize;
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::{Frame, Writer, read};

    #[test]
    fn what_was_written_is_read_and_a_torn_end_is_left_out() {
        let mut file = Vec::new();
        let mut w = Writer::new(&mut file).unwrap();
        w.write(5, &[1, 2, 3]).unwrap();
        w.write(3_000_007, &[4; 60]).unwrap();
        let both =
            [Frame { microseconds: 5, bytes: vec![1, 2, 3] }, Frame { microseconds: 3_000_007, bytes: vec![4; 60] }];
        assert_eq!(read(file.as_slice()).unwrap(), both);
        assert_eq!(read(&file[..file.len() - 1]).unwrap(), both[..1]);
        assert!(read(&file[..20]).is_err() && read(&[0; 24][..]).is_err());
    }

    #[test]
    fn the_other_byte_order_and_microseconds_are_read_too() {
        let mut file = Vec::new();
        for word in [0xa1b2_c3d4u32, 0x0002_0004, 0, 0, 65_535, 1, 2, 9, 1, 1] {
            file.extend(word.to_be_bytes());
        }
        file.push(7);
        assert_eq!(read(file.as_slice()).unwrap(), [Frame { microseconds: 2_000_009, bytes: vec![7] }]);
    }
}
