//! The device's side of a virtqueue, split (virtio 1.3 ch. 2.7) or packed (ch. 2.8).
//!
//! The queue keeps its own indices. It reads from guest memory only what the driver writes there: indices, ring
//! entries, descriptors, events. Each value is read once and then checked. What the host wrote to guest memory is never
//! read back.
//!
//! | file | what it does |
//! |---|---|
//! | `ring` | a queue in use: takes requests one by one, completes, publishes, arms |
//! | `split`, `packed` | the two ring formats |
//! | `batch` | takes and completes many requests in one call, for the fast path of a back-end |
//! | `completer` | completes many requests that were taken before, in one call |
//! | `descriptors` | the descriptors of one chain in a batch |
//! | `request`, `state` | a request that was taken; a queue's positions as plain data |

mod batch;
mod completer;
mod descriptors;
#[cfg(all(test, not(miri)))]
mod model;
mod packed;
mod request;
mod ring;
mod split;
mod state;

pub use batch::{Batch, Entries, Peek, Purpose, RingDescriptor, Used};
pub use completer::{Complete, Completer};
pub use descriptors::{Descriptors, Regions};
pub use request::{Backlog, INEXACT_BACKLOG, Origin, Request, Token, UsedNotification};
pub use ring::Queue;
#[cfg(any(test, feature = "testing"))]
pub(crate) use ring::either;
pub use state::QueueState;
