//! What the picture of `top` is of, as keys choose it.

/// By what the guests are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Exits,
    Host,
    Frames,
    Disk,
    Name,
}

impl Sort {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exits => "exits",
            Self::Host => "host time",
            Self::Frames => "frames",
            Self::Disk => "disk",
            Self::Name => "name",
        }
    }
}

/// What the picture is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Machine,
    Guest,
}

/// What the keys have chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Picture {
    pub view: View,
    pub sort: Sort,
    pub frozen: bool,
    /// The number of the chosen guest.
    pub selected: usize,
}
