//! What measurements of several back-ends in turn have in common: clock, distance of the processors, and processes that
//! are stopped while others have their turn.

pub mod clock;
pub mod distance;
pub mod process;
