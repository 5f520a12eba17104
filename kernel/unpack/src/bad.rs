//! Why a file cannot be unpacked.

use alloc::format;
use alloc::string::String;
use core::fmt;

use ruzstd::decoding::errors::FrameDecoderError;

/// Largest window in bytes. `zstd` needs more only with `--long` and `--ultra`.
pub const MAX_WINDOW: u64 = 8 << 20;

/// Why a file cannot be unpacked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bad {
    /// It has no frame with contents.
    Empty,
    /// It ends within a frame to be skipped.
    Short,
    /// It needs a larger window. The bytes.
    Window(u64),
    /// Its contents are longer than there is room. The bytes of the room.
    TooLong(u64),
    /// Its contents have another checksum than it says.
    Checksum {
        /// In the file.
        said: u32,
        /// Of the contents.
        is: u32,
    },
    /// It is damaged. What the decoder says.
    Damaged(String),
}

impl Bad {
    pub(crate) fn damaged(error: &impl fmt::Display) -> Self {
        Self::Damaged(format!("{error}"))
    }
}

impl From<FrameDecoderError> for Bad {
    fn from(error: FrameDecoderError) -> Self {
        match error {
            FrameDecoderError::WindowSizeTooBig { requested, .. } => Self::Window(requested),
            error => Self::damaged(&error),
        }
    }
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it is compressed and has no contents"),
            Self::Short => f.write_str("it is compressed and ends too early"),
            Self::Window(window) => write!(
                f,
                "it is compressed with a window of {window} bytes; expected at most {MAX_WINDOW}: compress it without --long \
                 and --ultra"
            ),
            Self::TooLong(room) => write!(f, "it unpacks to more than {room} bytes; expected a larger `size`"),
            Self::Checksum { said, is } => {
                write!(f, "it is damaged: the checksum of its contents is {is:#010x}, and it says {said:#010x}")
            }
            Self::Damaged(why) => write!(f, "it cannot be unpacked: {why}"),
        }
    }
}
